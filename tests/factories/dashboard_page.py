"""The dashboard's page in a browser: opening it, and what stands where."""

import json
from typing import Any

import pytest

from factories.browser import CHROMIUM, Browser, Page

needs_browser = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium: apt-get install chromium; .ci/run does"
)

IS_LIVE = "document.querySelector('#connection').dataset.state === 'live'"
GOODPUT = "#service-charts figure:nth-child(3)"
LOSS = "#adapters figure:nth-child(1)"


def opened(browser: Browser, url: str, **look: Any) -> Page:
    page = browser.open_page(**look)
    page.goto(url)
    page.wait_for(IS_LIVE)
    return page


def legend_of(page: Page, figure: str) -> dict[str, str]:
    """Return the values that a chart's legend shows, by name."""
    found: dict[str, str] = page.js(
        f"Object.fromEntries([...document.querySelectorAll({json.dumps(figure + ' .legend li')})]"
        ".map((it) => [it.querySelector('span').innerText, it.querySelector('b').innerText]))"
    )
    return found
