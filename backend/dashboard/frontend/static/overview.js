// All jobs of the tenant: what runs, what waits and why, and which need a look.

import { get, job, post } from "./api.js";
import { canAct, h, progress, redraw, replace, scroll, state, toast } from "./dom.js";
import { FINAL, ago, duration, number, whole, words } from "./format.js";
import { seldom } from "./live.js";
import { drawSlots } from "./slots.js";

const REFRESH_MS = 3000;
const PAGE = 200;
const GROUPS = {
  all: ["All", () => true],
  running: ["Running", (one) => ["starting", "running"].includes(one.state)],
  waiting: ["Waiting", (one) => ["queued", "paused", "waiting_for_client"].includes(one.state)],
  ended: ["Ended", (one) => FINAL.has(one.state)],
  look: ["Need a look", (one) => one.state === "failed" || one.warnings.length > 0],
};
const SORTS = {
  newest: ["newest first", (a, b) => b.created_at - a.created_at],
  changed: ["latest change", (a, b) => b.updated_at - a.updated_at],
  reward: ["highest reward", (a, b) => (b.reward_mean ?? -Infinity) - (a.reward_mean ?? -Infinity)],
  left: ["least time left", (a, b) => (a.seconds_left ?? Infinity) - (b.seconds_left ?? Infinity)],
  name: ["name", (a, b) => (a.name || a.job_id).localeCompare(b.name || b.job_id)],
};

const view = { group: "all", sort: "newest", text: "", archived: false, chosen: new Set() };
let jobs = [];
let mayHaveMore = false;

export async function show(main) {
  document.title = "Jobs · tinkergym";
  const banner = h("div");
  const count = h("span", { class: "quiet" });
  const table = h("tbody");
  const more = h("button", { type: "button", hidden: true, onclick: loadOlder }, "Show older jobs");
  const compare = h("a", { class: "button", hidden: true }, "Compare");
  const slots = h("section", { class: "panel" });

  function draw() {
    const words_ = view.text.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = jobs
      .filter((one) => view.archived || !one.labels.archived)
      .filter(GROUPS[view.group][1])
      .filter((one) => words_.every((word) => searchable(one).includes(word)))
      .sort(SORTS[view.sort][1]);
    count.textContent = shown.length === jobs.length ? `${whole(jobs.length)} ${jobs.length === 1 ? "job" : "jobs"}` : `${whole(shown.length)} of ${whole(jobs.length)} jobs`;
    redraw(table, shown.length ? shown.slice(0, 500).map((one) => row(one, draw)) : emptyRow());
    more.hidden = !mayHaveMore;
    compare.hidden = view.chosen.size < 2;
    compare.textContent = `Compare ${view.chosen.size}`;
    compare.href = `/dashboard/compare/${[...view.chosen].map(encodeURIComponent).join("/")}`;
  }

  async function refresh() {
    try {
      const page = (await get(`/v1/jobs?archived=true&limit=${PAGE}`)).jobs;
      const last = page.at(-1);
      const older = last ? jobs.filter((one) => one.created_at < last.created_at && !page.some((new_) => new_.job_id === one.job_id)) : [];
      if (jobs.length <= page.length) mayHaveMore = page.length === PAGE;
      jobs = [...page, ...older];
      const health_ = await get("/v1/health?sample=false");
      replace(banner, health(health_));
      draw();
      await drawSlots(slots, jobs, health_);
    } catch (error) {
      replace(banner, h("p", { class: "problem", role: "alert" }, `${error.message} `, error.hint ?? ""));
    }
  }

  async function loadOlder() {
    const page = (await get(`/v1/jobs?archived=true&limit=${PAGE}&before=${encodeURIComponent(jobs.at(-1).job_id)}`)).jobs;
    jobs = [...jobs, ...page];
    mayHaveMore = page.length === PAGE;
    draw();
  }

  replace(main,
    h("h1", null, "Jobs"), banner,
    h("div", { class: "toolbar", role: "search" },
      h("input", { id: "search", type: "search", placeholder: "Name, id, model, environment, tag", "aria-label": "Search jobs",
        oninput: (event) => { view.text = event.target.value; draw(); } }),
      h("div", { class: "chips", role: "group", "aria-label": "State" },
        Object.entries(GROUPS).map(([key, [label]]) => h("button", { type: "button", "aria-pressed": String(key === view.group),
          onclick: (event) => {
            view.group = key;
            for (const one of event.target.parentNode.children) one.setAttribute("aria-pressed", String(one === event.target));
            draw();
          } }, label))),
      h("label", null, "Sort by ", h("select", { onchange: (event) => { view.sort = event.target.value; draw(); } },
        Object.entries(SORTS).map(([key, [label]]) => h("option", { value: key }, label)))),
      h("label", null, h("input", { type: "checkbox", onchange: (event) => { view.archived = event.target.checked; draw(); } }), " archived"),
      compare, count),
    scroll("Jobs", h("table", { class: "jobs" },
      h("thead", null, h("tr", null, ["", "Job", "State", "Progress", "Reward", "Time left", "Trains", "Changed"].map((name) => h("th", { scope: "col", class: ["Reward", "Time left"].includes(name) ? "number" : "" }, name)))),
      table)),
    more, slots);
  const again = seldom(refresh, 0);
  await refresh();
  setInterval(() => document.hidden || again(), REFRESH_MS);
}

