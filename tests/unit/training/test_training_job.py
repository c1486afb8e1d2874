import math
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from collm.clock import ManualClock
from collm.errors import ConfigError
from collm.lora.state import AdapterState
from collm.model.decoder import Decoder
from collm.pacing.quanta import QuantumKind, optimizer_quanta
from collm.training import job as job_module
from collm.training.events import TrainingSnapshot
from collm.training.job import Job
from collm.training.trainer import Trainer
from factories.training import (
    FixedSizes,
    evaluations,
    job_config,
    make_job,
    make_samples,
    mean_loss,
    random_state,
    reports,
    run_quanta,
    run_until,
    steps,
    take_snapshot,
    tiny_decoder,
)

POISON = 7
"""A token that no sample has by itself."""


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    return tiny_decoder(tmp_path_factory.mktemp("job"), "mistral")


@pytest.fixture
def by_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every layer be an optimizer quantum of its own."""
    monkeypatch.setattr(job_module, "_OPTIMIZER_PARAMETERS", 1)


def trainer_of(*jobs: Job) -> Trainer:
    return Trainer(jobs, ManualClock())


def test_accumulated_micro_batches_equal_one_large_batch(decoder: Decoder) -> None:
    """After Adam's step; float32 sums in another order."""
    samples = make_samples([15] * 8, seed=3)
    start = random_state(decoder, 4)
    after = []
    for micro_batch_tokens in (120, 30):
        config = job_config(tokens_per_step=120, micro_batch_tokens=micro_batch_tokens)
        trainer = trainer_of(make_job(decoder, config, start=start, training=samples))
        (report,) = reports(run_until(trainer, steps(1)))
        assert (report.num_samples, report.num_tokens) == (8, 120)
        after.append((report, take_snapshot(trainer).tensors["parameters"]))
    (whole, whole_parameters), (pieces, pieces_parameters) = after
    assert pieces.loss == pytest.approx(whole.loss, rel=1e-5)
    assert pieces.grad_norm == pytest.approx(whole.grad_norm, rel=1e-4)
    assert_close(pieces_parameters, whole_parameters, atol=1e-5, rtol=0.0)


def test_a_step_is_normalized_by_supervised_tokens(decoder: Decoder) -> None:
    samples = make_samples([15] * 4, seed=3)
    config = job_config(tokens_per_step=60, micro_batch_tokens=30)
    trainer = trainer_of(make_job(decoder, config, training=samples))
    (report,) = reports(run_until(trainer, steps(1)))
    start = make_job(decoder, config)._shadow.state()
    assert report.loss == pytest.approx(mean_loss(decoder, samples, start), rel=1e-5)


def test_optimizer_quanta_come_in_the_stated_order(decoder: Decoder, by_layer: None) -> None:
    job = make_job(decoder)
    trainer = trainer_of(job)
    run_quanta(trainer, lambda q: q.kind is QuantumKind.OPTIMIZER)
    done = run_quanta(trainer, lambda q: q.kind is not QuantumKind.OPTIMIZER)
    layer_size = job._shadow.layout.num_parameters // 2
    assert tuple(done) == optimizer_quanta(2, layer_size, 1, "a")


