// What is listed only if there is some of it: errors, the guard's limits and actions, copies, cuts and notes.

import { byId, element, nameElement, reconcile, setText } from "./elements.js";
import { argument, clock, counted, duration, number, percent, printable, rate, size, tableName } from "./format.js";
import { running } from "./tables.js";

// The command in a solution: all of it, or what follows a colon. One that has a second step after it is not a command.
const COMMAND = /(?:^|: )((?:levada [a-z]+|kubectl|ALTER|CREATE|DROP|GRANT|REVOKE|SELECT|UPDATE|VACUUM) (?!.*, then ).*)$/s;

/** Show the lists of a document. A section without an item is hidden. */
export function showLists(progress) {
  const runnable = (solution) => withManifest(solution, progress.manifest);
  showErrors([...errorsOf(progress)].map(({ what, error }) => ({ what, error: { ...error, solution: runnable(error.solution) } })));
  showGuard(progress.guard);
  showCopies(progress.tables);
  showCuts(progress.cuts);
  showNotes(notesOf(progress));
}

/** Return a solution whose commands have the path of the manifest and its options, if the engine knows them. */
function withManifest(solution, { prefix, arguments: words }) {
  const inPod = prefix ? `${prefix} ` : "";
  return words ? solution.replace(/\b(levada [a-z]+) MANIFEST\b/g, (_, command) => `${inPod}${command} ${words}`) : solution;
}

function* errorsOf(progress) {
  const own = [["Pipeline", progress.error], ["Store", progress.store.error], ["Capture", progress.capture.error], ["Publication", progress.publication.error], ["Publication", progress.publication.lent], ["Event trigger", progress.publication.trigger], ["Changed manifest", progress.manifest.error]];
  for (const [what, error] of own) if (error) yield { what, error };
  for (const table of progress.tables) {
    if (table.error) yield { what: tableName(table), error: table.error };
    if (table.resync?.error) yield { what: `Resync of ${tableName(table)}`, error: table.resync.error };
    if (table.verified?.equal === false) yield { what: tableName(table), error: difference(table) };
  }
}

function difference(table) {
  const { differences, problem, lsn, at } = table.verified;
  const keys = differences || !problem ? ` in ${counted(differences, "key")}` : "";
  const whole = problem ? ` ${problem}` : "";
  const reason = `It differs from the source${keys} at ${lsn} (${clock(at)}).${whole}`;
  return { code: "", reason, solution: `levada verify MANIFEST --table ${argument(table)} --repair`, nextRetry: null };
}

const MOST_ERRORS = 50;

function showErrors(errors) {
  byId("errors").hidden = errors.length === 0;
  setText(byId("errors-title"), errors.length > MOST_ERRORS ? `The first ${MOST_ERRORS} of ${number(errors.length)} errors` : counted(errors.length, "error"));
  byId("manifest-hint").hidden = !errors.some(({ error }) => error.solution.includes("MANIFEST"));
  reconcile(byId("errors-list"), errors.slice(0, MOST_ERRORS), (e) => `${e.what} ${e.error.code}`, makeError, updateError);
}

function makeError() {
  const copy = element("button", { type: "button", class: "copy" }, "Copy");
  const solution = element("div", { class: "solution" }, element("code"), copy);
  const made = element("article", {}, element("h3", {}, nameElement(""), " ", element("code", { class: "code" })), element("p", { class: "reason" }), element("p", { class: "retry" }), solution);
  copy.addEventListener("click", () => copyText(copy, solution.firstElementChild, made.dataset.command));
  return made;
}

function updateError(made, { what, error }) {
  const [title, reason, retry, solution] = made.children;
  setText(title.querySelector(".name"), what);
  setText(title.querySelector(".code"), error.code);
  setText(reason, printable(error.reason));
  const retried = error.nextRetry ? `Attempt ${number(error.attempts)}, retried at ${clock(error.nextRetry)}` : "";
  setText(retry, retried);
  retry.hidden = !retried;
  // A control character in a name, such as Ctrl-C, would let a terminal run a part of the name as a command.
  const command = printable(error.solution) === error.solution ? COMMAND.exec(error.solution)?.[1] : undefined;
  solution.hidden = !error.solution;
  setText(solution.firstElementChild, printable(error.solution));
  made.dataset.command = command ?? "";
  solution.lastElementChild.hidden = !command || Boolean(retried);
  solution.lastElementChild.setAttribute("aria-label", `Copy the command for ${what}`);
}

async function copyText(button, shown, command) {
  try {
    await navigator.clipboard.writeText(command);
    setText(button, "Copied");
  } catch {
    // The clipboard is closed to pages without TLS that are not on this machine.
    getSelection().selectAllChildren(shown);
    setText(button, "Selected");
  }
  setTimeout(() => setText(button, "Copy"), 2000);
}

