"""How right an answer is."""

import json
from collections import deque

from collm.metrics.records import RequestRecord


def fold(text: str) -> str:
    """Return ``text`` in one case, with single spaces and none at its ends."""
    return " ".join(text.casefold().split())


def exact_match(text: str, expected: str) -> bool:
    """Return whether two texts are the same but for case and spaces."""
    return fold(text) == fold(expected)


def json_match(text: str, expected: str) -> bool:
    """Return whether two texts are the same JSON object, whatever the order of its keys."""
    fields = _json_fields(text)
    return fields is not None and fields == _json_fields(expected)


def slot_f1(text: str, expected: str) -> float:
    """Return the F1 of the (key, value) pairs of two JSON objects; 0 for an answer that is none.

    Raises:
        ValueError: ``expected`` is no JSON object.
    """
    wanted = _json_fields(expected)
    if wanted is None:
        raise ValueError("the expected answer is no JSON object")
    given = _json_fields(text)
    if given is None:
        return 0.0
    if not given and not wanted:
        return 1.0
    num_right = sum(wanted.get(key) == value for key, value in given.items())
    return 2 * num_right / (len(given) + len(wanted))


def exact_match_score(record: RequestRecord) -> float | None:
    """Score a scored request 1 or 0, an unfinished one 0; ``None`` for length requests."""
    if record.expected is None:
        return None
    if record.outcome != "completed" or record.text is None:
        return 0.0
    return float(exact_match(record.text, record.expected))


class RunningAccuracy:
    """Share of right answers among the latest ones."""

    def __init__(self, window: int) -> None:
        if window < 1:
            raise ValueError(f"window must be at least 1, not {window}")
        self._scores: deque[float] = deque(maxlen=window)

    @property
    def num_scores(self) -> int:
        """Return how many scores the share is made of."""
        return len(self._scores)

    @property
    def share(self) -> float | None:
        """Return the mean of the latest scores; ``None`` before the first."""
        return sum(self._scores) / len(self._scores) if self._scores else None

    def add(self, score: float) -> None:
        """Take in the score of one answer, in [0, 1]."""
        self._scores.append(score)


def _json_fields(text: str) -> dict[str, str] | None:
    """Return an object's fields as folded text; ``None`` if the text is no JSON object."""
    try:
        fields = json.loads(text)
    except ValueError:
        return None
    if not isinstance(fields, dict):
        return None
    return {
        fold(key): fold(value if isinstance(value, str) else json.dumps(value, sort_keys=True))
        for key, value in fields.items()
    }
