"""What is learned of one replica: what its users get at which load, and how fast it trains."""

from collm.cluster.planning.attainment import AttainmentModel, Calibration, RequestMix
from collm.cluster.planning.calibration import Calibrator, ServedWindow
from collm.cluster.planning.debt import SloDebt
from collm.cluster.planning.efficiency import Throughput
from collm.cluster.planning.windows import Window
from collm.types import ReplicaSnapshot

_PRIOR_MIX = RequestMix(prefill_tokens=200.0, context_tokens=232.0, output_tokens=64.0)
"""What requests are like before any ended; the router guesses the same answer's length."""
_PRIOR_REQUESTS = 2.0
_KEPT = 0.7
"""Share of their weight that requests keep from one window to the next."""
_DEBT_PRICE = 100.0
"""Quality that each miss costs more, in debt of one whole period."""


class ReplicaEstimates:
    """Attainment, debt and training speed of one replica.

    Args:
        target_share: Share of requests that should meet every objective.
        period_s: Length of the windows that chances are wanted for.
    """

    def __init__(self, target_share: float, period_s: float) -> None:
        self._period_s = period_s
        self._arrivals_per_s = 0.0
        """In the latest window with any."""
        self._calibrator = Calibrator()
        self._calibration: Calibration | None = None
        self._mix, self._num_mixed = _PRIOR_MIX, _PRIOR_REQUESTS
        self._debt = SloDebt(target_share)
        self._throughputs: dict[str, Throughput] = {}

    @property
    def debt(self) -> float:
        """Quality that each expected miss costs, for the misses of the past."""
        return _DEBT_PRICE * self._debt.value

    def throughput(self, adapter: str) -> Throughput:
        """Return how fast it trains an adapter; a guess if it never did."""
        return self._throughputs.get(adapter) or Throughput()

    def attainment(self, snapshot: ReplicaSnapshot) -> AttainmentModel | None:
        """Return its chances and free time by load; ``None`` before the first window."""
        if self._calibration is None:
            return None
        num_present = snapshot.num_running + snapshot.num_waiting
        return self._model(snapshot, num_present, self._calibration)

    def served(self, window: Window) -> ServedWindow:
        """Return what a window says of chances: who was left from before met the load of before."""
        arrivals_per_s = window.num_arrived / window.seconds
        num_left = min(window.num_open, window.num_ended)
        met_per_s = arrivals_per_s
        if num_left:
            part = num_left / window.num_ended
            met_per_s = part * self._arrivals_per_s + (1.0 - part) * arrivals_per_s
        return ServedWindow(
            arrivals_per_s=met_per_s,
            credit_share=window.credit_share,
            num_ended=window.num_ended,
            num_met=window.num_met,
            served_per_s=max(window.num_arrived, window.num_ended) / window.seconds,
            busy_share=window.busy_share,
            seconds=window.seconds,
        )

    def learn(self, window: Window, snapshot: ReplicaSnapshot) -> None:
        """Take in what it did, and how it stood then."""
        self._learn_mix(window)
        model = self._model(snapshot, window.num_open, Calibration())
        self._calibrator.observe(model, self.served(window))
        if window.num_arrived:
            self._arrivals_per_s = window.num_arrived / window.seconds
        self._calibration = self._calibrator.calibration
        self._debt.observe(window.num_ended, window.num_met)
        for adapter, done in window.done.adapters.items():
            if done.training_s:
                self._throughputs.setdefault(adapter, Throughput()).observe(
                    done.num_trained_tokens, done.num_steps, done.training_s, done.evaluation_s
                )

    def _model(
        self, snapshot: ReplicaSnapshot, num_present: int, calibration: Calibration
    ) -> AttainmentModel:
        return AttainmentModel(
            cost=snapshot.step_coefficients,
            ttft_s=snapshot.ttft_s,
            tpot_s=snapshot.tpot_s,
            mix=self._mix,
            calibration=calibration,
            horizon_s=self._period_s,
            num_present=num_present,
        )

    def _learn_mix(self, window: Window) -> None:
        found = window.mix()
        self._num_mixed *= _KEPT
        if found is not None:
            self._num_mixed += window.num_ended
            self._mix = self._mix.towards(found, window.num_ended / self._num_mixed)
