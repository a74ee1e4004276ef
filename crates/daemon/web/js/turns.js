// The turns of one GPU. There may be thousands a second, so that nothing here looks at all of them when a few are new.

/** Seconds of turns that are kept. */
const KEPT = 60;
/** Turns are forgotten after so many messages: a look at all of them, every few seconds. */
const FORGET_EVERY = 20;
/** Turns that are longer, or go on, are also kept apart: a search by their begin would not find them. */
const LONG_NS = 1e9;
/** How far the clock may go back with a message, against jumps by messages that were held up. */
const DRIFT_NS = 2e5;

/** How long turns were waited for: counts of logarithmic steps, 16 for each doubling, so that a part is known within 2 %. */
class Waits {
  constructor() {
    this.steps = new Uint32Array(16 * 44);
    this.count = 0;
  }

  add(ns, many) {
    this.steps[Math.min(this.steps.length - 1, Math.floor(Math.log2(Math.max(1, ns)) * 16))] += many;
    this.count += many;
  }

  /** The wait that this part of the turns did not exceed, in nanoseconds. */
  at(part) {
    let left = Math.floor(this.count * part) + 1;
    const step = this.steps.findIndex((many) => (left -= many) <= 0);
    return step <= 0 ? 0 : 2 ** ((step + 0.5) / 16);
  }
}

/** Turns by their numbers, which are nearly the order of their begins. */
export class Turns {
  constructor() {
    this.turns = [];
    this.lasting = new Set();
    /** By virtual GPU: how many turns are known, and how long they were waited for. */
    this.tenants = new Map();
    this.messages = 0;
    this.now_ns = 0;
  }

  /** Takes a message of the daemon. Turns that went on come again under the same number. */
  take(message) {
    this.now_ns = message.now_ns;
    const offset = message.now_ns - performance.now() * 1e6;
    const isNear = Math.abs(offset - this.offset) < 1e9;
    this.offset = isNear ? Math.max(offset, this.offset - DRIFT_NS) : offset;
    for (const turn of message.turns) {
      const known = turn.sequence <= (this.turns.at(-1)?.sequence ?? -1) ? this.find(turn.sequence) : null;
      if (known === undefined) continue;
      if (known) Object.assign(known, turn);
      else this.add(turn);
      this.sort(known ?? turn);
    }
    this.messages += 1;
    if (this.messages % FORGET_EVERY === 0) this.forget(message.now_ns - KEPT * 1e9);
  }

  /** The daemon's clock at a time of the page, as far as it is known. */
  clock(ms) {
    return this.offset + ms * 1e6;
  }

  add(turn) {
    this.turns.push(turn);
    let tenant = this.tenants.get(turn.vgpu);
    if (!tenant) this.tenants.set(turn.vgpu, tenant = { turns: 0, waits: new Waits() });
    tenant.turns += 1;
    if (turn.kind === "lease") tenant.waits.add(turn.waited_ns ?? 0, 1);
  }

  sort(turn) {
    if (turn.end_ns == null || turn.end_ns - turn.start_ns > LONG_NS) this.lasting.add(turn);
    else this.lasting.delete(turn);
  }

  /** The first place whose value, which grows from turn to turn, is at least this. */
  place(of, least) {
    let low = 0;
    let high = this.turns.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (of(this.turns[middle]) < least) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  find(sequence) {
    const turn = this.turns[this.place((one) => one.sequence, sequence)];
    return turn?.sequence === sequence ? turn : undefined;
  }

  /** Calls a function for each turn within a time. */
  each(start, end, call) {
    const from = start - LONG_NS;
    for (const turn of this.lasting) if (turn.start_ns < from && (turn.end_ns ?? Infinity) >= start) call(turn);
    for (let place = this.place((one) => one.start_ns, from); place < this.turns.length; place += 1) {
      const turn = this.turns[place];
      if (turn.start_ns <= end && (turn.end_ns ?? Infinity) >= start) call(turn);
    }
  }

  /** A turn that goes on for minutes stays, and keeps none of the later ones. */
  forget(oldest) {
    this.turns = this.turns.filter((turn) => {
      if ((turn.end_ns ?? Infinity) >= oldest) return true;
      const tenant = this.tenants.get(turn.vgpu);
      tenant.turns -= 1;
      if (turn.kind === "lease") tenant.waits.add(turn.waited_ns ?? 0, -1);
      if (tenant.turns === 0) this.tenants.delete(turn.vgpu);
      this.lasting.delete(turn);
      return false;
    });
  }
}
