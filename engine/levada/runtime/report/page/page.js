// The page: requests the progress and the history of the engine that serves it, and shows them.

import { showAnswers } from "./answers.js";
import { byId, setText } from "./elements.js";
import { clock, counted, duration, number, printable, rate, size } from "./format.js";
import { History } from "./history.js";
import { showLists } from "./lists.js";
import { binaryTicks, decimalTicks, Plot, timeTicks } from "./plots.js";
import { outlook, running, Tables } from "./tables.js";

const POLL_MS = 2000;
const SLOWEST_POLL_MS = 30000;
const HISTORY_MS = 30000;
const TIMEOUT_MS = 10000;
const RATE_WINDOW_MS = 5000;
const STALE_MS = 30000;
const TOKEN = "levada.token";
const KNOWN_VERSION = 1;

const tables = new Tables();
const plots = [
  new Plot("WAL at the source", [{ name: "Retained", column: "retainedBytes" }, { name: "Lag", column: "lagBytes" }], size, binaryTicks(4096)),
  new Plot("Staged changes", [{ name: "Staged", column: "stagedBytes" }], size, binaryTicks(4096)),
  new Plot("Behind at most", [{ name: "Behind", column: "lagSeconds" }], duration, timeTicks),
  new Plot("Row changes arriving", [{ name: "Arriving", column: "rowsPerSecond" }], (v) => (v === null || v === undefined ? "-" : `${number(v)}/s`), decimalTicks(3)),
];
byId("plots").append(...plots.map((plot) => plot.element));

const history = new History();
const seen = { progress: null, earlier: null, receivedAt: 0, engineAge: 0, failures: 0, historyAt: -Infinity, announced: "" };
let timer = 0;
let polling = false;

class Refused extends Error {}

async function request(path) {
  const token = sessionStorage.getItem(TOKEN);
  const response = await fetch(path, {
    headers: token ? { Authorization: `Bearer ${token}` } : {},
    cache: "no-store",
    credentials: "omit",
    signal: AbortSignal.timeout(TIMEOUT_MS),
  });
  if (response.status === 401) throw new Refused();
  return response;
}

async function poll() {
  clearTimeout(timer);
  if (polling) return;
  polling = true;
  const begun = performance.now();
  let wait = POLL_MS;
  try {
    const response = await request("v1/progress");
    if (response.status === 503) starting();
    else if (!response.ok) throw new Error(`status ${response.status}`);
    else await received(response);
    seen.failures = 0;
    // Thousands of tables take long enough to notice. They take a tenth of the time at most.
    wait = Math.min(SLOWEST_POLL_MS, Math.max(POLL_MS, 10 * (performance.now() - begun)));
  } catch (error) {
    if (error instanceof Refused) {
      polling = false;
      askForToken();
      return;
    }
    seen.failures += 1;
    wait = Math.min(SLOWEST_POLL_MS, POLL_MS * 2 ** (seen.failures - 1));
    unanswered();
  }
  polling = false;
  if (!document.hidden) timer = setTimeout(poll, wait);
}

async function received(response) {
  const progress = await response.json();
  if (progress.version !== KNOWN_VERSION) {
    notice(`The engine reports its progress in version ${progress.version}, and this page reads version ${KNOWN_VERSION} only. Reload the page.`);
    return;
  }
  const at = Date.parse(progress.at);
  seen.receivedAt = performance.now();
  seen.engineAge = Math.max(0, (Date.parse(response.headers.get("Date") ?? "") || at) - at);
  addRates(progress);
  if (seen.earlier === null || at - Date.parse(seen.earlier.at) > RATE_WINDOW_MS || seen.earlier.epoch !== progress.epoch) seen.earlier = progress;
  seen.progress = progress;
  byId("token").hidden = true;
  byId("figures").hidden = false;
  notice(seen.engineAge > STALE_MS ? "The engine answers, but its figures do not change. Its log has the reason." : "");
  showAll();
  if (performance.now() - seen.historyAt > HISTORY_MS || seen.failures > 0) await loadHistory();
}

