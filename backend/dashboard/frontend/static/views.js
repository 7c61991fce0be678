// What an environment declares for people who watch: data, drawn here and never run.

import { h } from "./dom.js";

const EMPTY = new Set([".", " "]);

const cells = (view, mark) => h("table", { class: `cells ${view.kind}`, "aria-label": view.rows.join(" / ") },
  h("tbody", null, view.rows.map((row, y) => h("tr", null, [...row].map((cell, x) => h("td", { class: mark(cell, y, x) }, EMPTY.has(cell) ? "\u00a0" : cell))))));

const KINDS = {
  board: (view) => cells(view, (_, y, x) => (view.last && view.last[0] === y && view.last[1] === x ? "last" : "")),
  grid: (view) => [cells(view, (cell) => (cell === "@" ? "last" : "")), h("div", { class: "small quiet" }, Object.entries(view.legend).map(([cell, words]) => `${cell} ${words}  `))],
  map: (view) => [
    h("div", { class: "places" }, view.places.map((place, at) => h("span", { class: at === view.at ? "tag here" : "tag", "aria-current": at === view.at ? "location" : null }, place))),
    view.ways.length ? h("div", { class: "small quiet" }, view.ways.map(([from, to]) => `${view.places[from] ?? "?"} – ${view.places[to] ?? "?"}`).join(", ")) : null,
  ],
  table: (view) => h("table", { class: "facts-table" },
    view.columns.length ? h("thead", null, h("tr", null, view.columns.map((name) => h("th", { scope: "col" }, name)))) : null,
    h("tbody", null, view.rows.map((row) => h("tr", null, row.map((cell) => h("td", null, cell)))))),
  image: (view) => h("img", { src: `data:image/png;base64,${view.png}`, alt: view.title || "view of the environment" }),
};

export function shown(view) {
  if (!view || !Object.hasOwn(KINDS, view.kind)) return null;
  // One that may be wider than a phone scrolls, with the keyboard too; small boards are no stop on its way.
  const wide = view.kind === "table" || (view.rows ?? []).some((row) => row.length > 12);
  return h("figure", { class: "view", tabindex: wide ? 0 : null }, KINDS[view.kind](view), view.title ? h("figcaption", { class: "small quiet" }, view.title) : null);
}

// A game move by move: who did what, and what the game looked like before it.
export function replayed(seats) {
  const moves = seats.flatMap((seat) => seat.turns.map((turn) => ({ agent: seat.agent, turn }))).sort((one, other) => (one.turn.move ?? 0) - (other.turn.move ?? 0));
  const ends = seats.filter((seat) => seat.final_view || seat.final_observation.length);
  if (!moves.some(({ turn }) => turn.view)) return null;
  const place = h("div", { class: "replayed" }), said = h("p", { "aria-live": "polite" });
  const slider = h("input", { type: "range", min: 0, max: moves.length, value: 0, "aria-label": "Move", oninput: () => draw() });
  const step = (by) => { slider.value = Number(slider.value) + by; draw(); };
  function draw() {
    const at = Number(slider.value), move = moves[at];
    const view = move ? move.turn.view : (ends.find((seat) => seat.final_view) ?? {}).final_view;
    place.replaceChildren(...[shown(view)].filter(Boolean));
    said.textContent = move ? `Move ${at + 1} of ${moves.length}: ${move.agent} plays ${typeof move.turn.action === "string" ? move.turn.action.slice(0, 200) : "…"}` : "The end.";
  }
  draw();
  return h("section", { class: "panel replay" }, h("h2", null, "Move by move"),
    h("div", { class: "toolbar" }, h("button", { type: "button", onclick: () => step(-1) }, "Back"), slider, h("button", { type: "button", onclick: () => step(1) }, "Next")), place, said);
}
