// Tables of what happened: rounds, gate decisions, jobs.

import { byId, chip, el, empty, show, table } from "./dom.js";
import { duration, integer, loss, moment, number, percent, signed } from "./format.js";

const ROUND_KINDS = { done: ["✓", "good"], refused: ["✕", "warn"], abandoned: ["✕", "bad"] };
const MEMBER_KINDS = { reported: ["✓", "good"], open: ["…", ""], late: ["!", "warn"] };
const DECISION_KINDS = { promotion: ["▲", "good"], rollback: ["▼", "bad"],
  refusal: ["✕", "warn"] };
const JOB_KINDS = { running: ["●", "good"], succeeded: ["✓", "good"], failed: ["✕", "bad"],
  paused: ["❚❚", "warn"] };

function state(kinds, text) {
  const [sign, kind] = kinds[text] ?? ["", ""];
  return chip(`${sign} ${text}`.trim(), kind);
}

const known = (value) => value !== null && value !== undefined;

// Rounds

export function showRounds(facts) {
  const adapters = Object.entries(facts.rounds).filter(
    ([, one]) => one.rounds.length > 0 || one.pause);
  const isAlone = facts.replicas === null;
  show(byId("round-list"), adapters.length === 0
    ? empty(isAlone ? "A replica that serves alone learns alone; rounds need two or more replicas."
      : "No round yet. Rounds are set in cluster.rounds, and begin when enough replicas are there.")
    : adapters.map(([name, { rounds, pause }]) => el("div", { class: "card" },
      pause ? el("p", { class: "lead" }, chip("❚❚ no round", "warn"),
        ` The next round of ${name} does not begin: ${pause}.`) : null,
      rounds.length > 0 ? roundTable(name, rounds, facts.replicas ?? []) : null)));
}

function roundTable(adapter, rounds, replicas) {
  return table(`Rounds of ${adapter}, newest first`, [
    { name: "Round", kind: "tight" }, { name: "State", kind: "medium" },
    { name: "From → to", kind: "tight" },
    { name: "Members", kind: "wide" }, { name: "Loss change", kind: "number" },
    { name: "Samples", kind: "number" }, { name: "Began", kind: "tight" },
    { name: "Took", kind: "number" },
  ], rounds.map((round) => {
    const gate = round.results.gate ?? {};
    return [
      String(round.round),
      el("span", {}, state(ROUND_KINDS, round.status),
        round.reason ? el("div", { class: "sub" }, round.reason.replaceAll("_", " ")) : null),
      `${round.base_version ?? "base"} → ${round.candidate ?? "–"}`,
      el("ul", { class: "members" }, round.members.map((part) => memberItem(part, round)),
        notAsked(round, replicas)),
      signed(gate.increase),
      integer(gate.num_samples),
      moment(round.started_at_s),
      round.ended_at_s ? duration(round.ended_at_s - round.started_at_s) : "under way",
    ];
  }));
}

function memberItem({ member, outcome, reason, report, used_in: usedIn }, { candidate }) {
  const told = [];
  if (report) {
    told.push(`${integer(report.num_tokens)} tokens`);
    if (known(report.loss_before) && known(report.loss_after)) {
      told.push(`loss ${loss(report.loss_before)} → ${loss(report.loss_after)}`);
    }
    if (usedIn === null && known(candidate)) told.push("not in the aggregate");
  }
  if (reason) told.push(reason);
  return el("li", {}, `${member} `, state(MEMBER_KINDS, outcome),
    told.length ? el("span", { class: "sub" }, ` ${told.join(", ")}`) : null);
}

/** Replicas that were not asked, and why; those that did not answer then are not on record. */
function notAsked(round, replicas) {
  const { left_out: leftOut } = round.results.planning ?? {};
  if (!leftOut) return [];
  const asked = new Set(round.members.map(({ member }) => member));
  const silent = replicas.map(({ id }) => id).filter((id) => !asked.has(id) && !(id in leftOut));
  return [...Object.entries(leftOut), ...silent.map((id) => [id, "it did not answer then"])].map(
    ([name, reason]) => el("li", {}, `${name} `, chip("– not asked"),
      el("span", { class: "sub" }, ` ${reason}`)));
}

// Gate decisions

