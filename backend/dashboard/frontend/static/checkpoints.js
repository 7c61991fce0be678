// The checkpoints of a run: files, and what can be begun with them.

import { job, lines, part, post } from "./api.js";
import { canAct, confirmed, h, replace, scroll, toast } from "./dom.js";
import { bytes, number, whole } from "./format.js";
import { namesFor, promoted, servedNames } from "./promotion.js";

const EPISODES = 64;

export function checkpointTable(current, checkpoints) {
  const jobId = current.job_id;
  const file = (point, name) => job(jobId, `/checkpoints/${point.step}/files/${part(name)}${point.agent ? `?agent=${part(point.agent)}` : ""}`);
  const reference = (point) => `${jobId}${point.agent ? `/${point.agent}` : ""}@${point.policy_version}`;
  const served = new Map(checkpoints.map((point) => [reference(point), h("div")]));
  const drawNames = async () => {
    const names = await servedNames();
    for (const [one, box] of served) replace(box, namesFor(names, one));
  };
  drawNames().catch(() => {}); // Only what is written beside the references.
  return scroll("Checkpoints", h("table", null,
    h("thead", null, h("tr", null, ["Step", "Agent", "Reference", "Files", canAct() ? "Begin with it" : ""].map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", null, [...checkpoints].reverse().map((point) => h("tr", null,
      h("td", { class: "number" }, whole(point.step)), h("td", null, point.agent || "–"), h("td", null, h("span", { class: "mono" }, reference(point)), served.get(reference(point))),
      h("td", null, Object.entries(point.files).map(([name, size]) => h("div", { class: "small" }, h("a", { href: file(point, name), download: name }, name), ` ${bytes(size)}`))),
      h("td", null, canAct() ? actions(current, point, reference(point), drawNames) : null))))));
}

function actions(current, point, reference, drawNames) {
  const spec = current.spec, box = h("div", { role: "status" });
  const several = new Set(Object.values(spec.agents ?? {}).filter((one) => one.kind === "train")).size > 1;
  const isGame = Object.keys(spec.agents ?? {}).length > 0;
  return [
    spec.rollout === "server" && !several ? h("button", { type: "button", class: "small", onclick: () => resumed(spec, reference) }, "Train on from here") : null,
    spec.environment && !isGame ? h("button", { type: "button", class: "small", onclick: () => evaluated(current, point, box) }, "Evaluate") : null,
    h("button", { type: "button", class: "small", onclick: () => promoted(reference, spec.name, drawNames) }, "Promote"), box,
    spec.environment && spec.rollout !== "server" ? h("div", { class: "small quiet" }, `Its episodes are played at the client: train on there, with initial_policy="${reference}".`)
      : several ? h("div", { class: "small quiet" }, "Several policies are trained: train on in a script, with Train(initial_policy=...) for each.") : null];
}

// A new job with the same settings; the run itself stays as it is.
async function resumed(spec, reference) {
  if (!(await confirmed("Start a new job from this checkpoint?", `It has the settings of this one and begins with ${reference}. This run stays as it is.`, "Start it"))) return;
  try {
    const made = await post("/v1/jobs", { ...spec, initial_policy: reference, name: `${spec.name || "run"}, from ${reference}`.slice(0, 200) });
    location.assign(`/dashboard/jobs/${part(made.job_id)}`);
  } catch (error) {
    toast(`${error.message} ${error.hint ?? ""}`, true);
  }
}

// Episodes that the run did not see: their seeds are high.
async function evaluated(current, point, box) {
  const spec = current.spec;
  const wanted = {
    environment: spec.environment, policy: `${current.job_id}${point.agent ? `/${point.agent}` : ""}`, policy_version: point.policy_version, model: spec.model,
    chat_template: spec.chat_template, template_variables: spec.template_variables, template_date: spec.template_date, system_prompt: spec.system_prompt,
    reasoning: spec.reasoning, limits: spec.limits, max_turn_tokens: spec.sampling.max_turn_tokens, temperature: 0,
    episodes: [...Array(EPISODES).keys()].map((at) => ({ episode_id: String(at), seed: 2 ** 31 + at, sampling_seed: at })),
  };
  replace(box, "plays…");
  const returns = [];
  try {
    for await (const { error, trajectory } of lines("/v1/evaluations", wanted)) {
      if (error) throw error;
      returns.push(trajectory.turns.reduce((sum, turn) => sum + turn.reward, trajectory.early_reward));
      const mean = returns.reduce((sum, one) => sum + one, 0) / returns.length;
      const spread = Math.sqrt(returns.reduce((sum, one) => sum + (one - mean) ** 2, 0) / Math.max(1, returns.length - 1) / returns.length);
      replace(box, `return ${number(mean)} ± ${number(1.96 * spread)} (${returns.length} of ${EPISODES} episodes, temperature 0)`);
    }
  } catch (error) {
    replace(box, `${error.message} ${error.hint ?? ""}`);
  }
}
