// One run: alarms first, then its curves as they grow, its settings as they took effect, and what can be done.

import { get, job, post } from "./api.js";
import { Chart } from "./chart.js";
import { checkpointTable } from "./checkpoints.js";
import { canAct, confirmed, h, problem, progress, replace, scroll, state, toast } from "./dom.js";
import { differences, flat } from "./differences.js";
import { FINAL, clock, duration, money, number, percent, whole, words } from "./format.js";
import { NAMES, STEPS, gantt } from "./gantt.js";
import { follow, seldom } from "./live.js";
import { ADVICE, ALWAYS, CHARTS, explained, namesOf } from "./metrics.js";
import { runChoice } from "./run_choice.js";
import { steeringForm } from "./steering.js";

// Only what is drawn at once: a long run has a hundred metrics.
const seriesOf = (jobId, names) => job(jobId, `/series?${new URLSearchParams(names.map((name) => ["name", name]))}`);

const ALARM_EPISODES = 6;
const STEPS_MS = 5000; // What a step changes but its event does not say is read so often.
const SOON_MS = 1000;
const RECENT = 500;
const AT_ONCE = 100; // names in an address

const ACTIONS = {
  pause: ["Pause", "It saves a checkpoint after its step and gives up its place; resume continues from there.", (job_) => !FINAL.has(job_.state) && job_.state !== "paused"],
  resume: ["Resume", "It queues for a place and continues from its newest checkpoint.", (job_) => job_.state === "paused"],
  cancel: ["Cancel", "It ends for good. Its checkpoints and episodes stay.", (job_) => !FINAL.has(job_.state)],
};

