"""How right an answer is."""

from collm.metrics.records import RequestRecord


def fold(text: str) -> str:
    """Return ``text`` in one case, with single spaces and none at its ends."""
    return " ".join(text.casefold().split())


def exact_match(text: str, expected: str) -> bool:
    """Return whether two texts are the same but for case and spaces."""
    return fold(text) == fold(expected)


def exact_match_score(record: RequestRecord) -> float | None:
    """Score a scored request 1 or 0, an unfinished one 0; ``None`` for length requests."""
    if record.expected is None:
        return None
    if record.outcome != "completed" or record.text is None:
        return 0.0
    return float(exact_match(record.text, record.expected))
