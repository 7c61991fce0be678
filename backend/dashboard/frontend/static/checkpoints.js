// The checkpoints of a run: files, and what can be begun with them.

import { job, lines, part, post } from "./api.js";
import { canAct, confirmed, h, replace, scroll, toast } from "./dom.js";
import { bytes, number, whole } from "./format.js";
import { namesFor, promoted, servedNames } from "./promotion.js";

const EPISODES = 64;
const results = new Map(); // what was played with a checkpoint, which stays when the table is drawn again

export function checkpointTable(current, checkpoints) {
  const jobId = current.job_id;
  const file = (point, name) => job(jobId, `/checkpoints/${point.step}/files/${part(name)}${point.agent ? `?agent=${part(point.agent)}` : ""}`);
  const reference = (point) => `${jobId}${point.agent ? `/${point.agent}` : ""}@${point.policy_version}`;
  const served = new Map(checkpoints.map((point) => [reference(point), h("div")]));
  const drawNames = async () => {
    const names = await servedNames();
    for (const [one, box] of served) replace(box, namesFor(names, one));
  };
  drawNames().catch(() => {}); // Only the names next to the references.
  return scroll("Checkpoints", h("table", null,
    h("thead", null, h("tr", null, ["Step", "Agent", "Reference", "Files", canAct() ? "Begin with it" : ""].map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", null, [...checkpoints].reverse().map((point) => h("tr", null,
      h("td", { class: "number" }, whole(point.step)), h("td", null, point.agent || "–"), h("td", null, h("span", { class: "mono" }, reference(point)), served.get(reference(point))),
      h("td", null, Object.entries(point.files).map(([name, size]) => h("div", { class: "small" }, h("a", { href: file(point, name), download: name }, name), ` ${bytes(size)}`))),
      h("td", null, canAct() ? actions(current, point, reference(point), checkpoints, drawNames) : null))))));
}

function actions(current, point, reference, checkpoints, drawNames) {
  const spec = current.spec, box = results.get(reference) ?? h("div", { role: "status" });
  results.set(reference, box);
  const isGame = Boolean(spec.self_play) || Object.keys(spec.agents ?? {}).length > 0;
  const environment = evaluatedIn(spec, isGame);
  const evaluate = isGame ? () => matched(current, point, box) : () => evaluated(current, point, environment, box);
  const because = spec.kind === "policy" ? `Its own script trains it: tg.Client().training_policy("${current.job_id}") goes on.`
    : spec.environment && spec.rollout !== "server" ? `Its episodes are played at the client: train on there, with initial_policy="${reference}".` : null;
  return [
    because ? null : h("button", { type: "button", class: "small", onclick: () => resumed(current, point, reference, checkpoints) }, "Train on from here"),
    environment ? h("button", { type: "button", class: "small", onclick: evaluate }, "Evaluate") : null,
    h("button", { type: "button", class: "small", onclick: () => promoted(reference, spec.name, drawNames) }, "Promote"), box,
    because ? h("div", { class: "small quiet" }, because) : null];
}

// The environment of the run's first evaluation, with its arguments, such as a held-out split; its own without one.
// Null where the service cannot play it: a class of a script, or an environment server, whose token it does not keep.
function evaluatedIn(spec, isGame) {
  const own = spec.environment, all = spec.evaluate ?? [];
  const held = own ? all.find((one) => ["", own.id].includes(one.environment)) : all[0];
  const id = own?.id ?? held?.environment;
  if (!id || id.startsWith("local/") || id === "tinkergym/Remote-v0" || id.includes("://") || (isGame && spec.rollout !== "server")) return null;
  return { id, kwargs: { ...own?.kwargs, ...held?.env_kwargs } };
}

