"""What a simulated replica learns and serves: alone by its own gate, or in rounds."""

from collm.sim.trainer import SimTrainer
from collm.sim.versions import ADAPTER, Version, Versions
from collm.types import VersionId

_MIN_INTERVAL_S = 5.0
"""Least time between two promotions of one's own, see ``ReplicaConfig``."""


class SimLearner:
    """Owns a replica's trainer and versions; decides what is served.

    Args:
        name: The replica's.
        versions: What it serves.
        trainer: What it trains by; ``None`` where it does not.
        is_alone: Whether it serves what its own gate found better.
    """

    def __init__(
        self, name: str, versions: Versions, trainer: SimTrainer | None, *, is_alone: bool
    ) -> None:
        self.versions = versions
        self.trainer = trainer
        self._name = name
        self.is_alone = is_alone
        """Whether it learns by itself, and not in rounds."""
        self._promoted_at_s = -_MIN_INTERVAL_S
        self.num_promotions = 0

    def found_better(self, knowledge: tuple[float, ...], now_s: float) -> None:
        """Serve a candidate that the gate found better, unless another one came just before."""
        if not self.is_alone or now_s - self._promoted_at_s < _MIN_INTERVAL_S:
            return
        self._promoted_at_s = now_s
        number = self.num_promotions + 1
        self.serve(Version(VersionId(f"{ADAPTER}@0.{self._name}.{number}"), knowledge))

    def serve(self, version: Version) -> None:
        """Bind new requests to a version of one's own; training goes on from where it is."""
        self._promote(version)
        if self.trainer is not None:
            self.trainer.serve(version.knowledge)

    def adopt(self, version: Version) -> None:
        """Bind new requests to a round's version; training goes on from it."""
        self._promote(version)
        if self.trainer is not None:
            self.trainer.adopt(version.knowledge)

    def _promote(self, version: Version) -> None:
        self.num_promotions += 1
        self.versions.promote(version)
