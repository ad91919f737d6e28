// Settings stored in the browser: how charts are drawn, how the list is sorted, the theme.

const KEY = "rekindle";
const DEFAULTS = {
  theme: "auto",
  axis: "step",
  smoothing: 0.9,
  log: false,
  band: true,
  sort: "started",
  descending: true,
  group: "version",
  spread: "range",
};

function load() {
  try {
    return { ...DEFAULTS, ...JSON.parse(localStorage.getItem(KEY) ?? "{}") };
  } catch {
    return { ...DEFAULTS };
  }
}

export const settings = load();

export function remember(changes) {
  Object.assign(settings, changes);
  try {
    localStorage.setItem(KEY, JSON.stringify(settings));
  } catch {
    // The page also works in a browser that stores nothing.
  }
}

const dark = matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set();

export function onTheme(listener, signal) {
  listeners.add(listener);
  signal.addEventListener("abort", () => listeners.delete(listener));
}

export function applyTheme() {
  const isDark = settings.theme === "dark" || (settings.theme === "auto" && dark.matches);
  document.documentElement.dataset.theme = isDark ? "dark" : "light";
  for (const listener of listeners) listener();
}

dark.addEventListener("change", applyTheme);
