/** Draws the world on a canvas. Things that do not change are drawn once, as sprites. */

import { CHANNELS, CREATURE_RADIUS, FIELD, FOOD_RADIUS, HEIGHT, SECTORS, SIGHT, THORN_RADIUS, WIDTH } from "./world.js";

const TRAIL = 16;
const HUES = [18, 205, 142, 280, 48, 330, 175, 230, 95, 0, 255, 32, 160, 305, 65, 190];

export class Painter {
  /** The creature under the pointer, whose sight is drawn; null if there is none. */
  watched = null;

  #canvas;
  #context;
  #world;
  #colours = {};
  #sprites = {};
  #scale = 1;
  #ratio = 1;
  /** On a small screen, creatures and food are drawn larger than they are. */
  #zoom = 1;
  #trails;
  /** The colours of each creature, as strings: made once, not in each frame. */
  #tails = [];
  #wakes = [];
  #sight = new Float32Array(SIGHT);
  #bursts = new Map();

  constructor(canvas, world) {
    this.#canvas = canvas;
    this.#context = canvas.getContext("2d", { alpha: false });
    this.#world = world;
    this.#trails = world.creatures.map(() => new Trail());
    this.restyle();
  }

  /** Read the colours of the page again, and fit the canvas to its size. */
  restyle() {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const names = ["water", "water-line", "food", "food-glow", "food-edge", "thorn", "thorn-core", "text", "accent", "wall"];
    this.#colours = Object.fromEntries(names.map((name) => [name, colour(`--${name}`)]));
    const lightness = Number(colour("--creature-lightness"));
    this.#colours.lightness = lightness;
    this.#tails = HUES.map((hue) => `hsl(${hue} 70% ${lightness - 6}%)`);
    this.#wakes = HUES.map((hue) => `hsl(${hue} 70% ${lightness}% / 0.16)`);
    this.resize();
  }

  resize() {
    const { width } = this.#canvas.getBoundingClientRect();
    this.#ratio = Math.min(2, globalThis.devicePixelRatio || 1);
    this.#canvas.width = Math.max(1, Math.round(width * this.#ratio));
    this.#canvas.height = Math.max(1, Math.round((width * this.#ratio * HEIGHT) / WIDTH));
    this.#scale = this.#canvas.width / WIDTH;
    this.#zoom = Math.max(1, Math.min(1.45, 700 / width));
    this.#sprites = {
      ground: this.#sprite(WIDTH, HEIGHT, (context) => this.#drawGround(context)),
      food: this.#sprite(36, 36, (context) => this.#drawFood(context)),
      thorn: this.#sprite(48, 48, (context) => this.#drawThorn(context)),
      bodies: HUES.map((hue) => this.#sprite(40, 32, (context) => this.#drawBody(context, hue))),
    };
  }

  /** Where in the world a pointer is. */
  place(event) {
    const box = this.#canvas.getBoundingClientRect();
    return [((event.clientX - box.left) / box.width) * WIDTH, ((event.clientY - box.top) / box.height) * HEIGHT];
  }