export async function show(main, jobId) {
  const reading = get(seriesOf(jobId, ALWAYS)); // a long run's takes a while: the rest is there before
  reading.catch(() => {}); // told below
  let [current, labels] = await Promise.all([get(job(jobId)), get(job(jobId, "/labels"))]);
  let series = { series: [], names: [], sums: {}, newest_step: 0, last_seq: 0 };
  const newest = { step: null };
  const heading = h("div"), alarms = h("section", { id: "alarms", "aria-label": "Alarms" }), live = h("span", { class: "live quiet", role: "status" });
  const lists = h("div");
  const path = `/dashboard/jobs/${encodeURIComponent(jobId)}`;
  document.title = `${labels.name || current.spec.name || jobId} · tinkergym`;

  const last = (name) => { const line = series.series.find((one) => one.name === name); return line ? line.values.at(-1) : null; };

  function drawHeading() {
    const left = newest.step ? newest.step.seconds_left : last("seconds_left");
    const reward = newest.step ? newest.step.reward_mean : last("reward_mean");
    const facts = [
      ["Progress", progress(current.step, newest.step?.steps ?? last("steps") ?? current.spec.steps)], reward === null || reward === undefined ? null : ["Reward", number(reward)],
      ["Time left", FINAL.has(current.state) ? "–" : duration(left)], ["Used", used(current, series.sums)], current.cost ? ["Cost", money(current.cost)] : null,
      ["Budget", budget(current)], ["Attempts", String(current.attempt)], ["Model", current.spec.model], ["Created", clock(current.created_at)],
    ];
    replace(heading,
      h("div", { class: "heading" },
        h("h1", null, labels.name || current.spec.name || jobId, " ", state(current.state), live),
        h("div", { class: "buttons" },
          current.spec.environment ? h("a", { class: "button", href: `${path}/episodes` }, "Episodes") : null,
          current.spec.self_play || Object.keys(current.spec.agents ?? {}).length ? h("a", { class: "button", href: `${path}/games` }, "Games") : null,
          h("a", { class: "button", href: `/dashboard/compare/${encodeURIComponent(jobId)}` }, "Compare"),
          canAct() ? Object.entries(ACTIONS).filter(([, [, , may]]) => may(current)).map(([name, [label, what]]) =>
            h("button", { type: "button", class: name === "cancel" ? "danger" : "", onclick: () => act(name, label, what) }, label)) : null)),
      h("p", { class: "quiet" }, jobId, current.reason ? ` · ${current.reason}` : "", " ", labels.tags.map((tag) => h("span", { class: "tag" }, tag))),
      h("dl", { class: "facts" }, facts.filter(Boolean).map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value)))));
  }

  async function act(name, label, what) {
    if (!(await confirmed(`${label} this job?`, what, label))) return;
    try {
      current = await post(job(jobId, `/${name}`));
      toast(`${label}: asked for. A running job acts when its worker next checks.`);
      drawHeading();
    } catch (error) {
      toast(`${error.message} ${error.hint ?? ""}`, true);
    }
  }

  let drawnAlarms = null;
  async function drawAlarms() {
    const found = (await get(job(jobId, "/alarms"))).alarms;
    if (drawnAlarms === (drawnAlarms = JSON.stringify(found))) return; // Its links keep the keyboard.
    const link = (alarm) => {
      if (!current.spec.environment || alarm.last_step <= 0) return null;
      const failed = alarm.name.startsWith("failed") ? "&failed=1" : "", named = alarm.episodes.slice(0, ALARM_EPISODES);
      const step = h("a", { href: `${path}/episodes?from=${alarm.last_step}&to=${alarm.last_step}${failed}` }, `Episodes of step ${whole(alarm.last_step)}`);
      return [step, named.length ? [" · such as ", named.map((id) => [h("a", { href: `${path}/episodes/${encodeURIComponent(id)}` }, id.split(":").slice(-2).join(":")), " "])] : null];
    };
    replace(alarms, found.length
      ? h("ul", { class: "alarms" }, found.map((alarm) => h("li", { class: alarm.name.startsWith("failed") ? "grave" : "" },
        h("b", null, words(alarm.name)), alarm.last_step ? ` · ${alarm.count > 1 ? `${whole(alarm.count)} times, steps ${whole(alarm.first_step)} to ${whole(alarm.last_step)}` : `step ${whole(alarm.last_step)}`} ` : " ",
        link(alarm), h("div", null, alarm.message), ADVICE[alarm.name] ? h("div", { class: "quiet small" }, ADVICE[alarm.name]) : null)))
      : h("p", { class: "quiet" }, "No alarms: no warnings, no failed episodes, no evaluation on trained tasks."));
  }

  const phases = h("section", { "aria-label": "Time of the newest steps" }), curves = h("div", null, h("p", { class: "quiet" }, "Reading the curves…"));
  replace(main, heading, alarms, phases, curves, lists);
  drawHeading();
  const listed = drawLists(lists, current, labels, (changed) => { labels = changed; drawHeading(); });
  series = await reading;
  const recent = []; // Events of steps: what was read may be older than they are.
  const charts = makeCharts(jobId, (seq) => recent.filter((one) => one.seq > seq), (step) => current.spec.environment && location.assign(`${path}/episodes?from=${step}&to=${step}`));
  let summed = 0; // The job's own step may be ahead of the events.
  const sum = (body) => {
    if (body.step > summed) for (const name of Object.keys(series.sums)) series.sums[name] += body[name] ?? 0; // else repeated
    summed = Math.max(summed, body.step);
  };
  const take = (found) => {
    series = found;
    summed = found.newest_step;
    charts.set(found);
    for (const { body } of recent) sum(body);
    drawHeading();
  };
  take(series);
  replace(curves, charts.element);
  const drawPhases = async () => {
    const newest_ = Math.max(current.step, series.newest_step);
    replace(phases, newest_ ? gantt((await get(`${seriesOf(jobId, NAMES)}&first_step=${Math.max(0, newest_ - STEPS + 1)}`)).series) : null);
  };
  await Promise.all([drawAlarms(), drawPhases(), charts.evaluations(), listed]);
  if (location.hash === "#alarms") alarms.scrollIntoView();
  if (FINAL.has(current.state)) return;
  const reload = seldom(async () => {
    const found = await get(job(jobId));
    current = { ...found, step: Math.max(found.step, newest.step?.step ?? 0) };
    drawHeading();
  }, STEPS_MS);
  const alarmed = seldom(drawAlarms, STEPS_MS), phased = seldom(drawPhases, STEPS_MS), evaluated = seldom(charts.evaluations, STEPS_MS);
  const reread = seldom(async () => take(await get(seriesOf(jobId, ALWAYS))), STEPS_MS);
  const saved = seldom(async () => (await listed)(), STEPS_MS);
  follow(jobId, series.last_seq, {
    step(body, { seq }) {
      newest.step = body;
      recent.push({ seq, body });
      if (recent.length > RECENT) recent.shift();
      sum(body);
      if (charts.append(body)) reread();
      if (current.cost) reload(); // The service knows the prices.
      current = { ...current, step: body.step, used_seconds: (body.metrics["used/hours"] ?? 0) * 3600, used_tokens: body.metrics["used/tokens"] ?? current.used_tokens };
      drawHeading();
      alarmed();
      phased();
    },
    state(body) {
      reload(0);
      alarmed(FINAL.has(body.state) ? 0 : SOON_MS); // Its error is one.
    },
    update: () => reload(0), warning: () => alarmed(SOON_MS), checkpoint: () => saved(SOON_MS),
    evaluation() {
      evaluated(SOON_MS);
      alarmed(SOON_MS);
    },
  }, (status) => {
    live.className = `live ${status === "lost" ? "lost" : "quiet"}`;
    live.textContent = { live: "● live", lost: "○ connection lost, trying again", ended: "" }[status];
  });
}

