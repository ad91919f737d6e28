// Makes steps in one stream and prints what each was answered: steps.mjs CLIENT ADDRESS STEPS ENCODING
import { pathToFileURL } from "node:url";

const [path, address, steps, encoding] = process.argv.slice(2);
const { Client } = await import(pathToFileURL(path));

const log = [];
const client = await Client.connect(address, { encoding, client: "node", timeout: 5_000, patience: 20_000 });
for (let index = 0; index < Number(steps); index += 1) {
  const observations = [index, -index];
  try {
    const answer = index === 0 ? await client.begin(observations) : await client.step({ observations, rewards: [index / 2], statuses: [0] });
    log.push([index, answer.seq, answer.actions[0]]);
  } catch (error) {
    log.push([index, error.code]);
  }
}
const stats = await client.stats();
client.bye();
const late = await client.begin([0, 0]).catch((error) => error.code);
console.log(JSON.stringify({ log, steps: stats.steps, reconnections: client.reconnections, state: client.state, late }));
