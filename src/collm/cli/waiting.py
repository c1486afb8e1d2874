"""Showing that a command still works, on terminals only, where it does not get into output."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TextColumn
from rich.spinner import Spinner
from rich.text import Text

# Standard output is for what was asked for.
_CONSOLE = Console(stderr=True)


@contextmanager
def waiting(activity: str) -> Iterator[None]:
    """Show a spinner beside ``activity`` until the block ends."""
    with _CONSOLE.status(f"{activity} …"):
        yield


@contextmanager
def status_line() -> Iterator[Callable[[str], None]]:
    """Show a line below whatever is printed meanwhile; what is given changes it."""
    if not _CONSOLE.is_terminal:
        yield lambda text: None
        return
    spinner = Spinner("dots")
    # Into a pipe goes what was asked for, whatever shows here.
    is_seen = sys.stdout.isatty()
    with Live(spinner, console=_CONSOLE, transient=True, redirect_stdout=is_seen):
        yield lambda text: spinner.update(text=Text(text))


@contextmanager
def opened_with_bar(path: Path, activity: str) -> Iterator[IO[bytes]]:
    """Open a file, and show how much of it was read.

    Raises:
        OSError: It cannot be read.
    """
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    is_seen = _CONSOLE.is_terminal  # elsewhere even an invisible bar would leave an empty line
    with (
        Progress(*columns, console=_CONSOLE, transient=True, disable=not is_seen) as bar,
        bar.open(path, "rb", description=activity) as content,
    ):
        yield content
