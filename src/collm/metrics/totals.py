"""What a replica did since it started, as plain numbers that its front takes windows of."""

import math
from dataclasses import dataclass

from collm.metrics.loop_times import LoopTimes
from collm.metrics.records import BLAMELESS, Objectives, RequestRecord
from collm.types import AdapterTotals, GradientSums, ReplicaTotals


@dataclass(slots=True)
class _Adapter:
    """One adapter's sums; see ``AdapterTotals``."""

    num_arrived: int = 0
    num_ended: int = 0
    num_met: int = 0
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    training_s: float = 0.0
    num_trained_tokens: int = 0
    num_steps: int = 0
    loss_sum: float = 0.0
    gradient: GradientSums = GradientSums()

    def totals(self) -> AdapterTotals:
        """Return the sums as they are now."""
        return AdapterTotals(**{name: getattr(self, name) for name in _NAMES})


_NAMES = AdapterTotals.__slots__


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
        self._adapters: dict[str, _Adapter] = {}
        self._num_looked_up = self._num_cached = 0
        self._latest_arrival_s: float | None = None
        self._num_gaps = 0
        self._gap_sum_s = self._gap_square_sum_s2 = 0.0

    def arrived(self, model: str, now_s: float) -> None:
        """Count a request that arrived for ``model``."""
        self._of(model).num_arrived += 1
        if self._latest_arrival_s is not None:
            gap_s = max(0.0, now_s - self._latest_arrival_s)
            self._num_gaps += 1
            self._gap_sum_s += gap_s
            self._gap_square_sum_s2 += gap_s * gap_s
        self._latest_arrival_s = now_s

    def ended(self, record: RequestRecord) -> None:
        """Count a request that ended; of one that its client is to blame for, nothing stays."""
        one = self._of(record.model)
        if record.outcome in BLAMELESS:
            one.num_arrived -= 1
            if one == _Adapter():  # clients may make names up
                del self._adapters[_name(record.model)]
            return
        one.num_ended += 1
        one.num_met += record.met(self._objectives)
        one.num_prompt_tokens += record.num_prompt_tokens
        one.num_output_tokens += record.num_output_tokens

    def looked_up_prefix(self, num_queried_tokens: int, num_hit_tokens: int) -> None:
        """Count one look into the prefix cache."""
        self._num_looked_up += num_queried_tokens
        self._num_cached += num_hit_tokens

    def trained(self, adapter: str, seconds: float) -> None:
        """Count one quantum of an adapter's training or evaluation."""
        self._of(adapter).training_s += seconds

    def stepped(self, adapter: str, num_tokens: int, loss: float, gradient: GradientSums) -> None:
        """Count one optimizer step; one whose loss is not finite taught nothing."""
        if not math.isfinite(loss):
            return
        one = self._of(adapter)
        one.num_steps += 1
        one.num_trained_tokens += num_tokens
        one.loss_sum += loss * num_tokens
        one.gradient = one.gradient.plus(gradient)

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
            adapters={name: one.totals() for name, one in self._adapters.items()},
        )

    def _of(self, model: str) -> _Adapter:
        return self._adapters.setdefault(_name(model), _Adapter())


def _name(model: str) -> str:
    """Return a model's name without a version."""
    return model.partition("@")[0]
