// The same task at two steps, side by side: what the policy said then and later, best episodes first.

import { get, job } from "./api.js";
import { column } from "./group.js";
import { h, replace } from "./dom.js";
import { counted, number, whole } from "./format.js";

const MOST = 8; // of each step

// `like` names an episode as STEP:INDEX; the task is whatever began as it did.
export async function show(main, jobId, like) {
  const path = `/dashboard/jobs/${encodeURIComponent(jobId)}`;
  document.title = `Task of ${like} at two steps · tinkergym`;
  const steps = h("span", { class: "quiet", role: "status" }, "Reading…"), columns = h("div");
  replace(main,
    h("div", { class: "heading" }, h("h1", null, `The task of episode ${like} at two steps`),
      h("div", { class: "buttons" }, h("a", { class: "button", href: `${path}/episodes?like=${encodeURIComponent(like)}` }, "All its episodes"), h("a", { class: "button", href: path }, "The run"))),
    h("p", { class: "quiet" }, "Episodes that began with the same observation, best first."),
    h("div", { class: "toolbar" }, steps),
    columns);
  const at = await played(jobId, like);
  if (!at.size) return replace(steps, "This episode is not stored, or no seat acted in it.");
  const there = [...at.keys()].sort((a, b) => a - b), asked = new URLSearchParams(location.search);
  const choice = (name, otherwise) => {
    const label = (step) => `${whole(step)} (${means(at.get(step))})`;
    return h("select", { "aria-label": `${name} step`, onchange: () => draw() }, there.map((step) => h("option", { value: step, selected: step === (at.has(Number(asked.get(name))) ? Number(asked.get(name)) : otherwise) }, label(step))));
  };
  const from = choice("from", there[0]), to = choice("to", there.at(-1));
  replace(steps, h("label", null, "Step ", from), " ", h("label", null, "against step ", to), there.length < 2 ? " It was played at one step only so far." : "");

  function draw() {
    history.replaceState(null, "", `?from=${from.value}&to=${to.value}`);
    const sides = [from, to].map((one) => [Number(one.value), at.get(Number(one.value))]);
    const rows = Math.min(MOST, Math.max(...sides.map(([, some]) => some.length)));
    replace(columns,
      h("div", { class: "sides" }, sides.map(([step, some]) => h("h2", null, `Step ${whole(step)}: mean return ${means(some)} of ${counted(some.length, "episode")}`))),
      [...Array(rows).keys()].map((row) => h("div", { class: "sides" }, sides.map(([step, some]) => (some[row] ? column(jobId, `${jobId}:${step}:${some[row].index}`) : h("div"))))),
      sides.some(([, some]) => some.length > MOST) ? h("p", { class: "quiet" }, `The ${MOST} best of each step are shown.`) : null);
  }
  draw();
}

// Of each trained seat, by its name if there are several.
function means(some) {
  const done = some.filter((one) => one.completed), agents = [...new Set(done.flatMap((one) => [...one.returns.keys()]))];
  const mean = (agent) => number(done.reduce((sum, one) => sum + (one.returns.get(agent) ?? 0), 0) / done.length);
  return agents.length > 1 ? agents.map((agent) => `${agent} ${mean(agent)}`).join(", ") : agents.length ? mean(agents[0]) : "–";
}

// The task's episodes by step, those first in which the first trained seat earned most.
async function played(jobId, like) {
  const at = new Map();
  let before = null;
  do {
    const query = new URLSearchParams({ limit: 5000, like: `${jobId}:${like}`, ...(before === null ? {} : { before }) });
    const { rows, next_before } = await get(job(jobId, `/episodes/rows?${query}`));
    rows.step.forEach((step, place) => {
      if (!rows.trained[place]) return;
      const some = at.get(step) ?? at.set(step, []).get(step), index = rows.index[place];
      const known = some.find((one) => one.index === index) ?? some[some.push({ index, first: rows.episode_return[place], returns: new Map(), completed: true }) - 1];
      known.returns.set(rows.agent[place], rows.episode_return[place]);
      known.completed &&= rows.completed[place];
    });
    before = next_before;
  } while (before !== null);
  for (const some of at.values()) some.sort((a, b) => b.completed - a.completed || b.first - a.first || a.index - b.index);
  return at;
}
