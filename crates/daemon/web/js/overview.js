// The overview: GPUs, who has them, shares and memory over time, all virtual GPUs.

import { bar, h, keyed, text } from "./dom.js";
import { Chart, later, spark } from "./chart.js";
import { bytes, count, nanoseconds, percent } from "./format.js";
import { menu } from "./actions.js";
import { Range } from "./history.js";
import { color, on, store } from "./store.js";
import { Timeline } from "./timeline.js";

/** What a state is called, with a sign besides its colour. */
export function stateBadge() {
  const element = h("span", { class: "badge" });
  return {
    element,
    set(vgpu) {
      const sign = { active: "●", ready: "○", suspended: "❚❚", degraded: "▲", lost: "✕" }[vgpu.state] ?? "";
      text(element, `${sign} ${vgpu.state}`);
      const look = `badge ${vgpu.state}`;
      if (element.className !== look) element.className = look;
      const why = vgpu.reasons.join("\n");
      if (element.title !== why) element.title = why;
    },
  };
}

function gpuCard(gpu) {
  const name = h("h2", {}, gpu.name);
  const facts = h("p", { class: "muted" });
  const busy = h("b", { class: "big" });
  const parts = h("span", { class: "parts" });
  const others = h("span", { class: "others", title: "other users" });
  const memory = h("div", { class: "stack", role: "img" }, parts, others);
  const memoryWords = h("span", {});
  const shares = bar("Guaranteed shares");
  const shareWords = h("span", {});
  const trouble = h("p", { class: "trouble", role: "alert", hidden: true });
  const element = h("section", { class: "card gpu", "aria-label": `GPU ${gpu.index}` },
    h("div", { class: "split" }, h("div", {}, name, facts), h("div", { class: "right" }, busy, h("span", { class: "muted" }, "busy"))),
    h("div", { class: "meter" }, h("span", { class: "muted" }, "Memory"), memory, memoryWords),
    h("div", { class: "meter" }, h("span", { class: "muted" }, "Shares"), shares.element, shareWords), trouble);
  return { element, facts, busy, memory, parts, others, memoryWords, shares, shareWords, trouble };
}

function updateGpu(card, gpu) {
  const own = store.vgpus.filter((vgpu) => vgpu.gpu === gpu.index);
  const facts = [`GPU ${gpu.index}`, gpu.kind, gpu.driver && `driver ${gpu.driver}`, gpu.temperature_celsius && `${gpu.temperature_celsius} °C`, gpu.power_watts && `${Math.round(gpu.power_watts)} W`, `${gpu.vgpus} virtual GPUs`];
  text(card.facts, facts.filter(Boolean).join(" · "));
  text(card.busy, percent(gpu.utilization_percent));
  text(card.memoryWords, `${bytes(gpu.memory_used_bytes)} of ${bytes(gpu.memory_total_bytes)}`);
  keyed(card.parts, own.filter((vgpu) => vgpu.memory_used_bytes > 0), (vgpu) => vgpu.name, (vgpu) => {
    const element = h("span", {});
    element.style.background = color(vgpu.name);
    return { element };
  }, (part, vgpu) => {
    part.element.style.width = `${vgpu.memory_used_bytes / gpu.memory_total_bytes * 100}%`;
    part.element.title = `${vgpu.name}: ${bytes(vgpu.memory_used_bytes)}`;
  });
  const others = gpu.memory_used_bytes - own.reduce((sum, vgpu) => sum + vgpu.memory_used_bytes, 0);
  card.others.style.width = `${Math.max(0, others) / gpu.memory_total_bytes * 100}%`;
  card.memory.setAttribute("aria-label", `Memory: ${card.memoryWords.textContent} in use, ${bytes(gpu.memory_reserved_bytes)} given out as limits`);
  const reserved = gpu.share_reserved_percent;
  card.shares.set(reserved / 100, null, `${percent(reserved)} reserved`);
  text(card.shareWords, `${percent(reserved)} reserved`);
  const trouble = gpu.lost ?? gpu.drained ?? gpu.unshareable;
  card.trouble.hidden = !trouble;
  text(card.trouble, trouble ?? "");
}

