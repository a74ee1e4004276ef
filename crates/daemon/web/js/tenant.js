// One virtual GPU: figures, history, turns, programs, findings, events.

import { fill, h, keyed, text } from "./dom.js";
import { Chart, later } from "./chart.js";
import { ask } from "./api.js";
import { bytes, count, nanoseconds, percent, seconds } from "./format.js";
import { buttons } from "./actions.js";
import { Range } from "./history.js";
import { kernels } from "./kernels.js";
import { checkItem, eventTable } from "./lists.js";
import { color, on, store } from "./store.js";
import { stateBadge } from "./overview.js";
import { Timeline } from "./timeline.js";

function tile(name) {
  const value = h("b", {});
  const more = h("span", { class: "muted small" });
  return { element: h("div", { class: "card tile" }, h("span", { class: "muted" }, name), value, more), value, more };
}

function processRow(process) {
  const cells = Array.from({ length: 6 }, () => h("td", { class: "number" }));
  const command = h("td", { class: "command" });
  const element = h("tr", {}, h("th", { scope: "row" }, String(process.pid)), command, ...cells);
  return { element, command, cells };
}

function updateProcess(row, process) {
  text(row.command, `${process.command || process.name}${process.container ? ` (in ${process.container})` : ""}`);
  row.command.title = process.command;
  const values = [bytes(process.memory_used_bytes), bytes(process.memory_peak_bytes), count(process.launches_total), seconds(process.gpu_seconds), seconds(process.gate_wait_seconds), process.mechanism];
  values.forEach((value, place) => text(row.cells[place], value));
}

function charts(name, range) {
  const now = () => store.byName.get(name);
  const data = (column, title, asked) => () => {
    const { times, series } = range.lines(column, [name]);
    if (title) series.push({ name: title, color: "gray", dashed: true, values: times.map(() => asked(now())) });
    return { times, series };
  };
  return [
    new Chart({ title: "Share of the GPU's time", format: percent, most: 100, data: data("share", "asked now", (vgpu) => vgpu?.share_percent ?? null) }),
    new Chart({ title: "Memory", format: bytes, binary: true, most: 1048576, data: data("memory", "limit now", (vgpu) => vgpu?.memory_limit_bytes ?? null) }),
    new Chart({ title: "Waiting for a turn", format: percent, most: 10, data: data("wait") }),
  ];
}

