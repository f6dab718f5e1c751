// The answers to the three questions, in a sentence each and with their figures.

import { byId, element, setText } from "./elements.js";
import { clock, counted, duration, number, rate, size } from "./format.js";
import { mostBehind } from "./history.js";
import { outlook, running } from "./tables.js";

/** Show the answers of a document. */
export function showAnswers(progress) {
  show(byId("disk"), disk(progress));
  show(byId("right"), right(progress));
  show(byId("done"), done(progress));
}

function disk({ slot, staging, guard }) {
  const figures = [
    ["Slot", slot.name],
    ["Lag", size(slot.lagBytes)],
    ["WAL is", slot.walStatus ?? "-"],
    ["May be written before the slot is lost", slot.safeWalBytes === null ? null : size(slot.safeWalBytes)],
    ["Staged", size(staging.bytes)],
    ["Free for staging", staging.freeBytes === null ? null : size(staging.freeBytes)],
  ];
  const wal = slot.walStatus === null || slot.walStatus === "reserved";
  if (guard.passed.length) return answer("bad", `${counted(guard.passed.length, "limit")} of the guard passed`, figures);
  if (!wal) return answer("warn", `WAL is ${slot.walStatus}, ${size(slot.retainedBytes)} retained`, figures);
  if (slot.retainedBytes === null) return answer("quiet", "No slot is known yet", figures);
  return answer("good", `${size(slot.retainedBytes)} of WAL retained`, figures);
}

function right(progress) {
  const { tables } = progress;
  const errored = tables.filter((t) => t.error).length;
  const verified = tables.filter((t) => t.verified);
  const different = verified.filter((t) => !t.verified.equal).length;
  const ready = progress.tablesByPhase.Ready ?? 0;
  const last = verified.map((t) => Date.parse(t.verified.at)).sort((a, b) => b - a)[0];
  const figures = [
    ["Ready", `${number(ready)} of ${counted(tables.length, "table")}`],
    ["Errored", number(errored)],
    ["Verified since the start", `${number(verified.length)} of ${counted(tables.length, "table")}`],
    ["Differ from the source", number(different)],
    ["Last verification", last === undefined ? null : clock(last)],
  ];
  if (progress.error) return answer("bad", "The pipeline has failed", figures);
  if (different) return answer("bad", `${counted(different, "table differs", "tables differ")} from the source`, figures);
  if (errored) return answer("bad", `${counted(errored, "table is", "tables are")} parked with an error`, figures);
  if (!tables.length) return answer("quiet", "No table is replicated yet", figures);
  if (ready === tables.length) return answer("good", ready === 1 ? "The table is Ready" : `All ${number(ready)} tables are Ready`, figures);
  return answer("busy", `${number(ready)} of ${counted(tables.length, "table")} ready`, figures);
}

function done(progress) {
  const { tables, capture } = progress;
  const copies = tables.filter(running);
  const waiting = tables.filter((t) => t.phase === "Init").length;
  const copyLeft = copies.map((t) => t.copy.secondsLeft);
  const left = outlook(progress.catchUp);
  const behind = mostBehind(tables);
  const figures = [
    ["Copies", copies.length || waiting ? `${number(copies.length)} running, ${number(waiting)} waiting` : "none"],
    ["Behind at most", behind === null ? "-" : duration(behind)],
    ["Arriving", rate(capture.rowsPerSecond) || "0/s"],
    ["Replication stream", capture.connected ? "open" : "closed"],
    ["Staged up to", capture.stagedLsn ?? "-"],
  ];
  if (progress.state !== "Running") return answer("quiet", `The pipeline is ${progress.state.toLowerCase()}`, figures);
  if (!capture.connected) return answer("warn", "The replication stream is not open", figures);
  if (left === "never") return answer("warn", "Does not catch up at this rate", figures);
  if (copies.length) {
    const known = copyLeft.every((s) => s !== null);
    const most = known ? `, ${duration(Math.max(...copyLeft))} left` : "";
    return answer("busy", `${counted(copies.length, "copy runs", "copies run")}${most}`, figures);
  }
  if (waiting) return answer("busy", `${counted(waiting, "table waits", "tables wait")} for a copy`, figures);
  if (left) return answer("busy", `${left} to catch up`, figures);
  if (progress.catchUp) return answer("good", "Caught up", figures);
  return behind === null ? answer("quiet", "Not known yet", figures) : answer("good", `${duration(behind)} behind at most`, figures);
}

const answer = (tone, sentence, figures) => ({ tone, sentence, figures: figures.filter(([, value]) => value !== null) });

const SYMBOLS = { good: "✓", warn: "!", bad: "✕", busy: "◐", quiet: "○" };

function show(place, { tone, sentence, figures }) {
  if (!place.firstElementChild) {
    place.append(
      element("p", { class: "answer" }, element("span", { class: "symbol", "aria-hidden": "true" }), element("span", { class: "sentence" })),
      element("dl", {}),
    );
  }
  const [head, list] = place.children;
  head.className = `answer ${tone}`;
  setText(head.firstElementChild, SYMBOLS[tone]);
  setText(head.lastElementChild, sentence);
  while (list.children.length > figures.length) list.lastElementChild.remove();
  while (list.children.length < figures.length) list.append(element("div", {}, element("dt"), element("dd")));
  figures.forEach(([title, value], i) => {
    setText(list.children[i].firstElementChild, title);
    setText(list.children[i].lastElementChild, value);
  });
}
