// The table of tables: filtered, sorted, and changed in place, so that thousands of rows stay fluid.

import { byId, element, nameElement, reconcile, setText } from "./elements.js";
import { counted, duration, number, percent, printable, rate, tableName } from "./format.js";

const MOST_ROWS = 200;
const URGENCY = ["Errored", "Init", "DataSync", "FinishedCopy", "SyncWait", "Catchup", "SyncDone", "Ready"];
const SYMBOLS = { Errored: "✕", Ready: "✓", Init: "○" };

const text = (value) => value.toLowerCase();
const COLUMNS = [
  { id: "name", title: "Table", sort: (t) => text(`${t.schema}.${t.name}`), first: 1 },
  { id: "phase", title: "Phase", sort: (t) => URGENCY.indexOf(t.phase), first: 1 },
  { id: "copied", title: "Copied", figure: true, sort: (t) => t.copy?.percent ?? -1, first: 1, show: (t) => (t.copy ? percent(t.copy.percent) : "") },
  { id: "rows", title: "Rows", figure: true, sort: (t) => copySize(t) ?? -1, first: -1, show: (t) => (copySize(t) === null ? "" : number(copySize(t))) },
  { id: "changes", title: "Changes", figure: true, sort: (t) => t.rowsApplied, first: -1, show: (t) => (t.rowsApplied ? number(t.rowsApplied) : "") },
  { id: "rate", title: "Rate", figure: true, sort: (t) => t.rate ?? 0, first: -1, show: (t) => rate(t.rate) },
  { id: "left", title: "Left", figure: true, sort: (t) => left(t), first: -1, show: (t) => leftText(t) },
  { id: "behind", title: "Behind", figure: true, sort: (t) => t.lagSeconds ?? -1, first: -1, show: (t) => (t.lagSeconds === null ? "" : duration(t.lagSeconds)) },
  { id: "waiting", title: "Waiting", figure: true, sort: (t) => t.pendingRows, first: -1, show: (t) => (t.pendingRows ? number(t.pendingRows) : "") },
  { id: "verified", title: "Verified", sort: (t) => (t.verified ? Date.parse(t.verified.at) : 0), first: -1, show: (t, now) => verifiedText(t, now) },
];

/** Return a table's copy while it runs, or null. */
export const running = (table) => (table.phase === "DataSync" ? table.copy : null);

/** Return the rows of a table's copy, or null. The size of a copy that an earlier process finished is not known. */
const copySize = (table) => (table.copy && table.copy.totalBytes !== null ? table.copy.rows : null);

function left(table) {
  if (running(table)) return running(table).secondsLeft ?? Infinity;
  return table.catchUp ? (table.catchUp.secondsLeft ?? Infinity) : 0;
}

function leftText(table) {
  if (running(table)) return duration(running(table).secondsLeft);
  return outlook(table.catchUp);
}

/** Return the time until something has caught up. Empty if it has, or if that is not known. */
export function outlook(catchUp) {
  if (!catchUp || catchUp.state === "CaughtUp") return "";
  return catchUp.secondsLeft === null ? "never" : duration(catchUp.secondsLeft);
}

function verifiedText(table, now) {
  const { verified } = table;
  if (!verified) return "";
  const minutes = Math.round((now - Date.parse(verified.at)) / 60000);
  const ago = minutes < 1 ? "just now" : `${duration(60 * minutes)} ago`;
  if (verified.equal) return `equal, ${ago}`;
  const { differences, problem } = verified;
  return `${differences || !problem ? counted(differences, "key differs", "keys differ") : "differs"}, ${ago}`;
}

export class Tables {
  constructor() {
    this.sortedBy = { column: COLUMNS[1], direction: 1 };
    this.all = false;
    this.tables = [];
    this.now = 0;
    for (const column of COLUMNS) {
      const button = element("button", { type: "button" }, column.title);
      button.addEventListener("click", () => this.sortBy(column));
      const head = element("th", { scope: "col", role: "columnheader", class: column.figure ? "figure" : null, id: `by-${column.id}` }, button);
      byId("tables-head").append(head);
      byId("sort").append(element("option", { value: column.id }, column.title));
    }
    byId("sort").addEventListener("change", (event) => this.sortBy(COLUMNS.find((c) => c.id === event.target.value)));
    byId("filter-name").addEventListener("input", () => this.draw());
    byId("filter-phase").addEventListener("change", () => this.draw());
    byId("show-all").addEventListener("click", () => {
      this.all = !this.all;
      this.draw();
    });
    this.markSorted();
  }

