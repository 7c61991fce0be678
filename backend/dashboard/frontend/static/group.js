// The episodes of one task side by side: what was said, and what each earned.

import { get, job } from "./api.js";
import { action, content } from "./conversation.js";
import { h, problem, replace } from "./dom.js";
import { counted, number, words } from "./format.js";

const MOST = 16;

export async function show(main, jobId, step, group) {
  const path = `/dashboard/jobs/${encodeURIComponent(jobId)}`;
  const { group_size: size } = await get(job(jobId, `/episodes/rows?limit=1&first_step=${step}&before=${Number(step) + 1}`));
  document.title = `Group ${group} of step ${step} · tinkergym`;
  const columns = h("div", { class: "members" });
  replace(main, h("div", { class: "heading" }, h("h1", null, `Step ${step}, group ${group}`), h("div", { class: "buttons" }, h("a", { class: "button", href: `${path}/task/${step}:${group * size}` }, "This task at another step"), h("a", { class: "button", href: `${path}/episodes?from=${step}&to=${step}` }, "Episodes of this step"))),
    h("p", { class: "quiet" }, `${size} episodes of the same task${size > MOST ? `; the first ${MOST} are shown` : ""}.`), columns);
  replace(columns, [...Array(Math.min(size, MOST)).keys()].map((member) => column(jobId, `${jobId}:${step}:${group * size + member}`)));
}

// One episode, read when it is asked for: what was said, and what it earned.
export function column(jobId, id) {
  const place = h("section", { class: "panel member" }, h("p", { class: "quiet" }, "Loading…"));
  get(job(jobId, `/episodes/${encodeURIComponent(id)}`)).then(
    (view) => replace(place, h("h2", null, h("a", { href: `/dashboard/jobs/${encodeURIComponent(jobId)}/episodes/${encodeURIComponent(id)}` }, `Episode ${view.step}:${view.index}`)), view.episode.trajectories.map(seat)),
    (error) => replace(place, problem(error)));
  return place;
}

function seat(one) {
  const pictures = one.segments.flatMap((segment) => segment.images.map((each) => each.sha256));
  const earned = one.turns.reduce((sum, turn) => sum + turn.reward, one.early_reward);
  return h("div", null,
    h("p", null, h("b", null, number(earned)), ` ${one.agent}, ${words(one.stop_reason)}, ${counted(one.turns.length, "turn")}`),
    one.error ? h("pre", { class: "problem" }, one.error) : null,
    one.turns.map((turn) => h("div", { class: "turn" }, h("div", { class: "observation" }, content(turn.observation, pictures)), h("div", { class: "action" }, action(turn.action)),
      h("div", { class: "small quiet" }, `reward ${number(turn.reward)} `, Object.entries(turn.metrics).map(([name, value]) => h("span", { class: "tag" }, `${name} ${number(value)}`))))),
    one.final_observation.length ? h("div", { class: "observation" }, content(one.final_observation, pictures)) : null);
}
