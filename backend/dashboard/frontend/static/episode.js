// One episode, turn by turn: the text next to its tokens; colors say what each token is.

import { get, job } from "./api.js";
import { branching } from "./branch.js";
import { action, content, image, long } from "./conversation.js";
import { canAct, fill, h, replace, toast } from "./dom.js";
import { number, whole, words } from "./format.js";
import { scoring } from "./scores.js";
import { tree } from "./calls.js";
import { replayed, shown } from "./views.js";

const MODES = {
  source: "who wrote it, and what is trained on",
  surprise: "surprise: how unlikely the policy found its own token",
  reward: "reward of the turn",
  advantage: "return minus the mean of its group",
  gap: "gap: the learner's logprob minus the engine's",
  entropy: "entropy: how open the choice was",
  change: "change: its logprob now minus when it was sampled",
};
const SCORED = new Set(["entropy", "change"]);
const LEVELS = 8;

export async function show(main, jobId, episodeId) {
  const view = await get(job(jobId, `/episodes/${encodeURIComponent(episodeId)}`));
  const path = `/dashboard/jobs/${encodeURIComponent(jobId)}`;
  const seats = view.episode.trajectories;
  let mode = "source";
  document.title = `Episode ${view.step}:${view.index} · tinkergym`;
  const inspect = h("div", { class: "inspect mono", role: "status" }, "Point at a token, or click it, to read its id and logprob.");
  const axes = seats.map((seat) => new Axis(seat, view, inspect, canAct() ? branchButton(jobId, view, seat) : () => null));
  const legend = h("span", { class: "small" });
  const paint = () => {
    for (const axis of axes) axis.paint(mode);
    const missing = axes.every((axis) => axis.lacks(mode));
    replace(legend, missing ? missed(mode, view) : keys(mode));
    scored.hidden = !SCORED.has(mode);
  };
  const scored = scoring(jobId, seats, (agent, segment, found) => { axes.find((one) => one.seat.agent === agent).scores[segment] = found; paint(); });
  const sibling = (index) => `${path}/episodes/${encodeURIComponent(`${jobId}:${view.step}:${index}`)}`;
  const earned = (one) => (one.completed ? number(one.episode_return) : words(one.stop_reason));
  const group = new Map();
  for (const one of view.group) group.set(one.index, group.has(one.index) ? `${group.get(one.index)} / ${earned(one)}` : earned(one));

  replace(main,
    h("div", { class: "heading" }, h("h1", null, `Episode ${view.step}:${view.index}`),
      h("div", { class: "buttons" }, h("a", { class: "button", href: `${path}/task/${view.step}:${view.index}` }, "Its task at two steps"), h("a", { class: "button", href: `${path}/episodes?from=${view.step}&to=${view.step}` }, "Episodes of this step"),
        h("a", { class: "button", href: path }, "The run"), h("button", { type: "button", onclick: () => exported(main, view, axes) }, "Export as one file"))),
    h("p", { class: "quiet" }, view.episode.episode_id, " · ", view.environment),
    facts(view, seats),
    group.size > 1 ? h("nav", { class: "group", "aria-label": "Group" }, h("span", { class: "small quiet" }, "Same task: "), [...group].map(([index, text]) =>
      h("a", { href: sibling(index), "aria-current": index === view.index ? "page" : null, class: "button small" }, text)),
      h("a", { class: "small", href: `${path}/group/${view.step}/${view.group_number}` }, "side by side")) : null,
    seats.some((seat) => seat.error) ? seats.filter((seat) => seat.error).map((seat) => h("details", { open: true, class: "problem" }, h("summary", null, `${seat.agent} failed: ${words(seat.stop_reason)}`), h("pre", { class: "said" }, seat.error))) : null,
    seats.length > 1 ? replayed(seats) : null,
    seats.map((seat) => tree(seat, view.parents[seat.agent])),
    view.system_prompt ? h("details", null, h("summary", null, "System prompt"), long(view.system_prompt)) : null,
    h("div", { class: "toolbar sticky" }, h("label", null, "Color tokens by ", h("select", { onchange: (event) => { mode = event.target.value; paint(); } }, Object.entries(MODES).map(([key, label]) => h("option", { value: key }, label)))), legend, scored, inspect),
    h("div", { class: seats.length > 1 ? "seats" : "" }, axes.map((axis) => axis.element)));
  paint();
  const turns = main.querySelectorAll(".turn[id]"), { hash } = location;
  [...turns].find(({ id }) => [`#${id}`, `#${encodeURIComponent(id)}`, encodeURI(`#${id}`)].includes(hash))?.scrollIntoView();
}

