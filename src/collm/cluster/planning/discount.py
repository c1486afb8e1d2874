"""What one member's tokens are worth to the version that all make together."""

import math
from collections.abc import Iterable, Mapping

_LEAST = 0.02
_GAIN = 0.3
"""Share of a round's surprise that is taken in: about the latest six rounds count."""


class Discount:
    """δ in (0, 1] per member: tokens trained there, in tokens trained in one place on all data.

    A round in which members i trained n_i tokens each made its aggregate as much better as N
    tokens in one place would have; then ``N = Σ δ_i n_i``. Members differ (their data resemble the
    others' more or less), rounds are few and noisy, so each round moves every δ_i by its share of
    the surprise: normalized least mean squares, kept within bounds.

    The prior is 1 / √m for m members: updates that agree add up (δ = 1), updates that have nothing
    to do with each other average out to one member's worth (δ = 1 / m), and this is between the
    two.

    Source: S. Haykin, Adaptive Filter Theory, chapter on the normalized LMS filter.
    """

    def __init__(self, members: Iterable[str]) -> None:
        """Begin with the prior for these members; others may come later."""
        names = tuple(members)
        self._prior = 1.0 / math.sqrt(max(1, len(names)))
        self._shares = dict.fromkeys(names, self._prior)

    def share(self, member: str) -> float:
        """Return δ of a member; the mean of the others for one that was in no round."""
        found = self._shares.get(member)
        if found is not None:
            return found
        return sum(self._shares.values()) / len(self._shares) if self._shares else self._prior

    def observe(self, num_tokens: Mapping[str, int], worth_tokens: float) -> None:
        """Learn from a round.

        Args:
            num_tokens: What each member trained on.
            worth_tokens: Tokens in one place that the aggregate's gain equals, 0 if there was none:
                ``QualityCurve.tokens_to`` of the loss that was found.
        """
        total = sum(num_tokens.values())
        if not total:
            return
        parts = {member: tokens / total for member, tokens in num_tokens.items()}
        expected = sum(part * self.share(member) for member, part in parts.items())
        surprise = min(worth_tokens / total, 1.0) - expected
        norm = sum(part * part for part in parts.values())
        for member, part in parts.items():
            moved = self.share(member) + _GAIN * surprise * part / norm
            self._shares[member] = min(max(moved, _LEAST), 1.0)
