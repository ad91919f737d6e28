// The list of all runs.

import { h, icon, status, svg } from "./dom.js";
import { age, best, compact, count, decimal, moment } from "./format.js";
import { watchStudies } from "./study.js";
import { remember, settings } from "./settings.js";
import { open } from "./stream.js";
import { tagChips, tagList } from "./tags.js";

const COLUMNS = [
  { key: "name", label: "Run", value: (row) => `${row.name}/${row.version}/${row.run_id}` },
  { key: "status", label: "Status", value: (row) => ORDER.indexOf(row.status), class: "state" },
  { key: "about", label: "About", value: (row) => about(row), class: "about-column" },
  { key: "spark", label: "Return", class: "spark" },
  { key: "best", label: "Best", value: (row) => row.best_return?.value, class: "number" },
  { key: "mean", label: "Last 100", value: (row) => row.mean_return, class: "number wider" },
  { key: "steps", label: "Steps", value: (row) => row.steps, class: "number" },
  { key: "episodes", label: "Episodes", value: (row) => row.episodes, class: "number wide-only" },
  { key: "seed", label: "Seed", value: (row) => row.seed, class: "number wide-only" },
  { key: "updated", label: "Updated", value: (row) => row.updated, class: "number wide-only" },
  { key: "started", label: "Age", value: (row) => row.started, class: "number age-column" },
];
const ORDER = ["running", "crashed", "failed", "unreadable", "stopped", "finished"];
// The runs of a study have its page, and a filter of their own.
const FILTERS = [
  ["all", "All", (row) => !row.isTrial],
  ["running", "Running", (row) => row.status === "running" && !row.isTrial],
  ["finished", "Finished", (row) => row.status === "finished" && !row.isTrial],
  ["stopped", "Stopped", (row) => row.status === "stopped" && !row.isTrial],
  ["bad", "Failed", (row) => ["failed", "crashed", "unreadable"].includes(row.status) && !row.isTrial],
  ["trials", "Trials", (row) => row.isTrial],
];

const chosen = new Set(); // kept while a run is open
const wantedTags = new Set();
let search = "";
let filter = "all";

