/**
 * The world of the game: creatures that look for food, and thorns that they must not touch.
 *
 * It knows no page and no server, so it runs in Node too. Time goes in ticks of 1/60 second. Every TICKS_A_MOVE ticks
 * each creature makes a move: `outcome` returns the outcome of the last one, `restart` begins new episodes, and `choose` sets the
 * next moves.
 */

export const WIDTH = 960;
export const HEIGHT = 600;
export const TICKS_A_MOVE = 6;

/** What a creature sees: its field of view in sectors, each with the nearness of the nearest food, thorn and wall. */
export const SECTORS = 11;
export const FIELD = (200 / 180) * Math.PI;
export const CHANNELS = 3;
export const SIGHT = SECTORS * CHANNELS;

/** Moves: how far to turn in a second, in radians. */
export const TURNS = [-4.2, -1.6, 0, 1.6, 4.2];
export const OBSERVATION_SPACE = { type: "Box", dtype: "float32", shape: [SIGHT], low: 0, high: 1 };
export const ACTION_SPACE = { type: "Discrete", n: TURNS.length, start: 0 };

export const CREATURE_RADIUS = 9;
export const FOOD_RADIUS = 5;
export const THORN_RADIUS = 12;
const SPEED = 95;
const TICK = 1 / 60;
/** Seconds until a dropped thorn can hurt. */
const ARMING = 0.6;
const MOST_THORNS = 40;
/** Seconds that food stays in its place, so that it does not gather where no creature goes. */
const FOOD_LIFE = 30;
/** Moves in an episode. */
const EPISODE = 400;

const FOOD_REWARD = 1;
const THORN_REWARD = -2;
/** For each unit that a creature comes nearer to the nearest food in sight. */
const APPROACH_REWARD = 0.004;
const WALL_REWARD = -0.02;

export const CONTINUING = 0;
export const TERMINATED = 1;
export const TRUNCATED = 2;

/** Numbers from 0 to 1 that a seed determines (mulberry32). */
export function randomNumbers(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
}

export class World {
  constructor({ seed = 1, creatures = 16, food = 36, thorns = 6, range = 190 } = {}) {
    this.random = randomNumbers(seed);
    /** How far a creature sees. */
    this.range = range;
    /** How many pieces of food there are. */
    this.foodCount = food;
    this.time = 0;
    this.ticks = 0;
    this.meals = 0;
    this.deaths = 0;
    this.thorns = [];
    this.food = [];
    this.creatures = [];
    for (let index = 0; index < thorns; index += 1) this.dropThorn(...this.#place(60), { armed: true });
    for (let index = 0; index < food; index += 1) this.#addFood();
    for (let index = 0; index < creatures; index += 1) {
      const creature = { index, meals: 0, total: 0, move: 2, turn: 0, ate: -10, died: -10, born: -10, diedAt: [0, 0] };
      this.creatures.push(creature);
      this.#spawn(creature);
    }
    this.count = creatures;
    this.observations = new Float32Array(creatures * SIGHT);
    this.rewards = new Float64Array(creatures);
    this.statuses = new Uint8Array(creatures);
    this.observe();
  }

  /** A place that is not near a thorn. */
  #place(margin) {
    for (let attempt = 0; ; attempt += 1) {
      const x = margin + this.random() * (WIDTH - 2 * margin);
      const y = margin + this.random() * (HEIGHT - 2 * margin);
      const isFree = this.thorns.every((thorn) => Math.hypot(thorn.x - x, thorn.y - y) > 45);
      if (isFree || attempt === 50) return [x, y];
    }
  }

