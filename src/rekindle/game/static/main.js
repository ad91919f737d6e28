/** The page: the world, the connection to the server, and what stands beside them. */

import { Client } from "./client.js";
import { Curve } from "./curve.js";
import { Painter } from "./painter.js";
import { Learning, Pilot, Playing } from "./pilot.js";
import { Policy } from "./policy.js";
import { ACTION_SPACE, CREATURE_RADIUS, OBSERVATION_SPACE, World } from "./world.js";

/** How many times as fast as on a clock. */
const SPEEDS = [1, 2, 3, 5, 8, 16];
/** Food in 100 moves of creatures that move at random. */
const RANDOM_RATE = 0.8;
/** Moves of all creatures for one point of the curve. */
const MOVES_A_POINT = 2400;
const LOOKS = 500;
const FENCE = 34;
/** The exploration of the agent: that of rekindle/game/learner.py. */
const EXPLORATION = { start: 1, end: 0.02, steps: 20_000 };

const element = (id) => document.getElementById(id);
/** Texts by id that wait to be shown, by the first id. */
const unshown = new Map();
/** Show texts in place of others soon: in one frame, but not in one with others, which would make it long. */
function write(texts) {
  unshown.set(Object.keys(texts)[0], texts);
}
/** Show the next texts that have changed; replacing the text nodes themselves would cost more. */
function showNext() {
  for (const [name, texts] of unshown) {
    unshown.delete(name);
    let hasChanged = false;
    for (const id in texts) {
      const { firstChild } = element(id);
      if (firstChild.data === texts[id]) continue;
      firstChild.data = texts[id];
      hasChanged = true;
    }
    if (hasChanged) return;
  }
}
const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const whole = (number) => grouped.format(Math.round(number));

const settings = await (await fetch("/game.json")).json();
const world = new World({ seed: settings.seed + 1 });
const painter = new Painter(element("world"), world);
const curve = new Curve(element("curve"), RANDOM_RATE);
const pilot = new Pilot(world);

let client = null;
let ticket;
let killed = null;
let lostAt = 0;
/** Steps in the run that this page did not make. */
let before = null;
let isShared = false;
let noticeTimer = null;

/** Milliseconds of work in each of the newest frames. */
const work = new Float32Array(8192);
let frames = 0;
let extraWork = 0;

// The theme

function useTheme(theme) {
  document.documentElement.dataset.theme = theme;
  painter.restyle();
  curve.restyle();
}

const prefersDark = matchMedia("(prefers-color-scheme: dark)");
let chosenTheme = localStorage.getItem("rekindle-theme");
useTheme(chosenTheme ?? (prefersDark.matches ? "dark" : "light"));
prefersDark.addEventListener("change", () => {
  if (chosenTheme === null) useTheme(prefersDark.matches ? "dark" : "light");
});
element("theme").addEventListener("click", () => {
  chosenTheme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  localStorage.setItem("rekindle-theme", chosenTheme);
  useTheme(chosenTheme);
});
new ResizeObserver(() => painter.resize()).observe(element("world"));
new ResizeObserver(() => curve.resize()).observe(element("curve"));

// The connection

function show(state, text) {
  const lamp = element("lamp");
  if (lamp.className !== `lamp ${state}`) lamp.className = `lamp ${state}`;
  write({ "lamp-text": text });
}

function tell(kind, html, seconds = 0) {
  const notice = element("notice");
  clearTimeout(noticeTimer);
  notice.className = `notice ${kind}`;
  notice.innerHTML = html;
  notice.hidden = false;
  if (seconds > 0) noticeTimer = setTimeout(() => (notice.hidden = true), 1000 * seconds);
}

async function learn() {
  element("notice").hidden = true;
  show("", "connecting");
  const options = { observationSpace: OBSERVATION_SPACE, actionSpace: ACTION_SPACE, resume: ticket, onState };
  client = await Client.connect(settings.session, options);
  before = (await client.stats()).steps - pilot.moves;
  pilot.use(new Learning(client));
  lostAt = 0;
}

function onState(state) {
  if (pilot.brain instanceof Playing) return; // nobody waits for the server
  if (state === "open" && lostAt > 0) cameBack();
  else if (state === "waiting" && lostAt === 0) {
    lostAt = performance.now();
    tellLost();
  }
  if (state === "open") show("live", "connected");
  else show("lost", "no server");
}

