"""A promoted version stays under watch while no job of its adapter learns."""

from unittest.mock import Mock

import pytest

from collm.clock import ManualClock
from collm.lora.state import AdapterState
from collm.model.decoder import Decoder
from collm.pacing.quanta import COMPARING, Quantum, QuantumKind
from collm.training.events import TrainingEvent
from collm.training.feedback_watch import FeedbackWatch
from collm.training.job import Job
from collm.training.samples import TokenSample
from collm.training.trainer import Trainer
from collm.types import VersionId
from factories.training import (
    RIGHT_ANSWER,
    TickingClock,
    all_that_is_due,
    gate_config,
    job_config,
    lessons,
    make_job,
    make_watches,
    regressions,
    reports,
    run_quanta,
    run_until,
    steps,
)

FEEDBACK = lessons(40, RIGHT_ANSWER, seed=33)


@pytest.fixture
def watch(decoder: Decoder, right: AdapterState, wrong: AdapterState) -> FeedbackWatch:
    """Of a version that is worse than the one before it."""
    one, two = VersionId("a@1"), VersionId("a@2")
    return make_watches(decoder).over("a", two, wrong, one, right, is_joint=False)


def job_on(decoder: Decoder, start: AdapterState, adapter: str = "a") -> Job:
    return make_job(
        decoder,
        job_config(adapter),
        start=start,
        training=lessons(30, RIGHT_ANSWER, seed=1),
        held_out=lessons(20, RIGHT_ANSWER, seed=2),
        gate=gate_config(evaluation_share=0.5),
    )


def num_seen(watch: FeedbackWatch) -> int:
    return int(watch.numbers()["num_samples"])


def test_a_version_without_a_job_regresses_once(watch: FeedbackWatch) -> None:
    trainer = Trainer([], ManualClock())
    trainer.watch("a", watch)
    assert trainer.peek() is None, "nothing to measure"
    trainer.add_samples("a", FEEDBACK)
    (found,) = regressions(all_that_is_due(trainer))
    assert (found.adapter, found.numbers["active"], found.numbers["previous"]) == (
        "a",
        "a@2",
        "a@1",
    )
    trainer.add_samples("a", lessons(40, RIGHT_ANSWER, seed=34))
    assert trainer.peek() is None


def test_feedback_on_what_nobody_learns_or_watches_has_no_effect() -> None:
    trainer = Trainer([], ManualClock())
    trainer.add_samples("a", FEEDBACK)
    trainer.remove_sample("a", FEEDBACK[0].sample_id)
    assert trainer.peek() is None


def test_a_watch_outlives_its_job(
    decoder: Decoder, wrong: AdapterState, watch: FeedbackWatch
) -> None:
    trainer = Trainer([job_on(decoder, wrong)], ManualClock())
    run_until(trainer, steps(3))
    trainer.watch("a", watch)
    trainer.add_samples("a", FEEDBACK[:2])
    run_until(trainer, lambda _: num_seen(watch) == 2)
    trainer.remove("a")
    assert trainer.peek() is None
    trainer.add_samples("a", FEEDBACK[2:])
    (found,) = regressions(all_that_is_due(trainer))
    assert found.numbers["num_samples"] > 2, "what the job had found counts"


def test_a_paused_job_compares_and_learns_nothing(
    decoder: Decoder, wrong: AdapterState, watch: FeedbackWatch
) -> None:
    trainer = Trainer([job_on(decoder, wrong)], ManualClock())
    run_until(trainer, steps(2))
    trainer.watch("a", watch)
    trainer.pause("a")
    all_that_is_due(trainer)  # the snapshot
    trainer.add_samples("a", FEEDBACK)
    events: list[TrainingEvent] = []
    kinds = set()
    while (quantum := trainer.peek()) is not None:
        kinds.add(quantum.kind)
        events += trainer.run(quantum)
    assert len(regressions(events)) == 1
    assert kinds <= COMPARING | {QuantumKind.PREPARE}
    assert not reports(events)


def test_a_job_that_goes_on_or_begins_takes_the_watch_over(
    decoder: Decoder, wrong: AdapterState, watch: FeedbackWatch
) -> None:
    trainer = Trainer([job_on(decoder, wrong)], ManualClock())
    trainer.watch("a", watch)
    for take_over in (
        lambda: (trainer.pause("a"), trainer.resume("a")),
        lambda: (trainer.remove("a"), trainer.add(job_on(decoder, wrong))),
    ):
        take_over()
        before = num_seen(watch)
        trainer.add_samples("a", lessons(2, RIGHT_ANSWER, seed=before))
        run_until(trainer, lambda _, before=before: num_seen(watch) == before + 2)
        assert not trainer.is_watching, "it is the job that compares"


@pytest.mark.parametrize("when", ["paused", "ended"])
def test_samples_whose_comparing_was_cut_off_are_compared_once(
    decoder: Decoder, wrong: AdapterState, watch: FeedbackWatch, when: str
) -> None:
    trainer = Trainer([job_on(decoder, wrong)], ManualClock())
    trainer.watch("a", watch)
    samples: tuple[TokenSample, ...] = FEEDBACK[:3]
    trainer.add_samples("a", samples)
    run_until(trainer, steps(1))

    def is_amid_comparing(quantum: Quantum) -> bool:
        return quantum.kind is QuantumKind.EVALUATE_LOSS

    if not num_seen(watch):
        run_quanta(trainer, is_amid_comparing)
    trainer.pause("a") if when == "paused" else trainer.remove("a")
    trainer.add_samples("a", samples)  # a job that is being built is told of them once more
    all_that_is_due(trainer)
    assert num_seen(watch) == 3


def test_a_watch_takes_little_of_the_time_of_other_adapters_jobs(
    decoder: Decoder, wrong: AdapterState, watch: FeedbackWatch
) -> None:
    trainer = Trainer([job_on(decoder, wrong, "b")], TickingClock())
    run_until(trainer, steps(2))
    watch._watch = Mock(has_regressed=False)
    trainer.watch("a", watch)
    num_of = {"a": 0, "b": 0}
    seed = 100
    while sum(num_of.values()) < 2_000:
        if not watch.num_rows_due:
            trainer.add_samples("a", lessons(20, RIGHT_ANSWER, seed=seed))
            seed += 1
        quantum = trainer.peek()
        assert quantum is not None
        trainer.run(quantum)
        num_of[quantum.adapter] += 1
    assert 0 < num_of["a"] < 0.15 * num_of["b"]


def test_a_watch_that_fails_is_named_and_can_be_ended(watch: FeedbackWatch) -> None:
    trainer = Trainer([], ManualClock())
    trainer.watch("a", watch)
    trainer.add_samples("a", FEEDBACK[:1])
    watch.compare = Mock(side_effect=RuntimeError)  # type: ignore[method-assign]
    with pytest.raises(RuntimeError):
        trainer.peek()
    assert (trainer.turn, trainer.is_watching) == ("a", True)
    trainer.unwatch("a")
    assert trainer.peek() is None