/** Set the rate of each table: that of its copy, or else of applied changes since a document a few seconds earlier. */
function addRates(progress) {
  const { earlier } = seen;
  const seconds = earlier && earlier.epoch === progress.epoch ? (Date.parse(progress.at) - Date.parse(earlier.at)) / 1000 : 0;
  const applied = new Map(seconds > 0 ? earlier.tables.map((t) => [t.id, t.rowsApplied]) : []);
  for (const table of progress.tables) {
    const before = applied.get(table.id);
    table.rate = running(table)?.rowsPerSecond ?? (before === undefined ? null : Math.max(0, table.rowsApplied - before) / seconds);
  }
}

/** Load the history. Without it the plots have the figures that this page has received itself. */
async function loadHistory() {
  seen.historyAt = performance.now();
  const response = await request("v1/history");
  if (!response.ok) return;
  history.load(await response.json());
  showPlots();
}

function showAll() {
  const { progress } = seen;
  history.add(progress);
  showHead(progress);
  showAnswers(progress);
  showLists(progress);
  tables.show(progress.tables, Date.parse(progress.at));
  showPlots();
  showAge();
  announce(progress);
}

function showPlots() {
  const range = 1000 * document.querySelector("input[name=range]:checked").value;
  if (seen.progress) for (const plot of plots) plot.show(history.points, Date.parse(seen.progress.at), range);
}

const STATES = { Running: ["good", "✓"], Failed: ["bad", "✕"], Starting: ["busy", "◐"], Stopping: ["busy", "◐"] };

function showHead(progress) {
  const name = printable(progress.pipeline);
  document.title = `${name}: ${progress.state} – Levada`;
  setText(byId("pipeline"), name);
  const [tone, symbol] = STATES[progress.state] ?? ["quiet", "○"];
  byId("state").className = `badge ${tone}`;
  setText(byId("state"), `${symbol} ${progress.state}`);
  const parts = [`${number(progress.tablesByPhase.Ready ?? 0)}/${counted(progress.tables.length, "table")} ready`];
  if (rate(progress.capture.rowsPerSecond)) parts.push(`${rate(progress.capture.rowsPerSecond)} arriving`);
  const left = outlook(progress.catchUp);
  if (left) parts.push(left === "never" ? "does not catch up at this rate" : `${left} to catch up`);
  parts.push(`started ${clock(progress.startedAt)}`);
  setText(byId("summary"), parts.join(" · "));
}

/** Let a screen reader say what changed in kind: the state, and the number of tables with errors. */
function announce(progress) {
  const errored = progress.tables.filter((t) => t.error).length;
  const words = `${progress.pipeline}: ${progress.state}${errored ? `, ${counted(errored, "table")} with an error` : ""}`;
  if (words !== seen.announced) setText(byId("announcement"), words);
  seen.announced = words;
}

function notice(text) {
  byId("connection").hidden = !text;
  setText(byId("connection"), text);
}

function starting() {
  byId("token").hidden = true;
  notice("The engine is starting. It has no progress yet.");
}

function unanswered() {
  notice(seen.progress ? "The engine does not answer. These are its last figures." : "The engine does not answer.");
  showAge();
}

function askForToken() {
  notice("");
  byId("figures").hidden = true;
  const refused = sessionStorage.getItem(TOKEN) !== null;
  sessionStorage.removeItem(TOKEN);
  setText(byId("token-problem"), refused ? "The engine refuses this token." : "");
  byId("token").hidden = false;
  byId("token-value").focus();
}

byId("token").addEventListener("submit", (event) => {
  event.preventDefault();
  // A header has no other characters.
  sessionStorage.setItem(TOKEN, byId("token-value").value.replace(/[^\x21-\x7e]/g, ""));
  byId("token-value").value = "";
  poll();
});
for (const choice of document.querySelectorAll("input[name=range]")) choice.addEventListener("change", showPlots);
document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : poll()));

function showAge() {
  if (!seen.progress) return;
  const age = seen.engineAge + performance.now() - seen.receivedAt;
  const stale = age > STALE_MS || seen.failures > 0;
  document.body.classList.toggle("stale", stale);
  setText(byId("age"), stale ? `Figures are ${duration(Math.round(age / 1000)).replace(".0s", "s")} old` : `Live · ${clock(seen.progress.at)}`);
}
setInterval(showAge, 1000);
poll();