// How much of each limit is used, as a bar and in words.
function budget({ spec: { budget: limits }, used_seconds, used_tokens }) {
  if (!limits) return "none";
  const bar = (used_, most, unit) => most && h("div", { class: "progress" },
    h("progress", { max: most, value: Math.min(used_, most), "aria-label": `used ${unit}` }), h("span", { class: "small" }, `${percent(used_ / most)} of ${number(most)} ${unit}`));
  return [bar(used_seconds / 3600, limits.hours, "hours"), bar(used_tokens, limits.tokens, "tokens")];
}

const used = (job_, sums) => [`${duration(job_.used_seconds)}, ${whole(job_.used_tokens)} tokens`,
  sums.sampled_tokens === undefined ? null : h("div", { class: "quiet small" }, `${whole(sums.sampled_tokens)} sampled, ${whole(sums.trained_tokens)} trained`),
  sums.sampling_seconds === undefined ? null : h("div", { class: "quiet small" }, `engine busy ${duration(sums.sampling_seconds)}, learner ${duration(sums.learning_seconds)}`)];

// Charts whose names may be there from the beginning, or come with a later step. `since` returns the events of steps
// after one.
function makeCharts(jobId, since, onpick) {
  const drawn = CHARTS.map(([title, explanation, patterns, options = {}]) => ({ chart: new Chart(title, explanation, { ...options, onpick }), patterns, options, names: [] }));
  const known = new Set(), others = new Set(), waiting = h("p", { class: "quiet", hidden: true }, "Loading…");
  const summary = h("summary"), more = h("div", { class: "charts" }), left = h("p", { class: "quiet small" });
  const folded = h("details", { ontoggle: () => folded.open && load(0) }, summary, left, waiting, more);
  const load = seldom(async () => {
    const wanted = [...others].filter((name) => !drawn.some((one) => one.names.includes(name)));
    waiting.hidden = false;
    try {
      for (let at = 0; at < wanted.length; at += AT_ONCE) {
        const found = await get(seriesOf(jobId, wanted.slice(at, at + AT_ONCE)));
        for (const line of found.series) {
          const one = { chart: new Chart(line.name, explained(line.name)), options: {}, names: [line.name] };
          one.chart.set([{ ...line, label: short(line.name, one.names) }]);
          drawn.push(one);
          more.append(one.chart.element);
        }
        for (const { body } of since(found.last_seq)) append(body);
      }
    } catch (error) {
      left.textContent = error.message;
    }
    waiting.hidden = true;
  }, STEPS_MS);

  // Whether it has a name that was not seen before.
  function append(body) {
    const values = figures(body), count = known.size;
    for (const { chart, names, options } of drawn) for (const name of names) {
      const value = values[name] ?? (options.stacked ? 0 : null);
      if (value !== null) chart.append(short(name, names), body.step, value);
    }
    for (const name of Object.keys(values)) known.add(name);
    return known.size > count;
  }

  return {
    element: h("div", null, h("section", { class: "charts", "aria-label": "Curves" }, drawn.map((one) => one.chart.element)), folded),
    append,
    set(series) {
      const byName = new Map(series.series.map((one) => [one.name, one])), used = new Set(["time", "seconds_left", "policy_version", "steps"]);
      for (const one of drawn.filter(({ patterns }) => patterns)) {
        one.names = namesOf(one.patterns, series.names).filter((name) => byName.has(name));
        one.names.forEach((name) => used.add(name));
        one.chart.element.hidden = !one.names.length && !one.options.evaluations;
        one.chart.set([...one.names.map((name) => ({ label: short(name, one.names), name, steps: [...byName.get(name).steps], values: [...byName.get(name).values] })), ...one.chart.lines.filter((line) => !line.name)]);
      }
      for (const name of series.names) { known.add(name); if (!used.has(name)) others.add(name); }
      folded.hidden = !others.size;
      summary.textContent = `All other metrics (${whole(others.size)})`;
      left.textContent = series.left_out ? `${whole(series.left_out)} values of further names are not drawn: a run shows ${whole(series.names.length)} metrics. Its events have them all.` : "";
      if (folded.open) load();
      for (const { body } of since(series.last_seq)) append(body);
    },
    async evaluations() {
      const { evaluations } = await get(job(jobId, "/evaluations"));
      const found = drawn.find(({ options }) => options.evaluations);
      const named = Map.groupBy(evaluations.filter((one) => one.mean !== null), (one) => one.agent ? `${one.name} (${one.agent})` : one.name);
      const lines = [...named].map(([name, all], index) => ({
        label: `evaluation ${name}`, steps: all.map((one) => one.step), values: all.map((one) => one.mean), points: true, color: index + 1,
        low: all.map((one) => one.low), high: all.map((one) => one.high),
      }));
      found?.chart.set([...found.chart.lines.filter((line) => line.name), ...lines]);
    },
  };
}

