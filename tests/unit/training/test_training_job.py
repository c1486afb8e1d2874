import math
from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from collm.clock import ManualClock
from collm.errors import ConfigError
from collm.model.decoder import Decoder
from collm.pacing.quanta import QuantumKind, optimizer_quanta
from collm.training import state as state_module
from collm.training.events import HeldOutReport, JobFinished, TrainingSnapshot
from collm.training.job import Job
from collm.training.stream import Cursor
from collm.training.trainer import Trainer
from factories.training import (
    FixedSizes,
    baselines,
    evaluations,
    general_samples,
    job_config,
    make_corpus,
    make_job,
    make_samples,
    random_state,
    reports,
    run_quanta,
    run_until,
    steps,
    take_snapshot,
    tiny_decoder,
    token_loss,
)

POISON = 7
"""A token that no sample has by itself."""


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    return tiny_decoder(tmp_path_factory.mktemp("job"), "mistral")


@pytest.fixture
def by_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every layer be an optimizer quantum of its own."""
    monkeypatch.setattr(state_module, "_OPTIMIZER_PARAMETERS", 1)


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
    start = make_job(decoder, config)._state.shadow.state()
    assert report.loss == pytest.approx(token_loss(decoder, samples, start), rel=1e-5)


def test_a_weight_multiplies_a_samples_loss_and_its_share_of_the_divisor(decoder: Decoder) -> None:
    """A sample of weight 2 beside others of 1 counts as if it came twice."""
    first, *rest = make_samples([15] * 4, seed=3)
    start, after = random_state(decoder, 4), []
    weighted = (replace(first, weight=1.0), *(replace(s, weight=0.5) for s in rest))
    twice = (first, replace(first, sample_id="again"), *rest)
    for samples in (weighted, twice):
        num_tokens = sum(len(s.token_ids) for s in samples)
        config = job_config(tokens_per_step=num_tokens, micro_batch_tokens=num_tokens)
        trainer = trainer_of(make_job(decoder, config, start=start, training=samples))
        (report,) = reports(run_until(trainer, steps(1)))
        assert report.loss == pytest.approx(token_loss(decoder, twice, start), rel=1e-5)
        after.append((report.grad_norm, take_snapshot(trainer).tensors["parameters"]))
    assert after[0][0] == pytest.approx(after[1][0], rel=1e-4)
    assert_close(after[0][1], after[1][1], atol=1e-5, rtol=0.0)


def test_optimizer_quanta_come_in_the_stated_order(decoder: Decoder, by_layer: None) -> None:
    job = make_job(decoder)
    trainer = trainer_of(job)
    run_quanta(trainer, lambda q: q.kind is QuantumKind.OPTIMIZER)
    done = run_quanta(trainer, lambda q: q.kind is not QuantumKind.OPTIMIZER)
    layer_size = job._state.shadow.layout.num_parameters // 2
    assert tuple(done) == optimizer_quanta(2, layer_size, 1, "a")


def test_pieces_of_a_step_change_nothing(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    after = []
    for limit in (1_000_000, 1):
        monkeypatch.setattr(state_module, "_OPTIMIZER_PARAMETERS", limit)
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


def test_a_job_of_some_steps_finishes_after_its_last_evaluation(decoder: Decoder) -> None:
    config = job_config(total_steps=5, evaluate_every=3, schedule="cosine")
    trainer = trainer_of(make_job(decoder, config))
    events = run_until(trainer, lambda _: False)
    assert [report.step for report in reports(events)] == [1, 2, 3, 4, 5]
    assert [report.step for report in baselines(events)] == [0]
    assert [report.step for report in evaluations(events)] == [3, 5]
    assert events[-1] == JobFinished(adapter="a", step=5)
    assert trainer.peek() is None
    assert take_snapshot(trainer).meta["num_steps"] == "5"
    assert trainer.peek() is None


def test_a_job_of_some_passes_finishes_after_them(decoder: Decoder) -> None:
    samples = make_samples([15] * 7, seed=3)
    config = job_config(num_epochs=2)
    trainer = trainer_of(make_job(decoder, config, training=samples))
    events = run_until(trainer, lambda _: False)
    assert sum(report.num_samples for report in reports(events)) == 14
    assert reports(events)[-1].num_tokens < 60, "what is left at the end is learned too"
    assert evaluations(events)[-1].step == reports(events)[-1].step
    assert [type(event) for event in events[-2:]] == [HeldOutReport, JobFinished]


def test_a_job_with_an_end_says_how_much_of_it_is_done(decoder: Decoder) -> None:
    samples = make_samples([15] * 8, seed=3)
    passes = job_config(num_epochs=2, tokens_per_step=60, replay_share=0.0)
    events = run_until(trainer_of(make_job(decoder, passes, training=samples)), lambda _: False)
    assert [report.done_share for report in reports(events)] == [0.25, 0.5, 0.75, 1.0]
    some_steps = job_config(total_steps=4, num_epochs=100)
    events = run_until(trainer_of(make_job(decoder, some_steps)), lambda _: False)
    assert [report.done_share for report in reports(events)] == [0.25, 0.5, 0.75, 1.0]
    endless = run_until(trainer_of(make_job(decoder)), steps(1))
    assert [report.done_share for report in reports(endless)] == [None]


def test_a_finished_job_that_is_restored_finishes_again(decoder: Decoder) -> None:
    config = job_config(num_epochs=1)
    trainer = trainer_of(make_job(decoder, config))
    run_until(trainer, lambda _: False)
    snapshot = take_snapshot(trainer)
    job = make_job(decoder, config)
    job.restore(snapshot.tensors, snapshot.meta)
    events = run_until(trainer_of(job), lambda _: False)
    assert reports(events) == []
    assert events[-1] == JobFinished(adapter="a", step=int(snapshot.meta["num_steps"]))


def test_a_job_without_samples_waits_for_them(decoder: Decoder) -> None:
    job = make_job(decoder, corpus=make_corpus((), held_out_share=0.2))
    trainer = trainer_of(job)
    assert trainer.peek() is None
    trainer.add_samples("a", make_samples([12] * 40, seed=6))
    assert len(reports(run_until(trainer, steps(2)))) == 2


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


def test_a_checkpoint_of_another_shape_is_refused(decoder: Decoder) -> None:
    snapshot = take_snapshot(trainer_of(make_job(decoder)))
    for fields in ({"rank": 2}, {"alpha": 16.0}):
        (name,) = fields
        with pytest.raises(ConfigError, match=f"jobs.{name} of 'a' is"):
            make_job(decoder, job_config(**fields)).restore(snapshot.tensors, snapshot.meta)


def test_a_checkpoint_of_an_older_format_starts_its_data_anew(decoder: Decoder) -> None:
    trainer = trainer_of(make_job(decoder))
    run_until(trainer, steps(1))
    snapshot = take_snapshot(trainer)
    meta = {k: v for k, v in snapshot.meta.items() if "key" not in k} | {"index": "3"}
    job = make_job(decoder)
    job.restore(snapshot.tensors, meta)
    assert job.num_steps == 1
    assert job._stream.cursor == Cursor()


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
    start = job._state.shadow.state()
    for _ in range(2):  # The second micro-batch of a step.
        run_quanta(trainer, lambda q: q.kind is kind and q.index == index)
        run_quanta(trainer, lambda q: q.kind is QuantumKind.PREPARE)
    run_quanta(trainer, lambda q: q.kind is kind and q.index == index)
    assert job._state.shadow.gradient.any()
    trainer.reset("a", start)
    assert not job._state.shadow.gradient.any()
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


@pytest.mark.parametrize(
    "kind", [QuantumKind.FORWARD, QuantumKind.BACKWARD, QuantumKind.EVALUATE_FORWARD]
)
@pytest.mark.parametrize("is_at_once", [True, False])
def test_a_snapshot_in_the_middle_of_things_is_that_of_the_last_step(
    decoder: Decoder, kind: QuantumKind, is_at_once: bool
) -> None:
    config = job_config(evaluate_every=2, tokens_per_step=90)
    trainer = trainer_of(make_job(decoder, config))
    run_until(trainer, steps(2))
    expected = take_snapshot(trainer)
    trainer = trainer_of(make_job(decoder, config))
    run_until(trainer, steps(2))
    run_quanta(trainer, lambda q: q.kind is kind)
    if is_at_once:
        (snapshot,) = trainer.snapshot_now()
    else:
        snapshot = take_snapshot(trainer)
    assert_same(snapshot, expected)


def test_a_snapshot_waits_for_no_step_however_long(decoder: Decoder) -> None:
    """Here a step takes a thousand micro-batches; training goes on as if nothing had been."""
    config = job_config(tokens_per_step=35_000)
    trainer = trainer_of(make_job(decoder, config))
    before = take_snapshot(trainer)
    for _ in range(3):
        run_quanta(trainer, lambda q: q.kind is QuantumKind.BACKWARD and q.index == 1)
        run_quanta(trainer, lambda q: q.kind is QuantumKind.PREPARE)
    gradient = trainer._jobs["a"]._state.shadow.gradient.clone()
    assert gradient.any()
    run_quanta(trainer, lambda q: q.kind is QuantumKind.LOSS)
    waits = trainer.peek()
    assert_same(take_snapshot(trainer), before)
    assert torch.equal(trainer._jobs["a"]._state.shadow.gradient, gradient)
    assert trainer.peek() is waits, "the micro-batch goes on"


def test_a_removed_sample_is_in_no_later_micro_batch(decoder: Decoder) -> None:
    samples = make_samples([15] * 6, seed=3)
    config = job_config(tokens_per_step=90)
    job = make_job(decoder, config, training=samples)
    trainer = trainer_of(job)
    run_quanta(trainer, lambda q: q.kind is QuantumKind.BACKWARD)
    gone = {sample.sample_id for sample in samples[:3]}
    for sample_id in gone:
        assert trainer.remove_sample("a", sample_id)
        assert not trainer.remove_sample("a", sample_id)
    run_quanta(trainer, lambda q: q.kind is QuantumKind.PREPARE)
    num_before = len(job._learning._learned)
    run_until(trainer, steps(1))
    for _ in range(12):
        run_quanta(trainer, lambda q: q.kind is QuantumKind.FORWARD)
        run_quanta(trainer, lambda q: q.kind is QuantumKind.PREPARE)
        dealt = {i for batch in job._learning._learned for i in batch.sample_ids}
        assert not gone & dealt
    assert num_before == 1

    snapshot = take_snapshot(trainer)
    again = make_job(decoder, config, training=samples[3:])  # as after a restart
    again.restore(snapshot.tensors, snapshot.meta)
    for _ in range(12):
        run_quanta(trainer_of(again), lambda q: q.kind is QuantumKind.BACKWARD)
        assert not gone & {i for batch in again._learning._learned for i in batch.sample_ids}


def test_general_text_is_replayed(decoder: Decoder) -> None:
    corpus = make_corpus(make_samples([10] * 9), general=general_samples([12] * 30))
    config = job_config(replay_share=0.25, tokens_per_step=80)
    trainer = trainer_of(make_job(decoder, config, corpus=corpus))
    job = trainer._jobs["a"]
    counts: Counter[bool] = Counter()
    learned: list[str] = []
    run_quanta(trainer, lambda q: q.kind is QuantumKind.FORWARD)
    for _ in range(60):
        run_quanta(trainer, lambda q: q.kind is QuantumKind.PREPARE)
        learned += job._learning._learned[-1].sample_ids if job._learning._learned else ()
        run_quanta(trainer, lambda q: q.kind is QuantumKind.FORWARD)
    counts.update(sample_id in corpus.general.samples for sample_id in learned)
    assert 0.15 < counts[True] / counts.total() < 0.3
