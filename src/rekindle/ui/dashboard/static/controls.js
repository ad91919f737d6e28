// Shared by the run page and the comparison: chart settings, and the grid of charts.

import { Chart } from "./chart.js";
import { h, icon, segmented } from "./dom.js";
import { onTheme, remember, settings } from "./settings.js";

// Returns come first, then lengths, then the rest by name.
function rank(name) {
  const place = ["episode/return", "episode/return (eval)", "episode/length", "episode/length (eval)"].indexOf(name);
  return place >= 0 ? ` ${place}` : name;
}

// What the steps of these runs are.
export function unit(details) {
  const units = new Set(details.map((one) => one?.metadata?.step_unit ?? "env steps"));
  return units.size === 1 ? [...units][0] : "env steps or updates";
}

export class ChartGrid {
  // source: {charts() -> Map(name -> series), lines(series) -> lines, unit() -> text, marks() -> numbers, closer(range) -> Promise}
  constructor(source, signal, { extra = [] } = {}) {
    this.source = source;
    this.signal = signal;
    this.charts = new Map();
    this.range = null;
    this.filter = "";
    this.group = `charts-${Math.random()}`;
    this.grid = h("div", { class: "sections" });
    this.empty = h("p", { class: "empty", hidden: true });
    this.reset = h("button", { type: "button", class: "button", hidden: true, onclick: () => this.zoom(null) }, icon("close"), "Reset zoom");
    this.search = h("input", {
      type: "search",
      class: "filter",
      placeholder: "Filter metrics",
      "aria-label": "Filter metrics",
      oninput: (event) => {
        this.filter = event.target.value.toLowerCase();
        this.update();
      },
    });
    const amount = h("output", { class: "amount" }, settings.smoothing.toFixed(2));
    this.slider = h("input", {
      type: "range",
      min: 0,
      max: 0.99,
      step: 0.01,
      "aria-label": "Smoothing",
      oninput: (event) => {
        amount.value = Number(event.target.value).toFixed(2);
        this.change({ smoothing: Number(event.target.value) });
      },
    });
    this.slider.value = settings.smoothing;
    const toggle = (name, label, title) => {
      const button = h("button", {
        type: "button",
        class: "button toggle",
        title,
        "aria-pressed": String(settings[name]),
        data: { toggle: name },
        onclick: () => {
          this.change({ [name]: !settings[name] });
          button.setAttribute("aria-pressed", String(settings[name]));
        },
      }, label);
      return button;
    };
    this.toolbar = h("div", { class: "toolbar charts" },
      segmented("Horizontal axis", [["step", "Steps", "By env steps, or by updates if a run learns from data alone"], ["time", "Time", "By time since the start"]], settings.axis, (axis) => {
        this.range = null;
        this.change({ axis });
        this.zoom(null);
      }),
      h("label", { class: "slider" }, h("span", {}, "Smooth"), this.slider, amount),
      toggle("log", "Log", "Logarithmic vertical axis"),
      toggle("band", "Range", "Range from minimum to maximum around each mean"),
      extra,
      h("span", { class: "spring" }),
      this.reset,
      this.search);
    this.element = h("div", {}, this.toolbar, this.empty, this.grid);
    onTheme(() => this.update(), signal);
    signal.addEventListener("abort", () => {
      for (const chart of this.charts.values()) chart.close();
    });
  }

  change(changes) {
    remember(changes);
    this.update();
  }

  async zoom(range) {
    this.range = range;
    this.reset.hidden = range === null;
    if (range === null) {
      this.source.closer(null);
      this.update();
      return;
    }
    this.update();
    await this.source.closer(range);
    if (this.range === range) this.update();
  }

  key(event) {
    if (event.key === "Escape" && this.range) this.zoom(null);
    else if (event.key === "l") this.toolbar.querySelector("[data-toggle=log]").click();
    else if (event.key === "b") this.toolbar.querySelector("[data-toggle=band]").click();
    else if (event.key === "t") this.toolbar.querySelector(`[role=radio][data-value=${settings.axis === "step" ? "time" : "step"}]`).click();
    else if (event.key === "s") this.slider.focus();
    else if (event.key === "/") this.search.focus();
    else return false;
    event.preventDefault();
    return true;
  }

  update() {
    const wanted = this.source.charts();
    for (const [name, chart] of this.charts) {
      if (!wanted.has(name)) {
        chart.close();
        chart.element.remove();
        this.charts.delete(name);
      }
    }
    let shown = 0;
    for (const [name, series] of wanted) {
      if (!this.charts.has(name)) this.add(name);
      const chart = this.charts.get(name);
      chart.element.hidden = !name.toLowerCase().includes(this.filter);
      shown += chart.element.hidden ? 0 : 1;
      if (!chart.element.hidden) {
        chart.update({
          lines: this.source.lines(series),
          isNamed: this.source.isNamed,
          unit: this.source.unit(),
          marks: this.source.marks(),
          range: this.range,
          axis: settings.axis,
          log: settings.log,
          band: settings.band,
          smoothing: settings.smoothing,
        });
      }
    }
    for (const section of this.grid.children) {
      section.hidden = ![...section.querySelectorAll(".chart")].some((chart) => !chart.hidden);
    }
    this.empty.hidden = shown > 0;
    this.empty.textContent = wanted.size === 0 ? this.source.nothing() : `No metric has “${this.filter}” in its name.`;
  }

  add(name) {
    const prefix = name.includes("/") ? name.slice(0, name.indexOf("/")) : "other";
    let section = [...this.grid.children].find((other) => other.dataset.prefix === prefix);
    if (!section) {
      section = h("details", { class: "section", open: true, data: { prefix } },
        h("summary", {}, { episode: "Episodes", agent: "Agent", time: "Time", train: "Training", eval: "Evaluation" }[prefix] ?? prefix),
        h("div", { class: "grid" }));
      const order = (element) => ["episode", "eval", "agent", "train"].indexOf(element.dataset.prefix) + 1 || (element.dataset.prefix === "time" ? 99 : 50);
      const after = [...this.grid.children].find((other) => order(other) > order(section));
      this.grid.insertBefore(section, after ?? null);
    }
    const chart = new Chart({ title: name.startsWith(`${prefix}/`) ? name.slice(prefix.length + 1) : name, group: this.group, zoom: (range) => this.zoom(range) });
    chart.element.dataset.metric = name;
    this.charts.set(name, chart);
    const grid = section.lastElementChild;
    const next = [...grid.children].find((other) => rank(other.dataset.metric) > rank(name));
    grid.insertBefore(chart.element, next ?? null);
  }
}
