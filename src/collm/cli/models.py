"""``collm models``: fetch base models and see which are there."""

import dataclasses
import json
from typing import Annotated

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from collm.cli.cache import cache_dir
from collm.model.catalog import ModelListing, list_models
from collm.model.catalog import pull as pull_into_cache
from collm.model.config import DEFAULT_MODEL

app = typer.Typer(
    help="Fetch base models into the cache ($COLLM_HOME) and see which are there.",
    no_args_is_help=True,
    add_completion=False,
)


@app.command()
def pull(
    name: Annotated[str, typer.Argument(help="A name from `collm models list`.")] = DEFAULT_MODEL,
) -> None:
    """Download a model, check its hash and convert it once; prints its folder."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=None)

        def show(activity: str, done_share: float) -> None:
            # A share of zero says only that something began: let the bar pulse.
            total = 1.0 if done_share else None
            bar.update(task, description=f"{activity} {name}", total=total, completed=done_share)

        folder = pull_into_cache(name, cache_dir(), show)
    typer.echo(folder)


@app.command(name="list")
def list_(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show the models known by name: size, licence, source, and where they are."""
    listings = list_models(cache_dir())
    if as_json:
        rows = [dataclasses.asdict(listing) for listing in listings]
        typer.echo(json.dumps(rows, indent=2, default=str))
        return
    Console().print(_table(listings))


def _table(listings: list[ModelListing]) -> Table:
    table = Table()
    # A name that is cut off could not be given to `collm models pull`.
    table.add_column("model", no_wrap=True, min_width=max(len(it.name) for it in listings))
    table.add_column("size", no_wrap=True)
    for name in ("licence", "source", "path"):
        table.add_column(name, overflow="fold")
    for listing in listings:
        table.add_row(
            listing.name,
            decimal(listing.size_bytes),
            listing.licence,
            listing.source,
            str(listing.path) if listing.is_present else "not here yet: collm models pull",
        )
    return table
