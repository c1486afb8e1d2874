"""A recorded run of one replica, each window foretold from those before it. No torch."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from collm.cluster.planning.adapter_estimates import AdapterEstimates
from collm.cluster.planning.replica_estimates import ReplicaEstimates
from collm.cluster.planning.windows import Window, WindowBook
from collm.cluster.snapshot_json import from_json, to_json
from collm.types import AdapterTotals, ReplicaSnapshot
from packed import read_packed, write_packed

_TARGET_SHARE = 0.95
_HALF_LIFE_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Foretold:
    """One window: what happened, and what was expected; ``None`` where there is nothing to say."""

    arrivals_per_s: float
    met: float | None
    expected_met: float | None
    free_share: float
    expected_free: float | None
    num_tokens: int
    """Trained."""
    expected_tokens: float
    """In the training time that there was, in steps as they were."""
    loss: float | None
    """Of an evaluation that came in the window."""
    expected_loss: float
    phi_tokens: float


def foretell(snapshots: Sequence[ReplicaSnapshot], adapter: str) -> list[Foretold]:
    """Return every window between two snapshots, beside what the windows before it let expect."""
    period_s = snapshots[1].taken_at_s - snapshots[0].taken_at_s
    replica, learned = ReplicaEstimates(_TARGET_SHARE, period_s), AdapterEstimates(_HALF_LIFE_S)
    book, rows = WindowBook(), []
    book.observe(snapshots[0])
    for before, after in zip(snapshots, snapshots[1:], strict=False):
        book.observe(after)
        (window,) = book.close().values()
        rows.append(_row(replica, learned, before, window, after, adapter))
        replica.learn(window, after)
        name = after.replica_id
        learned.meet({name: after.learning[adapter]})
        learned.learn_training(
            {name: window.done.adapters.get(adapter, AdapterTotals())},
            {name: after.totals.adapters.get(adapter, AdapterTotals())},
        )
    return rows


def _row(
    replica: ReplicaEstimates,
    learned: AdapterEstimates,
    before: ReplicaSnapshot,
    window: Window,
    after: ReplicaSnapshot,
    adapter: str,
) -> Foretold:
    done, served = window.done.adapters.get(adapter, AdapterTotals()), replica.served(window)
    model = replica.attainment(before)
    learning = after.learning[adapter]
    batch = done.num_trained_tokens / done.num_steps if done.num_steps else learning.tokens_per_step
    is_new = learning.evaluation != before.learning[adapter].evaluation
    rate, credit = served.arrivals_per_s, served.credit_share
    return Foretold(
        arrivals_per_s=rate,
        met=served.num_met / served.num_ended if served.num_ended else None,
        expected_met=None if model is None else model.probability(rate, credit),
        free_share=window.free_share,
        expected_free=None if model is None else model.free_share(served.served_per_s),
        num_tokens=done.num_trained_tokens,
        expected_tokens=replica.throughput(adapter).tokens_per_s(batch) * done.training_s,
        loss=learning.evaluation.loss if is_new and learning.evaluation else None,
        expected_loss=learned.curve.loss(done.num_trained_tokens),
        phi_tokens=learned.efficiency.phi_tokens,
    )


def mean_error(pairs: Iterable[tuple[float | None, float | None]]) -> float:
    """Return the mean distance of what was found and what was expected, where both are known."""
    return fmean(abs(a - b) for a, b in pairs if a is not None and b is not None)


def write_recording(snapshots: Sequence[ReplicaSnapshot], path: Path, **about: Any) -> None:
    """Write snapshots for ``read_recording``, gzipped; ``about`` says where they come from."""
    start_s = snapshots[0].taken_at_s
    rows = [
        {"taken_at_s": round(one.taken_at_s - start_s, 3), "state": to_json(one)}
        for one in snapshots
    ]
    write_packed({**about, "snapshots": rows}, path)


def read_recording(path: Path) -> list[ReplicaSnapshot]:
    """Return the snapshots of a recorded run, in order."""
    value = read_packed(path)
    return [
        from_json(row["state"], url="", taken_at_s=row["taken_at_s"]) for row in value["snapshots"]
    ]