  #addFood() {
    const [x, y] = this.#place(24);
    this.food.push({ x, y, born: this.time, until: this.time + FOOD_LIFE * (0.5 + this.random()) });
  }

  #spawn(creature) {
    [creature.x, creature.y] = this.#place(40);
    creature.heading = this.random() * 2 * Math.PI;
    creature.moves = 0;
    creature.meals = 0;
    creature.reward = 0;
    creature.isDead = false;
    creature.born = this.time;
    creature.distance = this.#distanceToFood(creature);
  }

  /** Drop a thorn; returns false if there are too many. It hurts after a moment. */
  dropThorn(x, y, { armed = false } = {}) {
    if (this.thorns.length >= MOST_THORNS) return false;
    this.thorns.push({ x, y, born: armed ? this.time - ARMING : this.time });
    this.food = this.food.filter((food) => Math.hypot(food.x - x, food.y - y) > THORN_RADIUS + FOOD_RADIUS);
    return true;
  }

  /** The thorn at a place; undefined if there is none. */
  thornAt(x, y) {
    return this.thorns.find((thorn) => Math.hypot(thorn.x - x, thorn.y - y) < THORN_RADIUS + 6);
  }

  removeThorn(thorn) {
    this.thorns = this.thorns.filter((other) => other !== thorn);
  }

  isArmed(thorn) {
    return this.time - thorn.born >= ARMING;
  }

  /** Whether it is time for the next move. */
  get isDue() {
    return this.ticks >= TICKS_A_MOVE;
  }

  /** Set the next move of each creature. */
  choose(actions) {
    for (const creature of this.creatures) creature.move = actions[creature.index];
    this.ticks = 0;
  }

  /** Move the world on by 1/60 second. */
  tick() {
    this.time += TICK;
    this.ticks += 1;
    for (const creature of this.creatures) {
      if (!creature.isDead) this.#moveCreature(creature);
    }
    this.#keepApart();
    for (let index = this.food.length - 1; index >= 0; index -= 1) {
      if (this.food[index].until <= this.time) this.food.splice(index, 1);
    }
    while (this.food.length < this.foodCount) this.#addFood();
    if (this.food.length > this.foodCount) this.food.length = this.foodCount;
  }

  #moveCreature(creature) {
    const wanted = TURNS[creature.move];
    creature.turn += (wanted - creature.turn) * 0.4;
    creature.heading += creature.turn * TICK;
    const speed = SPEED * (1 - 0.06 * Math.abs(creature.turn));
    creature.x += Math.cos(creature.heading) * speed * TICK;
    creature.y += Math.sin(creature.heading) * speed * TICK;
    this.#keepInside(creature, true);
    for (let index = this.food.length - 1; index >= 0; index -= 1) {
      const food = this.food[index];
      if (isWithin(creature, food, CREATURE_RADIUS + FOOD_RADIUS + 2)) {
        this.food.splice(index, 1);
        creature.reward += FOOD_REWARD;
        creature.meals += 1;
        creature.total += 1;
        creature.ate = this.time;
        creature.distance = Infinity;
        this.meals += 1;
      }
    }
    for (const thorn of this.thorns) {
      if (this.isArmed(thorn) && isWithin(creature, thorn, CREATURE_RADIUS + THORN_RADIUS)) {
        creature.reward += THORN_REWARD;
        creature.isDead = true;
        creature.died = this.time;
        creature.diedAt = [creature.x, creature.y];
        this.deaths += 1;
        return;
      }
    }
  }

  #keepInside(creature, counts) {
    const x = Math.min(Math.max(creature.x, CREATURE_RADIUS), WIDTH - CREATURE_RADIUS);
    const y = Math.min(Math.max(creature.y, CREATURE_RADIUS), HEIGHT - CREATURE_RADIUS);
    if (counts && (x !== creature.x || y !== creature.y)) creature.reward += WALL_REWARD / TICKS_A_MOVE;
    creature.x = x;
    creature.y = y;
  }

  /** Push creatures apart that overlap. */
  #keepApart() {
    const { creatures } = this;
    for (let first = 0; first < creatures.length; first += 1) {
      const one = creatures[first];
      for (let second = first + 1; second < creatures.length; second += 1) {
        const other = creatures[second];
        const dx = other.x - one.x;
        const dy = other.y - one.y;
        const square = dx * dx + dy * dy;
        if (square >= 4 * CREATURE_RADIUS * CREATURE_RADIUS || square === 0 || one.isDead || other.isDead) continue;
        const distance = Math.sqrt(square);
        const push = (0.1 * (2 * CREATURE_RADIUS - distance)) / distance;
        one.x -= dx * push;
        one.y -= dy * push;
        other.x += dx * push;
        other.y += dy * push;
        this.#keepInside(one, false);
        this.#keepInside(other, false);
      }
    }
  }

  /** What came of the move: fills `observations`, `rewards` and `statuses`, a row for each creature. */
  outcome() {
    for (const creature of this.creatures) {
      const { index } = creature;
      const before = creature.distance;
      creature.distance = this.#distanceToFood(creature);
      if (before < this.range && creature.distance < this.range) {
        creature.reward += APPROACH_REWARD * Math.max(-20, Math.min(20, before - creature.distance));
      }
      creature.moves += 1;
      this.rewards[index] = creature.reward;
      creature.reward = 0;
      const isOver = creature.moves >= EPISODE ? TRUNCATED : CONTINUING;
      this.statuses[index] = creature.isDead ? TERMINATED : isOver;
    }
    this.observe();
  }

  #distanceToFood(creature) {
    let nearest = Infinity;
    for (const food of this.food) {
      const distance = (food.x - creature.x) ** 2 + (food.y - creature.y) ** 2;
      if (distance < nearest) nearest = distance;
    }
    return Math.sqrt(nearest);
  }

  /** Fill `observations` with what each creature sees. */
  observe() {
    for (const creature of this.creatures) this.look(creature, this.observations, creature.index * SIGHT);
  }

  /** What one creature sees: 0 for nothing in range, up to 1 for something that it touches. */
  look(creature, sight, start = 0) {
    const { x, y, heading } = creature;
    const { range } = this;
    sight.fill(0, start, start + SIGHT);
    for (const food of this.food) this.#see(creature, food, FOOD_RADIUS, sight, start);
    for (const thorn of this.thorns) this.#see(creature, thorn, THORN_RADIUS, sight, start + 1);
    for (let sector = 0; sector < SECTORS; sector += 1) {
      const angle = heading + ((sector + 0.5) / SECTORS - 0.5) * FIELD;
      const cosine = Math.cos(angle);
      const sine = Math.sin(angle);
      const toSide = cosine > 0 ? (WIDTH - x) / cosine : cosine < 0 ? -x / cosine : Infinity;
      const toEnd = sine > 0 ? (HEIGHT - y) / sine : sine < 0 ? -y / sine : Infinity;
      const nearness = 1 - Math.min(toSide, toEnd) / range;
      if (nearness > 0) sight[start + sector * CHANNELS + 2] = nearness;
    }
  }

  /** Add a thing to what a creature sees; `start` is the position of its channel in the first sector. */
  #see({ x, y, heading }, thing, radius, sight, start) {
    const { range } = this;
    const dx = thing.x - x;
    const dy = thing.y - y;
    if (Math.abs(dx) > range + radius || Math.abs(dy) > range + radius) return;
    const distance = Math.sqrt(dx * dx + dy * dy); // hypot leaves garbage
    const nearness = 1 - Math.max(0, distance - radius - CREATURE_RADIUS) / range;
    if (nearness <= 0) return;
    const middle = angleBetween(Math.atan2(dy, dx), heading);
    const half = distance > radius ? Math.asin(radius / distance) : Math.PI;
    const first = Math.max(0, Math.floor(((middle - half) / FIELD + 0.5) * SECTORS));
    const last = Math.min(SECTORS - 1, Math.floor(((middle + half) / FIELD + 0.5) * SECTORS));
    for (let sector = first; sector <= last; sector += 1) {
      const position = start + sector * CHANNELS;
      if (nearness > sight[position]) sight[position] = nearness;
    }
  }

  /**
   * Begin new episodes where the last ones have ended: a creature that died is born again elsewhere, the others stay.
   *
   * Returns the indices of these creatures, and what they see, a row for each.
   */
  restart() {
    const ended = this.creatures.filter(({ index }) => this.statuses[index] !== CONTINUING);
    const observations = new Float32Array(ended.length * SIGHT);
    for (const [row, creature] of ended.entries()) {
      if (creature.isDead) this.#spawn(creature);
      creature.moves = 0;
      creature.meals = 0;
      this.look(creature, observations, row * SIGHT);
    }
    return { ended: ended.map(({ index }) => index), observations };
  }
}

function isWithin(one, other, distance) {
  return (one.x - other.x) ** 2 + (one.y - other.y) ** 2 < distance * distance;
}

/** An angle minus another, from -pi to pi. */
function angleBetween(angle, other) {
  const difference = (angle - other) % (2 * Math.PI);
  if (difference > Math.PI) return difference - 2 * Math.PI;
  return difference < -Math.PI ? difference + 2 * Math.PI : difference;
}