export function listPage(main, signal) {
  const runs = new Map();
  const elements = new Map();
  let expected = null;
  document.title = "Runs · rekindle";

  const input = h("input", {
    type: "search",
    class: "search",
    id: "search",
    placeholder: "Search name, status, tag, setting …",
    "aria-label": "Search runs",
    value: search,
    oninput: (event) => {
      search = event.target.value;
      arrange();
    },
  });
  const filters = h("div", { class: "filters", role: "group", "aria-label": "Status" });
  const tags = h("div", { class: "filters tag-filters", role: "group", "aria-label": "Tags" });
  const compare = h("button", { type: "button", class: "button", id: "compare", onclick: openComparison });
  const clear = h("button", { type: "button", class: "button quiet", onclick: () => select([...chosen], false) }, "Clear");
  const all = h("input", { type: "checkbox", "aria-label": "Select all that are shown", onchange: (event) => select(visible(), event.target.checked) });
  const heads = new Map(COLUMNS.map((column) => [column.key, head(column)]));
  const body = h("tbody");
  const empty = h("div", { class: "empty" });
  const summary = h("span", { class: "muted", role: "status" });
  const studies = h("nav", { class: "studies", "aria-label": "Studies" });
  main.replaceChildren(h("div", { class: "page list" },
    h("div", { class: "toolbar" },
      h("label", { class: "searchbox" }, icon("search"), input, h("kbd", {}, "/")), filters, h("span", { class: "spring" }), summary, clear, compare),
    tags,
    studies,
    h("div", { class: "scroll runs-scroll" },
      h("table", { class: "runs" }, h("thead", {}, h("tr", {}, h("th", { class: "check" }, all), ...heads.values())), body)),
    empty));

  function head(column) {
    const cell = h("th", { scope: "col", class: column.class ?? "" });
    if (!column.value) {
      cell.append(column.label);
      return cell;
    }
    cell.append(h("button", {
      type: "button",
      onclick: () => {
        const isSame = settings.sort === column.key;
        remember({ sort: column.key, descending: isSame ? !settings.descending : column.class?.includes("number") ?? false });
        arrange();
      },
    }, column.label));
    return cell;
  }

  function draw(row) {
    const element = elements.get(row.id) ?? h("tr", { data: { id: row.id }, tabIndex: -1 });
    const box = h("input", { type: "checkbox", checked: chosen.has(row.id), "aria-label": `Select ${row.name} ${row.run_id}`, tabIndex: -1, onchange: (event) => select([row.id], event.target.checked) });
    element.className = row.status === "running" ? "is-live" : "";
    element.replaceChildren(
      h("td", { class: "check" }, box),
      h("td", { class: "name" }, h("a", { href: address(row.id), tabIndex: -1, title: row.id }, h("b", {}, row.name), h("span", { class: "mono" }, [row.version, row.run_id].filter(Boolean).join(" / "))), tagList(row.tags)),
      h("td", { class: "state" }, status(row.status), row.problem ? h("span", { class: "damage", title: row.problem, "aria-label": row.problem }, icon("warning")) : null),
      h("td", { class: "about-column", title: Object.entries(row.settings).map(([name, value]) => `${name}: ${value}`).join("\n") }, about(row)),
      h("td", { class: "spark" }, spark(row.spark)),
      h("td", { class: "number strong", title: bestTitle(row.best_return) }, best(row.best_return), row.best_return?.of === "episode" ? h("sup", {}, "*") : null),
      h("td", { class: "number wider" }, decimal(row.mean_return)),
      h("td", { class: "number", title: count(row.steps) }, compact(row.steps)),
      h("td", { class: "number wide-only", title: count(row.episodes) }, compact(row.episodes)),
      h("td", { class: "number wide-only" }, String(row.seed ?? "–")),
      h("td", { class: "number wide-only", title: moment(row.updated), data: { since: row.updated ?? "" } }, age(row.updated)),
      h("td", { class: "number age-column", title: moment(row.started), data: { since: row.started ?? "" } }, age(row.started)));
    elements.set(row.id, element);
  }

  function arrange() {
    const words = search.toLowerCase().split(/\s+/).filter(Boolean);
    const test = FILTERS.find(([key]) => key === filter)[2];
    const found = [...runs.values()].filter((row) => words.every((word) => row.text.includes(word)));
    const matching = found.filter((row) => [...wantedTags].every((tag) => row.tags.includes(tag)));
    tags.replaceChildren(...tagChips(found.filter((row) => !row.isTrial), wantedTags, (tag) => {
      if (!wantedTags.delete(tag)) wantedTags.add(tag);
      arrange();
    }));
    const shown = matching.filter(test);
    const column = COLUMNS.find((other) => other.key === settings.sort) ?? COLUMNS.at(-1);
    const direction = settings.descending ? -1 : 1;
    const keyed = shown.map((row) => [column.value(row), row]);
    keyed.sort(([a, left], [b, right]) => {
      const isMissing = (a === null || a === undefined) - (b === null || b === undefined);
      if (isMissing) return isMissing;
      const order = typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b;
      return direction * order || (left.id < right.id ? 1 : -1);
    });
    const wanted = keyed.map(([, row]) => elements.get(row.id));
    if (wanted.length !== body.children.length || wanted.some((element, index) => body.children[index] !== element)) {
      const focused = document.activeElement;
      body.replaceChildren(...wanted);
      if (body.contains(focused)) focused.focus({ preventScroll: true });
    }
    if (wanted.length && !body.querySelector("tr[tabindex='0']")) wanted[0].tabIndex = 0;
    for (const [key, cell] of heads) {
      const isSorted = key === settings.sort;
      cell.setAttribute("aria-sort", isSorted ? (settings.descending ? "descending" : "ascending") : "none");
    }
    filters.replaceChildren(...FILTERS.map(([key, label, of]) => {
      const number = matching.filter(of).length;
      return h("button", {
        type: "button",
        class: `chip ${key}`,
        "aria-pressed": String(filter === key),
        hidden: number === 0 && key !== "all" && filter !== key,
        onclick: () => {
          filter = key;
          arrange();
        },
      }, label, h("span", {}, count(number)));
    }));
    const loading = expected !== null && runs.size < expected;
    summary.textContent = loading ? `reading ${count(runs.size)} of ${count(expected)} …` : "";
    showEmpty(shown.length, loading);
    showChosen();
  }

  function showEmpty(number, loading) {
    empty.hidden = number > 0;
    body.closest("table").hidden = number === 0;
    if (number > 0) return;
    if (expected === null || loading) empty.replaceChildren(h("p", {}, "Looking for runs …"));
    else if (runs.size > 0) empty.replaceChildren(h("p", {}, "No run matches."), h("button", { type: "button", class: "button", onclick: () => { search = input.value = ""; filter = "all"; wantedTags.clear(); arrange(); } }, "Show all"));
    else {
      empty.replaceChildren(
        h("h2", {}, "No runs here yet"),
        h("p", {}, "Start a training, and it appears here. A run is a directory ", h("code", {}, "name/version/date_time"), " with a ", h("code", {}, "metadata.json"), "."),
        h("p", { class: "muted" }, "Are your runs somewhere else? Start ", h("code", {}, "rekindle dashboard DIR"), "."));
    }
  }

  function visible() {
    return [...body.children].map((element) => element.dataset.id);
  }

  function select(ids, isChosen) {
    for (const id of ids) {
      if (isChosen) chosen.add(id);
      else chosen.delete(id);
      const box = elements.get(id)?.querySelector("input");
      if (box) box.checked = isChosen;
    }
    showChosen();
  }

  function showChosen() {
    const shown = visible();
    compare.disabled = chosen.size < 1;
    compare.className = chosen.size ? "button primary" : "button";
    compare.textContent = chosen.size ? `Compare ${count(chosen.size)}` : "Compare";
    compare.title = chosen.size ? "" : "Select runs first";
    clear.hidden = chosen.size === 0;
    all.checked = shown.length > 0 && shown.every((id) => chosen.has(id));
    all.indeterminate = !all.checked && shown.some((id) => chosen.has(id));
  }

  function openComparison() {
    if (chosen.size) location.hash = `#/compare/${[...chosen].slice(0, 100).map(encodeURIComponent).join(",")}`;
  }

  body.addEventListener("click", (event) => {
    const line = event.target.closest("tr");
    if (line && !event.target.closest("a, input, .check") && !getSelection()?.toString()) location.hash = address(line.dataset.id);
  });
  body.addEventListener("focusin", (event) => {
    const line = event.target.closest("tr");
    for (const other of body.querySelectorAll("tr[tabindex='0']")) other.tabIndex = -1;
    if (line) line.tabIndex = 0;
  });

  let studyIds = [];
  function isTrial(row) {
    return studyIds.some((id) => row.id.startsWith(`${id}/`));
  }

  open("/api/list", (message) => {
    expected = message.count;
    for (const id of message.gone) {
      runs.delete(id);
      elements.get(id)?.remove();
      elements.delete(id);
      chosen.delete(id);
    }
    for (const row of message.runs) {
      row.text = [row.id, row.name, row.status, about(row), ...row.tags, ...Object.entries(row.settings).flat()].join(" ").toLowerCase();
      runs.set(row.id, row);
      row.isTrial = isTrial(row);
      draw(row);
    }
    arrange();
  }, signal);

  watchStudies(studies, signal, (found) => {
    studyIds = found.map((study) => study.id);
    for (const row of runs.values()) row.isTrial = isTrial(row);
    arrange();
  });

  const timer = setInterval(() => {
    for (const cell of body.querySelectorAll("[data-since]")) if (cell.dataset.since) cell.textContent = age(Number(cell.dataset.since));
  }, 10_000);
  signal.addEventListener("abort", () => clearInterval(timer));

  return (event) => {
    const lines = [...body.children];
    const current = document.activeElement?.closest?.("tr");
    const at = lines.indexOf(current);
    const move = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 }[event.key];
    if (move !== undefined && lines.length) {
      const next = lines[Math.max(0, Math.min(lines.length - 1, at < 0 ? 0 : at + move))];
      next.focus();
      next.scrollIntoView({ block: "nearest" });
    } else if (event.key === "Home" && at >= 0) lines[0].focus();
    else if (event.key === "End" && at >= 0) lines.at(-1).focus();
    else if (event.key === "Enter" && at >= 0) location.hash = address(current.dataset.id);
    else if (event.key === "x" && at >= 0) select([current.dataset.id], !chosen.has(current.dataset.id));
    else if (event.key === "c" && chosen.size) openComparison();
    else if (event.key === "/") {
      input.focus();
      input.select();
    } else if (event.key === "Escape" && chosen.size) select([...chosen], false);
    else return false;
    event.preventDefault();
    return true;
  };
}

