"""What a replica did since it started, as plain numbers that its front takes windows of."""

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from collm.metrics.loop_times import LoopTimes
from collm.metrics.records import BLAMELESS, Objectives, RequestRecord
from collm.types import AdapterTotals, GradientSums, ReplicaTotals

_NOTHING = AdapterTotals()
_ZEROS = {one.name: getattr(_NOTHING, one.name) for one in fields(AdapterTotals)}


class Totals:
    """Sums of requests and of learning, by adapter.

    Used by one thread.

    Args:
        objectives: What requests are held against.
        times: Has the loop's times.
    """

    def __init__(self, objectives: Objectives, times: LoopTimes) -> None:
        self._objectives = objectives
        self._times = times
        self._sums: dict[str, dict[str, Any]] = {}
        """By adapter, the fields of its totals."""
        self._num_looked_up = self._num_cached = 0
        self._latest_arrival_s: float | None = None
        self._num_gaps = 0
        self._gap_sum_s = self._gap_square_sum_s2 = 0.0

    def arrived(self, model: str, now_s: float) -> None:
        """Count a request that arrived for ``model``."""
        self._add(model, num_arrived=1)
        if self._latest_arrival_s is not None:
            gap_s = max(0.0, now_s - self._latest_arrival_s)
            self._num_gaps += 1
            self._gap_sum_s += gap_s
            self._gap_square_sum_s2 += gap_s * gap_s
        self._latest_arrival_s = now_s

    def ended(self, record: RequestRecord) -> None:
        """Count a request that ended; of one that its client is to blame for, nothing stays."""
        if record.outcome in BLAMELESS:
            if self._add(record.model, num_arrived=-1) == _ZEROS:  # clients may make names up
                del self._sums[_name(record.model)]
            return
        self._add(
            record.model,
            num_ended=1,
            num_met=int(record.met(self._objectives)),
            num_prompt_tokens=record.num_prompt_tokens,
            num_output_tokens=record.num_output_tokens,
        )

    def looked_up_prefix(self, num_queried_tokens: int, num_hit_tokens: int) -> None:
        """Count one look into the prefix cache."""
        self._num_looked_up += num_queried_tokens
        self._num_cached += num_hit_tokens

    def trained(self, adapter: str, seconds: float, *, is_evaluation: bool = False) -> None:
        """Count one quantum of an adapter's training or evaluation."""
        sums = self._sums_of(adapter)
        sums["training_s"] += seconds
        if is_evaluation:
            sums["evaluation_s"] += seconds

    def stepped(self, adapter: str, num_tokens: int, loss: float, gradient: GradientSums) -> None:
        """Count one optimizer step; one whose loss is not finite taught nothing."""
        if not math.isfinite(loss):
            return
        sums = self._add(
            adapter, num_steps=1, num_trained_tokens=num_tokens, loss_sum=loss * num_tokens
        )
        sums["gradient"] = sums["gradient"].plus(gradient)

    @property
    def adapters(self) -> Mapping[str, AdapterTotals]:
        """By adapter, what it was asked for and what it learned."""
        return {name: AdapterTotals(**sums) for name, sums in self._sums.items()}

    def totals(self) -> ReplicaTotals:
        """Return everything as it is now."""
        seconds = self._times.seconds()
        return ReplicaTotals(
            serve_s=seconds["serve"],
            train_s=seconds["train"],
            evaluate_s=seconds["evaluate"],
            idle_s=seconds["idle"],
            num_looked_up_tokens=self._num_looked_up,
            num_cached_tokens=self._num_cached,
            num_gaps=self._num_gaps,
            gap_sum_s=self._gap_sum_s,
            gap_square_sum_s2=self._gap_square_sum_s2,
            adapters=self.adapters,
        )

    def _add(self, model: str, **more: float) -> dict[str, Any]:
        """Add to fields of an adapter's totals, and return all of them."""
        sums = self._sums_of(model)
        for key, value in more.items():
            sums[key] += value
        return sums

    def _sums_of(self, model: str) -> dict[str, Any]:
        sums = self._sums.get(model)
        if sums is None:
            sums = self._sums.setdefault(_name(model), dict(_ZEROS))
        return sums


def _name(model: str) -> str:
    """Return a model's name without a version."""
    return model.partition("@")[0]
