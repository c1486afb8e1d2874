"""A shadow across promotions and rollbacks of what is served."""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from collm.clock import ManualClock
from collm.lora.state import AdapterState, initial_state
from collm.model.decoder import Decoder
from collm.pacing.quanta import OWED, QuantumKind
from collm.training import state as state_module
from collm.training.events import TrainingEvent, TrainingSnapshot
from collm.training.job import Job
from collm.training.trainer import Trainer
from factories.training import (
    baselines,
    evaluations,
    make_job,
    make_samples,
    mean_loss,
    random_state,
    rebase,
    run_quanta,
    run_until,
    steps,
    take_snapshot,
    tiny_decoder,
)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    return tiny_decoder(tmp_path_factory.mktemp("job"), "mistral")


@pytest.fixture
def by_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every layer be an optimizer quantum of its own."""
    monkeypatch.setattr(state_module, "_OPTIMIZER_PARAMETERS", 1)


def trainer_of(*jobs: Job) -> Trainer:
    return Trainer(jobs, ManualClock())


def dense(state: AdapterState) -> list[Tensor]:
    return [
        b.double() @ a.double()
        for factors in state.layout.views(state.flat)
        for _, a, b in factors.parts()
    ]


def truncated(matrix: Tensor, rank: int) -> Tensor:
    u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
    return u[:, :rank] * s[:rank] @ vh[:rank]


@pytest.mark.parametrize("has_old", [True, False])
def test_rebase_carries_over_what_was_learned(decoder: Decoder, has_old: bool) -> None:
    """Against dense matrices, truncated by a dense SVD."""
    old, new = random_state(decoder, 4, seed=1), random_state(decoder, 4, seed=2)
    job = make_job(decoder, start=old)
    trainer = trainer_of(job)
    run_until(trainer, steps(3))
    learned = job._state.shadow.state()
    rebase(trainer, "a", old if has_old else None, new)
    bases = dense(old) if has_old else [torch.zeros(())] * len(dense(old))
    parts = zip(dense(new), dense(learned), bases, dense(job._state.shadow.state()), strict=True)
    for new_part, learned_part, old_part, rebased in parts:
        expected = truncated(new_part + learned_part - old_part, 4)
        assert_close(rebased, expected, atol=1e-5, rtol=1e-5)
    snapshot = take_snapshot(trainer)
    assert not snapshot.tensors["mean"].any()
    assert not snapshot.tensors["square"].any()
    assert snapshot.meta["optimizer_steps"] == "0"
    assert snapshot.meta["num_steps"] == "3"


def test_nothing_but_what_is_owed_stands_between_a_rebase_and_its_snapshot(
    decoder: Decoder,
) -> None:
    """So that a checkpoint comes however long training waits for serving."""
    old, new = random_state(decoder, 4, seed=1), random_state(decoder, 4, seed=2)
    trainer = trainer_of(make_job(decoder, start=old))
    run_until(trainer, steps(1))
    trainer.rebase("a", old, new)
    events: list[TrainingEvent] = []
    while (quantum := trainer.peek()) is not None and quantum.kind in OWED:
        events += trainer.run(quantum)
    assert [type(event) for event in events] == [TrainingSnapshot]


def test_after_a_rebase_candidates_must_beat_the_new_version(decoder: Decoder) -> None:
    held_out = make_samples([10, 15, 12], seed=2)
    old, new = random_state(decoder, 4, seed=1), random_state(decoder, 4, seed=2)
    job = make_job(decoder, start=old, held_out=held_out)
    trainer = trainer_of(job)
    run_until(trainer, steps(2))
    rebase(trainer, "a", old, new)
    (report,) = evaluations(run_until(trainer, evaluations))
    assert report.active_loss == pytest.approx(mean_loss(decoder, held_out, new), rel=1e-5)
    shadow_loss = mean_loss(decoder, held_out, job._state.shadow.state())
    assert report.loss == pytest.approx(shadow_loss, rel=1e-5)
    assert report.loss != report.active_loss


def test_reset_forgets_what_was_learned(decoder: Decoder) -> None:
    held_out = make_samples([10, 15, 12], seed=2)
    start = random_state(decoder, 4)
    job = make_job(decoder, start=start, held_out=held_out)
    trainer = trainer_of(job)
    run_until(trainer, steps(3))
    trainer.reset("a", start)
    assert torch.equal(job._state.shadow.state().flat, start.flat)
    (report,) = baselines(run_until(trainer, baselines))
    assert report.loss == pytest.approx(mean_loss(decoder, held_out, start), rel=1e-5)
    snapshot = take_snapshot(trainer)
    assert not snapshot.tensors["mean"].any()
    assert snapshot.meta["optimizer_steps"] == "0"


def test_reset_to_the_base_begins_afresh(decoder: Decoder) -> None:
    held_out = make_samples([10, 15, 12], seed=2)
    job = make_job(decoder, start=random_state(decoder, 4), held_out=held_out)
    trainer = trainer_of(job)
    run_until(trainer, steps(3))
    trainer.reset("a", None)
    assert not any(part.any() for part in dense(job._state.shadow.state()))
    (report,) = baselines(run_until(trainer, baselines))
    fresh = initial_state(job._state.layout, job.config.seed)
    assert torch.equal(job._state.shadow.state().flat, fresh.flat)
    assert report.loss == pytest.approx(mean_loss(decoder, held_out, fresh), rel=1e-5)
    assert job.num_steps == 3


def test_a_version_of_another_rank_is_fitted_to_the_jobs(decoder: Decoder) -> None:
    narrow = random_state(decoder, 2)
    job = make_job(decoder, start=narrow)
    assert job._state.shadow.layout.rank == 4
    for ours, theirs in zip(dense(job._state.shadow.state()), dense(narrow), strict=True):
        assert_close(ours, theirs, atol=1e-6, rtol=1e-5)
    wide = random_state(decoder, 6, seed=3)
    trainer = trainer_of(job)
    trainer.reset("a", wide)
    for ours, theirs in zip(dense(job._state.shadow.state()), dense(wide), strict=True):
        assert_close(ours, truncated(theirs, 4), atol=1e-5, rtol=1e-5)


def test_an_optimizer_step_is_not_left_half_done(decoder: Decoder, by_layer: None) -> None:
    start, new = random_state(decoder, 4), random_state(decoder, 4, seed=5)
    after = []
    for index in (0, 1, None):
        job = make_job(decoder, start=start)
        trainer = trainer_of(job)
        if index is None:
            run_until(trainer, steps(1))
        else:
            run_quanta(trainer, lambda q, i=index: q.kind is QuantumKind.OPTIMIZER and q.index == i)
        rebase(trainer, "a", start, new)
        assert job.num_steps == 1
        after.append(job._state.shadow.state().flat)
    assert torch.equal(after[0], after[2])
    assert torch.equal(after[1], after[2])