export function showDecisions(facts) {
  const rows = facts.adapters.flatMap(({ decisions }) => decisions)
    .sort((one, other) => other.decided_at_s - one.decided_at_s).slice(0, 40);
  const hasReplicas = facts.replicas !== null;
  const hasExact = rows.some(({ numbers }) => known(numbers.candidate_exact_match));
  const columns = [
    { name: "When", kind: "tight" }, { name: "Decision" }, { name: "Adapter" },
    ...(hasReplicas ? [{ name: "Replica" }] : []),
    { name: "Served loss", kind: "number" }, { name: "Candidate loss", kind: "number" },
    { name: "Change", kind: "number" },
    ...(hasExact ? [{ name: "Exact match", kind: "number" }] : []),
    { name: "Evidence", kind: "number" }, { name: "Samples", kind: "number" },
    { name: "Why", kind: "wide" },
  ];
  show(byId("decision-list"), rows.length === 0
    ? empty(facts.knows_adapters ? "The gate has not decided anything yet."
      : "The decisions cannot be read now.")
    : el("div", { class: "card" }, table(
      "Latest decisions; losses in nats per token, changes of rounds with their standard error, "
      + "evidence as the e-value for better", columns,
      rows.map((row) => decisionRow(row, hasReplicas, hasExact)))));
}

function decisionRow(decision, hasReplicas, hasExact) {
  const { decided_at_s: at, kind, adapter, version, replica, reason, numbers } = decision;
  return [
    moment(at),
    state(DECISION_KINDS, kind),
    version === "base" ? `${adapter}: base model` : version ?? adapter,
    ...(hasReplicas ? [replica ?? "–"] : []),
    loss(numbers.active_loss),
    loss(numbers.candidate_loss),
    lossChange(numbers),
    ...(hasExact ? [exactChange(numbers)] : []),
    known(numbers.evidence) ? number(numbers.evidence, 1) : "–",
    integer(numbers.num_samples),
    el("span", {}, reason, slices(decision)),
  ];
}

/** What the loss of a candidate is more than that of what was served. */
function lossChange({ increase, standard_error: error, candidate_loss: candidate,
  active_loss: served }) {
  if (known(increase)) return `${signed(increase)}${known(error) ? ` ± ${error.toFixed(3)}` : ""}`;
  return known(candidate) && known(served) ? signed(candidate - served) : "–";
}

const exactChange = ({ active_exact_match: served, candidate_exact_match: candidate }) =>
  (known(candidate) ? `${percent(served)} → ${percent(candidate)}` : "–");

/** By slice of the held-out samples: the change, the most that is allowed, and of how many. */
function slices({ decided_at_s: at, replica, numbers }) {
  const found = Object.entries(numbers.slices ?? {});
  if (found.length === 0) return null;
  return el("details", {},
    el("summary", { "data-key": `slices-${at}-${replica}` }, "By slice"),
    el("ul", { class: "reasons" }, found.map(([name, { n, increase, sum_d: sum, bound }]) => {
      const change = increase ?? (n > 0 ? sum / n : null);
      const isOver = known(change) && change > bound;
      return el("li", {}, `${name} ${signed(change)} of ${n}, allowed +${bound.toFixed(3)} `,
        isOver ? chip("▲ over", "warn") : null);
    })));
}

// Jobs

export function showJobs(facts, frame) {
  const jobs = facts.jobs;
  const place = byId("job-list");
  if (jobs === null) return show(place, empty("The jobs cannot be read now."));
  if (jobs.length === 0) return show(place, empty("No fine-tuning job yet."));
  const hasReplicas = facts.replicas !== null;
  return show(place, el("div", { class: "card" }, table("Fine-tuning jobs, newest first", [
    { name: "Adapter" }, { name: "State" }, { name: "Progress", kind: "medium" },
    { name: "Training loss", kind: "number" }, { name: "Tokens", kind: "number" },
    ...(hasReplicas ? [{ name: "Replica" }] : []), { name: "Made", kind: "tight" },
    { name: "Job", kind: "tight" },
  ], jobs.map((job) => jobRow(job, frame, facts)))));
}

function jobRow(job, frame, { replicas, rounds }) {
  const here = frame?.learning[job.adapter] ?? {};
  const hasEnded = job.finished_at !== null;
  const live = hasEnded ? undefined : here[job.replica] ?? Object.values(here)[0];
  const step = live?.step;
  const progress = hasEnded ? `ended ${moment(job.finished_at)}`
    : job.continuous ? `step ${integer(step)}, goes on with its data`
    : known(live?.done)
      ? el("span", {}, el("progress",
        { max: 1, value: live.done, "aria-label": `${job.adapter}, share done` }),
        ` ${percent(live.done)}, step ${integer(step)}`)
      : known(step) ? `step ${integer(step)}` : "–";
  return [
    job.adapter,
    el("span", {}, state(JOB_KINDS, job.status),
      job.error?.message ? el("div", { class: "sub" }, job.error.message) : null),
    progress,
    loss(live?.training),
    integer(Math.max(job.trained_tokens, live?.tokens ?? 0)),
    ...(replicas === null ? [] : [job.replica ?? "–"]),
    job.version ?? (job.adapter in rounds ? "its part of rounds"
      : hasEnded ? "nothing" : "nothing yet"),
    job.id,
  ];
}

