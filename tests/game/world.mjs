// Checks the world of the game: world.mjs STATIC
import assert from "node:assert/strict";
import { pathToFileURL } from "node:url";

const directory = process.argv[2];
const load = (name) => import(pathToFileURL(`${directory}/${name}`));
const { ACTION_SPACE, OBSERVATION_SPACE, SIGHT, TICKS_A_MOVE, TURNS, World } = await load("world.js");
const { Learning, Pilot, Playing } = await load("pilot.js");

const checks = {
  "the same seed and moves lead to the same world": () => {
    const one = new World({ seed: 3 });
    const other = new World({ seed: 3 });
    for (let move = 0; move < 300; move += 1) {
      const actions = one.creatures.map((_, index) => (7 * move + index) % TURNS.length);
      for (const world of [one, other]) {
        world.choose(actions);
        for (let tick = 0; tick < TICKS_A_MOVE; tick += 1) world.tick();
        world.outcome();
        world.restart();
      }
    }
    assert.deepEqual(one.observations, other.observations);
    assert.ok(one.meals > 0);
    assert.equal(one.meals, other.meals);
  },
  "observations have the shape and the bounds of the space": () => {
    const world = new World({ seed: 1 });
    assert.equal(OBSERVATION_SPACE.shape[0], SIGHT);
    assert.equal(world.observations.length, world.count * SIGHT);
    assert.ok(world.observations.every((value) => value >= 0 && value <= 1));
    assert.equal(ACTION_SPACE.n, TURNS.length);
  },
  "a creature sees food and thorns where they are, and eats what it touches": () => {
    const world = new World({ seed: 1, creatures: 1, food: 1, thorns: 0, range: 190 });
    const [creature] = world.creatures;
    Object.assign(creature, { x: 300, y: 300, heading: 0 });
    Object.assign(world.food[0], { x: 360, y: 300 });
    world.observe();
    const middle = (SIGHT / 3 - 1) / 2;
    assert.ok(world.observations[3 * middle] > 0.7);
    assert.ok(world.observations[0] === 0 && world.observations[SIGHT - 3] === 0);
    world.dropThorn(400, 300);
    world.observe();
    assert.ok(world.observations[3 * middle + 1] > 0.5);
    let reward = 0;
    for (let move = 0; move < 6; move += 1) {
      world.choose([2]);
      for (let tick = 0; tick < TICKS_A_MOVE; tick += 1) world.tick();
      world.outcome();
      reward += world.rewards[0];
    }
    assert.equal(world.meals, 1);
    assert.ok(reward >= 1);
  },
  "a creature that touches a thorn is told the true last observation, and begins again elsewhere": () => {
    const world = new World({ seed: 1, creatures: 2, food: 1, thorns: 0 });
    const [creature] = world.creatures;
    Object.assign(creature, { x: 300, y: 300, heading: 0 });
    world.dropThorn(330, 300, { armed: true });
    for (let move = 0; move < 4 && world.statuses[0] === 0; move += 1) {
      world.choose([2, 2]);
      for (let tick = 0; tick < TICKS_A_MOVE; tick += 1) world.tick();
      world.outcome();
    }
    assert.equal(world.statuses[0], 1);
    assert.ok(world.rewards[0] < -1);
    assert.ok(world.observations[3 * ((SIGHT / 3 - 1) / 2) + 1] > 0.9);
    const { ended, observations } = world.restart();
    assert.deepEqual(ended, [0]);
    assert.equal(observations.length, SIGHT);
    assert.equal(creature.isDead, false);
    assert.ok(Math.hypot(creature.x - 330, creature.y - 300) > 40);
  },
  "the world stands still while an answer is late, and no move is made twice": async () => {
    const world = new World({ seed: 1 });
    const requests = [];
    const answers = [];
    const client = {
      batch(parts) {
        requests.push(parts);
        return new Promise((resolve) => answers.push(resolve));
      },
    };
    const pilot = new Pilot(world);
    pilot.use(new Learning(client));
    pilot.advance(100);
    assert.equal(requests.length, 1);
    assert.deepEqual(Object.keys(requests[0]), ["begin"]);
    const before = world.creatures.map(({ x, y }) => [x, y]);
    pilot.advance(100);
    assert.deepEqual(world.creatures.map(({ x, y }) => [x, y]), before);
    answers[0]({ actions: new Int32Array(world.count).fill(2) });
    await new Promise((resolve) => setTimeout(resolve));
    assert.equal(requests.length, 2);
    assert.equal(world.ticks, TICKS_A_MOVE);
    assert.equal(pilot.moves, world.count);
    assert.deepEqual(requests[1].step.streams, pilot.streams);
    assert.equal(requests[1].step.actions, undefined);
    pilot.curiosity = 1;
    answers[1]({ actions: new Int32Array(world.count + (requests[1].begin?.streams.length ?? 0)).fill(2) });
    await new Promise((resolve) => setTimeout(resolve));
    assert.ok(requests[2].step.actions.some((action) => action !== 2), "random moves are reported");
  },
  "a policy makes the moves without a server": () => {
    const world = new World({ seed: 1 });
    const pilot = new Pilot(world);
    pilot.use(new Playing({ act: (_, rows) => new Int32Array(rows).fill(1) }));
    for (let frame = 0; frame < 60; frame += 1) pilot.advance(1);
    assert.equal(pilot.moves, 9 * world.count);
    assert.ok(world.creatures.every(({ move }) => move === 1));
  },
};

for (const [name, check] of Object.entries(checks)) {
  try {
    await check();
  } catch (error) {
    error.message = `${name}: ${error.message}`;
    throw error;
  }
}
console.log(Object.keys(checks).length);
