// Who had the GPU when: one row a virtual GPU, one bar a turn, down to a fraction of a millisecond.
//
// The canvas is wider than its window and slides behind it: the browser moves it without the page, which draws it anew
// when turns have arrived, four times a second.
//
//        |<------- window: span ------->|<- ahead ->|
//        start                         end         what has arrived

import { h, fill, inView } from "./dom.js";
import { later, prepare, shade } from "./chart.js";
import { Lanes } from "./lanes.js";
import { nanoseconds } from "./format.js";
import { color, on, store } from "./store.js";

const ROW = 24;
/** A bar of a turn is so much smaller than its row. */
const GAP = 8;
const AXIS = 20;
/** The right edge is so late behind the clock that what it shows has arrived. */
const LAG_NS = 400e6;
const CALM_MS = 500;
const SPANS = [[0.1, "0.1 s"], [0.5, "0.5 s"], [2, "2 s"], [10, "10 s"], [30, "30 s"]];
const STEPS = [1e6, 2e6, 5e6, 1e7, 2e7, 5e7, 1e8, 2e8, 5e8, 1e9, 2e9, 5e9, 1e10];

/** The timeline of a GPU; with `only`, of one virtual GPU on it. */
export class Timeline {
  constructor(gpu, { only = null, title = "Who has the GPU" } = {}) {
    this.gpu = gpu;
    this.only = only;
    this.span = 2;
    this.end = null;
    this.canvas = h("canvas", { "aria-hidden": "true" });
    this.window = h("div", { class: "timeline", tabindex: "0", role: "img", "aria-label": title }, this.canvas);
    this.tip = h("div", { class: "tip", hidden: true });
    this.labels = h("div", { class: "lanes" });
    this.pause = h("button", { "aria-pressed": "false", onclick: () => this.toggle() }, "Pause");
    this.spans = h("div", { class: "segments", role: "group", "aria-label": "Length of the timeline" });
    for (const [seconds, name] of SPANS) {
      this.spans.append(h("button", { "aria-pressed": String(seconds === this.span), onclick: () => this.zoom(seconds) }, name));
    }
    this.empty = h("p", { class: "muted empty" }, "Nobody has had the GPU lately.");
    this.element = h("section", { class: "card figure" },
      h("div", { class: "figcaption" }, h("h2", {}, title), h("div", { class: "row" }, this.spans, this.pause)),
      h("div", { class: "swim" }, this.labels, h("div", { class: "plot" }, this.window, this.tip)), this.empty);
    this.listen();
    this.calm = matchMedia("(prefers-reduced-motion: reduce)");
    this.view = inView(this.element, () => this.soon());
    // Measured when it changes, not when it is drawn: measuring makes the browser lay out the page.
    this.width = 0;
    this.observer = new ResizeObserver(([entry]) => { this.width = entry.contentRect.width; this.soon(); });
    this.observer.observe(this.window);
    this.drawn = 0;
    this.lanes = new Lanes();
    this.redraw = () => this.draw();
    const arrived = () => { if (this.end == null && (!this.calm.matches || performance.now() - this.drawn > CALM_MS)) this.soon(); };
    // Rows and colours may be others while it is paused, too.
    this.stops = [on("turns", arrived), on("stats", () => this.soon())];
  }

  listen() {
    const leave = () => { this.cursor = null; this.tip.hidden = true; };
    const all = {
      pointermove: (event) => this.hover(event),
      pointerleave: leave,
      pointerdown: (event) => { this.grip = this.place(event).x; this.window.setPointerCapture(event.pointerId); },
      pointerup: () => { this.grip = null; },
      keydown: (event) => this.key(event),
    };
    for (const [name, call] of Object.entries(all)) this.window.addEventListener(name, call);
    this.window.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
  }

  close() {
    clearTimeout(this.timer);
    this.slide?.cancel();
    this.observer.disconnect();
    this.stops.forEach((stop) => stop());
  }

  /** Draws in the next frame, before all else. */
  soon() {
    later(this.redraw, true);
  }

  /** The daemon's clock in this frame, as far as it is known. */
  now() {
    return store.turns.get(this.gpu)?.clock(document.timeline.currentTime ?? performance.now()) ?? null;
  }

  toggle() {
    if (this.now() == null) return;
    this.end = this.end == null ? this.now() - LAG_NS : null;
    this.pause.textContent = this.end == null ? "Pause" : "Go on";
    this.pause.setAttribute("aria-pressed", String(this.end != null));
    this.soon();
  }

  zoom(seconds) {
    this.span = Math.min(60, Math.max(0.02, seconds));
    [...this.spans.children].forEach((button, place) => button.setAttribute("aria-pressed", String(SPANS[place][0] === this.span)));
    this.soon();
  }

