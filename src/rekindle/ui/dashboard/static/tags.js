// Tags of runs: shown, filtered by in the list, and edited on the page of a run.

import { h, icon } from "./dom.js";
import { count } from "./format.js";
import { changeTags } from "./stream.js";

const MOST_SHOWN = 12;

export function tagList(tags) {
  return tags.length ? h("span", { class: "tags" }, tags.map((tag) => h("span", { class: "tag own" }, tag))) : null;
}

// Chips for the most frequent tags of the runs; chosen ones are always shown.
export function tagChips(rows, chosen, toggle) {
  const found = new Map([...chosen].map((tag) => [tag, 0]));
  for (const row of rows) for (const tag of row.tags) found.set(tag, (found.get(tag) ?? 0) + 1);
  const sorted = [...found].sort(([left, a], [right, b]) => b - a || left.localeCompare(right, "en", { numeric: true }));
  const shown = sorted.filter(([tag], index) => index < MOST_SHOWN || chosen.has(tag));
  return shown.map(([tag, number]) => h("button", {
    type: "button",
    class: "chip tag-chip",
    title: `Runs with the tag “${tag}”`,
    "aria-pressed": String(chosen.has(tag)),
    onclick: () => toggle(tag),
  }, tag, h("span", {}, count(number))));
}

// The tags of one run, each with a button that removes it, and a field for new ones.
export function tagEditor(id, signal) {
  let tags = [];
  const list = h("span", { class: "tags" });
  const problem = h("span", { class: "problem", role: "alert", hidden: true });
  const input = h("input", { type: "text", class: "new-tag", id: "new-tag", placeholder: "Add a tag", "aria-label": "Add a tag", maxLength: 64, autocomplete: "off" });
  const element = h("div", { class: "tag-editor", "aria-label": "Tags", role: "group" }, list, input, problem);
  input.addEventListener("keydown", (event) => {
    event.stopPropagation(); // letters are shortcuts of the page
    if (event.key === "Escape") input.blur();
    if (event.key !== "Enter" && event.key !== ",") return;
    event.preventDefault();
    const text = input.value;
    const add = text.split(",").map((tag) => tag.trim()).filter(Boolean);
    if (!add.length) return;
    input.value = "";
    change({ add }).then((isDone) => { if (!isDone && !input.value) input.value = text; });
  });

  // One change after the other, so that the answer to the last one is shown last.
  let last = Promise.resolve();
  function change(changes) {
    last = last.then(() => send(changes));
    return last;
  }

  async function send(changes) {
    problem.hidden = true;
    try {
      show(await changeTags(id, changes));
      return true;
    } catch (error) {
      if (signal.aborted) return false;
      problem.textContent = error.message;
      problem.hidden = false;
      return false;
    }
  }

  function show(known) {
    if (list.children.length === known.length && known.every((tag, index) => tag === tags[index])) return;
    tags = known;
    list.replaceChildren(...tags.map((tag) => h("span", { class: "tag own" }, tag,
      h("button", { type: "button", title: `Remove ${tag}`, "aria-label": `Remove the tag ${tag}`, onclick: () => change({ remove: [tag] }) }, icon("close")))));
  }

  return { element, show };
}
