// The models with their slots, who shares them, and the jobs that wait for one: why, and in which place.

import { get } from "./api.js";
import { cells, h, redraw, table } from "./dom.js";
import { bytes, counted, number, whole } from "./format.js";

let models = null; // They change with the service's settings only.
let drawn = "";

export async function drawSlots(section, jobs, health) {
  const [known, queue] = await Promise.all([models ?? get("/v1/models"), get("/v1/queue")]);
  models = known;
  const seen = JSON.stringify([queue, health.memory, jobs.map((one) => one.name)]);
  if (seen === drawn) return;
  drawn = seen;
  const names = new Map(jobs.map((one) => [one.job_id, one.name])), mine = document.body.dataset.tenant;
  const slots = new Map(queue.models.map((one) => [one.model, one])), offered = new Map(known.models.map((one) => [one.name, one]));
  // Of another tenant's job there is no page.
  const job = (one) => (one.tenant_id === mine
    ? h("a", { href: `/dashboard/jobs/${encodeURIComponent(one.job_id)}`, id: `slot-${one.job_id}` }, names.get(one.job_id) || one.job_id)
    : [h("span", { class: "mono" }, one.job_id), h("div", { class: "quiet small" }, one.tenant_id)]);
  const rows = [...new Set([...offered.keys(), ...slots.keys()])].map((name) => cells(
    [name, h("div", { class: "quiet small" }, about(offered.get(name)))],
    loaded(slots.get(name), health.memory[name]),
    shares(slots.get(name), mine),
    (slots.get(name)?.running ?? []).map((one) => h("div", null, job(one)))));
  const waiting = queue.waiting.map((one) => cells(
    one.position === null ? "–" : `${whole(one.position)}.`, job(one), one.model,
    h("div", { class: "why" }, one.reason || "A slot is free: a worker is about to take it.")));
  const more = queue.models.filter((one) => one.left_out).map((one) => `${whole(one.left_out)} for ${one.model}`);
  redraw(section,
    waiting.length ? [h("h2", null, "Queue"),
      h("p", { class: "quiet small" }, "A free slot goes to the tenant with the fewest running jobs, of equal ones to the oldest job. A job without a place waits until one of its tenant's jobs ends."),
      table("Queue", ["Place", "Job", "Model", "Waits for"], waiting),
      more.length ? h("p", { class: "quiet small" }, `More wait behind these: ${more.join(", ")}.`) : null] : null,
    h("h2", null, "Models and who has their slots"),
    h("p", { class: "quiet small" }, "A slot is a place for one job on a loaded model. The jobs on a worker take turns at its device."),
    table("Models", ["Model", "Loaded", "Shares", "Runs here"], rows));
}

const about = (model) => (model ? [model.description, `${number(model.parameters, 1)} parameters`, `context ${whole(model.context_length)}`].filter(Boolean).join(" · ") : "not in the service's list");

function loaded(one, memory) {
  if (!one?.pools) return [h("span", { class: "quiet" }, "no, until a job or a request needs it")];
  const taken = one.shares.reduce((sum, share) => sum + share.running, 0);
  return [`${taken} of ${counted(one.slots, "slot")} taken`, h("progress", { max: one.slots, value: taken, "aria-label": `${taken} of ${one.slots} slots taken` }),
    h("div", { class: "quiet small" }, [counted(one.pools, "worker"), memory ? bytes(memory) : ""].filter(Boolean).join(", "))];
}

function shares(one, mine) {
  if (!one?.shares.length) return h("span", { class: "quiet" }, "no tenant runs or waits");
  const who = (name) => (name === "" ? "others" : name === mine ? "you" : name);
  return [one.shares.map((share) => h("div", null, `${who(share.tenant_id)}: ${counted(share.running, "slot")}`, share.waiting ? h("span", { class: "quiet" }, `, ${whole(share.waiting)} waiting`) : null)),
    one.most_of_one === null ? null : h("div", { class: "quiet small" }, `one tenant: at most ${whole(one.most_of_one)}`)];
}
