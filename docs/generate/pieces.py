"""Pieces of Markdown that the reference pages are made of."""

from collections.abc import Iterable, Sequence


def page(title: str, source: str, *parts: str) -> str:
    """Return a page whose first line names what it was made from."""
    note = f"<!-- Made by `make reference` from {source}; changes here are lost. -->"
    return "\n\n".join([note, f"# {title}", *filter(None, parts)]) + "\n"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table without its empty columns, or nothing when it has no rows."""
    columns = [
        [title, *map(cell, values)]
        for title, *values in zip(header, *rows, strict=True)
        if any(values)
    ]
    if not columns:
        return ""
    first, *rest = (f"| {' | '.join(line)} |" for line in zip(*columns, strict=True))
    return "\n".join([first, "|" + "---|" * len(columns), *rest])


def cell(text: str) -> str:
    """Return text that may stand in a table."""
    return " ".join(text.split()).replace("|", "\\|")


def code(text: str) -> str:
    """Return text set as code, or nothing for nothing."""
    return f"`{text}`" if text else ""


def prose(text: str) -> str:
    """Return a docstring's text: its double backticks made single."""
    return text.replace("``", "`").strip()
