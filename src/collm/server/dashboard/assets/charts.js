// Charts over time, drawn by uPlot; the legend is ours, so that it can be read without seeing.

import { el } from "./dom.js";
import { clock, moment } from "./format.js";
import { takeKeys } from "./keyboard.js";

const SVG = "http://www.w3.org/2000/svg";
const FONT = "11px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";
const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000];
const TIMES = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600,
  43200, 86400]; // s between two labels
const charts = new Set();

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// uPlot takes colours as values: it is drawn anew when they change.
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const chart of charts) chart.rebuild();
});

/**
 * One chart with its caption and legend.
 *
 * Series: {label, colour (a CSS variable), dash?, width?, format?, isStep?, isArea?}.
 * With isStacked, series are shares that are drawn on top of each other, first at the bottom.
 */
export class Chart {
  constructor({ title, sub = "", series, format, isStacked = false, isTall = false,
    range = null, isCount = false }) {
    this.options = { series, format, isStacked, isTall, range, isCount };
    this.marks = [];
    this.data = null;
    this.plot = null;
    this.subtitle = el("span", { class: "sub" }, sub);
    this.when = el("span", { class: "when" });
    this.place = el("div", { class: isTall ? "plot tall" : "plot", role: "slider", tabindex: 0,
      "aria-label": `${title}, moment shown`, "aria-valuemin": 0, "aria-valuemax": 0,
      "aria-valuenow": 0, "aria-valuetext": "latest" });
    this.legend = el("ul", { class: "legend" });
    this.values = [];
    this.element = el("figure", { class: "chart", "aria-label": title },
      el("figcaption", {}, el("h3", {}, title), this.when, this.subtitle), this.place, this.legend);
    this.setSeries(series);
    takeKeys(this);
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(this.place);
    charts.add(this);
  }

  setSeries(series) {
    const key = JSON.stringify(series.map(({ label, colour: name }) => [label, name]));
    if (key === this.seriesKey) return;
    this.seriesKey = key;
    this.options.series = series;
    this.values = series.map(() => el("b", {}));
    this.legend.replaceChildren(...series.map((one, place) =>
      el("li", {}, swatch(one), el("span", {}, one.label), this.values[place])));
    this.rebuild();
  }

  /** Show columns: times first, then one column for each series. */
  update(data, marks = []) {
    this.data = data;
    this.marks = marks;
    if (this.plot === null) this.rebuild();
    else this.plot.setData(this.drawn());
    this.showValues(this.plot?.cursor.idx);
  }

  /** The columns as they are drawn: stacked ones each on those before, uPlot's first on top. */
  drawn() {
    if (!this.options.isStacked) return this.data;
    const [times, ...columns] = this.data;
    const sums = new Array(times.length).fill(0);
    return [times, ...columns.map((column) => column.map((value, index) =>
      value === null ? null : (sums[index] += value)))].map(
      (column, place, all) => (place === 0 ? column : all[all.length - place]));
  }

  rebuild() {
    this.plot?.destroy();
    this.plot = null;
    if (this.data === null || this.place.clientWidth === 0) return;
    this.plot = new uPlot(this.plotOptions(), this.drawn(), this.place);
  }

  plotOptions() {
    const { series, format, isStacked, range, isCount } = this.options;
    const axis = { stroke: colour("--muted"), font: FONT, ticks: { show: false },
      grid: { stroke: colour("--grid"), width: 1 } };
    return {
      width: this.place.clientWidth,
      height: this.place.clientHeight,
      legend: { show: false },
      cursor: { sync: { key: "time" }, y: false, points: { size: 6 },
        drag: { x: false, y: false } },
      padding: [8, 28, 0, 0], // half of the last time's label
      scales: { x: { time: true }, y: { range: range ?? ((_, low, high) => spread(low, high)) } },
      axes: [
        { ...axis, grid: { show: false }, size: 26, space: 58, incrs: TIMES,
          values: (_, ticks) => {
            const isShort = ticks.length > 1 && ticks[1] - ticks[0] < 60;
            return ticks.map((at) => clock(at, isShort));
          } },
        { ...axis, ...(isCount ? { incrs: WHOLE } : {}), size: 52, space: 34,
          values: (_, ticks) => ticks.map((value) => format(value)) },
      ],
      series: [{}, ...(isStacked ? [...series].reverse() : series).map((one) => ({
        label: one.label,
        stroke: colour(one.colour),
        width: isStacked ? 0 : one.width ?? 1.75,
        dash: one.dash,
        fill: isStacked ? colour(one.colour) : undefined,
        paths: one.isStep ? uPlot.paths.stepped({ align: 1 }) : undefined,
        points: { show: false },
      }))],
      hooks: {
        draw: [(plot) => drawMarks(plot, this.marks)],
        setCursor: [(plot) => this.showValues(plot.cursor.idx)],
      },
    };
  }

