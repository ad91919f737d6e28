// The page of one run.

import { actorFacts, actorsTab, chartsOfActors } from "./actors.js";
import { ChartGrid, unit } from "./controls.js";
import { fill, h, icon, status } from "./dom.js";
import { familyTree, forkDialog } from "./family.js";
import { age, bytes, compact, count, decimal, duration, moment } from "./format.js";
import { settings } from "./settings.js";
import { getJson, open, stopRun } from "./stream.js";
import { RunTables } from "./tables.js";
import { tagEditor } from "./tags.js";

const PAGE = 50;
const TABS = ["charts", "actors", "episodes", "config", "checkpoints", "videos", "about"];

export function runPage(main, id, signal) {
  const tables = new RunTables();
  let details = null;
  let isMissing = false;

  const source = {
    isNamed: true,
    unit: () => unit([details]),
    charts: () => chartsOfActors(tables.charts()),
    lines: (series) => series.map(({ log, name, label, colour }) => ({
      ...tables.series(log, name, settings.axis),
      label,
      colour: colour ?? (label === "eval" ? 1 : 0),
    })),
    marks: () => (details?.metadata?.resumes ?? []).map((resume) =>
      settings.axis === "step" ? resume.step : Date.parse(resume.wall_time) / 1000 - tables.started),
    nothing: () => (isMissing ? "" : details ? "Nothing has been logged yet. Charts appear with the first row." : "Reading …"),
    async closer(range) {
      if (!range) return tables.zoom(null);
      const shift = settings.axis === "step" ? 0 : tables.started;
      const query = new URLSearchParams({ id, by: settings.axis, from: range[0] + shift, to: range[1] + shift });
      tables.zoom(await getJson(`/api/detail?${query}`, signal));
    },
  };
  const grid = new ChartGrid(source, signal);
  const episodes = episodesPanel(id, signal);
  const panels = {
    charts: h("section", { id: "panel-charts", role: "tabpanel", "aria-labelledby": "tab-charts" }, grid.element),
    actors: h("section", { id: "panel-actors", role: "tabpanel", "aria-labelledby": "tab-actors" }),
    episodes: h("section", { id: "panel-episodes", role: "tabpanel", "aria-labelledby": "tab-episodes" }, episodes.element),
    config: h("section", { id: "panel-config", role: "tabpanel", "aria-labelledby": "tab-config" }),
    checkpoints: h("section", { id: "panel-checkpoints", role: "tabpanel", "aria-labelledby": "tab-checkpoints" }),
    videos: h("section", { id: "panel-videos", role: "tabpanel", "aria-labelledby": "tab-videos" }),
    about: h("section", { id: "panel-about", role: "tabpanel", "aria-labelledby": "tab-about" }),
  };
  const tabs = Object.fromEntries(TABS.map((name) => [name, h("button", {
    type: "button",
    role: "tab",
    id: `tab-${name}`,
    "aria-controls": `panel-${name}`,
    hidden: ["actors", "videos"].includes(name),
    onclick: () => choose(name),
  }, name[0].toUpperCase() + name.slice(1))]));
  const showActors = actorsTab(panels.actors, tabs.actors);
  const heading = h("div", { class: "heading" });
  const facts = h("dl", { class: "facts" });
  const served = h("dl", { class: "served", "aria-label": "Server" });
  const progress = h("div", { class: "progress", hidden: true, role: "progressbar", "aria-label": "Progress" }, h("i"));
  const banners = h("div", { class: "banners" });
  const tablist = h("div", { class: "tabs", role: "tablist" }, Object.values(tabs));
  const confirm = stopDialog(id, () => details, signal);
  const fork = forkDialog(() => details);
  const tags = tagEditor(id, signal);
  tags.element.hidden = true;
  main.replaceChildren(h("div", { class: "page run" }, heading, tags.element, facts, served, progress, banners, tablist, ...Object.values(panels), confirm, fork.dialog));
  choose("charts");
  showHeading();
  grid.update();

  function choose(chosen) {
    for (const name of TABS) {
      panels[name].hidden = name !== chosen;
      tabs[name].setAttribute("aria-selected", String(name === chosen));
      tabs[name].tabIndex = name === chosen ? 0 : -1;
    }
    if (chosen === "charts") grid.update();
    if (chosen === "episodes") episodes.refresh();
  }

  tablist.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const shown = TABS.filter((name) => !tabs[name].hidden);
    const next = shown[(shown.findIndex((name) => tabs[name] === document.activeElement) + step + shown.length) % shown.length];
    choose(next);
    tabs[next].focus();
  });

  let isDue = false;
  function soon() {
    if (isDue) return;
    isDue = true;
    requestAnimationFrame(() => {
      isDue = false;
      if (!panels.charts.hidden) grid.update();
      if (!panels.episodes.hidden) episodes.refresh();
      showFacts();
    });
  }

  open(`/api/watch?${new URLSearchParams({ id })}`, (message) => {
    if (message.kind === "log") {
      tables.take(message);
      if (grid.range && message.keep > 0 && isAtEnd(message)) source.closer(grid.range).then(soon);
    } else if (message.kind === "run") {
      details = message;
      tables.started = message.row.started;
      showHeading();
      tags.element.hidden = false;
      tags.show(details.row.tags);
      showBanners();
      panels.config.replaceChildren(configPanel(details));
      panels.checkpoints.replaceChildren(checkpointsPanel(details, fork.ask));
      showVideos();
      panels.about.replaceChildren(aboutPanel(details));
    } else if (message.kind === "gone") {
      banners.replaceChildren(banner("error", "This run does not exist any more."));
    }
    soon();
  }, signal, {
    missing() {
      isMissing = true;
      banners.replaceChildren(banner("error", "This run does not exist. It may have been moved or removed."));
      grid.update();
    },
  });

  // Only when they have changed, so that a video that plays is not interrupted.
  let names = null;
  function showVideos() {
    tabs.videos.hidden = details.videos.length === 0 && panels.videos.hidden;
    tabs.videos.dataset.count = details.videos.length || "";
    if (names === details.videos.join("\n")) return;
    names = details.videos.join("\n");
    panels.videos.replaceChildren(videosPanel(id, details.videos));
  }

  const timer = setInterval(showFacts, 5000);
  signal.addEventListener("abort", () => clearInterval(timer));

  // While the newest part is zoomed in, appended rows belong to it too.
  function isAtEnd(message) {
    const table = tables.logs.get(message.log);
    const axis = settings.axis === "step" ? table.steps : table.times.map((time) => time - tables.started);
    return axis.length > 1 && axis.at(-2) <= grid.range[1];
  }

  function showHeading() {
    const row = details?.row;
    const parts = (row ? [row.name, row.version, row.run_id] : [id]).filter(Boolean);
    document.title = `${parts[0]} · rekindle`;
    fill(heading,
      h("nav", { class: "crumbs", "aria-label": "Where" },
        h("a", { href: "#/" }, "Runs"),
        h("span", { class: "slash" }, "/"),
        h("h1", {}, parts[0]),
        parts.slice(1).map((part) => [h("span", { class: "slash" }, "/"), h("span", { class: "mono" }, part)])),
      row ? status(row.status, { stopping: details.is_stopping }) : null,
      details?.writer && row.status === "running" ? h("span", { class: "muted writer" }, details.writer) : null,
      details?.metadata?.stop_reason && row.status !== "failed" && details.metadata.stop_reason !== "max_steps" ? h("span", { class: "muted writer" }, details.metadata.stop_reason) : null,
      h("span", { class: "spring" }),
      row ? h("span", { class: "muted", title: moment(row.started) }, `started ${age(row.started)} ago`) : null,
      row?.status === "running"
        ? h("button", { type: "button", class: "button danger", id: "stop", disabled: details.is_stopping, onclick: () => confirm.showModal() },
          details.is_stopping ? "Stopping …" : "Stop")
        : null);
  }

  function showFacts() {
    const row = details?.row;
    if (!row) return;
    const best = tables.best();
    const rate = tables.last("metrics", "time/steps_per_sec");
    const goal = details.metadata?.max_steps ?? NaN;
    const left = row.status === "running" && rate > 0 && goal > row.steps ? (goal - row.steps) / rate : null;
    const end = goal > 0 ? `of ${compact(goal)}` : null;
    const offline = details.metadata?.step_unit === "updates";
    const items = [
      ...(offline ? [["Updates", count(row.updates), end]]
        : [["Steps", count(row.steps), end], ["Episodes", count(row.episodes)], ["Updates", count(row.updates)]]),
      ["Best", decimal(best?.value ?? row.best_return?.value), best?.of ?? row.best_return?.of],
      ["Last 100", decimal(row.mean_return), "mean return"],
      [offline ? "Updates/s" : "Steps/s", rate === null ? "–" : compact(rate)],
      ...actorFacts(tables),
      ["Wall time", duration(row.started === null ? null : (row.updated ?? row.started) - row.started), row.resumes ? "with pauses" : null],
      left === null ? null : ["Left", `~ ${duration(left)}`],
      ["Seed", String(row.seed ?? "–")],
      ["Grade", row.exact === false ? "approximate" : "exact", row.resumes ? `${row.resumes} ${row.resumes === 1 ? "resume" : "resumes"}` : null],
    ].filter(Boolean);
    facts.replaceChildren(...items.map(([name, value, note]) =>
      h("div", {}, h("dt", {}, name), h("dd", {}, value, note ? h("small", {}, note) : null))));
    showServer(row, rate);
    showActors(tables, row.status === "running");
    const reading = tables.progress;
    const part = reading < 1 ? reading : goal > 0 && row.status === "running" ? Math.min(1, row.steps / goal) : null;
    progress.hidden = part === null;
    progress.classList.toggle("reading", reading < 1);
    progress.title = reading < 1 ? `Reading the logs: ${Math.round(100 * reading)} %` : `${Math.round(100 * (part ?? 0))} % of the steps`;
    progress.firstChild.style.width = `${100 * (part ?? 0)}%`;
    tabs.episodes.dataset.count = compact(tables.logs.get("train_episodes")?.total ?? 0);
  }

  // What a server logs about its clients; nothing for a run that is not served.
  function showServer(row, rate) {
    const last = (name) => tables.last("metrics", `time/server_${name}`);
    if (last("requests_per_second") === null) return;
    const isLive = row.status === "running";
    const milliseconds = (name) => (last(name) === null ? "–" : `${decimal(last(name))} ms`);
    const items = [
      ["Clients", isLive ? count(Math.round(last("clients") ?? 0)) : "–"],
      ["Streams", isLive ? count(Math.round(last("streams") ?? 0)) : "–"],
      ["Requests/s", isLive ? compact(last("requests_per_second")) : "–"],
      ["Latency p50", milliseconds("latency_p50_ms")],
      ["Latency p99", milliseconds("latency_p99_ms")],
      ["Learning", rate === null || !isLive ? "–" : `${compact(rate)} steps/s`],
    ];
    served.replaceChildren(...items.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
  }

  function showBanners() {
    const shown = details.warnings.filter((warning) => warning.level !== "note");
    banners.replaceChildren(...shown.slice(0, 5).map((warning) => banner(warning.level, warning.text)));
    if (shown.length > 5) banners.append(h("p", { class: "muted" }, `and ${shown.length - 5} more under About`));
    tabs.about.dataset.count = details.warnings.length || "";
    tabs.checkpoints.dataset.count = details.checkpoints.length || "";
  }

  return (event) => {
    const tab = TABS.filter((name) => !tabs[name].hidden)[Number(event.key) - 1];
    if (tab) {
      choose(tab);
      tabs[tab].focus();
      return true;
    }
    if (event.key === "Escape" && !grid.range) {
      location.hash = "#/";
      return true;
    }
    return !panels.charts.hidden && grid.key(event);
  };
}

