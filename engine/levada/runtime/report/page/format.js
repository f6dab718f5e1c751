// Numbers and times for people. They read as those of the command line do: engine/levada/cli/formatting.py.

const BINARY = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const UNKNOWN = "-";
const grouped = new Intl.NumberFormat("en-GB", { maximumFractionDigits: 0, roundingMode: "halfEven" });

/** Return a number with a fixed count of digits after the point, 0 or 1. As in Python, a half goes to the even digit. */
function fixed(value, digits) {
  const scaled = value * 10 ** digits;
  const half = Number.isInteger(value * 4) && scaled % 1 === 0.5;
  return (half ? (2 * Math.round(scaled / 2)) / 10 ** digits : value).toFixed(digits);
}

/** Return bytes with a binary unit and at most three digits before the point. */
export function size(count) {
  if (count === null || count === undefined) return UNKNOWN;
  let value = count;
  for (const unit of BINARY) {
    if (Math.abs(value) < 999.5 || unit === "PiB") {
      return `${fixed(value, unit === "B" || value >= 99.95 ? 0 : 1)} ${unit}`;
    }
    value /= 1024;
  }
  return UNKNOWN;
}

/** Return a whole number with its digits in groups of three. */
export const number = (count) => (count === null || count === undefined ? UNKNOWN : grouped.format(count));

/** Return a count per second, or an empty text for zero or null. */
export const rate = (perSecond) => (perSecond ? `${grouped.format(perSecond)}/s` : "");

/** Return a percentage. Values below 100 are never rounded to 100%. */
export function percent(value) {
  if (value === null || value === undefined) return UNKNOWN;
  return value >= 100 ? "100%" : `${fixed(Math.min(value, 99.9), 1)}%`;
}

/** Return seconds in the two largest non-zero units: 0.4s, 12s, 3m 20s, 2h 5m, 3d 4h. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return UNKNOWN;
  if (seconds < 9.95) return seconds >= 0.05 ? `${fixed(seconds, 1)}s` : "0s";
  const count = Number(fixed(seconds, 0));
  const units = [["s", 1, 60], ["m", 60, 3600], ["h", 3600, 86400], ["d", 86400, Infinity]];
  const at = units.findIndex(([, , length]) => count < length);
  const [unit, scale] = units[at];
  const rest = at > 0 ? Math.floor((count % scale) / units[at - 1][1]) : 0;
  return `${Math.floor(count / scale)}${unit}` + (rest ? ` ${rest}${units[at - 1][0]}` : "");
}

/** Return a count with its noun. */
export const counted = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;

/** Return the time of day of a moment, with the date if it is another day's. */
export function clock(moment, { seconds = true } = {}) {
  const at = new Date(moment);
  const time = at.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", ...(seconds && { second: "2-digit" }) });
  if (at.toDateString() === new Date().toDateString()) return time;
  return `${at.toLocaleDateString("en-GB", { day: "numeric", month: "short" })} ${time}`;
}

// Control characters of ASCII and Latin-1, line separators, and those that reorder a line.
const CONTROL = /[\u0000-\u001f\u007f-\u009f\u2028\u2029\u202a-\u202e\u2066-\u2069]/g;
const SHORT = { "\t": "\\t", "\n": "\\n", "\r": "\\r" };

/** Return a name with its control characters written as escape sequences, so that it cannot pass for another one. */
export function printable(text) {
  return text.replace(CONTROL, (character) => {
    const code = character.codePointAt(0).toString(16);
    return SHORT[character] ?? (code.length > 2 ? `\\u${code.padStart(4, "0")}` : `\\x${code.padStart(2, "0")}`);
  });
}

/** Return a table as an argument of the command line, quoted for a shell. */
export function argument(table) {
  const part = (name) => (/^[^\s".]+$/.test(name) ? name : `"${name.replaceAll('"', '""')}"`);
  const text = `${part(table.schema)}.${part(table.name)}`;
  return /^[A-Za-z0-9_@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`;
}

/** Return a table's schema and name as the command line shows them. */
export const tableName = (table) => printable(`${table.schema}.${table.name}`);
