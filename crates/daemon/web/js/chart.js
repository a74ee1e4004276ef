// Charts over time on a canvas: lines or stacked areas, with a crosshair for pointer and keyboard.

import { h, fill, inView } from "./dom.js";
import { clock, day, dayAndClock } from "./format.js";

const LEFT = 56;
const BOTTOM = 20;
const TOP = 8;
/** Lines or areas of one chart: more cannot be told apart, and cost the browser a tenth of a second. */
const MOST = 24;

/** Sizes a canvas for its box and the screen; returns the context and the size in CSS pixels. A known size is not measured. */
export function prepare(canvas, known = null) {
  const scale = window.devicePixelRatio || 1;
  const width = known?.width ?? canvas.clientWidth;
  const height = known?.height ?? canvas.clientHeight;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = "11px system-ui, sans-serif";
  return { context, width, height };
}

const shades = new Map();
let shadesAt = 0;

/** A colour of the style sheet. It is read twice a second, because reading makes the browser work out all styles. */
export function shade(name) {
  const now = performance.now();
  if (now - shadesAt > 500) {
    shades.clear();
    shadesAt = now;
  }
  let value = shades.get(name);
  if (value === undefined) {
    value = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    shades.set(name, value);
  }
  return value;
}

/** Colours are read anew: light became dark, or dark light. */
export function forgetShades() {
  shades.clear();
}

const jobs = [];
let jobsFrame = 0;

/** Does something in one of the next frames, one thing a frame: an update of everything at once would cost a frame. */
export function later(job, isFirst = false) {
  if (!jobs.includes(job)) {
    if (isFirst) jobs.unshift(job);
    else jobs.push(job);
  }
  jobsFrame ||= requestAnimationFrame(runJob);
}

function runJob() {
  jobsFrame = 0;
  const job = jobs.shift();
  if (jobs.length) jobsFrame = requestAnimationFrame(runJob);
  job?.();
}

/** Places of the times that are drawn: no more than one for each two pixels, the same ones from draw to draw. */
function drawn(times, width) {
  const all = [...times.keys()];
  const most = Math.max(60, width / 2);
  if (times.length <= most) return all;
  const step = (times.at(-1) - times[0]) / most;
  return all.filter((place) => place === 0 || place === times.length - 1 || Math.floor(times[place] / step) !== Math.floor(times[place - 1] / step));
}

/** A round number for the top of an axis. */
function roundUp(value, binary) {
  const base = binary ? 2 : 10;
  const power = base ** Math.floor(Math.log(value) / Math.log(base));
  const steps = binary ? [1, 1.25, 1.5, 1.75, 2] : [1, 2, 2.5, 5, 10];
  return (steps.find((step) => step * power >= value) ?? base) * power;
}

/** Times of an axis with their words, at most so many; days begin where the visitor's do. */
function ticks(from, to, most) {
  const span = to - from;
  const step = [10, 15, 30, 60, 120, 300, 900, 3600, 14400, 43200, 86400, 172800].find((s) => span / s <= most) ?? 604800;
  const shift = new Date(to * 1000).getTimezoneOffset() * 60;
  const all = [];
  for (let time = Math.ceil((from - shift) / step) * step + shift; time <= to; time += step) {
    const isDay = (time - shift) % 86400 === 0;
    all.push([time, isDay && span > 43200 ? day(time) : clock(time, step < 60)]);
  }
  return all;
}

/**
 * A chart. `options`: title, format, stacked, binary (round numbers are powers of two), most (least top of the axis),
 * data: () => ({ times, series: [{ name, color, values, dashed }] }).
 */
export class Chart {
  constructor(options) {
    this.options = options;
    this.canvas = h("canvas", { class: "chart", tabindex: "0", role: "img", "aria-label": options.title });
    this.cross = h("div", { class: "cross", hidden: true });
    this.tip = h("div", { class: "tip", hidden: true });
    this.legend = h("ul", { class: "legend", "aria-hidden": "true" });
    this.element = h("figure", { class: "card figure" }, h("figcaption", {}, h("h2", {}, options.title), options.aside), h("div", { class: "plot" }, this.canvas, this.cross, this.tip), this.legend);
    this.cursor = null;
    this.canvas.addEventListener("pointermove", (event) => this.point(event.offsetX));
    this.canvas.addEventListener("pointerleave", () => this.point(null));
    this.canvas.addEventListener("blur", () => this.point(null));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.redraw = () => this.draw();
    this.view = inView(this.canvas, () => this.draw());
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(this.canvas);
  }

  close() {
    this.observer.disconnect();
  }

