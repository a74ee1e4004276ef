// How figures are written, and how people write sizes.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

/** Bytes with three significant digits: `1.5 GiB`. */
export function bytes(value) {
  if (value == null) return "–";
  let unit = 0;
  let number = value;
  while (number >= 1024 && unit < UNITS.length - 1) {
    number /= 1024;
    unit += 1;
  }
  const digits = unit === 0 || number >= 100 ? 0 : number >= 10 ? 1 : 2;
  return `${trim(number.toFixed(digits))} ${UNITS[unit]}`;
}

/** A percentage: `27.4 %`. */
export function percent(value) {
  if (value == null) return "–";
  return `${trim(value.toFixed(value >= 99.95 || value === 0 ? 0 : 1))} %`;
}

function trim(text) {
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

/** A length of time in nanoseconds: `8.1 ms`. */
export function nanoseconds(ns) {
  if (ns >= 1e9) return `${trim((ns / 1e9).toFixed(2))} s`;
  if (ns >= 1e6) return `${trim((ns / 1e6).toFixed(ns >= 1e8 ? 0 : 1))} ms`;
  return `${Math.round(ns / 1e3)} µs`;
}

/** A length of time in seconds: `2 h 5 min`. */
export function seconds(value) {
  if (value < 60) return `${trim(value.toFixed(value < 10 ? 1 : 0))} s`;
  if (value < 3600) return `${Math.floor(value / 60)} min ${Math.floor(value % 60)} s`;
  if (value < 86400) return `${Math.floor(value / 3600)} h ${Math.floor((value % 3600) / 60)} min`;
  return `${Math.floor(value / 86400)} d ${Math.floor((value % 86400) / 3600)} h`;
}

/** A count: `12 345`. */
export function count(value) {
  return Math.round(value).toString().replace(/\B(?=(\d{3})+$)/g, " ");
}

/** A time of day from seconds since the epoch. */
export function clock(time, withSeconds = true) {
  const date = new Date(time * 1000);
  const two = (n) => String(n).padStart(2, "0");
  const text = `${two(date.getHours())}:${two(date.getMinutes())}`;
  return withSeconds ? `${text}:${two(date.getSeconds())}` : text;
}

const DAYS = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];

/** A day from seconds since the epoch: `Mon 16`. */
export function day(time) {
  const date = new Date(time * 1000);
  return `${DAYS[date.getDay()]} ${date.getDate()}`;
}

/** A time of day, with its day unless that is today. */
export function dayAndClock(time) {
  const isToday = new Date(time * 1000).toDateString() === new Date().toDateString();
  return isToday ? clock(time) : `${day(time)}, ${clock(time, false)}`;
}

/** Bytes of `8GiB`, `512M` or `1.5 g`; NaN for what is no size. */
export function parseSize(text) {
  const match = /^\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?b)?\s*$/i.exec(text);
  if (!match) return NaN;
  const power = ["", "k", "m", "g", "t"].indexOf(match[2].toLowerCase());
  return Math.round(Number(match[1]) * 1024 ** power);
}
