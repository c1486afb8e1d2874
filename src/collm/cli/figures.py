"""The numbers of decisions and job events, in words."""

from collections.abc import Mapping
from typing import Any


def number_lines(numbers: Mapping[str, Any]) -> list[str]:
    """Return figures by name as short lines: what belongs together on one, the rest one each."""
    rest = dict(numbers)
    lines = []
    if (count := rest.pop("num_samples", None)) is not None:
        lines.append(f"n {count}")
    if "active_loss" in rest and "candidate_loss" in rest:
        served, candidate = rest.pop("active_loss"), rest.pop("candidate_loss")
        lines.append(f"loss {_figure(served)} → {_figure(candidate)}")
    if "active_exact_match" in rest and "candidate_exact_match" in rest:
        served, candidate = rest.pop("active_exact_match"), rest.pop("candidate_exact_match")
        count = rest.pop("num_short_answers", 0)
        lines.append(f"exact match {served:.0%} → {candidate:.0%} of {count}")
    if "evidence" in rest and "evidence_worse" in rest:
        lines.append(f"evidence for {_figure(rest.pop('evidence'))}")
        lines.append(f"evidence against {_figure(rest.pop('evidence_worse'))}")
    slices = rest.pop("slices") if isinstance(rest.get("slices"), Mapping) else {}
    lines += [f"{key.replace('_', ' ')} {_figure(value)}" for key, value in rest.items()]
    return lines + [f"{name or 'all'}: {_slice_line(found)}" for name, found in slices.items()]


def pairs(values: Mapping[str, Any]) -> str:
    """Return names and values as they are, a line each."""
    return "\n".join(f"{key} {_figure(value)}" for key, value in values.items())


def _slice_line(figures: Mapping[str, Any]) -> str:
    """Return a slice's mean change of loss beside the most that it may grow by."""
    # Figures that JSON has no number for come as texts, which float() reads.
    count, total, bound = (float(figures[key]) for key in ("n", "sum_d", "bound"))
    if not count:
        return "n 0"
    change = total / count
    return f"{change:+.3f} {'≤' if change <= bound else '>'} {bound:g}, n {count:g}"


def _figure(value: Any) -> str:
    """Return a number with four digits, and anything else as it is."""
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
