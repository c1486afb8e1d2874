// The connection to the server: events in, and honest words about how fresh they are.

const STALLED_MS = 5000;
const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 15000;

/** Follows /dashboard/stream, and connects again, ever more slowly, when it breaks off. */
export class Stream {
  /**
   * @param {Object<string, (data: Object) => void>} handlers by the event's name
   * @param {(state: string, text: string) => void} onState told when it changes, and while it is
   *   not live, every second
   */
  constructor(handlers, onState) {
    this.handlers = handlers;
    this.onState = onState;
    this.source = null;
    this.lastFrameMs = null;
    this.retryAtMs = null;
    this.waitMs = FIRST_WAIT_MS;
    this.timer = null;
  }

  start() {
    this.connect();
    setInterval(() => this.report(), 1000);
    // A page that was asleep should not wait out a long pause.
    document.addEventListener("visibilitychange", () => {
      if (document.visibilityState === "visible" && this.retryAtMs !== null) this.connect();
    });
    addEventListener("online", () => this.retryAtMs !== null && this.connect());
  }

  connect() {
    clearTimeout(this.timer);
    this.retryAtMs = null;
    this.source?.close();
    this.source = new EventSource("/dashboard/stream");
    this.source.onerror = () => this.retry();
    for (const name of Object.keys(this.handlers)) {
      this.source.addEventListener(name, (event) => this.receive(name, event.data));
    }
    this.openedMs = Date.now();
  }

  receive(name, data) {
    this.waitMs = FIRST_WAIT_MS;
    if (name === "frame") this.lastFrameMs = Date.now();
    this.handlers[name](JSON.parse(data));
    if (name !== "facts") this.report();
  }

  retry() {
    this.source?.close();
    this.source = null;
    // Spread, so that a server that comes back is not met by all pages at once.
    const waitMs = this.waitMs * (0.75 + Math.random() / 2);
    this.waitMs = Math.min(LONGEST_WAIT_MS, this.waitMs * 2);
    this.retryAtMs = Date.now() + waitMs;
    this.timer = setTimeout(() => this.connect(), waitMs);
    this.report();
  }

  report() {
    const now = Date.now();
    const silentMs = this.lastFrameMs === null ? null : now - this.lastFrameMs;
    const last = silentMs === null ? "nothing received yet"
      : `last update ${Math.round(silentMs / 1000)} s ago`;
    if (this.retryAtMs !== null) {
      const inS = Math.max(0, Math.ceil((this.retryAtMs - now) / 1000));
      this.onState("gone", `Server not reached: ${last}; trying again in ${inS} s`);
    } else if (silentMs === null) {
      this.onState("waiting", "Connecting …");
    } else if (silentMs > STALLED_MS) {
      this.onState("stalled", `Stalled: ${last}`);
      // A connection can be dead without an error; the server sends something every 10 s.
      if (silentMs > 20000 && now - this.openedMs > 20000) this.retry();
    } else {
      this.onState("live", "Live");
    }
  }
}
