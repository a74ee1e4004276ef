// Making, changing and removing virtual GPUs.

import { h, fill, toast } from "./dom.js";
import { ask, vgpuPath } from "./api.js";
import { bytes, parseSize } from "./format.js";
import { store } from "./store.js";

/** Does something and says how it went. */
async function act(words, call) {
  try {
    const answer = await call();
    toast(answer.done || words);
    return true;
  } catch (error) {
    toast(error.hint ? `${error.message}. ${error.hint}` : error.message, "error");
    return false;
  }
}

const suspend = (name) => act(`${name} is suspended`, () => ask("POST", vgpuPath(name, "/suspend")));
const resume = (name) => act(`${name} runs again`, () => ask("POST", vgpuPath(name, "/resume")));

/** A dialog; `submit` returns whether it may close. */
function dialog(title, content, { confirm, danger = false, submit }) {
  const failure = h("p", { class: "trouble", role: "alert", hidden: true });
  const send = h("button", { type: "submit", class: danger ? "danger" : "primary" }, confirm);
  const form = h("form", { method: "dialog" }, h("h2", { id: "dialog-title" }, title), content, failure,
    h("div", { class: "row end" }, h("button", { type: "button", onclick: () => element.close() }, "Cancel"), send));
  const element = h("dialog", { "aria-labelledby": "dialog-title", onclose: () => element.remove() }, form);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    send.disabled = true;
    failure.hidden = true;
    try {
      await submit();
      element.close();
    } catch (error) {
      failure.hidden = false;
      fill(failure, error.message, error.hint ? h("span", { class: "muted" }, ` ${error.hint}`) : null);
    }
    send.disabled = false;
  });
  document.body.append(element);
  element.showModal();
}

function field(label, input, hint) {
  return h("label", { class: "field" }, h("span", {}, label), input, hint ? h("span", { class: "muted small" }, hint) : null);
}

function select(options, chosen) {
  return h("select", {}, options.map(([value, name]) => h("option", { value, selected: value === chosen }, name)));
}

const PRIORITIES = [["high", "High"], ["normal", "Normal"], ["low", "Low"]];

/** A size that was typed; nothing where the field is empty. */
function sizeOf(input) {
  if (!input.value.trim()) return undefined;
  const size = parseSize(input.value);
  if (Number.isNaN(size)) throw new Error(`"${input.value}" is not a size: write 8GiB or 512MiB`);
  return size;
}

function shareOf(input) {
  return input.value === "" ? undefined : Number(input.value);
}

/** The dialog that makes a virtual GPU. */
export function create() {
  const name = h("input", { required: true, autocomplete: "off", spellcheck: "false", maxlength: "64" });
  const memory = h("input", { placeholder: "the share's part", autocomplete: "off" });
  const share = h("input", { type: "number", min: "1", max: "100", step: "0.01", placeholder: "an even part" });
  const cap = h("input", { type: "checkbox" });
  const priority = select(PRIORITIES, "normal");
  const gpu = select([["", "Chosen by Mica"], ...store.gpus.map((one) => [String(one.index), `${one.index}: ${one.name}`])], "");
  const content = h("div", { class: "fields" }, field("Name", name), field("Memory limit", memory, "Such as 4GiB"), field("Guaranteed share, percent", share),
    field("Priority", priority), field("GPU", gpu), h("label", { class: "check" }, cap, " Never more than the share, even when the GPU is idle"));
  dialog("New virtual GPU", content, {
    confirm: "Create",
    async submit() {
      const spec = { name: name.value.trim(), cap: cap.checked, priority: priority.value, memory_limit_bytes: sizeOf(memory), share_percent: shareOf(share), gpu: gpu.value === "" ? undefined : Number(gpu.value) };
      const created = await ask("POST", "/v1/vgpus", spec);
      toast(`${created.name} was created. Run in it with: mica exec ${created.name} -- CMD`);
    },
  });
}

