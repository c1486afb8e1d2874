"""Fine-tuning jobs and their events as tables."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from collm.cli.figures import number_lines, pairs
from collm.cli.listing import cell, local_time, table_of

_TIMES = ("created_at", "started_at", "finished_at", "estimated_finish")
_SAID_ELSEWHERE = ("object", "organization_id", "method")
"""What other fields, or the command, say already."""


def jobs_table(jobs: Sequence[Mapping[str, Any]]) -> Table:
    """Return a row per job, in the order of the API: newest first."""
    table = table_of("job\ncreated", "adapter\nlatest", "status", "done", "tokens")
    for job in jobs:
        values = (
            f"{job['id']}\n{local_time(job['created_at'])}",
            f"{job.get('adapter') or '–'}\n{job.get('version') or '–'}",
            job["status"],
            _percent(job.get("progress")),
            _count(job.get("trained_tokens")),
        )
        table.add_row(*map(cell, values))
    return table


def job_rows(job: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return everything that is known of a job, as names and values."""
    rows: list[tuple[str, Any]] = []
    for key, value in job.items():
        if key in _SAID_ELSEWHERE or value in (None, "", {}, []):
            continue
        if key in _TIMES:
            value = local_time(value)
        elif key == "progress":
            value = _percent(value)
        elif isinstance(value, Mapping):
            value = pairs(value)
        rows.append((key, value))
    return rows


def events_table(events: Sequence[Mapping[str, Any]]) -> Table:
    """Return a row per event, the latest last, as in a log."""
    table = table_of("time", "level", "message", "numbers")
    for event in reversed(events):
        values = (
            local_time(event["created_at"]),
            event["level"],
            event["message"],
            "\n".join(number_lines(event.get("data") or {})),
        )
        table.add_row(*map(cell, values))
    return table


def event_line(event: Mapping[str, Any]) -> str:
    """Return an event as a line of a log."""
    level = "" if event["level"] == "info" else f"{event['level']}: "
    return cell(f"{local_time(event['created_at'])} {level}{event['message']}").plain


def pace(job: Mapping[str, Any]) -> str:
    """Return how far a job is, in a few words."""
    words = [f"{job.get('adapter')}: {job['status']}"]
    if (share := job.get("progress")) is not None:
        words.append(f"{share:.0%}")
    if (tokens := job.get("trained_tokens")) is not None:
        words.append(f"{tokens:,} tokens")
    if (finish := job.get("estimated_finish")) is not None:
        words.append(f"done about {local_time(finish)}")
    return ", ".join(words)


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{share:.0%}"


def _count(number: int | None) -> str | None:
    return None if number is None else f"{number:,}"
