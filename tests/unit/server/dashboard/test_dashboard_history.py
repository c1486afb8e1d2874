import json
import tracemalloc

from collm.server.dashboard.frames import FIELDS
from collm.server.dashboard.history import TIERS, History, Tier


def test_each_tier_keeps_its_latest_frames():
    history = History((Tier(1.0, 2), Tier(10.0, 3)))
    for number in range(5):
        history.add(0, b'{"at":%d}' % number)
    history.add(1, b'{"at":0}')
    seen = json.loads(history.encoded())
    assert seen["fields"] == list(FIELDS)
    assert [tier["period_s"] for tier in seen["tiers"]] == [1, 10]
    assert seen["tiers"][0]["frames"] == [{"at": 3}, {"at": 4}]
    assert seen["tiers"][1]["frames"] == [{"at": 0}]


def test_a_day_and_more_is_covered_at_falling_resolution():
    assert [tier.period_s for tier in TIERS] == sorted(tier.period_s for tier in TIERS)
    assert TIERS[-1].period_s * TIERS[-1].num_frames >= 24 * 3600


def test_memory_is_flat_once_the_tiers_are_full():
    history = History()
    frame = b"x" * 500

    def fill(num_frames):
        for _ in range(num_frames):
            for tier in range(len(TIERS)):
                history.add(tier, bytes(frame))

    tracemalloc.start()
    try:
        fill(1500)
        before, _ = tracemalloc.get_traced_memory()
        num_bytes = history.num_bytes
        fill(5000)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert history.num_bytes == num_bytes == 500 * sum(tier.num_frames for tier in TIERS)
    assert abs(after - before) < 50_000
