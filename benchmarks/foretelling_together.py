"""A recorded run of members that learn together, and what was measured apart. No torch.

What the estimates learn from is what members report in rounds. What they are held against is in no
report: losses on questions that no member has, and one adapter that learned from everybody's
samples in one place.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from collm.cluster.planning.adapter_estimates import AdapterEstimates
from collm.types import AdapterTotals, Evaluation, LearningState
from packed import read_packed, write_packed

_HALF_LIFE_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Joint:
    """A round."""

    num_tokens: Mapping[str, int]
    """Trained on, by member."""
    own_losses: Mapping[str, float]
    """Of the aggregate on each member's own held-out samples."""
    losses: Mapping[str, float]
    """Of the aggregate on questions of each member's domains, which no member has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """All rounds, and learning in one place."""

    tokens_per_step: int
    num_held_out: int
    """Samples of each member that it measures by."""
    start_losses: Mapping[str, float]
    """Of the base model on each member's own held-out samples."""
    rounds: Sequence[Joint]
    central: Sequence[tuple[int, float]]
    """Loss on all those questions, by tokens trained."""


def write_together(found: Together, path: Path, **about: Any) -> None:
    """Write a run, gzipped; ``about`` says where it comes from."""
    write_packed({**about, **asdict(found)}, path)


def read_together(path: Path) -> Together:
    """Return a recorded run."""
    value = read_packed(path)
    return Together(
        tokens_per_step=value["tokens_per_step"],
        num_held_out=value["num_held_out"],
        start_losses=value["start_losses"],
        rounds=[Joint(**one) for one in value["rounds"]],
        central=[(num_tokens, loss) for num_tokens, loss in value["central"]],
    )


def learned_discounts(found: Together) -> list[float]:
    """Return after each round what a token of a member is thought to be worth, on average."""
    learned, totals, means = AdapterEstimates(_HALF_LIFE_S), dict[str, int](), []
    learned.meet(_learners(found, found.start_losses, totals))
    learned.learn_training({}, {})
    for one in found.rounds:
        for name, num_tokens in one.num_tokens.items():
            totals[name] = totals.get(name, 0) + num_tokens
        learned.meet(_learners(found, one.own_losses, totals))
        learned.learn_training(
            {
                name: AdapterTotals(
                    num_trained_tokens=num_tokens,
                    num_steps=round(num_tokens / found.tokens_per_step),
                )
                for name, num_tokens in one.num_tokens.items()
            },
            {name: AdapterTotals(num_trained_tokens=count) for name, count in totals.items()},
        )
        means.append(fmean(learned.discount(name) for name in one.num_tokens))
    return means


def _learners(
    found: Together, losses: Mapping[str, float], totals: Mapping[str, int]
) -> dict[str, LearningState]:
    return {
        name: LearningState(
            tokens_per_step=found.tokens_per_step,
            micro_batch_tokens=found.tokens_per_step,
            is_joint=True,
            evaluation=Evaluation(
                num_tokens=totals.get(name, 0), loss=loss, num_samples=found.num_held_out
            ),
        )
        for name, loss in losses.items()
    }


def measured_discounts(found: Together) -> list[float]:
    """Return after each round what a token of a member was worth so far, by tokens in one place."""
    num_tokens, shares = 0, []
    for one in found.rounds:
        num_tokens += sum(one.num_tokens.values())
        shares.append(tokens_in_one_place(found.central, fmean(one.losses.values())) / num_tokens)
    return shares


def tokens_in_one_place(central: Sequence[tuple[int, float]], loss: float) -> float:
    """Return how many tokens in one place first reach a loss, on the line between two points."""
    before = central[0]
    for point in central:
        if point[1] <= loss:
            fall = before[1] - point[1]
            part = (before[1] - loss) / fall if fall > 0.0 else 0.0
            return before[0] + part * (point[0] - before[0])
        before = point
    return float(central[-1][0])
