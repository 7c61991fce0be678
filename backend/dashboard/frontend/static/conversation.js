// What was said in an episode, whole: thoughts, tool calls and their outputs, images in place.

import { h } from "./dom.js";
import { whole } from "./format.js";

const LONG = 6000;
const WRITTEN = ["think", "tool_call"]; // marks that are a policy's own

// A long text is folded, and says how much of it is not shown.
export function long(text, className = "") {
  const box = h("div", { class: `said ${className}` });
  if (text.length <= LONG) return append(box, text);
  append(box, text.slice(0, LONG));
  const more = h("button", { type: "button", class: "plain show-all", onclick: () => { more.remove(); box.replaceChildren(); append(box, text); } }, `Show all (${whole(text.length - LONG)} more characters)`);
  more.whole = text; // for exports
  box.append(more);
  return box;
}

const append = (box, text) => { box.append(document.createTextNode(text)); return box; };

export function image(sha256) {
  const picture = h("img", { src: `/v1/images/${sha256}`, alt: `image ${sha256.slice(0, 12)}`, loading: "lazy" });
  picture.addEventListener("error", () => picture.replaceWith(h("span", { class: "quiet" }, `[image ${sha256.slice(0, 12)} is no longer stored]`)));
  return picture;
}

// Content is a string, or typed parts. Text records name an image by the start of its hash: `pictures` are the
// whole hashes of those that the prompt had.
export function content(value, pictures = [], marks = WRITTEN.concat("tool_response")) {
  if (typeof value === "string") return value ? pictured(value, pictures, marks) : [h("span", { class: "quiet" }, "(nothing)")];
  return value.map((part) => {
    if (part.type === "text") return thoughts(part.text, marks);
    if (part.type === "image") return image(part.sha256);
    if (part.type === "tool_call") return h("div", { class: "tool" }, h("b", null, `calls ${part.name}`), long(indented(part.arguments), "mono"));
    if (part.type === "tool_result") return h("div", { class: "tool" }, h("b", null, "tool returned"), long(part.text, "mono"));
    return long(JSON.stringify(part));
  });
}

// What a policy wrote: an output of a tool in it is made up and stays text.
export const action = (value) => content(value, [], WRITTEN);

function pictured(text, pictures, marks) {
  return text.split(/\[image ([0-9a-f]{12})\]/).flatMap((piece, at) => {
    const known = at % 2 ? pictures.find((one) => one.startsWith(piece)) : null;
    if (known) return image(known);
    return piece ? thoughts(at % 2 ? `[image ${piece}]` : piece, marks) : [];
  });
}

// Arguments on one line if they fit there.
const laid = (value) => (JSON.stringify(value).length < 80 ? JSON.stringify(value) : JSON.stringify(value, null, 1));

function indented(text) {
  try {
    return laid(JSON.parse(text));
  } catch {
    return text;
  }
}

// Thoughts, calls and outputs of tools that stand in a text, apart from the rest of it.
function thoughts(text, marks) {
  const marked = new RegExp(`<(${marks.join("|")})>([\\s\\S]*?)(?:</\\1>|$)`, "g");
  const found = [];
  let at = 0;
  for (const match of text.matchAll(marked)) {
    const before = text.slice(at, match.index), said = match[2].trim();
    if (before.trim()) found.push(long(before));
    if (match[1] === "think") found.push(h("div", { class: "thought" }, h("b", null, "thinks"), long(said)));
    else if (match[1] === "tool_response") found.push(h("div", { class: "tool" }, h("b", null, "tool returned"), long(said, "mono")));
    else found.push(called(said));
    at = match.index + match[0].length;
  }
  if (text.slice(at).trim()) found.push(long(text.slice(at)));
  return found.length || !text ? found : [h("span", { class: "quiet" }, "(only white space)")];
}

// A call as JSON names its tool; whatever else was written is shown as it is.
function called(text) {
  let call = null;
  try { call = JSON.parse(text); } catch { /* another syntax, or a call that cannot be read */ }
  const known = typeof call?.name === "string" && call.arguments !== undefined && Object.keys(call).length === 2;
  return h("div", { class: "tool" }, h("b", null, known ? `calls ${call.name}` : "calls a tool"), long(known ? laid(call.arguments) : text, "mono"));
}
