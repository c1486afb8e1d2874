"""A promoted version is watched on fresh feedback."""

import pytest

from collm.clock import ManualClock
from collm.lora.state import AdapterState, initial_state
from collm.model.decoder import Decoder
from collm.training.feedback_watch import FeedbackWatch
from collm.training.trainer import Trainer
from collm.types import BASE, VersionId
from factories.training import (
    RIGHT_ANSWER,
    gate_config,
    job_config,
    lessons,
    make_job,
    make_watches,
    mean_loss,
    regressions,
    run_until,
    steps,
)

ONE, TWO = VersionId("a@1"), VersionId("a@2")
FEEDBACK = lessons(40, RIGHT_ANSWER, seed=33)


def trainer_on(decoder: Decoder, start: AdapterState, **gate: float) -> Trainer:
    job = make_job(
        decoder,
        job_config(),
        start=start,
        training=lessons(30, RIGHT_ANSWER, seed=1),
        held_out=lessons(20, RIGHT_ANSWER, seed=2),
        gate=gate_config(**gate),
    )
    trainer = Trainer([job], ManualClock())
    run_until(trainer, steps(6))
    return trainer


def watch_over(
    decoder: Decoder,
    version: VersionId,
    state: AdapterState,
    previous: VersionId | None,
    previous_state: AdapterState | None,
) -> FeedbackWatch:
    return make_watches(decoder).over("a", version, state, previous, previous_state, is_joint=False)


def test_a_version_that_is_worse_on_feedback_regresses_once(
    decoder: Decoder, right: AdapterState, wrong: AdapterState
) -> None:
    trainer = trainer_on(decoder, wrong)
    trainer.watch("a", watch_over(decoder, TWO, wrong, ONE, right))
    trainer.add_samples("a", FEEDBACK)
    (found,) = regressions(run_until(trainer, steps(10)))
    assert found.adapter == "a"
    numbers = found.numbers
    assert (numbers["active"], numbers["previous"]) == (TWO, ONE)
    assert numbers["active_loss"] > numbers["previous_loss"] + 1.0
    trainer.add_samples("a", lessons(40, RIGHT_ANSWER, seed=34))
    assert not regressions(run_until(trainer, steps(10)))


def test_the_numbers_are_those_of_the_feedback(
    decoder: Decoder, right: AdapterState, wrong: AdapterState
) -> None:
    trainer = trainer_on(decoder, wrong)
    trainer.watch("a", watch_over(decoder, TWO, wrong, ONE, right))
    trainer.add_samples("a", FEEDBACK[:3])
    run_until(trainer, steps(2))
    watch = trainer._jobs["a"]._watch
    assert watch is not None
    numbers = watch.numbers()
    assert numbers["num_samples"] == 3
    assert numbers["active_loss"] == pytest.approx(
        mean_loss(decoder, FEEDBACK[:3], wrong), rel=1e-5
    )
    assert numbers["previous_loss"] == pytest.approx(
        mean_loss(decoder, FEEDBACK[:3], right), rel=1e-5
    )


def test_a_version_that_holds_up_does_not_regress(
    decoder: Decoder, right: AdapterState, wrong: AdapterState
) -> None:
    for active, previous in ((right, wrong), (right, right)):
        trainer = trainer_on(decoder, active)
        trainer.watch("a", watch_over(decoder, TWO, active, ONE, previous))
        trainer.add_samples("a", FEEDBACK)
        assert not regressions(run_until(trainer, steps(12)))


def test_a_first_version_is_watched_against_the_base(decoder: Decoder, right: AdapterState) -> None:
    worse = AdapterState(right.layout, right.flat.clone())
    for factors in worse.layout.views(worse.flat):
        factors.b.neg_()  # it unlearns what is right
    trainer = trainer_on(decoder, worse)
    trainer.watch("a", watch_over(decoder, ONE, worse, None, None))
    trainer.add_samples("a", FEEDBACK)
    (found,) = regressions(run_until(trainer, steps(10)))
    assert (found.numbers["active"], found.numbers["previous"]) == (ONE, BASE)
    measured = FEEDBACK[: found.numbers["num_samples"]]
    bare = initial_state(right.layout, seed=3)
    assert found.numbers["previous_loss"] == pytest.approx(
        mean_loss(decoder, measured, bare), rel=1e-5
    )
    trainer = trainer_on(decoder, right)
    trainer.watch("a", watch_over(decoder, ONE, right, None, None))
    trainer.add_samples("a", FEEDBACK)
    assert not regressions(run_until(trainer, steps(12)))


def test_a_watch_that_was_ended_says_nothing(
    decoder: Decoder, right: AdapterState, wrong: AdapterState
) -> None:
    trainer = trainer_on(decoder, wrong)
    trainer.watch("a", watch_over(decoder, TWO, wrong, ONE, right))
    trainer.add_samples("a", FEEDBACK)
    trainer.unwatch("a")
    assert not regressions(run_until(trainer, steps(8)))


def test_removed_feedback_is_not_measured(
    decoder: Decoder, right: AdapterState, wrong: AdapterState
) -> None:
    trainer = trainer_on(decoder, wrong)
    trainer.watch("a", watch_over(decoder, TWO, wrong, ONE, right))
    trainer.add_samples("a", FEEDBACK)
    for sample in FEEDBACK[2:]:
        trainer.remove_sample("a", sample.sample_id)
    run_until(trainer, steps(3))
    watch = trainer._jobs["a"]._watch
    assert watch is not None
    assert watch.numbers()["num_samples"] == 2


def test_watching_keeps_to_the_allowance(
    decoder: Decoder, right: AdapterState, wrong: AdapterState
) -> None:
    trainer = trainer_on(decoder, wrong, evaluation_share=0.02)
    trainer.watch("a", watch_over(decoder, TWO, wrong, ONE, right))
    trainer.add_samples("a", FEEDBACK)
    run_until(trainer, steps(1))
    watch = trainer._jobs["a"]._watch
    assert watch is not None
    assert watch.num_rows_due > 0, "it waits"
