// Lets the creatures of the game learn from a server, as fast as it answers: learn.mjs STATIC ADDRESS MOVES SEED
import { pathToFileURL } from "node:url";

const [directory, address, most, seed] = process.argv.slice(2);
const load = (name) => import(pathToFileURL(`${directory}/${name}`));
const [{ Client }, { Learning, Pilot }, { ACTION_SPACE, OBSERVATION_SPACE, World }] = await Promise.all(
  ["client.js", "pilot.js", "world.js"].map(load),
);

const world = new World({ seed: Number(seed) });
const pilot = new Pilot(world);
const client = await Client.connect(address, { observationSpace: OBSERVATION_SPACE, actionSpace: ACTION_SPACE });
pilot.onFailure = (error) => {
  throw error;
};
pilot.use(new Learning(client));
const meals = [0];
const part = Number(most) / 10;
while (pilot.moves < Number(most)) {
  pilot.advance(40);
  if (pilot.moves >= part * meals.length) meals.push(world.meals);
  await new Promise((resolve) => setImmediate(resolve));
}
console.log(JSON.stringify(meals.slice(1).map((total, index) => (100 * (total - meals[index])) / part)));
pilot.use(null);
client.bye();
