// One chart: lines with bands from minimum to maximum, drawn only while it is visible.

import uPlot from "/static/vendor/uplot/uPlot.esm.js";
import { h, icon, svg } from "./dom.js";
import { clock, compact, count, decimal } from "./format.js";
import { saveCsv, savePng } from "./saving.js";
import { join, smooth } from "./tables.js";

const HEIGHT = 206;
const MOST_READ = 4; // with more lines, their values are shown only at the cursor, unless the chart is its own legend
const MOST_TIP = 16;

// Distinguishable for colour-blind people; the second line is for a dark background.
const COLOURS = {
  light: ["#2563c9", "#c8540a", "#0b7a6b", "#7c3fd0", "#b8286f", "#6b6a00", "#0c7fa8", "#8a4b2d", "#4d5560", "#a01d1d"],
  dark: ["#6ea8ff", "#ff9a57", "#3fcdb4", "#b99aff", "#ff86bd", "#d2cf5c", "#6fd2f5", "#d9a688", "#aab2bd", "#ff8585"],
};

// More lines than colours: the colours again, with other dashes.
const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3]];

// Steps between ticks that fall on whole seconds, minutes, hours and days.
const SECONDS = [0.001, 0.01, 0.1, 1, 2, 5, 10, 15, 30, ...[1, 2, 5, 10, 15, 30].map((minutes) => 60 * minutes),
  ...[1, 2, 3, 6, 12].map((hours) => 3600 * hours), ...[1, 2, 5, 10, 20, 50, 100].map((days) => 86400 * days)];

// On a logarithmic axis, one line for each power of ten is enough if there are several.
function decades(_, ticks) {
  const powers = ticks.map((tick) => (Number.isInteger(Math.round(1e6 * Math.log10(tick)) / 1e6) ? tick : null));
  return powers.filter((tick) => tick !== null).length > 1 ? powers : ticks;
}

function theme() {
  return document.documentElement.dataset.theme === "dark" ? "dark" : "light";
}

export function colour(index) {
  const colours = COLOURS[theme()];
  return colours[index % colours.length];
}

function dash(index) {
  return DASHES[Math.floor(index / COLOURS.light.length) % DASHES.length];
}

// A short piece of a line, for legends.
export function swatch(index) {
  const stroke = svg("line", { x1: 0, x2: 14, y1: 4, y2: 4, stroke: colour(index), "stroke-width": 3, "stroke-dasharray": dash(index).join(" ") });
  return svg("svg", { class: "swatch", viewBox: "0 0 14 8", "aria-hidden": "true" }, stroke);
}

