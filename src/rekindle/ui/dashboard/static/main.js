// The page frame: routing, keys, theme, and the state of the connection.

import { comparePage } from "./compare.js";
import { h, icon } from "./dom.js";
import { listPage } from "./list.js";
import { runPage } from "./run.js";
import { studyPage } from "./study.js";
import { applyTheme, remember, settings } from "./settings.js";
import { connection, onConnection } from "./stream.js";

const main = document.getElementById("main");
const THEMES = { auto: "light", light: "dark", dark: "auto" };
let page = null;
let onKey = () => false;

applyTheme();
showBar();
onConnection(showLock);
addEventListener("hashchange", route);
addEventListener("keydown", key);
route();

function route() {
  const [kind, ...rest] = location.hash.replace(/^#\/?/, "").split("/");
  page?.abort();
  page = new AbortController();
  const text = rest.join("/");
  if (kind === "run" && text) onKey = runPage(main, decode(text), page.signal);
  else if (kind === "study" && text) onKey = studyPage(main, decode(text), page.signal);
  else if (kind === "compare" && text) onKey = comparePage(main, [...new Set(text.split(",").map(decode))], page.signal);
  else onKey = listPage(main, page.signal);
  scrollTo(0, 0);
}

// The token belongs to an earlier start of the server, or is missing; a link opened in another tab updates it here too.
function showLock(state) {
  const lock = document.getElementById("lock");
  if (state === "locked" && !lock) {
    main.replaceChildren(h("p", { class: "empty", id: "lock" }, "Open the link that rekindle dashboard printed: it carries the token that this page needs."));
  } else if (state === "live" && lock) {
    showRoot();
    route();
  }
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function showBar() {
  const root = h("span", { class: "root mono" });
  const lamp = h("span", { class: "lamp", role: "status" });
  const theme = h("button", { type: "button", class: "quiet", id: "theme", onclick: () => turn() });
  const help = helpDialog();
  function turn() {
    remember({ theme: THEMES[settings.theme] });
    applyTheme();
    showTheme();
  }
  function showTheme() {
    theme.replaceChildren(icon({ auto: "auto", light: "sun", dark: "moon" }[settings.theme]));
    theme.title = `Colours: ${settings.theme === "auto" ? "as the system" : settings.theme}`;
    theme.setAttribute("aria-label", theme.title);
  }
  function showLamp(state) {
    lamp.className = `lamp ${state}`;
    lamp.textContent = { live: "connected", connecting: "connecting", lost: "no answer; trying again", locked: "no token" }[state];
  }
  showTheme();
  showLamp(connection());
  onConnection(showLamp);
  const logo = h("img", { src: "/static/icon.svg", alt: "", width: 18, height: 18 });
  document.getElementById("bar").replaceChildren(
    h("a", { class: "brand", href: "#/" }, logo, "rekindle"), root, h("span", { class: "spring" }), lamp,
    h("button", { type: "button", class: "quiet", id: "help", title: "Keys", "aria-label": "Keys", onclick: () => help.showModal() }, "?"), theme, help);
  showRoot();
}

function showRoot() {
  const root = document.querySelector("#bar .root");
  fetch("/api/about").then((response) => response.json()).then((about) => {
    root.textContent = about.root;
    root.title = `rekindle ${about.version}`;
  }, () => {});
}

function helpDialog() {
  const keys = [
    ["/", "search"],
    ["j k", "next and previous run"],
    ["Enter", "open the run"],
    ["x", "select the run"],
    ["c", "compare the selected runs"],
    ["1 – 7", "tabs of a run"],
    ["t", "steps or time on the x axis"],
    ["s", "smoothing"],
    ["l", "logarithmic axis"],
    ["b", "range from minimum to maximum"],
    ["Esc", "back"],
    ["d", "dark or light"],
    ["?", "this list"],
  ];
  const dialog = h("dialog", { class: "dialog keys", "aria-labelledby": "keys-title" },
    h("h2", { id: "keys-title" }, "Keys"),
    h("dl", {}, keys.map(([name, what]) => h("div", {}, h("dt", {}, name.split(" ").map((part) => (part === "–" ? part : h("kbd", {}, part)))), h("dd", {}, what)))),
    h("p", { class: "muted" }, "Drag across a chart to look closer, double-click to see all of it again. A dashed line marks a resume."),
    h("div", { class: "buttons" }, h("button", { type: "button", class: "button", onclick: () => dialog.close() }, "Close")));
  return dialog;
}

function key(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const isTyping = event.target.matches?.("input:not([type=checkbox]):not([type=range]), select, textarea");
  if (isTyping) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (event.target.matches?.("[type=range]") && event.key.startsWith("Arrow")) return;
  if (event.key === "?") document.getElementById("help").click();
  else if (event.key === "d") document.getElementById("theme").click();
  else if (!(event.key === "Enter" && event.target.matches?.("button, a, summary"))) onKey(event);
}