function tableRow(vgpu) {
  const dot = h("i", {});
  dot.style.background = color(vgpu.name);
  const owner = h("span", { class: "muted small" });
  const small = h("span", { class: "muted small narrow" });
  const state = stateBadge();
  const share = bar("Share of the GPU's time");
  const shareWords = h("span", { class: "figure-text" });
  const line = spark(color(vgpu.name));
  const memory = bar("Memory");
  const memoryWords = h("span", { class: "figure-text" });
  const waitPart = h("span", {});
  const waitWords = h("span", { class: "figure-text", title: "99 of 100 turns of the last minute were waited for less" });
  const wait = h("td", { class: "number", role: "cell" }, waitPart, waitWords);
  const launches = h("td", { class: "number wide", role: "cell" });
  const processes = h("td", { class: "number wide", role: "cell" });
  const element = h("tr", { role: "row" },
    h("th", { scope: "row", role: "rowheader" }, h("a", { class: "tenant", href: `#/vgpu/${encodeURIComponent(vgpu.name)}` }, dot, h("span", {}, vgpu.name)), owner, small),
    h("td", { class: "roomy", role: "cell" }, state.element), h("td", { role: "cell" }, share.element, shareWords), h("td", { class: "wide", role: "cell" }, line.element),
    h("td", { role: "cell" }, memory.element, memoryWords), wait, launches, processes, h("td", { class: "end", role: "cell" }, menu(vgpu.name)));
  return { element, owner, small, state, share, shareWords, line, memory, memoryWords, waitPart, waitWords, launches, processes };
}

/** Rows out of view are kept up to date more slowly: a screen reader may be there. */
function updateRow(row, vgpu, place, isInView) {
  // A tenth of them with every update.
  const isNew = row.turn === undefined;
  row.turn = isNew ? place : row.turn + 1;
  if (isNew || isInView || row.turn % 10 === 0) show(row, vgpu, isInView);
}

function show(row, vgpu, isInView) {
  const rates = store.rates.get(vgpu.name) ?? { launches: 0, wait: 0 };
  const priority = vgpu.priority === "normal" ? "" : `, ${vgpu.priority} priority`;
  text(row.owner, `${vgpu.mode}${priority}`);
  text(row.small, vgpu.state);
  row.state.set(vgpu);
  const asked = vgpu.share_percent;
  const limit = vgpu.cap ? "at most" : vgpu.share_reserved ? "of" : "owed";
  const words = `${percent(vgpu.share_measured_percent)} ${limit} ${percent(asked)}`;
  row.share.set(vgpu.share_measured_percent / 100, asked / 100, words, color(vgpu.name));
  text(row.shareWords, words);
  if (isInView) row.line.set(store.series.get(vgpu.name)?.share ?? [], 100);
  const used = vgpu.memory_used_bytes;
  const most = Math.max(1, vgpu.memory_limit_bytes);
  const memory = `${bytes(used)} of ${bytes(most)}`;
  row.memory.set(used / most, vgpu.memory_peak_bytes / most, `${memory}, at most ${bytes(vgpu.memory_peak_bytes)} so far`, color(vgpu.name));
  text(row.memoryWords, memory);
  const waits = store.waits.get(vgpu.name);
  text(row.waitPart, percent(rates.wait));
  text(row.waitWords, waits ? `p99 ${nanoseconds(waits.most)}` : "");
  text(row.launches, count(rates.launches));
  text(row.processes, String(vgpu.processes.length));
}

/** Rows that are drawn above and below those in view. */
const MARGIN_ROWS = 6;

/** The first and the last row in view, by the place of the table: to have the browser watch each row costs every frame. */
function rowsInView(body, count) {
  const box = body.getBoundingClientRect();
  const each = (box.height || count * 50) / Math.max(1, body.childElementCount || count);
  return { first: Math.floor(-box.top / each) - MARGIN_ROWS, last: Math.ceil((innerHeight - box.top) / each) + MARGIN_ROWS };
}

