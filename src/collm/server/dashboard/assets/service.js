// How requests fare: the tiles, and the charts beside the objectives.

import { Chart, fromZero } from "./charts.js";
import { byId, el, show } from "./dom.js";
import { attainment, number, percent, seconds } from "./format.js";

const OBJECTIVE = { colour: "--objective", dash: [5, 4], width: 1.25 };
const P50 = { label: "median", colour: "--second" };
const P95 = { label: "95th percentile", colour: "--first" };

const tile = (name, value, unit, ...note) => el("div", { class: "tile" },
  el("dt", {}, name),
  el("dd", {}, el("div", { class: "value" }, value, unit ? el("small", {}, unit) : null),
    el("div", { class: "note" }, note)));

/** A latency beside its objective, in words and with a mark, not by colour alone. */
function latencyTile(name, value, objectiveS) {
  const [shown, unit] = seconds(value).split(" ");
  if (value === null || value === undefined || !objectiveS) {
    return tile(name, shown, unit, objectiveS ? `objective ${seconds(objectiveS)}` : "");
  }
  const isMet = value <= objectiveS;
  return tile(name, shown, unit,
    el("span", { class: `mark ${isMet ? "good" : "bad"}` }, isMet ? "✓ within " : "▲ over "),
    seconds(objectiveS));
}

export class Service {
  constructor(store) {
    this.store = store;
    const latency = (title) => new Chart({ title, sub: "latest 30 s", format: seconds,
      range: fromZero, series: [P50, P95, { ...OBJECTIVE, label: "objective" }] });
    this.charts = {
      ttft: latency("Time to first token"),
      tpot: latency("Time per output token"),
      goodput: new Chart({ title: "Goodput", sub: "requests/s that met both objectives",
        format: (value) => number(value), range: fromZero,
        series: [{ label: "requests/s", colour: "--first" },
          { label: "weighted by quality (Q/s)", colour: "--second", dash: [6, 3] }] }),
      attained: new Chart({ title: "Attainment", sub: "share of requests that met both",
        format: percent, range: () => [0, 1.04],
        series: [{ label: "attained", colour: "--first", format: attainment }] }),
      queue: new Chart({ title: "Queue", sub: "sequences", format: (value) => number(value, 0),
        range: fromZero, isCount: true, series: [{ label: "running", colour: "--first" },
          { label: "waiting", colour: "--third", dash: [6, 3] }] }),
      tokens: new Chart({ title: "Tokens", sub: "per second",
        format: (value) => number(value, value < 10 ? 1 : 0),
        range: fromZero, series: [{ label: "generated", colour: "--first" },
          { label: "trained on", colour: "--second", dash: [6, 3] }] }),
    };
    byId("service-charts").append(...Object.values(this.charts).map((chart) => chart.element));
  }

  update(tier) {
    const { store, charts } = this;
    const times = store.times(tier);
    const columns = (...fields) => [times, ...fields.map((field) => store.series(tier, field))];
    const { ttft_s: ttftS = null, tpot_s: tpotS = null } = store.latest?.objectives ?? {};
    const line = (value) => times.map(() => value);
    charts.ttft.update([...columns("ttft_p50", "ttft_p95"), line(ttftS)]);
    charts.tpot.update([...columns("tpot_p50", "tpot_p95"), line(tpotS)]);
    charts.goodput.update(columns("goodput", "quality_goodput"));
    charts.attained.update(columns("attained"));
    charts.queue.update(columns("running", "waiting"));
    charts.tokens.update(columns("output_tokens", "training_tokens"));
  }

  showTiles() {
    const row = this.store.row();
    const { ttft_s: ttftS, tpot_s: tpotS } = this.store.latest?.objectives ?? {};
    const hasRequests = row.attained !== null && row.attained !== undefined;
    const [attained] = attainment(row.attained).split(" ");
    show(byId("tiles"), el("dl", { class: "tiles" },
      tile("Attainment", attained, hasRequests ? "%" : "",
        hasRequests ? "of requests met both objectives" : "no request ended lately"),
      latencyTile("TTFT, 95th percentile", row.ttft_p95, ttftS),
      latencyTile("TPOT, 95th percentile", row.tpot_p95, tpotS),
      tile("Goodput", number(row.goodput), "req/s",
        `${number(row.quality_goodput)} Q/s by quality`),
      tile("Running", number(row.running, 0), "", row.waiting > 0
        ? el("span", { class: "mark warn" }, `${number(row.waiting, 0)} waiting`) : "nothing waits",
      ` · ${percent(row.kv)} of KV cache`),
      tile("Training", number(row.training_tokens, 0), "tokens/s",
        `${percent((row.train ?? 0) + (row.evaluate ?? 0))} of the time`)));
  }
}
