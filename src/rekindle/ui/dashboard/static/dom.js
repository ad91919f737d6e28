// Create elements from data. Text is only ever set as text, so that nothing in a run can become markup.

export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  apply(element, properties);
  return fill(element, ...children);
}

export function fill(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function apply(element, properties) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (name === "data") Object.assign(element.dataset, value);
    else if (name in element && name !== "list" && name !== "form") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
}

export function icon(name) {
  const paths = {
    close: "M4 4l8 8M12 4l-8 8",
    expand: "M9.500 2.500H13.500V6.500M13.500 2.500L9 7M6.500 13.500H2.500V9.500M2.500 13.500L7 9",
    search: "M7 12A5 5 0 1 0 7 2a5 5 0 0 0 0 10zM10.700 10.700L14 14",
    moon: "M13.500 9.800A6 6 0 0 1 6.200 2.500a6 6 0 1 0 7.300 7.300z",
    sun: "M8 5.200a2.800 2.800 0 1 0 0 5.600 2.800 2.800 0 0 0 0-5.600zM8 1v1.700M8 13.300V15M1 8h1.700M13.300 8H15M3 3l1.200 1.200M11.800 11.800L13 13M13 3l-1.200 1.200M4.200 11.800L3 13",
    auto: "M8 1.500a6.500 6.500 0 1 0 0 13 6.500 6.500 0 0 0 0-13zM8 1.500v13",
    warning: "M8 2L1.500 13.500h13zM8 6.500v3.500M8 11.800v.2",
    back: "M10 3L5 8l5 5",
  };
  return svg("svg", { class: "icon", viewBox: "0 0 16 16", "aria-hidden": "true" }, svg("path", { d: paths[name] }));
}

export function segmented(label, options, chosen, choose) {
  const group = h("div", { class: "segmented", role: "radiogroup", "aria-label": label });
  const buttons = options.map(([value, text, hint]) =>
    h("button", {
      type: "button",
      role: "radio",
      title: hint,
      data: { value },
      onclick: () => {
        mark(value);
        choose(value);
      },
    }, text));
  function mark(value) {
    for (const button of buttons) button.setAttribute("aria-checked", String(button.dataset.value === value));
  }
  mark(chosen);
  group.append(...buttons);
  return group;
}

export function status(name, { stopping = false } = {}) {
  const shown = stopping ? "stopping" : name;
  return h("span", { class: `status ${shown}` }, h("span", { class: "dot", "aria-hidden": "true" }), shown);
}