function tellLost() {
  const what = killed === null ? "The server is away." : `<b>kill -9 ${killed.pid}</b>: the server is dead.`;
  const seconds = Math.round((performance.now() - lostAt) / 1000);
  tell("lost", `${what} Every creature waits where it is. ${seconds < 4 ? "" : `It starts again: ${seconds} s.`}`);
  noticeTimer = setTimeout(tellLost, 1000); // until another notice takes its place
}

function cameBack() {
  const seconds = ((performance.now() - lostAt) / 1000).toFixed(1);
  lostAt = 0;
  killed = null;
  const count = client.streams.size;
  tell("back", `The server is back after <b>${seconds} s</b>: ${count} of ${world.count} creatures go on in the middle of their episodes.`, 8);
}

pilot.onFailure = (error) => {
  if (error.code === "closed") return;
  if (error.code === "behind" || error.code === "gone") before = null; // the next look finds the new count
  tell("lost", `The server refused: ${error.message.replace(/</g, "&lt;")}`, 8);
};
pilot.onWork = (milliseconds) => (extraWork += milliseconds);
addEventListener("pagehide", () => client?.bye());
addEventListener("pageshow", (event) => {
  if (event.persisted) location.reload(); // the browser kept the page, but the client has left
});

// Buttons

element("kill").addEventListener("click", async () => {
  const request = { method: "POST", headers: { "x-rekindle-key": settings.key } };
  try {
    const { pid } = await (await fetch("/kill", request)).json();
    if (pid === null) return;
    killed = { pid };
    curve.mark(pilot.moves);
    if (pilot.brain instanceof Playing) tell("", `<b>kill -9 ${pid}</b>: and they play on, because the policy runs in this page.`, 6);
  } catch {
    tell("lost", "The process that restarts the server is gone: run <b>rekindle game</b> again.", 8);
  }
});

element("alone").addEventListener("click", async () => {
  const button = element("alone");
  const text = element("alone-text");
  button.disabled = true;
  try {
    if (pilot.brain instanceof Playing) {
      await learn();
      text.textContent = "the policy runs in this page";
      button.firstElementChild.textContent = "Play without the server";
    } else {
      text.textContent = "exporting the policy …";
      const answer = await fetch("/policy.mpk");
      if (!answer.ok) throw new Error(await answer.text());
      const policy = await Policy.read(new Uint8Array(await answer.arrayBuffer()));
      pilot.use(new Playing(policy));
      ticket = client.ticket;
      client.close();
      client = null;
      lostAt = 0;
      button.firstElementChild.textContent = "Learn again";
      text.textContent = `${policy.algorithm} plays here, without a server`;
      tell("", "The exported policy runs in this page. <b>Nothing is learned now</b>, and no server is needed.", 6);
    }
  } catch (error) {
    text.textContent = error.message.trim();
  }
  button.disabled = false;
});

element("clear").addEventListener("click", () => {
  for (const thorn of [...world.thorns]) world.removeThorn(thorn);
});

// Sliders

function slider(id, use) {
  const input = element(id);
  const changed = () => (element(`${id}-text`).textContent = use(Number(input.value)));
  input.addEventListener("input", changed);
  changed();
}

let speed = 1;
slider("time", (value) => `${(speed = SPEEDS[value])} ×`);
slider("food", (value) => String((world.foodCount = value)));
slider("range", (value) => String((world.range = value)));
slider("curiosity", (value) => `${100 * (pilot.curiosity = value / 100)} %`);

// The pointer

const canvas = element("world");
let fenceFrom = null;

canvas.addEventListener("pointerdown", (event) => {
  const [x, y] = painter.place(event);
  const thorn = world.thornAt(x, y);
  if (thorn !== undefined) return world.removeThorn(thorn);
  world.dropThorn(x, y);
  fenceFrom = [x, y];
});
canvas.addEventListener("pointermove", (event) => {
  const [x, y] = painter.place(event);
  painter.watched = world.creatures.find((one) => !one.isDead && Math.hypot(one.x - x, one.y - y) < 3 * CREATURE_RADIUS) ?? painter.watched;
  if (fenceFrom !== null && Math.hypot(x - fenceFrom[0], y - fenceFrom[1]) > FENCE) {
    if (world.thornAt(x, y) === undefined) world.dropThorn(x, y);
    fenceFrom = [x, y];
  }
});
canvas.addEventListener("pointerleave", () => (painter.watched = null));
addEventListener("pointerup", () => (fenceFrom = null));