  sortBy(column) {
    const same = this.sortedBy.column === column;
    this.sortedBy = { column, direction: same ? -this.sortedBy.direction : column.first };
    this.markSorted();
    this.draw();
  }

  markSorted() {
    const { column, direction } = this.sortedBy;
    for (const each of COLUMNS) {
      const head = byId(`by-${each.id}`);
      if (each === column) head.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    }
    byId("sort").value = column.id;
  }

  /** Show the tables of a document. `now` is the engine's time in milliseconds. */
  show(tables, now) {
    this.tables = tables;
    this.now = now;
    const phases = [...new Set(tables.map((t) => t.phase))].sort((a, b) => URGENCY.indexOf(a) - URGENCY.indexOf(b));
    const choices = [...byId("filter-phase").options].slice(1).map((o) => o.value);
    const missing = phases.filter((phase) => !choices.includes(phase));
    byId("filter-phase").append(...missing.map((phase) => element("option", { value: phase }, phase)));
    byId("tables-table").classList.toggle("unverified", !tables.some((t) => t.verified));
    this.draw();
  }

  draw() {
    const wanted = text(byId("filter-name").value.trim());
    const phase = byId("filter-phase").value;
    const { column, direction } = this.sortedBy;
    const found = this.tables
      .filter((t) => (!phase || t.phase === phase) && (!wanted || text(`${t.schema}.${t.name}`).includes(wanted)))
      .map((t) => [column.sort(t), t])
      .sort(([a, s], [b, t]) => direction * compare(a, b) || compare(COLUMNS[0].sort(s), COLUMNS[0].sort(t)))
      .map(([, t]) => t);
    const shown = this.all ? found : found.slice(0, MOST_ROWS);
    reconcile(byId("tables-body"), shown, (t) => t.id, makeRow, (row, t) => this.update(row, t));
    const filtered = found.length < this.tables.length;
    const limited = shown.length < found.length ? `the first ${number(shown.length)} of ` : "";
    setText(byId("shown"), filtered ? `${limited}${number(found.length)} of ${counted(this.tables.length, "table")}` : `${limited}${counted(found.length, "table")}`);
    byId("show-all").hidden = found.length <= MOST_ROWS;
    setText(byId("show-all"), this.all ? `Show only the first ${MOST_ROWS}` : `Show all ${number(found.length)} tables`);
  }

  update(row, table) {
    const [name, phase, ...figures] = row.children;
    setText(name.querySelector(".name"), tableName(table));
    setText(name.querySelector(".aside"), asideOf(table));
    name.querySelector(".aside").hidden = !asideOf(table);
    const badge = phase.firstElementChild;
    setText(badge, `${SYMBOLS[table.phase] ?? "◐"} ${printable(table.phase)}`);
    badge.className = `badge ${tone(table)}`;
    figures.forEach((cell, i) => setText(cell, COLUMNS[i + 2].show(table, this.now)));
    figures[figures.length - 1].classList.toggle("bad", table.verified?.equal === false);
  }
}

function makeRow() {
  return element(
    "tr",
    { role: "row" },
    element("th", { scope: "row", role: "rowheader" }, nameElement(""), element("span", { class: "aside" })),
    element("td", { role: "cell", "data-title": "Phase" }, element("span", { class: "badge" })),
    ...COLUMNS.slice(2).map((c) => element("td", { role: "cell", class: c.figure ? "figure" : null, "data-title": c.title })),
  );
}

function asideOf(table) {
  const place = table.destinationTable;
  const renamed = place && !`.${place}`.endsWith(`.${table.name}`) ? `${printable(place)} at the destination` : "";
  return [renamed, table.suspended ? "suspended" : "", table.mode === "Changelog" ? "changelog" : ""].filter(Boolean).join(", ");
}

const tone = (table) => ({ Ready: "good", Errored: "bad", Init: "quiet" })[table.phase] ?? "busy";

const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
