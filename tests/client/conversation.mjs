// Talks to a real server about everything that the client can do: conversation.mjs CLIENT ADDRESS ENCODING
import assert from "node:assert/strict";
import { pathToFileURL } from "node:url";

const [path, address, encoding] = process.argv.slice(2);
const { Client, CONTINUING, SessionError, TERMINATED, TRUNCATED } = await import(pathToFileURL(path));
const fails = (code) => (error) => error instanceof SessionError && error.code === code;
const options = { encoding, token: "open sesame", timeout: 20_000, patience: 20_000 };

const states = [];
const client = await Client.connect(address, { ...options, client: "one", onState: (state) => states.push(state) });
await new Promise((resolve) => setTimeout(resolve));
assert.deepEqual([client.state, states], ["open", ["open"]]);
const format = client.welcome.observation;

// Rows of two streams: parts of a Dict, an image and a number.
const rows = (count) => ({
  eye: Uint8Array.from({ length: 4 * count }, (_, index) => index),
  speed: Float32Array.from({ length: count }, (_, index) => index / 4),
});
assert.deepEqual(Object.keys(format), ["eye", "speed"]);
let { actions, seq } = await client.begin(rows(2), ["boss", 3]);
assert.deepEqual([seq, actions.move.length, actions.turn.length], [1, 2, 2]);
assert.ok(actions.move instanceof Int32Array && actions.turn instanceof Float32Array);

const extras = { 1: { hits: 3, won: true } };
({ actions, seq } = await client.step({ streams: ["boss", 3], observations: rows(2), rewards: [1, 0.5], statuses: [CONTINUING, TERMINATED], extras }));
assert.equal(seq, 2);
await assert.rejects(client.step({ streams: [3], observations: rows(1), rewards: [1], statuses: [0] }), fails("stream"));
await assert.rejects(client.step({ streams: ["boss"], observations: rows(2), rewards: [1], statuses: [0] }), RangeError);
await assert.rejects(client.step({ streams: ["boss"], observations: { eye: [1, 2, 3, 4] }, rewards: [1], statuses: [0] }), TypeError);
const wrong = [{ streams: [1.5] }, { streams: [-1] }, { extras: { 0: { hits: undefined } } }, { extras: { 0: { hits: "3" } } }];
for (const bad of wrong) {
  const step = { streams: ["boss"], observations: rows(1), rewards: [1], statuses: [0], ...bad };
  await assert.rejects(client.step(step), bad.streams ? RangeError : TypeError);
}
await assert.rejects(client.closeStreams([""]), RangeError);
const executed = { move: [1], turn: [0.25] };
({ seq } = await client.step({ streams: ["boss"], observations: rows(1), rewards: [1], statuses: [CONTINUING], actions: executed }));
assert.equal(seq, 3, "requests that were refused use no number");

// Several requests at once wait for each other.
const both = await Promise.all([client.begin(rows(1), [3]), client.begin(rows(1), [4])]);
assert.deepEqual(both.map((answer) => answer.seq), [4, 5]);
const batch = await client.batch({
  close: [4],
  abandon: [3],
  step: { streams: ["boss"], observations: rows(1), rewards: [0], statuses: [TRUNCATED] },
  begin: { streams: ["boss", 3], observations: rows(2) },
});
assert.equal(batch.actions.move.length, 3);
assert.equal((await client.closeStreams([3])).actions, null);

assert.equal((await client.act(rows(5), 5)).move.length, 5);
const stats = await client.stats();
assert.deepEqual([stats.steps, stats.clients, stats.streams], [4, 1, 1]);

// Another client continues as this one, which is told to stay away.
await assert.rejects(Client.connect(address, { ...options, client: "one" }), fails("taken"));
const again = await Client.connect(address, { ...options, resume: client.ticket });
assert.deepEqual([...again.streams.keys()], ["boss"]);
assert.deepEqual(again.streams.get("boss").action.move, batch.actions.move.subarray(1, 2));
await assert.rejects(client.step({ streams: ["boss"], observations: rows(1), rewards: [0], statuses: [0] }), fails("replaced"));
assert.equal(client.state, "closed");
({ seq } = await again.step({ streams: ["boss"], observations: rows(1), rewards: [0], statuses: [0] }));
assert.equal(seq, 8);
const { ticket } = again;
again.bye();
await new Promise((resolve) => setTimeout(resolve, 50));

// After bye nobody has that secret: the client starts anew by itself.
const anew = await Client.connect(address, { ...options, resume: ticket });
assert.deepEqual([anew.streams.size, anew.ticket.last], [0, 0]);
assert.equal((await anew.begin(rows(1))).seq, 1);
anew.close();
await assert.rejects(anew.stats(), fails("closed"));

const player = await Client.connect(address, { ...options, mode: "play", resume: anew.ticket });
assert.equal(player.ticket.secret, anew.ticket.secret);
assert.equal((await player.act(rows(1))).move.length, 1);
await assert.rejects(player.begin(rows(1)), fails("mode"));
player.close();

await assert.rejects(Client.connect(address, { ...options, token: "wrong" }), fails("token"));
const actionSpace = { type: "Discrete", n: 2, start: 0 };
await assert.rejects(Client.connect(address, { ...options, actionSpace }), fails("spaces"));
await assert.rejects(Client.connect("ws://127.0.0.1:1/session", { patience: 100 }), fails("unreachable"));
console.log("done");
