// What each adapter has learned: losses with promotions, rollbacks and rounds, and its versions.

import { Chart } from "./charts.js";
import { byId, chip, clear, el, empty, show, table } from "./dom.js";
import { loss, moment, percent } from "./format.js";

const COLOURS = ["--first", "--second", "--third", "--fourth"];
const MAX_LINES = COLOURS.length;
const FAILED = ["refused", "abandoned"]; // rounds whose candidate was not promoted
const UNREADABLE = "The versions cannot be read now.";

export class LearningView {
  constructor(store, onRollback) {
    this.store = store;
    this.onRollback = onRollback;
    this.panels = new Map();
    this.place = byId("adapters");
  }

  update(tier) {
    const names = this.store.adapters();
    for (const [name, panel] of this.panels) {
      if (!names.includes(name)) {
        panel.remove();
        this.panels.delete(name);
      }
    }
    if (names.length === 0) {
      show(this.place, empty(this.store.facts?.knows_adapters === false ? UNREADABLE
        : "No adapter yet. Start one with collm serve --train NAME=DATA, or with a fine-tuning job."));
      return;
    }
    if (this.panels.size === 0) clear(this.place);
    for (const name of names) {
      if (!this.panels.has(name)) {
        this.panels.set(name, new Panel(this.store, name, this.onRollback));
        this.place.append(this.panels.get(name).element);
        if (this.store.facts !== null) this.panels.get(name).showFacts();
      }
      this.panels.get(name).update(tier);
    }
  }

  showFacts() {
    for (const panel of this.panels.values()) panel.showFacts();
  }
}

class Panel {
  constructor(store, name, onRollback) {
    this.store = store;
    this.name = name;
    this.onRollback = onRollback;
    this.charts = {
      loss: new Chart({ title: "Held-out loss", sub: "nats per token", format: loss,
        isTall: true, series: [] }),
      exact: new Chart({ title: "Exact match", sub: "share of held-out short answers",
        format: percent, isTall: true, range: () => [0, 1.04], series: [] }),
    };
    this.head = el("div", { class: "card-head" });
    this.versions = el("div", {});
    this.element = el("article", { class: "stack", "aria-label": `Adapter ${name}` },
      el("div", { class: "card" }, this.head, el("div", { class: "grid charts" },
        Object.values(this.charts).map((chart) => chart.element))),
      el("div", { class: "card" }, this.versions));
  }

  remove() {
    for (const chart of Object.values(this.charts)) chart.remove();
    this.element.remove();
  }

  facts() {
    return this.store.facts?.adapters.find((adapter) => adapter.name === this.name) ?? null;
  }

  update(tier) {
    const { store, name } = this;
    const learning = store.latest?.learning[name] ?? {};
    const replicas = store.replicas().filter((replica) => replica in learning).slice(0, MAX_LINES);
    const isAlone = replicas.length === 1;
    const marks = this.marks();
    const hasLoss = this.draw(this.charts.loss, tier, replicas, isAlone,
      ["served", "shadow"], marks);
    this.charts.loss.subtitle.textContent = hasLoss ? "nats per token" : "not measured yet";
    // No axis of made-up values.
    this.charts.loss.place.hidden = this.charts.loss.legend.hidden = !hasLoss;
    // Without short answers there is nothing to say about them.
    const hasExact = this.draw(this.charts.exact, tier, replicas, isAlone,
      ["served_exact", "shadow_exact"], marks);
    this.charts.exact.element.hidden = !hasExact;
    this.showHead(learning);
  }

  /** Draw two figures of each replica; return whether there is any. */
  draw(chart, tier, replicas, isAlone, [served, shadow], marks) {
    chart.setSeries(replicas.flatMap((replica, place) => [
      { label: isAlone ? "served" : `${replica} served`, colour: COLOURS[place], width: 2,
        isStep: true },
      { label: isAlone ? "in training" : `${replica} in training`, colour: COLOURS[place],
        width: 1.25, dash: [5, 3], isStep: true },
    ]));
    const columns = replicas.flatMap((replica) => [served, shadow].map(
      (figure) => this.store.learning(tier, this.name, replica, figure)));
    chart.update([this.store.times(tier), ...columns], marks);
    return columns.some((column) => column.some((value) => value !== null));
  }