  key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -1e9, End: 1e9 }[event.key];
    if (!step || !this.data?.times.length) return;
    event.preventDefault();
    const last = this.data.times.length - 1;
    const place = Math.min(last, Math.max(0, (this.place ?? last) + step));
    this.point(this.x(this.data.times[place]));
  }

  point(x) {
    this.cursor = x;
    if (this.data && this.width) this.crosshair();
  }

  x(time) {
    return LEFT + (time - this.from) / (this.to - this.from) * (this.width - LEFT - 4);
  }

  /** Reads the data and draws it. */
  draw() {
    if (!this.view.isInView) return;
    const { context, width, height } = prepare(this.canvas);
    if (width === 0) return;
    this.width = width;
    this.data = this.options.data();
    const { times, series } = this.data;
    this.places = drawn(times, width);
    this.to = times.at(-1) ?? Date.now() / 1000;
    this.from = Math.min(times[0] ?? this.to, this.to - 60);
    const { shown, rest } = highest(series.filter((one) => !one.dashed));
    if (rest.length && this.options.stacked) shown.push({ name: `${rest.length} others`, color: shade("--muted"), values: sum(rest, times.length) });
    const stack = this.options.stacked ? stacked(shown, times.length) : null;
    const dashed = series.filter((one) => one.dashed);
    let most = this.options.most ?? 0;
    for (const one of [...shown, ...dashed]) {
      const values = stack?.get(one) ?? one.values;
      for (const value of values) if (value > most) most = value;
    }
    this.top = roundUp(most || 1, this.options.binary);
    const y = (value) => TOP + (1 - value / this.top) * (height - TOP - BOTTOM);
    this.axes(context, width, height, y);
    context.save();
    context.beginPath();
    context.rect(LEFT, 0, width - LEFT, height);
    context.clip();
    if (stack) this.areas(context, shown, stack, y);
    // Lines at zero hide each other: one of them is drawn.
    const flat = shown.filter((one) => !one.values.some((value) => value > 0)).slice(0, -1);
    for (const one of stack ? dashed : [...shown.filter((one) => !flat.includes(one)), ...dashed]) this.line(context, one, y);
    context.restore();
    this.crosshair();
    this.describe(series);
  }

  axes(context, width, height, y) {
    context.fillStyle = shade("--muted");
    context.strokeStyle = shade("--line");
    context.lineWidth = 1;
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (let part = 0; part <= 4; part += 1) {
      const value = this.top * part / 4;
      const at = Math.round(y(value)) + 0.5;
      context.beginPath();
      context.moveTo(LEFT, at);
      context.lineTo(width, at);
      context.stroke();
      if (part % 2 === 0) context.fillText(this.options.format(value), LEFT - 6, at);
    }
    context.textAlign = "center";
    context.textBaseline = "alphabetic";
    for (const [time, words] of ticks(this.from, this.to, Math.max(2, (width - LEFT) / 90))) {
      const at = this.x(time);
      if (at > LEFT + 20 && at < width - 20) context.fillText(words, at, height - 5);
    }
  }

  areas(context, series, stack, y) {
    const { times } = this.data;
    let below = null;
    for (const one of series) {
      const above = stack.get(one);
      // Of a hundred tenants most have nothing to show.
      if (above === below) continue;
      context.beginPath();
      for (const place of this.places) context.lineTo(this.x(times[place]), y(above[place]));
      for (let at = this.places.length - 1; at >= 0; at -= 1) {
        const place = this.places[at];
        context.lineTo(this.x(times[place]), y(below?.[place] ?? 0));
      }
      context.closePath();
      context.fillStyle = one.color;
      context.globalAlpha = 0.82;
      context.fill();
      context.globalAlpha = 1;
      below = above;
    }
  }

  line(context, one, y) {
    context.strokeStyle = one.color;
    context.lineWidth = one.dashed ? 1.5 : 1.75;
    context.setLineDash(one.dashed ? [5, 4] : []);
    context.lineJoin = "round";
    context.beginPath();
    let last = -Infinity;
    const gap = Math.max(30, (this.to - this.from) / 20);
    for (const place of this.places) {
      const time = this.data.times[place];
      const value = one.values[place];
      if (value == null) continue;
      // A missing value is bridged, a missing time is not.
      if (time - last < gap) context.lineTo(this.x(time), y(value));
      else context.moveTo(this.x(time), y(value));
      last = time;
    }
    context.stroke();
    context.setLineDash([]);
  }

  /** What was measured at the time under the pointer. It is not part of the picture, which stays as it is drawn. */
  crosshair() {
    const { times, series } = this.data;
    const isShown = this.cursor != null && times.length > 0;
    this.tip.hidden = !isShown;
    this.cross.hidden = !isShown;
    this.place = null;
    if (!isShown) return;
    let best = 0;
    times.forEach((time, place) => {
      if (Math.abs(this.x(time) - this.cursor) < Math.abs(this.x(times[best]) - this.cursor)) best = place;
    });
    this.place = best;
    const at = this.x(times[best]);
    this.cross.style.left = `${at}px`;
    const rows = series.filter((one) => one.values[best] != null);
    if (this.options.stacked) rows.sort((a, b) => b.values[best] - a.values[best]);
    const shown = rows.slice(0, 10).map((one) => {
      const dot = h("i", {});
      dot.style.background = one.color;
      return h("div", {}, dot, h("span", {}, one.name), h("b", {}, this.options.format(one.values[best])));
    });
    const more = rows.length > 10 ? h("div", {}, h("span", {}, `and ${rows.length - 10} more`)) : null;
    fill(this.tip, h("div", { class: "when" }, dayAndClock(times[best])), shown, more);
    const right = at > this.width / 2;
    this.tip.style.left = right ? "auto" : `${at + 10}px`;
    this.tip.style.right = right ? `${this.width - at + 10}px` : "auto";
  }

  /** The legend, and the same in words for a screen reader. */
  describe(series) {
    const last = (one) => one.values.findLast((value) => value != null);
    const now = series.filter((one) => one.values.at(-1) != null);
    const first = [...now].sort((a, b) => (b.values.at(-1) ?? 0) - (a.values.at(-1) ?? 0));
    const shown = series.length > 8 ? first.slice(0, 7) : series;
    const names = shown.map((one) => one.name).join("\n") + series.length + this.options.title;
    if (names !== this.names) {
      this.names = names;
      const items = shown.map((one) => {
        const dot = h("i", { class: one.dashed ? "dashed" : "" });
        dot.style[one.dashed ? "borderColor" : "background"] = one.color;
        return h("li", {}, dot, one.name);
      });
      if (series.length > shown.length) {
        const grey = this.options.stacked && series.length > MOST ? `, ${series.length - MOST} of them together in grey` : "";
        items.push(h("li", { class: "muted" }, `and ${series.length - shown.length} more${grey}`));
      }
      fill(this.legend, items);
    }
    const said = Math.floor(Date.now() / 5000);
    if (said === this.said) return;
    this.said = said;
    const words = first.slice(0, 8).map((one) => `${one.name} ${this.options.format(last(one) ?? 0)}`);
    this.canvas.setAttribute("aria-label", `${this.options.title}, now: ${words.join(", ") || "nothing"}`);
  }
}