  wheel(event) {
    if ((!event.ctrlKey && !event.shiftKey) || this.now() == null) return;
    event.preventDefault();
    if (this.end == null) this.toggle();
    const part = this.place(event).x / this.width;
    const before = this.span;
    this.zoom(this.span * (event.deltaY > 0 || event.deltaX > 0 ? 1.25 : 0.8));
    this.end += (1 - part) * (this.span - before) * 1e9;
  }

  key(event) {
    const pan = { ArrowLeft: -0.2, ArrowRight: 0.2 }[event.key];
    if (pan && this.now() == null) return;
    if (pan) {
      if (this.end == null) this.toggle();
      this.end = Math.min(this.now(), this.end + pan * this.span * 1e9);
      this.soon();
    } else if (event.key === "+" || event.key === "=") this.zoom(this.span / 2);
    else if (event.key === "-") this.zoom(this.span * 2);
    else if (event.key === " ") this.toggle();
    else return;
    event.preventDefault();
  }

  /** Where an event is in the window: the canvas slides. */
  place(event) {
    const box = this.window.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  }

  hover(event) {
    this.cursor = this.place(event);
    const moved = this.cursor.x - this.grip;
    if (this.grip != null && event.buttons && Math.abs(moved) >= 2 && this.now() != null) {
      if (this.end == null) this.toggle();
      this.end = Math.min(this.now(), this.end - moved / this.width * this.span * 1e9);
      this.grip = this.cursor.x;
      this.soon();
    }
    this.explain();
  }

  /** The rows: everybody on this GPU, with those who had turns first where there are many. */
  rows() {
    const all = store.vgpus.filter((vgpu) => vgpu.gpu === this.gpu && (!this.only || vgpu.name === this.only));
    const had = store.turns.get(this.gpu)?.tenants;
    const shown = all.length > 16 ? all.filter((vgpu) => had?.has(vgpu.name)) : all;
    return shown.map((vgpu) => vgpu.name);
  }

  label(rows) {
    const key = rows.join("\n");
    if (key === this.labelled) return;
    this.labelled = key;
    this.window.style.height = `${rows.length * ROW + AXIS}px`;
    fill(this.labels, rows.map((name) => {
      const dot = h("i", {});
      dot.style.background = color(name);
      return h("a", { href: `#/vgpu/${encodeURIComponent(name)}`, title: name }, dot, h("span", {}, name));
    }));
  }

  draw() {
    if (!this.view.isInView || !this.element.isConnected) return;
    const rows = this.rows();
    const gpu = store.turns.get(this.gpu);
    this.label(rows);
    this.empty.hidden = rows.length > 0 && Boolean(gpu?.turns.length);
    if (!gpu || rows.length === 0 || !this.width) return;
    this.drawn = performance.now();
    const end = this.end ?? this.now() - LAG_NS;
    const span = this.span * 1e9;
    const ahead = this.end != null || this.calm.matches ? 0 : Math.min(LAG_NS, span);
    const wide = Math.ceil(this.width * (1 + ahead / span));
    const height = rows.length * ROW + AXIS;
    this.canvas.style.width = `${wide}px`;
    this.canvas.style.height = `${height}px`;
    const { context } = prepare(this.canvas, { width: wide, height });
    const from = end - span;
    const until = from + span * wide / this.width;
    const x = (ns) => (ns - from) / span * this.width;
    this.grid(context, rows, wide, height, from, until, x);
    this.bars(context, rows, wide, gpu, from, until, x);
    this.slideBy(ahead);
    this.explain();
    this.describe(gpu, rows, from, end);
  }

  /** Has the browser move the canvas, by a time of the timeline. */
  slideBy(ahead) {
    this.slide?.cancel();
    clearTimeout(this.timer);
    if (!ahead) return;
    const way = -ahead / this.span / 1e9 * this.width;
    const duration = ahead / 1e6;
    this.slide = this.canvas.animate([{ transform: "translateX(0)" }, { transform: `translateX(${way}px)` }], { duration, fill: "forwards" });
    // From the time that was drawn, which is this frame's.
    this.slide.startTime = document.timeline.currentTime;
    // Turns may arrive late, or the window may be shorter than the time between them.
    this.timer = setTimeout(() => this.soon(), duration * 0.85);
  }

