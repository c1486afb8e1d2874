"""A mean of losses, and how sure it is."""

import math


class LossSum:
    """Takes losses in one at a time; all of them are finite."""

    def __init__(self) -> None:
        self._count = 0
        self._total = 0.0
        self._square = 0.0

    def add(self, loss: float) -> None:
        """Count one more loss, in nats."""
        self._count += 1
        self._total += loss
        self._square += loss * loss

    @property
    def mean(self) -> float | None:
        """Their mean; ``None`` without any."""
        return self._total / self._count if self._count else None

    @property
    def error(self) -> float | None:
        """The mean's standard error; ``None`` without any loss.

        Losses are taken to vary at least as much as they are large: of a task that is nearly
        learned a few that are all small say little of the next one, which may be of a wrong answer.
        """
        mean = self.mean
        if mean is None:
            return None
        square = mean * mean
        if self._count > 1:
            deviations = self._square - self._count * square
            square = max(square, deviations / (self._count - 1))
        return math.sqrt(square / self._count)
