"""What is left of a time when its prediction is taken off, drawn by seed."""

from collections.abc import Iterator, Sequence
from random import Random


class Residuals:
    """Draws ratios of a real time to the predicted one.

    Draws are independent; a measured series is not quite (a busy neighbour slows a row of steps).

    Args:
        quantiles: The ratios' quantile function at evenly spaced shares from 0 to 1; at least one.
        seed: Names the stream.
    """

    def __init__(self, quantiles: Sequence[float], seed: str) -> None:
        # A constant is two equal points, so that there is one way to draw.
        points = tuple(quantiles) if len(quantiles) > 1 else (quantiles[0], quantiles[0])
        self.draw = _ratios(points, seed).__next__
        """Returns the next ratio."""


def _ratios(points: Sequence[float], seed: str) -> Iterator[float]:
    """Yield ratios; a generator, as it holds all that a draw needs, and every step draws."""
    rises = tuple((low, high - low) for low, high in zip(points, points[1:], strict=False))
    num_rises = len(rises)
    # The stream is made when it is first drawn from: many never are, and each takes 2.5 KB.
    random = Random(seed).random
    while True:
        place = random() * num_rises
        index = int(place)
        low, rise = rises[index]
        yield low + (place - index) * rise
