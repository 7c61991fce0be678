// Settings that can change while a job trains; the service says which, and from which step on.

import { job, post } from "./api.js";
import { confirmed, h, toast } from "./dom.js";

const NAMES = ["learning_rate", "budget", "entropy_coefficient", "kl_coefficient", "max_grad_norm", "weight_decay", "updates", "value_learning_rate"];

const known = (spec, name) => (name in spec ? spec[name] : spec.algorithm?.[name]);

export function steeringForm(current, onchange) {
  const spec = current.spec, names = NAMES.filter((name) => known(spec, name) !== undefined);
  if (!names.length) return null;
  const value = h("input", { size: 30, "aria-label": "New value", required: true });
  const now = () => { value.value = JSON.stringify(known(spec, name.value) ?? (name.value === "budget" ? { hours: 1 } : null)); };
  const name = h("select", { "aria-label": "Setting", onchange: now }, names.map((one) => h("option", { value: one }, one.replaceAll("_", " "))));
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
    if (!(await confirmed(`Set ${name.value} to ${JSON.stringify(wanted)}?`, `Now: ${JSON.stringify(known(spec, name.value))}. ${when}`, "Change it"))) return;
    try {
      onchange(await post(job(current.job_id, "/update"), { settings: { [name.value]: wanted } }));
      toast("Changed.");
    } catch (error) {
      toast(`${error.message} ${error.hint ?? ""}`, true);
    }
  };
  return h("section", { class: "panel" }, h("h2", null, "Change a setting while it trains"), h("form", { class: "toolbar", onsubmit: submit }, name, value, h("button", { type: "submit" }, "Change")));
}
