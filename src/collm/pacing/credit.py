"""Training time that is guaranteed beyond slack."""

_MISS_FACTOR = 0.5
_MET_STEP = 0.02
"""Fifty requests within their objectives make up for everything that misses took away."""


class Credit:
    """A token bucket of training time that shrinks when the replica misses its objectives.

    It accrues ``share · scale`` of wall time, up to ``burst_s · scale``. The scale starts at 1,
    halves with every missed request and grows by 0.02 with every met one (AIMD), so a replica
    protects its users without being told.

    Args:
        share: Guaranteed share of wall time; 0 gives none, ever.
        burst_s: Most credit that can pile up, in seconds.
    """

    def __init__(self, share: float = 0.0, burst_s: float = 0.5) -> None:
        self._burst_s = burst_s
        self._scale = 1.0
        self._balance_s = 0.0
        self._accrued_at_s: float | None = None
        self.full_share = 0.0
        """Share that was granted, before misses took from it."""
        self.set_share(share)

    @property
    def balance_s(self) -> float:
        """Training time at hand; negative after a quantum that ran longer than its bound."""
        return self._balance_s

    @property
    def share(self) -> float:
        """Share of wall time that training has for sure now."""
        return self.full_share * self._scale

    @property
    def scale(self) -> float:
        """What misses have left of the share, in (0, 1]."""
        return self._scale

    def set_share(self, share: float) -> None:
        """Follow a new allocation; 0 also takes what has piled up.

        Raises:
            ValueError: ``share`` is not in [0, 1].
        """
        if not 0.0 <= share <= 1.0:
            raise ValueError(f"credit share {share}, must be from 0 to 1")
        self.full_share = share
        if share == 0.0:
            self._balance_s = 0.0

    def accrue(self, now_s: float) -> None:
        """Add what the time since the last call has earned."""
        if self._accrued_at_s is not None and self.full_share:
            earned_s = self.full_share * self._scale * (now_s - self._accrued_at_s)
            self._balance_s = min(self._balance_s + earned_s, self._burst_s * self._scale)
        self._accrued_at_s = now_s

    def covers(self, seconds: float) -> bool:
        """Whether a quantum of at most ``seconds`` can be paid for."""
        return self.full_share > 0.0 and self._balance_s >= seconds

    def charge(self, seconds: float) -> None:
        """Pay for a quantum that ran."""
        self._balance_s -= seconds

    def missed(self) -> None:
        """Note a request that missed an objective."""
        self._scale *= _MISS_FACTOR
        self._balance_s = min(self._balance_s, self._burst_s * self._scale)

    def met(self) -> None:
        """Note a request that met every objective."""
        self._scale = min(1.0, self._scale + _MET_STEP)
