// What the page knows: the daemon's figures, their last minutes, the turns of every GPU, events.

import { Turns } from "./turns.js";

/** Seconds of figures that are kept. */
const KEPT = 600;
/** Events that are kept. */
const EVENTS_KEPT = 500;

/** The state; views read it and nobody else writes it. */
export const store = {
  session: null,
  status: "connecting",
  daemon: null,
  gpus: [],
  vgpus: [],
  byName: new Map(),
  /** Seconds since the epoch of each value of `series`. */
  axis: [],
  /** By name: share, memory and wait, each as long as `axis`, with null where nothing is known. */
  series: new Map(),
  /** By name: launches a second and wait in percent, over the last second. */
  rates: new Map(),
  /** By name: how long the last turns were waited for, median and 99th percentile, in nanoseconds. */
  waits: new Map(),
  /** By GPU: its turns and the clock that belongs to them. */
  turns: new Map(),
  events: [],
  doctor: null,
};

const listeners = new Set();

/** Calls a function whenever a kind of thing has changed; returns how to stop that. */
export function on(kind, call) {
  const entry = { kind, call };
  listeners.add(entry);
  return () => listeners.delete(entry);
}

/** Tells that something has changed. */
export function changed(kind) {
  for (const entry of [...listeners]) if (entry.kind === kind) entry.call();
}

const COLUMNS = ["share", "memory", "wait"];

function seriesOf(name) {
  let series = store.series.get(name);
  if (!series) {
    const nothing = () => new Array(store.axis.length).fill(null);
    series = { share: nothing(), memory: nothing(), wait: nothing() };
    store.series.set(name, series);
  }
  return series;
}

/** A connection begins: what was drawn before it may have a gap, and another daemon numbers its events anew. */
export function begin() {
  store.axis = [];
  store.series = new Map();
  store.events = [];
  store.turns = new Map();
}

/** Timelines of the daemon as columns over one axis. */
export function columnsOf(answer) {
  const own = answer.timelines.filter((timeline) => timeline.subject === "vgpu");
  const times = [...new Set(own.flatMap((timeline) => timeline.points.map((point) => point.time_seconds)))].sort((a, b) => a - b);
  const place = new Map(times.map((time, index) => [time, index]));
  const columns = new Map();
  for (const timeline of own) {
    const nothing = () => new Array(times.length).fill(null);
    const values = columns.get(timeline.name) ?? { share: nothing(), memory: nothing(), wait: nothing() };
    columns.set(timeline.name, values);
    for (const point of timeline.points) {
      const at = place.get(point.time_seconds);
      values.share[at] = point.share_got_percent;
      values.memory[at] = point.memory_used_bytes;
      values.wait[at] = point.waiting_percent;
    }
  }
  return { times, columns };
}

/** The last minutes, when a page opens: they come before what has arrived since. */
export function takeHistory(answer) {
  const { times, columns } = columnsOf(answer);
  const first = store.axis[0] ?? Infinity;
  const count = times.filter((time) => time < first - 1).length;
  for (const name of columns.keys()) seriesOf(name);
  store.axis.unshift(...times.slice(0, count));
  for (const [name, series] of store.series) {
    const past = columns.get(name);
    for (const column of COLUMNS) series[column].unshift(...(past ? past[column].slice(0, count) : new Array(count).fill(null)));
  }
  changed("stats");
}

/** New figures, once a second. */
export function takeStats(stats) {
  const now = Date.now() / 1000;
  const before = store.byName;
  const elapsed = Math.max(0.5, now - (store.statsAt ?? now - 1));
  store.statsAt = now;
  store.daemon = stats.daemon;
  store.gpus = stats.gpus;
  stats.vgpus.sort((a, b) => a.created_at_seconds - b.created_at_seconds || (a.name < b.name ? -1 : 1));
  store.vgpus = stats.vgpus;
  store.byName = new Map(stats.vgpus.map((vgpu) => [vgpu.name, vgpu]));
  store.rates = new Map();
  store.axis.push(now);
  for (const name of store.byName.keys()) seriesOf(name);
  for (const [name, series] of store.series) {
    // One that was just made has its place already.
    const vgpu = store.byName.get(name);
    const earlier = before.get(name);
    const wait = vgpu && earlier ? Math.max(0, vgpu.throttled_seconds - earlier.throttled_seconds) / elapsed * 100 : null;
    const launches = vgpu && earlier ? Math.max(0, vgpu.launches_total - earlier.launches_total) / elapsed : 0;
    const shown = wait ?? (vgpu ? series.wait.findLast((value) => value != null) ?? null : null);
    if (vgpu) store.rates.set(name, { launches, wait: wait ?? 0 });
    const values = [vgpu?.share_measured_percent ?? null, vgpu?.memory_used_bytes ?? null, shown];
    COLUMNS.forEach((column, place) => {
      if (series[column].length === store.axis.length) series[column].pop();
      series[column].push(values[place]);
    });
  }
  forget(now - KEPT);
  store.waits = waits();
  changed("stats");
}

function forget(before) {
  let old = 0;
  while (old < store.axis.length && store.axis[old] < before) old += 1;
  if (old === 0) return;
  store.axis.splice(0, old);
  for (const [name, series] of store.series) {
    for (const column of COLUMNS) series[column].splice(0, old);
    if (!store.byName.has(name) && series.share.every((value) => value == null)) store.series.delete(name);
  }
}

/** New turns of a GPU. */
export function takeTurns(message) {
  let gpu = store.turns.get(message.gpu);
  if (!gpu || message.now_ns < gpu.now_ns) {
    gpu = new Turns();
    store.turns.set(message.gpu, gpu);
  }
  gpu.take(message);
  changed("turns");
}

function waits() {
  const all = new Map();
  for (const gpu of store.turns.values()) for (const [name, one] of gpu.tenants) if (one.waits.count) all.set(name, { median: one.waits.at(0.5), most: one.waits.at(0.99) });
  return all;
}

/** Events: those remembered, or a new one, which may come before those remembered. */
export function takeEvents(events) {
  const known = new Set(store.events.map((event) => event.sequence));
  store.events.push(...events.filter((event) => !known.has(event.sequence)));
  store.events.sort((a, b) => a.sequence - b.sequence);
  store.events.splice(0, Math.max(0, store.events.length - EVENTS_KEPT));
  changed("events");
}

const colors = new Map();
const HUES = [255, 160, 55, 310, 205, 20, 110, 335, 230, 85, 185, 285];
const hues = new Map();

/** A colour for a virtual GPU, the same as long as the page is open; it reads on light and on dark. */
export function color(name, alpha = 1) {
  // Asked for with every bar of every frame: made once.
  const known = alpha === 1 ? colors.get(name) : undefined;
  if (known) return known;
  let place = hues.get(name);
  if (place === undefined) {
    place = hues.size;
    hues.set(name, place);
  }
  const round = Math.floor(place / HUES.length);
  const hue = HUES[place % HUES.length] + round * 11;
  const light = 0.66 - 0.06 * (round % 3);
  const made = `oklch(${light} 0.15 ${hue % 360}${alpha === 1 ? "" : ` / ${alpha}`})`;
  if (alpha === 1) colors.set(name, made);
  return made;
}
