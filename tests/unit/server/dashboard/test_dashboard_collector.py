import asyncio
import json

from collm.clock import ManualClock
from collm.server.dashboard.collector import Collector
from collm.server.dashboard.history import History, Tier
from collm.server.dashboard.watchers import Watchers
from factories.figures import figures

TIERS = (Tier(1.0, 100), Tier(10.0, 100))


class Source:
    """Replicas that each show what they are told to."""

    def __init__(self, **shown):
        self.shown = shown

    async def figures(self):
        return {name: show() for name, show in self.shown.items()}


class Scene:
    def __init__(self, tiers=TIERS):
        self.clock = ManualClock(50.0)
        self.source = Source(r0=lambda: figures(self.clock.now_s()))
        self.history = History(tiers)
        self.watchers = Watchers()
        self.collector = Collector(
            self.source, self.history, self.watchers, self.clock, lambda: 1e9 + self.clock.now_s()
        )

    def collect(self, seconds, step_s=1.0):
        async def collect():
            for _ in range(round(seconds / step_s)):
                self.clock.advance(step_s)
                await self.collector.collect()

        asyncio.run(collect())

    def frames(self, tier):
        return json.loads(self.history.encoded())["tiers"][tier]["frames"]


def test_every_tier_gets_a_frame_each_period():
    scene = Scene()
    scene.collect(40)
    assert len(scene.frames(0)) == 40
    assert len(scene.frames(1)) == 4
    assert scene.frames(0)[-1]["at"] == 1e9 + 90.0
    assert set(scene.frames(1)[-1]["rows"]) == {"", "r0"}


def test_first_frames_have_no_row_for_lack_of_a_second_reading():
    scene = Scene()
    scene.collect(1)
    assert scene.frames(0)[0]["rows"] == {}


def test_collecting_late_leaves_frames_out_and_does_not_catch_up_in_a_burst():
    scene = Scene()
    scene.collect(5)
    scene.collect(30, step_s=30.0)
    scene.collect(3)
    assert len(scene.frames(0)) == 5 + 1 + 3


def test_silent_replica_is_missing_and_comes_back_by_itself():
    scene = Scene()
    scene.source.shown["r1"] = lambda: None
    scene.collect(3)
    assert scene.frames(0)[-1]["missing"] == ["r1"]
    scene.source.shown["r1"] = scene.source.shown["r0"]
    scene.collect(2)
    assert scene.frames(0)[-1]["missing"] == []
    assert "r1" in scene.frames(0)[-1]["rows"]


def test_replica_that_left_is_neither_shown_nor_missing():
    scene = Scene()
    scene.source.shown["r1"] = scene.source.shown["r0"]
    scene.collect(3)
    del scene.source.shown["r1"]
    scene.collect(1)
    last = scene.frames(0)[-1]
    assert "r1" not in last["rows"]
    assert last["missing"] == []


def test_replica_whose_figures_stand_still_is_not_shown_as_if_all_were_well():
    scene = Scene()
    stuck = figures(60.0)
    scene.collect(3)
    scene.source.shown["r0"] = lambda: stuck
    scene.collect(5)
    assert scene.frames(0)[-1]["missing"] == []  # a long step
    scene.collect(15)
    assert scene.frames(0)[-1]["missing"] == ["r0"]


def test_replica_of_an_older_form_is_missing_and_harms_no_other():
    scene = Scene()
    scene.source.shown["old"] = lambda: {"num_running": 0}
    scene.collect(3)
    last = scene.frames(0)[-1]
    assert last["missing"] == ["old"]
    assert "r0" in last["rows"]


def test_frames_are_encoded_once_however_many_watch():
    scene = Scene()
    with scene.watchers.joined() as one, scene.watchers.joined() as other:
        scene.collect(1)
        first = asyncio.run(one.next(1.0))
        assert asyncio.run(other.next(1.0)) is first
    assert first.startswith(b'event: frame\ndata: {"tier":0,"frame":{"at":')
    assert first.endswith(b"}\n\n")


def test_a_source_that_fails_is_asked_again_the_next_second():
    scene, num_asked = Scene(), []

    async def failing():
        num_asked.append(1)
        if len(num_asked) == 1:
            raise RuntimeError("once")
        return {}

    scene.source.figures = failing

    async def run():
        task = asyncio.create_task(scene.collector.run())
        while len(num_asked) < 2:
            scene.clock.advance(1.0)
            await asyncio.sleep(0)
            if task.done():
                break
            await asyncio.sleep(0.01)
        task.cancel()
        return task

    task = asyncio.run(run())
    assert task.cancelled() or not task.done()
    assert len(num_asked) >= 2
