"""``collm files``: the training files on a running server."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.filesize import decimal

from collm.cli.api_client import DEFAULT_URL, ApiClient, AsJson, Url, connect, segment
from collm.cli.listing import cell, local_time, print_json, print_table, say, table_of
from collm.cli.waiting import opened_with_bar
from collm.errors import DataError

app = typer.Typer(
    help="Upload training files to a running server, see and delete them.",
    epilog=(
        "Examples: `collm files add train.jsonl`, `collm files list`, "
        "`collm files delete file-0123456789abcdef01234567`. Each line of a file is a sample: "
        '`{"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}`.'
    ),
    no_args_is_help=True,
    add_completion=False,
)


@app.command(name="list", epilog="Example: `collm files list --json`.")
def list_(
    limit: Annotated[int, typer.Option(min=1, help="Most files shown, newest first.")] = 100,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Show the files that jobs can train on."""
    with connect(url) as client:
        rows, has_more = client.list_objects("/v1/files", limit=limit)
    if as_json:
        print_json(rows)
        return
    table = table_of("file\ncreated", "name", "samples", "size")
    for row in rows:
        file = f"{row['id']}\n{local_time(row['created_at'])}"
        values = (file, row["filename"], row.get("num_samples"), decimal(row["bytes"]))
        table.add_row(*map(cell, values))
    print_table(table, empty="No files yet: `collm files add FILE`.", has_more=has_more)


@app.command(epilog="Example: `FILE=$(collm files add train.jsonl)`.")
def add(
    path: Annotated[
        Path, typer.Argument(metavar="FILE", help="Chat-format JSONL, a sample per line.")
    ],
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Check and upload a training file; prints its id."""
    with connect(url) as client:
        found = upload(client, path)
    say(found, found["id"], as_json=as_json)


@app.command(epilog="Example: `collm files delete file-0123456789abcdef01234567`.")
def delete(
    file_id: Annotated[str, typer.Argument(metavar="ID", help="An id from `collm files list`.")],
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Delete a file that no unfinished job uses."""
    with connect(url) as client:
        found = client.delete(f"/v1/files/{segment(file_id)}")
    say(found, f"{file_id} is deleted", as_json=as_json)


def upload(client: ApiClient, path: Path) -> dict[str, Any]:
    """Upload a training file; return what the server says of it.

    Raises:
        DataError: The file cannot be read.
        ServerError: The server finds a mistake in it, and says where.
    """
    try:
        with opened_with_bar(path, f"sending {path.name}") as content:
            return client.upload(
                "/v1/files", {"purpose": "fine-tune"}, {"file": (path.name, content)}
            )
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
