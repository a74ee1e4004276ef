// The page: signing in, the views and what is common to them.

import { ask, follow, session, signIn, signOut } from "./api.js";
import { fill, h, text, toast } from "./dom.js";
import { begin, changed, on, store, takeEvents, takeHistory, takeStats, takeTurns } from "./store.js";
import { create } from "./actions.js";
import { forgetShades } from "./chart.js";
import { eventsView, healthView } from "./lists.js";
import { overview } from "./overview.js";
import { tenant } from "./tenant.js";

const THEME = "mica.theme";
const main = document.getElementById("main");
let view = null;

const VIEWS = [["#/", "Overview"], ["#/events", "Events"], ["#/health", "Health"]];

/** The virtual GPU that an address names; nothing for other addresses, and for names that are badly encoded. */
function vgpuOf(path) {
  const named = /^#\/vgpu\/(.+)$/.exec(path);
  try {
    return named && decodeURIComponent(named[1]);
  } catch {
    return null;
  }
}

function show() {
  const path = location.hash || "#/";
  const name = vgpuOf(path);
  view?.close();
  view = name ? tenant(name) : path === "#/events" ? eventsView() : path === "#/health" ? healthView() : overview();
  fill(main, view.element);
  view.shown();
  document.title = `${view.title} – Mica`;
  for (const link of document.querySelectorAll("#nav a")) {
    if (link.getAttribute("href") === path) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

function theme(next) {
  if (next === "auto") {
    localStorage.removeItem(THEME);
    delete document.documentElement.dataset.theme;
  } else {
    localStorage.setItem(THEME, next);
    document.documentElement.dataset.theme = next;
  }
}

/** What is drawn has the colours of when it was drawn. */
function recolour() {
  forgetShades();
  view?.shown();
}

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function tools() {
  const status = h("span", { class: "status", role: "status" });
  const words = { live: "Live", connecting: "Connecting", lost: "No answer", "signed out": "Signed out" };
  const update = () => {
    text(status, words[store.status]);
    status.className = `status ${store.status.replace(" ", "-")}`;
  };
  on("status", update);
  update();
  const dark = h("button", { class: "quiet", "aria-label": "Switch between light and dark", title: "Light or dark", onclick: () => { theme(isDark() ? "light" : "dark"); recolour(); } }, "◐");
  const out = h("button", { class: "quiet", title: `Signed in as ${store.session.name || `user ${store.session.uid}`}`, onclick: () => signOut().finally(() => location.reload()) }, "Sign out");
  const make = h("button", { class: "primary", onclick: create }, h("span", { "aria-hidden": "true" }, "+ "), "New vGPU");
  fill(document.getElementById("tools"), status, dark, out, make);
  fill(document.getElementById("nav"), VIEWS.map(([href, name]) => h("a", { href }, name)));
}

function signInView(problem) {
  store.session = null;
  view?.close();
  view = null;
  for (const id of ["tools", "nav"]) fill(document.getElementById(id));
  const name = h("input", { name: "name", autocomplete: "username", required: true });
  const token = h("input", { name: "token", type: "password", autocomplete: "current-password", required: true });
  const failure = h("p", { class: "trouble", role: "alert", hidden: !problem }, problem ?? "");
  const form = h("form", { class: "card sign-in" }, h("h1", {}, "Sign in"),
    h("p", {}, "On this host: run ", h("code", {}, "mica dashboard"), " and open the address that it prints."),
    h("p", { class: "muted" }, "From elsewhere: the name and token that your administrator gave you."),
    h("label", { class: "field" }, h("span", {}, "Name"), name), h("label", { class: "field" }, h("span", {}, "Token"), token), failure,
    h("div", { class: "row end" }, h("button", { class: "primary", type: "submit" }, "Sign in")));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      await signIn({ name: name.value, token: token.value });
      // Anew, so that nothing is shown of who was signed in before.
      location.reload();
    } catch (error) {
      failure.hidden = false;
      text(failure, error.message);
    }
  });
  fill(main, form);
  document.title = "Sign in – Mica";
}

/** Another address in the same page: another view, or a new ticket, which must not stay in the address. */
function addressChanged() {
  if (location.hash.startsWith("#ticket=")) return location.reload();
  if (!store.session) return;
  show();
  main.focus({ preventScroll: true });
  scrollTo(0, 0);
}

function start() {
  tools();
  show();
  follow({
    stats: takeStats,
    turns: takeTurns,
    event: (event) => takeEvents([event]),
    status(status) {
      store.status = status;
      changed("status");
      if (status === "signed out") signInView("The session has ended.");
      if (status !== "live") return;
      begin();
      ask("GET", "/v1/events?follow=false").then(takeEvents, () => {});
      ask("GET", `/v1/history?step=10&since=${Math.floor(Date.now() / 1000) - 600}`).then(takeHistory, () => {});
    },
  });
}

window.addEventListener("hashchange", addressChanged);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
const chosen = localStorage.getItem(THEME);
if (chosen) theme(chosen);
try {
  store.session = await session();
  if (store.session) start();
  else signInView();
} catch (error) {
  signInView(error.message);
}
window.addEventListener("unhandledrejection", (event) => toast(String(event.reason?.message ?? event.reason), "error"));
