// What was received: the latest frames of each resolution, as many as the server keeps.

export class Store {
  constructor() {
    this.fields = [];
    this.tiers = [];
    this.facts = null;
    this.places = {};
  }

  setHistory(history) {
    this.fields = history.fields;
    this.places = Object.fromEntries(history.fields.map((name, place) => [name, place]));
    this.tiers = history.tiers.map((tier) => ({
      periodS: tier.period_s,
      numFrames: tier.num_frames,
      frames: tier.frames,
    }));
  }

  addFrame({ tier, frame }) {
    const { frames, numFrames } = this.tiers[tier];
    frames.push(frame);
    if (frames.length > numFrames) frames.splice(0, frames.length - numFrames);
  }

  get latest() {
    return this.tiers.length ? this.tiers[0].frames.at(-1) ?? null : null;
  }

  /** A row of the latest frame by field name; an object without fields when there is none. */
  row(replica = "") {
    const values = this.latest?.rows[replica];
    if (!values) return {};
    return Object.fromEntries(this.fields.map((name, place) => [name, values[place]]));
  }

  times(tier) {
    return this.tiers[tier].frames.map((frame) => frame.at);
  }

  /** One field over time; null where it is not known. */
  series(tier, field, replica = "") {
    const place = this.places[field];
    return this.tiers[tier].frames.map((frame) => frame.rows[replica]?.[place] ?? null);
  }

  /** One figure of an adapter's learning over time, on one replica. */
  learning(tier, adapter, replica, figure) {
    return this.tiers[tier].frames.map(
      (frame) => frame.learning[adapter]?.[replica]?.[figure] ?? null);
  }

  /** Replicas that the frames of a tier have anything about, or that the facts name. */
  replicas() {
    const named = (this.facts?.replicas ?? []).map((replica) => replica.id);
    const latest = this.latest;
    const seen = latest ? [...Object.keys(latest.rows), ...latest.missing] : [];
    return [...new Set([...named, ...seen])].filter((name) => name !== "").sort();
  }

  /** Names of adapters that something is known about. */
  adapters() {
    const named = (this.facts?.adapters ?? []).map((adapter) => adapter.name);
    return [...new Set([...named, ...Object.keys(this.latest?.learning ?? {})])].sort();
  }

  /** What was measured last of each version of an adapter, in the frames here. */
  measured(adapter) {
    const found = new Map();
    for (const tier of [...this.tiers].reverse()) {
      for (const frame of tier.frames) {
        for (const one of Object.values(frame.learning[adapter] ?? {})) {
          if (one.version && one.served !== null) {
            found.set(one.version, { loss: one.served, exact: one.served_exact });
          }
        }
      }
    }
    return found;
  }
}
