"""The reference pages say what the code says; the site is whole and loads nothing from outside."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOADED = re.compile(
    r"<(?:script|link|img|iframe)\b[^>]*?\b(?:src|href)=[\"']?(https?:)?//[^\"'> ]+"
)


def run(*command: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path},
        timeout=300,
    )


def test_reference_pages_are_up_to_date():
    result = run("docs/generate", "--check")
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    result = run("-m", "mkdocs", "build", "--strict", "--site-dir", str(folder))
    assert result.returncode == 0, result.stdout + result.stderr
    return folder


def test_every_page_is_on_the_site(site: Path):
    pages = {page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md")}
    names = {"index" if page.stem == "README" else page.stem for page in pages}
    assert {page.stem for page in site.rglob("*.html")} == names | {"404"}


def test_the_site_loads_nothing_from_elsewhere(site: Path):
    for page in site.rglob("*.html"):
        assert not [found[0] for found in LOADED.finditer(page.read_text("utf-8"))], page
