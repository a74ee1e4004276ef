// Events and the doctor's findings.

import { fill, h, keyed } from "./dom.js";
import { ask } from "./api.js";
import { dayAndClock } from "./format.js";
import { on, store } from "./store.js";

function eventRow(event) {
  const sign = { info: "●", warning: "▲", error: "✕" }[event.severity];
  const name = event.vgpu ? h("a", { href: `#/vgpu/${encodeURIComponent(event.vgpu)}` }, event.vgpu) : "";
  const element = h("tr", { class: event.severity, role: "row" },
    h("td", { class: "time", role: "cell", title: new Date(event.time_seconds * 1000).toLocaleString() }, dayAndClock(event.time_seconds)), h("td", { role: "cell" }, h("span", { class: `badge ${event.severity}` }, `${sign} ${event.severity}`)),
    h("td", { role: "cell" }, name), h("td", { class: "command", role: "cell" }, event.message));
  return { element };
}

/** A table of events, which `update` fills. */
export function eventTable() {
  const body = h("tbody", { role: "rowgroup" });
  const head = ["Time", "Severity", "Virtual GPU", "What happened"].map((name) => h("th", { scope: "col", role: "columnheader" }, name));
  const empty = h("p", { class: "muted empty" }, "Nothing has happened yet.");
  const element = h("div", {}, h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Events" }, h("table", { class: "stacked events", role: "table" }, h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, head)), body)), empty);
  return {
    element,
    update(events) {
      keyed(body, events, (event) => `${event.sequence} ${event.time_seconds}`, eventRow, () => {});
      empty.hidden = events.length > 0;
    },
  };
}

/** All events, newest first. */
export function eventsView() {
  const table = eventTable();
  const severity = h("select", { "aria-label": "Severity", onchange: () => update() }, [["", "All"], ["warning", "Warnings and errors"], ["error", "Errors"]].map(([value, name]) => h("option", { value }, name)));
  const search = h("input", { type: "search", placeholder: "Filter", "aria-label": "Filter events", oninput: () => update() });
  const element = h("div", {}, h("h1", { class: "hidden" }, "Events"), h("section", { class: "card" }, h("div", { class: "figcaption" }, h("h2", {}, "Events"), h("div", { class: "row" }, severity, search)), table.element));
  function update() {
    const wanted = search.value.toLowerCase();
    const grave = { "": ["info", "warning", "error"], warning: ["warning", "error"], error: ["error"] }[severity.value];
    const fits = (event) => grave.includes(event.severity) && `${event.vgpu ?? ""} ${event.kind} ${event.message}`.toLowerCase().includes(wanted);
    table.update(store.events.filter(fits).slice(-300).reverse());
  }
  const stop = on("events", update);
  update();
  return { element, title: "Events", shown() {}, close: stop };
}

/** One finding of the doctor. */
export function checkItem(check) {
  const sign = { ok: "✓", unknown: "?", warning: "▲", failed: "✕" }[check.verdict];
  return h("li", { class: check.verdict }, h("span", { class: `badge ${check.verdict}` }, `${sign} ${check.verdict}`), h("div", {}, h("b", {}, check.what), h("span", { class: "muted" }, check.evidence)));
}

/** What is in force, and how that is known. */
export function healthView() {
  const verdict = h("p", { class: "verdict" });
  const groups = h("div", {});
  const element = h("div", {}, h("h1", { class: "hidden" }, "Health"), verdict, groups);
  async function update() {
    try {
      const doctor = await ask("GET", "/v1/doctor");
      const bad = doctor.checks.filter((check) => check.verdict === "failed").length;
      const warned = doctor.checks.filter((check) => check.verdict === "warning").length;
      fill(verdict, doctor.healthy ? `Every limit is in force${warned ? `, with ${warned} warnings` : ""}.` : `${bad} checks failed.`);
      verdict.className = `card verdict ${doctor.healthy ? "ok" : "failed"}`;
      const names = [...new Set(doctor.checks.map((check) => check.vgpu ?? ""))];
      fill(groups, names.map((name) => h("section", { class: "card" }, h("h2", {}, name || "This host"),
        h("ul", { class: "checks" }, doctor.checks.filter((check) => (check.vgpu ?? "") === name).map(checkItem)))));
    } catch (error) {
      fill(verdict, error.message);
      verdict.className = "card verdict failed";
    }
  }
  const every = setInterval(update, 5000);
  update();
  return { element, title: "Health", shown() {}, close() { clearInterval(every); } };
}
