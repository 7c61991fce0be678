// Settings that can change while a job trains; the service says which, and from which step on.

import { job, post } from "./api.js";
import { confirmed, h, toast } from "./dom.js";
import { words } from "./format.js";

const NAMES = ["learning_rate", "budget", "entropy_coefficient", "kl_coefficient", "max_grad_norm", "weight_decay", "updates", "value_learning_rate"];

// Each setting with its value: of the job, unless a policy of a game would not follow, and of each such policy.
function steered(spec) {
  const seats = Object.entries(spec.agents ?? {}).filter(([, seat]) => seat.kind === "train"), own = seats.some(([, seat]) => seat.algorithm);
  const found = new Map();
  for (const name of NAMES) {
    if (name in spec) found.set(name, spec[name]);
    else if (!own && spec.algorithm && name in spec.algorithm) found.set(name, spec.algorithm[name]);
  }
  for (const [agent, { algorithm }] of seats) for (const name of NAMES) {
    const value = (algorithm ?? spec.algorithm)[name];
    if (value !== undefined) found.set(`agents.${agent}.${name}`, value);
  }
  return found;
}

const label = (name) => words(name.replace(/^agents\.(.*)\.(.*)$/s, "$2 of $1"));

export function steeringForm(current, onchange) {
  const known = steered(current.spec);
  if (!known.size) return null;
  const value = h("input", { size: 30, "aria-label": "New value", required: true });
  const now = () => { value.value = JSON.stringify(known.get(name.value) ?? (name.value === "budget" ? { hours: 1 } : null)); };
  const name = h("select", { "aria-label": "Setting", onchange: now }, [...known.keys()].map((one) => h("option", { value: one }, label(one))));
  now();
  const submit = async (event) => {
    event.preventDefault();
    let wanted;
    try {
      wanted = JSON.parse(value.value);
    } catch {
      return toast("Write a number, or a budget such as {\"hours\": 2}.", true);
    }
    const when = name.value === "budget" ? "It applies at once." : "It applies from the next train step on, and is recorded with it.";
    if (!(await confirmed(`Set ${label(name.value)} to ${JSON.stringify(wanted)}?`, `Now: ${JSON.stringify(known.get(name.value))}. ${when}`, "Change it"))) return;
    try {
      onchange(await post(job(current.job_id, "/update"), { settings: { [name.value]: wanted } }));
      toast("Changed.");
    } catch (error) {
      toast(`${error.message} ${error.hint ?? ""}`, true);
    }
  };
  return h("section", { class: "panel" }, h("h2", null, "Change a setting while it trains"), h("form", { class: "toolbar", onsubmit: submit }, name, value, h("button", { type: "submit" }, "Change")));
}
