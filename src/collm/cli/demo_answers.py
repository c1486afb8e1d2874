"""Scored answers of a demo, and how many of them are right."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from collm.metrics.attainment import wilson_interval

WINDOW = 300
"""Answers at the beginning that are compared with as many at the end."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One scored answer; requests that their client left are none."""

    at_s: float
    """When it ended, in seconds since the start."""
    is_right: bool
    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """Right answers among some."""

    num_right: int
    num_answers: int

    @classmethod
    def of(cls, answers: Sequence[Answer]) -> "Accuracy":
        """Count answers."""
        return cls(num_right=sum(a.is_right for a in answers), num_answers=len(answers))

    @property
    def share(self) -> float | None:
        """Return the share of right answers; ``None`` of none."""
        return self.num_right / self.num_answers if self.num_answers else None

    @property
    def interval(self) -> tuple[float, float]:
        """Return the 95 % Wilson interval of the share."""
        return wilson_interval(self.num_right, self.num_answers)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactMatch:
    """Exact match early, late and overall."""

    first: Accuracy
    """Of the first 300 answers, or of the first half when there are fewer than 600."""
    last: Accuracy
    """Of as many at the end; the two never overlap."""
    all: Accuracy

    @classmethod
    def of(cls, answers: Sequence[Answer]) -> "ExactMatch":
        """Compare the beginning of some answers with their end."""
        window = min(WINDOW, len(answers) // 2)
        return cls(
            first=Accuracy.of(answers[:window]),
            last=Accuracy.of(answers[len(answers) - window :]),
            all=Accuracy.of(answers),
        )


def share_right(answers: Sequence[Answer]) -> float | None:
    """Return the share of right answers; ``None`` of none."""
    return Accuracy.of(answers).share


def within(answers: Iterable[Answer], groups: Collection[str]) -> list[Answer]:
    """Return the answers of these groups."""
    return [answer for answer in answers if answer.group in groups]


def outside(answers: Iterable[Answer], groups: Collection[str]) -> list[Answer]:
    """Return the answers of all other groups."""
    return [answer for answer in answers if answer.group not in groups]


def moving_shares(
    answers: Sequence[Answer], times_s: Sequence[float], window: int
) -> list[float | None]:
    """Return the share of right answers among the latest ``window`` at each time.

    Args:
        answers: In the order in which they ended.
        times_s: In rising order.
        window: Answers that each share is made of, at most.
    """
    shares: list[float | None] = []
    end = 0
    for time_s in times_s:
        while end < len(answers) and answers[end].at_s <= time_s:
            end += 1
        shares.append(share_right(answers[max(0, end - window) : end]))
    return shares
