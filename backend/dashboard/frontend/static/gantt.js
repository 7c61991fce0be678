// What engine, learner and environments did in the newest steps, as bars over time.

import { h } from "./dom.js";
import { duration, percent, whole } from "./format.js";

export const NAMES = ["time", "step_seconds", "sampling_seconds", "learning_seconds", "time/rollout"];
export const STEPS = 12;
const LANES = ["engine", "environments", "learner"];

// Series that begin at one of the newest steps; null if there is nothing to draw.
export function gantt(series) {
  const found = Object.fromEntries(series.map((one) => [one.name, new Map(one.steps.map((step, at) => [step, one.values[at]]))]));
  const steps = [...(found.time?.keys() ?? [])].filter((step) => found.step_seconds?.get(step) > 0).slice(-STEPS);
  if (!steps.length) return null;
  const at = (name, step) => found[name]?.get(step) ?? 0;
  const first = at("time", steps[0]) - at("step_seconds", steps[0]), whole_ = Math.max(1e-6, at("time", steps.at(-1)) - first);
  const bars = { engine: [], environments: [], learner: [] }, busy = { engine: 0, environments: 0, learner: 0 };
  for (const step of steps) {
    const long = at("step_seconds", step), begin = at("time", step) - long - first;
    const rollout = Math.min(long, at("time/rollout", step) || at("sampling_seconds", step));
    const engine = Math.min(at("sampling_seconds", step), rollout), learner = Math.min(at("learning_seconds", step), long);
    const parts = { engine: [begin, engine], environments: [begin + engine, rollout - engine], learner: [begin + long - learner, learner] };
    for (const [lane, [from, seconds]] of Object.entries(parts)) {
      busy[lane] += seconds;
      bars[lane].push(h("span", { class: `bar ${lane}`, title: `step ${whole(step)}: ${lane} ${duration(seconds)}`, vars: { "--from": `${(100 * from) / whole_}%`, "--long": `${(100 * Math.max(0, seconds)) / whole_}%` } }));
    }
  }
  const told = LANES.map((lane) => `${lane} ${percent(busy[lane] / whole_)}`).join(", ");
  return h("figure", { class: "chart gantt" }, h("figcaption", null, h("h3", null, `The newest ${steps.length} steps`),
    h("p", { class: "quiet small" }, `${duration(whole_)} from step ${whole(steps[0])} to ${whole(steps.at(-1))}: ${told}. What no bar covers is waiting. Within a step only the sums are known: the engine's work is drawn at the start of playing, the learner's at the step's end.`)),
    h("div", { role: "img", "aria-label": told }, LANES.map((lane) => h("div", { class: "lane" }, h("span", { class: "small quiet" }, lane), h("div", { class: "bars" }, bars[lane])))));
}