  /** Write the values under the cursor, or the latest ones, beside the names. */
  showValues(index) {
    if (this.data === null) return;
    const at = index ?? this.data[0].length - 1;
    // Which moment, where it is not the latest.
    const when = (index ?? null) === null ? "" : moment(this.data[0][at]);
    if (this.when.textContent !== when) this.when.textContent = when;
    this.options.series.forEach((one, place) => {
      const text = (one.format ?? this.options.format)(this.data[place + 1]?.[at] ?? null);
      if (this.values[place].textContent !== text) this.values[place].textContent = text;
    });
  }

  /** What the legend shows, as one sentence. */
  spoken() {
    const values = this.options.series.map(
      ({ label }, place) => `${label} ${this.values[place].textContent}`);
    return `${this.when.textContent}: ${values.join(", ")}`;
  }

  resize() {
    const { clientWidth: width, clientHeight: height } = this.place;
    if (width === 0) return;
    if (this.plot === null) this.rebuild();
    else if (this.plot.width !== width) this.plot.setSize({ width, height });
  }

  remove() {
    charts.delete(this);
    this.observer.disconnect();
    this.plot?.destroy();
    this.element.remove();
  }
}

/** Leave room above the highest value, and start from zero. */
export const fromZero = (_, low, high) => [0, high > 0 ? high * 1.12 : 1];

function spread(low, high) {
  if (low === null || low === undefined) return [0, 1];
  const room = Math.max((high - low) * 0.12, Math.abs(high) * 0.02, 1e-6);
  return [Math.max(0, low - room), high + room];
}

/** Draw moments as vertical lines: {at, colour, label, dash?}. */
function drawMarks(plot, marks) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
  ctx.textAlign = "left"; // the axes leave it otherwise
  ctx.textBaseline = "alphabetic";
  let freeFrom = -Infinity;
  for (const { at, colour: name, label, dash = [] } of marks) {
    if (at < plot.scales.x.min || at > plot.scales.x.max) continue;
    const x = Math.round(plot.valToPos(at, "x", true)) + 0.5;
    ctx.strokeStyle = ctx.fillStyle = colour(name);
    ctx.lineWidth = devicePixelRatio;
    ctx.setLineDash(dash.map((length) => length * devicePixelRatio));
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    const room = 4 * devicePixelRatio;
    const width = ctx.measureText(label).width + 2 * room;
    const isLast = x + width >= bbox.left + bbox.width; // no room on the right
    const from = isLast ? x - width : x;
    if (from > freeFrom) { // labels do not cover each other
      ctx.fillText(label, from + room, bbox.top + 11 * devicePixelRatio);
      freeFrom = from + width;
    }
  }
  ctx.restore();
}

function swatch({ colour: name, dash, isArea = false }) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "swatch");
  svg.setAttribute("viewBox", "0 0 14 14");
  svg.setAttribute("aria-hidden", "true");
  const shape = document.createElementNS(SVG, isArea ? "rect" : "line");
  const given = isArea ? { x: 1, y: 1, width: 12, height: 12, rx: 3, fill: `var(${name})` }
    : { x1: 0, y1: 7, x2: 14, y2: 7, stroke: `var(${name})`, "stroke-width": 2.5,
      "stroke-dasharray": dash ? "3.5 2.5" : "none" };
  for (const [key, value] of Object.entries(given)) shape.setAttribute(key, value);
  svg.append(shape);
  return svg;
}
