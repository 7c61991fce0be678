// Line charts on a canvas: several lines over one axis, a band or points with intervals, stacked areas.
// Point at one to read values; drag to zoom, double-click to see everything again.

import { h } from "./dom.js";
import { number, whole } from "./format.js";

// Okabe and Ito's palette, which color-blind people can tell apart. Further lines are thicker: dashes along
// thousands of short strokes take seconds to draw.
export const COLORS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#7f7f7f"];
const LEFT = 52, RIGHT = 10, TOP = 8, BOTTOM = 22, HEIGHT = 190;

export class Chart {
  constructor(title, explanation, options = {}) {
    this.options = options;
    this.lines = [];
    this.zoom = null;
    this.canvas = h("canvas", { role: "img", height: HEIGHT, tabindex: 0 });
    this.legend = h("div", { class: "legend small" });
    this.empty = h("p", { class: "quiet small" }, options.empty ?? "No values yet.");
    this.element = h("figure", { class: "chart" },
      h("figcaption", null, h("h3", null, title), h("p", { class: "quiet small" }, explanation)), this.canvas, this.empty, this.legend);
    this.title = title;
    this.#listen();
    new ResizeObserver(() => this.draw()).observe(this.element);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  // Lines: {label, steps, values, low?, high?, points?}; steps ascend.
  set(lines) {
    this.lines = lines.filter((line) => line.steps.length);
    if (this.options.stacked) this.#complete();
    this.draw();
  }

  // Every line of a stack needs a value at every step: what a step does not name took nothing.
  #complete() {
    const steps = [...new Set(this.lines.flatMap((line) => line.steps))].sort((a, b) => a - b);
    for (const line of this.lines) {
      const known = new Map(line.steps.map((step, at) => [step, line.values[at]]));
      line.values = steps.map((step) => known.get(step) ?? 0);
      line.steps = [...steps];
    }
  }

  append(label, step, value) {
    const line = this.lines.find((one) => one.label === label);
    if (!line || !Number.isFinite(value)) return;
    const at = line.steps.indexOf(step, Math.max(0, line.steps.length - 200));
    if (at >= 0) line.values[at] = value; // a repeated step
    else if (step > (line.steps.at(-1) ?? -1)) { line.steps.push(step); line.values.push(value); }
    this.draw();
  }

  draw() {
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.#paint());
  }

