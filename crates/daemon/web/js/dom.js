// Elements from code. Texts are always texts, never markup: names and notes are other people's words.

/** An element: `h("a", { href: "#/", class: "x", onclick: f }, "text", other)`. */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value == null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && name !== "list" && typeof value !== "string") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children.flat()) {
    if (child == null || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(child));
  }
}

/** Replaces what an element holds. */
export function fill(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

/** Sets a text if it is another one: an unchanged element is not painted again. */
export function text(element, value) {
  if (element.textContent !== value) element.textContent = value;
}

/** Keeps the children of an element in step with a list, by key. */
export function keyed(parent, items, keyOf, make, update) {
  const known = parent.keyed ?? (parent.keyed = new Map());
  const seen = new Set();
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    seen.add(key);
    let row = known.get(key);
    if (!row) {
      row = make(item);
      known.set(key, row);
    }
    if (row.element !== place) parent.insertBefore(row.element, place);
    else place = place.nextElementSibling;
    update(row, item);
  }
  for (const [key, row] of known) {
    if (seen.has(key)) continue;
    row.element.remove();
    known.delete(key);
  }
}

const seen = new WeakMap();
const eye = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    const watched = seen.get(entry.target);
    if (!watched) continue;
    const comes = entry.isIntersecting && !watched.isInView;
    watched.isInView = entry.isIntersecting;
    if (comes) watched.comes();
  }
}, { rootMargin: "200px" });

/** Tells whether an element is in view, or nearly; calls a function when it comes into view. */
export function inView(element, comes) {
  const watched = { isInView: false, comes };
  seen.set(element, watched);
  eye.observe(element);
  return watched;
}

/** Sets an attribute if it is another one. */
function attribute(element, name, value) {
  if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

/** A bar from 0 to 1 with an optional mark, and what it says to a screen reader. */
export function bar(label) {
  const element = h("span", { class: "bar", role: "meter", "aria-label": label, "aria-valuemin": "0", "aria-valuemax": "100", "aria-valuenow": "0" });
  const shown = new Map();
  const style = (name, value) => {
    if (shown.get(name) === value) return;
    shown.set(name, value);
    element.style.setProperty(name, value);
  };
  const part = (value) => `${(Math.min(1, Math.max(0, value)) * 100).toFixed(1)}%`;
  return {
    element,
    set(filled, markAt, words, color) {
      style("--part", part(filled));
      style("--mark", markAt == null ? "-10px" : part(markAt));
      if (color) style("--fill", color);
      attribute(element, "aria-valuenow", String(Math.round(Math.min(1, filled) * 100)));
      attribute(element, "aria-valuetext", words);
    },
  };
}

/** Says something in the corner of the page. */
export function toast(message, kind = "info") {
  const close = h("button", { class: "quiet", "aria-label": "Dismiss", onclick: () => element.remove() }, "×");
  const element = h("div", { class: `toast ${kind}` }, h("span", {}, message), close);
  document.getElementById("toasts").append(element);
  setTimeout(() => element.remove(), kind === "error" ? 12000 : 5000);
}
