"""What was, at falling resolution, in memory that stops growing."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from collm.server.dashboard.frames import FIELDS, encode


@dataclass(frozen=True, slots=True)
class Tier:
    """One resolution."""

    period_s: float
    """Time that each frame is about."""
    num_frames: int
    """Frames kept."""


TIERS = (Tier(1.0, 300), Tier(10.0, 360), Tier(60.0, 1440))
"""Five minutes by the second, an hour by ten seconds, a day by the minute."""


class History:
    """Keeps encoded frames, the latest of each tier.

    They are kept as they go out, so that a new watcher costs no computation.
    """

    def __init__(self, tiers: Sequence[Tier] = TIERS) -> None:
        self.tiers = tuple(tiers)
        self._frames = [deque[bytes](maxlen=tier.num_frames) for tier in self.tiers]

    def add(self, tier: int, frame: bytes) -> None:
        """Keep a frame; the oldest of its tier makes room."""
        self._frames[tier].append(frame)

    @property
    def num_bytes(self) -> int:
        """Bytes of all frames."""
        return sum(len(frame) for frames in self._frames for frame in frames)

    def encoded(self) -> bytes:
        """Return all of it as JSON."""
        parts = [
            b'{"period_s":%g,"num_frames":%d,"frames":[%b]}'
            % (tier.period_s, tier.num_frames, b",".join(frames))
            for tier, frames in zip(self.tiers, self._frames, strict=True)
        ]
        return b'{"fields":%b,"tiers":[%b]}' % (encode(FIELDS), b",".join(parts))