function address(id) {
  return `#/run/${encodeURIComponent(id)}`;
}

function about(row) {
  return [row.algorithm, row.environment].filter(Boolean).join(" · ");
}

function bestTitle(value) {
  if (!value) return "";
  const step = value.step === null ? "" : ` at step ${count(value.step)}`;
  return `${value.of === "evaluation" ? "best evaluation" : "best training episode: the run has no evaluations"}${step}${value.at_least ? "; only a part of the log was searched" : ""}`;
}

export function spark(values) {
  const known = values.filter((value) => value !== null);
  if (known.length < 2) return svg("svg", { class: "sparkline", viewBox: "0 0 100 24", "aria-hidden": "true" });
  const low = Math.min(...known);
  const high = Math.max(...known);
  const place = (value, index) => `${((100 * index) / (values.length - 1)).toFixed(1)},${(21 - (18 * (value - low)) / (high - low || 1)).toFixed(1)}`;
  const points = values.map((value, index) => (value === null ? null : place(value, index))).filter(Boolean);
  return svg("svg", { class: "sparkline", viewBox: "0 0 100 24", preserveAspectRatio: "none", role: "img", "aria-label": `return from ${decimal(known[0])} to ${decimal(known.at(-1))}` },
    svg("polyline", { points: `0,24 ${points.join(" ")} 100,24`, class: "area" }), svg("polyline", { points: points.join(" ") }));
}
