// Continue an episode from a turn: another policy answers, several times, or the reader does.

import { get, job, lines } from "./api.js";
import { action, content } from "./conversation.js";
import { h, problem, replace } from "./dom.js";
import { counted, number, whole, words } from "./format.js";
import { shown as viewed } from "./views.js";

const total = (seat) => seat.turns.reduce((sum, turn) => sum + turn.reward, seat.early_reward);

// The panel below a turn, which is counted from 1.
export function branching(jobId, view, seat, turn) {
  const results = h("div", { class: "branches", "aria-live": "polite" });
  const policy = h("select", null, h("option", { value: "" }, "the job's newest version"));
  const times = h("input", { type: "number", min: 1, max: 64, value: 4, class: "narrow" });
  const temperature = h("input", { type: "number", min: 0, max: 10, step: 0.1, placeholder: "as in training", class: "narrow" });
  const written = h("textarea", { rows: 2, placeholder: "Answer this turn yourself" });
  const said = []; // by hand so far
  const play = h("button", { type: "button", class: "primary", onclick: () => sampled() }, "Let it continue");
  const answer = h("button", { type: "button", onclick: () => byHand() }, "Answer and see what comes");
  offer(policy, jobId);

  async function ask(wanted, each) {
    play.disabled = answer.disabled = true;
    const path = job(jobId, `/episodes/${encodeURIComponent(view.episode.episode_id)}/branch`);
    try {
      for await (const line of lines(path, { turn, agent: seat.agent, actions: said, ...wanted })) {
        if (line.error) throw line.error;
        each(line.trajectory);
      }
    } catch (error) {
      results.append(problem(error));
    }
    play.disabled = answer.disabled = false;
  }

  async function sampled() {
    const found = [], n = Math.min(64, Math.max(1, Number(times.value) || 1));
    const heading = h("p", null, "The episode is replayed up to here, which takes a few seconds…");
    const list = h("div");
    replace(results, heading, list);
    await ask({ policy: policy.value, n, temperature: temperature.value === "" ? null : Number(temperature.value) }, (one) => {
      found.push(one);
      const returns = found.map(total);
      const mean = returns.reduce((sum, value) => sum + value, 0) / returns.length;
      replace(heading, h("b", null, `${whole(found.length)} of ${n}: mean return ${number(mean)}`), `, from ${number(Math.min(...returns))} to ${number(Math.max(...returns))}; the episode itself ${number(total(seat))}`);
      list.append(h("details", null, h("summary", null, `return ${number(total(one))}, ${words(one.stop_reason)}, ${counted(one.turns.length - turn + 1, "turn")}`), one.turns.slice(turn - 1).map((each, at) => shown(each, at > 0)), ended(one)));
    });
    if (!found.length && heading.isConnected) heading.remove();
  }

  async function byHand() {
    said.push(written.value);
    if (said.length === 1) results.replaceChildren();
    let failed = true;
    await ask({ n: 0 }, (one) => {
      failed = false;
      written.value = "";
      const last = one.turns.at(-1);
      results.append(h("div", { class: "action" }, action(last.action)), h("div", { class: "small quiet" }, `reward ${number(last.reward)}`), ...ended(one).filter(Boolean));
      // The limit after the last answer has no error; one that another seat met ends the game.
      if (one.stop_reason !== "turn_limit" || one.error) {
        results.append(h("p", null, h("b", null, `It is over: return ${number(total(one))}, ${words(one.stop_reason)}.`)));
        said.length = 0;
      }
    });
    if (failed) said.pop();
  }

  return h("section", { class: "panel branch" },
    h("h3", null, `Continue from turn ${turn}`),
    h("p", { class: "quiet small" }, "Same seed, same state: the environment gets the actions before this turn again, and every prompt is compared with the recorded one. Nothing is stored or trained on."),
    h("div", { class: "toolbar" }, h("label", null, "Who answers ", policy), h("label", null, "How often ", times), h("label", null, "Temperature ", temperature), play),
    h("div", { class: "toolbar" }, h("label", { class: "wide" }, "Take over by hand ", written), answer),
    results);
}

const ended = (one) => [viewed(one.final_view), one.final_observation.length ? h("div", { class: "observation" }, content(one.final_observation)) : null];

const shown = (turn, withObservation) => h("div", { class: "turn" },
  withObservation ? [viewed(turn.view), h("div", { class: "observation" }, content(turn.observation))] : null,
  h("div", { class: "action" }, action(turn.action)), h("div", { class: "small quiet" }, `reward ${number(turn.reward)}`));

// Offers the job's checkpoints, and the models: whose tokens fit is checked by the service. Returns the agents
// that have checkpoints.
export async function offer(select, jobId) {
  const [{ checkpoints }, { models }] = await Promise.all([get(job(jobId, "/checkpoints")), get("/v1/models")]).catch(() => [{ checkpoints: [] }, { models: [] }]);
  const named = [...checkpoints].reverse().map((one) => `${jobId}${one.agent ? `/${one.agent}` : ""}@${one.policy_version}`);
  for (const name of [...named, ...models.map((one) => one.name)]) select.append(h("option", { value: name }, name));
  return new Set(checkpoints.map((one) => one.agent));
}
