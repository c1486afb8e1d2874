"""JSON in a gzipped file, the same bytes for the same value."""

import gzip
import json
from pathlib import Path
from typing import Any


def write_packed(value: Any, path: Path) -> None:
    """Write a value; there is no time stamp in the file."""
    text = json.dumps(value, separators=(",", ":"))
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def read_packed(path: Path) -> Any:
    """Return what ``write_packed`` wrote."""
    return json.loads(gzip.decompress(path.read_bytes()))
