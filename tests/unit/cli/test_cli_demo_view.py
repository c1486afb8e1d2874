from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from collm.cli.demo_chart import ShareChart
from collm.cli.demo_progress import Progress
from collm.cli.demo_screen import draw_screen, status_line
from collm.cli.demo_settings import DemoSettings
from collm.cli.demo_view import LineView, LiveView
from factories.demo import GROUPS, START_S, learning_run

SETTINGS = DemoSettings(
    minutes=2, requests_per_s=1, seed=7, out=Path("out"), port=0,
    model="smollm2-135m-instruct", budget="objective",
)  # fmt: skip


def drawn(progress: Progress, width: int, height: int) -> list[str]:
    console = Console(file=StringIO(), width=width, height=height, force_terminal=False)
    screen = draw_screen(progress, SETTINGS, 100.0, height)
    lines = console.render_lines(screen, console.options.update(height=height))
    return ["".join(segment.text for segment in line) for line in lines]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (200, 60)])
def test_screen_fills_the_terminal_and_cuts_nothing(width, height):
    lines = drawn(learning_run(), width, height)
    assert len(lines) == height
    assert all(len(line) == width for line in lines)
    text = "\n".join(lines)
    for words in (
        "objective budget · seed 7 · 1:40 / 2:00", "TTFT, s", "TPOT, ms", "SLO attained",
        "clinc@1", "training tokens/s", "held-out loss, served", "held-out loss, shadow",
        "last 100: 50.0 %", "out of scope: 100.0 %", "0:50", "serve", "idle", "▲", "50.0 %",
    ):  # fmt: skip
        assert words in text
    assert "…" not in text


def test_screen_shows_a_run_that_has_seen_nothing():
    text = "\n".join(drawn(Progress(GROUPS, START_S), 80, 24))
    assert "base model" in text
    assert "none yet" in text


def chart(shares: list[float | None], width: int, height: int) -> list[str]:
    console = Console(file=StringIO(), width=width + 6, height=height)
    made = ShareChart(lambda _: shares, [50.0], now_s=100.0, duration_s=100.0)
    lines = console.render_lines(made, console.options.update(height=height))
    return ["".join(segment.text for segment in line) for line in lines]


def test_chart_draws_shares_from_bottom_to_top():
    top, bottom, marks = chart([None, 0.0, 0.25, 0.5, 0.75, 1.0], width=6, height=3)
    assert top == "100 %     ▄█"
    assert bottom == "  0 %  ▁▄███"
    assert marks == "swaps ···▲··"


def test_plain_view_prints_a_line_every_quarter_minute():
    file = StringIO()
    progress = learning_run()
    with LineView(Console(file=file, width=80), status_line) as view:
        view.starting("loading")
        view.starting("loading")
        view.started("http://127.0.0.1:8123")
        for second in range(32):
            view.show(progress, float(second))
    lines = file.getvalue().splitlines()
    assert lines[1] == "its page: http://127.0.0.1:8123/"
    assert [line.split()[0] for line in lines] == ["starting", "its", "0:00", "0:15", "0:30"]
    assert "81 done" in lines[2]
    assert "clinc@1, 1 swaps" in lines[2]


def test_live_view_draws_on_a_terminal():
    file = StringIO()
    console = Console(file=file, width=80, height=24, force_terminal=True)

    def draw(progress, now_s, height):
        return draw_screen(progress, SETTINGS, now_s, height)

    with LiveView(console, draw) as view:
        view.starting("loading weights")
        view.started("http://127.0.0.1:8123")
        view.show(learning_run(), 60.0)
    assert "loading weights" in file.getvalue()
    assert "http://127.0.0.1:8123/" in file.getvalue()
    assert "SLO attained" in file.getvalue()
