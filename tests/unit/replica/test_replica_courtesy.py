"""Long work gives way while requests are served, and ends when nobody wants it."""

import pytest

from collm.replica import courtesy
from collm.replica.courtesy import Courtesy, StoppedError


class Rests:
    """Takes the place of the event that the work rests on; remembers how long."""

    def __init__(self):
        self.waited = []

    def wait(self, seconds):
        self.waited.append(seconds)

    def is_set(self):
        return False


@pytest.fixture
def clock(monkeypatch):
    now_s = [0.0]
    monkeypatch.setattr(courtesy.time, "perf_counter", lambda: now_s[0])
    return now_s


def work(pace, clock, seconds, num_items):
    rests = pace._has_stopped = Rests()
    for _ in pace.spaced(range(num_items)):
        clock[0] += seconds
    return rests.waited


def test_work_rests_for_four_times_as_long_while_requests_run(clock):
    waited = work(Courtesy(lambda: True), clock, 0.005, 3)
    assert waited == pytest.approx([0.02] * 3)


def test_short_pieces_of_work_rest_together(clock):
    waited = work(Courtesy(lambda: True), clock, 0.0004, 9)
    assert waited == pytest.approx([0.0048] * 3)


def test_work_does_not_rest_while_nobody_waits(clock):
    assert work(Courtesy(lambda: False), clock, 0.005, 3) == []


def test_stopped_work_ends_at_its_next_step():
    pace = Courtesy(lambda: False)
    items = pace.spaced(range(10))
    assert [next(items), next(items)] == [0, 1]
    pace.stop()
    with pytest.raises(StoppedError):
        next(items)