// A step's metrics by name, as the service names them.
function figures({ step, steps, records, policy_version, metrics, stop_reasons, ...body }) {
  const counts = Object.entries(stop_reasons).map(([reason, count]) => [`stop/${reason}`, count]);
  return Object.fromEntries([...Object.entries(metrics), ...counts, ...Object.entries(body).filter(([, value]) => typeof value === "number")]);
}

// A metric's name without what all names of its chart begin with.
function short(name, names) {
  const grouped = names.length > 1 || /^(stop|env|time)\//.test(name);
  const prefix = grouped && names.every((one) => one.startsWith(name.slice(0, name.indexOf("/") + 1))) ? name.indexOf("/") + 1 : 0;
  return words(name.slice(prefix));
}

// Returns what draws the checkpoints again: the rest may hold what somebody is writing.
async function drawLists(box, current, labels, onlabels) {
  const points = h("section", { class: "panel" }), settings = h("section", { class: "panel" }), steering = h("div");
  const drawPoints = async () => {
    const { checkpoints } = await get(job(current.job_id, "/checkpoints"));
    replace(points, h("h2", null, "Checkpoints"), checkpoints.length ? checkpointTable(current, checkpoints) : h("p", { class: "quiet" }, "None yet."));
  };
  const drawSettings = async (now) => {
    const { changed } = await get(job(now.job_id, "/settings"));
    replace(settings, h("h2", null, "Settings as they took effect"), settingsTable(now, changed), againstAnother(now));
    replace(steering, canAct() && !FINAL.has(now.state) ? steeringForm(now, drawSettings) : null);
  };
  replace(box, points, settings, steering, current.spec.kind === "inference" ? null : certificate(current),
    canAct() ? labelForm(current.job_id, labels, onlabels) : labels.note ? h("section", { class: "panel" }, h("h2", null, "Notes"), h("p", null, labels.note)) : null);
  await Promise.all([drawPoints(), drawSettings(current)]);
  return drawPoints;
}