  #listen() {
    const step = (event) => this.#stepAt(event.clientX - this.canvas.getBoundingClientRect().left);
    this.canvas.addEventListener("pointerdown", (event) => { this.from = step(event); this.canvas.setPointerCapture(event.pointerId); });
    this.canvas.addEventListener("pointermove", (event) => { this.at = step(event); this.draw(); });
    this.canvas.addEventListener("pointerleave", () => { this.at = undefined; this.draw(); });
    this.canvas.addEventListener("pointerup", (event) => {
      const to = step(event);
      if (Math.abs(to - this.from) >= 2) this.zoom = [Math.min(this.from, to), Math.max(this.from, to)];
      else this.options.onpick?.(Math.round(to));
      this.from = undefined;
      this.draw();
    });
    this.canvas.addEventListener("dblclick", () => { this.zoom = null; this.draw(); });
    this.canvas.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (event.key === "Escape") this.zoom = null;
      else if (event.key === "Enter" && this.at !== undefined) this.options.onpick?.(Math.round(this.at));
      else if ("+-".includes(event.key)) this.#zoomBy(event.key === "+" ? 0.5 : 2);
      else if (by) this.at = Math.round((this.at ?? this.#range()[1]) + by * Math.max(1, (this.#range()[1] - this.#range()[0]) / 50));
      else return;
      event.preventDefault();
      this.draw();
    });
  }

  // Around the step that is pointed at, else around the newest.
  #zoomBy(factor) {
    const [first, last] = this.#range(), at = this.at ?? last, long = Math.max(1, (last - first) * factor / 2);
    this.zoom = null;
    const [from, to] = this.#range();
    if (at - long > from || at + long < to) this.zoom = [Math.max(from, at - long), Math.min(to, at + long)];
  }

  #range() {
    if (this.zoom) return this.zoom;
    const first = Math.min(...this.lines.map((line) => line.steps[0]));
    const last = Math.max(...this.lines.map((line) => line.steps.at(-1)));
    return first === last ? [first - 1, last + 1] : [first, last];
  }

  #stepAt(x) {
    const [first, last] = this.#range();
    return first + ((x - LEFT) / (this.width - LEFT - RIGHT)) * (last - first);
  }

  // The values of each line, those of stacked ones on top of each other.
  #heights() {
    if (!this.options.stacked) return this.lines.map((line) => this.#smooth(line.values));
    const below = new Map();
    return this.lines.map((line) => line.values.map((value, index) => {
      const sum = (below.get(line.steps[index]) ?? 0) + value;
      below.set(line.steps[index], sum);
      return sum;
    }));
  }

  #smooth(values) {
    const share = this.options.smoothing ?? 0;
    if (!share) return values;
    let mean = values[0];
    return values.map((value) => (mean = share * mean + (1 - share) * value));
  }

  #paint() {
    this.canvas.hidden = !this.lines.length;
    this.empty.hidden = this.lines.length > 0;
    if (!this.lines.length) return;
    this.width = this.element.clientWidth - 24;
    if (this.width < 80) return;
    const scale = devicePixelRatio || 1;
    this.canvas.width = this.width * scale;
    this.canvas.height = HEIGHT * scale;
    this.canvas.style.width = `${this.width}px`;
    this.canvas.style.height = `${HEIGHT}px`;
    const pen = this.canvas.getContext("2d");
    pen.scale(scale, scale);
    const style = getComputedStyle(document.documentElement);
    const ink = style.getPropertyValue("--quiet"), rule = style.getPropertyValue("--line");
    const [first, last] = this.#range();
    const heights = this.#heights();
    const [low, high] = this.#extent(heights, first, last);
    const x = (step) => LEFT + ((step - first) / (last - first)) * (this.width - LEFT - RIGHT);
    const y = (value) => HEIGHT - BOTTOM - ((value - low) / (high - low)) * (HEIGHT - BOTTOM - TOP);
    this.#axes(pen, { first, last, low, high, x, y, ink, rule });
    pen.save();
    pen.beginPath();
    pen.rect(LEFT, 0, this.width - LEFT, HEIGHT - BOTTOM + 1);
    pen.clip();
    [...this.lines.keys()].reverse().forEach((index) => this.#line(pen, index, heights, x, y));
    if (this.at !== undefined) {
      pen.strokeStyle = ink;
      pen.strokeRect(Math.round(x(this.at)) + 0.5, TOP, 0, HEIGHT - TOP - BOTTOM);
    }
    pen.restore();
    this.#tell();
  }

  #extent(heights, first, last) {
    let low = this.options.stacked || this.options.fromZero ? 0 : Infinity, high = -Infinity;
    this.lines.forEach((line, index) => line.steps.forEach((step, at) => {
      if (step < first || step > last) return;
      low = Math.min(low, line.low?.[at] ?? heights[index][at]);
      high = Math.max(high, line.high?.[at] ?? heights[index][at]);
    }));
    if (!Number.isFinite(low)) [low, high] = [0, 1];
    const room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 0.5;
    return [low === 0 ? 0 : low - room, high + room];
  }

  #axes(pen, { first, last, low, high, x, y, ink, rule }) {
    pen.font = "11px system-ui, sans-serif";
    pen.fillStyle = ink;
    pen.strokeStyle = rule;
    pen.lineWidth = 1;
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (const value of ticks(low, high, 4)) {
      pen.strokeRect(LEFT, Math.round(y(value)) + 0.5, this.width - LEFT - RIGHT, 0);
      pen.fillText(this.options.format?.(value) ?? number(value, high - low < 0.1 ? 4 : 2), LEFT - 6, y(value));
    }
    pen.textAlign = "center";
    pen.textBaseline = "top";
    for (const value of ticks(first, last, Math.max(2, Math.floor(this.width / 110)))) {
      if (value >= first && (this.options.axis || Number.isInteger(value))) pen.fillText(this.options.axis ? number(value, 2) : whole(value), Math.min(x(value), this.width - 20), HEIGHT - BOTTOM + 6);
    }
  }

  #line(pen, index, heights, x, y) {
    const line = this.lines[index], values = heights[index];
    const color = COLORS[(line.color ?? index) % COLORS.length];
    pen.strokeStyle = pen.fillStyle = color;
    pen.lineWidth = 1.5 + 1.5 * Math.floor((line.color ?? index) / COLORS.length);
    if (line.low) { // An end is null where nothing bounds it: then there is no bar.
      line.steps.forEach((step, at) => line.low[at] !== null && line.high[at] !== null && pen.strokeRect(x(step), y(line.high[at]), 0, y(line.low[at]) - y(line.high[at])));
    }
    pen.beginPath();
    line.steps.forEach((step, at) => (at ? pen.lineTo(x(step), y(values[at])) : pen.moveTo(x(step), y(values[at]))));
    pen.stroke();
    if (this.options.stacked) {
      pen.lineTo(x(line.steps.at(-1)), y(0));
      pen.lineTo(x(line.steps[0]), y(0));
      pen.globalAlpha = 0.9;
      pen.fill();
      pen.globalAlpha = 1;
    } else if (line.points || line.steps.length === 1) {
      line.steps.forEach((step, at) => { pen.beginPath(); pen.arc(x(step), y(values[at]), 3, 0, 7); pen.fill(); });
    }
  }

  // What a pointer, or a screen reader, reads: each line's value there, or its newest.
  #tell() {
    const format = this.options.format ?? number;
    const told = this.lines.map((line, index) => {
      const at = this.at === undefined ? line.steps.length - 1 : nearest(line.steps, this.at);
      const value = format(line.values[at]);
      const interval = line.low && (line.low[at] ?? line.high[at] ?? null) !== null ? ` (${format(line.low[at])} to ${format(line.high[at])})` : "";
      const color = COLORS[(line.color ?? index) % COLORS.length];
      return [h("span", { class: "key", vars: { "--key": color } }), `${line.label} ${value}${interval} `, at];
    });
    const step = this.at === undefined ? Math.max(...this.lines.map((line) => line.steps.at(-1))) : this.lines[0].steps[told[0][2]];
    this.legend.replaceChildren(h("b", null, `${this.at === undefined ? "newest, " : ""}${this.options.axis ?? "step"} ${this.options.axis ? number(step) : whole(step)}: `), ...told.flatMap((one) => one.slice(0, 2)),
      ...(this.zoom ? [h("button", { type: "button", class: "plain", onclick: () => { this.zoom = null; this.draw(); } }, "show all steps")] : []));
    this.canvas.setAttribute("aria-label", `${this.title}, ${this.legend.textContent}`);
  }
}

function nearest(steps, wanted) {
  let low = 0, high = steps.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (steps[middle] < wanted) low = middle + 1;
    else high = middle;
  }
  return low > 0 && wanted - steps[low - 1] < steps[low] - wanted ? low - 1 : low;
}

export function ticks(low, high, count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const size = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
  const found = [];
  for (let value = Math.ceil(low / size) * size; value <= high + size * 1e-9; value += size) found.push(Math.abs(value) < size * 1e-9 ? 0 : Number(value.toPrecision(12)));
  return found;
}
