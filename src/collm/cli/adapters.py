"""``collm adapters``: the versions of a running server, and what was decided about them."""

from pathlib import Path
from typing import Annotated, Any

import typer

from collm.cli.adapter_folder import check_target, export_to, opened
from collm.cli.adapter_tables import history_table, versions_table
from collm.cli.api_client import DEFAULT_URL, AsJson, Url, connect, segment
from collm.cli.listing import print_json, print_table, say
from collm.cli.waiting import waiting
from collm.types import BASE

app = typer.Typer(
    help="See, promote, roll back, export and import the adapter versions of a running server.",
    epilog=(
        "Examples: `collm adapters list`, `collm adapters history support`, "
        "`collm adapters rollback support`, `collm adapters export support@3 ./support`, "
        "`collm adapters import ./support --name support --url http://other:8000`."
    ),
    no_args_is_help=True,
    add_completion=False,
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="An adapter.")]
Version = Annotated[
    str, typer.Argument(metavar="NAME@N", help="A version from `collm adapters list`.")
]


@app.command(name="list", epilog="Example: `collm adapters list --json`.")
def list_(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show every version: which one is served, which are loaded or pinned, and what they hold."""
    with connect(url) as client:
        rows: list[dict[str, Any]] = client.get("/adapters")["data"]
    if as_json:
        print_json(rows)
        return
    print_table(
        versions_table(rows),
        empty="No adapter yet: create a job (`collm jobs create --help`) or import one.",
    )


@app.command(epilog="Example: `collm adapters history support --limit 50`.")
def history(
    name: Name,
    limit: Annotated[int, typer.Option(min=1, help="Latest decisions shown.")] = 20,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Show every decision about an adapter, the latest last, with the numbers it rests on.

    A loss is the mean over n held-out samples, in nats per token: of what is
    served → of the candidate; of a slice, how much the candidate's is above.
    Exact match is the share of short answers that come out word for word.
    Evidence is how strongly the samples speak for and against the candidate; 20
    is proof at an error of 5 %.
    """
    path = f"/adapters/{segment(name)}/history"
    with connect(url) as client:
        # One more, to know whether there are; a job that never ends has decided very often.
        rows: list[dict[str, Any]] = client.get(path, {"limit": limit + 1})["data"]
    shown = rows[-limit:]
    if as_json:
        print_json(shown)
        return
    print_table(
        history_table(shown),
        empty=f"Nothing was decided about {name} yet.",
        has_more=len(shown) < len(rows),
    )


@app.command(epilog="Example: `collm adapters promote support@3`.")
def promote(version: Version, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Serve a version from now on; requests in flight keep theirs."""
    with connect(url) as client, waiting(f"promoting {version}"):
        found = client.post("/adapters/promote", {"version": version})
    say(found, f"{found['version']} is active", as_json=as_json)
    _say_who_was_missed(found)


@app.command(epilog="Example: `collm adapters rollback support`.")
def rollback(name: Name, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Return an adapter to the version before its active one: from its first, to the base."""
    with connect(url) as client:
        found = client.post("/adapters/rollback", {"adapter": name})
    # Other versions are named after the adapter already.
    prefix = f"{name}: " if found["version"] == BASE else ""
    say(found, f"{prefix}{found['version']} is active", as_json=as_json)
    _say_who_was_missed(found)


@app.command(epilog="Example: `collm adapters pin support@3`.")
def pin(version: Version, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Keep a version loaded and on disk, however many newer ones come."""
    with connect(url) as client:
        found = client.post("/adapters/pin", {"version": version})
    say(found, f"{version} is pinned", as_json=as_json)


@app.command(epilog="Example: `collm adapters unpin support@3`.")
def unpin(version: Version, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Let a pinned version go once newer ones have taken its place."""
    with connect(url) as client:
        found = client.post("/adapters/unpin", {"version": version})
    say(found, f"{version} is not pinned", as_json=as_json)


@app.command(epilog="Example: `collm adapters export support@3 ./support`.")
def export(
    version: Version,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to; made if missing.")],
    force: Annotated[
        bool, typer.Option("--force", help="Replace the adapter in a folder that is not empty.")
    ] = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Write a version as a PEFT folder, which `peft` and vLLM load; prints the folder."""
    check_target(folder, is_forced=force)
    with connect(url) as client, waiting(f"fetching {version}"):
        export_to(client, version, folder)
    typer.echo(folder)


@app.command(name="import", epilog="Example: `collm adapters import ./support --name support`.")
def import_(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A PEFT adapter folder.")],
    name: Annotated[str, typer.Option(metavar="NAME", help="The adapter it becomes a version of.")],
    promote: Annotated[
        bool, typer.Option("--promote/--no-promote", help="Whether to serve it at once.")
    ] = True,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Upload a PEFT folder as an adapter's next version; prints the version."""
    with opened(folder) as files, connect(url) as client, waiting(f"sending {folder}"):
        fields = {"name": name, "promote": "true" if promote else "false"}
        found = client.upload("/adapters/import", fields, files)
    say(found, found["version"], as_json=as_json)


def _say_who_was_missed(found: dict[str, Any]) -> None:
    for replica, reason in (found.get("missed") or {}).items():
        typer.echo(f"{replica} was not reached, and follows when it is back: {reason}", err=True)
