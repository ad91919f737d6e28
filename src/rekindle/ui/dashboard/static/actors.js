// The actors of a run and its learner: what each did in the last metric window.

import { fill, h } from "./dom.js";
import { compact, decimal } from "./format.js";

const SLOW = 2 / 3; // less than this share of the median rate is clearly slower than the others

const percent = (share) => `${Math.round(100 * Math.min(1, Math.max(0, share)))} %`;

// By number; none for a run without actors.
export function actorStates(tables) {
  const last = (name) => tables.last("metrics", `time/${name}`);
  const numbers = tables.names("metrics").map((name) => /^time\/actor_(\d+)_samples_per_sec$/.exec(name)?.[1]).filter((number) => number !== undefined).map(Number).sort((a, b) => a - b);
  const states = numbers.map((number) => ({
    number,
    rate: last(`actor_${number}_samples_per_sec`),
    playing: last(`actor_${number}_playing`),
    restarts: Math.ceil(last(`actor_${number}_restarts`) ?? 0),
  })).filter((state) => state.rate !== null);
  const typical = median(states.map((state) => state.rate));
  return states.map((state) => ({ ...state, isSlow: state.rate < SLOW * typical }));
}

function median(values) {
  const sorted = values.toSorted((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

// The charts of a run, with one for all actors instead of one for each.
export function chartsOfActors(charts) {
  const together = new Map();
  for (const [name, series] of charts) {
    const [, number, what] = /^time\/actor_(\d+)_(\w+)$/.exec(name) ?? [];
    const chart = what ? `time/actors/${what}` : name;
    if (!together.has(chart)) together.set(chart, []);
    together.get(chart).push(...(what ? series.map((one) => ({ ...one, label: `actor ${number}`, colour: Number(number) })) : series));
  }
  return together;
}

// How busy actors and learner are, among the facts of a run.
export function actorFacts(tables) {
  const last = (name) => tables.last("metrics", `time/${name}`);
  const [waiting, idle] = [last("learner_waiting"), last("actors_waiting")];
  if (waiting === null) return [];
  return [
    ...(idle === null ? [] : [["Actors", `${percent(1 - idle)} busy`, last("actor_restarts") > 0 ? "started again" : null]]),
    ["Learner", `${percent(1 - waiting)} busy`],
  ];
}

export function actorsPanel(tables, states, isLive) {
  const last = (name) => tables.last("metrics", `time/${name}`);
  const waiting = last("learner_waiting");
  const slow = states.filter((state) => state.isSlow).length;
  const restarted = states.filter((state) => state.restarts > 0).length;
  const facts = [
    waiting === null ? null : ["Busy", percent(1 - waiting), bar(1 - waiting)],
    ["Updates/s", compact(last("updates_per_sec"))],
    ["Samples/s", compact(last("samples_per_sec"))],
    last("staleness") === null ? null : ["Staleness", decimal(last("staleness"))],
    last("actor_queue") === null ? null : ["Queued", decimal(last("actor_queue"))],
  ].filter(Boolean);
  return h("div", { class: "crew" },
    h("p", { class: "muted" }, isLive ? "States of the last metric window." : "This run is not live: these are the states of its last metric window."),
    h("h2", { id: "learner-title" }, "Learner"),
    h("dl", { class: "served", "aria-labelledby": "learner-title" }, facts.map(([name, value, shown]) => h("div", {}, h("dt", {}, name), h("dd", {}, value, shown)))),
    h("h2", { id: "actors-title" }, "Actors", h("span", { class: "muted" },
      [`${states.length}`, slow ? `${slow} slow` : null, restarted ? `${restarted} started again` : null].filter(Boolean).join(" · "))),
    h("ul", { class: "actors", "aria-labelledby": "actors-title" }, states.map(actor)));
}

function actor({ number, rate, playing, restarts, isSlow }) {
  return h("li", { class: isSlow ? "slow" : "" },
    h("div", {}, h("b", {}, `Actor ${number}`), h("span", { title: "Samples per second while it plays" }, `${compact(rate)}/s`)),
    playing === null ? null : bar(playing),
    h("div", { class: "marks" },
      playing === null ? null : h("span", { class: "muted", title: `It waits ${percent(1 - playing)} of the time` }, `${percent(playing)} playing`),
      isSlow ? h("span", { class: "tag warn", title: "Less than two thirds of the median rate" }, "slow") : null,
      restarts ? h("span", { class: "tag bad", title: "Its process was started again" }, `${restarts} ${restarts === 1 ? "restart" : "restarts"}`) : null));
}

// The number stands next to it.
function bar(share) {
  const part = h("i");
  part.style.width = percent(share).replace(" ", "");
  return h("span", { class: "track", "aria-hidden": "true" }, part);
}

// A panel that keeps its place while it is read: it is written again only if something has changed.
export function actorsTab(panel, tab) {
  return (tables, isLive) => {
    const states = actorStates(tables);
    tab.hidden = states.length === 0 && panel.hidden;
    tab.dataset.count = states.length || "";
    const made = states.length ? actorsPanel(tables, states, isLive) : h("p", { class: "empty" }, "No actors.");
    if (!made.isEqualNode(panel.firstElementChild)) fill(panel, made);
  };
}
