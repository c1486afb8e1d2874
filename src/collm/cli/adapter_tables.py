"""Adapter versions, and what was decided about them, as tables."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from collm.cli.figures import number_lines, pairs
from collm.cli.listing import cell, local_time, table_of

_STYLES = {"promotion": "green", "rollback": "yellow", "refusal": "dim"}
_REASON_WIDTH = 22
"""Narrow enough to leave the lines of numbers whole."""


def versions_table(versions: Sequence[Mapping[str, Any]]) -> Table:
    """Return a row per version, in the order of the API."""
    table = table_of("version", "state", "rank", "published", "about")
    for version in versions:
        values = (
            version["version"],
            _state(version),
            version["rank"],
            local_time(version.get("published_at_s")),
            pairs(version.get("metadata") or {}),
        )
        style = "bold" if version.get("is_active") else None
        table.add_row(*map(cell, values), style=style)
    return table


def history_table(decisions: Sequence[Mapping[str, Any]]) -> Table:
    """Return a row per decision, in the order of the API; fits 100 columns."""
    table = table_of("time", "decision", "version", "reason", "numbers")
    table.show_lines = True
    table.columns[3].max_width = _REASON_WIDTH
    for decision in decisions:
        values = (
            (local_time(decision["decided_at_s"]) or "").replace(" ", "\n"),
            decision["kind"],
            _change(decision),
            decision["reason"],
            "\n".join(number_lines(decision["numbers"])),
        )
        table.add_row(*map(cell, values), style=_STYLES.get(decision["kind"]))
    return table


def _state(version: Mapping[str, Any]) -> str:
    """Return what a version is at the moment, in words."""
    words = (
        ("active", version.get("is_active")),
        ("pinned", version.get("is_pinned")),
        ("loaded", version.get("slot") is not None),
    )
    return ", ".join(word for word, is_so in words if is_so) or "on disk"


def _change(decision: Mapping[str, Any]) -> str:
    """Return which version a decision was about, and which was active before."""
    version = decision.get("version") or "a candidate"
    word = "instead of" if decision["kind"] == "refusal" else "after"
    return f"{version}\n{word} {decision.get('previous') or 'base'}"