function banner(level, text) {
  return h("p", { class: `banner ${level}`, role: level === "error" ? "alert" : "status" }, icon("warning"), h("span", {}, text));
}

function stopDialog(id, details, signal) {
  const problem = h("p", { class: "problem", role: "alert", hidden: true });
  const yes = h("button", { type: "button", class: "button danger solid", id: "stop-yes", onclick: ask }, "Stop the run");
  const dialog = h("dialog", { class: "dialog", "aria-labelledby": "stop-title" },
    h("h2", { id: "stop-title" }, "Stop this run?"),
    h("p", {}, "It takes a checkpoint and ends, within about a second. Run its script again to continue it."),
    problem,
    h("div", { class: "buttons" }, h("button", { type: "button", class: "button", onclick: () => dialog.close() }, "Cancel"), yes));
  async function ask() {
    yes.disabled = true;
    problem.hidden = true;
    try {
      await stopRun(id);
      dialog.close();
      const button = document.getElementById("stop");
      if (button && !signal.aborted) {
        button.disabled = true;
        button.textContent = "Stopping …";
      }
    } catch (error) {
      problem.textContent = error.message;
      problem.hidden = false;
    } finally {
      yes.disabled = false;
    }
  }
  return dialog;
}

function episodesPanel(id, signal) {
  let log = "train_episodes";
  let before = null;
  let total = 0;
  let isLoading = false;
  let isAgain = false;
  const body = h("tbody");
  const where = h("span", { class: "muted" });
  const newer = h("button", { type: "button", class: "button", onclick: () => go(before === null ? null : before + PAGE >= total ? null : before + PAGE) }, "Newer");
  const older = h("button", { type: "button", class: "button", onclick: () => go(Math.max(PAGE, (before ?? total) - PAGE)) }, "Older");
  const first = h("button", { type: "button", class: "button", onclick: () => go(PAGE) }, "First");
  const newest = h("button", { type: "button", class: "button", onclick: () => go(null) }, "Newest");
  const kinds = h("select", {
    "aria-label": "Which episodes",
    onchange: (event) => {
      log = event.target.value;
      go(null);
    },
  }, h("option", { value: "train_episodes" }, "Training episodes"), h("option", { value: "eval_episodes" }, "Evaluation episodes"));
  const columns = ["Episode", "Step", "Return", "Length", "End", "Stream", "Time", "Extras"];
  const element = h("div", {},
    h("div", { class: "toolbar" }, kinds, where, h("span", { class: "spring" }), newest, newer, older, first),
    h("div", { class: "scroll" },
      h("table", { class: "rows" }, h("thead", {}, h("tr", {}, columns.map((name, index) => h("th", { scope: "col", class: [4, 7].includes(index) ? "" : "number" }, name)))), body)));

  function go(next) {
    before = next;
    refresh(true);
  }

  async function refresh(isAsked = false) {
    if (isLoading) {
      isAgain ||= isAsked;
      return;
    }
    if (!isAsked && before !== null) return; // an older page does not change
    isLoading = true;
    try {
      const query = new URLSearchParams({ id, log, count: PAGE });
      if (before !== null) query.set("before", before);
      const page = await getJson(`/api/rows?${query}`, signal);
      total = page.total;
      if (before !== null && before > total) before = null; // a resume went back
      show(page.rows);
    } catch (error) {
      if (!signal.aborted) where.textContent = error.message;
    }
    setTimeout(() => {
      isLoading = false;
      if (isAgain) {
        isAgain = false;
        refresh(true);
      }
    }, isAgain ? 0 : 300);
  }

  function show(rows) {
    newer.disabled = newest.disabled = before === null;
    older.disabled = first.disabled = rows.length === 0 || rows.at(-1).row === 0;
    where.textContent = rows.length === 0 ? "None yet" : `${count(rows.at(-1).row + 1)}–${count(rows[0].row + 1)} of ${count(total)}`;
    body.replaceChildren(...rows.map((row) => {
      if (row.broken !== undefined) {
        return h("tr", { class: "broken" }, h("td", { class: "number" }, count(row.row + 1)), h("td", { colSpan: 7 }, `cannot be read: ${row.broken}`));
      }
      const number = (value, format) => h("td", { class: "number" }, typeof value === "number" ? format(value) : "–");
      const extras = row.extras && typeof row.extras === "object" ? Object.entries(row.extras).slice(0, 20) : [];
      return h("tr", {},
        number(row.episodes, count), number(row.env_steps, count), number(row.total_reward, decimal), number(row.length, count),
        h("td", {}, h("span", { class: `end ${row.status === "truncated" ? "truncated" : ""}` }, short(row.status))),
        h("td", { class: "number" }, short(row.stream)),
        number(row.wall_time, (time) => moment(time).slice(5)),
        h("td", { class: "extras" }, extras.map(([name, value]) => h("span", {}, short(name), " ", h("b", {}, typeof value === "number" ? decimal(value) : short(value))))));
    }));
  }

  return { element, refresh };
}