  grid(context, rows, wide, height, from, until, x) {
    context.fillStyle = shade("--stripe");
    for (let row = 0; row < rows.length; row += 2) context.fillRect(0, row * ROW, wide, ROW);
    context.strokeStyle = shade("--line");
    context.fillStyle = shade("--muted");
    context.textAlign = "center";
    const step = STEPS.find((s) => this.span * 1e9 / s <= Math.max(3, this.width / 90)) ?? 1e10;
    const digits = step >= 1e9 ? 0 : step >= 1e8 ? 1 : 3;
    context.beginPath();
    for (let at = Math.ceil(from / step) * step; at < until; at += step) {
      const place = Math.round(x(at)) + 0.5;
      context.moveTo(place, 0);
      context.lineTo(place, height - AXIS);
      const isCut = this.end != null && (place < 24 || place > wide - 24);
      if (!isCut) context.fillText(`${(at / 1e9 % 60).toFixed(digits)} s`, place, height - 5);
    }
    context.stroke();
  }

  /** Leases, which exclude each other, in full height; open gates as high as the GPU was used meanwhile. */
  bars(context, rows, wide, gpu, from, until, x) {
    const place = new Map(rows.map((name, row) => [name, row]));
    const tall = ROW - GAP;
    const open = [];
    this.lanes.clear(wide, rows.length);
    gpu.each(from, until, (turn) => {
      const row = place.get(turn.vgpu);
      if (row === undefined) return;
      const left = Math.max(0, x(turn.start_ns));
      const right = Math.min(wide, Math.max(left + 0.75, x(turn.end_ns ?? until)));
      if (turn.kind === "open") open.push([row, left, right, Math.max(2, tall * used(turn, until))]);
      else this.lanes.add(row, left, right);
    });
    this.lanes.draw(context, rows.map((name) => color(name)), (row) => [row * ROW + GAP / 2, tall]);
    context.globalAlpha = 0.7;
    open.sort(([a], [b]) => a - b);
    let last = -1;
    for (const [row, left, right, high] of open) {
      // Setting what is set already costs the canvas as much as setting another.
      if (row !== last) context.fillStyle = color(rows[last = row]);
      context.fillRect(left, row * ROW + ROW - GAP / 2 - high, right - left, high);
    }
    context.globalAlpha = 1;
  }

  /** The turn under the pointer. */
  pointed() {
    const gpu = store.turns.get(this.gpu);
    const name = this.rows()[Math.floor(this.cursor.y / ROW)];
    if (!gpu || !name) return null;
    const start = (this.end ?? this.now() - LAG_NS) - this.span * 1e9;
    const near = 2 / this.width * this.span * 1e9;
    const at = start + this.cursor.x / this.width * this.span * 1e9;
    let under = null;
    gpu.each(at - near, at + near, (turn) => { if (turn.vgpu === name) under = turn; });
    return under;
  }

  explain() {
    const turn = this.cursor && this.pointed();
    this.tip.hidden = !turn;
    if (!turn) return;
    const length = (turn.end_ns ?? this.now()) - turn.start_ns;
    const line = (words, value) => h("div", {}, h("span", {}, words), h("b", {}, value));
    fill(this.tip, h("div", { class: "when" }, turn.vgpu),
      line(turn.kind === "lease" ? "held the GPU" : "gate open", nanoseconds(length) + (turn.end_ns ? "" : " …")),
      turn.busy_ns == null ? null : line("GPU time", nanoseconds(turn.busy_ns)),
      turn.kind === "lease" ? line("after waiting", nanoseconds(turn.waited_ns ?? 0)) : null);
    const right = this.cursor.x > this.width / 2;
    this.tip.style.left = right ? "auto" : `${this.cursor.x + 12}px`;
    this.tip.style.right = right ? `${this.width - this.cursor.x + 12}px` : "auto";
    this.tip.style.top = `${Math.max(0, this.cursor.y - 10)}px`;
  }

  /** The same in words for a screen reader, now and then. */
  describe(gpu, rows, start, end) {
    const said = Math.floor(performance.now() / 5000);
    if (said === this.said) return;
    this.said = said;
    const held = new Map(rows.map((name) => [name, 0]));
    gpu.each(start, end, (turn) => {
      const time = Math.min(end, turn.end_ns ?? end) - Math.max(start, turn.start_ns);
      if (held.has(turn.vgpu)) held.set(turn.vgpu, held.get(turn.vgpu) + time * used(turn, end));
    });
    const parts = [...held].map(([name, time]) => `${name} ${Math.round(time / this.span / 1e7)} percent`);
    this.window.setAttribute("aria-label", `Who had the GPU in the last ${this.span} seconds: ${parts.slice(0, 12).join(", ")}`);
  }
}

/** The part of an open turn in which the GPU was used. */
function used(turn, now) {
  return turn.kind === "lease" || turn.busy_ns == null ? 1 : Math.min(1, turn.busy_ns / Math.max(1, (turn.end_ns ?? now) - turn.start_ns));
}
