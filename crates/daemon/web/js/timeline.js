// Who had the GPU when: one row a virtual GPU, one bar a turn, down to a fraction of a millisecond.

import { h, fill, inView } from "./dom.js";
import { prepare, shade } from "./chart.js";
import { nanoseconds } from "./format.js";
import { color, store } from "./store.js";

const ROW = 24;
const AXIS = 20;
/** The right edge is so late behind the clock that what it shows has arrived. */
const LAG_NS = 350e6;
const SPANS = [[0.1, "0.1 s"], [0.5, "0.5 s"], [2, "2 s"], [10, "10 s"], [30, "30 s"]];

/** The timeline of a GPU; with `only`, of one virtual GPU on it. */
export class Timeline {
  constructor(gpu, { only = null, title = "Who has the GPU" } = {}) {
    this.gpu = gpu;
    this.only = only;
    this.span = 2;
    this.end = null;
    this.canvas = h("canvas", { class: "timeline", tabindex: "0", role: "img", "aria-label": title });
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
      h("div", { class: "swim" }, this.labels, h("div", { class: "plot" }, this.canvas, this.tip)), this.empty);
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.canvas.addEventListener("pointerleave", () => { this.cursor = null; this.tip.hidden = true; });
    this.canvas.addEventListener("pointerdown", (event) => { this.grip = event.offsetX; this.canvas.setPointerCapture(event.pointerId); });
    this.canvas.addEventListener("pointerup", () => { this.grip = null; });
    this.canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.calm = matchMedia("(prefers-reduced-motion: reduce)");
    this.view = inView(this.element, () => this.draw());
    this.drawn = 0;
    this.frame = requestAnimationFrame((now) => this.tick(now));
  }

  close() {
    cancelAnimationFrame(this.frame);
  }

  tick(now) {
    this.frame = requestAnimationFrame((next) => this.tick(next));
    if (this.calm.matches && now - this.drawn < 500) return;
    if (!this.element.isConnected || !this.view.isInView) return;
    this.drawn = now;
    this.draw();
  }

  /** The daemon's clock now, as far as it is known. */
  now() {
    const gpu = store.turns.get(this.gpu);
    return gpu ? gpu.now_ns + (performance.now() - gpu.at) * 1e6 : null;
  }

  toggle() {
    this.end = this.end == null ? this.now() - LAG_NS : null;
    this.pause.textContent = this.end == null ? "Pause" : "Go on";
    this.pause.setAttribute("aria-pressed", String(this.end != null));
  }

  zoom(seconds) {
    this.span = Math.min(60, Math.max(0.02, seconds));
    [...this.spans.children].forEach((button, place) => button.setAttribute("aria-pressed", String(SPANS[place][0] === this.span)));
  }

  wheel(event) {
    if (!event.ctrlKey && !event.shiftKey) return;
    event.preventDefault();
    if (this.end == null) this.toggle();
    const part = event.offsetX / this.canvas.clientWidth;
    const before = this.span;
    this.zoom(this.span * (event.deltaY > 0 || event.deltaX > 0 ? 1.25 : 0.8));
    this.end += (1 - part) * (this.span - before) * 1e9;
  }

  key(event) {
    const pan = { ArrowLeft: -0.2, ArrowRight: 0.2 }[event.key];
    if (pan) {
      if (this.end == null) this.toggle();
      this.end = Math.min(this.now(), this.end + pan * this.span * 1e9);
    } else if (event.key === "+" || event.key === "=") this.zoom(this.span / 2);
    else if (event.key === "-") this.zoom(this.span * 2);
    else if (event.key === " ") this.toggle();
    else return;
    event.preventDefault();
  }

  hover(event) {
    this.cursor = { x: event.offsetX, y: event.offsetY };
    if (this.grip == null || !event.buttons) return;
    const moved = event.offsetX - this.grip;
    if (Math.abs(moved) < 2) return;
    if (this.end == null) this.toggle();
    this.end = Math.min(this.now(), this.end - moved / this.canvas.clientWidth * this.span * 1e9);
    this.grip = event.offsetX;
  }

  /** The rows: everybody on this GPU, with those who had turns first where there are many. */
  rows() {
    const all = store.vgpus.filter((vgpu) => vgpu.gpu === this.gpu && (!this.only || vgpu.name === this.only));
    if (all.length <= 16) return all.map((vgpu) => vgpu.name);
    const had = new Set((store.turns.get(this.gpu)?.turns ?? []).map((turn) => turn.vgpu));
    return all.map((vgpu) => vgpu.name).filter((name) => had.has(name));
  }

  label(rows) {
    const key = rows.join("\n");
    if (key === this.key_) return;
    this.key_ = key;
    this.canvas.style.height = `${rows.length * ROW + AXIS}px`;
    fill(this.labels, rows.map((name) => {
      const dot = h("i", {});
      dot.style.background = color(name);
      return h("a", { href: `#/vgpu/${encodeURIComponent(name)}`, title: name }, dot, h("span", {}, name));
    }));
  }

  draw() {
    const rows = this.rows();
    const gpu = store.turns.get(this.gpu);
    this.label(rows);
    this.empty.hidden = rows.length > 0 && Boolean(gpu?.turns.length);
    if (!gpu || rows.length === 0) return;
    const { context, width, height } = prepare(this.canvas);
    const end = this.end ?? this.now() - LAG_NS;
    const start = end - this.span * 1e9;
    const x = (ns) => (ns - start) / (end - start) * width;
    this.grid(context, rows, width, height, start, end, x);
    const place = new Map(rows.map((name, row) => [name, row]));
    const held = new Array(rows.length).fill(0);
    let under = null;
    for (const turn of gpu.turns) {
      if (turn.start_ns > end || turn.end_ns < start) continue;
      const until = Math.min(end, turn.end_ns ?? end);
      const row = place.get(turn.vgpu);
      if (until < start || row === undefined) continue;
      const left = Math.max(0, x(turn.start_ns));
      const right = Math.min(width, x(until));
      const part = turn.busy_ns == null ? 1 : Math.min(1, turn.busy_ns / Math.max(1, (turn.end_ns ?? end) - turn.start_ns));
      held[row] += (Math.min(until, end) - Math.max(start, turn.start_ns)) * part;
      const tall = turn.kind === "open" ? Math.max(2, (ROW - 8) * part) : ROW - 8;
      context.fillStyle = color(turn.vgpu);
      context.globalAlpha = turn.kind === "open" ? 0.7 : 1;
      context.fillRect(left, row * ROW + 4 + (ROW - 8 - tall), Math.max(0.75, right - left), tall);
      const pointed = this.cursor && this.cursor.y >= row * ROW && this.cursor.y < (row + 1) * ROW;
      if (pointed && this.cursor.x >= left - 2 && this.cursor.x <= right + 2) under = turn;
    }
    context.globalAlpha = 1;
    this.explain(under, end);
    this.describe(rows, held);
  }

  grid(context, rows, width, height, start, end, x) {
    context.fillStyle = shade("--stripe");
    for (let row = 0; row < rows.length; row += 2) context.fillRect(0, row * ROW, width, ROW);
    context.strokeStyle = shade("--line");
    context.fillStyle = shade("--muted");
    context.textAlign = "center";
    const span = end - start;
    const step = [1e6, 2e6, 5e6, 1e7, 2e7, 5e7, 1e8, 2e8, 5e8, 1e9, 2e9, 5e9, 1e10].find((s) => span / s <= Math.max(3, width / 90)) ?? 1e10;
    for (let at = Math.ceil(start / step) * step; at < end; at += step) {
      const place = Math.round(x(at)) + 0.5;
      context.beginPath();
      context.moveTo(place, 0);
      context.lineTo(place, height - AXIS);
      context.stroke();
      const ms = at / 1e6 % 60000;
      const words = step >= 1e9 ? `${(ms / 1000).toFixed(0)} s` : step >= 1e8 ? `${(ms / 1000).toFixed(1)} s` : `${(ms / 1000).toFixed(3)} s`;
      if (place > 24 && place < width - 24) context.fillText(words, place, height - 5);
    }
  }

  explain(turn, end) {
    this.tip.hidden = !turn;
    if (!turn) return;
    const length = (turn.end_ns ?? end) - turn.start_ns;
    const line = (words, value) => h("div", {}, h("span", {}, words), h("b", {}, value));
    fill(this.tip, h("div", { class: "when" }, turn.vgpu),
      line(turn.kind === "lease" ? "held the GPU" : "gate open", nanoseconds(length) + (turn.end_ns ? "" : " …")),
      turn.busy_ns == null ? null : line("GPU time", nanoseconds(turn.busy_ns)),
      turn.kind === "lease" ? line("after waiting", nanoseconds(turn.waited_ns ?? 0)) : null);
    const right = this.cursor.x > this.canvas.clientWidth / 2;
    this.tip.style.left = right ? "auto" : `${this.cursor.x + 12}px`;
    this.tip.style.right = right ? `${this.canvas.clientWidth - this.cursor.x + 12}px` : "auto";
    this.tip.style.top = `${Math.max(0, this.cursor.y - 10)}px`;
  }

  describe(rows, held) {
    const said = Math.floor(performance.now() / 5000);
    if (said === this.said) return;
    this.said = said;
    const parts = rows.map((name, row) => `${name} ${Math.round(held[row] / this.span / 1e7)} percent`);
    this.canvas.setAttribute("aria-label", `Who had the GPU in the last ${this.span} seconds: ${parts.slice(0, 12).join(", ")}`);
  }
}