  /** Draw one frame. `isAsleep` while the creatures wait for a server. */
  draw(now, isAsleep) {
    const context = this.#context;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.drawImage(this.#sprites.ground, 0, 0);
    context.setTransform(this.#scale, 0, 0, this.#scale, 0, 0);
    const { world } = this;
    for (const food of world.food) {
      const size = 36 * this.#zoom * (0.94 + 0.06 * Math.sin(now / 400 + food.x)) * grown(Math.min(world.time - food.born, food.until - world.time), 0.4);
      context.drawImage(this.#sprites.food, food.x - size / 2, food.y - size / 2, size, size);
    }
    for (const thorn of world.thorns) this.#drawThornAt(context, thorn);
    if (this.watched !== null) this.#drawSight(context, this.watched);
    this.#drawTrails(context, isAsleep);
    context.lineWidth = 3.2;
    for (const creature of world.creatures) this.#drawCreature(context, creature, now, isAsleep);
    context.setTransform(this.#scale, 0, 0, this.#scale, 0, 0);
    context.globalAlpha = 1;
    this.#drawBursts(context);
  }

  get world() {
    return this.#world;
  }

  #sprite(width, height, draw) {
    const canvas = document.createElement("canvas");
    canvas.width = Math.ceil(width * this.#scale);
    canvas.height = Math.ceil(height * this.#scale);
    const context = canvas.getContext("2d");
    context.scale(this.#scale, this.#scale);
    draw(context);
    return canvas;
  }

  #drawGround(context) {
    context.fillStyle = this.#colours.water;
    context.fillRect(0, 0, WIDTH, HEIGHT);
    context.fillStyle = this.#colours["water-line"];
    for (let x = 24; x < WIDTH; x += 48) {
      for (let y = 24; y < HEIGHT; y += 48) {
        context.beginPath();
        context.arc(x, y, 1.3, 0, 2 * Math.PI);
        context.fill();
      }
    }
  }

  #drawFood(context) {
    const glow = context.createRadialGradient(18, 18, 1, 18, 18, 17);
    glow.addColorStop(0, this.#colours["food-glow"]);
    glow.addColorStop(1, this.#colours["food-edge"]);
    context.fillStyle = glow;
    context.fillRect(0, 0, 36, 36);
    context.fillStyle = this.#colours.food;
    context.beginPath();
    context.arc(18, 18, FOOD_RADIUS, 0, 2 * Math.PI);
    context.fill();
  }

  #drawThorn(context) {
    context.translate(24, 24);
    context.fillStyle = this.#colours.thorn;
    context.beginPath();
    for (let point = 0; point < 22; point += 1) {
      const radius = point % 2 === 0 ? THORN_RADIUS + 5 : THORN_RADIUS - 3;
      const angle = (point / 22) * 2 * Math.PI;
      context.lineTo(radius * Math.cos(angle), radius * Math.sin(angle));
    }
    context.closePath();
    context.fill();
    context.fillStyle = this.#colours["thorn-core"];
    context.beginPath();
    context.arc(0, 0, THORN_RADIUS - 6, 0, 2 * Math.PI);
    context.fill();
  }

  #drawThornAt(context, thorn) {
    const { world } = this;
    const size = 48 * grown(world.time - thorn.born, 0.5);
    context.globalAlpha = world.isArmed(thorn) ? 1 : 0.45;
    context.drawImage(this.#sprites.thorn, thorn.x - size / 2, thorn.y - size / 2, size, size);
    context.globalAlpha = 1;
  }

  /** A body that looks to the right, with its middle at (20, 16). */
  #drawBody(context, hue) {
    const { lightness } = this.#colours;
    context.translate(20, 16);
    const shade = context.createLinearGradient(0, -CREATURE_RADIUS, 0, CREATURE_RADIUS);
    shade.addColorStop(0, `hsl(${hue} 78% ${lightness + 8}%)`);
    shade.addColorStop(1, `hsl(${hue} 70% ${lightness - 10}%)`);
    context.fillStyle = shade;
    context.beginPath();
    context.moveTo(CREATURE_RADIUS + 2, 0);
    context.bezierCurveTo(CREATURE_RADIUS + 1, -CREATURE_RADIUS, -2, -CREATURE_RADIUS - 1, -CREATURE_RADIUS - 4, -1);
    context.lineTo(-CREATURE_RADIUS - 4, 1);
    context.bezierCurveTo(-2, CREATURE_RADIUS + 1, CREATURE_RADIUS + 1, CREATURE_RADIUS, CREATURE_RADIUS + 2, 0);
    context.fill();
    for (const side of [-1, 1]) {
      context.fillStyle = "#ffffff";
      context.beginPath();
      context.arc(5, 3.6 * side, 2.7, 0, 2 * Math.PI);
      context.fill();
      context.fillStyle = "#16181d";
      context.beginPath();
      context.arc(6.1, 3.6 * side, 1.4, 0, 2 * Math.PI);
      context.fill();
    }
  }

  #drawTrails(context, isAsleep) {
    context.lineCap = "round";
    context.lineWidth = 6;
    for (const creature of this.#world.creatures) {
      const trail = this.#trails[creature.index];
      const moved = trail.distanceTo(creature.x, creature.y);
      if (creature.isDead || moved > 60) trail.length = 0;
      else if (!isAsleep && (trail.length === 0 || moved > 3)) trail.add(creature.x, creature.y);
      if (trail.length < 2) continue;
      context.strokeStyle = this.#wakes[creature.index % HUES.length];
      context.beginPath();
      trail.draw(context);
      context.stroke();
    }
  }

  #drawCreature(context, creature, now, isAsleep) {
    const { world } = this;
    if (creature.died === world.time || (creature.died > (this.#bursts.get(creature.index)?.time ?? -1) && creature.died >= 0)) {
      this.#bursts.set(creature.index, { time: creature.died, x: creature.diedAt[0], y: creature.diedAt[1] });
    }
    if (creature.isDead) return;
    const since = world.time - creature.ate;
    const bulge = since < 0.35 ? 1 + 0.28 * Math.sin((since / 0.35) * Math.PI) : 1;
    const scale = grown(world.time - creature.born, 0.5) * bulge * this.#zoom;
    const cosine = this.#scale * scale * Math.cos(creature.heading);
    const sine = this.#scale * scale * Math.sin(creature.heading);
    context.setTransform(cosine, sine, -sine, cosine, this.#scale * creature.x, this.#scale * creature.y);
    context.globalAlpha = isAsleep ? 0.55 : 1;
    const swing = isAsleep ? 0 : Math.sin(now / 70 + creature.index * 1.7) * 5;
    context.strokeStyle = this.#tails[creature.index % HUES.length];
    context.beginPath();
    context.moveTo(-CREATURE_RADIUS - 2, 0);
    context.quadraticCurveTo(-CREATURE_RADIUS - 7, swing * 0.2, -CREATURE_RADIUS - 11, swing - creature.turn);
    context.stroke();
    context.drawImage(this.#sprites.bodies[creature.index % HUES.length], -20, -16, 40, 32);
  }

  #drawBursts(context) {
    const { world } = this;
    for (const [index, burst] of this.#bursts) {
      const age = (world.time - burst.time) / 0.6;
      if (age >= 1 || age < 0) continue;
      context.strokeStyle = `hsl(${HUES[index % HUES.length]} 75% ${this.#colours.lightness}% / ${1 - age})`;
      context.lineWidth = 4 * (1 - age);
      context.beginPath();
      context.arc(burst.x, burst.y, 8 + 26 * age, 0, 2 * Math.PI);
      context.stroke();
    }
  }

  /** The field of view of a creature: what it sees in each sector, by colour and nearness. */
  #drawSight(context, creature) {
    const { range } = this.world;
    this.world.look(creature, this.#sight);
    const colours = [this.#colours.food, this.#colours.thorn, this.#colours.wall];
    for (let sector = 0; sector < SECTORS; sector += 1) {
      const first = creature.heading + (sector / SECTORS - 0.5) * FIELD;
      const last = creature.heading + ((sector + 1) / SECTORS - 0.5) * FIELD;
      const seen = this.#sight.subarray(sector * CHANNELS, (sector + 1) * CHANNELS);
      const nearest = Math.max(...seen);
      const channel = seen.indexOf(nearest);
      const radius = CREATURE_RADIUS + range * (nearest > 0 ? 1 - nearest : 1);
      context.globalAlpha = nearest > 0 ? 0.16 + 0.3 * nearest : 0.07;
      context.fillStyle = nearest > 0 ? colours[channel] : this.#colours.text;
      context.beginPath();
      context.moveTo(creature.x, creature.y);
      context.arc(creature.x, creature.y, radius, first + 0.015, last - 0.015);
      context.closePath();
      context.fill();
    }
    context.globalAlpha = 1;
  }
}

/** The last places of a creature, in a ring, so that adding one allocates nothing. */
class Trail {
  length = 0;
  #next = 0;
  #places = new Float32Array(2 * TRAIL);

  add(x, y) {
    this.#places[2 * this.#next] = x;
    this.#places[2 * this.#next + 1] = y;
    this.#next = (this.#next + 1) % TRAIL;
    this.length = Math.min(this.length + 1, TRAIL);
  }

  /** How far a place is from the newest one; 0 if there is none. */
  distanceTo(x, y) {
    if (this.length === 0) return 0;
    const newest = (this.#next + TRAIL - 1) % TRAIL;
    const dx = this.#places[2 * newest] - x;
    const dy = this.#places[2 * newest + 1] - y;
    return Math.sqrt(dx * dx + dy * dy); // hypot leaves garbage
  }

  /** Add the places to the path of a context, the oldest first. */
  draw(context) {
    for (let index = 0; index < this.length; index += 1) {
      const place = (this.#next + TRAIL - this.length + index) % TRAIL;
      context.lineTo(this.#places[2 * place], this.#places[2 * place + 1]);
    }
  }
}

/** From 0 to 1 within some seconds, and a little beyond it on the way. */
function grown(age, seconds) {
  const part = age / seconds;
  if (part >= 1) return 1;
  return part <= 0 ? 0 : 1 + 2.2 * (part - 1) ** 3 + 1.2 * (part - 1) ** 2;
}
