"""Rounds as the step loop carries them out, with real training and a clock of the test's."""

from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace

import pytest

from collm.clock import ManualClock
from collm.errors import RoundError, UnknownObjectError
from collm.federated.rounds import GatePlan, Progress, RoundPlan
from collm.gate.trial import PairedLoss
from collm.replica.inbox import CompareVersions, FinishRound, StartRound
from collm.replica.round_board import RoundBoard
from collm.replica.round_member import RoundMember
from collm.replica.swap import Cause, Swap
from collm.training.events import Compared, RoundFailed, RoundTrained
from collm.types import BASE, VersionId

DIGEST = "a" * 64
STATE = object()


class ScriptedJob:
    """Remembers what it was asked."""

    has_samples = True
    has_held_out = True

    def __init__(self):
        self.num_hurries = 0
        self.comparisons = []

    def finish_round(self):
        self.num_hurries += 1

    def compare(self, comparison):
        self.comparisons.append(comparison)


class ScriptedTrainer:
    def __init__(self):
        self.jobs = {"a": ScriptedJob()}
        self.paused = set()
        self.calls = []

    def learns_together(self, adapter):
        return adapter in self.jobs

    def is_paused(self, adapter):
        return adapter in self.paused

    def together(self, adapter):
        return self.jobs[adapter]

    def begin_round(self, *call):
        self.calls.append(call)
        return ()

    def cut_round(self, adapter):
        return [trained(1, is_complete=False)]

    def adopt(self, adapter, base):
        self.calls.append(("adopt", base.version, base.members))
        return ()

    def revert(self, adapter, base):
        self.calls.append(("revert", base and base.version))
        return ()


def trained(number, **changes):
    values = {
        "adapter": "a",
        "number": number,
        "base": VersionId("a@1"),
        "state": STATE,
        "num_examples": 3,
        "num_tokens": 40,
        "loss_before": 2.0,
        "loss_after": 1.0,
        "error_before": 0.4,
        "error_after": 0.3,
        "num_measured": 5,
        "is_complete": True,
    }
    return RoundTrained(**(values | changes))


class World:
    def __init__(self):
        self.clock = ManualClock()
        self.board = RoundBoard()
        self.trainer = ScriptedTrainer()
        self.written = []
        self.outcome = DIGEST
        archive = SimpleNamespace(save_update=self._save_update)
        self.member = RoundMember("r0", self.trainer, archive, self.board, self.clock)

    def _save_update(self, adapter, number, member, state, then):
        self.written.append((adapter, number, member, state))
        then(self.outcome)

    def ask(self, message):
        for event in self.member.receive(message):
            self.member.handle(event)
        return message.reply.result(0)

    def start(self, number=1, adapter="a", deadline_s=10.0):
        plan = RoundPlan(
            adapter=adapter,
            round=number,
            members=("r0",),
            base_version=None,
            max_tokens=100,
            deadline_s=deadline_s,
        )
        self.ask(StartRound(plan=plan, base=None, reply=Future()))

    def compare(self, number=1, adapter="a"):
        plan = GatePlan(
            adapter=adapter, round=number, candidate=f"a@{number}", active=None, max_samples=9
        )
        self.ask(CompareVersions(plan=plan, candidate=STATE, active=None, reply=Future()))

    def tend(self):
        for event in self.member.tend():
            self.member.handle(event)

    @property
    def job(self):
        return self.trainer.jobs["a"]


@pytest.fixture
def world():
    return World()


def test_a_round_trains_and_reports_what_was_written(world):
    world.start()
    assert world.trainer.calls == [("a", 1, 100, None)]
    assert world.board.round(("a", 1)) == Progress()
    world.member.handle(trained(1))
    assert world.written == [("a", 1, "r0", STATE)]
    report = world.board.round(("a", 1)).report
    assert (report.member, report.base_version, report.digest) == ("r0", "a@1", DIGEST)
    assert (report.num_examples, report.num_tokens, report.is_complete) == (3, 40, True)


def test_a_repeated_start_changes_nothing(world):
    world.start()
    world.start()
    world.member.handle(trained(1))
    world.start()
    assert len(world.trainer.calls) == 1
    assert world.board.round(("a", 1)).report is not None


def test_an_update_that_cannot_be_written_fails_the_round(world):
    world.outcome = OSError("disk full")
    world.start()
    world.member.handle(trained(1))
    assert "disk full" in world.board.round(("a", 1)).error


def test_at_the_deadline_the_job_is_hurried(world):
    world.start(deadline_s=10.0)
    world.clock.advance(9.9)
    world.tend()
    assert world.job.num_hurries == 0
    world.clock.advance(0.2)
    world.tend()
    assert world.job.num_hurries == 1
    world.member.handle(trained(1))
    world.tend()
    assert world.job.num_hurries == 1


