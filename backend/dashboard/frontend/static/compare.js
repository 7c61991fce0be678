// Two to six runs over each other: curves on one axis, the settings that differ, evaluations with what the
// difference between them is worth.

import { get, job } from "./api.js";
import { Chart } from "./chart.js";
import { differences } from "./differences.js";
import { fill, h, problem, replace, scroll } from "./dom.js";
import { number } from "./format.js";
import { CHARTS, explained, namesOf } from "./metrics.js";
import { runChoice } from "./run_choice.js";

const MOST = 6;
const AXES = { step: ["step", null], tokens: ["tokens used", "used/tokens"], time: ["hours with a place", "used/hours"] };

export async function show(main, ids) {
  document.title = "Compare · tinkergym";
  const chosen = [...new Set(ids.filter(Boolean))].slice(0, MOST);
  const named = async (id) => {
    const [one, labels] = await Promise.all([get(job(id)), get(job(id, "/labels"))]);
    return labels.name || one.spec.name || id;
  };
  const names = new Map(await Promise.all(chosen.map(async (id) => [id, await named(id).catch(() => id)]))); // What is missing is told below.
  const address = (some) => `/dashboard/compare/${some.map(encodeURIComponent).join("/")}`;
  const name = (id) => names.get(id);
  const chips = chosen.map((id) => h("span", { class: "tag" }, h("a", { href: `/dashboard/jobs/${encodeURIComponent(id)}` }, name(id)), " ",
    h("a", { href: address(chosen.filter((one) => one !== id)), "aria-label": `Remove ${name(id)}` }, "×")));
  const add = runChoice("Add a run", chosen, (id) => id && location.assign(address([...chosen, id])));
  add.read();
  const box = h("div");
  const view = { axis: "step", smoothing: 0 };
  let runs = [];
  const draw = () => drawCharts(charts, runs, view);
  const charts = h("div", { class: "charts" });
  replace(main, h("h1", null, "Compare runs"),
    h("div", { class: "toolbar" }, chips, chosen.length < MOST ? add.element : null,
      h("label", null, "by ", h("select", { onchange: (event) => { view.axis = event.target.value; draw(); } }, Object.entries(AXES).map(([key, [label]]) => h("option", { value: key }, label)))),
      h("label", null, "smooth ", h("input", { type: "range", min: 0, max: 0.98, step: 0.02, value: 0, oninput: (event) => { view.smoothing = Number(event.target.value); draw(); } }))),
    box, charts);
  if (chosen.length < 2) return fill(box, h("p", { class: "quiet" }, "Choose two to six runs."));
  try {
    runs = await Promise.all(chosen.map(async (id) => {
      const [one, series, evaluations] = await Promise.all([get(job(id)), get(job(id, "/series?points=1500")), get(job(id, "/evaluations"))]);
      return { id, label: name(id), spec: one.spec, series, evaluations: evaluations.evaluations };
    }));
  } catch (error) {
    return replace(box, problem(error));
  }
  draw();
  fill(main, evaluations(runs), h("section", { class: "panel" }, h("h2", null, "Settings that differ"), differences(runs)));
}

function drawCharts(box, runs, view) {
  const all = [...new Set(runs.flatMap((run) => run.series.names))].sort();
  replace(box);
  for (const [title, explanation, patterns, options = {}] of CHARTS) {
    for (const metric of namesOf(patterns, all).filter((one) => !/^(stop|time)\//.test(one))) {
      const only = namesOf(patterns, all).length === 1;
      const chart = new Chart(only ? title : `${title}: ${metric}`, only ? explanation : explained(metric), { ...options, smoothing: view.smoothing, axis: view.axis === "step" ? null : AXES[view.axis][0] });
      chart.set(runs.map((run, color) => line(run, metric, view.axis, color)).filter(Boolean));
      // What never differs, such as a count of failures that is always 0, says nothing here.
      if (new Set(chart.lines.flatMap((one) => one.values)).size > 1) box.append(chart.element);
    }
  }
}

function line(run, metric, axis, color) {
  const found = run.series.series.find((one) => one.name === metric);
  if (!found) return null;
  const scale = AXES[axis][1] && run.series.series.find((one) => one.name === AXES[axis][1]);
  const steps = scale ? found.steps.map((step) => between(scale, step)) : [...found.steps];
  return { label: run.label, steps, values: [...found.values], color };
}

// Tokens or hours at a step: the series are thinned, so it may lie between two known ones.
function between(scale, step) {
  const after = scale.steps.findIndex((one) => one >= step);
  if (after <= 0) return after < 0 ? scale.values.at(-1) : scale.values[0];
  const share = (step - scale.steps[after - 1]) / (scale.steps[after] - scale.steps[after - 1]);
  return scale.values[after - 1] + share * (scale.values[after] - scale.values[after - 1]);
}

function evaluations(runs) {
  const called = (one) => (one.agent ? `${one.name} (${one.agent})` : one.name); // in a game each policy has its own
  const newest = (run, name) => run.evaluations.filter((one) => called(one) === name && one.mean !== null).at(-1);
  const names = [...new Set(runs.flatMap((run) => run.evaluations.map(called)))];
  if (!names.length) return null;
  return h("section", { class: "panel" }, h("h2", null, "Newest evaluations"), names.map((name) => {
    const first = newest(runs[0], name);
    return scroll(name, h("table", null, h("caption", null, name), h("thead", null, h("tr", null, ["Run", "Step", "Mean", "95 % interval", "Episodes", `Against ${runs[0].label}`].map((one) => h("th", { scope: "col" }, one)))),
      h("tbody", null, runs.map((run, at) => {
        const one = newest(run, name);
        if (!one) return h("tr", null, h("td", null, run.label), h("td", { colspan: 5, class: "quiet" }, "none"));
        return h("tr", null, h("td", null, run.label), h("td", null, one.step), h("td", null, number(one.mean)), h("td", null, one.low === null ? "–" : `${number(one.low)} to ${number(one.high)}`), h("td", null, one.episodes), h("td", null, at && first ? difference(one, first) : "–"));
      }))));
  }), h("p", { class: "quiet small" }, "The difference is judged from the two intervals, as if the episodes were drawn independently; `tinkergym compare` pairs the same tasks and sees smaller ones."));
}

function difference(one, other) {
  if ([one.low, other.low].includes(null)) return "unknown";
  const deviation = Math.hypot((one.high - one.low) / 3.92, (other.high - other.low) / 3.92), by = one.mean - other.mean;
  if (!deviation) return number(by);
  const width = 1.96 * deviation;
  return `${by > 0 ? "+" : ""}${number(by)} (${number(by - width)} to ${number(by + width)}): ${Math.abs(by) > width ? "significant" : "may be chance"}`;
}
