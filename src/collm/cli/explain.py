"""``collm explain``: why replicas of a running cluster have the traffic and training they have."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.table import Table

from collm.cli.api_client import DEFAULT_URL, ApiClient, AsJson, ServerError, Url, connect
from collm.cli.listing import cell, print_json, print_object, print_table, table_of

app = typer.Typer(add_completion=False)


@app.command(epilog="Examples: `collm explain`, `collm explain r3`, `collm explain r3 --json`.")
def explain(
    replica: Annotated[
        str | None, typer.Argument(metavar="[REPLICA]", help="A replica; all of them if left out.")
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Show the allocation in force, or why a replica has its part of it.

    Totals are requests that meet their objectives, times the quality of what
    answers them; differences are what the cluster would lose or gain by doing
    something else on this replica alone.
    """
    with connect(url) as client:
        found = _allocation(client, url, replica)
    if as_json:
        print_json(found)
    elif replica is None:
        _show_all(found)
    else:
        typer.echo(f"{replica}, allocation {found['number']}")
        for line in found["text"]:
            typer.echo(f"  {line}")


def _allocation(client: ApiClient, url: str, replica: str | None) -> dict[str, Any]:
    params = None if replica is None else {"replica": replica}
    try:
        return client.get("/cluster/allocation", params)
    except ServerError as error:
        if error.code != "unknown_url":
            raise
        raise ServerError(
            f"{url} is one replica alone, which shares nothing out; "
            "the front of `collm serve --replicas N` does"
        ) from error


def _show_all(found: Mapping[str, Any]) -> None:
    objective = found["objective"]
    print_object(
        (
            ("allocation", found["number"]),
            ("serving", f"{objective['serving']:.1f}"),
            ("learning", f"{objective['learning']:.1f}"),
            ("debt", f"{objective['debt']:.1f}"),
            *((one["name"], f"{one['total']:.1f}") for one in found["alternatives"]),
        )
    )
    print_table(_replicas(found), empty="No replica was live.")


def _replicas(found: Mapping[str, Any]) -> Table:
    table = table_of("replica", "requests/s", "attainment", "free", "credit", "price", "trains")
    for name, row in found["replicas"].items():
        grants = row["grants"]
        credit = sum(grant["credit_share"] for grant in grants.values())
        trains = ", ".join(
            f"{adapter} {grant['time_share']:.0%} in steps of {grant['batch_tokens']}"
            for adapter, grant in grants.items()
        )
        cells = (
            name,
            f"{row['arrivals_per_s']:.2f}",
            f"{row['attainment']:.1%}",
            f"{row['free_share']:.1%}",
            f"{credit:.1%}",
            f"{row['price']:.3f}",
            trains,
        )
        table.add_row(*map(cell, cells))
    return table
