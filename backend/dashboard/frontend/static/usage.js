// What the tenant has used, and its keys; for who runs the service, all tenants.

import { get } from "./api.js";
import { cells, h, replace, table } from "./dom.js";
import { bytes, clock, duration, money, whole } from "./format.js";

/** What a key may do: one with a rate starts no jobs, which would sample beyond it. */
function rights(key) {
  const rates = [["requests", key.requests_per_minute], ["tokens", key.tokens_per_minute]]
    .filter(([, most]) => most !== null).map(([what, most]) => `${whole(most)} ${what} per minute`);
  const may = key.read_only ? "reads and samples" : rates.length ? "everything but jobs" : "everything";
  return [may, ...rates].join(", ");
}

export async function show(main) {
  document.title = "Usage and keys · tinkergym";
  const [usage, { keys }, health] = await Promise.all([get("/v1/usage"), get("/v1/keys"), get("/v1/health?sample=false")]);
  const priced = usage.jobs.some((one) => one.cost);
  const several = new Set(usage.jobs.map((one) => one.tenant_id)).size > 1;
  replace(main, h("h1", null, "Usage and keys"),
    h("section", { class: "panel" }, h("h2", null, "Jobs by model"), usage.jobs.length
      ? table("Jobs by model", [...(several ? ["Tenant"] : []), "Model", "Jobs", "Not ended", "Time with a place", "Tokens", ...(priced ? ["Cost"] : [])], usage.jobs.map((one) =>
        cells(...(several ? [one.tenant_id] : []), one.model, whole(one.jobs), whole(one.unfinished), duration(one.used_seconds), whole(one.used_tokens), ...(priced ? [money(one.cost)] : []))))
      : h("p", { class: "quiet" }, "No jobs yet.")),
    h("section", { class: "panel" }, h("h2", null, "Images"), h("p", null, `${whole(usage.images)} images, ${bytes(usage.image_bytes)} of ${bytes(usage.most_image_bytes)}`)),
    h("section", { class: "panel" }, h("h2", null, "API keys"), table("API keys", ["Id", "Name", "Rights", "Created", "State", ...(several ? ["Tenant"] : [])], keys.map((one) =>
      cells(h("span", { class: "mono" }, one.key_id), one.name, rights(one), clock(one.created_at), one.revoked_at === null ? "valid" : `revoked ${clock(one.revoked_at)}`, ...(several ? [one.tenant_id] : [])))),
      h("p", { class: "quiet small" }, "On the service's machine, ", h("code", null, "tinkergym keys create"), " and ", h("code", null, "tinkergym keys revoke ID"), " change them. A revoked key, and every browser that logged in with it, stops working within a second.")),
    h("section", { class: "panel" }, h("h2", null, "Service"), table("Service", ["Version", "State", "Waits for"], [cells(health.version, health.status, health.waiting_for.join(", ") || "nothing")])));
}
