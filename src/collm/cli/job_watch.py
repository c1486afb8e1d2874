"""Following a job: what happens to it is printed as it happens, how far it is shows below."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import typer

from collm.cli.api_client import ApiClient, NoServerError, ServerError
from collm.cli.job_tables import event_line, pace
from collm.cli.waiting import status_line

_PERIOD_S = 1.0
_PATIENCE_S = 60.0
"""How long a server may be gone that is perhaps just being started again."""
_MAX_EVENTS = 100
"""Events read at a look, which are far more than come in between."""

ENDED = ("succeeded", "failed", "cancelled")


def follow(
    client: ApiClient,
    path: str,
    *,
    num_before: int,
    as_json: bool,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Any]:
    """Print a job's events until it has ended; return the job as it is then.

    Args:
        client: Of the server that has it.
        path: The job's.
        num_before: Most events printed that came before.
        as_json: Whether to print each event as a line of JSON.
        sleep: Waits so many seconds between two looks.

    Raises:
        ServerError: The server refuses, or stays away.
    """
    latest: str | None = None
    with status_line() as show:
        for job, events in _looks(client, path, sleep, lambda: show("the server is gone")):
            new = _newer(events, latest) if latest else events[:num_before]
            for event in reversed(new):
                typer.echo(json.dumps(event, ensure_ascii=False) if as_json else event_line(event))
            latest = events[0]["id"] if events else latest
            if job["status"] in ENDED:
                return job
            show(pace(job))
            sleep(_PERIOD_S)
    raise AssertionError("looks have no end")


def _looks(
    client: ApiClient, path: str, sleep: Callable[[float], None], on_gone: Callable[[], None]
) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Yield the job and its latest events, newest first; once seen, it may be gone for a while."""
    gone_s, has_seen = 0.0, False
    while True:
        try:
            # In this order: an ended job has no further events.
            job = client.get(path)
            events, _ = client.list_objects(f"{path}/events", limit=_MAX_EVENTS)
        except NoServerError:
            if not has_seen or gone_s >= _PATIENCE_S:
                raise
            on_gone()
            gone_s += _PERIOD_S
            sleep(_PERIOD_S)
            continue
        gone_s, has_seen = 0.0, True
        yield job, events


def _newer(events: list[dict[str, Any]], latest: str) -> list[dict[str, Any]]:
    """Return the events that came after the one of that id."""
    ids = [event["id"] for event in events]
    return events[: ids.index(latest)] if latest in ids else events


def latest_open(jobs: list[dict[str, Any]]) -> str:
    """Return the id of the newest job that has not ended.

    Raises:
        ServerError: There is none.
    """
    for job in jobs:
        if job["status"] not in ENDED:
            return str(job["id"])
    raise ServerError("no job is under way; `collm jobs list` shows those that were")


def outcome(job: Mapping[str, Any]) -> str:
    """Return how a job ended, in words."""
    reason = (job.get("error") or {}).get("message")
    served = f"; its latest version is {job['version']}" if job.get("version") else ""
    return f"{job['id']} is {job['status']}{f': {reason}' if reason else ''}{served}"
