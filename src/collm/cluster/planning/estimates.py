"""Everything that the slow loop believes, learned from snapshots; what it plans by."""

from collections.abc import Mapping

from collm.cluster.planning.adapter_estimates import AdapterEstimates, done_for, learners_of
from collm.cluster.planning.problem import (
    AdapterTerms,
    AllocationProblem,
    PairTerms,
    ReplicaTerms,
    Training,
)
from collm.cluster.planning.qualities import Qualities
from collm.cluster.planning.replica_estimates import ReplicaEstimates
from collm.cluster.planning.windows import WindowBook
from collm.cluster.planning_config import PlanningConfig
from collm.types import AdapterTotals, ReplicaSnapshot

_HALF_LIFE_PERIODS = 2.0
"""Age at which arrivals count half."""
_NOTHING = AdapterTotals()


class LearnedEstimates:
    """Estimates of replicas and adapters, from what snapshots say and nothing else.

    Everything has a sane value before there are data: requests of a usual length, a usual training
    speed, a curve by which half of the loss can be learned. A replica of which no window was seen
    keeps its proportional part of the traffic. Belongs to one task at a time.

    Args:
        config: What the operator set.
    """

    def __init__(self, config: PlanningConfig) -> None:
        self._config = config
        self._book = WindowBook()
        self._replicas: dict[str, ReplicaEstimates] = {}
        self._adapters: dict[str, AdapterEstimates] = {}
        self._closed_at_s: float | None = None

    def look(self, live: Mapping[str, ReplicaSnapshot], now_s: float) -> None:
        """Learn from how the live replicas stand."""
        if self._closed_at_s is None:
            self._closed_at_s = now_s
        for snapshot in live.values():
            self._book.observe(snapshot)

    def problem(self, live: Mapping[str, ReplicaSnapshot], now_s: float) -> AllocationProblem:
        """Take in the window that ends now, and return the problem of the round that begins.

        Args:
            live: The replicas that answer.
            now_s: The front's monotonic clock.
        """
        models = _models(live)
        self._learn(models, live, now_s)
        taking = {name: one for name, one in live.items() if not one.is_draining}
        for model in models:
            self._adapter(model).meet(learners_of(model, taking))
        end_s = now_s + self._config.period_s
        qualities = Qualities(taking)
        return AllocationProblem(
            replicas={name: self._replica_terms(name, one) for name, one in taking.items()},
            adapters={
                model: self._adapter_terms(self._adapter(model), now_s, end_s) for model in models
            },
            pairs={
                (name, model): PairTerms(
                    quality=qualities.of(name, model) if model in one.names else None,
                    training=self._training(name, model) if model in one.learning else None,
                )
                for name, one in taking.items()
                for model in models
                if model in one.names or model in one.learning
            },
            round_s=self._config.period_s,
            horizon_rounds=self._config.horizon_rounds,
            miss_price=self._config.miss_price,
        )

    def _learn(
        self, models: Mapping[str, None], live: Mapping[str, ReplicaSnapshot], now_s: float
    ) -> None:
        windows = self._book.close()
        start_s, self._closed_at_s = self._closed_at_s, now_s
        for name in self._replicas.keys() - live.keys():
            self._book.forget(name)
        for name, window in windows.items():
            if name in live:
                self._replica(name).learn(window, live[name])
        if start_s is None or start_s >= now_s:
            return
        for model in models:
            adapter = self._adapter(model)
            done = done_for(model, windows)
            adapter.learn_arrivals(done, start_s, now_s)
            totals = {name: one.totals.adapters.get(model, _NOTHING) for name, one in live.items()}
            adapter.meet(learners_of(model, live))
            adapter.learn_training(done, totals)

    def _replica_terms(self, name: str, snapshot: ReplicaSnapshot) -> ReplicaTerms:
        replica = self._replica(name)
        return ReplicaTerms(
            attainment=replica.attainment(snapshot),
            debt=replica.debt,
            max_credit_share=self._config.max_credit_share,
        )

    def _adapter_terms(self, adapter: AdapterEstimates, now_s: float, end_s: float) -> AdapterTerms:
        forecast = adapter.forecast(now_s, end_s)
        choices = adapter.batch_choices
        return AdapterTerms(
            arrivals_per_s=forecast.mean_per_s,
            arrivals_std_per_s=forecast.std_per_s,
            min_arrivals_per_s=self._config.min_arrivals_per_s,
            curve=adapter.curve if choices else None,
            batch_choices=choices,
        )

    def _training(self, name: str, model: str) -> Training:
        adapter = self._adapter(model)
        return Training(
            efficiency=adapter.efficiency,
            throughput=self._replica(name).throughput(model),
            discount=adapter.discount(name),
        )

    def _replica(self, name: str) -> ReplicaEstimates:
        found = self._replicas.get(name)
        if found is None:
            config = self._config
            found = ReplicaEstimates(config.attainment_target, config.period_s)
            self._replicas[name] = found
        return found

    def _adapter(self, model: str) -> AdapterEstimates:
        found = self._adapters.get(model)
        if found is None:
            half_life_s = _HALF_LIFE_PERIODS * self._config.period_s
            found = self._adapters[model] = AdapterEstimates(half_life_s)
        return found


def _models(live: Mapping[str, ReplicaSnapshot]) -> dict[str, None]:
    """Return what can be asked for or is learned, versions left out."""
    return dict.fromkeys(
        name for one in live.values() for name in (*one.names, *one.learning) if "@" not in name
    )
