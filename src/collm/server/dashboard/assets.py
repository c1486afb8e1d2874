"""The page's files, read once: none comes from anywhere else, so that it works offline."""

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

PAGE = "index.html"

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Nothing from elsewhere, nothing inline: what users called their adapters stays text."""

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".LICENSE": "text/plain; charset=utf-8",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """One file."""

    content: bytes
    media_type: str
    etag: str


@cache
def load_assets() -> dict[str, Asset]:
    """Return every file by its path below the folder."""
    return dict(_walk(files("collm.server.dashboard") / "assets", ""))


def _walk(folder: Traversable, prefix: str) -> list[tuple[str, Asset]]:
    found = []
    for entry in sorted(folder.iterdir(), key=lambda one: one.name):
        if entry.is_dir():
            found += _walk(entry, f"{prefix}{entry.name}/")
            continue
        suffix = entry.name[entry.name.rindex(".") :]
        content = entry.read_bytes()
        etag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
        found.append((prefix + entry.name, Asset(content, _TYPES[suffix], etag)))
    return found