function settingsTable(current, changed) {
  const differs = new Set(flat(changed).map(([name]) => name));
  const rows = flat(current.spec).map(([name, value]) => [name, JSON.stringify(value), differs.has(name) || [...differs].some((one) => name.startsWith(`${one}.`))]);
  const table = (some) => scroll("Settings", h("table", { class: "settings" }, h("tbody", null, some.map(([name, value, is]) => h("tr", { class: is ? "changed" : "" }, h("td", { class: "mono" }, name), h("td", { class: "mono" }, value))))));
  return [
    h("p", { class: "quiet" }, "Those that differ from the defaults:"), table(rows.filter((row) => row[2])),
    current.updates.length ? [h("p", { class: "quiet" }, "Changed while it trained:"), h("ul", null, current.updates.flatMap((one) => one.changes.map((change) =>
      h("li", null, `${change.name}: ${JSON.stringify(change.old)} → ${JSON.stringify(change.new)}, ${one.from_step ? `from step ${one.from_step}` : "from the next step"}`))))] : null,
    h("details", null, h("summary", null, `All settings (${rows.length})`), table(rows)),
  ];
}

// What differs from a run of choice; the list of runs is read when it is opened.
function againstAnother(current) {
  const place = h("div");
  const draw = async (id, label) => replace(place, id ? differences([{ label: "this run", spec: current.spec }, { label, spec: (await get(job(id))).spec }]) : null);
  const { element, read } = runChoice("Another run", [current.job_id], (...chosen) => draw(...chosen).catch((error) => replace(place, problem(error))));
  return h("details", { ontoggle: (event) => event.target.open && !place.children.length && read() }, h("summary", null, "What differs from another run"), element, place);
}

function certificate(current) {
  const how = h("code", null, `tinkergym jobs certificate ${current.job_id}`);
  return h("section", { class: "panel" }, h("h2", null, "Certificate"), h("p", null, "What was recorded about this run, signed by the operator's key: ",
    h("a", { href: job(current.job_id, "/facts"), download: `${current.job_id}.facts.json` }, "signed facts"), "."), h("p", { class: "quiet" }, how, " checks them and writes the certificate, with --bundle with everything that it is about."));
}

function labelForm(jobId, labels, onlabels) {
  const name = h("input", { value: labels.name, maxlength: 200, id: "label-name" }), tags = h("input", { value: labels.tags.join(", "), id: "label-tags" });
  const note = h("textarea", { maxlength: 4000, id: "label-note" }, labels.note);
  const save = async (event) => {
    event.preventDefault();
    try {
      const changed = await post(job(jobId, "/labels"), { ...labels, name: name.value, tags: tags.value.split(",").map((tag) => tag.trim()).filter(Boolean), note: note.value });
      onlabels(changed);
      toast("Saved.");
    } catch (error) {
      toast(`${error.message} ${error.hint ?? ""}`, true);
    }
  };
  return h("section", { class: "panel" }, h("h2", null, "Name, tags, notes"), h("form", { class: "label", onsubmit: save },
    h("label", { for: "label-name" }, "Name"), name, h("label", { for: "label-tags" }, "Tags, separated by commas"), tags,
    h("label", { for: "label-note" }, "Notes"), note, h("div", null, h("button", { type: "submit" }, "Save"))));
}
