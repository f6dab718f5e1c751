// Plots of the history: SVG with axes, units and a legend, and the same figures as a table for those who cannot see it.

import { element, svgElement, setText } from "./elements.js";
import { clock } from "./format.js";

const HEIGHT = 168;
const MARGIN = { top: 10, right: 12, bottom: 24, left: 66 };
const TIME_STEPS_S = [600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400];
const ROWS = 12;

/** One plot. `series` has for each line its name and the column of the history. `format` returns a value with its unit. */
export class Plot {
  constructor(title, series, format, ticks) {
    Object.assign(this, { title, series, format, ticks });
    this.picture = svgElement("svg", { role: "img", class: "plot", height: HEIGHT });
    this.latest = element("p", { class: "latest" });
    this.table = element("div", { class: "scroll" });
    const details = element("details", {}, element("summary", {}, `${title}: figures`), this.table);
    details.addEventListener("toggle", () => this.draw());
    this.details = details;
    this.element = element("figure", {}, element("figcaption", {}, element("h3", {}, title), this.latest), this.picture, details);
    this.picture.addEventListener("pointermove", (event) => this.point(event.offsetX));
    this.picture.addEventListener("pointerleave", () => this.point(null));
    this.width = 0;
    new ResizeObserver(([entry]) => {
      this.width = Math.floor(entry.contentRect.width);
      this.draw();
    }).observe(this.element);
  }

  /** Show the points of the last `range` seconds before `now`, both in milliseconds. */
  show(points, now, range) {
    Object.assign(this, { points: points.filter((p) => p.at >= now - range - p.seconds * 1000), now, range });
    this.draw();
  }

  draw() {
    const { width } = this;
    if (!this.points || width === 0) return;
    const values = this.series.flatMap((s) => this.points.map((p) => p[s.column])).filter((v) => v !== null && v !== undefined);
    const ticks = this.ticks(Math.max(0, ...values));
    const top = ticks[ticks.length - 1];
    const inner = { width: width - MARGIN.left - MARGIN.right, height: HEIGHT - MARGIN.top - MARGIN.bottom };
    this.x = (at) => MARGIN.left + inner.width * Math.max(0, 1 - (this.now - at) / this.range);
    this.y = (value) => MARGIN.top + inner.height * (1 - value / top);
    this.picture.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.picture.setAttribute("width", width);
    this.picture.setAttribute("aria-label", this.description());
    this.picture.replaceChildren(...this.grid(ticks, width), ...this.lines(), ...this.times(inner.width));
    this.cursor = svgElement("line", { class: "cursor", y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom, visibility: "hidden" });
    this.picture.append(this.cursor);
    if (values.length === 0) {
      this.picture.append(svgElement("text", { class: "empty", x: width / 2, y: HEIGHT / 2, "text-anchor": "middle" }, "No figures yet"));
    }
    this.showLegend(this.points[this.points.length - 1], false);
    if (this.details.open) this.fillTable();
  }

