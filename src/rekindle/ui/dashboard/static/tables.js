// The rows of a run as sent by the server, and the data of its charts. Independent of the page.

export class LogTable {
  constructor() {
    this.total = 0;
    this.progress = 1;
    this.rows = [];
    this.steps = [];
    this.times = [];
    this.mean = new Map();
    this.least = new Map();
    this.most = new Map();
  }

  // Points after the first `keep` are dropped: they have changed, or a resume has removed them.
  take(message) {
    const { keep } = message;
    this.total = message.total;
    this.progress = message.progress;
    for (const name of ["rows", "steps", "times"]) {
      this[name].length = keep;
      extend(this[name], message[name]);
    }
    for (const part of ["mean", "least", "most"]) {
      const columns = this[part];
      for (const column of columns.values()) column.length = keep;
      for (const [name, values] of Object.entries(message[part])) {
        if (!columns.has(name)) columns.set(name, new Array(keep).fill(null));
        extend(columns.get(name), values);
      }
      for (const [name, column] of columns) {
        while (column.length < this.rows.length) column.push(null);
        if (keep === 0 && !(name in message[part])) columns.delete(name);
      }
    }
    return this;
  }
}

function extend(array, values) {
  for (const value of values) array.push(value);
}

// The data of a run: its logs, and a finer range of them while a chart is zoomed in.
export class RunTables {
  constructor() {
    this.logs = new Map();
    this.closer = null;
    this.started = null;
  }

  take(message) {
    if (!this.logs.has(message.log)) this.logs.set(message.log, new LogTable());
    this.logs.get(message.log).take(message);
  }

  zoom(messages) {
    this.closer = messages && new Map(messages.map((message) => [message.log, new LogTable().take(message)]));
  }

  table(log) {
    return this.closer?.get(log) ?? this.logs.get(log);
  }

  get progress() {
    return Math.min(1, ...[...this.logs.values()].map((table) => table.progress));
  }

  // The charts of this run: by name, the series of each log that belong together.
  charts() {
    const charts = new Map();
    const add = (chart, log, name, label) => {
      if (!charts.has(chart)) charts.set(chart, []);
      charts.get(chart).push({ log, name, label });
    };
    for (const [log, label] of [["train_episodes", "train"], ["eval_episodes", "eval"]]) {
      for (const name of this.logs.get(log)?.mean.keys() ?? []) add(`episode/${name}`, log, name, label);
    }
    for (const name of this.logs.get("metrics")?.mean.keys() ?? []) {
      const [prefix, ...rest] = name.split("/");
      const twin = charts.get(`episode/${rest.join("/")}`);
      const log = { episode: "train_episodes", eval: "eval_episodes" }[prefix];
      if (log && twin?.some((series) => series.log === log)) continue; // the episodes themselves are there
      add(name, "metrics", name, "");
    }
    return charts;
  }

  series(log, name, axis) {
    const table = this.table(log);
    if (!table?.mean.has(name)) return { x: [], mean: [], least: [], most: [] };
    return {
      x: axis === "step" ? table.steps : table.times.map((time) => time - (this.started ?? table.times[0])),
      mean: table.mean.get(name),
      least: table.least.get(name) ?? [],
      most: table.most.get(name) ?? [],
    };
  }

  names(log) {
    return [...(this.logs.get(log)?.mean.keys() ?? [])];
  }

  last(log, name) {
    const values = this.logs.get(log)?.mean.get(name) ?? [];
    for (let index = values.length - 1; index >= 0; index--) if (values[index] !== null) return values[index];
    return null;
  }

  // The best evaluation, or the best episode if there are no evaluations.
  best() {
    const greatest = (values) => values?.reduce((most, value) => (value !== null && (most === null || value > most) ? value : most), null) ?? null;
    const evaluation = greatest(this.logs.get("eval_episodes")?.mean.get("return"));
    if (evaluation !== null) return { value: evaluation, of: "evaluation" };
    const episode = greatest(this.logs.get("train_episodes")?.most.get("return"));
    return episode === null ? null : { value: episode, of: "episode" };
  }
}

// An exponential mean that starts at the first value, not at zero. It weights points by their distance on the
// screen, so that dense noise is smoothed and a few evaluations are unchanged.
export function smooth(x, values, weight) {
  if (weight <= 0 || x.length < 2) return values;
  const scale = 1000 / (x.at(-1) - x[0] || 1);
  let sum = 0;
  let share = 0;
  let last = x[0];
  return values.map((value, index) => {
    if (value === null) return null;
    const keep = Math.sqrt(weight) ** Math.max((x[index] - last) * scale, 1e-3);
    last = x[index];
    sum = sum * keep + value * (1 - keep);
    share = share * keep + (1 - keep);
    return sum / share;
  });
}

// Merge several x axes into one; null where a column has no value.
export function join(tables) {
  const at = tables.map(() => 0);
  const x = [];
  const columns = tables.map((table) => table.columns.map(() => []));
  for (;;) {
    let next = Infinity;
    tables.forEach((table, index) => {
      if (at[index] < table.x.length) next = Math.min(next, table.x[at[index]]);
    });
    if (next === Infinity) return [x, ...columns.flat()];
    x.push(next);
    tables.forEach((table, index) => {
      const isHere = at[index] < table.x.length && table.x[at[index]] === next;
      table.columns.forEach((column, number) => columns[index][number].push(isHere ? column[at[index]] ?? null : null));
      if (isHere) at[index]++;
    });
  }
}

// The mean of several curves and their spread on a grid, where at least half of them have values.
export function aggregate(curves, { points = 300, spread = "range" } = {}) {
  const known = curves
    .map(({ x, y }) => ({ x: x.filter((_, index) => y[index] !== null), y: y.filter((value) => value !== null) }))
    .filter((curve) => curve.x.length > 0);
  const x = [];
  const mean = [];
  const least = [];
  const most = [];
  if (known.length === 0) return { x, mean, least, most };
  const low = Math.min(...known.map((curve) => curve.x[0]));
  const high = Math.max(...known.map((curve) => curve.x.at(-1)));
  const total = high > low ? points : 1;
  const at = known.map(() => 0);
  for (let index = 0; index < total; index++) {
    const here = index === total - 1 ? high : low + ((high - low) * index) / (total - 1);
    const values = [];
    known.forEach((curve, number) => {
      while (at[number] + 1 < curve.x.length && curve.x[at[number] + 1] <= here) at[number]++;
      const value = between(curve, at[number], here);
      if (value !== null) values.push(value);
    });
    if (values.length * 2 < known.length) continue;
    const average = values.reduce((sum, value) => sum + value, 0) / values.length;
    const variance = values.reduce((sum, value) => sum + (value - average) ** 2, 0) / Math.max(1, values.length - 1);
    const deviation = Math.sqrt(variance);
    x.push(here);
    mean.push(average);
    least.push(spread === "range" ? Math.min(...values) : average - deviation);
    most.push(spread === "range" ? Math.max(...values) : average + deviation);
  }
  return { x, mean, least, most };
}

function between({ x, y }, index, here) {
  if (here < x[0] || here > x.at(-1)) return null;
  if (index + 1 >= x.length || x[index] === here) return y[index];
  const part = (here - x[index]) / (x[index + 1] - x[index]);
  return y[index] + part * (y[index + 1] - y[index]);
}