// A button per turn that opens the panel below it, or says why the episode cannot be played again.
function branchButton(jobId, view, seat) {
  return (turn) => h("button", {
    type: "button", class: "plain small", disabled: !view.request, title: view.request ? null : view.why_no_request,
    onclick: (event) => {
      const place = event.target.closest(".turn"), open = place.querySelector(".branch");
      if (open) open.remove();
      else place.append(branching(jobId, view, seat, turn));
    },
  }, "Continue from here");
}

function facts(view, seats) {
  const fate = view.fate;
  const trained = fate ? (fate.fate === "trained" ? `trained on ${whole(fate.trained_tokens)} tokens` : `${fate.fate}: ${words(fate.why)}`) : "step not recorded yet";
  const exact = fate && fate.trained_tokens ? `${whole(fate.matched_tokens)} of ${whole(fate.trained_tokens)} as sampled` : null;
  const shown = [["In training", trained], ["Tokens exact", exact], ["Retries", fate?.retries || null], ["Seed", seats[0].seed], ["Task", seats[0].task_index === null ? null : h("a", { href: `/dashboard/jobs/${encodeURIComponent(view.episode.episode_id.split(":")[0])}/episodes?task=${seats[0].task_index}` }, `${seats[0].task_index}, at all steps`)],
    ...seats.flatMap((seat) => [[seats.length > 1 ? `Return of ${seat.agent}` : "Return", `${number(total(seat))}, ${words(seat.stop_reason)}`]])];
  return h("dl", { class: "facts" }, shown.filter(([, value]) => value !== null && value !== undefined).map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value))));
}

const total = (seat) => seat.turns.reduce((sum, turn) => sum + turn.reward, seat.early_reward);

function keys(mode) {
  const key = (name, text) => [h("span", { class: `token ${name}` }, " a "), ` ${text}  `];
  if (mode === "source") return [key("sampled", "sampled and trained on"), key("masked", "sampled, not trained on"), key("given", "from the environment and the template")];
  if (mode === "surprise") return [key("l0", "certain"), key("l4", "1 in 50"), key("l7", "1 in 3,000 or less")];
  if (mode === "gap") return [key("n5", "the learner finds it less likely"), key("l0", "less than 0.00001 nats apart"), key("p5", "more likely, by 0.1 nats or more")];
  if (mode === "entropy") return [key("l0", "one choice"), key("l3", "as open as between 7 equal ones"), key("l7", "100 or more")];
  return [key("n6", "below 0"), key("l0", "0"), key("p6", "above 0")];
}

function missed(mode, view) {
  if (mode === "gap") return view.fate && view.fate.fate !== "trained" ? "The learner did not read this episode: it was not trained on." : "Not stored: the learner's logprobs are written with the checkpoint after the step. Bundles and runs of earlier versions have none.";
  if (mode === "advantage") return "Its group has no other completed episode to compare it with.";
  return SCORED.has(mode) ? "Known once a policy has read the tokens again:" : "";
}

