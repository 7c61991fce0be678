// How the settings of runs differ.

import { h, scroll } from "./dom.js";

export function flat(value, prefix = "") {
  if (value === null || typeof value !== "object" || Array.isArray(value)) return [[prefix, value]];
  const entries = Object.entries(value);
  return entries.length ? entries.flatMap(([name, one]) => flat(one, prefix ? `${prefix}.${name}` : name)) : [[prefix, value]];
}

// The settings in which runs differ, side by side.
export function differences(runs) {
  const maps = runs.map((run) => new Map(flat(run.spec).map(([name, value]) => [name, JSON.stringify(value)])));
  const differing = [...new Set(maps.flatMap((one) => [...one.keys()]))].filter((name) => new Set(maps.map((one) => one.get(name))).size > 1);
  return differing.length
    ? scroll("Settings that differ", h("table", { class: "settings" }, h("thead", null, h("tr", null, h("th", { scope: "col" }, "Setting"), runs.map((run) => h("th", { scope: "col" }, run.label)))),
      h("tbody", null, differing.map((name) => h("tr", null, h("td", { class: "mono" }, name), maps.map((one) => h("td", { class: "mono" }, one.get(name) ?? "–")))))))
    : h("p", { class: "quiet" }, "None: the runs differ only in chance, and in when they ran.");
}
