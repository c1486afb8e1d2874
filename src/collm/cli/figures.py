"""The numbers of decisions and job events, in words."""

from collections.abc import Mapping
from typing import Any

_PARTS = ("slices", "members")
"""Names of figures that are groups of figures, by the name of a slice or a member."""


def number_lines(numbers: Mapping[str, Any]) -> list[str]:
    """Return figures by name as short lines: what belongs together on one, the rest one each."""
    rest = dict(numbers)
    lines = []
    if (count := rest.pop("num_samples", None)) is not None:
        lines.append(f"n {count}")
    if "active_loss" in rest and "candidate_loss" in rest:
        served, candidate = _loss(rest, "active"), _loss(rest, "candidate")
        lines.append(f"loss {served} → {candidate}")
    if "active_exact_match" in rest and "candidate_exact_match" in rest:
        served, candidate = rest.pop("active_exact_match"), rest.pop("candidate_exact_match")
        count = rest.pop("num_short_answers", 0)
        lines.append(f"exact match {served:.0%} → {candidate:.0%} of {count}")
    if "evidence" in rest and "evidence_worse" in rest:
        lines.append(f"evidence for {_figure(rest.pop('evidence'))}")
        lines.append(f"evidence against {_figure(rest.pop('evidence_worse'))}")
    groups = [rest.pop(key) for key in _PARTS if isinstance(rest.get(key), Mapping)]
    lines += [f"{key.replace('_', ' ')} {_figure(value)}" for key, value in rest.items()]
    parts = [part for group in groups for part in group.items()]
    return lines + [f"{name or 'all'}: {_part_line(found)}" for name, found in parts]


def pairs(values: Mapping[str, Any]) -> str:
    """Return names and values as they are, a line each."""
    return "\n".join(f"{key} {_figure(value)}" for key, value in values.items())


def _loss(figures: dict[str, Any], side: str) -> str:
    """Take a side's loss out of figures, with its standard error where that is known."""
    loss, error = figures.pop(f"{side}_loss"), figures.pop(f"{side}_error", None)
    return _figure(loss) if error is None else f"{_figure(loss)} ± {_figure(error)}"


def _part_line(figures: Mapping[str, Any]) -> str:
    """Return a part's mean change of loss beside the most that it may grow by.

    A part is a slice, or a member's samples; of what a member found on feedback there is no bound.
    """
    if "bound" not in figures:
        before, now = figures["previous_loss"], figures["active_loss"]
        return f"loss {_figure(before)} → {_figure(now)}, n {figures['num_samples']}"
    # Figures that JSON has no number for come as texts, which float() reads.
    count, bound = float(figures["n"]), float(figures["bound"])
    if not count:
        return "n 0"
    # A job's trial has sums on record, a round's verdict means.
    change = (
        float(figures["increase"]) if "increase" in figures else float(figures["sum_d"]) / count
    )
    return f"{change:+.3f} {'≤' if change <= bound else '>'} {bound:g}, n {count:g}"


def _figure(value: Any) -> str:
    """Return a number with four digits, and anything else as it is."""
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
