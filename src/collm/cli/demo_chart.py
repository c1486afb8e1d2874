"""A share over time as a chart of block characters, as large as its place."""

from collections.abc import Callable, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

_BLOCKS = " ▁▂▃▄▅▆▇█"
_LABEL_WIDTH = 6
_DEFAULT_HEIGHT = 6
_NUM_LEGEND_ROWS = 1

Shares = Callable[[Sequence[float]], Sequence[float | None]]
"""Gives the share at each of some times, ``None`` where there is none yet."""


class ShareChart:
    """Columns from 0 to 100 % over a run, filled up to now, with marks below."""

    def __init__(
        self, shares: Shares, marks_s: Sequence[float], now_s: float, duration_s: float
    ) -> None:
        """Draw ``shares`` over ``duration_s`` seconds, with ``marks_s`` as triangles."""
        self._shares = shares
        self._marks_s = marks_s
        self._now_s = now_s
        self._duration_s = duration_s

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Fill the place given."""
        height = max(2, (options.height or _DEFAULT_HEIGHT) - _NUM_LEGEND_ROWS)
        width = max(4, options.max_width - _LABEL_WIDTH)
        column_s = self._duration_s / width
        num_filled = min(width, int(self._now_s / column_s) + 1)
        times_s = [min((i + 1) * column_s, self._now_s) for i in range(num_filled)]
        shares = self._shares(times_s)
        for row in range(height):
            label = _label(row, height)
            yield Text.assemble((label, "dim"), (_row(shares, row, height), "green"))
        yield self._marks(width, column_s)

    def _marks(self, width: int, column_s: float) -> Text:
        line = ["·"] * width
        for mark_s in self._marks_s:
            line[min(width - 1, int(mark_s / column_s))] = "▲"
        text = Text("swaps ".rjust(_LABEL_WIDTH), "dim", no_wrap=True)
        for mark in line:
            text.append(mark, "yellow" if mark == "▲" else "dim")
        return text


def _label(row: int, height: int) -> str:
    """Name the top of the first row 100 % and the bottom of the last one 0."""
    if row == 0:
        return "100 % "
    if row == height - 1:
        return "  0 % "
    return " 50 % " if height >= 5 and row == height // 2 else " " * _LABEL_WIDTH


def _row(shares: Sequence[float | None], row: int, height: int) -> str:
    """Return one row of the chart, from the top; a share of 0 still shows as a line."""
    floor = (height - 1 - row) * 8
    eighths = (0 if share is None else max(1, round(share * height * 8)) for share in shares)
    return "".join(_BLOCKS[max(0, min(8, count - floor))] for count in eighths)