function showGuard(guard) {
  byId("guard").hidden = !guard.passed.length && !guard.actions.length;
  if (byId("guard").hidden) return;
  const figure = (measure, value) => (measure === "retainedWalPercent" ? `${number(value)}%` : size(value));
  const passed = guard.passed.map((p) => `${p.measure} is ${figure(p.measure, p.value)} since ${clock(p.since)}. The limit of ${p.policy} is ${figure(p.measure, p.limit)}.`);
  if (guard.pausesCopies) passed.push("No copy begins until the pipeline is within its limits.");
  const actions = guard.actions.map((a) => `${clock(a.at)} ${a.policy}: ${a.message}`).reverse();
  byId("guard-list").replaceChildren(...itemList("warn", passed), ...itemList("past", actions));
}

const itemList = (tone, items) => (items.length ? [element("ul", { class: tone }, ...items.map((item) => element("li", {}, printable(item))))] : []);

function showCopies(tables) {
  const copies = tables.filter((t) => running(t) || t.resync?.copy || (t.resync && t.resync.step !== "GivenUp"));
  byId("copies").hidden = copies.length === 0;
  reconcile(byId("copies-list"), copies, (t) => t.id, makeCopy, updateCopy);
}

function makeCopy() {
  return element("article", { class: "running" }, element("h3", {}, nameElement("")), element("progress", { max: 100 }), element("p", { class: "figures" }), element("p", { class: "aside" }));
}

function updateCopy(made, table) {
  const [title, bar, figures, aside] = made.children;
  const copy = running(table) ?? table.resync?.copy;
  const step = table.resync?.step;
  setText(title.firstElementChild, tableName(table));
  bar.hidden = !copy;
  if (copy) {
    bar.value = copy.percent;
    bar.setAttribute("aria-label", `Copied of ${tableName(table)}`);
  }
  const parts = copy ? [percent(copy.percent), `${number(copy.rows)} rows${copy.totalRows ? ` of about ${number(copy.totalRows)}` : ""}`, rate(copy.rowsPerSecond)] : [];
  if (copy?.secondsLeft) parts.push(`${duration(copy.secondsLeft)} left`);
  setText(figures, parts.filter(Boolean).join(" · "));
  const words = { Waiting: "Resync queued. The table stays readable.", Copying: "Resync: the table stays readable.", CatchingUp: `Resync: the shadow copy is catching up, ${number(table.resync?.pendingRows)} changes left.` }[step];
  const kept = copy?.resumable ? `${number(copy.rangesFinished)} of ${counted(copy.ranges, "range")} copied, which an interrupted copy keeps.` : "";
  setText(aside, [words, kept, copy?.note].filter(Boolean).join(" "));
}

/** Show the last complete cut and the one that is made. An earlier engine has no such field. */
function showCuts(cuts) {
  const shown = [cuts?.pending, cuts?.lastComplete].filter(Boolean);
  byId("cuts").hidden = shown.length === 0 && !cuts?.everySeconds;
  if (byId("cuts").hidden) return;
  const every = cuts.everySeconds ? `, a new one every ${duration(cuts.everySeconds).replace(".0s", "s")}` : "";
  setText(byId("cuts-kept"), `${counted(cuts.kept, "complete cut")} kept${every}`);
  reconcile(byId("cuts-list"), shown, (cut) => cut.name, makeCut, updateCut);
}

function makeCut() {
  return element("article", {}, element("h3", {}, nameElement("")), element("p"), element("p", { class: "aside" }));
}

function updateCut(made, cut) {
  const [title, state, leftOut] = made.children;
  setText(title.firstElementChild, printable(cut.name));
  const at = cut.lsn ? ` at ${cut.lsn}` : "";
  const time = cut.at ? `, ${clock(cut.at)}` : "";
  setText(state, `${cut.phase}${at}: ${number(cut.tagged)} of ${counted(cut.tables, "table")}${time}`);
  setText(leftOut, cut.leftOut.length ? `Left out: ${printable(cut.leftOut.join(", "))}` : "");
}

function notesOf(progress) {
  const notes = progress.tables.filter((t) => t.note).map((t) => [tableName(t), t.note]);
  const { waiting } = progress.manifest;
  if (waiting.length) notes.unshift(["Changed manifest", `These fields take effect after a restart: ${waiting.map((w) => `${w.field} (${w.change})`).join(", ")}`]);
  return notes;
}

function showNotes(notes) {
  byId("notes").hidden = notes.length === 0;
  reconcile(byId("notes-list"), notes.slice(0, 200), ([name]) => name, () => element("li", {}, nameElement(""), ": ", element("span")), (item, [name, note]) => {
    setText(item.firstElementChild, name);
    setText(item.lastElementChild, printable(note));
  });
}
