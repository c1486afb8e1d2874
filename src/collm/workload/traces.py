"""Request traces: when requests arrive, how long they are, and where they come from."""

import csv
import gzip
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import IO, TypeAlias

from collm.errors import DataError
from collm.workload.own_files import blaming

COLUMNS = ("arrived_at_s", "prompt_tokens", "output_tokens")
SITE_COLUMN = "site"
SHIPPED_TRACES = ("azure_code_2023", "azure_conv_2023", "servegen_edge16_day")


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request of a trace."""

    arrived_at_s: float
    """Seconds since the trace's start."""
    prompt_tokens: int
    output_tokens: int
    site: str = ""


Trace: TypeAlias = tuple[TraceRow, ...]
"""Rows by time of arrival."""


def load_trace(name_or_path: str | Path) -> Trace:
    """Read a shipped trace by name, or a ``.csv`` or ``.csv.gz`` file by path.

    A file has the columns of ``COLUMNS`` and, if it likes, ``site``.

    Raises:
        DataError: No such trace, one that cannot be read, or a row that is malformed or earlier
            than the one before.
    """
    name = str(name_or_path)
    if name in SHIPPED_TRACES:
        with files(__package__).joinpath(f"data/traces/{name}.csv.gz").open("rb") as packed:
            return _read_packed(packed, name)
    path = Path(name_or_path)
    if not path.is_file():
        raise DataError(f"no trace {name!r}: give a file or one of {', '.join(SHIPPED_TRACES)}")
    with blaming(name):
        if path.suffix == ".gz":
            with path.open("rb") as packed:
                return _read_packed(packed, name)
        with path.open(encoding="utf-8", newline="") as lines:
            return _read_rows(lines, name)


def _read_packed(packed: IO[bytes], name: str) -> Trace:
    with gzip.open(packed, "rt", encoding="utf-8", newline="") as lines:
        return _read_rows(lines, name)


def _read_rows(lines: Iterable[str], name: str) -> Trace:
    reader = csv.reader(lines)
    header = tuple(next(reader, ()))
    if header not in (COLUMNS, (*COLUMNS, SITE_COLUMN)):
        wanted = ",".join(COLUMNS)
        raise DataError(f"{name}, line 1: columns must be {wanted}[,site], not {','.join(header)}")
    rows: list[TraceRow] = []
    for fields in reader:
        row = _parse_row(fields, len(header), f"{name}, line {reader.line_num}")
        if rows and row.arrived_at_s < rows[-1].arrived_at_s:
            raise DataError(
                f"{name}, line {reader.line_num}: arrived_at_s is before the last row's"
            )
        rows.append(row)
    return tuple(rows)


def _parse_row(fields: list[str], num_columns: int, where: str) -> TraceRow:
    if len(fields) != num_columns:
        raise DataError(f"{where}: {len(fields)} fields instead of {num_columns}")
    try:
        row = TraceRow(float(fields[0]), int(fields[1]), int(fields[2]), *fields[3:])
    except ValueError as error:
        raise DataError(f"{where}: {error}") from error
    if not 0 <= row.arrived_at_s < float("inf"):
        raise DataError(f"{where}: arrived_at_s must be finite and not negative, not {fields[0]}")
    if row.prompt_tokens < 1 or row.output_tokens < 1:
        raise DataError(f"{where}: prompt_tokens and output_tokens must be at least 1")
    return row