function short(value) {
  if (value === null || value === undefined) return "–";
  const text = typeof value === "object" ? JSON.stringify(value) : String(value);
  return text.length > 40 ? `${text.slice(0, 40)}…` : text;
}

function pairs(entries) {
  return h("table", { class: "pairs" }, h("tbody", {}, entries.map(([name, value]) => h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, value)))));
}

function configPanel(details) {
  const entries = Object.entries(details.settings);
  return entries.length
    ? pairs(entries)
    : h("p", { class: "empty" }, "This run has no config. Store one with run.write_config(…), and it is shown and compared here.");
}

function checkpointsPanel(details, fork) {
  if (!details.checkpoints.length) return h("p", { class: "empty" }, "No checkpoint yet.");
  const replay = details.replay_size ? h("p", { class: "muted" }, `and ${bytes(details.replay_size)} of replay buffer, which they share`) : null;
  return h("div", { class: "scroll" },
    h("table", { class: "rows" },
      h("thead", {}, h("tr", {}, ["File", "Step", "Size", "", "Score", "Age", ""].map((name, index) => h("th", { scope: "col", class: [1, 2, 4, 5].includes(index) ? "number" : "" }, name)))),
      h("tbody", {}, details.checkpoints.toReversed().map((checkpoint) => h("tr", {},
        h("td", { class: "mono" }, checkpoint.file),
        h("td", { class: "number" }, count(checkpoint.step)),
        h("td", { class: "number" }, bytes(checkpoint.size)),
        h("td", {}, checkpoint.latest ? h("span", { class: "tag" }, "latest") : null, checkpoint.best ? h("span", { class: "tag good" }, "best") : null),
        h("td", { class: "number" }, checkpoint.score === null ? "–" : decimal(checkpoint.score)),
        h("td", { class: "number", title: moment(checkpoint.modified) }, age(checkpoint.modified)),
        h("td", {}, checkpoint.file.startsWith("step_")
          ? h("button", { type: "button", class: "button", "aria-label": `Fork from step ${checkpoint.step}`, onclick: () => fork(checkpoint.step) }, "Fork from here")
          : null))))), replay);
}

