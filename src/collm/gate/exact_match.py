"""Short answers that come out right, word for word: how good a version is in terms of its task."""

from collections.abc import Iterable
from dataclasses import dataclass

MAX_ANSWER_TOKENS = 16
"""Longest answer, its end included, of which *exactly right or not* says something: a label, a
number, a name."""


@dataclass(frozen=True, slots=True)
class ExactMatch:
    """How many short answers greedy decoding would give exactly."""

    num_exact: int = 0
    num_answers: int = 0
    """Answers that are short enough to be judged so."""

    @property
    def share(self) -> float | None:
        """Share of the answers that are exact; ``None`` without any short one."""
        return self.num_exact / self.num_answers if self.num_answers else None

    def plus(self, is_exact: bool | None) -> "ExactMatch":
        """Return the counts with one more answer; ``None``, for a long one, adds nothing."""
        if is_exact is None:
            return self
        return ExactMatch(self.num_exact + is_exact, self.num_answers + 1)


def exact_of(answers: Iterable[bool | None]) -> ExactMatch:
    """Return the counts over answers, each as ``ExactMatch.plus`` takes it."""
    counts = ExactMatch()
    for is_exact in answers:
        counts = counts.plus(is_exact)
    return counts
