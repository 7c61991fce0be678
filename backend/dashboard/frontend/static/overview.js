// All jobs of the tenant: what runs, what waits and why, and which need a look.

import { get, job, post } from "./api.js";
import { canAct, h, progress, redraw, replace, scroll, state, toast } from "./dom.js";
import { FINAL, ago, counted, duration, number, whole, words } from "./format.js";
import { seldom } from "./live.js";
import { drawSlots } from "./slots.js";

const REFRESH_MS = 3000;
const PAGE = 200;
const MOST_READ = 500; // And rows in the document.
const TYPING_MS = 300;
const GROUPS = {
  all: ["All", []],
  running: ["Running", ["starting", "running"]],
  waiting: ["Waiting", ["queued", "paused", "waiting_for_client"]],
  ended: ["Ended", [...FINAL]],
  look: ["Need a look", []], // The service knows no such state: of those that are read.
};
const SORTS = {
  newest: "newest first", changed: "latest change", reward: "highest reward", duration: "longest time with a place", progress: "most steps done", name: "name",
};

const view = { group: "all", sort: "newest", text: "", archived: false, chosen: new Set() };
let jobs = [];
let limit = PAGE;
let hasMore = false;
const known = new Map(); // The queue names them, whatever is searched for.

export async function show(main) {
  document.title = "Jobs · tinkergym";
  const banner = h("div");
  const count = h("span", { class: "quiet" });
  const table = h("tbody");
  const more = h("button", { type: "button", hidden: true, onclick: () => { limit = Math.min(MOST_READ, limit + PAGE); again(); } }, "Show more jobs");
  const compare = h("a", { class: "button", hidden: true }, "Compare");
  const slots = h("section", { class: "panel" });

  function draw() {
    const shown = jobs.filter((one) => (view.archived || !one.labels.archived) && (view.group !== "look" || one.state === "failed" || one.warnings.length > 0));
    const of = view.sort === "newest" ? "newest" : "first in this order, of the 2,000 newest";
    count.textContent = hasMore ? `${whole(shown.length)} of the ${whole(jobs.length)} ${of}; there are more${limit < MOST_READ ? "" : ", which a search finds"}` : counted(shown.length, "job");
    redraw(table, shown.length ? shown.map((one) => row(one, draw)) : emptyRow());
    more.hidden = !hasMore || limit >= MOST_READ;
    compare.hidden = view.chosen.size < 2;
    compare.textContent = `Compare ${view.chosen.size}`;
    compare.href = `/dashboard/compare/${[...view.chosen].map(encodeURIComponent).join("/")}`;
  }

  async function refresh() {
    try {
      const query = new URLSearchParams({ archived: view.archived, search: view.text, sort: view.sort, limit });
      for (const one of GROUPS[view.group][1]) query.append("state", one);
      const found = await get(`/v1/jobs?${query}`);
      jobs = found.jobs;
      hasMore = found.has_older;
      for (const one of jobs) known.set(one.job_id, one);
      const health_ = await get("/v1/health?sample=false");
      replace(banner, health(health_));
      draw();
      await drawSlots(slots, [...known.values()], health_);
    } catch (error) {
      replace(banner, h("p", { class: "problem", role: "alert" }, `${error.message} `, error.hint ?? ""));
    }
  }

  const again = seldom(refresh, TYPING_MS);
  const change = (name, value) => { view[name] = value; limit = PAGE; again(); };

  replace(main,
    h("h1", null, "Jobs"), banner,
    h("div", { class: "toolbar", role: "search" },
      h("input", { id: "search", type: "search", placeholder: "Name, id, model, environment, tag", "aria-label": "Search jobs",
        maxlength: 200, oninput: (event) => change("text", event.target.value) }),
      h("div", { class: "chips", role: "group", "aria-label": "State" },
        Object.entries(GROUPS).map(([key, [label]]) => h("button", { type: "button", "aria-pressed": String(key === view.group),
          onclick: (event) => {
            for (const one of event.target.parentNode.children) one.setAttribute("aria-pressed", String(one === event.target));
            change("group", key);
          } }, label))),
      h("label", null, "Sort by ", h("select", { onchange: (event) => change("sort", event.target.value) },
        Object.entries(SORTS).map(([key, label]) => h("option", { value: key }, label)))),
      h("label", null, h("input", { type: "checkbox", onchange: (event) => change("archived", event.target.checked) }), " archived"),
      compare, count),
    scroll("Jobs", h("table", { class: "jobs" },
      h("thead", null, h("tr", null, ["", "Job", "State", "Progress", "Reward", "Time left", "Trains", "Changed"].map((name) => h("th", { scope: "col", class: ["Reward", "Time left"].includes(name) ? "number" : "" }, name)))),
      table)),
    more, slots);
  await refresh();
  setInterval(() => document.hidden || again(), REFRESH_MS);
}

function emptyRow() {
  const text = jobs.length || view.text || view.group !== "all"
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
