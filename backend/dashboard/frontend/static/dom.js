// Builds the page's elements. Text from the service only ever becomes text nodes and plain attributes.

import { STATES, whole } from "./format.js";

const PROPERTIES = new Set(["checked", "disabled", "value", "hidden", "open", "indeterminate"]);

export function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "vars") for (const [key, one] of Object.entries(value)) element.style.setProperty(key, one);
    else if (PROPERTIES.has(name)) element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  return fill(element, ...children);
}

export function fill(element, ...children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

export function replace(element, ...children) {
  element.replaceChildren();
  return fill(element, ...children);
}

// The same for what is drawn again and again: what has the keyboard keeps it, by its id.
export function redraw(element, ...children) {
  const focused = element.contains(document.activeElement) ? document.activeElement.id : "";
  replace(element, ...children);
  if (focused) document.getElementById(focused)?.focus();
}

// A table that may be wider than a phone; the keyboard scrolls it, too.
export const scroll = (label, ...children) => h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label, id: `scroll-${label}` }, ...children);

export const table = (label, heads, rows) => scroll(label, h("table", null,
  h("thead", null, h("tr", null, heads.map((name) => h("th", { scope: "col" }, name)))), h("tbody", null, rows)));
export const cells = (...values) => h("tr", null, values.map((value) => h("td", null, value)));

export const state = (name) => h("span", { class: `state ${name}` }, STATES[name] ?? name);

export function progress(step, steps) {
  return h("div", { class: "progress" },
    h("progress", { max: steps || 1, value: step, "aria-label": `step ${step} of ${steps}` }),
    h("span", { class: "small" }, `${whole(step)} / ${whole(steps)}`));
}

let toastTimer;

export function toast(text, isProblem = false) {
  const box = document.getElementById("toast");
  box.textContent = text;
  box.className = isProblem ? "shown bad" : "shown";
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => (box.className = ""), isProblem ? 9000 : 4000);
}

// Asks before something happens that cannot be undone, with fields if it needs any; resolves to whether it may.
export function confirmed(question, explanation, action, fields = null) {
  return new Promise((resolve) => {
    const answer = (value) => {
      dialog.close();
      dialog.remove();
      resolve(value);
    };
    const dialog = h("dialog", { "aria-label": question, oncancel: () => answer(false) },
      h("h2", null, question),
      h("p", null, explanation), fields,
      h("div", { class: "buttons" },
        h("button", { type: "button", onclick: () => answer(false) }, "Keep as it is"),
        h("button", { type: "button", class: "danger", onclick: () => answer(true) }, action)));
    document.body.append(dialog);
    dialog.showModal();
  });
}

export function problem(error) {
  return h("div", { class: "problem", role: "alert" },
    h("p", null, error.message),
    error.hint ? h("p", { class: "quiet" }, error.hint) : null);
}

export const canAct = () => document.body.dataset.readOnly !== "yes";
