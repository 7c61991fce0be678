// A run's episodes: as many as there are, read page by page, filtered here; only the rows in sight are elements.

import { get, job } from "./api.js";
import { h, problem, replace } from "./dom.js";
import { number, whole, words } from "./format.js";

const ROW = 34;
const BINS = 24;
const BEYOND = 8; // rows above and below those in sight
const COLUMNS = [
  ["step", "Step"], ["index", "Episode"], ["group", "Group"], ["agent", "Agent"], ["episode_return", "Return"], ["difference", "To its group"],
  ["stop_reason", "Ended by"], ["turns", "Turns"], ["sampled_tokens", "Tokens"], ["environment", "Environment"],
];
const TEXT = new Set(["agent", "stop_reason", "environment"]), LINKS = new Set(["index", "group"]);

export async function show(main, jobId) {
  const asked = new URLSearchParams(location.search);
  const filter = {
    from: asked.get("from") ?? "", to: asked.get("to") ?? "", low: asked.get("low") ?? "", high: asked.get("high") ?? "", reason: asked.get("reason") ?? "",
    agent: asked.get("agent") ?? "", environment: asked.get("environment") ?? "", turns: asked.get("turns") ?? "", tokens: asked.get("tokens") ?? "",
    failed: asked.get("failed") === "1", tools: asked.get("tools") === "1", task: asked.get("task") ?? "", seats: asked.get("seats") === "all", text: asked.get("text") ?? "", like: asked.get("like") ?? "",
  };
  const path = `/dashboard/jobs/${encodeURIComponent(jobId)}`;
  let rows = [], shown = [], order = ["step", -1], reading = 0, bounds = [0, Infinity], drawn = -Infinity, asksForPaint = false;
  const painted = new Map(); // elements by their place
  const found = { stop_reason: new Set(), agent: new Set(), environment: new Set() };
  document.title = `Episodes of ${jobId} · tinkergym`;

  const status = h("span", { class: "quiet", role: "status" }), trouble = h("div"), chart = h("div", { class: "bins", role: "group", "aria-label": "Histogram of returns; each bar filters" });
  const body = h("div", { class: "rows", role: "list" }), scroller = h("div", { class: "virtual", tabindex: 0, "aria-label": "Episodes", onscroll: () => {
    if (asksForPaint) return;
    asksForPaint = true;
    requestAnimationFrame(() => { asksForPaint = false; paint(false); });
  } }, body);
  const reasons = h("select", { onchange: (event) => change("reason", event.target.value) }), agents = h("select", { onchange: (event) => change("agent", event.target.value) });
  const environments = h("select", { onchange: (event) => change("environment", event.target.value) });

  const field = (name, label, size = 6) => h("label", null, `${label} `, h("input", { size, inputmode: "decimal", value: filter[name], oninput: (event) => change(name, event.target.value) }));
  const search = h("input", { type: "search", placeholder: "Text in observations, answers, errors", "aria-label": "Text", value: filter.text });
  const check = (name, label) => h("label", null, h("input", { type: "checkbox", checked: filter[name], onchange: (event) => change(name, event.target.checked) }), ` ${label}`);
  const opponents = check("seats", "opponents' seats too"), tools = check("tools", "with tool errors"), task = field("task", "Task", 5);
  replace(main,
    h("div", { class: "heading" }, h("h1", null, "Episodes"), h("a", { class: "button", href: path }, "Back to the run")), h("p", { class: "quiet" }, jobId, filter.like ? [" · only those that began as ", h("a", { href: `${path}/task/${encodeURIComponent(filter.like)}` }, filter.like), " did"] : null),
    h("form", { class: "toolbar", role: "search", onsubmit: (event) => { event.preventDefault(); filter.text = search.value.trim(); remember(); read(); } }, search, h("button", { type: "submit" }, "Search texts"), status),
    h("div", { class: "toolbar" }, field("from", "Steps"), field("to", "to"), field("low", "Return"), field("high", "to"), h("label", null, "Ended by ", reasons), h("label", null, "Agent ", agents),
      h("label", null, "Environment ", environments), field("turns", "At least", 4), h("span", null, "turns"), field("tokens", "and", 5), h("span", null, "tokens"),
      task, check("failed", "failed only"), tools, opponents,
      h("button", { type: "button", onclick: () => location.assign(`${path}/episodes`) }, "Clear")),
    chart, trouble,
    h("div", { class: "virtual-wrap" }, h("div", { class: "virtual-head" }, COLUMNS.map(([name, label]) => h("button", { type: "button", class: `plain c-${name}`, onclick: () => { order = [name, order[0] === name ? -order[1] : -1]; draw(); } }, label))),
    scroller), h("p", { class: "quiet small" }, "To its group: the return minus the mean of the episodes of the same task, which is what most algorithms learn from."));

  function change(name, value) {
    filter[name] = value;
    remember();
    const [first, last] = wantedSteps();
    if (first < bounds[0] || last > bounds[1]) read(); // a link left those steps out
    else draw();
  }

  function wantedSteps() {
    return [Number(filter.from) || 0, filter.to === "" ? Infinity : Number(filter.to)];
  }

  function remember() {
    const kept = Object.entries(filter).filter(([, value]) => value !== "" && value !== false).map(([name, value]) => [name, name === "seats" ? "all" : value === true ? "1" : value]);
    history.replaceState(null, "", `?${new URLSearchParams(kept)}`);
  }

  async function read() {
    const mine = ++reading;
    rows = [];
    bounds = wantedSteps();
    for (const one of Object.values(found)) one.clear();
    // Only what a link asks for: the failures of one step need not wait for all others.
    let before = filter.to === "" ? null : Number(filter.to) + 1, done = 0, total = null;
    try {
      do {
        const query = new URLSearchParams({ limit: rows.length ? 5000 : 100, first_step: Number(filter.from) || 0, text: filter.text, like: filter.like && `${jobId}:${filter.like}`, ...(before === null ? {} : { before }) });
        const page = await get(job(jobId, `/episodes/rows?${query}`));
        if (mine !== reading) return;
        total ??= page.steps;
        done += page.read;
        for (const row of spread(page)) {
          rows.push(row);
          for (const [name, one] of Object.entries(found)) one.add(row[name]);
        }
        before = page.next_before;
        status.textContent = before === null ? `${whole(rows.length)} read` : `reading: ${whole(done)} of ${whole(total)} steps`;
        if (before === null || performance.now() - drawn > 1000) draw(); // each takes longer, the more there are
      } while (before !== null);
    } catch (error) {
      replace(trouble, problem(error));
    }
  }

  function draw() {
    const [low, high, from, to] = [filter.low, filter.high, filter.from, filter.to].map((one) => (one === "" ? null : Number(one)));
    const turns = Number(filter.turns), tokens = Number(filter.tokens), most = [];
    let others = false, erred = filter.tools, numbered = filter.task !== "";
    shown = [];
    for (const row of rows) { // 100,000 of them: once, and nothing is copied
      others ||= !row.trained;
      erred ||= row.tool_errors > 0;
      numbered ||= row.task !== null;
      if ((filter.tools && !row.tool_errors) || (filter.task !== "" && row.task !== Number(filter.task)) || (!row.trained && !filter.seats) || (filter.reason && row.stop_reason !== filter.reason) || (filter.agent && row.agent !== filter.agent)
        || (filter.environment && row.environment !== filter.environment) || (from !== null && row.step < from) || (to !== null && row.step > to)
        || row.turns < turns || row.sampled_tokens < tokens || (filter.failed && row.completed)) continue;
      most.push(row);
      if ((low === null || row.episode_return >= low) && (high === null || row.episode_return <= high)) shown.push(row);
    }
    const [name, way] = order;
    // They are read newest step first, in order.
    if (name !== "step" || way !== -1) shown.sort(TEXT.has(name) ? (a, b) => way * (a[name] < b[name] ? -1 : a[name] > b[name] ? 1 : 0) || a.index - b.index : (a, b) => way * (a[name] - b[name]) || a.index - b.index);
    choices(reasons, found.stop_reason, filter.reason);
    choices(agents, found.agent, filter.agent);
    choices(environments, found.environment, filter.environment);
    main.classList.toggle("one-environment", environments.parentNode.hidden);
    opponents.hidden = !others;
    tools.hidden = !erred;
    task.hidden = !numbered;
    histogram(most);
    body.style.setProperty("height", `${Math.max(1, shown.length) * ROW}px`);
    paint();
    drawn = performance.now();
  }

  // Scrolling makes only the rows that were not in sight.
  function paint(isNew = true) {
    const top = Math.floor(scroller.scrollTop / ROW), visible = Math.ceil(scroller.clientHeight / ROW);
    const first = Math.max(0, top - BEYOND), last = Math.min(shown.length, top + visible + BEYOND), spare = [];
    if (isNew || ![...painted.keys()].some((at) => at >= first && at < last)) {
      // No row stays: written anew, their elements cost less than others would.
      spare.push(...body.querySelectorAll(".virtual-row"));
      painted.clear();
      if (!isNew && body.contains(document.activeElement)) document.activeElement.blur();
    }
    if (isNew) {
      body.querySelector(".empty")?.remove();
      if (!shown.length) body.append(h("p", { class: "quiet empty" }, rows.length ? "No episode matches." : "No stored episodes yet."));
    }
    for (const [at, element] of painted) if (at < first || at >= last) { element.remove(); painted.delete(at); }
    // In the order in which they are read, for keyboards and screen readers.
    const highest = painted.size ? Math.min(...painted.keys()) : -Infinity, above = document.createDocumentFragment(), below = document.createDocumentFragment();
    for (let at = first; at < last; at += 1) {
      if (painted.has(at)) continue;
      const used = spare.shift(), element = used ?? line();
      write(element, shown[at], at);
      painted.set(at, element);
      if (!used) (at < highest ? above : below).append(element);
    }
    for (const element of spare) element.remove();
    body.prepend(above);
    body.append(below);
  }

  const line = () => h("div", { role: "listitem" }, COLUMNS.map(([name]) => h(LINKS.has(name) ? "a" : "span", { class: `c-${name}${TEXT.has(name) || name === "index" ? "" : " number"}` }, "")));

  function write(element, row, at) {
    const texts = [whole(row.step), `${row.step}:${row.index}`, row.group, row.agent, row.completed ? number(row.episode_return) : "–", row.completed ? `${row.difference > 0 ? "+" : ""}${number(row.difference)}` : "–",
      words(row.stop_reason), row.turns, whole(row.sampled_tokens), row.environment];
    texts.forEach((text, column) => { element.children[column].firstChild.data = text; });
    element.className = `virtual-row${row.completed ? "" : " failed"}`;
    element.setAttribute("aria-posinset", at + 1);
    element.setAttribute("aria-setsize", shown.length);
    element.querySelector(".c-index").href = `${path}/episodes/${encodeURIComponent(`${jobId}:${row.step}:${row.index}`)}`;
    element.querySelector(".c-group").href = `${path}/group/${row.step}/${row.group}`;
    element.style.setProperty("top", `${at * ROW}px`);
  }

  function histogram(some) {
    const values = [];
    for (const row of some) if (row.completed) values.push(row.episode_return);
    if (!values.length) return replace(chart);
    let low = Infinity, high = -Infinity;
    for (const value of values) { low = Math.min(low, value); high = Math.max(high, value); }
    const width = (high - low) / BINS || 1, counts = new Array(high > low ? BINS : 1).fill(0);
    const lows = counts.map(() => Infinity), highs = counts.map(() => -Infinity);
    for (const value of values) {
      const bin = Math.min(counts.length - 1, Math.floor((value - low) / width));
      counts[bin] += 1;
      if (value < lows[bin]) lows[bin] = value;
      if (value > highs[bin]) highs[bin] = value;
    }
    const most = Math.max(...counts);
    replace(chart, h("span", { class: "small quiet" }, number(low)), counts.map((count, bin) => {
      const from = lows[bin], to = highs[bin]; // of what it counts: a bin's own bounds also hold what is counted next to it
      const span = from === to ? `return ${number(from)}` : `return from ${number(from)} to ${number(to)}`;
      const text = count ? `${whole(count)} ${count === 1 ? "episode" : "episodes"} with a ${span}` : "no episodes";
      return h("button", { type: "button", title: text, "aria-label": text, disabled: !count, vars: { "--height": `${count ? 4 + (66 * count) / most : 0}px` },
        onclick: () => { filter.low = String(from); filter.high = String(to); remember(); draw(); replace(status, `${span} `, h("button", { type: "button", class: "plain", onclick: () => { filter.low = filter.high = ""; remember(); draw(); status.textContent = ""; } }, "all returns")); } });
    }), h("span", { class: "small quiet" }, number(high)));
  }

  remember();
  await read();
}

function choices(select, all, chosen) {
  const found = new Set([...all].filter(Boolean));
  if (chosen) found.add(chosen);
  select.parentNode.hidden = found.size < 2;
  replace(select, h("option", { value: "" }, "any"), [...found].sort().map((one) => h("option", { value: one, selected: one === chosen }, words(one))));
}

// Columns as rows, each with the difference to the mean of its group.
function spread(page) {
  const columns = page.rows, found = [];
  const groups = new Map();
  for (let at = 0; at < columns.step.length; at += 1) {
    const row = { group: Math.floor(columns.index[at] / page.group_size), difference: 0 };
    for (const name of Object.keys(columns)) row[name] = columns[name][at];
    found.push(row);
    if (!row.completed || !row.trained) continue;
    const key = `${row.step} ${row.group} ${row.agent}`;
    const known = groups.get(key) ?? [0, 0];
    groups.set(key, [known[0] + row.episode_return, known[1] + 1]);
  }
  for (const row of found) {
    const [sum, count] = groups.get(`${row.step} ${row.group} ${row.agent}`) ?? [row.episode_return, 1];
    row.difference = row.episode_return - sum / count;
  }
  return found;
}