function variable(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function faded(hex, alpha) {
  const part = (start) => parseInt(hex.slice(start, start + 2), 16);
  return `rgba(${part(1)}, ${part(3)}, ${part(5)}, ${alpha})`;
}

const seen = new IntersectionObserver((entries) => {
  for (const entry of entries) entry.target.chart.see(entry.isIntersecting);
}, { rootMargin: "200px" });

const sized = new ResizeObserver((entries) => {
  for (const entry of entries) entry.target.chart.fit();
});

export class Chart {
  constructor({ title, group, zoom }) {
    this.zoom = zoom;
    this.group = group;
    this.plot = null;
    this.shape = "";
    this.wanted = null;
    this.isSeen = false;
    this.readout = h("div", { class: "readout" });
    this.body = h("div", { class: "plot" });
    this.body.chart = this;
    this.title = title;
    this.tip = h("div", { class: "tip", hidden: true });
    const save = (kind, write) => h("button", { type: "button", class: "quiet save", title: `Save as ${kind}`, "aria-label": `Save ${title} as ${kind}`, onclick: () => this.data && write() }, kind);
    this.saves = [
      save("CSV", () => saveCsv(title, this.axisTitle(), this.wanted.lines, this.data)),
      save("PNG", () => this.plot && savePng(title, this.wanted.lines.map((line) => ({ label: line.label, stroke: colour(line.colour), dash: dash(line.colour) })), this.plot,
        { text: variable("--text"), ground: variable("--surface") })),
    ];
    this.expand = h("button", {
      type: "button",
      class: "quiet expand",
      title: "Wide",
      "aria-label": `Show ${title} wide`,
      "aria-pressed": "false",
      onclick: () => {
        const isWide = this.element.classList.toggle("wide");
        this.expand.setAttribute("aria-pressed", String(isWide));
        this.height = isWide ? 2 * HEIGHT : HEIGHT;
        this.fit();
      },
    }, icon("expand"));
    this.element = h("figure", { class: "chart", data: { title } },
      h("figcaption", {}, h("span", { class: "title", title }, title), this.saves, this.expand), this.readout, this.body);
    this.element.chart = this;
    this.height = HEIGHT;
    seen.observe(this.body);
    sized.observe(this.body);
  }

  close() {
    seen.unobserve(this.body);
    sized.unobserve(this.body);
    this.plot?.destroy();
    this.plot = null;
  }

  see(isSeen) {
    this.isSeen = isSeen;
    if (isSeen) this.draw();
  }

  fit() {
    const width = Math.floor(this.body.clientWidth);
    if (this.plot && width > 0) this.plot.setSize({ width, height: this.height });
  }

  axisTitle() {
    return this.wanted.axis === "step" ? this.wanted.unit ?? "env steps" : "time since the start";
  }

  // lines: [{label, colour, x, mean, least, most, hasBand, isSmooth}]
  update(wanted) {
    this.wanted = wanted;
    if (this.isSeen) this.draw();
  }

  draw() {
    const { wanted } = this;
    const width = Math.floor(this.body.clientWidth);
    if (!wanted || width === 0) return;
    const { lines, axis, log, band, smoothing } = wanted;
    const positive = (values) => (log ? values.map((value) => (value > 0 ? value : null)) : values);
    this.data = join(lines.map((line) => ({
      x: line.x,
      columns: [line.least, line.most, line.mean, line.isSmooth ? line.mean : smooth(line.x, line.mean, smoothing)].map(positive),
    })));
    const shape = JSON.stringify([this.axisTitle(), log, band, smoothing > 0, theme(), lines.map((line) => [line.label, line.colour])]);
    if (shape !== this.shape) {
      this.plot?.destroy();
      this.plot = new uPlot(this.options(width), this.data, this.body);
      this.plot.over.append(this.tip);
      this.shape = shape;
    } else {
      this.plot.setData(this.data);
    }
    this.read();
  }

  options(width) {
    const { lines, axis, log, band, smoothing } = this.wanted;
    const text = variable("--faint");
    const grid = { stroke: variable("--line-soft"), width: 1, ...(log ? { filter: decades } : {}) };
    const font = "11px system-ui, sans-serif";
    const hidden = { stroke: "transparent", width: 0, spanGaps: true, points: { show: false } };
    const series = lines.flatMap((line) => {
      const stroke = colour(line.colour);
      const isSparse = line.x.length < 40;
      const raw = { ...hidden, stroke: faded(stroke, smoothing > 0 && !line.isSmooth ? 0.22 : 0), width: smoothing > 0 && !line.isSmooth ? 1 : 0 };
      const points = { show: isSparse, size: 4, stroke, fill: stroke };
      return [hidden, hidden, raw, { label: line.label, stroke, dash: dash(line.colour), width: 1.5, spanGaps: true, points }];
    });
    const bands = lines.flatMap((line, index) =>
      band || line.hasBand
        ? [{ series: [4 * index + 2, 4 * index + 1], fill: faded(colour(line.colour), line.hasBand ? 0.16 : 0.1) }]
        : []);
    return {
      width,
      height: this.height,
      padding: [10, 22, 0, 0],
      legend: { show: false },
      series: [{}, ...series],
      bands,
      scales: {
        x: { time: false, range: (_, low, high) => this.wanted.range ?? padded(low, high) },
        y: { distr: log ? 3 : 1, range: log ? undefined : (_, low, high) => roomy(low, high) },
      },
      axes: [
        { stroke: text, grid: { show: false }, ticks: { stroke: grid.stroke, size: 4 }, font, size: 22, space: 70,
          label: this.axisTitle(), labelFont: font, labelSize: 16, labelGap: 0,
          ...(axis === "step" ? {} : { incrs: SECONDS }),
          values: (_, ticks) => ticks.map((tick) => (axis === "step" ? compact(tick, ticks[1] - ticks[0]) : clock(tick, ticks[1] - ticks[0]))) },
        { stroke: text, grid, ticks: { show: false }, font, space: 32, gap: 6,
          size: (_, labels) => Math.max(50, 14 + 6.5 * Math.max(...(labels ?? []).map((label) => label.length))),
          values: (_, ticks, __, ___, spacing) => ticks.map((tick) => (tick === null ? "" : compact(tick, log ? 0 : spacing))) },
      ],
      cursor: {
        y: false,
        points: { size: 6, width: 1, fill: (plot, index) => plot.series[index].stroke(plot, index), show: (plot, index) => index % 4 === 0 && cursorPoint(plot, index) },
        drag: { x: true, y: false, setScale: false, dist: 6 },
        sync: { key: this.group, setSeries: false, filters: { pub: (type) => type === "mousemove" || type === "mouseleave" } },
        bind: { dblclick: () => () => this.zoom(null) },
        dataIdx: (plot, index, nearest) => (index % 4 === 0 && index > 0 ? nearestValue(plot.data[index], nearest) : nearest),
      },
      hooks: {
        setCursor: [() => this.read()],
        setSelect: [(plot) => this.select(plot)],
        drawClear: [(plot) => this.mark(plot)],
      },
    };
  }

  select(plot) {
    const { left, width } = plot.select;
    if (width < 6) return;
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.zoom([plot.posToVal(left, "x"), plot.posToVal(left + width, "x")]);
  }

  // A thin line for each resume.
  mark(plot) {
    const { ctx } = plot;
    const { left, top, width, height } = plot.bbox;
    ctx.save();
    ctx.strokeStyle = variable("--line-strong");
    ctx.setLineDash([3, 3]);
    ctx.lineWidth = devicePixelRatio;
    for (const at of this.wanted.marks ?? []) {
      const x = Math.round(plot.valToPos(at, "x", true));
      if (x < left || x > left + width) continue;
      ctx.beginPath();
      ctx.moveTo(x, top);
      ctx.lineTo(x, top + height);
      ctx.stroke();
    }
    ctx.restore();
  }

  // The values under the cursor, or the newest values.
  read() {
    const { lines, axis, isNamed, isLegend } = this.wanted;
    const cursor = this.plot?.cursor;
    const isAt = cursor && cursor.idx !== null && cursor.idx !== undefined && cursor.left >= 0;
    const x = isAt ? this.data[0][cursor.idx] : null;
    const where = x === null || x === undefined ? "" : axis === "step" ? `step ${count(x)}` : clock(x);
    const isShort = lines.length <= MOST_READ || isLegend;
    const values = !isShort && !isAt ? [] : lines.map((line, index) => {
      const column = this.data[4 * index + 4];
      const found = isAt ? nearestValue(column, cursor.idx) : lastValue(column);
      return { line, value: found === null ? null : column[found] };
    });
    const shown = ({ line, value }) => h("span", { class: "value" }, swatch(line.colour), isNamed && line.label ? h("span", { class: "label", title: line.label }, line.short ?? line.label) : null, h("b", {}, decimal(value)));
    this.readout.replaceChildren(...(isShort ? values.map(shown) : []), h("span", { class: "where" }, where));
    this.tip.hidden = isShort || !isAt || !this.body.matches(":hover"); // not where the cursor only follows another chart
    if (this.tip.hidden) return;
    values.sort((a, b) => (b.value ?? -Infinity) - (a.value ?? -Infinity));
    const rest = values.length - MOST_TIP;
    this.tip.replaceChildren(...values.slice(0, MOST_TIP).map(shown), ...(rest > 0 ? [h("span", { class: "where" }, `and ${rest} more`)] : []));
    this.tip.classList.toggle("left", cursor.left > this.plot.over.clientWidth / 2);
  }
}

function cursorPoint(plot, index) {
  const point = document.createElement("div");
  point.style.background = plot.series[index].stroke(plot, index);
  return point;
}

// The range of the vertical axis, with room above and below the lines; also for a line that is constant.
function roomy(low, high) {
  if (low === null) return [0, 1];
  if (high - low <= 1e-12 * Math.max(Math.abs(low), Math.abs(high))) {
    const around = Math.abs(low) / 2 || 1;
    [low, high] = [low - around, high + around];
  }
  const room = 0.07 * (high - low);
  // A line that ends at 0 stays on the axis.
  return [low >= 0 && low < 2 * room ? 0 : low - room, high <= 0 && high > -2 * room ? 0 : high + room];
}

function padded(low, high) {
  if (low === null) return [0, 1];
  return low === high ? [low - 0.5, high + 0.5] : [low, high];
}

function lastValue(column) {
  for (let index = column.length - 1; index >= 0; index--) if (column[index] !== null) return index;
  return null;
}

function nearestValue(column, index) {
  for (let away = 0; away < column.length; away++) {
    if (column[index - away] !== null && column[index - away] !== undefined) return index - away;
    if (column[index + away] !== null && column[index + away] !== undefined) return index + away;
  }
  return null;
}
