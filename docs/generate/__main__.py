"""Writes the reference pages from the code that they describe.

python docs/generate           writes docs/reference/
python docs/generate --check   says which pages are out of date; exit code 1 if any is
"""

import sys
from pathlib import Path

from cli_page import cli_page
from config_page import config_page
from http_pages import front_page, replica_page

FOLDER = Path(__file__).parents[1] / "reference"
PAGES = {
    "cli.md": cli_page,
    "configuration.md": config_page,
    "replica-api.md": replica_page,
    "front-api.md": front_page,
}


def main(arguments: list[str]) -> int:
    """Write the pages, or say which are out of date; return the exit code."""
    pages = {FOLDER / name: make() for name, make in PAGES.items()}
    stale = [path for path, text in pages.items() if not path.exists() or _read(path) != text]
    if arguments == ["--check"]:
        for path in stale:
            print(f"docs/reference/{path.name} is out of date: run `make reference`")
        return 1 if stale else 0
    FOLDER.mkdir(exist_ok=True)
    for path in stale:
        path.write_text(pages[path], encoding="utf-8")
        print(f"docs/reference/{path.name} is written")
    return 0


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
