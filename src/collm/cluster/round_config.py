"""What the operator may set about federated rounds."""

import math
from dataclasses import dataclass
from typing import Literal

from collm.errors import ConfigError
from collm.gate.config import GateConfig

ROUND_GATE = GateConfig(max_samples=128)
"""When an aggregate replaces what is served, unless the operator says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundConfig:
    """One adapter that the replicas learn together."""

    adapter: str
    """Name of the adapter; replicas that have a job for it take part."""
    strategy: Literal["svd", "fedavg"] = "svd"
    """How updates are combined: exactly and cut to the rank, or by averaging the factors."""
    rank: int = 16
    """Rank of the aggregate; at most lora.max_rank."""
    server_rate: float = 1.0
    """How far an aggregate goes from the version before towards the members' weighted mean; above 1
    beyond it. The mean of members who each learn something else holds a part of what each of them
    learned; a rate between 1 and their number makes up for that."""
    min_members: int = 2
    """Replicas that must be live before a round begins."""
    quorum_share: float = 0.5
    """Share of a round's members that must bring an update, and that must judge the aggregate."""
    tokens_per_round: int = 8192
    """Sample tokens that each member trains on in a round."""
    deadline_s: float = 120.0
    """Time after which members report what they have, finished or not."""
    gate_deadline_s: float = 60.0
    """Time that all members have to judge an aggregate; from then on a quorum's opinion is enough,
    which is waited for up to five times as long."""
    interval_s: float = 1.0
    """Pause between the end of a round and the start of the next."""
    max_rounds: int | None = None
    """Rounds, abandoned ones not counted, after which learning together ends; null never ends."""
    gate: GateConfig = ROUND_GATE
    """When an aggregate replaces what is served, and when users' feedback has it taken back; error,
    min_samples, max_samples, min_slice_samples, the bounds and watch_error are used. Up to two
    members compare max_samples each; more share what two would, down to min_samples each."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name in ("rank", "min_members", "tokens_per_round"):
            self._check(name, getattr(self, name) >= 1, "1 or more")
        for name in ("server_rate", "deadline_s", "gate_deadline_s"):
            value = getattr(self, name)
            self._check(name, math.isfinite(value) and value > 0.0, "finite and above 0")
        is_pause = math.isfinite(self.interval_s) and self.interval_s >= 0.0
        self._check("interval_s", is_pause, "finite and 0 or more")
        self._check("quorum_share", 0.0 < self.quorum_share <= 1.0, "above 0 and at most 1")
        is_limit = self.max_rounds is None or self.max_rounds >= 1
        self._check("max_rounds", is_limit, "1 or more, or null")

    def _check(self, name: str, is_allowed: bool, allowed: str) -> None:
        if not is_allowed:
            raise ConfigError(f"rounds.{name} is {getattr(self, name)}; allowed is {allowed}")
