// Where each replica's time goes.

import { Chart } from "./charts.js";
import { byId, chip, clear, empty, show } from "./dom.js";
import { percent } from "./format.js";

const KINDS = ["decode", "prefill", "train", "evaluate", "idle"];
const LABELS = { decode: "decode", prefill: "prefill", train: "training",
  evaluate: "evaluation", idle: "idle" };

export class Compute {
  constructor(store) {
    this.store = store;
    this.charts = new Map();
    this.place = byId("replicas");
  }

  update(tier) {
    const names = this.store.replicas();
    for (const [name, chart] of this.charts) {
      if (!names.includes(name)) {
        chart.remove();
        this.charts.delete(name);
      }
    }
    if (names.length === 0) {
      show(this.place, empty("No replica has been heard of yet."));
      return;
    }
    if (this.charts.size === 0) clear(this.place);
    const times = this.store.times(tier);
    const missing = this.store.latest?.missing ?? [];
    for (const name of names) {
      const chart = this.charts.get(name) ?? this.add(name);
      chart.update([times, ...KINDS.map((kind) => this.store.series(tier, kind, name))]);
      show(chart.subtitle, missing.includes(name)
        ? chip("✕ not answering", "bad") : "share of time");
    }
  }

  add(name) {
    const chart = new Chart({ title: name, format: percent, isStacked: true, range: () => [0, 1],
      series: KINDS.map((kind) => ({ label: LABELS[kind], colour: `--${kind}`, isArea: true })) });
    this.charts.set(name, chart);
    this.place.append(chart.element);
    return chart;
  }
}
