"""What is left of a time when its prediction is taken off, drawn by seed."""

from collections.abc import Sequence
from random import Random


class Residuals:
    """Draws ratios of a real time to the predicted one.

    Draws are independent; a measured series is not quite (a busy neighbour slows a row of steps).

    Args:
        quantiles: The ratios' quantile function at evenly spaced shares from 0 to 1; at least one.
        seed: Names the stream.
    """

    def __init__(self, quantiles: Sequence[float], seed: str) -> None:
        # A constant is two equal points, so that ``draw`` has one path.
        points = tuple(quantiles) if len(quantiles) > 1 else (quantiles[0], quantiles[0])
        self._rises = tuple(
            (low, high - low) for low, high in zip(points, points[1:], strict=False)
        )
        self._num_rises = len(self._rises)
        self._seed = seed
        self._random = self._first
        self.least = min(points)
        """No draw is below it."""

    def draw(self) -> float:
        """Return the next ratio."""
        place = self._random() * self._num_rises
        index = int(place)
        low, rise = self._rises[index]
        return low + (place - index) * rise

    def _first(self) -> float:
        """Make the stream when it is first drawn from: many never are, and each takes 2.5 KB."""
        self._random = Random(self._seed).random
        return self._random()
