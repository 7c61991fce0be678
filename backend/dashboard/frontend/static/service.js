// For who runs the service: what must hold, its workers with what runs on them, and the ends of its logs.

import { get, part } from "./api.js";
import { canAct, cells, h, problem, redraw, replace, table } from "./dom.js";
import { ago, bytes, clock, duration, whole } from "./format.js";
import { seldom } from "./live.js";

const REFRESH_MS = 5000;
const LINES = [50, 200, 1000, 2000];

export async function show(main) {
  document.title = "Service · tinkergym";
  const checks = h("section", { class: "panel" }), workers = h("section", { class: "panel" }), logs = h("section", { class: "panel" });
  const refresh = async () => {
    try {
      const found = await get("/v1/operation");
      drawChecks(checks, found.checks);
      drawWorkers(workers, found.workers);
    } catch (error) {
      replace(checks, problem(error));
    }
  };
  await refresh();
  replace(main, h("h1", null, "Service"), checks, workers, logs);
  const again = seldom(refresh, 0);
  setInterval(() => document.hidden || again(), REFRESH_MS);
  await drawLogs(logs);
}

function drawChecks(section, checks) {
  const failed = checks.filter((one) => !one.ok).length;
  redraw(section, h("h2", null, failed ? `Checks: ${failed} failed` : "Checks: all fine"),
    table("Checks", ["Check", "Result", "What was found"], checks.map((one) =>
      cells(h("span", { class: "mono" }, one.name), h("b", { class: one.ok ? "good" : "bad" }, one.ok ? "✓ ok" : "✗ failed"), one.message))));
}

function drawWorkers(section, workers) {
  const kind = { pool: "worker of a model", engine_host: "further engine" };
  redraw(section, h("h2", null, "Workers"), workers.length
    ? table("Workers", ["Worker", "Model", "State", "Where", "Memory", "Since", "Runs"], workers.map((one) => cells(
      [h("span", { class: "mono" }, one.worker_id), h("div", { class: "quiet small" }, kind[one.kind])],
      one.model,
      [h("span", { class: `state ${one.state === "ready" ? "running" : "failed"}` }, one.state), h("div", { class: "quiet small" }, `heard ${duration(one.silent_seconds)} ago`)],
      [one.node, one.device].filter(Boolean).join(", ") || "–",
      one.memory_bytes ? bytes(one.memory_bytes) : "–",
      one.started_at === null ? "–" : [clock(one.started_at), h("div", { class: "quiet small" }, ago(one.started_at))],
      [one.jobs.map((job) => h("div", null, named(job), h("span", { class: "quiet" }, ` of ${job.tenant_id}`))),
        one.environment_workers.length ? environments(one) : null])))
    : h("p", { class: "quiet" }, "No model is loaded. A job or a request loads one."));
}

// Of another tenant's job there is no page.
const named = (job) => (job.tenant_id === document.body.dataset.tenant
  ? h("a", { class: "mono", href: `/dashboard/jobs/${encodeURIComponent(job.job_id)}`, id: `runs-${job.job_id}` }, job.job_id)
  : h("span", { class: "mono" }, job.job_id));

const environments = (worker) => h("details", { open: openOnes.has(worker.worker_id), ontoggle: (event) => openOnes[event.target.open ? "add" : "delete"](worker.worker_id) },
  h("summary", { id: `environments-${worker.worker_id}` }, `${whole(worker.environment_workers.length)} environment workers`),
  worker.environment_workers.map((one) => h("div", { class: "small" }, h("span", { class: "mono" }, one.worker_id), ` ${one.plays_for ? `plays for ${one.plays_for}` : "waits for its first episode"}, heard ${duration(one.silent_seconds)} ago`)));
const openOnes = new Set();

async function drawLogs(section) {
  if (!canAct()) return replace(section, h("h2", null, "Logs"), h("p", { class: "quiet" }, "A read-only key sees no logs: they may hold what environments print."));
  const { logs } = await get("/v1/logs"), text = h("pre", { class: "log", tabindex: 0, role: "region", "aria-label": "Log" }), about = h("p", { class: "quiet small", role: "status" });
  const read = async () => {
    try {
      const found = await get(`/v1/logs/${part(name.value)}?lines=${lines.value}`);
      text.textContent = found.text || "This log is empty.";
      about.textContent = `${found.begins_later ? "Its last lines" : "All of it"}, read ${new Date().toLocaleTimeString()}. Common forms of keys, tokens and passwords are left out.`;
      text.scrollTop = text.scrollHeight;
    } catch (error) {
      about.textContent = `${error.message} ${error.hint ?? ""}`;
    }
  };
  const name = h("select", { "aria-label": "Log", onchange: read }, logs.map((one) => h("option", { value: one.name }, `${one.name} (${bytes(one.bytes)}, ${ago(one.changed_at)})`)));
  const lines = h("select", { "aria-label": "Lines", onchange: read }, LINES.map((one) => h("option", { value: one }, `${whole(one)} lines`)));
  replace(section, h("h2", null, "Logs"), logs.length
    ? [h("div", { class: "toolbar" }, name, lines, h("button", { type: "button", onclick: read }, "Read again")), about, text]
    : h("p", { class: "quiet" }, "There are no logs on the gateway's machine."));
  if (logs.length) await read();
}
