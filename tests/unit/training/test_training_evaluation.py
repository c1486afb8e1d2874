"""Trials of a job's shadow: what is handed out, what is refused, and what starts over."""

import math
from dataclasses import replace

import pytest
import torch

from collm.clock import ManualClock
from collm.gate.config import GENERAL
from collm.gate.trial import Verdict
from collm.lora.state import AdapterState
from collm.model.decoder import Decoder
from collm.pacing.quanta import COMPARING, Quantum, QuantumKind
from collm.training.events import JobFinished, ShadowReset, TrainingEvent
from collm.training.job import Job
from collm.training.open_trial import OpenTrial
from collm.training.samples import TokenSample
from collm.training.trainer import Trainer
from factories.training import (
    baselines,
    evaluations,
    gate_config,
    general_samples,
    job_config,
    lessons,
    make_corpus,
    make_job,
    make_samples,
    mean_loss,
    random_state,
    run_quanta,
    run_until,
    sample_losses,
    steps,
    take_snapshot,
    taught_state,
    tiny_decoder,
)

RIGHT, WRONG = (5, 6, 7, 8), (15, 16, 17, 18)
TRAINING = lessons(60, RIGHT, seed=1)
HELD_OUT = lessons(6, RIGHT, seed=2)
QUICK = {"learning_rate": 5e-3, "evaluate_every": 3}
WHOLE = gate_config(min_samples=6, min_slice_samples=6)
"""Looks at all of ``HELD_OUT`` before it decides."""


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    return tiny_decoder(tmp_path_factory.mktemp("evaluation"), "mistral")


def trainer_of(*jobs: Job) -> Trainer:
    return Trainer(jobs, ManualClock())


def resets(events: list[TrainingEvent]) -> list[ShadowReset]:
    return [event for event in events if isinstance(event, ShadowReset)]


def test_what_is_served_is_measured_first(decoder: Decoder) -> None:
    held_out = make_samples([10, 33, 15, 12], seed=2)
    start = random_state(decoder, 4)
    corpus = make_corpus(None, held_out, general_samples([20] * 30))
    trainer = trainer_of(make_job(decoder, start=start, corpus=corpus))
    events = run_until(trainer, baselines)
    (first,) = baselines(events)
    assert first.loss == pytest.approx(mean_loss(decoder, held_out, start), rel=1e-5)
    num_general = len(corpus.held_out_ids()[GENERAL])
    assert (first.step, first.num_samples) == (0, 4 + num_general)
    assert num_general > 0
    assert events == [first]


def test_a_candidate_is_what_was_evaluated_and_is_better(decoder: Decoder) -> None:
    job = make_job(decoder, job_config(**QUICK), training=TRAINING, held_out=HELD_OUT, gate=WHOLE)
    events = run_until(trainer_of(job), steps(24))
    (first,), later = baselines(events), evaluations(events)
    served = first.loss
    for report in later:
        assert report.num_samples == len(HELD_OUT)
        assert report.active_loss == pytest.approx(served, rel=1e-6)
        assert (report.candidate is not None) is (report.report.verdict is Verdict.BETTER)
        if report.candidate is not None:
            measured = mean_loss(decoder, HELD_OUT, report.candidate)
            assert report.loss == pytest.approx(measured, rel=1e-5)
            assert report.loss < served
            served = report.loss
    assert sum(report.candidate is not None for report in later) >= 2
    assert not resets(events)


def run_trial(trainer: Trainer) -> list[Quantum]:
    """Run one evaluation of the shadow from its first quantum; return its quanta."""
    run_quanta(trainer, lambda q: q.kind is QuantumKind.STAGE)
    kinds = {QuantumKind.FORWARD, QuantumKind.SNAPSHOT}
    return run_quanta(trainer, lambda q: q.kind in kinds)


