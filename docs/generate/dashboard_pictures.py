"""Takes pictures of a running server's dashboard: in light, in dark and on a phone.

python docs/generate/dashboard_pictures.py http://127.0.0.1:8000
    writes them into build/dashboard/, to be looked at
python docs/generate/dashboard_pictures.py http://127.0.0.1:8000 --publish
    puts those that the pages show into docs/images/ as well

Prints what the browser's console complained about; the exit code is then 1. Needs Chromium, which
is driven as the tests drive it.
"""

import argparse
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from factories.browser import Browser, running_browser  # noqa: E402

LOOKED_AT = ROOT / "build" / "dashboard"
PUBLISHED = ROOT / "docs" / "images"
_DRAWN = """document.querySelector('#connection').dataset.state === 'live'
  && document.querySelector('#replicas canvas') && document.querySelector('#round-list').innerText
  && document.querySelector('#decision-list').innerText"""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One picture of the page, from its top."""

    name: str
    width: int = 1280
    is_dark: bool = False
    last: str = "body"
    """Selects the element with which the picture ends."""
    hidden: str = ""
    """Selects what is left out."""
    is_published: bool = False


VIEWS = (
    View(name="dashboard", last="#learning", is_published=True),
    View(
        name="dashboard-short",
        last="#adapters .card",
        hidden="#service-charts",
        is_published=True,
    ),
    View(name="light"),
    View(name="dark", is_dark=True),
    View(name="phone", width=360),
    View(name="phone-dark", width=360, is_dark=True),
)


def take(browser: Browser, url: str, view: View, path: Path) -> list[str]:
    """Write a picture of the page; return what the console complained about."""
    page = browser.open_page(width=view.width, dark=view.is_dark)
    page.goto(url)
    page.wait_for(_DRAWN)
    if view.hidden:
        page.hide(view.hidden)
    page.screenshot(path, last=view.last)
    return page.errors


def main(arguments: list[str]) -> int:
    """Take every picture; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("url", help="where a front or a replica shows its dashboard")
    parser.add_argument("--publish", action="store_true", help="replace the pages' pictures")
    parser.add_argument("--to", type=Path, default=LOOKED_AT, help="folder for the pictures")
    asked = parser.parse_args(arguments)
    asked.to.mkdir(parents=True, exist_ok=True)
    complaints = []
    with running_browser() as browser:
        for view in VIEWS:
            path = asked.to / f"{view.name}.webp"
            complaints += take(browser, asked.url, view, path)
            print(path)
            if asked.publish and view.is_published:
                shutil.copy(path, PUBLISHED)
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
