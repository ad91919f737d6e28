// Format numbers and times: few characters, digits of equal width.

const NOTHING = "–";

export function count(value) {
  return value === null || value === undefined ? NOTHING : Math.round(value).toLocaleString("en-US");
}

// A number in a few characters. With `spacing`, the distance between the ticks of an axis, it has the digits that tell ticks apart.
export function compact(value, spacing = 0) {
  if (value === null || value === undefined || !Number.isFinite(value)) return NOTHING;
  const size = Math.abs(value);
  const needed = size > 0 && spacing > 0 ? Math.floor(Math.log10(size)) - Math.floor(Math.log10(spacing)) + 2 : 0;
  const digits = Math.min(15, Math.max(3, needed));
  if (size >= 1e15) return scientific(value, digits);
  for (const [unit, scale] of [["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (size >= scale) return `${trimmed(value / scale, digits)}${unit}`;
  }
  return size !== 0 && size < 1e-3 ? scientific(value, needed ? digits : 2) : trimmed(value, digits);
}

function scientific(value, digits) {
  return Number(value.toPrecision(digits)).toExponential().replaceAll("-", "−").replace("e+", "e");
}

export function decimal(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return NOTHING;
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1e6 || size < 1e-3) return value.toExponential(2).replace("-", "−").replace("e+", "e");
  const digits = size >= 1000 ? 0 : size >= 100 ? 1 : size >= 1 ? 2 : 4;
  return value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits }).replace("-", "−");
}

function trimmed(value, digits) {
  return String(Number(value.toPrecision(digits))).replace("-", "−");
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return NOTHING;
  const s = Math.max(0, seconds);
  if (s < 60) return `${Math.floor(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  const [unit, length, smaller, part] = s < 86400 ? ["h", 3600, "min", 60] : ["d", 86400, "h", 3600];
  const rest = Math.floor((s % length) / part);
  return rest && s < 100 * length ? `${Math.floor(s / length)} ${unit} ${rest} ${smaller}` : `${Math.floor(s / length)} ${unit}`;
}

export function age(then, now = Date.now() / 1000) {
  if (then === null || then === undefined) return NOTHING;
  const text = duration(now - then);
  return text.split(" ").slice(0, 2).join(" ");
}

// A time since the start, in a unit that fits it or the distance of ticks on an axis.
export function clock(seconds, distance = Math.abs(seconds) / 2) {
  for (const [unit, length] of [["d", 86400], ["h", 3600], ["min", 60]]) {
    if (distance >= length) return `${trimmed(seconds / length, 3)} ${unit}`;
  }
  return `${trimmed(seconds, 3)} s`;
}

export function moment(seconds) {
  if (seconds === null || seconds === undefined) return NOTHING;
  const date = new Date(seconds * 1000);
  const pad = (value) => String(value).padStart(2, "0");
  return `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())} ` +
    `${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
}

export function bytes(size) {
  if (size < 1000) return `${size} B`;
  for (const [unit, scale] of [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
    if (size >= scale) return `${trimmed(size / scale, 3)} ${unit}`;
  }
  return NOTHING;
}

export function best(value) {
  if (!value) return NOTHING;
  return `${value.at_least ? "≥ " : ""}${decimal(value.value)}`;
}