def test_finish_hurries_a_known_round_alone(world):
    world.start()
    world.ask(FinishRound(adapter="a", number=1, reply=Future()))
    assert world.job.num_hurries == 1
    world.member.handle(trained(1))
    world.ask(FinishRound(adapter="a", number=1, reply=Future()))
    assert world.job.num_hurries == 1
    with pytest.raises(UnknownObjectError):
        world.ask(FinishRound(adapter="a", number=2, reply=Future()))


def test_a_late_round_s_end_does_not_end_the_next(world):
    world.start(1)
    world.start(2)
    world.member.handle(trained(1))
    world.clock.advance(11.0)
    world.tend()
    assert world.job.num_hurries == 1
    assert world.board.round(("a", 2)) == Progress()


def test_who_cannot_learn_does_not_take_part(world):
    with pytest.raises(RoundError, match="no job"):
        world.start(adapter="b")
    world.job.has_samples = False
    with pytest.raises(RoundError, match="no samples"):
        world.start()
    world.trainer.paused.add("a")
    with pytest.raises(RoundError, match="paused"):
        world.start()
    assert world.board.round(("a", 1)) is None


def test_a_job_that_ends_fails_its_round_and_its_comparison(world):
    world.start()
    world.compare()
    del world.trainer.jobs["a"]
    world.tend()
    assert "no job" in world.board.round(("a", 1)).error
    assert "no job" in world.board.gate(("a", 1)).error


def test_a_pause_lets_a_round_report_what_it_has(world):
    world.start()
    world.trainer.paused.add("a")
    world.tend()
    report = world.board.round(("a", 1)).report
    assert not report.is_complete


def test_a_round_that_failed_says_why(world):
    world.start()
    world.member.handle(RoundFailed(adapter="a", number=1, reason="not finite"))
    assert world.board.round(("a", 1)) == Progress(error="not finite")


def pair(slice_name, active, candidate):
    return PairedLoss(sample_id="s", slice=slice_name, active=active, candidate=candidate)


def test_a_comparison_is_summed_by_slice_without_what_is_not_finite(world):
    world.compare()
    assert world.board.gate(("a", 1)) == Progress()
    pairs = (
        pair("x", 2.0, 1.5),
        pair("x", 2.0, 2.5),
        pair("general", 1.0, float("nan")),
        pair("general", float("inf"), 1.0),
    )
    world.member.handle(Compared(adapter="a", number=1, pairs=pairs))
    report = world.board.gate(("a", 1)).report
    assert report.member == "r0"
    assert report.num_not_finite == 1
    assert {name: (s.n, s.sum_d, s.sum_d2) for name, s in report.slices.items()} == {
        "x": (2, 0.0, 0.5),
        "general": (0, 0.0, 0.0),
    }


def test_a_newer_candidate_takes_the_place_of_one_that_waits(world):
    world.compare(1)
    world.compare(2)
    world.compare(2)
    assert [comparison.number for comparison in world.job.comparisons] == [1, 2]
    assert "took its place" in world.board.gate(("a", 1)).error
    assert world.board.gate(("a", 2)) == Progress()


def swap(version, cause, previous=None, **metadata):
    return Swap(
        adapter="a",
        version=VersionId(version),
        state=STATE,
        cause=cause,
        previous=previous,
        metadata=metadata,
    )


@pytest.mark.parametrize(
    ("version", "previous", "cause", "call"),
    [
        ("a@2", "a@1", Cause.BROUGHT, ("adopt", "a@2", frozenset({"r0", "r1"}))),
        ("a@2", None, Cause.BROUGHT, ("adopt", "a@2", frozenset({"r0", "r1"}))),
        ("a@1", "a@2", Cause.RETURNED, ("revert", "a@1")),
        # The coordinator took a version back: it promotes the one before.
        ("a@1", "a@2", Cause.BROUGHT, ("revert", "a@1")),
        ("a@1", "a@1.r0.1", Cause.BROUGHT, ("adopt", "a@1", frozenset({"r0", "r1"}))),
    ],
)
def test_training_follows_what_is_served(world, version, previous, cause, call):
    assert world.member.follow(swap(version, cause, previous, members="r0, r1")) == ()
    assert world.trainer.calls == [call]


def test_training_begins_afresh_when_the_first_version_is_taken_back(world):
    returned = replace(swap(BASE, Cause.RETURNED, VersionId("a@1")), state=None)
    assert world.member.follow(returned) == ()
    assert world.trainer.calls == [("revert", None)]


def test_an_adapter_that_learns_alone_is_none_of_its_business(world):
    world.trainer.jobs.clear()
    assert world.member.follow(swap("a@2", Cause.BROUGHT)) is None
