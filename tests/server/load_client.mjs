// The same as load_client.py, with rekindle.js: plays a seeded world against a server, and logs each request and its answer.
// load_client.mjs CLIENT ADDRESS NAME LOG SEED REQUESTS STATES
import { appendFileSync, writeFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [path, address, name, log, seed, requests, states] = process.argv.slice(2);
const { Client } = await import(pathToFileURL(path));

let state = Number(seed) + 12345;
function random() {
  state = (Math.imul(state, 1103515245) + 12345) & 0x7fffffff;
  return (state >> 8) / 0x7fffff;
}
const below = (most) => Math.min(most - 1, Math.floor(random() * most));

const streams = Array.from({ length: 1 + (Number(seed) % 3) }, (_, index) => index);
const isOpen = streams.map(() => false);
writeFileSync(log, "");
const client = await Client.connect(address, { client: name, patience: 120_000, encoding: Number(seed) % 4 === 3 ? "json" : "msgpack" });
for (let number = 1; number <= Number(requests); number += 1) {
  const stepping = streams.filter((stream) => isOpen[stream]);
  const beginning = streams.filter((stream) => !isOpen[stream]);
  const observations = stepping.map(() => below(Number(states)));
  const rewards = stepping.map(() => below(1000) / 1000);
  const statuses = stepping.map(() => [0, 0, 0, 0, 0, 0, 1, 2][below(8)]);
  const first = beginning.map(() => below(Number(states)));
  const parts = {};
  if (stepping.length > 0) parts.step = { streams: stepping, observations, rewards, statuses };
  if (beginning.length > 0) parts.begin = { streams: beginning, observations: first };
  const { actions, seq, tick } = await client.batch(parts);
  stepping.forEach((stream, row) => (isOpen[stream] = statuses[row] === 0));
  beginning.forEach((stream) => (isOpen[stream] = true));
  const request = { step: [observations, rewards, statuses, stepping], begin: [first, beginning] };
  appendFileSync(log, `${JSON.stringify({ seq, tick, request, actions: Array.from(actions) })}\n`);
}
console.log(client.reconnections);
client.close();
