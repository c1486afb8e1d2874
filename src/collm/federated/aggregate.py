"""The aggregating process: ``python -m collm.federated.aggregate PLAN.json``.

A process of its own, so that the front never imports torch and its memory is given back.
"""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from collm.errors import RoundError
from collm.federated.aggregate_plan import (
    EXIT_BAD_PLAN,
    EXIT_NO_QUORUM,
    REPORT_FILE,
    AggregatePlan,
    AggregateReport,
    UpdateFile,
)
from collm.federated.factors import (
    AdapterFile,
    Factors,
    common_base,
    common_shapes,
    difference,
    file_digest,
    read_factors,
    write_factors,
)
from collm.federated.strategies import STRATEGIES, MemberUpdate, Strategy
from collm.federated.weights import member_weights
from collm.lora.peft_folder import PEFT_CONFIG, PEFT_WEIGHTS, config_text
from collm.store.files import create_folder

_NICENESS = 10


def aggregate(plan: AggregatePlan) -> bool:
    """Combine a plan's updates and write the result into its output folder.

    The folder gets a PEFT adapter and ``REPORT_FILE``; the report alone if too few updates were fit
    to use, and ``False`` is returned. Bad updates are left out and named in the report.

    Raises:
        RoundError: The base's file cannot be used.
        FileExistsError: The output folder exists.
    """
    strategy = STRATEGIES[plan.strategy](plan.rank, plan.server_rate)
    base = read_factors(plan.base, "the base", plan.max_update_bytes) if plan.base else None
    candidates = _Candidates(plan, base)
    candidates.keep_alike()
    candidates.keep_usable(strategy)
    if candidates.num_fresh < plan.min_updates:
        report = AggregateReport(weights={}, refused=candidates.refused)
        create_folder(plan.output, lambda folder: _write_report(folder, report))
        return False
    _write_result(plan, strategy, candidates)
    return True


@dataclass(frozen=True, slots=True)
class _Candidate:
    """An update as read."""

    entry: UpdateFile
    file: AdapterFile
    trained_from: AdapterFile | None

    def update(self, weight: float) -> MemberUpdate:
        """Return what strategies take."""
        return MemberUpdate(
            member=self.entry.member,
            factors=self.file.factors,
            weight=weight,
            staleness=self.entry.staleness,
            trained_from=self.trained_from.factors if self.trained_from else None,
        )


class _Candidates:
    """The updates that are still in, and why others are not."""

    def __init__(self, plan: AggregatePlan, base: AdapterFile | None) -> None:
        self.base = base
        self.refused: dict[str, str] = {}
        self._kept: dict[str, _Candidate] = {}
        for entry in plan.updates:
            try:
                self._kept[entry.member] = _read(entry, plan.max_update_bytes)
            except RoundError as error:
                self.refused[entry.member] = str(error)

    @property
    def num_fresh(self) -> int:
        """Updates that are in and were trained from the current base."""
        return sum(candidate.entry.staleness == 0 for candidate in self._kept.values())

    @property
    def base_digest(self) -> str | None:
        """The base model's digest, if anybody names it."""
        return common_base((candidate.file for candidate in self._kept.values()), self.base)

    @property
    def base_factors(self) -> Factors | None:
        """The current base's factors; ``None`` for a fresh adapter."""
        return self.base.factors if self.base else None

    def keep_alike(self) -> None:
        """Leave out what was made for another model than most.

        Raises:
            RoundError: The base itself is of another model.
        """
        shapes = common_shapes((c.file for c in self._kept.values()), self.base)
        digest = self.base_digest
        for member, candidate in list(self._kept.items()):
            if shapes is None:
                self._refuse(member, "members disagree about the modules, and none has a majority")
            elif reason := difference(candidate.file, shapes, digest):
                self._refuse(member, reason)
            elif not _fits(candidate.trained_from, candidate.file):
                self._refuse(member, "its own base has other modules")
            elif not _fits(self.base, candidate.file):
                raise RoundError(f"the base has other modules than {member} and most members")

    def keep_usable(self, strategy: Strategy) -> None:
        """Leave out what the strategy cannot use, and what was trained on nothing."""
        for member, candidate in list(self._kept.items()):
            reason = strategy.refusal(self.base_factors, candidate.update(1.0))
            if not candidate.entry.num_examples:
                reason = "trained on no examples"
            if reason:
                self._refuse(member, reason)

    def weighted(self) -> list[MemberUpdate]:
        """Return what is in, with weights."""
        entries = [candidate.entry for candidate in self._kept.values()]
        weights = member_weights(
            {entry.member: entry.num_examples for entry in entries},
            {entry.member: entry.demand for entry in entries},
            {entry.member: entry.staleness for entry in entries},
        )
        return [candidate.update(weights[name]) for name, candidate in self._kept.items()]

    def _refuse(self, member: str, reason: str) -> None:
        del self._kept[member]
        self.refused[member] = f"{member}: {reason}"


def _read(entry: UpdateFile, max_bytes: int) -> _Candidate:
    file = read_factors(entry.path, entry.member, max_bytes, entry.digest)
    if not entry.staleness or not entry.trained_from:
        return _Candidate(entry, file, None)
    trained_from = read_factors(entry.trained_from, f"the base of {entry.member}", max_bytes)
    return _Candidate(entry, file, trained_from)


def _fits(base: AdapterFile | None, file: AdapterFile) -> bool:
    """Return whether ``base`` could be what ``file`` started from; it may adapt fewer modules."""
    return base is None or base.shapes() <= file.shapes()


def _write_result(plan: AggregatePlan, strategy: Strategy, candidates: _Candidates) -> None:
    result = strategy.aggregate(candidates.base_factors, candidates.weighted())

    def fill(folder: Path) -> None:
        write_factors(folder / PEFT_WEIGHTS, result.factors, candidates.base_digest)
        config = config_text(plan.base_model, plan.rank, result.factors)
        (folder / PEFT_CONFIG).write_text(config, encoding="utf-8")
        report = AggregateReport(
            weights=result.weights,
            refused=candidates.refused,
            digest=file_digest(folder / PEFT_WEIGHTS),
            bias_share=result.bias_share,
            energy_share=result.energy_share,
        )
        _write_report(folder, report)

    create_folder(plan.output, fill)


def _write_report(folder: Path, report: AggregateReport) -> None:
    text = json.dumps(report.to_json(), indent=2) + "\n"
    (folder / REPORT_FILE).write_text(text, encoding="utf-8")


def main(arguments: list[str]) -> int:
    """Carry out the plan in the file named; return the process's exit status."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m collm.federated.aggregate PLAN.json\n")
        return EXIT_BAD_PLAN
    try:
        text = Path(arguments[0]).read_text(encoding="utf-8")
        has_quorum = aggregate(AggregatePlan.from_json(json.loads(text)))
    except (OSError, ValueError, RoundError) as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_BAD_PLAN
    return 0 if has_quorum else EXIT_NO_QUORUM


if __name__ == "__main__":
    # The replicas' requests need the same cores, and have a deadline; this has minutes.
    os.nice(_NICENESS)
    torch.set_num_threads(1)
    sys.exit(main(sys.argv[1:]))
