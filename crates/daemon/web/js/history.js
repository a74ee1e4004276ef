// How far back the charts go: the last minutes as they come, or what the daemon keeps on disk.

import { h, toast } from "./dom.js";
import { ask } from "./api.js";
import { color, columnsOf, store } from "./store.js";

const RANGES = [[0, "10 min"], [3600, "1 h"], [86400, "1 day"], [604800, "7 days"]];

/** The choice of a range; `changed` is called when other figures are to be drawn. With `only`, of one virtual GPU. */
export class Range {
  constructor(changed, only = null) {
    this.changed = changed;
    this.only = only;
    this.seconds = 0;
    this.element = h("div", { class: "segments", role: "group", "aria-label": "How far back the charts go" });
    for (const [seconds, name] of RANGES) {
      this.element.append(h("button", { "aria-pressed": String(seconds === 0), onclick: () => this.choose(seconds) }, name));
    }
    this.every = setInterval(() => { if (this.seconds) this.load().then(changed); }, 30000);
  }

  close() {
    clearInterval(this.every);
  }

  async choose(seconds) {
    this.seconds = seconds;
    this.past = null;
    [...this.element.children].forEach((button, place) => button.setAttribute("aria-pressed", String(RANGES[place][0] === seconds)));
    if (seconds) await this.load();
    this.changed();
  }

  async load() {
    const wanted = this.seconds;
    const since = Math.floor(Date.now() / 1000) - wanted;
    const vgpu = this.only ? `&vgpu=${encodeURIComponent(this.only)}` : "";
    try {
      const answer = await ask("GET", `/v1/history?since=${since}${vgpu}`);
      if (this.seconds === wanted) this.past = columnsOf(answer);
    } catch (error) {
      toast(`The history cannot be read: ${error.message}`, "error");
      if (this.seconds === wanted) this.choose(0);
    }
  }

  /** Times and lines of one column, of these virtual GPUs or of all. */
  lines(column, names = store.vgpus.map((vgpu) => vgpu.name)) {
    if (!this.past) {
      const known = names.filter((name) => store.series.has(name));
      return { times: store.axis, series: known.map((name) => ({ name, color: color(name), values: store.series.get(name)[column] })) };
    }
    const { times, columns } = this.past;
    const series = [...columns].map(([name, values]) => ({ name, color: color(name), values: values[column] }));
    return { times, series: this.only ? series.filter((one) => names.includes(one.name)) : series };
  }
}