  grid(ticks, width) {
    return ticks.flatMap((value) => [
      svgElement("line", { class: value === 0 ? "axis" : "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: this.y(value), y2: this.y(value) }),
      svgElement("text", { x: MARGIN.left - 8, y: this.y(value) + 4, "text-anchor": "end" }, this.format(value)),
    ]);
  }

  times(width) {
    const most = Math.max(2, Math.floor(width / 84));
    const step = TIME_STEPS_S.find((s) => this.range / 1000 / s <= most) * 1000;
    const zone = new Date(this.now).getTimezoneOffset() * 60000;
    const marks = [];
    for (let at = Math.ceil((this.now - this.range - zone) / step) * step + zone; at <= this.now; at += step) {
      const day = step >= 21600000 || new Date(at).toDateString() !== new Date(this.now).toDateString();
      const text = new Date(at).toLocaleString("en-GB", { ...(day && { weekday: "short" }), hour: "2-digit", minute: "2-digit" });
      const x = this.x(at);
      if (x < MARGIN.left + 20 || x > MARGIN.left + width - 14) continue;
      marks.push(svgElement("line", { class: "axis", x1: x, x2: x, y1: HEIGHT - MARGIN.bottom, y2: HEIGHT - MARGIN.bottom + 4 }));
      marks.push(svgElement("text", { x, y: HEIGHT - 6, "text-anchor": "middle" }, text));
    }
    return marks;
  }

  /** Return the areas and lines. A line is interrupted where points are missing or have no value. */
  lines() {
    return this.series.flatMap((series, index) =>
      this.runs(series.column).flatMap((run) => {
        const path = run.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)},${y.toFixed(1)}`).join("");
        const line = svgElement("path", { class: `line line-${index}`, d: run.length > 1 ? path : `${path}h0.1` });
        if (index > 0) return [line];
        const base = this.y(0).toFixed(1);
        return [svgElement("path", { class: "area", d: `${path}V${base}H${run[0][0].toFixed(1)}Z` }), line];
      }),
    );
  }

  runs(column) {
    const runs = [];
    let before = null;
    for (const point of this.points) {
      const value = point[column];
      if (value === null || value === undefined) {
        before = null;
        continue;
      }
      if (before === null || point.at - before.at > 3000 * before.seconds) runs.push([]);
      runs[runs.length - 1].push([this.x(point.at), this.y(value)]);
      before = point;
    }
    return runs;
  }

  point(offset) {
    if (!this.points?.length) return;
    const nearest = offset === null ? null : this.points.reduce((best, p) => (Math.abs(this.x(p.at) - offset) < Math.abs(this.x(best.at) - offset) ? p : best));
    this.cursor.setAttribute("visibility", nearest ? "visible" : "hidden");
    if (nearest) {
      this.cursor.setAttribute("x1", this.x(nearest.at));
      this.cursor.setAttribute("x2", this.x(nearest.at));
    }
    this.showLegend(nearest ?? this.points[this.points.length - 1], nearest !== null);
  }

  /** Show the values of a point in the legend. */
  showLegend(point, past) {
    const parts = this.series.map((series, index) => [this.series.length > 1 ? `${series.name} ` : "", point ? this.format(point[series.column]) : "-", index]);
    while (this.latest.children.length < parts.length + 1) {
      this.latest.append(element("span", {}));
    }
    parts.forEach(([name, value, index], i) => {
      const span = this.latest.children[i];
      span.className = this.series.length > 1 ? `key key-${index}` : "key";
      setText(span, name + value);
    });
    const when = this.latest.children[parts.length];
    when.className = "when";
    setText(when, past ? `at ${clock(point.at)}` : "");
  }

  description() {
    const spoken = this.series.map(({ name, column }) => {
      const known = this.points.filter((p) => p[column] !== null && p[column] !== undefined);
      if (!known.length) return `${name}: no figures yet`;
      const peak = known.reduce((a, b) => (b[column] > a[column] ? b : a));
      const last = known[known.length - 1];
      return `${name}: ${this.format(last[column])} at ${clock(last.at)}, at most ${this.format(peak[column])} at ${clock(peak.at)}`;
    });
    return `${this.title}. ${spoken.join(". ")}.`;
  }

  fillTable() {
    const every = Math.max(1, Math.ceil(this.points.length / ROWS));
    const rows = this.points.filter((_, i) => (this.points.length - 1 - i) % every === 0);
    const head = element("tr", {}, element("th", { scope: "col" }, "Time"), ...this.series.map((s) => element("th", { scope: "col" }, s.name)));
    const body = rows.map((p) => element("tr", {}, element("th", { scope: "row" }, clock(p.at)), ...this.series.map((s) => element("td", {}, this.format(p[s.column])))));
    this.table.replaceChildren(element("table", { class: "plain" }, element("caption", { class: "unseen" }, this.title), element("thead", {}, head), element("tbody", {}, ...body)));
  }
}

/** Return round values from 0 to at least `most`, in steps of 1, 2 or 5 in the decimal system. */
export const decimalTicks = (least) => (most) => steps(most, least, (raw) => {
  const power = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 5, 10].find((f) => f * power >= raw * 0.999) * power;
});

/** Return round values from 0 to at least `most` bytes, in steps of powers of two. */
export const binaryTicks = (least) => (most) => steps(most, least, (raw) => 2 ** Math.ceil(Math.log2(raw)));

/** Return round values from 0 to at least `most` seconds, in steps that people count in. */
export const timeTicks = (most) => steps(most, 2, (raw) =>
  [0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400].find((s) => s >= raw) ?? Math.ceil(raw / 86400) * 86400,
);

function steps(most, least, round) {
  const step = round(Math.max(most, least) / 3);
  const count = Math.max(2, Math.ceil(Math.max(most, least) / step));
  return Array.from({ length: count + 1 }, (_, i) => i * step);
}
