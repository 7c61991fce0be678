// The calls of an agent program as a tree: which continues which, and which begins a conversation of its own.

import { h } from "./dom.js";
import { counted, number } from "./format.js";

const brief = (value) => {
  const text = (typeof value === "string" ? value : value.map((part) => part.text ?? part.name ?? "").join(" ")).replace(/\s+/g, " ").trim();
  return text.length > 80 ? `${text.slice(0, 79)}…` : text || "(nothing)";
};

// Null if each turn continues the one before: there is nothing to draw.
export function tree(seat, parents) {
  const untrained = seat.turns.flatMap((turn) => Object.entries(turn.metrics)).filter(([name, value]) => name.startsWith("untrained_answers/") && value);
  const why = untrained.length ? h("p", { class: "small" }, "Answers that were not trained on: ", untrained.map(([name, value]) => `${number(value)} ${name.slice(18).replaceAll("_", " ")}`).join(", "), ".") : null;
  if (!parents) return why && h("section", { class: "panel" }, why);
  const below = new Map();
  parents.forEach((parent, at) => below.set(parent, [...(below.get(parent) ?? []), at]));
  const forks = [...below].filter(([parent, all]) => parent !== null && all.length > 1).length, roots = below.get(null)?.length ?? 0;
  // An answer with one continuation is followed by it in the same list: depth is for branches.
  const items = (some) => h("ul", { class: "calls" }, some.flatMap((first) => {
    const run = [first];
    for (let next = below.get(first); next?.length === 1; next = below.get(next[0])) run.push(next[0]);
    const rest = below.get(run.at(-1)) ?? [];
    return [...run.map((at, place) => h("li", { class: place ? "follows" : "" }, line(seat, at, place === 0 && parents[at] === null))), rest.length ? h("li", { class: "branches-off" }, items(rest)) : null];
  }));
  return h("details", { class: "panel", open: seat.turns.length <= 40 },
    h("summary", null, `Calls of ${seat.agent}: ${counted(seat.turns.length, "answer")} in ${counted(roots, "conversation")}${forks ? `, ${counted(forks, "fork")}` : ""}`),
    items(below.get(null) ?? []), why);
}

const line = (seat, at, begins) => {
  const turn = seat.turns[at];
  return [h("a", { href: `#${seat.agent}-turn-${at + 1}` }, `Turn ${at + 1}`), begins ? h("span", { class: "tag" }, "begins") : null,
    turn.finish_reason === "length" ? h("span", { class: "alarm" }, "⚠ cut") : null, ` ${brief(turn.observation)} → `, h("b", null, brief(turn.action))];
};