  /** Moments that changed what is served, oldest first. */
  marks() {
    const label = (version) => (version ?? "base").split("@").at(-1);
    const kinds = {
      promotion: { sign: "▲", colour: "--good" },
      rollback: { sign: "▼", colour: "--bad" },
    };
    const found = (this.facts()?.decisions ?? []).filter(({ kind }) => kind in kinds).map(
      ({ decided_at_s: at, kind, version }) =>
        ({ at, colour: kinds[kind].colour, label: `${kinds[kind].sign}${label(version)}` }));
    // All replicas decide the same at about the same time: one mark is enough.
    const once = new Map(found.map((mark) => [`${mark.label} ${Math.round(mark.at / 10)}`, mark]));
    const rounds = (this.store.facts?.rounds[this.name]?.rounds ?? []).map((round) =>
      ({ at: round.started_at_s, colour: "--objective", dash: [2, 3],
        label: `○${round.round}` }));
    return [...once.values(), ...rounds].sort((one, other) => one.at - other.at);
  }

  showHead(learning) {
    const served = [...new Set(Object.values(learning).map((one) => one.version ?? "base"))];
    const isLearning = Object.values(learning).some((one) => one.status === "running");
    const facts = this.facts();
    const canRollBack = served.some((version) => version !== "base");
    show(this.head,
      el("h3", {}, this.name),
      served.map((version) => chip(version === "base" ? "base model" : version, "accent")),
      served.length > 1 ? chip("▲ replicas differ", "warn") : null,
      isLearning ? chip("● learning", "good") : null,
      el("span", { class: "sub" }, "▲ promotion   ▼ rollback   ○ round"),
      el("button", { type: "button", class: "end", "data-key": `roll-${this.name}`,
        disabled: !canRollBack, "data-adapter": this.name }, "Roll back …"));
    const button = this.head.querySelector("button");
    button.onclick = () => this.onRollback(this.name, served, facts);
  }

  showFacts() {
    const facts = this.facts();
    if (facts === null || facts.versions.length === 0) {
      show(this.versions, el("p", { class: "sub" }, this.store.facts.knows_adapters
        ? "No version published yet: the first one follows when training is proven to help."
        : UNREADABLE));
      return;
    }
    const measured = this.store.measured(this.name);
    const promoted = new Map(facts.decisions.filter(({ kind }) => kind === "promotion").map(
      ({ version, numbers }) => [version, numbers]));
    const rounds = this.store.facts.rounds[this.name]?.rounds ?? [];
    const unserved = new Map(rounds.filter(({ status }) => status !== "done").map(
      ({ candidate, status }) => [candidate, status]));
    const over = this.store.facts.replicas === null ? ""
      : " losses and exact match are means over replicas,";
    show(this.versions, table(`Versions of ${this.name}, newest first;${over} ratings are the mean `
      + "of the latest feedback", [
      { name: "Version" }, { name: "State" }, { name: "Held-out loss", kind: "number" },
      { name: "Exact match", kind: "number" }, { name: "User rating", kind: "number" },
      { name: "Published", kind: "tight" },
      { name: "Rank", kind: "number" },
    ], facts.versions.map((one) => {
      const then = promoted.get(one.version) ?? {};
      const now = measured.get(one.version) ?? { loss: then.candidate_loss,
        exact: then.candidate_exact_match };
      const rating = this.store.facts.ratings[one.version];
      return [
        one.version,
        el("span", {}, stateOf(one, unserved), one.is_pinned ? [" ", chip("pinned")] : null),
        loss(now.loss),
        percent(now.exact),
        rating ? `${percent(rating.mean)} of ${rating.num}` : "–",
        moment(one.published_at_s),
        String(one.rank),
      ];
    })));
  }
}

/** Say where a version is active; a replica that serves alone has no name. */
function stateOf({ version, active_on: activeOn }, unserved) {
  if (activeOn.length === 0) {
    const status = unserved.get(version);
    if (FAILED.includes(status)) return chip(`✕ ${status}`, "warn");
    return chip(status ? "… candidate" : "kept");
  }
  const names = activeOn.filter(Boolean).join(", ");
  return chip(names ? `● active on ${names}` : "● active", "good");
}
