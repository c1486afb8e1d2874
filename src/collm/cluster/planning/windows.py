"""What a replica did between two looks at it: what every estimate learns from."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from collm.cluster.planning.attainment import RequestMix
from collm.types import AdapterTotals, GradientSums, ReplicaSnapshot, ReplicaTotals

_FEW_GAPS = 20
"""Times between arrivals that weigh as much as the prior of a Poisson process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One replica between two times of the front's clock."""

    replica_id: str
    start_s: float
    end_s: float
    credit_share: float
    """Mean over the window."""
    done: ReplicaTotals
    """What was done in it."""
    num_open: int = 0
    """Requests that were there when it began."""

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end_s - self.start_s

    @property
    def num_arrived(self) -> int:
        """Requests that arrived, for all adapters."""
        return sum(one.num_arrived for one in self.done.adapters.values())

    @property
    def num_ended(self) -> int:
        """Requests that ended."""
        return sum(one.num_ended for one in self.done.adapters.values())

    @property
    def num_met(self) -> int:
        """Requests that ended within every objective."""
        return sum(one.num_met for one in self.done.adapters.values())

    @property
    def busy_share(self) -> float:
        """Share of the time that serving steps took."""
        return self.done.serve_s / self.seconds

    @property
    def free_share(self) -> float:
        """Share of the time that serving left, for training or idle."""
        return max(0.0, 1.0 - self.busy_share)

    @property
    def burstiness(self) -> float:
        """c_a²: squared coefficient of variation of times between arrivals, towards 1 if few."""
        done = self.done
        if not done.num_gaps or not done.gap_sum_s:
            return 1.0
        mean_s = done.gap_sum_s / done.num_gaps
        found = max(0.0, done.gap_square_sum_s2 / done.num_gaps / mean_s**2 - 1.0)
        return (done.num_gaps * found + _FEW_GAPS) / (done.num_gaps + _FEW_GAPS)

    def mix(self, num_adapters: float = 1.0) -> RequestMix | None:
        """Return what its requests were like; ``None`` if none ended."""
        adapters = self.done.adapters.values()
        if not self.num_ended:
            return None
        prompt = sum(one.num_prompt_tokens for one in adapters) / self.num_ended
        output = max(1.0, sum(one.num_output_tokens for one in adapters) / self.num_ended)
        looked_up = max(1, self.done.num_looked_up_tokens)
        return RequestMix(
            prefill_tokens=prompt * (1.0 - self.done.num_cached_tokens / looked_up),
            context_tokens=prompt + output / 2.0,
            output_tokens=output,
            burstiness=self.burstiness,
            num_adapters=num_adapters,
        )


@dataclass(slots=True)
class _Open:
    """A window that has begun."""

    start_s: float
    latest: ReplicaSnapshot
    base: ReplicaTotals
    """What was done before the window, or nothing if the replica started in it."""
    num_open: int
    carried: ReplicaTotals = ReplicaTotals()
    """What was done before a restart in it."""
    credit_s: float = 0.0

    def done(self) -> ReplicaTotals:
        """Return what was done in it so far."""
        return _combined(self.carried, _combined(self.latest.totals, self.base, -1), 1)


class WindowBook:
    """Cuts what replicas report into windows; one task at a time uses it.

    Replicas report what they did since they started. One that restarts begins at nothing, and what
    it did since its last snapshot before is lost; a front that restarts begins its windows anew.
    """

    def __init__(self) -> None:
        """Begin without any replica."""
        self._open: dict[str, _Open] = {}

    def observe(self, snapshot: ReplicaSnapshot) -> None:
        """Take in how a replica stands; snapshots of one come in order.

        Costs next to nothing: a front looks at all its replicas each second.
        """
        one = self._open.get(snapshot.replica_id)
        if one is None:
            self._open[snapshot.replica_id] = _begin(snapshot)
            return
        passed_s = snapshot.taken_at_s - one.latest.taken_at_s
        if passed_s <= 0.0:
            return
        one.credit_s += passed_s * snapshot.credit_share
        if has_restarted(one.latest.totals, snapshot.totals):
            one.carried, one.base = one.done(), ReplicaTotals()
        one.latest = snapshot

    def close(self) -> dict[str, Window]:
        """End all windows; the next ones begin where they end.

        Returns:
            A window of each replica of which two snapshots or more were seen in it.
        """
        windows = {}
        for name, one in tuple(self._open.items()):
            end_s = one.latest.taken_at_s
            if end_s <= one.start_s:
                continue
            windows[name] = Window(
                replica_id=name,
                start_s=one.start_s,
                end_s=end_s,
                credit_share=one.credit_s / (end_s - one.start_s),
                done=one.done(),
                num_open=one.num_open,
            )
            self._open[name] = _begin(one.latest)
        return windows

    def forget(self, replica_id: str) -> None:
        """Drop a replica that is gone."""
        self._open.pop(replica_id, None)


def _begin(snapshot: ReplicaSnapshot) -> _Open:
    totals = snapshot.totals
    num_open = sum(one.num_arrived - one.num_ended for one in totals.adapters.values())
    return _Open(snapshot.taken_at_s, snapshot, totals, max(0, num_open))


def has_restarted(before: ReplicaTotals, after: ReplicaTotals) -> bool:
    """Return whether a replica began anew in between: its loop's time went back."""
    return _loop_s(after) < _loop_s(before)


def _loop_s(totals: ReplicaTotals) -> float:
    return totals.serve_s + totals.train_s + totals.evaluate_s + totals.idle_s


def _combined(a: ReplicaTotals, b: ReplicaTotals, sign: int) -> ReplicaTotals:
    """Return ``a + sign b``, field by field; an adapter that one lacks counts as nothing there."""
    names: Mapping[str, None] = dict.fromkeys([*a.adapters, *b.adapters])
    none = AdapterTotals()
    adapters = {
        name: AdapterTotals(
            **_sums(a.adapters.get(name, none), b.adapters.get(name, none), sign),
            gradient=GradientSums(
                **_sums(
                    a.adapters.get(name, none).gradient, b.adapters.get(name, none).gradient, sign
                )
            ),
        )
        for name in names
    }
    return ReplicaTotals(**_sums(a, b, sign), adapters=adapters)


def _sums(
    a: ReplicaTotals | AdapterTotals | GradientSums,
    b: ReplicaTotals | AdapterTotals | GradientSums,
    sign: int,
) -> dict[str, Any]:
    """Return the plain fields of ``a + sign b``; a request taken back may not make one negative."""
    names = [one.name for one in fields(a) if one.name not in ("adapters", "gradient")]
    return {name: max(0, getattr(a, name) + sign * getattr(b, name)) for name in names}
