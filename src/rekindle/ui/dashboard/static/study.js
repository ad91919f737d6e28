// A study: its trials in a table and as lines over the settings, how much each setting matters, and the best curves.

import { Chart } from "./chart.js";
import { fill, h, icon, status, svg } from "./dom.js";
import { count, decimal } from "./format.js";
import { onTheme } from "./settings.js";
import { getJson } from "./stream.js";

const EVERY = 2000;
const WIDE = { axis: 104, height: 250, top: 34, bottom: 26, side: 60 };
const SHADES = 5;

// Links to the studies, above the list of runs.
export function watchStudies(element, signal, receive) {
  poll("/api/studies", signal, (studies) => {
    receive(studies);
    element.hidden = studies.length === 0;
    fill(element, h("h2", {}, studies.length === 1 ? "Study" : "Studies"), studies.map((study) =>
      h("a", { class: "card", href: `#/study/${encodeURIComponent(study.id)}` },
        h("b", {}, study.name), status(study.status),
        h("span", { class: "muted" }, `${count(study.ended)} of ${count(study.trials)} trials`),
        h("span", { class: "muted" }, `best ${decimal(study.best)}`))));
  });
}

async function poll(address, signal, receive, missing = () => {}) {
  let last = "";
  while (!signal.aborted) {
    if (!document.hidden) {
      try {
        const found = await getJson(address, signal);
        const text = JSON.stringify(found);
        if (text !== last && !signal.aborted) receive(found);
        last = text;
      } catch (error) {
        if (!signal.aborted) missing(error);
      }
    }
    await new Promise((resolve) => setTimeout(resolve, EVERY));
  }
}

