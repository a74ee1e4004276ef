// What ran in a virtual GPU for how long: its kernels, copies and waits, while it is profiled.

import { h, keyed, text, toast } from "./dom.js";
import { ask, vgpuPath } from "./api.js";
import { count, nanoseconds, percent, seconds } from "./format.js";

const FOR_SECONDS = 30;
const EVERY_MS = 2000;
const WORK = new Set(["kernel", "copy", "fill"]);

function row(line) {
  const cells = Array.from({ length: 6 }, () => h("td", { class: "number" }));
  const element = h("tr", {}, h("th", { scope: "row", class: "command", title: line.name }, line.name), h("td", {}, line.activity), ...cells);
  return { element, cells };
}

function update(row, line, all) {
  const share = WORK.has(line.activity) ? percent((line.total_ns * 100) / Math.max(1, all)) : "–";
  const rate = line.bytes ? (line.bytes / Math.max(1, line.total_ns)).toFixed(2) : "–";
  const values = [share, nanoseconds(line.total_ns), count(line.calls), nanoseconds(line.total_ns / Math.max(1, line.calls)), nanoseconds(line.most_ns), rate];
  values.forEach((value, place) => text(row.cells[place], value));
}

/** The kernels of a virtual GPU; asks the daemon only while it is profiled. */
export function kernels(name) {
  const body = h("tbody", {});
  const names = ["Kernel, copy or wait", "What", "Share", "Total", "Calls", "Average", "Longest", "GB/s"];
  const head = names.map((title, place) => h("th", { scope: "col", class: place > 1 ? "number" : "" }, title));
  const table = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Kernels", hidden: true }, h("table", {}, h("thead", {}, h("tr", {}, head)), body));
  const words = h("p", { class: "muted empty" });
  const button = h("button", { onclick: begin }, `Profile for ${FOR_SECONDS} s`);
  const element = h("section", { class: "card kernels" }, h("div", { class: "figcaption" }, h("h2", {}, "Kernels"), button), words, table);
  let timer = null;
  let isOn = false;

  function show(profile) {
    isOn = profile.level !== "off";
    const all = profile.lines.filter((line) => WORK.has(line.activity)).reduce((sum, line) => sum + line.total_ns, 0);
    keyed(body, profile.lines, (line) => `${line.activity} ${line.name}`, row, (one, line) => update(one, line, all));
    table.hidden = profile.lines.length === 0;
    const nothing = profile.lines.length ? "" : isOn ? " Nothing has run yet." : "";
    if (profile.seconds) text(words, `${isOn ? "Profiled" : "Was profiled"} for ${seconds(profile.seconds)}.${nothing}`);
    button.disabled = isOn;
    if (isOn && !timer) timer = setInterval(look, EVERY_MS);
    if (!isOn && timer) {
      clearInterval(timer);
      timer = null;
    }
  }
  async function look() {
    try {
      show(await ask("GET", vgpuPath(name, "/profile")));
    } catch {
      // It may be gone: the page says so.
    }
  }
  async function begin() {
    try {
      show(await ask("POST", vgpuPath(name, "/profile"), { level: "sums", seconds: FOR_SECONDS }));
    } catch (error) {
      toast(error.hint ? `${error.message}. ${error.hint}` : error.message, "error");
    }
  }
  look();
  return {
    element,
    /** Tells what the daemon said of the virtual GPU. */
    known(vgpu) {
      const isIsolated = vgpu.mode === "isolated";
      button.hidden = !isIsolated;
      if (!isIsolated) text(words, "In direct mode the driver alone sees kernels; NVIDIA's nsys and ncu work there.");
      else if (!words.textContent) text(words, "Not profiled yet.");
      if (vgpu.profiled && !isOn) look();
    },
    close() {
      if (timer) clearInterval(timer);
    },
  };
}
