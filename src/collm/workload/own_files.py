"""Files of the user's, which may be anything at all."""

import csv
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from collm.errors import DataError


@contextmanager
def blaming(name: str) -> Iterator[None]:
    """Raise ``DataError`` with a file's name for whatever keeps it from being read to its end."""
    try:
        yield
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{name} cannot be read: {error}") from error
