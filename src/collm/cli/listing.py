"""What the commands that talk to a server print: tables for people, JSON for scripts."""

import json
import time
from collections.abc import Iterable
from typing import Any

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text


def cell(value: Any) -> Text:
    """Return a value as a table shows it; nothing in it can steer the terminal."""
    text = "–" if value is None or value == "" else str(value)
    return Text("".join(char if char.isprintable() or char == "\n" else "�" for char in text))


def local_time(at_s: float | None) -> str | None:
    """Return seconds since 1970 as this machine's local time."""
    if at_s is None:
        return None
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s))


def table_of(*columns: str) -> Table:
    """Return a table that wraps what does not fit and cuts nothing off."""
    table = Table()
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def print_json(value: Any) -> None:
    """Print a value for scripts."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def say(answer: Any, text: str, *, as_json: bool) -> None:
    """Print what came of a command: the answer for scripts, a line for people."""
    if as_json:
        print_json(answer)
    else:
        typer.echo(text)


def print_table(table: Table, *, empty: str, has_more: bool = False) -> None:
    """Print a table, or ``empty`` where it has no rows."""
    if table.row_count == 0:
        typer.echo(empty)
        return
    console = Console()
    _keep_whole(table.columns[0], console)
    console.print(table)
    if has_more:
        typer.echo("There are more; raise --limit to see them.", err=True)


def _keep_whole(column: Column, console: Console) -> None:
    """Fold other columns first: an id that stands on two lines cannot be copied."""
    width = max(console.measure(entry).maximum for entry in column.cells)
    column.min_width = min(width, console.width)


def print_object(rows: Iterable[tuple[str, Any]]) -> None:
    """Print one object as names and values."""
    table = Table(show_header=False, box=None)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, cell(value))
    Console().print(table)
