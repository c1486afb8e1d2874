"""What do rounds of learning together reach, beside learning centrally and alone?

Two members have five domains of clinc150 each, and nothing of the other's; questions that fit no
intent are dealt to both. Without traffic, each way trains on the same number of sample tokens:

- central: one adapter, from the pooled samples, all tokens of all members in one go;
- federated: in each round every member trains from the latest aggregate, then svd of all updates;
  what a front's gate would refuse is not refused here, so that this measures learning alone;
- local-only: each member the tokens that it trains on in all rounds, in one go, from its own.

All learn by the demo's settings. An optimizer step is of as many tokens in each way: members of a
round each bring their part of them, for what they step apart is averaged afterwards.

All run the replicas' own round job, aggregation and engine, in one process, one after the other.
Exact match is of greedy answers to held-out test questions, as many of each domain.

With `--keep` each way that is finished with a seed stays in a folder, and the same command goes on
where it ended. Processes with other seeds may share the folder; once all is there, a call with all
seeds reports without computing.

Run as: python benchmarks/federated.py [--seeds 0 1 2] [--keep FOLDER]
"""

import argparse
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from common import Report, checkpoint_folder, make_parser, progress

# isort: split
import torch

from collm.cli.demo_settings import job_settings
from collm.cli.demo_sites import RANK
from collm.workload.samples import group_split, load_samples
from federated_scores import Comparison, Score, compare
from federated_sides import Examinee, Model
from federated_store import Outcome, OutcomeFolder
from federated_trial import CENTRAL, FEDERATED, Members, Task, Trial, local_way, ways_to_learn
from intents import OUT_OF_SCOPE, TASK, draw_questions


def main() -> None:
    """Learn in each way with each seed, then report."""
    arguments = _arguments()
    report = Report("Learning together, centrally and alone", arguments)
    members = _deal(arguments)
    with tempfile.TemporaryDirectory(prefix="collm-federated-") as scratch:
        folder = OutcomeFolder(arguments.keep or Path(scratch), _settings(arguments))
        _learn_missing(folder, members, arguments)
        rows = [_report_seed(report, folder, members, seed) for seed in arguments.seeds]
    report.table("Exact match by seed; local-only is the mean over members", rows)
    tokens = arguments.rounds * arguments.tokens_per_round
    report.note(
        f"{arguments.rounds} rounds of {arguments.tokens_per_round} sample tokens a member: "
        f"federated and local-only {tokens} a member, central {len(members) * tokens}; "
        f"the server's rate is {arguments.server_rate:g}; steps of {arguments.tokens_per_step} "
        "tokens, of which each member of a round brings its part; "
        f"at most {arguments.questions} questions of each domain"
    )
    report.finish()


def _learn_missing(folder: OutcomeFolder, members: Members, arguments: argparse.Namespace) -> None:
    turns = [
        (seed, way)
        for seed in arguments.seeds
        for way in ways_to_learn(members)
        if not folder.has(seed, way)
    ]
    if not turns:
        return
    model = Model(checkpoint_folder(arguments), getattr(torch, arguments.dtype))
    task = _make_task(model, members, arguments)
    examinee = Examinee(model, RANK)
    for seed, way in turns:
        progress(f"seed {seed}: {way}")
        trial = Trial(model, task, arguments, seed)
        started_s = time.perf_counter()
        state = trial.learn(way)
        spent_s = time.perf_counter() - started_s
        outcome = Outcome(
            score=Score.of(examinee.answer(task.questions, state)),
            spent_s=spent_s,
            num_threads=arguments.threads,
            rounds=tuple(trial.history),
        )
        folder.put(seed, way, outcome)
        share = outcome.score.share(outcome.score.num_asked)
        progress(f"seed {seed}: {way} took {spent_s / 60.0:.1f} minutes, {share:.1%} right")


def _report_seed(
    report: Report, folder: OutcomeFolder, members: Members, seed: int
) -> dict[str, str]:
    found = {way: folder.get(seed, way) for way in ways_to_learn(members)}
    domains = {
        member: frozenset(sample.group for sample in samples) - {OUT_OF_SCOPE}
        for member, samples in members.items()
    }
    local = {member: found[local_way(member)].score for member in members}
    comparison = compare(found[CENTRAL].score, found[FEDERATED].score, local, domains)
    report.raw[f"seed {seed}"] = {
        "comparison": asdict(comparison),
        "outcomes": {way: asdict(outcome) for way, outcome in found.items()},
    }
    return _row(seed, comparison, found)


def _row(seed: int, found: Comparison, outcomes: Mapping[str, Outcome]) -> dict[str, str]:
    return {
        "seed": str(seed),
        "central": f"{found.central:.1%}",
        "federated": f"{found.federated:.1%}",
        "federated / central": _ratio(found.to_central),
        "local-only": f"{found.local:.1%}",
        "foreign domains, federated": f"{found.federated_foreign:.1%}",
        "foreign, local-only": f"{found.local_foreign:.1%}",
        "foreign, ratio": _ratio(found.foreign_gain),
        "own, local-only": f"{found.local_own:.1%}",
        "minutes (threads)": ", ".join(
            f"{way} {outcome.spent_s / 60.0:.1f} ({outcome.num_threads})"
            for way, outcome in outcomes.items()
        ),
    }


def _ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _deal(arguments: argparse.Namespace) -> Members:
    parts = group_split(load_samples(TASK, "train"), arguments.members, (OUT_OF_SCOPE,))
    return {f"r{index}": part for index, part in enumerate(parts)}


def _make_task(model: Model, members: Members, arguments: argparse.Namespace) -> Task:
    return Task(
        members=members,
        general=model.prepare_general(load_samples("medquad")),
        questions=draw_questions(arguments.questions),
    )


def _settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what an outcome depends on besides its seed and way."""
    names = (
        "model", "dtype", "members", "rounds", "tokens_per_round", "tokens_per_step",
        "server_rate", "questions",
    )  # fmt: skip
    given = {name: getattr(arguments, name) for name in names}
    return given | {"rank": RANK, "job": job_settings(TASK)}


def _arguments() -> argparse.Namespace:
    parser = make_parser(__doc__ or "", rounds=6, rounds_are="federated rounds")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--tokens-per-round", type=int, default=8192, help="of each member")
    parser.add_argument("--tokens-per-step", type=int, default=512, help="of all members together")
    parser.add_argument("--server-rate", type=float, default=1.0, help="of aggregates")
    parser.add_argument("--members", type=int, default=2, help="who learn together")
    parser.add_argument("--questions", type=int, default=45, help="of each domain, at most 90")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="of finished outcomes")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.tokens_per_round = 2, 800
        arguments.questions, arguments.seeds = 1, [0]
    return arguments


if __name__ == "__main__":
    main()
