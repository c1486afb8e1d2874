"""Hours of the dashboard's figures, and pictures of them."""

import struct
import subprocess
import sys
from pathlib import Path

import pytest

from factories.dashboard_page import GOODPUT, LOSS, legend_of, needs_browser, opened

ROOT = Path(__file__).parents[2]
pytestmark = needs_browser


@pytest.mark.parametrize("tier", [1, 2], ids=["hour", "day"])
def test_an_hour_and_a_day_are_shown_from_end_to_end(browser, filled_front, tier):
    page = opened(browser, filled_front.url)
    page.wait_for("document.querySelectorAll('#replicas figure').length === 2")
    page.click(f"#ranges input[value='{tier}']")
    for share, goodput in ((0.0, 0.0), (0.5, 0.5), (1.0, 1.0)):
        page.hover(f"{GOODPUT} .u-over", share)
        shown = float(legend_of(page, GOODPUT)["requests/s"])
        assert shown == pytest.approx(goodput, abs=0.02)
    page.hover(f"{LOSS} .u-over", 0.25)
    shown = legend_of(page, LOSS)
    assert float(shown["r0 served"]) == pytest.approx(1.75, abs=0.02)
    assert shown["r1 served"] == shown["r0 served"]
    page.hover(f"{LOSS} .u-over", 0.5)
    assert legend_of(page, LOSS)["r1 served"] == "–"
    assert page.js("document.documentElement.scrollWidth") <= 1280
    assert page.errors == []


def test_hours_of_frames_do_not_grow_the_page(browser, filled_front):
    page = opened(browser, filled_front.url)
    counted = page.js(
        """import('/dashboard/assets/store.js').then(({ Store }) => {
             const store = new Store();
             const tier = { period_s: 1, num_frames: 300, frames: [] };
             store.setHistory({ fields: [], tiers: [tier] });
             for (let at = 0; at < 20000; at++) store.addFrame({ tier: 0, frame: { at } });
             return [store.tiers[0].frames.length, store.latest.at];
           })"""
    )
    assert counted == [300, 19_999]


def test_lines_are_not_drawn_over_a_time_without_frames(browser, filled_front):
    page = opened(browser, filled_front.url)
    shown = page.js(
        """import('/dashboard/assets/store.js').then(({ Store }) => {
             const store = new Store();
             const frames = [1, 2, 3, 60, 61].map((at) => ({ at, rows: { '': [at] } }));
             const tier = { period_s: 1, num_frames: 300, frames };
             store.setHistory({ fields: ['x'], tiers: [tier] });
             const before = [store.times(0), store.series(0, 'x')];
             store.addFrame({ tier: 0, frame: { at: 303, rows: { '': [303] } } });
             return [...before, store.times(0)];
           })"""
    )
    assert shown[0] == [1, 2, 3, 4, 60, 61]
    assert shown[1] == [1, 2, 3, None, 60, 61]
    assert shown[2] == [4, 60, 61, 62, 303]  # what is older than the span is gone


def test_pictures_of_a_running_page_take_one_command(filled_front, tmp_path):
    script = ROOT / "docs" / "generate" / "dashboard_pictures.py"
    command = [sys.executable, script, filled_front.url, "--to", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    sizes = {path.stem: size_of_webp(path.read_bytes()) for path in tmp_path.iterdir()}
    widths = {name: width for name, (width, _) in sizes.items()}
    assert widths == {
        "dashboard": 1280,
        "dashboard-short": 1280,
        "light": 1280,
        "dark": 1280,
        "phone": 360,
        "phone-dark": 360,
    }
    heights = [sizes[name][1] for name in ("dashboard-short", "dashboard", "light", "phone")]
    assert heights == sorted(heights)


def size_of_webp(content: bytes) -> tuple[int, int]:
    """Return width and height, which stand elsewhere where a profile of colours comes first."""
    if content[8:16] == b"WEBPVP8X":
        width, height = (int.from_bytes(content[at : at + 3], "little") for at in (24, 27))
        return width + 1, height + 1
    assert content[8:16] == b"WEBPVP8 "
    width, height = struct.unpack_from("<HH", content, 26)
    return width & 0x3FFF, height & 0x3FFF
