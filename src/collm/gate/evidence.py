"""Proof by betting: how sure paired comparisons make us that one side is better."""

import math

_SCALE_NATS = 0.5
"""A loss difference of this size counts as tanh(1) = 0.76 of the most that one sample can say."""

_BETS = (0.5, 0.95)
"""Shares of the capital staked. What a trial of a few hundred samples can prove at all has a mean
of at least about 0.15 standard deviations, for which the best bet is between these or larger; 1 is
left out because a single -1 would end it. Tuned for a mean of 0.03 with a deviation of 0.15."""


def gain(active_loss: float, candidate_loss: float) -> float:
    """Return how much better the candidate did on one sample, in [-1, 1].

    It is tanh((active - candidate) / 0.5): bounded, so that no assumption about the losses' tails
    is needed, and odd, so that noise which is symmetric in the losses has mean 0. A side whose loss
    is NaN or infinite loses to a finite one by the full 1.

    Args:
        active_loss: Mean nats per supervised token under what is served.
        candidate_loss: The same under the candidate.
    """
    is_finite = math.isfinite(active_loss), math.isfinite(candidate_loss)
    if not all(is_finite):
        return float(is_finite[1]) - float(is_finite[0])
    return math.tanh((active_loss - candidate_loss) / _SCALE_NATS)


def fewest_differences(error: float) -> int:
    """Return the number of differences below which nothing is proven, were each of them 1."""
    evidence, count = Evidence(), 0
    while not evidence.proves(error):
        evidence.add(1.0)
        count += 1
    return count


class Evidence:
    """Evidence that differences d in [-1, 1] have a mean above 0, valid at any time.

    A gambler starts with 1 and stakes a fixed share b of the capital on every difference, which
    then becomes capital · (1 + b · d); the value is the average over a few b. Write m_t for the
    expectation of the t-th difference given all before it, and S_n for m_1 + ... + m_n. Then
    capital · exp(-b · S_n) is a supermartingale from 1 on, because 1 + b · m <= exp(b · m), so by
    Ville's inequality

        P(at any n: S_n <= 0 and value_n >= 1 / error) <= error.

    However often one looks and whenever one stops, proof therefore means, but for a chance of
    ``error``, that the differences up to the proof were positive on average. It assumes that what
    is added, and in which order, was settled before the differences were known. Neither equal
    distributions nor any shape is assumed; independent samples make m_t the plain mean.

    Args:
        first_look: Number of differences before which nothing is proven. Where slices take turns,
            the first few stand for some slices only, and "on average" would speak of these.

    Source: Waudby-Smith & Ramdas, "Estimating means of bounded random variables by betting", JRSS B
    2024 (arXiv 2010.09686), section 4; for means that vary, Choe & Ramdas, "Comparing sequential
    forecasters", Operations Research 2024 (arXiv 2110.00115), section 4.
    """

    def __init__(self, first_look: int = 1) -> None:
        self._first_look = first_look
        self._capitals = [1.0 / len(_BETS)] * len(_BETS)
        self._num_added = 0
        self._peak = 0.0

    @property
    def value(self) -> float:
        """The capital now, an e-value: its expectation is at most 1 if nothing is better."""
        return sum(self._capitals)

    @property
    def peak(self) -> float:
        """The largest value since the first look, 0 before it; its inverse bounds the error."""
        return self._peak

    def add(self, d: float) -> None:
        """Bet on one more difference.

        Raises:
            ValueError: ``d`` is not in [-1, 1].
        """
        if not -1.0 <= d <= 1.0:
            raise ValueError(f"difference {d}, must be from -1 to 1")
        self._capitals = [
            capital * (1.0 + bet * d) for bet, capital in zip(_BETS, self._capitals, strict=True)
        ]
        self._num_added += 1
        if self._num_added >= self._first_look:
            self._peak = max(self._peak, self.value)

    def may_prove(self, error: float, num_differences: int) -> bool:
        """Whether so many differences in all would prove it, if they went on as those so far."""
        if self.proves(error) or not self._num_added:
            return True
        if self.value <= 1.0:
            return False
        pace = math.log(self.value) / self._num_added
        return pace * num_differences >= -math.log(error)

    def proves(self, error: float) -> bool:
        """Whether the mean was shown to be above 0; once true it stays so."""
        return self._peak * error >= 1.0
