"""Figures as the demo writes them."""


def clock_text(now_s: float) -> str:
    """Return minutes and seconds."""
    return f"{int(now_s) // 60}:{int(now_s) % 60:02d}"


def percent(share: float | None) -> str:
    """Return a share in per cent."""
    return "–" if share is None else f"{share:.1%}".replace("%", " %")


def seconds(value: float | None) -> str:
    """Return seconds with unit."""
    return "–" if value is None else f"{value:.2f} s"


def milliseconds(value: float | None) -> str:
    """Return seconds as milliseconds with unit."""
    return "–" if value is None else f"{value * 1e3:.0f} ms"


def number(value: float | None) -> str:
    """Return a whole number with thousands marked."""
    return "–" if value is None else f"{value:,.0f}"


def loss_text(value: float | None) -> str:
    """Return a loss in nats per token."""
    return "–" if value is None else f"{value:.3f}"
