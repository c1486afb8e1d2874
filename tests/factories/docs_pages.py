"""The project's pages, cut into blocks of code and what invisible comments say about each.

A comment on the line before a block is for the tests alone:

- ``<!-- not run: REASON -->``: the block is shown, not run;
- ``<!-- prints: TEXT -->``: running it prints this, a regular expression;
- ``<!-- file: NAME -->``: the block is the content of a file that later blocks use;
"""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
GENERATED = ROOT / "docs" / "reference"
PAGES = [
    ROOT / "README.md",
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.parent != GENERATED),
]
_BLOCK = re.compile(
    r"(?:^<!-- (not run|prints|file): ([^\n]+) -->\n)?^( *)```(\w*)[^\n]*\n(.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Block:
    """One block of code of a page."""

    line: int
    language: str
    text: str
    mark: str
    """``not run``, ``prints``, ``file``, or empty."""
    said: str
    """What the mark says."""

    @property
    def commands(self) -> list[str]:
        """Its lines, those that end in a backslash joined with the next."""
        return [line for line in re.sub(r"\\\n\s*", "", self.text).splitlines() if line.strip()]


def blocks_of(page: Path) -> list[Block]:
    """Return a page's blocks in order."""
    text = page.read_text("utf-8")
    return [
        Block(
            line=text.count("\n", 0, match.start(4)) + 1,
            language=match[4],
            text=match[5],
            mark=match[1] or "",
            said=match[2] or "",
        )
        for match in _BLOCK.finditer(text)
    ]
