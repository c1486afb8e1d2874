// What the coordinator decided last: who serves and trains how much, and why.

import { byId, el, empty, show, table } from "./dom.js";
import { integer, moment, number, percent } from "./format.js";

export function showAllocation({ allocation, explanations, replicas }) {
  const place = byId("allocation-body");
  if (allocation === null) {
    show(place, empty(replicas === null
      ? "A replica that serves alone has nothing to share out: it trains in the time that is left."
      : "No allocation yet: each replica serves what it is sent and trains in the time that is "
        + "left. cluster.planning sets it."));
    return;
  }
  show(place,
    el("div", { class: "card" }, summary(allocation), replicaTable(allocation.replicas)),
    el("div", { class: "card" }, adapterTable(allocation.adapters)),
    el("div", { class: "card" }, Object.entries(explanations).map(explanation)));
}

function summary({ number: count, made_at_s: madeAtS, objective, alternatives }) {
  const tried = alternatives.map(({ name, total }) => `${name} ${number(total, 1)}`).join(", ");
  return el("p", { class: "lead" },
    `Allocation ${count} of ${moment(madeAtS)}. `,
    el("span", { class: "sub" }, `Worth ${number(objective.total, 1)}: serving `
      + `${number(objective.serving, 1)}, learning ${number(objective.learning, 1)}, debt `
      + `${number(objective.debt, 1)}.${tried ? ` Also tried: ${tried}.` : ""}`));
}

function replicaTable(replicas) {
  return table("Each replica's part", [
    { name: "Replica" }, { name: "Requests/s", kind: "number" },
    { name: "Expected attainment", kind: "number" }, { name: "Free", kind: "number" },
    { name: "Price", kind: "number" }, { name: "Trains", kind: "wide" },
  ], Object.entries(replicas).map(([name, one]) => [
    name, number(one.arrivals_per_s), percent(one.attainment), percent(one.free_share),
    number(one.price, 3), grants(one.grants),
  ]));
}

function grants(given) {
  const told = Object.entries(given).map(([adapter, grant]) => {
    const credit = grant.credit_share > 0 ? `, ${percent(grant.credit_share)} guaranteed` : "";
    return `${adapter} ${percent(grant.time_share)} of the time${credit}, `
      + `${integer(grant.batch_tokens)} tokens a step`;
  });
  return told.length ? told.join("; ") : "nothing";
}

function adapterTable(adapters) {
  return table("Each adapter's traffic and members", [
    { name: "Adapter" }, { name: "Arrivals/s", kind: "number" }, { name: "Traffic" },
    { name: "Members" }, { name: "Tokens a round", kind: "number" },
    { name: "Quality gained", kind: "number" },
  ], Object.entries(adapters).map(([name, one]) => [
    name, number(one.arrivals_per_s), shares(one.traffic), one.members.join(", ") || "none",
    integer(one.expected_tokens), number(one.quality_gain, 3),
  ]));
}

const shares = (traffic) => Object.entries(traffic).filter(([, share]) => share > 0)
  .map(([name, share]) => `${name} ${percent(share)}`).join(", ") || "none";

const explanation = ([name, lines]) => el("details", {},
  el("summary", { "data-key": `why-${name}` }, `Why ${name} has its part`),
  el("ul", { class: "reasons" }, lines.map((line) => el("li", {}, line))));