// Numbers

let point = { moves: 0, meals: 0, deaths: 0 };
let looked = { moves: 0, time: performance.now() };
let rate = 0;

function addPoint() {
  const moves = pilot.moves - point.moves;
  if (moves < MOVES_A_POINT) return;
  rate = (100 * (world.meals - point.meals)) / moves;
  const hits = (1000 * (world.deaths - point.deaths)) / moves;
  curve.add(pilot.moves, rate);
  write({ "food-rate": rate.toFixed(1) });
  write({ "thorn-rate": hits.toFixed(1) });
  point = { moves: pilot.moves, meals: world.meals, deaths: world.deaths };
}

let isLookDue = true;

function look() {
  const now = performance.now();
  write({ speed: whole((1000 * (pilot.moves - looked.moves)) / (now - looked.time)) });
  looked = { moves: pilot.moves, time: now };
  if (pilot.brain instanceof Playing) {
    show("alone", "this page plays alone");
    write({ exploration: `${Math.round(100 * pilot.curiosity)} %` });
  } else if (client?.state === "open") show("live", `connected · ${client.latency.toFixed(1)} ms`);
  isLookDue = true;
}

/** Between an answer and the next request, the run has the moves that were made here, and no others. */
async function askServer() {
  const { reconnections } = client;
  const made = pilot.moves;
  const stats = await client.stats();
  write({ updates: whole(stats.updates) });
  write({ exploration: `${Math.round(100 * explorationAt(stats.steps))} %` });
  if (client?.reconnections === reconnections && pilot.brain instanceof Learning) compare(made, stats);
}

pilot.onAnswer = () => {
  if (!isLookDue) return;
  isLookDue = false;
  askServer().catch(() => {}); // if it fails, the next look follows soon
};

/** Compare the moves that were made here with those that are in the run. */
function compare(made, { steps, clients }) {
  if (isShared && clients === 1) before = null; // count from here on: the moves of other pages are in the run too
  const wasShared = isShared;
  isShared = clients > 1;
  before ??= steps - made;
  const recorded = steps - before;
  write({ moves: whole(made), recorded: whole(recorded) });
  const { reconnections } = client;
  if (isShared) note("ledger", `${clients} pages play in this run, which has the moves of all of them.`);
  else if (made !== recorded) {
    note("ledger bad", `The page and the run differ by ${whole(Math.abs(made - recorded))} moves.`);
  } else if (reconnections > 0) {
    const times = reconnections === 1 ? "once" : `${reconnections} times`;
    note("ledger good", `The server was lost ${times}: no move is missing, and none counts twice.`);
  } else if (wasShared) note("ledger", "");
}

function note(className, text) {
  const ledger = element("ledger");
  if (ledger.className !== className) ledger.className = className;
  if (ledger.textContent !== text) ledger.textContent = text;
}

function explorationAt(steps) {
  const { start, end, steps: most } = EXPLORATION;
  const chance = start + (end - start) * Math.min(1, steps / most);
  return 1 - (1 - chance) * (1 - pilot.curiosity);
}

setInterval(look, LOOKS);

// Frames

let last = performance.now();

function frame(now) {
  const start = performance.now();
  const elapsed = Math.min(now - last, 50);
  last = now;
  pilot.advance(Math.max(0, (elapsed * 60 * speed) / 1000));
  painter.draw(now, pilot.brain === null || (pilot.isWaiting && lostAt > 0));
  addPoint();
  showNext();
  work[frames % work.length] = performance.now() - start + extraWork;
  extraWork = 0;
  frames += 1;
  requestAnimationFrame(frame);
}

requestAnimationFrame(frame);

/** For benchmarks and tests. */
globalThis.game = {
  world,
  pilot,
  curve,
  get client() {
    return client;
  },
  /** Milliseconds of work in each of the newest frames; starts anew. */
  takeWork() {
    const taken = Array.from(work.subarray(0, Math.min(frames, work.length)));
    frames = 0;
    return taken;
  },
  get rate() {
    return rate;
  },
};

await learn();