export function studyPage(main, id, signal) {
  let study = null;
  let chosen = null;
  let sort = { key: "value", descending: true };
  document.title = `${id} · rekindle`;
  const state = h("span");
  const facts = h("dl", { class: "facts" });
  const banners = h("div", { class: "banners" });
  const lines = h("div", { class: "scroll parallel" });
  const said = h("p", { class: "muted said", role: "status" });
  const bars = h("div", { class: "bars" });
  const table = h("div", { class: "scroll" });
  const chart = new Chart({ title: "Evaluations of the best trials", group: "study", zoom: () => {} });
  chart.height = 250;
  signal.addEventListener("abort", () => chart.close());
  const command = h("code", { class: "mono" });
  main.replaceChildren(h("div", { class: "page study" },
    h("div", { class: "heading" }, h("nav", { class: "crumbs", "aria-label": "Where" },
      h("a", { href: "#/" }, "Runs"), h("span", { class: "slash" }, "/"), h("h1", {}, id)), state),
    banners, facts,
    h("h2", { class: "below" }, "Trials over the settings"), said, lines,
    h("div", { class: "halves" }, h("section", {}, h("h2", { class: "below" }, "Importance"), bars), h("section", {}, h("h2", { class: "below" }, "Learning curves"), chart.element)),
    h("h2", { class: "below" }, "Trials"), table,
    h("p", { class: "muted below" }, "Train with the best settings, and new seeds: ", command)));

  function show() {
    fill(state, status(study.row.status));
    const numbers = { complete: 0, pruned: 0, failed: 0, running: 0 };
    for (const trial of study.trials) numbers[trial.status] += 1;
    const items = [
      ["best", decimal(study.row.best), study.best === null ? "" : `trial ${study.best}`],
      ["trials", `${count(study.row.ended)} of ${count(study.row.trials)}`, ""],
      ["complete", count(numbers.complete), ""],
      ["pruned", count(numbers.pruned), ""],
      ["failed", count(numbers.failed), ""],
      ...Object.entries(study.about).map(([name, value]) => [name, value, ""]),
    ];
    fill(facts, items.map(([name, value, note]) => h("div", {}, h("dt", {}, name), h("dd", {}, value, note ? h("small", {}, note) : null))));
    command.textContent = `rekindle train --like ${study.path}@best --seeds 100-104`;
    showLines();
    showBars();
    showChart();
    showTable();
  }

  function shade(trial) {
    const values = study.trials.map((other) => other.value).filter((value) => value !== null).sort((a, b) => a - b);
    if (trial.value === null || values.length < 2) return trial.value === null ? "off" : `shade-${SHADES - 1}`;
    const below = values.filter((value) => value < trial.value).length;
    return `shade-${Math.min(SHADES - 1, Math.floor((SHADES * below) / (values.length - 1 || 1)))}`;
  }

  function showLines() {
    const values = study.trials.map((trial) => trial.value).filter((value) => value !== null);
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const axes = [...study.axes, { name: "score", low: decimal(low), high: decimal(high), choices: [] }];
    const gap = Math.max(WIDE.axis, (lines.clientWidth - 2 * WIDE.side) / (axes.length - 1));
    const width = WIDE.side * 2 + gap * (axes.length - 1);
    const x = (index) => WIDE.side + index * gap;
    const y = (place) => WIDE.height - WIDE.bottom - place * (WIDE.height - WIDE.top - WIDE.bottom);
    const score = (trial) => (trial.value === null ? null : high > low ? (trial.value - low) / (high - low) : 1);
    const drawn = svg("svg", { viewBox: `0 0 ${width} ${WIDE.height}`, width, height: WIDE.height, role: "img", "aria-label": "each trial as a line over its settings and its score" });
    const order = [...study.trials].sort((a, b) => (a.number === study.best) - (b.number === study.best) || (a.value ?? -Infinity) - (b.value ?? -Infinity));
    for (const trial of order) {
      const places = [...trial.places, score(trial)];
      const points = places.map((place, index) => (place === null ? null : `${x(index)},${y(place).toFixed(1)}`)).filter(Boolean).join(" ");
      const kind = trial.number === study.best ? "best" : shade(trial);
      const line = svg("polyline", { points, class: `trial ${kind}`, "data-trial": trial.number });
      const wide = svg("polyline", { points, class: "hit" });
      wide.addEventListener("pointerenter", () => point(trial, drawn));
      wide.addEventListener("pointerleave", () => point(null, drawn));
      wide.addEventListener("click", () => openRuns(trial));
      drawn.append(line, wide);
    }
    axes.forEach((axis, index) => {
      drawn.append(svg("line", { x1: x(index), x2: x(index), y1: y(0), y2: y(1), class: "axis" }));
      const name = svg("text", { x: x(index), y: 12, class: "name", "text-anchor": "middle" });
      name.textContent = short(axis.name);
      const ends = axis.choices.length
        ? axis.choices.map((text, at) => [text, axis.choices.length > 1 ? at / (axis.choices.length - 1) : 0])
        : [[axis.low, 0], [axis.high, 1]];
      drawn.append(name, ...ends.map(([text, place]) => {
        const label = svg("text", { x: x(index) + (axis.choices.length ? 6 : 0), y: axis.choices.length ? y(place) + 4 : place ? y(1) - 7 : y(0) + 15, class: "end", "text-anchor": axis.choices.length ? "start" : "middle" });
        label.textContent = text;
        return label;
      }));
    });
    fill(lines, drawn);
    point(null, drawn);
  }

  function point(trial, drawn) {
    chosen = trial?.number ?? null;
    drawn.classList.toggle("pointed", trial !== null);
    for (const line of drawn.querySelectorAll(".trial")) line.classList.toggle("chosen", Number(line.dataset.trial) === chosen);
    for (const line of table.querySelectorAll("tr[data-trial]")) line.classList.toggle("chosen", Number(line.dataset.trial) === chosen);
    said.textContent = trial === null
      ? "A line is a trial: strong ones are good, dashed ones were pruned or failed. Point at one to see it, click to compare its runs."
      : `Trial ${trial.number}: ${trial.value === null ? trial.reason ?? trial.status : `score ${decimal(trial.value)}`} · ${Object.entries(trial.settings).map(([name, value]) => `${short(name)} ${value}`).join(", ")}`;
  }

  function showBars() {
    const shares = Object.entries(study.importance).sort(([, a], [, b]) => b - a);
    if (!shares.length) {
      fill(bars, h("p", { class: "muted" }, "From 8 complete trials on."));
      return;
    }
    fill(bars, shares.map(([name, share]) => {
      const bar = h("i");
      bar.style.width = `${Math.round(100 * share)}%`;
      return h("div", { class: "bar" }, h("span", { title: name }, short(name)), h("span", { class: "track" }, bar), h("b", {}, `${Math.round(100 * share)} %`));
    }), h("p", { class: "muted" }, "The share of the differences between complete trials that a setting explains by itself."));
  }

  function showChart() {
    chart.element.hidden = study.curves.length === 0;
    chart.update({
      lines: study.curves.map((curve, index) => ({ label: `#${curve.number}`, colour: index, x: curve.x, mean: curve.mean, least: curve.least, most: curve.most, hasBand: index === 0, isSmooth: true })),
      axis: "step", log: false, band: false, smoothing: 0, marks: [], range: null, isNamed: true, isLegend: true,
    });
  }

  function showTable() {
    const names = study.axes.map((axis) => axis.name);
    const columns = [
      ["number", "Trial", (trial) => trial.number, "number"],
      ["status", "Status", (trial) => trial.status, ""],
      ["value", "Score", (trial) => trial.value, "number"],
      ["seeds", "Seeds", null, ""],
      ...names.map((name, index) => [name, short(name), (trial) => trial.places[index], "number"]),
    ];
    const value = columns.find(([key]) => key === sort.key)?.[2] ?? ((trial) => trial.value);
    const rows = [...study.trials].sort((a, b) => {
      const [left, right] = [value(a), value(b)];
      const isMissing = (left === null) - (right === null);
      if (isMissing) return isMissing;
      const order = typeof left === "string" ? left.localeCompare(right) : left - right;
      return (sort.descending ? -order : order) || a.number - b.number;
    });
    const head = ([key, label, of, kind]) => h("th", { scope: "col", class: kind, "aria-sort": sort.key === key ? (sort.descending ? "descending" : "ascending") : "none" },
      of ? h("button", { type: "button", onclick: () => {
        sort = { key, descending: sort.key === key ? !sort.descending : key === "value" };
        showTable();
      } }, label) : label);
    fill(table, h("table", { class: "runs trials" }, h("thead", {}, h("tr", {}, columns.map(head))), h("tbody", {}, rows.map((trial) =>
      h("tr", { data: { trial: trial.number }, class: trial.number === study.best ? "is-best" : "", onclick: () => openRuns(trial), title: trial.reason ?? "" },
        h("td", { class: "number" }, h("a", { href: address(trial) }, String(trial.number))),
        h("td", {}, trial.number === study.best ? h("span", { class: "tag good" }, "best") : h("span", { class: `end ${trial.status === "failed" ? "truncated" : ""}` }, trial.status)),
        h("td", { class: "number strong" }, decimal(trial.value)),
        h("td", { class: "mono" }, trial.scores.map(decimal).join("  ")),
        names.map((name) => h("td", { class: "number mono" }, trial.settings[name] ?? "–")))))));
  }

  function address(trial) {
    if (!trial.runs.length) return `#/study/${encodeURIComponent(id)}`;
    return `#/${trial.runs.length > 1 ? "compare" : "run"}/${trial.runs.map(encodeURIComponent).join(",")}`;
  }

  function openRuns(trial) {
    location.hash = address(trial);
  }

  poll(`/api/study?id=${encodeURIComponent(id)}`, signal, (found) => {
    study = found;
    fill(banners);
    show();
  }, (error) => fill(banners, h("p", { class: "banner error", role: "alert" }, icon("warning"), error.message)));
  addEventListener("resize", () => study && showLines(), { signal });
  onTheme(() => study && showChart(), signal);

  return (event) => {
    if (event.key !== "Escape") return false;
    location.hash = "#/";
    return true;
  };
}

function short(name) {
  return name.replace(/^agent\./, "");
}