function processTable() {
  const body = h("tbody", {});
  const names = ["Process", "Command", "Memory", "Peak", "Launches", "GPU time", "Waited", "Divided by"];
  const head = names.map((name, place) => h("th", { scope: "col", class: place > 1 ? "number" : "" }, name));
  const empty = h("p", { class: "muted empty" }, "No program uses it now.");
  const element = h("section", { class: "card" }, h("h2", {}, "Programs"),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Programs" }, h("table", {}, h("thead", {}, h("tr", {}, head)), body)), empty);
  return {
    element,
    update(processes) {
      keyed(body, processes, (process) => process.pid, processRow, updateProcess);
      empty.hidden = processes.length > 0;
    },
  };
}

/** The page of a virtual GPU. */
export function tenant(name) {
  const state = stateBadge();
  const actions = h("div", { class: "row" });
  const facts = h("p", { class: "muted" });
  const reasons = h("ul", { class: "trouble", hidden: true });
  const tiles = { share: tile("Share of the GPU"), memory: tile("Memory"), wait: tile("Waiting"), launches: tile("Launches a second"), time: tile("GPU time"), denied: tile("Allocations refused") };
  const range = new Range(() => drawn.forEach((chart) => chart.draw()), name);
  const drawn = charts(name, range);
  const programs = processTable();
  const profiled = kernels(name);
  const findings = h("ul", { class: "checks" });
  const events = eventTable();
  const dot = h("i", { class: "dot" });
  dot.style.background = color(name);
  const timelineHere = h("div", {});
  let timeline = null;
  const gone = h("p", { class: "card", hidden: true, role: "alert" }, "This virtual GPU does not exist, or is not yours. ", h("a", { href: "#/" }, "Overview"));
  const body = h("div", {}, facts, reasons,
    h("div", { class: "tiles" }, Object.values(tiles).map((one) => one.element)), timelineHere,
    h("div", { class: "figcaption heading" }, h("h2", {}, "Over time"), range.element), h("div", { class: "grid" }, drawn.map((chart) => chart.element)), programs.element, profiled.element,
    h("section", { class: "card" }, h("h2", {}, "Is every limit in force?"), findings),
    h("section", { class: "card" }, h("h2", {}, "Events"), events.element));
  const element = h("div", {}, h("div", { class: "title" }, dot, h("h1", {}, name), state.element, actions), gone, body);
  let known = "";

  function update() {
    const vgpu = store.byName.get(name);
    gone.hidden = !store.daemon || Boolean(vgpu);
    body.hidden = !vgpu;
    if (!vgpu) return;
    state.set(vgpu);
    if (known !== vgpu.state) {
      known = vgpu.state;
      fill(actions, buttons(name, vgpu.state));
    }
    if (!timeline) {
      timeline = new Timeline(vgpu.gpu, { only: name, title: "Its turns" });
      timelineHere.append(timeline.element);
    }
    figures(vgpu, tiles, facts, reasons);
    programs.update(vgpu.processes);
    profiled.known(vgpu);
    if (!range.past) for (const chart of drawn) later(chart.redraw);
  }
  function showEvents() {
    const own = store.events.filter((event) => event.vgpu === name).slice(-50).reverse();
    events.update(own);
  }
  async function examine() {
    try {
      const doctor = await ask("GET", `/v1/doctor?vgpu=${encodeURIComponent(name)}`);
      fill(findings, doctor.checks.map(checkItem));
    } catch (error) {
      fill(findings, h("li", { class: "muted" }, error.message));
    }
  }
  const stops = [on("stats", update), on("events", showEvents)];
  const every = setInterval(examine, 10000);
  update();
  showEvents();
  examine();
  return { element, title: name, shown() { update(); for (const chart of drawn) later(chart.redraw); }, close() { range.close(); profiled.close(); stops.forEach((stop) => stop()); clearInterval(every); drawn.forEach((chart) => chart.close()); timeline?.close(); } };
}

function figures(vgpu, tiles, facts, reasons) {
  const rates = store.rates.get(vgpu.name) ?? { launches: 0, wait: 0 };
  const set = (one, value, more) => { text(one.value, value); text(one.more, more); };
  const kind = vgpu.cap ? "at most" : vgpu.share_reserved ? "guaranteed" : "owed now, not reserved";
  set(tiles.share, percent(vgpu.share_measured_percent), `${percent(vgpu.share_percent)} ${kind}`);
  set(tiles.memory, bytes(vgpu.memory_used_bytes), `of ${bytes(vgpu.memory_limit_bytes)}, peak ${bytes(vgpu.memory_peak_bytes)}`);
  const waits = store.waits.get(vgpu.name);
  const each = waits ? `a turn: ${nanoseconds(waits.median)}, p99 ${nanoseconds(waits.most)}` : "no turn lately";
  set(tiles.wait, percent(rates.wait), each);
  tiles.wait.element.title = `${seconds(vgpu.throttled_seconds)} so far, all threads together`;
  set(tiles.launches, count(rates.launches), `${count(vgpu.launches_total)} so far`);
  set(tiles.time, seconds(vgpu.gpu_seconds), `measured by: ${vgpu.time_source}`);
  set(tiles.denied, count(vgpu.alloc_denied_total), vgpu.alloc_denied_total ? "for want of memory" : "none");
  const words = [`GPU ${vgpu.gpu} (${vgpu.gpu_kind})`, `${vgpu.mode} mode`, `${vgpu.priority} priority`, `time divided by: ${vgpu.mechanism}`, `user ${vgpu.owner_uid}`, vgpu.note];
  text(facts, words.filter(Boolean).join(" · "));
  reasons.hidden = vgpu.reasons.length === 0;
  keyed(reasons, vgpu.reasons, (reason) => reason, (reason) => ({ element: h("li", {}, reason) }), () => {});
}
