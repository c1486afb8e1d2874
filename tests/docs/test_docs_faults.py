"""The tests that are said to keep others' faults away are there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "decisions" / "faults-of-others.md"
_TEST = re.compile(r"`([\w/.]+|…)::(test_\w+)`")
_SAME_FILE = "…"


def named_tests() -> list[tuple[str, str]]:
    """Return the file and the name of each test of the page."""
    found: list[tuple[str, str]] = []
    for path, name in _TEST.findall(PAGE.read_text(encoding="utf-8")):
        found.append((found[-1][0] if path == _SAME_FILE else path, name))
    return found


def test_every_fault_names_a_test_and_every_test_exists():
    rows = [row for row in PAGE.read_text(encoding="utf-8").splitlines() if row.startswith("| ")]
    faults = [row for row in rows if not row.startswith(("| reported fault", "|---"))]
    assert len(faults) >= 16
    assert all(_TEST.search(row) for row in faults)
    missing = [
        f"{path}::{name}"
        for path, name in named_tests()
        if f"def {name}(" not in (ROOT / "tests" / path).read_text(encoding="utf-8")
    ]
    assert missing == []
