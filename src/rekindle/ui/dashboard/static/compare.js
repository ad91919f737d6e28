// Several runs side by side: curves, with the mean and the spread over seeds, and the settings that differ.

import { swatch } from "./chart.js";
import { ChartGrid, unit } from "./controls.js";
import { fill, h, icon, segmented, status } from "./dom.js";
import { compact, count, decimal, duration } from "./format.js";
import { onTheme, remember, settings } from "./settings.js";
import { getJson, open } from "./stream.js";
import { RunTables, aggregate, smooth } from "./tables.js";
import { tagList } from "./tags.js";

const POINTS = 400;
const MOST_RUNS = 100; // the server reads no more of them

export function comparePage(main, wanted, signal) {
  const ids = wanted.slice(0, MOST_RUNS);
  const runs = new Map(ids.map((id) => [id, { id, tables: new RunTables(), details: null }]));
  document.title = `Comparison of ${ids.length} · rekindle`;

  const grouping = segmented("Lines", [["version", "Mean over seeds", "One line for all runs of the same training"], ["run", "Each run", "One line per run"]], settings.group, (group) => {
    remember({ group });
    update();
  });
  const spread = segmented("Spread", [["range", "Min–max", "The band reaches from the lowest to the highest run"], ["deviation", "± std", "The band is one standard deviation wide on either side"]], settings.spread, (kind) => {
    remember({ spread: kind });
    update();
  });
  const grid = new ChartGrid({
    isNamed: true,
    unit: () => unit([...runs.values()].map((run) => run.details)),
    charts() {
      const charts = new Map();
      for (const { tables } of runs.values()) {
        for (const [name, series] of tables.charts()) {
          for (const one of series) charts.set(series.length > 1 && one.label === "eval" ? `${name} (eval)` : name, one);
        }
      }
      return charts;
    },
    lines: ({ log, name }) => (settings.group === "run" ? each(log, name) : means(log, name)),
    marks: () => [],
    nothing: () => "Reading …",
    async closer(range) {
      if (!range || settings.axis === "time") return runs.forEach((run) => run.tables.zoom(null)); // times differ by run
      const query = new URLSearchParams([...ids.map((id) => ["id", id]), ["by", "step"], ["from", range[0]], ["to", range[1]], ["points", POINTS], ["band", 0]]);
      const parts = await getJson(`/api/detail?${query}`, signal);
      for (const run of runs.values()) run.tables.zoom(parts.filter((part) => part.id === run.id));
    },
  }, signal, { extra: [grouping, spread] });
  grid.toolbar.querySelector("[data-toggle=band]").hidden = true;
  const legend = h("div", { class: "legend" });
  const table = h("div", { class: "scroll" });
  const banners = h("div", { class: "banners" }, ids.length < wanted.length
    ? h("p", { class: "banner", role: "status" }, icon("warning"), `These are the first ${ids.length} of ${wanted.length} runs: a comparison has no more. rekindle compare, plot and report take all.`) : null);
  const scores = h("section", { hidden: true });
  main.replaceChildren(h("div", { class: "page compare" },
    h("div", { class: "heading" }, h("nav", { class: "crumbs", "aria-label": "Where" }, h("a", { href: "#/" }, "Runs"), h("span", { class: "slash" }, "/"), h("h1", {}, `Comparison of ${ids.length} ${ids.length === 1 ? "run" : "runs"}`))),
    banners, legend, grid.element, scores, h("h2", { class: "below" }, "Side by side"), table));

  // Runs of one name and the same training: their configs are equal, except for the seed.
  function groups() {
    const found = new Map();
    for (const run of runs.values()) {
      const row = run.details?.row;
      const key = settings.group === "run" || !row ? run.id : `${row.name}\n${row.training}`;
      if (!found.has(key)) found.set(key, []);
      found.get(key).push(run);
    }
    const members = [...found.values()];
    return members.map((group) => [named(group, members), group]);
  }

  // The name of a group; of several groups with one name, also the settings in which they differ.
  function named(group, all) {
    const row = group[0].details?.row;
    if (settings.group === "run" || !row) return group[0].id;
    const same = all.filter((other) => other[0].details?.row.name === row.name);
    if (same.length === 1) return row.name;
    const texts = (runs_, name) => new Set(runs_.map((run) => run.details?.settings[name] ?? "–"));
    const names = [...new Set(same.flat().flatMap((run) => Object.keys(run.details?.settings ?? {})))];
    const differing = names.filter((name) => same.every((other) => texts(other, name).size === 1) && texts(same.flat(), name).size > 1);
    const parts = differing.slice(0, 3).map((name) => `${name.replace(/^.*\./, "")} ${group[0].details.settings[name] ?? "–"}`);
    return [row.name, ...parts].join(", ");
  }

  function each(log, name) {
    return [...runs.values()].map((run, index) => ({ ...run.tables.series(log, name, settings.axis), least: [], most: [], label: label(run), short: short(label(run), " / "), colour: index }))
      .filter((line) => line.x.length);
  }

  function means(log, name) {
    return groups().map(([key, members], index) => {
      const curves = members.map((run) => {
        const { x, mean } = run.tables.series(log, name, settings.axis);
        return { x, y: smooth(x, mean, settings.smoothing) };
      });
      return { ...aggregate(curves, { spread: settings.spread }), label: key, short: short(key, ", "), colour: index, isSmooth: true, hasBand: members.length > 1 };
    }).filter((line) => line.x.length);
  }

  // A label without the name that all of them begin with.
  function short(text, separator) {
    const names = new Set([...runs.values()].map((run) => run.details?.row.name).filter(Boolean));
    const start = `${[...names][0]}${separator}`;
    return names.size === 1 && text.startsWith(start) ? text.slice(start.length) : text;
  }

  function label(run) {
    const row = run.details?.row;
    return row ? `${row.name} / ${row.version} / ${row.run_id}` : run.id;
  }

  // Whether groups of seeds differ by more than noise; only finished runs count, so it changes when one ends.
  let finished = -1;
  async function showScores() {
    const now = [...runs.values()].filter((run) => run.details?.row.status === "finished").length;
    if (now === finished) return;
    finished = now;
    const found = await getJson(`/api/trainings?${new URLSearchParams(ids.map((id) => ["id", id]))}`, signal);
    scores.hidden = !found.groups.some((group) => group.runs.length > 1);
    const estimate = (interval, number) => [h("td", { class: "number strong" }, decimal(interval?.value)), h("td", { class: "number muted" }, interval && number > 1 ? `${decimal(interval.low)} to ${decimal(interval.high)}` : "–")];
    fill(scores, h("h2", { class: "below" }, "Scores"),
      h("p", { class: "muted said" }, `${found.of === "evaluations" ? "Last evaluation" : "Last 100 episodes"} of each finished run, with 95 % intervals.`),
      h("div", { class: "scroll" }, h("table", { class: "rows scores" },
        h("thead", {}, h("tr", {}, ["training", "runs", "mean", "interval", "IQM", "interval"].map((name, index) => h("th", { scope: "col", class: index ? "number" : "" }, name)))),
        h("tbody", {}, found.groups.map((group) => h("tr", {}, h("td", {}, group.label), h("td", { class: "number" }, count(group.runs.length)), estimate(group.mean, group.runs.length), estimate(group.iqm, group.runs.length)))))),
      found.differences.map((line) => h("p", { class: `difference ${line.differs ? "differs" : ""}` }, line.text)));
  }

  let isDue = false;
  function update() {
    if (isDue) return;
    isDue = true;
    requestAnimationFrame(() => {
      isDue = false;
      spread.hidden = settings.group === "run";
      grid.update();
      showLegend();
      showTable();
    });
  }

  function counted(members) {
    const seeds = new Set(members.map((run) => run.details?.row.seed));
    return `${members.length} ${seeds.size === members.length ? "seeds" : "runs"}`;
  }

  function showLegend() {
    legend.replaceChildren(...groups().map(([key, members], index) => {
      const isLive = members.some((run) => run.details?.row.status === "running");
      const text = members.length > 1 ? `${key} · ${counted(members)}` : label(members[0]);
      return h("span", { class: "item" }, swatch(index),
        members.length === 1 ? h("a", { href: `#/run/${encodeURIComponent(members[0].id)}` }, text) : h("span", {}, text),
        isLive ? h("span", { class: "status running" }, h("span", { class: "dot" })) : null,
        ids.length > 1
          ? h("button", { type: "button", class: "quiet", title: "Remove", "aria-label": `Remove ${text}`, onclick: () => leave(members) }, icon("close"))
          : null);
    }));
  }

  function leave(members) {
    const rest = ids.filter((id) => !members.some((run) => run.id === id));
    location.hash = rest.length ? `#/compare/${rest.map(encodeURIComponent).join(",")}` : "#/";
  }

  function showTable() {
    const known = [...runs.values()].filter((run) => run.details);
    if (!known.length) return;
    const names = [...new Set(known.flatMap((run) => Object.keys(run.details.settings)))].sort();
    const setting = (run, name) => run.details.settings[name] ?? "–";
    const differing = names.filter((name) => new Set(known.map((run) => setting(run, name))).size > 1);
    const line = (name, value, kind = "") => h("tr", {}, h("th", { scope: "row" }, name), known.map((run) => h("td", { class: kind }, value(run))));
    const facts = [
      line("status", (run) => status(run.details.row.status)),
      line("steps", (run) => count(run.details.row.steps), "figure"),
      line("best", (run) => decimal((run.tables.best() ?? run.details.row.best_return)?.value), "figure"),
      line("last 100", (run) => decimal(run.details.row.mean_return), "figure"),
      line("episodes", (run) => count(run.details.row.episodes), "figure"),
      line("wall time", (run) => duration(run.details.row.updated - run.details.row.started), "figure"),
      line("resumes", (run) => `${run.details.row.resumes || "none"}, ${run.details.row.exact ? "exact" : "approximate"}`),
      line("seed", (run) => String(run.details.row.seed ?? "–"), "figure"),
      ...(known.some((run) => run.details.row.tags.length) ? [line("tags", (run) => tagList(run.details.row.tags) ?? "–")] : []),
    ];
    table.replaceChildren(h("table", { class: "sides" },
      h("thead", {}, h("tr", {}, h("td"), known.map((run) => h("th", { scope: "col" }, h("a", { href: `#/run/${encodeURIComponent(run.id)}` }, run.details.row.name), h("span", { class: "mono" }, `${run.details.row.version} / ${run.details.row.run_id}`))))),
      h("tbody", {}, facts),
      h("tbody", {}, h("tr", { class: "part" }, h("th", { scope: "rowgroup", colSpan: known.length + 1 }, differing.length ? "Settings that differ" : names.length ? `All ${compact(names.length)} settings are the same` : "No settings")),
        differing.map((name) => line(name, (run) => setting(run, name), "mono")))));
  }

  const query = new URLSearchParams([...ids.map((id) => ["id", id]), ["points", POINTS], ["band", 0]]);
  open(`/api/watch?${query}`, (message) => {
    const run = runs.get(message.id);
    if (message.kind === "log") run.tables.take(message);
    else if (message.kind === "run") {
      run.details = message;
      run.tables.started = message.row.started;
      showScores().catch(() => {}); // the page shows a lost connection
    }
    update();
  }, signal, { missing: () => banners.replaceChildren(h("p", { class: "banner error", role: "alert" }, icon("warning"), "One of these runs is not there any more.")) });
  onTheme(update, signal);
  update();

  return (event) => {
    if (event.key === "Escape" && !grid.range) {
      location.hash = "#/";
      return true;
    }
    return grid.key(event);
  };
}