// A new job with the same settings; the run itself stays as it is.
async function resumed(current, point, reference, checkpoints) {
  const spec = current.spec, trained = Object.entries(spec.agents ?? {}).filter(([, one]) => one.kind === "train").map(([agent]) => agent);
  const steps = h("input", { type: "number", min: 1, value: spec.steps, class: "narrow" }), seed = h("input", { type: "number", min: 0, value: Number.isSafeInteger(spec.seed + 1) ? spec.seed + 1 : 1, class: "narrow" });
  const fields = h("div", null, h("p", null, h("label", null, "Train steps ", steps)),
    h("p", null, h("label", null, "Seed ", seed)), h("p", { class: "quiet small" }, "With another seed it does not draw the tasks or records of this run again in the same order."));
  // Seats name their own beginnings: all policies begin with this step's.
  const all = checkpoints.filter((one) => one.step === point.step && trained.includes(one.agent));
  const begins = all.length ? all.map((one) => `${current.job_id}/${one.agent}@${one.policy_version}`).join(", ") : reference;
  if (!(await confirmed("Start a new job from this checkpoint?", `It has the other settings of this one and begins with ${begins}. This run stays as it is.`, "Start it", fields))) return;
  const agents = { ...spec.agents };
  all.forEach((one, at) => { agents[one.agent] = { ...agents[one.agent], initial_policy: begins.split(", ")[at] }; });
  const from = all.length ? { agents, initial_policy: "" } : { initial_policy: reference };
  try {
    const made = await post("/v1/jobs", { ...spec, ...from, steps: Number(steps.value), seed: Number(seed.value), name: `${spec.name || "run"}, from ${reference}`.slice(0, 200) });
    location.assign(`/dashboard/jobs/${part(made.job_id)}`);
  } catch (error) {
    toast(`${error.message} ${error.hint ?? ""}`, true);
  }
}

// Mirrored games of this version against others, of which nothing is stored.
async function matched(current, point, box) {
  const against = h("input", { value: "random", size: 30 }), pairs = h("input", { type: "number", min: 1, max: 200, value: 20, class: "narrow" });
  const fields = h("div", null, h("p", null, h("label", null, "Against ", against)), h("p", { class: "quiet small" }, "Players of the game, versions such as job-ID@40, or models; several with commas."), h("p", null, h("label", null, "Pairs of games ", pairs)));
  if (!(await confirmed("Let this version play?", "Each pair is one seed with the seats swapped. It takes from seconds to minutes, and nothing is trained on.", "Play", fields))) return;
  replace(box, "plays…");
  try {
    let found = null;
    const wanted = { versions: [point.policy_version], against: against.value.split(/[\s,]+/).filter(Boolean), pairs: Number(pairs.value) };
    for await (const line of lines(job(current.job_id, "/crossplay"), wanted)) {
      if (line.error) throw line.error;
      found = line.crossplay;
    }
    if (!found) throw { message: "The service broke off; try again." };
    const own = `${current.job_id}${point.agent ? `/${point.agent}` : ""}@${point.policy_version}`;
    const ends = (one) => one.interval_95.map((end) => (end === null ? "?" : number(end, 2))).join(" to ");
    replace(box, found.cells.filter((one) => one.row === own).map((one) => h("div", { class: "small" }, "against ", h("b", null, one.column.replace(`${current.job_id}/`, "")), `: mean return ${number(one.mean_return)} (${ends(one)}), won ${one.wins + one.forfeits_won}, drew ${one.draws}, lost ${one.losses + one.forfeits_lost}${one.cut_off + one.failed ? `, ${one.cut_off + one.failed} not finished` : ""}`)));
  } catch (error) {
    replace(box, `${error.message} ${error.hint ?? ""}`);
  }
}

// Episodes that the run did not see: their seeds are high.
async function evaluated(current, point, environment, box) {
  const spec = current.spec;
  const wanted = {
    environment, policy: `${current.job_id}${point.agent ? `/${point.agent}` : ""}`, policy_version: point.policy_version, model: spec.model,
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
      replace(box, `return ${number(mean)} ± ${number(1.96 * spread)} (${returns.length} of ${EPISODES} episodes of ${[environment.id, environment.kwargs.split].filter(Boolean).join(", ")}, temperature 0)`);
    }
  } catch (error) {
    replace(box, `${error.message} ${error.hint ?? ""}`);
  }
}