// One seat: its turns, each with what was said on the left and its tokens on the right.
class Axis {
  constructor(seat, view, inspect, branchFrom) {
    this.seat = seat;
    this.branchFrom = branchFrom;
    this.texts = view.texts[seat.agent];
    const own = view.group.filter((one) => one.agent === seat.agent && one.completed);
    this.advantage = own.length > 1 ? total(seat) - own.reduce((sum, one) => sum + one.episode_return, 0) / own.length : null;
    this.pictures = seat.segments.flatMap((segment) => segment.images.map((one) => one.sha256));
    this.gaps = view.logprob_gaps[seat.agent];
    this.scores = [];
    this.ranks = seat.segments.map((segment) => { let count = 0; return segment.loss_mask.map((own) => (own ? count++ : null)); });
    this.spans = [];
    this.lazy = new Map();
    this.observer = new IntersectionObserver((entries) => entries.filter((one) => one.isIntersecting).forEach((one) => this.#write(one.target)), { rootMargin: "800px" });
    this.element = h("section", { class: "axis" },
      h("h2", null, seat.agent, seat.trained ? null : h("span", { class: "badge" }, "not trained")),
      seat.turns.map((turn, number_) => this.#turn(turn, number_)), this.#end());
    this.element.addEventListener("pointerover", (event) => this.#tell(event.target, inspect));
    this.element.addEventListener("click", (event) => this.#tell(event.target, inspect));
    this.element.addEventListener("keydown", (event) => this.#walk(event, inspect));
  }

  // The arrow keys read the tokens of a turn one by one.
  #walk(event, inspect) {
    const box = event.target, by = { ArrowLeft: -1, ArrowRight: 1 }[event.key], tokens = box.getElementsByClassName("token");
    if (!by || !tokens.length || !box.classList.contains("tokens")) return;
    event.preventDefault();
    const before = tokens[box.at];
    box.at = Math.max(0, Math.min(tokens.length - 1, (box.at ?? -1) + by));
    before?.classList.remove("read");
    tokens[box.at].classList.add("read");
    tokens[box.at].scrollIntoView({ block: "nearest" });
    this.#tell(tokens[box.at], inspect);
  }

  #turn(turn, at) {
    const before = this.seat.turns[at - 1];
    const from = before && before.segment === turn.segment ? before.end : 0;
    const id = `${this.seat.agent}-turn-${at + 1}`;
    const chips = Object.entries(turn.metrics).map(([name, value]) => h("span", { class: "tag" }, `${name} ${number(value)}`));
    return h("article", { class: "turn", id },
      h("div", { class: "turn-head small" }, h("a", { href: `#${encodeURIComponent(id)}` }, `Turn ${at + 1}`), turn.move ? ` · move ${turn.move}` : "", ` · version ${turn.policy_version}`,
        turn.finish_reason === "length" ? h("span", { class: "alarm" }, " ⚠ cut by a limit") : "", turn.void ? h("span", { class: "alarm" }, " ⚠ had no effect") : "",
        h("b", { class: turn.reward < 0 ? "bad" : turn.reward > 0 ? "good" : "" }, ` reward ${number(turn.reward)} `), chips, this.branchFrom(at + 1)),
      h("div", { class: "sides" },
        h("div", { class: "speech" }, shown(turn.view), h("div", { class: "observation" }, content(turn.observation, this.pictures)), h("div", { class: "action" }, action(turn.action))),
        this.#tokens(turn.segment, from, turn.end, turn)));
  }

  // The tokens after the last turn, and what the environment showed at the end.
  #end() {
    const last = this.seat.turns.at(-1);
    const rest = last ? this.seat.segments[last.segment].token_ids.length > last.end : this.seat.segments.length > 0;
    if (!this.seat.final_observation.length && !rest) return null;
    return h("article", { class: "turn" }, h("div", { class: "turn-head small" }, "The end"), h("div", { class: "sides" },
      h("div", { class: "speech" }, shown(this.seat.final_view), h("div", { class: "observation" }, content(this.seat.final_observation, this.pictures))),
      rest ? this.#tokens(last?.segment ?? 0, last?.end ?? 0, this.seat.segments[last?.segment ?? 0].token_ids.length, null) : h("div", { class: "quiet small" }, "It is not part of any prompt: there are no tokens.")));
  }

  #tokens(segment, from, to, turn) {
    const box = h("div", { class: "tokens", tabindex: 0, role: "group", "aria-label": "Tokens; the arrow keys read them one by one" });
    box.style.setProperty("min-height", `${Math.min(400, 4 + (to - from) / 3)}px`);
    if (!this.texts.segments) return fill(box, h("p", { class: "quiet" }, `The tokens cannot be shown as text: ${this.texts.why_not}`));
    this.lazy.set(box, { segment, from, to, turn });
    this.observer.observe(box);
    return box;
  }

  #write(box) {
    const part = this.lazy.get(box);
    if (!part) return;
    this.lazy.delete(box);
    this.observer.unobserve(box);
    const { token_ids, loss_mask, images } = this.seat.segments[part.segment], texts = this.texts.segments[part.segment];
    const spans = [];
    for (let at = part.from; at < part.to; ) {
      const picture = images.find((one) => one.start <= at && at < one.end);
      if (picture) {
        box.append(h("span", { class: "token given" }, `[${picture.end - at} image tokens]`), image(picture.sha256));
        at = picture.end;
        continue;
      }
      let end = at + 1;
      // Tokens that were not sampled are all alike: one element for all of them.
      if (!loss_mask[at]) while (end < part.to && !loss_mask[end] && !images.some((one) => one.start === end)) end += 1;
      const span = h("span", { class: "token", "data-at": at, "data-segment": part.segment }, texts.slice(at, end).join("") || "·");
      spans.push({ span, at, segment: part.segment, sampled: loss_mask[at], turn: part.turn, ids: token_ids.slice(at, end) });
      box.append(span);
      at = end;
    }
    this.spans.push(...spans);
    for (const one of spans) one.span.className = `token ${this.#level(one)}`;
  }

  writeAll() {
    for (const box of [...this.lazy.keys()]) this.#write(box);
  }

  paint(mode) {
    this.mode = mode;
    for (const one of this.spans) one.span.className = `token ${this.#level(one)}`;
  }

  // What a mode colors by; undefined if it is not known.
  #value(mode, segment, at, turn) {
    const scores = this.scores[segment];
    if (mode === "reward") return turn?.reward ?? 0;
    if (mode === "advantage") return this.advantage ?? undefined;
    if (mode === "gap") return this.gaps?.[segment]?.[this.ranks[segment][at]] ?? undefined;
    if (mode === "entropy") return scores?.entropies?.[at] ?? undefined;
    return scores?.logprobs ? scores.logprobs[at] - this.seat.segments[segment].sampling_logprobs[at] : undefined;
  }

  lacks(mode) {
    return (mode === "gap" && !this.gaps) || (mode === "advantage" && this.advantage === null) || (SCORED.has(mode) && !this.scores.some((one) => one?.[mode === "entropy" ? "entropies" : "logprobs"]));
  }

  #level(one) {
    if (!one.sampled) return "given";
    if (this.mode === "source") return this.seat.trained && !one.turn?.void ? "sampled" : "masked";
    if (this.mode === "surprise") return `l${Math.min(LEVELS - 1, Math.floor(-this.seat.segments[one.segment].sampling_logprobs[one.at]))}`;
    const value = this.#value(this.mode, one.segment, one.at, one.turn);
    if (value === undefined) return "unknown";
    if (this.mode === "entropy") return `l${Math.min(LEVELS - 1, Math.floor(value * 1.6))}`;
    const size = Math.abs(value);
    const level = Math.min(LEVELS - 1, this.mode === "gap" ? Math.max(0, Math.ceil(Math.log10(size) + 5)) : Math.ceil(size * (LEVELS - 2)));
    return level === 0 ? "l0" : `${value < 0 ? "n" : "p"}${level}`;
  }

  #tell(target, inspect) {
    const at = target.dataset?.at;
    if (at === undefined) return;
    const segment = this.seat.segments[target.dataset.segment], logprob = segment.sampling_logprobs[at];
    const said = JSON.stringify(target.textContent.slice(0, 60));
    const more = ["gap", "entropy", "change"].map((mode) => [mode, this.#value(mode, target.dataset.segment, at)]).filter(([, value]) => value !== undefined).map(([mode, value]) => `, ${mode} ${number(value, 4)}`).join("");
    inspect.textContent = logprob === null
      ? `from position ${at}: ${said}, given to the policy`
      : `position ${at}, id ${segment.token_ids[at]}: ${said}, logprob ${number(logprob, 4)}, probability ${number(Math.exp(logprob), 4)}${this.advantage === null ? "" : `, to its group ${number(this.advantage)}`}${more}`;
  }
}

// The page as one file that needs nothing else: images inside, no script, nothing from anywhere.
async function exported(main, view, axes) {
  for (const axis of axes) axis.writeAll();
  const copy = main.cloneNode(true);
  const pictures = [...main.querySelectorAll("img")];
  const data = await Promise.all(pictures.map((one) => fetch(one.src).then((answer) => answer.blob()).then(dataUrl).catch(() => "")));
  [...copy.querySelectorAll("img")].forEach((one, at) => { one.removeAttribute("loading"); one.setAttribute("src", data[at]); });
  const folds = [...main.querySelectorAll(".show-all")];
  [...copy.querySelectorAll(".show-all")].forEach((one, at) => { one.parentNode.textContent = folds[at].whole; });
  for (const one of copy.querySelectorAll("button, select, .inspect, .branch, .replay")) one.remove();
  for (const link of copy.querySelectorAll("a")) if (!link.getAttribute("href").startsWith("#")) link.replaceWith(...link.childNodes);
  const style = await (await fetch("/dashboard/static/style.css")).text(), written = (node) => new XMLSerializer().serializeToString(node);
  const policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:";
  const text = `<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="${policy}">${written(h("title", null, `Episode ${view.episode.episode_id}`))}<style>${style}</style></head><body>${written(copy)}</body></html>`;
  const link = h("a", { href: URL.createObjectURL(new Blob([text], { type: "text/html" })), download: `episode-${view.step}-${view.index}.html` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  toast("Exported: one file with everything that this page shows.");
}

function dataUrl(blob) {
  return new Promise((resolve) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.readAsDataURL(blob);
  });
}