/** Those with the most, in their order, and the rest. */
function highest(series) {
  if (series.length <= MOST) return { shown: [...series], rest: [] };
  const total = new Map(series.map((one) => [one, one.values.reduce((all, value) => all + (value ?? 0), 0)]));
  const first = new Set([...series].sort((a, b) => total.get(b) - total.get(a)).slice(0, MOST));
  return { shown: series.filter((one) => first.has(one)), rest: series.filter((one) => !first.has(one)) };
}

function sum(series, length) {
  const sums = new Array(length).fill(0);
  for (const one of series) one.values.forEach((value, place) => { sums[place] += value ?? 0; });
  return sums;
}

function stacked(series, length) {
  let sums = new Array(length).fill(0);
  const stack = new Map();
  for (const one of series) {
    // The same sums for one that has nothing anywhere.
    if (one.values.some((value) => value > 0)) {
      const below = sums;
      sums = one.values.map((value, place) => below[place] + (value ?? 0));
    }
    stack.set(one, sums);
  }
  return stack;
}

/** The size that the style sheet gives to the lines in tables. */
const SPARK = { width: 120, height: 28 };
const SVG = "http://www.w3.org/2000/svg";

/** A small line without axes, for a table. Not a canvas: the browser keeps a layer for each of those, in view or not. */
export function spark(color) {
  const make = (tag, properties) => {
    const made = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(properties)) made.setAttribute(name, value);
    return made;
  };
  const element = make("svg", { class: "spark", "aria-hidden": "true", viewBox: `0 0 ${SPARK.width} ${SPARK.height}` });
  const area = make("path", { fill: color, "fill-opacity": "0.18" });
  const line = make("path", { fill: "none", stroke: color, "stroke-width": "1.5" });
  element.append(area, line);
  let shown = "";
  return {
    element,
    set(values, most) {
      const known = values.slice(-60);
      if (known.length < 2) return;
      const x = (place) => (place / (known.length - 1) * SPARK.width).toFixed(1);
      const y = (value) => (SPARK.height - 1 - Math.min(1, (value ?? 0) / most) * (SPARK.height - 2)).toFixed(1);
      const path = `M${known.map((value, place) => `${x(place)} ${y(value)}`).join("L")}`;
      if (path === shown) return;
      shown = path;
      line.setAttribute("d", path);
      area.setAttribute("d", `${path}L${SPARK.width} ${SPARK.height}L0 ${SPARK.height}Z`);
    },
  };
}