function videosPanel(id, names) {
  const source = (name) => `/api/video?${new URLSearchParams({ id, name })}`;
  return h("div", { class: "grid" }, names.map((name) => h("figure", { class: "chart video" },
    h("figcaption", {}, h("span", { class: "title", title: name }, name)),
    name.endsWith(".gif")
      ? h("img", { src: source(name), alt: `the policy of ${name}`, loading: "lazy" })
      : h("video", { src: source(name), controls: true, loop: true, muted: true, preload: "metadata" }))));
}

function aboutPanel(details) {
  const { metadata, row } = details;
  const warnings = details.warnings.length
    ? details.warnings.map((warning) => banner(warning.level, warning.text))
    : h("p", { class: "muted" }, "None.");
  const resumes = metadata?.resumes ?? [];
  const steps = [
    metadata?.parent ? h("li", {}, h("b", {}, metadata.fork ? "Forked from" : "Began with"), h("span", { class: "mono" }, ` ${metadata.parent}`)) : null,
    h("li", {}, h("b", {}, "Started"), h("span", { class: "muted" }, ` ${moment(row.started)} · seed ${row.seed ?? "–"}`)),
    resumes.map((resume) => h("li", {},
      h("b", {}, `Resume ${resume.number}`),
      h("span", { class: "muted" }, ` from step ${count(resume.step)}${resume.checkpoint ? ` (${resume.checkpoint})` : ""} · `),
      h("span", { class: resume.grade === "exact" ? "good" : "warn" }, resume.grade),
      h("span", { class: "muted" }, resume.wall_time ? ` · ${moment(Date.parse(resume.wall_time) / 1000)}` : ""))),
    h("li", {}, h("b", {}, row.status[0].toUpperCase() + row.status.slice(1)), h("span", { class: "muted" }, ` step ${count(row.steps)} · ${moment(row.updated)}`)),
  ];
  const siblings = details.siblings.filter((other) => other !== details.id).reverse();
  const tree = familyTree(details);
  return h("div", { class: "about" },
    tree ? h("section", {}, h("h2", {}, "Family"), tree) : null,
    h("section", {}, h("h2", {}, "Lineage"), h("ol", { class: "lineage" }, steps),
      siblings.length
        ? [h("h3", {}, `Other runs of ${row.name} ${row.version}`),
          h("ul", { class: "siblings" }, siblings.slice(0, 20).map((other) => h("li", {}, h("a", { class: "mono", href: `#/run/${encodeURIComponent(other)}` }, other.split("/").at(-1))))),
          h("a", { href: `#/compare/${details.siblings.slice(-20).map(encodeURIComponent).join(",")}` }, `Compare all ${Math.min(20, details.siblings.length)}`)]
        : null),
    h("section", {}, h("h2", {}, "Warnings"), warnings),
    h("section", {}, h("h2", {}, "Metadata"), pairs([
      ["directory", h("span", { class: "mono" }, details.path)],
      ["status", row.status],
      ["stop reason", metadata?.stop_reason ?? "–"],
      ["started", moment(row.started)],
      ["last update", moment(row.updated)],
      ["exact", metadata ? String(metadata.exact) : "–"],
      ...Object.entries(metadata?.environment ?? {}),
    ])));
}
