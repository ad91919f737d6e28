// Families of runs: the tree of forks, and the command that makes another one.

import { h, status } from "./dom.js";
import { compact, count, decimal } from "./format.js";

export function familyTree(details) {
  const { family, id } = details;
  if (!family.length) return null;
  const children = (parent) => family.filter((run) => run.parent === parent);
  const branch = (run) => {
    const inner = children(run.id);
    return h("li", { "aria-current": run.id === id ? "true" : null },
      h("span", { class: "relative" },
        run.id === id
          ? h("b", { class: "mono" }, `${run.name} ${run.run_id}`)
          : h("a", { class: "mono", href: `#/run/${encodeURIComponent(run.id)}` }, `${run.name} ${run.run_id}`),
        status(run.status),
        h("span", { class: "muted" }, [
          origin(run),
          run.steps === null ? null : `${compact(run.steps)} steps`,
          run.best === null ? null : `best ${decimal(run.best)}`,
        ].filter(Boolean).join(" · ")),
        run.origin?.changes.map((change) => h("span", { class: "tag change" }, change))),
      inner.length ? h("ul", {}, inner.map(branch)) : null);
  };
  return h("ul", { class: "family" }, children(null).map(branch));
}

function origin(run) {
  if (!run.origin) return null;
  const from = run.parent === null ? ` of ${run.origin.run}` : "";
  const step = run.origin.step === null ? "" : ` at step ${count(run.origin.step)}`;
  return run.origin.kind === "fork" ? `fork${from}${step}` : `weights${from}${step}`;
}

// A dialog with the command; `ask(step)` opens it for a checkpoint.
export function forkDialog(details) {
  const command = h("code", { class: "command", tabIndex: 0 });
  const copy = h("button", { type: "button", class: "button", onclick: write }, "Copy");
  const dialog = h("dialog", { class: "dialog fork", "aria-labelledby": "fork-title" },
    h("h2", { id: "fork-title" }, "Fork from here"),
    h("p", {}, "A new run that continues from this checkpoint, with everything in it. Add the settings to change, such as ",
      h("code", {}, "--agent.learning-rate 1e-4"), "."),
    command,
    h("div", { class: "buttons" }, h("button", { type: "button", class: "button", onclick: () => dialog.close() }, "Close"), copy));
  async function write() {
    try {
      await navigator.clipboard.writeText(command.textContent);
      copy.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(command); // without permission, mark it to be copied by hand
    }
  }
  function ask(step) {
    const { path, row } = details();
    command.textContent = `rekindle fork ${quoted(`${path}@${step}`)} -o ${quoted(`${row.name}-fork`)}`;
    copy.textContent = "Copy";
    dialog.showModal();
  }
  return { dialog, ask };
}

function quoted(word) {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}