/** The dialog that changes limits. */
function resize(name) {
  const vgpu = store.byName.get(name);
  if (!vgpu) return;
  const memory = h("input", { value: bytes(vgpu.memory_limit_bytes).replace(" ", ""), autocomplete: "off" });
  const before = memory.value;
  const share = h("input", { type: "number", min: "1", max: "100", step: "0.01", value: vgpu.share_reserved ? String(vgpu.share_percent) : "", placeholder: "not reserved" });
  const cap = h("input", { type: "checkbox", checked: vgpu.cap });
  const drain = h("input", { type: "checkbox" });
  const priority = select(PRIORITIES, vgpu.priority);
  const content = h("div", { class: "fields" }, field("Memory limit", memory, `${bytes(vgpu.memory_used_bytes)} in use`), field("Guaranteed share, percent", share), field("Priority", priority),
    h("label", { class: "check" }, cap, " Never more than the share"), h("label", { class: "check" }, drain, " Accept a limit below what is in use"));
  dialog(`Resize ${name}`, content, {
    confirm: "Resize",
    async submit() {
      const change = { memory_limit_bytes: memory.value === before ? undefined : sizeOf(memory), share_percent: shareOf(share), cap: cap.checked, priority: priority.value, drain: drain.checked };
      await ask("PATCH", vgpuPath(name), change);
      toast(`${name} was resized`);
    },
  });
}

function cancel(name) {
  dialog(`Cancel the kernels of ${name}?`, h("p", {}, "Queued and running kernels end. Their programs are told as by a driver's watchdog, and most will end."), {
    confirm: "Cancel kernels", danger: true,
    async submit() { toast((await ask("POST", vgpuPath(name, "/cancel"))).done); },
  });
}

function remove(name) {
  const vgpu = store.byName.get(name);
  const running = vgpu?.processes.length ?? 0;
  const words = running === 0 ? "No program runs in it." : running === 1 ? "1 program runs in it; it ends with it." : `${running} programs run in it; they end with it.`;
  dialog(`Remove ${name}?`, h("p", {}, words), {
    confirm: "Remove", danger: true,
    async submit() { toast((await ask("DELETE", vgpuPath(name, running ? "?force=true" : ""))).done); },
  });
}

function choices(name, state) {
  return [
    ["Resize", () => resize(name)],
    state === "suspended" ? ["Resume", () => resume(name)] : ["Suspend", () => suspend(name)],
    ["Cancel kernels", () => cancel(name)],
    ["Remove", () => remove(name), "danger"],
  ];
}

/** The buttons of a virtual GPU's own page. */
export function buttons(name, state) {
  return choices(name, state).map(([words, call, kind]) => h("button", { class: kind ?? "", onclick: call }, words));
}

/** The button in a table's row that opens all actions. */
export function menu(name) {
  const list = h("div", { class: "menu", role: "menu", popover: "auto", "aria-label": `Actions for ${name}` });
  const open = h("button", { class: "quiet", "aria-label": `Actions for ${name}`, "aria-haspopup": "menu" }, "⋯");
  const wrap = h("span", { class: "menu-wrap" }, open, list);
  open.addEventListener("click", () => {
    const state = store.byName.get(name)?.state;
    fill(list, choices(name, state).map(([words, call, kind]) => h("button", { role: "menuitem", class: kind ?? "", onclick: () => { list.hidePopover(); call(); } }, words)));
    list.togglePopover();
    const box = open.getBoundingClientRect();
    list.style.top = `${Math.min(box.bottom + 4, innerHeight - list.offsetHeight - 8)}px`;
    list.style.left = `${Math.max(8, box.right - list.offsetWidth)}px`;
    list.firstElementChild?.focus();
  });
  list.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const items = [...list.children];
    items[(items.indexOf(document.activeElement) + step + items.length) % items.length].focus();
  });
  return wrap;
}