def test_losses_that_are_known_are_not_measured_again(decoder: Decoder) -> None:
    """Neither those of the first measurement nor those of a candidate that was handed out."""
    gate = replace(WHOLE, rotate_share=0.0)
    job = make_job(decoder, job_config(**QUICK), training=TRAINING, held_out=HELD_OUT, gate=gate)
    trainer = trainer_of(job)
    run_until(trainer, baselines)
    for _ in range(3):
        quanta = run_trial(trainer)
        passes = [q for q in quanta if q.kind is QuantumKind.EVALUATE_FORWARD and q.index == 0]
        rows = sum(q.size for q in passes)
        assert rows == sum(sample.num_rows for sample in HELD_OUT)


def read_ids(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which every sample that a trial counts adds its id."""
    seen: list[str] = []
    count = OpenTrial.add

    def counted(trial: OpenTrial, sample: TokenSample, active_loss: float) -> None:
        seen.append(sample.sample_id)
        count(trial, sample, active_loss)

    monkeypatch.setattr(OpenTrial, "add", counted)
    return seen


def test_held_out_samples_take_turns(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    held_out = lessons(24, RIGHT, seed=2)
    gate = gate_config(min_samples=6, max_samples=6, rotate_share=0.5, error=1e-9)
    config = job_config(micro_batch_tokens=80, tokens_per_step=160, **QUICK)
    job = make_job(decoder, config, training=TRAINING, held_out=held_out, gate=gate)
    trainer, read, seen = trainer_of(job), read_ids(monkeypatch), []
    for _ in range(8):
        run_until(trainer, evaluations)
        seen.append(frozenset(read))
        read.clear()
    assert len(frozenset.union(*seen)) == 24
    assert all(a & b for a, b in zip(seen, seen[1:], strict=False)), "some stay"


def test_flipped_labels_are_refused_and_the_shadow_starts_over(decoder: Decoder) -> None:
    """What is served knows the right answer; the data teaches a wrong one."""
    start = taught_state(decoder, RIGHT)
    gate = gate_config(max_worse=2)
    job = make_job(
        decoder,
        job_config(**QUICK),
        start=start,
        training=lessons(60, WRONG, seed=1),
        held_out=lessons(20, RIGHT, seed=2),
        gate=gate,
    )
    events = run_until(trainer_of(job), resets)
    reports = evaluations(events)
    assert not any(report.candidate for report in reports)
    assert [r.report.verdict for r in reports[-2:]] == [Verdict.WORSE] * 2
    (reset,) = resets(events)
    assert reset.step == reports[-1].step
    assert "2 evaluations in a row" in reset.reason
    assert torch.equal(job._state.shadow.state().flat, start.flat)
    assert not job._state.optimizer.mean.any()


def test_better_on_average_but_worse_on_one_slice_is_refused(decoder: Decoder) -> None:
    start = taught_state(decoder, WRONG)
    slices = [lessons(8, RIGHT, seed=2 + i, slice=f"domain {i}") for i in range(3)]
    forgotten = lessons(8, WRONG, seed=9, slice="before")
    job = make_job(
        decoder,
        job_config(**QUICK),
        start=start,
        training=TRAINING,
        held_out=[sample for held_out in (*slices, forgotten) for sample in held_out],
        gate=gate_config(min_samples=32, min_slice_samples=8, slice_share=0.0),
    )
    reports = evaluations(run_until(trainer_of(job), steps(20)))
    assert reports
    worse_slice = [r for r in reports if r.report.verdict is Verdict.SLICE_WORSE]
    assert worse_slice
    assert any(r.loss < r.active_loss for r in worse_slice)
    assert not any(r.candidate for r in reports)
    sums = worse_slice[-1].report.slices["before"]
    assert sums.sum_d / sums.n > sums.bound


def test_forgotten_general_text_is_a_reason_to_refuse(decoder: Decoder) -> None:
    start = taught_state(decoder, WRONG)
    general = lessons(60, WRONG, seed=9, slice=GENERAL)
    corpus = make_corpus(TRAINING, lessons(24, RIGHT, seed=2), general)
    job = make_job(
        decoder,
        job_config(replay_share=0.0, **QUICK),
        start=start,
        corpus=corpus,
        gate=gate_config(min_samples=12),
    )
    reports = evaluations(run_until(trainer_of(job), steps(20)))
    assert any(r.report.verdict is Verdict.SLICE_WORSE for r in reports)
    assert not any(r.candidate for r in reports)


def test_a_loss_that_is_not_finite_starts_the_shadow_over(decoder: Decoder) -> None:
    job = make_job(decoder, job_config(**QUICK), training=TRAINING, held_out=HELD_OUT)
    trainer = trainer_of(job)
    run_until(trainer, lambda e: evaluations(e) and evaluations(e)[-1].candidate)
    served = job._examiner.served
    huge = torch.full_like(job._state.shadow.parameters, 1e30)  # finite, but not what it computes
    job._state.shadow.load_parameters(huge)
    events = run_until(trainer, resets)
    (broken,) = evaluations(events)
    assert broken.report.verdict is Verdict.NOT_FINITE
    assert broken.candidate is None
    assert torch.equal(job._state.shadow.state().flat, served.flat)
    later = evaluations(run_until(trainer, steps(12)))
    assert later
    assert all(math.isfinite(report.loss) for report in later)


def test_parameters_that_are_not_finite_start_the_shadow_over(decoder: Decoder) -> None:
    """At the next step, for every gradient is NaN from then on."""
    job = make_job(decoder, training=TRAINING, held_out=HELD_OUT)
    trainer = trainer_of(job)
    run_until(trainer, steps(1))
    job._state.shadow.load_parameters(torch.full_like(job._state.shadow.parameters, math.inf))
    events = run_until(trainer, resets)
    assert resets(events)[0].step == 2
    assert job._state.is_finite
    run_until(trainer, steps(2))
    assert job._state.is_finite


@pytest.mark.parametrize("learning_rate", [3.0, 1e4, 1e30])
def test_an_exploding_learning_rate_ends_in_a_reset_and_never_in_a_candidate(
    decoder: Decoder, learning_rate: float
) -> None:
    start = taught_state(decoder, RIGHT)
    config = job_config(learning_rate=learning_rate, evaluate_every=1)
    job = make_job(
        decoder, config, start=start, training=TRAINING, held_out=lessons(20, RIGHT, seed=2)
    )
    events = run_until(trainer_of(job), lambda e: len(resets(e)) >= 2)
    assert not any(report.candidate for report in evaluations(events))
    assert torch.equal(job._state.shadow.state().flat, start.flat)


def test_a_served_version_that_is_broken_is_beaten_by_anything(decoder: Decoder) -> None:
    job = make_job(decoder, job_config(evaluate_every=1), training=TRAINING, held_out=HELD_OUT)
    trainer = trainer_of(job)
    start = job._state.shadow.state()
    job._examiner.serve(AdapterState(start.layout, torch.full_like(start.flat, math.nan)))
    events = run_until(trainer, evaluations)
    (report,) = evaluations(events)
    assert report.candidate is not None
    assert [b.loss for b in baselines(events)] == [math.inf]


def test_a_restored_shadow_must_beat_what_is_served_now(decoder: Decoder) -> None:
    """A version published after the checkpoint is better than the checkpoint's shadow."""
    config = job_config(**QUICK)
    trainer = trainer_of(
        make_job(decoder, config, training=TRAINING, held_out=HELD_OUT, gate=WHOLE)
    )
    run_until(trainer, steps(2))
    snapshot = take_snapshot(trainer)
    published = taught_state(decoder, RIGHT)
    job = make_job(
        decoder, config, start=published, training=TRAINING, held_out=HELD_OUT, gate=WHOLE
    )
    job.restore(snapshot.tensors, snapshot.meta)
    (report,) = evaluations(run_until(trainer_of(job), evaluations))
    served = mean_loss(decoder, HELD_OUT, published)
    assert report.active_loss == pytest.approx(served, rel=1e-5)
    assert report.loss > report.active_loss
    assert report.candidate is None


def test_a_removed_held_out_sample_is_not_judged_by(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_out = lessons(30, RIGHT, seed=2)
    config = job_config(**QUICK)
    gate = gate_config(min_samples=20, error=1e-6)
    job = make_job(decoder, config, training=TRAINING, held_out=held_out, gate=gate)
    trainer, read = trainer_of(job), read_ids(monkeypatch)
    run_until(trainer, baselines)
    run_quanta(trainer, lambda q: q.kind is QuantumKind.STAGE)
    gone = {sample.sample_id for sample in held_out[:20]}
    for sample_id in gone:
        assert trainer.remove_sample("a", sample_id)
    (report,) = evaluations(run_until(trainer, evaluations))
    assert report.num_samples == 10
    assert len(read) == 10
    assert not gone & set(read)


def test_evaluations_keep_to_their_share_of_what_was_learned(decoder: Decoder) -> None:
    held_out = lessons(80, RIGHT, seed=2)
    gate = gate_config(evaluation_share=0.2, min_samples=10, error=1e-9)
    job = make_job(
        decoder, job_config(evaluate_every=1), training=TRAINING, held_out=held_out, gate=gate
    )
    trainer = trainer_of(job)
    # The initial grant pays for measuring what is served, and as much again for the first trial.
    ran = run_quanta(trainer, lambda q: q.kind is QuantumKind.FORWARD)
    granted = sum(q.size for q in ran if q.kind is QuantumKind.EVALUATE_FORWARD and q.index == 0)
    learned = evaluated = num_trials = 0
    for _ in range(6_000):
        quantum = trainer.peek()
        assert quantum is not None
        first = quantum.index == 0
        learned += quantum.size * (quantum.kind is QuantumKind.FORWARD and first)
        evaluated += quantum.size * (quantum.kind is QuantumKind.EVALUATE_FORWARD and first)
        num_trials += len(evaluations(list(trainer.run(quantum))))
        # A micro-batch that is under way counts as learned when it is complete.
        assert evaluated <= granted + 0.2 * 3 * learned + 1
    assert num_trials > 5
    assert evaluated > 0.8 * 0.2 * 3 * learned


class PricedClock(ManualClock):
    """Each quantum takes ``quantum_s``: the trainer looks before and after it."""

    quantum_s = 0.0

    def now_s(self) -> float:
        self.advance(self.quantum_s)
        return super().now_s()


def test_evaluations_keep_to_their_share_of_the_time_not_of_the_rows(decoder: Decoder) -> None:
    gate = gate_config(evaluation_share=0.2, min_samples=10, error=1e-9)
    config, held_out = job_config(evaluate_every=1), lessons(80, RIGHT, seed=2)
    clock = PricedClock()
    job = make_job(decoder, config, training=TRAINING, held_out=held_out, gate=gate)
    trainer = Trainer([job], clock)
    spent = {True: 0.0, False: 0.0}
    for number in range(20_000):
        quantum = trainer.peek()
        assert quantum is not None
        compares = quantum.kind in COMPARING
        clock.quantum_s = 0.03 if compares else 0.01  # by rows, a third would be bought
        trainer.run(quantum)
        spent[compares] += clock.quantum_s
        if number == 10_000:  # what was bought before the first times are forgiven: start anew
            spent = dict.fromkeys(spent, 0.0)
    assert 0.15 < spent[True] / spent[False] < 0.22


def test_a_trial_waits_until_enough_of_each_slice_is_affordable(decoder: Decoder) -> None:
    held_out = [s for i in range(12) for s in lessons(10, RIGHT, seed=20 + i, slice=f"domain {i}")]
    gate = gate_config(min_samples=12, min_slice_samples=6, evaluation_share=0.1)
    config = job_config(learning_rate=5e-3, evaluate_every=1)
    job = make_job(decoder, config, training=TRAINING, held_out=held_out, gate=gate)
    first, *_ = evaluations(run_until(trainer_of(job), evaluations))
    assert first.step > 1
    assert len(first.report.slices) == 12
    assert all(sums.n >= 3 for sums in first.report.slices.values())


def saving_job(decoder: Decoder, share: float = 0.1, **config: object) -> Job:
    """Return a job with less to spend at first than the proof that is asked for takes."""
    gate = gate_config(min_samples=12, error=1e-12, evaluation_share=share)
    return make_job(
        decoder,
        job_config(**({"learning_rate": 5e-3, "evaluate_every": 5} | config)),
        training=TRAINING,
        held_out=lessons(120, RIGHT, seed=20),
        gate=gate,
    )


def test_a_trial_that_runs_out_of_allowance_waits_and_goes_on_with_the_same_candidate(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, read = saving_job(decoder), read_ids(monkeypatch)
    trainer = trainer_of(job)
    run_until(trainer, lambda _: job._examiner.has_open_trial and read)
    begun_at, frozen = job.num_steps, job._examiner._open.candidate
    (report,) = evaluations(run_until(trainer, evaluations))
    assert report.step == begun_at < job.num_steps
    assert report.report.verdict is Verdict.BETTER
    assert report.candidate is frozen
    assert report.num_samples == len(read) == len(set(read))


def idle_job(decoder: Decoder) -> Job:
    """Return a job whose shadow hardly moves, with little to spend on finding that out."""
    return make_job(
        decoder,
        job_config(learning_rate=1e-9, evaluate_every=2),
        training=TRAINING,
        held_out=lessons(200, RIGHT, seed=20),
        gate=gate_config(min_samples=6, error=0.01, evaluation_share=0.02),
    )


def test_a_trial_that_gets_nowhere_makes_way_for_a_newer_candidate(decoder: Decoder) -> None:
    job = idle_job(decoder)
    trainer = trainer_of(job)
    run_until(trainer, lambda _: job._examiner.has_open_trial)
    begun_at = job.num_steps
    (report,) = evaluations(run_until(trainer, evaluations))
    assert (report.step, report.report.verdict) == (begun_at, Verdict.OVERTAKEN)
    assert report.candidate is None
    # It was left behind at the fourth evaluation that came due, two steps after each other.
    assert begun_at + 8 <= job.num_steps < begun_at + 10
    run_until(trainer, lambda _: job._examiner.has_open_trial)
    assert job._examiner._open.step > begun_at
    assert not job._examiner._open.trial.num_samples, "its evidence begins anew"


def test_a_trial_on_course_is_read_to_its_end_however_far_the_shadow_is(decoder: Decoder) -> None:
    job = saving_job(decoder, share=0.03)
    trainer = trainer_of(job)
    run_until(trainer, lambda _: job._examiner.has_open_trial)
    begun_at = job.num_steps
    (report,) = evaluations(run_until(trainer, evaluations))
    assert job.num_steps > begun_at + 20
    assert (report.step, report.report.verdict) == (begun_at, Verdict.BETTER)


def test_a_trial_that_waits_ends_with_the_version_it_was_held_against(decoder: Decoder) -> None:
    job = saving_job(decoder)
    trainer = trainer_of(job)
    run_until(trainer, lambda _: job._examiner.has_open_trial)
    trainer.reset("a", taught_state(decoder, RIGHT))
    assert not job._examiner.has_open_trial


def test_the_last_shadow_is_tried_after_a_trial_that_waited(decoder: Decoder) -> None:
    job = saving_job(decoder, total_steps=12)
    trainer = trainer_of(job)
    run_until(trainer, lambda _: job._examiner.has_open_trial)
    events = run_until(trainer, lambda e: any(isinstance(x, JobFinished) for x in e))
    waited, *_, last = evaluations(events)
    assert waited.step < last.step == 12


def test_weights_have_no_say_in_evaluations(decoder: Decoder) -> None:
    heavy = [replace(sample, weight=5.0 * (i + 1)) for i, sample in enumerate(HELD_OUT)]
    start = random_state(decoder, 4)
    trainer = trainer_of(make_job(decoder, start=start, held_out=heavy))
    (first,) = baselines(run_until(trainer, baselines))
    assert first.loss == pytest.approx(mean_loss(decoder, HELD_OUT, start), rel=1e-5)
    assert sample_losses(decoder, heavy, start) == sample_losses(decoder, HELD_OUT, start)
