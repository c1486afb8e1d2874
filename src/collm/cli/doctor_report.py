"""What ``collm doctor`` found, as values, a table and JSON."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from rich.table import Table

from collm.cli.listing import cell, table_of


class Status(StrEnum):
    """Whether something has to be done."""

    OK = "ok"
    NOTE = "note"
    """Works, though not as well as it could."""
    FIX = "fix"
    """Keeps collm from working."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    check: str
    """What, in a word or two."""
    status: Status
    found: str
    advice: str = ""
    """What to do, unless all is well."""


_STYLES = {Status.NOTE: "yellow", Status.FIX: "red"}


def is_fit(findings: Sequence[Finding]) -> bool:
    """Return whether nothing has to be fixed."""
    return all(finding.status is not Status.FIX for finding in findings)


def findings_table(findings: Sequence[Finding]) -> Table:
    """Return a row per finding."""
    table = table_of("check", "", "found", "what to do")
    for one in findings:
        values = (one.check, one.status.value, one.found, one.advice)
        table.add_row(*map(cell, values), style=_STYLES.get(one.status))
    return table


def findings_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the findings ready for JSON."""
    return {"is_fit": is_fit(findings), "findings": [asdict(finding) for finding in findings]}