const searchable = (one) => [one.name, one.job_id, one.kind, one.model, one.environment, one.state, ...one.labels.tags].join(" ").toLowerCase();

function emptyRow() {
  const text = jobs.length
    ? "No job matches. Change the search or the state above."
    : "There are no jobs yet. Submit one with client.train(...) or tinkergym train, and it appears here.";
  return h("tr", null, h("td", { colspan: 8, class: "quiet empty" }, text));
}

function row(one, draw) {
  const path = `/dashboard/jobs/${encodeURIComponent(one.job_id)}`;
  const toggle = (event) => {
    event.target.checked ? view.chosen.add(one.job_id) : view.chosen.delete(one.job_id);
    if (view.chosen.size > 6) { view.chosen.delete(one.job_id); toast("Compare at most six jobs."); }
    draw();
  };
  return h("tr", { class: one.labels.archived ? "archived" : "" },
    h("td", null, h("input", { type: "checkbox", id: `choose-${one.job_id}`, "aria-label": `Choose ${one.name || one.job_id} to compare`, checked: view.chosen.has(one.job_id), onchange: toggle })),
    h("td", null,
      h("a", { href: path, id: `open-${one.job_id}` }, one.name || one.job_id),
      one.name ? h("div", { class: "quiet small" }, one.job_id) : null,
      h("div", null, one.labels.tags.map((tag) => h("span", { class: "tag" }, tag)))),
    h("td", { class: "why" }, state(one.state),
      one.warnings.map((name) => h("a", { class: "alarm", href: `${path}#alarms` }, `⚠ ${words(name)}`)),
      h("div", { class: "quiet small", title: one.error || one.reason }, one.error || one.reason)),
    h("td", null, progress(one.step, one.steps)),
    h("td", { class: "number" }, number(one.reward_mean), one.reward_mean === null && one.loss !== null ? h("div", { class: "quiet small" }, `loss ${number(one.loss)}`) : null),
    h("td", { class: "number" }, FINAL.has(one.state) ? h("span", { class: "quiet" }, `took ${duration(one.used_seconds)}`) : duration(one.seconds_left)),
    h("td", null, h("div", null, one.environment || one.kind), h("div", { class: "quiet small" }, `${one.model}, ${whole(one.used_tokens)} tokens`)),
    h("td", { class: "quiet nowrap" }, ago(one.updated_at), canAct() ? archive(one, draw) : null));
}

function archive(one, draw) {
  const set = async () => {
    try {
      one.labels = await post(job(one.job_id, "/labels"), { ...one.labels, archived: !one.labels.archived });
      toast(one.labels.archived ? "Archived: lists leave it out." : "Shown in lists again.");
      draw();
    } catch (error) {
      toast(error.message, true);
    }
  };
  return h("button", { type: "button", class: "plain small", id: `archive-${one.job_id}`, onclick: set }, one.labels.archived ? "Restore" : "Archive");
}

function health(view_) {
  if (view_.status === "ok") return null;
  const now = Date.now() / 1000;
  const parts = view_.waiting_for.map((name) => `${name} (for ${duration(now - (view_.missing_since[name] ?? now))})`);
  return h("p", { class: "warning", role: "status" }, `The service waits for: ${parts.join(", ")}. Jobs continue when it is there.`);
}
