"""A day that a dashboard could have seen, as the frames that its history would hold."""

import time

from collm.server.dashboard.dashboard import Dashboard
from collm.server.dashboard.frames import CLUSTER, FIELDS, encode
from collm.server.dashboard.history import History

REPLICAS = ("r0", "r1")
ADAPTER = "clinc"


def show(dashboard: Dashboard) -> None:
    """Let a dashboard show that day, to which only frames by the second are added from now on."""
    history, watchers = dashboard.history, dashboard.watchers
    add, publish = history.add, watchers.publish
    slow = tuple(b'event: frame\ndata: {"tier":%d' % tier for tier in (1, 2))

    def add_seconds(tier: int, frame: bytes) -> None:
        if tier == 0:
            add(tier, frame)

    def publish_seconds(event: bytes) -> None:
        if not event.startswith(slow):
            publish(event)

    fill(history)
    history.add, watchers.publish = add_seconds, publish_seconds  # type: ignore[method-assign]


def fill(history: History) -> None:
    """Fill every tier: goodput is the share of its time that has passed, losses fall with it.

    In the middle tenth nothing is known of ``r1``, as when it was gone.
    """
    now_s = time.time()
    for number, tier in enumerate(history.tiers):
        for place in range(tier.num_frames):
            at_s = now_s - (tier.num_frames - 1 - place) * tier.period_s
            share = place / (tier.num_frames - 1)
            history.add(number, encode(_frame(at_s, share)))


def _frame(at_s: float, share: float) -> dict[str, object]:
    missing = ["r1"] if 0.45 <= share <= 0.55 else []
    names = [name for name in REPLICAS if name not in missing]
    return {
        "at": at_s,
        "rows": {name: _row(share) for name in (CLUSTER, *names)},
        "missing": missing,
        "objectives": {"ttft_s": 0.8, "tpot_s": 0.1},
        "learning": {ADAPTER: {name: _learning(share) for name in names}},
    }


def _row(share: float) -> list[float | None]:
    values = {
        "decode": 0.3, "prefill": 0.1, "train": 0.4, "evaluate": 0.05, "idle": 0.15,
        "ttft_p50": 0.2, "ttft_p95": 0.4 + share / 2, "tpot_p50": 0.04, "tpot_p95": 0.08,
        "attained": 0.97, "goodput": share, "quality_goodput": share / 2,
        "running": 4.0, "waiting": 1.0, "output_tokens": 80.0, "training_tokens": 300.0, "kv": 0.2,
    }  # fmt: skip
    return [values[name] for name in FIELDS]


def _learning(share: float) -> dict[str, object]:
    return {
        "version": f"{ADAPTER}@{1 + int(3 * share)}",
        "served": 2.0 - share,
        "shadow": 1.9 - share,
        "training": 1.8 - share,
        "served_exact": 0.6 * share,
        "shadow_exact": 0.65 * share,
        "step": int(1000 * share),
        "done": None,
        "status": "running",
        "tokens": int(1e6 * share),
    }
