// The page: what comes from the stream goes into the store, and the views show it.

import { showAllocation } from "./allocation.js";
import { Compute } from "./compute.js";
import { byId } from "./dom.js";
import { LearningView } from "./learning.js";
import { showDecisions, showJobs, showRounds } from "./records.js";
import { Rollback } from "./rollback.js";
import { Service } from "./service.js";
import { Store } from "./store.js";
import { Stream } from "./stream.js";

const store = new Store();
const rollback = new Rollback(store);
const service = new Service(store);
const compute = new Compute(store);
const learning = new LearningView(store, (adapter, served) => rollback.open(adapter, served));
let tier = 0;

function showCharts() {
  if (store.tiers.length === 0) return;
  service.update(tier);
  compute.update(tier);
  learning.update(tier);
}

function showFacts() {
  if (store.facts === null) return;
  byId("model").textContent = store.facts.model ?? "";
  learning.showFacts();
  showRounds(store.facts);
  showAllocation(store.facts);
  showDecisions(store.facts);
  showJobs(store.facts, store.latest);
}

function receiveFrame(message) {
  store.addFrame(message);
  if (document.hidden) return; // drawn when somebody looks
  if (message.tier === tier) showCharts();
  if (message.tier === 0) {
    service.showTiles();
    if (store.facts !== null) showJobs(store.facts, store.latest);
  }
}

function showAll() {
  service.showTiles();
  showCharts();
  showFacts();
}

function showConnection(state, text) {
  const place = byId("connection");
  // Said aloud when it changes; while it lasts, the seconds only show.
  place.setAttribute("aria-live", place.dataset.state === state ? "off" : "polite");
  place.dataset.state = state;
  const shown = byId("connection-text");
  if (shown.textContent !== text) shown.textContent = text;
}

byId("ranges").addEventListener("change", (event) => {
  tier = Number(event.target.value);
  showCharts();
});
document.addEventListener("visibilitychange", () => document.hidden || showAll());

new Stream({
  history: (history) => {
    store.setHistory(history);
    showAll();
  },
  frame: receiveFrame,
  facts: (facts) => {
    store.facts = facts;
    showFacts();
    showCharts();
  },
}, showConnection).start();