function table() {
  let seen = { first: 0, last: 0 };
  const body = h("tbody", { role: "rowgroup" });
  const filter = h("input", { type: "search", placeholder: "Filter", "aria-label": "Filter virtual GPUs by name", oninput: () => update() });
  const head = (name, properties = {}) => h("th", { scope: "col", role: "columnheader", ...properties }, name);
  const empty = h("p", { class: "muted empty" }, "No virtual GPU yet. Make one with the button above, or with: mica run --memory 2GiB --share 30 -- CMD");
  const element = h("section", { class: "card" },
    h("div", { class: "figcaption" }, h("h2", {}, "Virtual GPUs"), filter),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Virtual GPUs" }, h("table", { class: "stacked vgpus", role: "table" }, h("caption", { class: "hidden" }, "All virtual GPUs with their shares and memory, updated every second"),
      h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, head("Name", { class: "name" }), head("State", { class: "roomy" }), head("Time: got, asked", { class: "meters" }), head("Last minute", { class: "wide line" }), head("Memory: used, limit", { class: "meters" }), head("Waiting", { class: "number waits" }), head("Launches/s", { class: "number wide" }), head("Programs", { class: "number wide" }), h("td", { role: "cell" }))), body)), empty);
  function update() {
    const wanted = filter.value.toLowerCase();
    const shown = store.vgpus.filter((vgpu) => vgpu.name.toLowerCase().includes(wanted));
    seen = rowsInView(body, shown.length);
    let place = 0;
    keyed(body, shown, (vgpu) => vgpu.name, tableRow, (row, vgpu) => {
      updateRow(row, vgpu, place, place >= seen.first && place <= seen.last);
      place += 1;
    });
    empty.hidden = store.vgpus.length > 0;
  }
  function scrolled() {
    const { first, last } = rowsInView(body, body.childElementCount);
    if (Math.max(Math.abs(first - seen.first), Math.abs(last - seen.last)) >= MARGIN_ROWS / 2) later(update);
  }
  addEventListener("scroll", scrolled, { passive: true });
  return { element, update, close() { removeEventListener("scroll", scrolled); } };
}

/** The overview. */
export function overview() {
  const cards = h("div", { class: "cards" });
  const waiting = h("p", { class: "card muted" }, "Waiting for the daemon …");
  const timelines = h("div", { class: "timelines" });
  const range = new Range(() => charts.forEach((chart) => chart.draw()));
  const charts = [
    new Chart({ title: "Share of the GPU's time", format: percent, stacked: true, most: 100, data: () => range.lines("share") }),
    new Chart({ title: "Memory by virtual GPU", format: bytes, stacked: true, binary: true, most: 1048576, data: () => range.lines("memory") }),
    new Chart({ title: "Waiting for a turn", format: percent, most: 10, data: () => range.lines("wait") }),
  ];
  const grid = h("section", {}, h("div", { class: "figcaption heading" }, h("h2", {}, "Over time"), range.element), h("div", { class: "grid" }, charts.map((chart) => chart.element)));
  const vgpus = table();
  const lanes = new Map();
  const element = h("div", {}, h("h1", { class: "hidden" }, "Overview"), waiting, cards, timelines, vgpus.element, grid);
  function update() {
    waiting.hidden = true;
    keyed(cards, store.gpus, (gpu) => gpu.index, gpuCard, updateGpu);
    for (const gpu of store.gpus) {
      if (lanes.has(gpu.index)) continue;
      const title = store.gpus.length > 1 ? `Who has GPU ${gpu.index}` : "Who has the GPU";
      const timeline = new Timeline(gpu.index, { title });
      lanes.set(gpu.index, timeline);
      timelines.append(timeline.element);
    }
    later(vgpus.update);
    if (!range.past) for (const chart of charts) later(chart.redraw);
  }
  const stop = on("stats", update);
  return { element, title: "Overview", shown() { if (store.daemon) update(); for (const chart of charts) later(chart.redraw); }, close() { stop(); vgpus.close(); range.close(); charts.forEach((chart) => chart.close()); lanes.forEach((timeline) => timeline.close()); } };
}
