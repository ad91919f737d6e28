/**
 * Makes the creatures move: time passes as the page says, and at each move somebody chooses the next ones.
 *
 * Frames never wait: `advance` returns at once. If an answer is late, the world stands still, exactly where it was, and the
 * ticks that are owed (a few frames at most) are made when the answer is here.
 */

import { SIGHT, TURNS } from "./world.js";

/** Ticks that are made up for after a late answer. */
const MOST_OWED = 40;

export class Pilot {
  /** Moves that were made by all creatures together. */
  moves = 0;
  /** How likely a creature makes a random move instead of the chosen one. */
  curiosity = 0;
  isWaiting = false;
  /** Called when a request was answered, before the next one is sent. */
  onAnswer = () => {};
  /** Called with each failed request. */
  onFailure = () => {};
  /** Called with milliseconds of work that was done outside of a frame. */
  onWork = () => {};

  #world;
  #brain = null;
  #owed = 0;
  #told;
  #executed;
  #hasEpisodes = false;

  constructor(world) {
    this.#world = world;
    this.#told = new Int32Array(world.count);
    this.#executed = new Int32Array(world.count);
    this.streams = Array.from({ length: world.count }, (_, index) => index);
  }

  /** Set who chooses the moves; null for nobody. New episodes begin. */
  use(brain) {
    this.#brain = brain;
    this.#hasEpisodes = false;
    this.isWaiting = false;
    this.#owed = 0;
  }

  get brain() {
    return this.#brain;
  }

  /** Let time pass. */
  advance(ticks) {
    this.#owed = Math.min(this.#owed + ticks, MOST_OWED);
    this.#run();
  }

  #run() {
    while (this.#owed >= 1 && !this.isWaiting && this.#brain !== null) {
      if (!this.#hasEpisodes || this.#world.isDue) this.#decide();
      if (this.isWaiting) return;
      this.#world.tick();
      this.#owed -= 1;
    }
  }

  #decide() {
    const world = this.#world;
    let request;
    if (this.#hasEpisodes) {
      world.outcome();
      this.moves += world.count;
      const { ended, observations } = world.restart();
      const { observations: reached, rewards, statuses } = world;
      const step = { streams: this.streams, observations: reached, rewards, statuses };
      if (this.#executed.some((action, index) => action !== this.#told[index])) step.actions = this.#executed;
      request = { step, ended, begin: { streams: ended, observations } };
    } else {
      world.observe();
      request = { ended: this.streams, begin: { streams: this.streams, observations: world.observations } };
    }
    this.#hasEpisodes = true;
    const brain = this.#brain;
    const answer = brain.choose(request, world.count);
    if (answer instanceof Int32Array) return this.#take(request, answer);
    this.isWaiting = true;
    answer.then(
      (actions) => {
        if (brain !== this.#brain) return;
        const start = performance.now();
        this.isWaiting = false;
        this.onAnswer();
        this.#take(request, actions);
        this.#run();
        this.onWork(performance.now() - start);
      },
      (error) => {
        if (brain !== this.#brain) return;
        this.isWaiting = false;
        this.#hasEpisodes = false;
        this.onFailure(error);
      },
    );
  }

  /** The rows of an answer are those of the step, then those of the episodes that begin. */
  #take({ step, ended }, actions) {
    const told = this.#told;
    const first = step === undefined ? 0 : told.length;
    if (step !== undefined) told.set(actions.subarray(0, first));
    for (const [row, index] of ended.entries()) told[index] = actions[first + row];
    const { random } = this.#world;
    for (let index = 0; index < told.length; index += 1) {
      const strays = this.curiosity > 0 && random() < this.curiosity;
      this.#executed[index] = strays ? Math.floor(random() * TURNS.length) : told[index];
    }
    this.#world.choose(this.#executed);
  }
}

/** Lets a session on a server choose, which learns from it. */
export class Learning {
  #client;

  constructor(client) {
    this.#client = client;
  }

  async choose({ step, ended, begin }) {
    const parts = ended.length === 0 ? { step } : step === undefined ? { begin } : { step, begin };
    return (await this.#client.batch(parts)).actions;
  }
}

/** Lets a policy choose, in the page itself. */
export class Playing {
  #policy;

  constructor(policy) {
    this.#policy = policy;
  }

  choose({ step, ended, begin }, count) {
    const first = step === undefined ? 0 : count;
    const actions = new Int32Array(first + ended.length);
    if (step !== undefined) actions.set(this.#policy.act(step.observations, count));
    actions.set(this.#policy.act(begin.observations, begin.observations.length / SIGHT), first);
    return actions;
  }
}
