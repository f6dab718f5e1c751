// The figures of the plots: the history of the engine, and since its last request the documents that this page received.

const KNOWN_VERSION = 1;
const KEPT_MS = 2 * 86400 * 1000;
const COLUMNS = ["retainedBytes", "lagBytes", "stagedBytes", "lagSeconds", "rowsPerSecond"];

export class History {
  constructor() {
    this.points = [];
    this.pipeline = "";
  }

  /** Add the figures of a document. Those of another pipeline replace what is there. */
  add(progress) {
    if (progress.pipeline !== this.pipeline) this.points = [];
    this.pipeline = progress.pipeline;
    const point = pointOf(progress);
    const newest = this.points[this.points.length - 1];
    if (newest && newest.at >= point.at) return;
    this.points.push(point);
    if (this.points[0].at < point.at - KEPT_MS) this.points.shift();
  }

  /** Replace the points since the engine's first one by its own. Earlier ones, of an engine that has ended, are kept. */
  load({ version, at, seconds, ...columns }) {
    if (version !== KNOWN_VERSION || at.length === 0) return;
    const loaded = at.map((text, i) => {
      const figures = COLUMNS.map((name) => [name, columns[name][i]]);
      return { at: Date.parse(text), seconds: seconds[i], ...Object.fromEntries(figures) };
    });
    const [first, last] = [loaded[0].at, loaded[loaded.length - 1].at];
    const before = this.points.filter((point) => point.at < first);
    const after = this.points.filter((point) => point.at > last);
    this.points = [...before, ...loaded, ...after.slice(-20)];
  }
}

function pointOf({ at, slot, staging, capture, tables }) {
  return {
    at: Date.parse(at),
    seconds: 10,
    retainedBytes: slot.retainedBytes,
    lagBytes: slot.lagBytes,
    stagedBytes: staging.bytes,
    lagSeconds: mostBehind(tables),
    rowsPerSecond: capture.rowsPerSecond,
  };
}

/** Return the largest lag of the tables that stream, or null without one. */
export function mostBehind(tables) {
  return tables.reduce((most, t) => (t.lagSeconds === null || t.error ? most : Math.max(most ?? 0, t.lagSeconds)), null);
}
