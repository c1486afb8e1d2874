// What was received: the latest frames of each resolution, as many as the server keeps.

const GAP_PERIODS = 4; // so many without a frame, and lines are not drawn across
const NOTHING = { rows: {}, missing: [], learning: {} };

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
      frames: [],
    }));
    history.tiers.forEach(({ frames }, tier) => {
      for (const frame of frames) this.addFrame({ tier, frame });
    });
  }

  addFrame({ tier, frame }) {
    const { frames, numFrames, periodS } = this.tiers[tier];
    while (frames.length && frames.at(-1).at >= frame.at) frames.pop(); // a clock was set back
    const before = frames.at(-1)?.at ?? frame.at;
    if (frame.at - before > GAP_PERIODS * periodS) {
      frames.push({ ...NOTHING, at: before + periodS });
    }
    frames.push(frame);
    const fromS = frame.at - numFrames * periodS;
    const first = frames.findIndex(({ at }) => at > fromS);
    frames.splice(0, Math.max(first, frames.length - numFrames));
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

  /** What was measured last of each version of an adapter: the means of its replicas. */
  measured(adapter) {
    const found = new Map();
    for (const tier of [...this.tiers].reverse()) {
      for (const frame of tier.frames) {
        for (const [replica, one] of Object.entries(frame.learning[adapter] ?? {})) {
          if (!one.version || one.served === null) continue;
          if (!found.has(one.version)) found.set(one.version, new Map());
          found.get(one.version).set(replica, one);
        }
      }
    }
    return new Map([...found].map(([version, replicas]) => {
      const all = [...replicas.values()];
      return [version, { loss: mean(all.map(({ served }) => served)),
        exact: mean(all.map(({ served_exact: exact }) => exact)) }];
    }));
  }
}

/** The mean of those that are known; null without any. */
function mean(values) {
  const known = values.filter((value) => value !== null && value !== undefined);
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
}