def test_pieces_of_a_step_change_nothing(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    after = []
    for limit in (1_000_000, 1):
        monkeypatch.setattr(job_module, "_OPTIMIZER_PARAMETERS", limit)
        trainer = trainer_of(make_job(decoder))
        run_until(trainer, steps(3))
        after.append(take_snapshot(trainer).tensors["parameters"])
    assert torch.equal(*after)


def test_overfitting_eight_samples(decoder: Decoder) -> None:
    config = job_config(rank=8, learning_rate=1e-2, tokens_per_step=117, micro_batch_tokens=117)
    history = [r.loss for r in reports(run_until(trainer_of(make_job(decoder, config)), steps(50)))]
    assert history[-1] < 0.2 * history[0]


def with_poison(decoder: Decoder) -> Decoder:
    """A decoder in which one token's embedding is not a number."""
    embedding = decoder.weights.embedding.clone()
    embedding[POISON] = math.nan
    return Decoder(decoder.spec, replace(decoder.weights, embedding=embedding), 512)


def test_a_gradient_that_is_not_finite_skips_the_step(decoder: Decoder, by_layer: None) -> None:
    samples = list(make_samples([40] * 3, seed=4))
    samples[1] = replace(samples[1], token_ids=(POISON, *samples[1].token_ids[1:]))
    config = job_config(tokens_per_step=40, weight_decay=0.1)
    job = make_job(with_poison(decoder), config, training=samples)
    trainer = trainer_of(job)
    before, num_skipped = take_snapshot(trainer), 0
    for step in range(1, 7):
        (report,) = reports(run_until(trainer, steps(1)))
        after = take_snapshot(trainer)
        assert report.step == step
        assert math.isfinite(report.grad_norm) is not report.was_skipped
        for name, tensor in after.tensors.items():
            assert tensor.isfinite().all()
            assert torch.equal(tensor, before.tensors[name]) is report.was_skipped
        is_counted = after.meta["optimizer_steps"] != before.meta["optimizer_steps"]
        assert is_counted is not report.was_skipped
        num_skipped += report.was_skipped
        before = after
    assert num_skipped == 2, "one of three samples in each of two epochs"


def test_the_first_evaluation_measures_what_is_served(decoder: Decoder) -> None:
    held_out = make_samples([10, 33, 15, 12], seed=2)
    start = random_state(decoder, 4)
    trainer = trainer_of(make_job(decoder, start=start, held_out=held_out))
    (first,) = evaluations(run_until(trainer, evaluations))
    assert first.loss == first.active_loss
    assert first.loss == pytest.approx(mean_loss(decoder, held_out, start), rel=1e-5)
    assert (first.step, first.num_samples, first.candidate) == (0, 4, None)


def test_a_candidate_is_what_was_evaluated_and_is_better(decoder: Decoder) -> None:
    held_out = make_samples([9, 14, 20, 11, 17, 8, 25, 13], seed=1)
    config = job_config(learning_rate=5e-3, evaluate_every=3)
    trainer = trainer_of(make_job(decoder, config, held_out=held_out))
    first, *later = evaluations(run_until(trainer, steps(19)))
    assert [report.step for report in later] == [3, 6, 9, 12, 15, 18]
    best = first.active_loss
    for report in later:
        assert report.active_loss == best
        assert (report.candidate is not None) is (report.loss < best)
        if report.candidate is not None:
            measured = mean_loss(decoder, held_out, report.candidate)
            assert report.loss == pytest.approx(measured, rel=1e-5)
            best = report.loss
    assert any(report.candidate for report in later)


def test_a_worse_shadow_is_no_candidate(decoder: Decoder) -> None:
    config = job_config(learning_rate=3.0, evaluate_every=1)
    trainer = trainer_of(make_job(decoder, config))
    first, *later = evaluations(run_until(trainer, steps(4)))
    assert all(report.loss > first.loss for report in later)
    assert not any(report.candidate for report in later)
    assert {report.active_loss for report in later} == {first.loss}


def test_a_loss_that_is_not_a_number_is_no_candidate_and_is_forgotten(decoder: Decoder) -> None:
    held_out = make_samples([9, 14, 20, 11, 17, 8, 25, 13], seed=1)
    config = job_config(learning_rate=5e-3, evaluate_every=1)
    job = make_job(decoder, config, held_out=held_out)
    trainer = trainer_of(job)
    run_until(trainer, evaluations)
    good = job._shadow.parameters.clone()
    run_quanta(trainer, lambda q: q.kind is QuantumKind.EVALUATE_FORWARD)
    job._shadow.load_parameters(torch.full_like(good, math.nan))
    (broken,) = evaluations(run_until(trainer, evaluations))
    assert math.isnan(broken.loss)
    assert broken.candidate is None
    job._shadow.load_parameters(good)
    later = evaluations(run_until(trainer, steps(3)))
    assert all(math.isfinite(r.active_loss) for r in later)
    assert any(r.candidate for r in later)


def test_a_served_version_that_is_broken_is_beaten_by_anything(decoder: Decoder) -> None:
    job = make_job(decoder, job_config(evaluate_every=1))
    trainer = trainer_of(job)
    start = job._shadow.state()
    broken = AdapterState(start.layout, torch.full_like(start.flat, math.nan))
    job._unmeasured, job._is_ahead = broken, True
    (report,) = evaluations(run_until(trainer, evaluations))
    assert report.active_loss == math.inf
    assert report.candidate is not None


def test_the_job_ends_after_its_last_evaluation(decoder: Decoder) -> None:
    config = job_config(total_steps=5, evaluate_every=3, schedule="cosine")
    trainer = trainer_of(make_job(decoder, config))
    events = run_until(trainer, lambda _: False)
    assert [report.step for report in reports(events)] == [1, 2, 3, 4, 5]
    assert [report.step for report in evaluations(events)] == [0, 3, 5]
    assert trainer.peek() is None
    assert take_snapshot(trainer).meta["num_steps"] == "5"
    assert trainer.peek() is None


def test_a_restored_job_goes_on_as_if_nothing_had_happened(decoder: Decoder) -> None:
    config = job_config(evaluate_every=2, weight_decay=0.01, warmup_steps=5)
    trainer = trainer_of(make_job(decoder, config))
    run_until(trainer, steps(3))
    snapshot = take_snapshot(trainer)
    frozen = {name: tensor.clone() for name, tensor in snapshot.tensors.items()}
    later = reports(run_until(trainer, steps(6)))
    expected = take_snapshot(trainer)
    assert all(torch.equal(frozen[name], t) for name, t in snapshot.tensors.items())

    job = make_job(decoder, config)
    job.restore(snapshot.tensors, snapshot.meta)
    again = trainer_of(job)
    assert reports(run_until(again, steps(6))) == later
    assert_same(take_snapshot(again), expected)


def assert_same(ours: TrainingSnapshot, theirs: TrainingSnapshot) -> None:
    assert ours.meta == theirs.meta
    for name, tensor in theirs.tensors.items():
        assert torch.equal(ours.tensors[name], tensor), name


def test_a_restored_shadow_must_beat_what_is_served_now(decoder: Decoder) -> None:
    """A version published after the checkpoint is better than the checkpoint's shadow."""
    held_out = make_samples([9, 14, 20, 11, 17, 8, 25, 13], seed=1)
    config = job_config(learning_rate=5e-3, evaluate_every=5)
    trainer = trainer_of(make_job(decoder, config, held_out=held_out))
    run_until(trainer, steps(2))
    snapshot = take_snapshot(trainer)
    published = evaluations(run_until(trainer, lambda e: steps(14)(e)))[-1]
    assert published.candidate is not None

    job = make_job(decoder, config, start=published.candidate, held_out=held_out)
    job.restore(snapshot.tensors, snapshot.meta)
    (report,) = evaluations(run_until(trainer_of(job), evaluations))
    assert report.active_loss == pytest.approx(published.loss, rel=1e-6)
    assert report.loss > report.active_loss
    assert report.candidate is None


def test_a_checkpoint_of_another_shape_is_refused(decoder: Decoder) -> None:
    snapshot = take_snapshot(trainer_of(make_job(decoder)))
    for fields in ({"rank": 2}, {"alpha": 16.0}):
        (name,) = fields
        with pytest.raises(ConfigError, match=f"jobs.{name} of 'a' is"):
            make_job(decoder, job_config(**fields)).restore(snapshot.tensors, snapshot.meta)


def test_a_cursor_beyond_shrunken_data_starts_the_next_epoch(decoder: Decoder) -> None:
    trainer = trainer_of(make_job(decoder))
    run_until(trainer, steps(1))
    snapshot = take_snapshot(trainer)
    assert int(snapshot.meta["index"]) > 0
    job = make_job(decoder, training=make_samples([20], seed=1))
    job.restore(snapshot.tensors, snapshot.meta)
    assert (job._stream.cursor.epoch, job._stream.cursor.index) == (1, 0)


@pytest.mark.parametrize(
    ("kind", "index"),
    [(QuantumKind.FORWARD, 2), (QuantumKind.LOSS, 0), (QuantumKind.BACKWARD, 1)],
)
def test_a_dropped_micro_batch_leaves_no_trace(
    decoder: Decoder, kind: QuantumKind, index: int
) -> None:
    """Neither in the gradient nor in the order of samples."""
    config = job_config(tokens_per_step=90)
    undisturbed = trainer_of(make_job(decoder, config))
    run_until(undisturbed, steps(2))

    job = make_job(decoder, config)
    trainer = trainer_of(job)
    start = job._shadow.state()
    for _ in range(2):  # The second micro-batch of a step.
        run_quanta(trainer, lambda q: q.kind is kind and q.index == index)
        run_quanta(trainer, lambda q: q.kind is QuantumKind.PREPARE)
    run_quanta(trainer, lambda q: q.kind is kind and q.index == index)
    assert job._shadow.gradient.any()
    trainer.reset("a", start)
    assert not job._shadow.gradient.any()
    run_until(trainer, steps(2))
    assert_same(take_snapshot(trainer), take_snapshot(undisturbed))


def test_micro_batches_shrink_to_what_a_quantum_allows(decoder: Decoder) -> None:
    job = make_job(decoder, sizes=FixedSizes(tokens=30, loss_rows=1), held_out=make_samples([25]))
    trainer = trainer_of(job)
    quanta = run_quanta(trainer, lambda q: q.kind is QuantumKind.OPTIMIZER)
    by_rows = [q for q in quanta if q.kind in (QuantumKind.FORWARD, QuantumKind.BACKWARD)]
    losses = [q for q in quanta if q.kind in (QuantumKind.LOSS, QuantumKind.EVALUATE_LOSS)]
    assert max(q.size for q in by_rows) <= 30
    assert max(q.size for q in losses) <= 8, "a loss quantum has at least a few positions"


def test_nothing_is_saved_twice(decoder: Decoder) -> None:
    trainer = trainer_of(make_job(decoder))
    assert trainer.snapshot_now() == ()
    run_until(trainer, steps(2))
    take_snapshot(trainer)
    assert trainer.snapshot_now() == ()
    run_until(trainer, steps(1))
    (snapshot,) = trainer.snapshot_now()
    assert snapshot.meta["num_steps"] == "3"


def test_a_snapshot_in_the_middle_of_a_micro_batch_is_that_of_the_last_step(
    decoder: Decoder,
) -> None:
    trainer = trainer_of(make_job(decoder))
    run_until(trainer, steps(2))
    expected = take_snapshot(trainer)
    trainer = trainer_of(make_job(decoder))
    run_until(trainer, steps(2))
    run_quanta(trainer, lambda q: q.kind is QuantumKind.BACKWARD)
    (snapshot,) = trainer.snapshot_now()
    assert snapshot.meta == expected.meta
    for name, tensor in expected.tensors.items():
        assert torch.equal(snapshot.tensors[name], tensor)
