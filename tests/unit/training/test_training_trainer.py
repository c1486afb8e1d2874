from collections import Counter
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from collm.clock import ManualClock
from collm.model.decoder import Decoder
from collm.pacing.quanta import QuantumKind
from collm.training import state as state_module
from collm.training.events import TrainingSnapshot
from collm.training.job import Job
from collm.training.trainer import Trainer
from factories.training import (
    TickingClock,
    evaluations,
    job_config,
    make_job,
    make_samples,
    reports,
    run_quanta,
    run_until,
    take_snapshot,
    tiny_decoder,
)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    return tiny_decoder(tmp_path_factory.mktemp("trainer"))


def test_nothing_to_learn_has_no_quantum() -> None:
    assert Trainer([], ManualClock()).peek() is None


def test_peek_does_nothing_by_itself(decoder: Decoder) -> None:
    trainer = Trainer([make_job(decoder)], ManualClock())
    first = trainer.peek()
    assert first is not None
    assert trainer.peek() is first
    trainer.run(first)
    assert trainer.peek() is not first


def test_a_quantum_that_was_not_peeked_is_refused(decoder: Decoder) -> None:
    trainer = Trainer([make_job(decoder)], ManualClock())
    first = trainer.peek()
    assert first is not None
    trainer.run(first)
    with pytest.raises(AssertionError):
        trainer.run(first)


def test_time_is_shared_by_weight(decoder: Decoder) -> None:
    jobs = [make_job(decoder, job_config("a")), make_job(decoder, job_config("b", weight=3.0))]
    trainer = Trainer(jobs, TickingClock())
    counts: Counter[str] = Counter()
    for _ in range(800):
        quantum = trainer.peek()
        assert quantum is not None
        trainer.run(quantum)
        counts[quantum.adapter] += 1
    assert counts["b"] / counts["a"] == pytest.approx(3.0, rel=0.1)


def test_a_program_is_not_interrupted_by_another_job(decoder: Decoder) -> None:
    jobs = [make_job(decoder, job_config(name)) for name in "ab"]
    trainer = Trainer(jobs, TickingClock())
    done = run_quanta(trainer, lambda q: q.kind is QuantumKind.OPTIMIZER)
    for before, after in zip(done, done[1:], strict=False):
        if before.adapter != after.adapter:
            assert after.kind in (QuantumKind.PREPARE, QuantumKind.STAGE)
    assert {quantum.adapter for quantum in done} == {"a", "b"}


def test_adapters_trained_side_by_side_equal_their_solo_runs(decoder: Decoder) -> None:
    configs = [
        job_config("a", evaluate_every=2, total_steps=4),
        job_config("b", rank=2, alpha=3.0, seed=1, weight=2.0, total_steps=4),
    ]
    training = [make_samples([9, 14, 20], seed=1), make_samples([25, 8, 12, 30], seed=2)]

    def jobs(*indices: int):
        return [make_job(decoder, configs[i], training=training[i]) for i in indices]

    together = Trainer(jobs(0, 1), TickingClock())
    assert together.adapters == ("a", "b")
    events = run_until(together, lambda _: False)
    for index, name in enumerate("ab"):
        solo = Trainer(jobs(index), TickingClock())
        solo_events = run_until(solo, lambda _: False)
        ours = [event for event in events if event.adapter == name]
        assert reports(solo_events) == reports(ours)
        losses = [e.loss for e in evaluations(solo_events)]
        assert losses == [e.loss for e in evaluations(ours)]
        expected, snapshot = take_snapshot(solo, name), take_snapshot(together, name)
        assert expected.meta == snapshot.meta
        for tensor_name, tensor in expected.tensors.items():
            assert torch.equal(tensor, snapshot.tensors[tensor_name])


def test_a_job_that_ended_leaves_its_time_to_the_others(decoder: Decoder) -> None:
    jobs = [make_job(decoder, job_config("a", total_steps=1)), make_job(decoder, job_config("b"))]
    trainer = Trainer(jobs, TickingClock())
    events = run_until(trainer, lambda e: len(reports(e)) >= 6)
    assert Counter(report.adapter for report in reports(events)) == {"a": 1, "b": 5}
    assert [e.step for e in evaluations(events) if e.adapter == "a"] == [1]


def test_a_rebase_leaves_the_running_program_of_another_job_alone(decoder: Decoder) -> None:
    jobs = [make_job(decoder, job_config(name)) for name in "ab"]
    trainer = Trainer(jobs, TickingClock())
    run_quanta(trainer, lambda q: q.kind is QuantumKind.BACKWARD and q.adapter == "a")
    running = trainer.peek()
    new = jobs[1]._state.shadow.state()
    trainer.rebase("b", None, new)
    trainer.reset("b", new)
    assert trainer.peek() is running


def job_of(decoder: Decoder, name: str, **fields: Any) -> Job:
    return make_job(decoder, job_config(name, **fields))


def count_quanta(trainer: Trainer, count: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    for _ in range(count):
        quantum = trainer.peek()
        assert quantum is not None
        trainer.run(quantum)
        counts[quantum.adapter] += 1
    return counts


def test_a_late_joiner_gets_its_share_and_no_more(decoder: Decoder) -> None:
    trainer = Trainer([job_of(decoder, "a"), job_of(decoder, "b")], TickingClock())
    count_quanta(trainer, 600)
    trainer.add(job_of(decoder, "c", weight=2.0))
    counts = count_quanta(trainer, 1_200)
    assert trainer.adapters == ("a", "b", "c")
    assert counts["c"] == pytest.approx(600, rel=0.1)
    assert counts["a"] == pytest.approx(300, rel=0.1)


def test_a_paused_job_rests_and_is_owed_nothing(decoder: Decoder) -> None:
    trainer = Trainer([job_of(decoder, "a"), job_of(decoder, "b")], TickingClock())
    count_quanta(trainer, 300)
    trainer.pause("a")
    assert trainer.is_paused("a")
    events = run_until(trainer, lambda e: any(isinstance(s, TrainingSnapshot) for s in e))
    assert events[-1].adapter == "a"
    assert set(count_quanta(trainer, 600)) == {"b"}
    trainer.resume("a")
    assert not trainer.is_paused("a")
    counts = count_quanta(trainer, 600)
    assert counts["a"] == pytest.approx(counts["b"], rel=0.15)


def test_a_paused_job_takes_snapshots_only(decoder: Decoder) -> None:
    trainer = Trainer([job_of(decoder, "a")], TickingClock())
    run_until(trainer, lambda e: len(reports(e)) >= 2)
    run_quanta(trainer, lambda q: q.kind is QuantumKind.BACKWARD)
    trainer.pause("a")
    (snapshot,) = run_until(trainer, lambda _: False)
    assert isinstance(snapshot, TrainingSnapshot)
    assert snapshot.meta["num_steps"] == "2"
    assert trainer.peek() is None
    trainer.request_snapshots()
    assert trainer.peek() is None, "nothing was learned since"
    trainer.resume("a")
    assert [r.step for r in reports(run_until(trainer, lambda e: bool(reports(e))))] == [3]


def test_a_pause_in_the_midst_of_a_step_completes_and_reports_it(decoder: Decoder) -> None:
    trainer = Trainer([job_of(decoder, "a")], TickingClock())
    run_quanta(trainer, lambda q: q.kind is QuantumKind.OPTIMIZER)
    half_taken = trainer.peek()
    assert half_taken is not None
    assert half_taken.kind is QuantumKind.OPTIMIZER
    assert [report.step for report in reports(trainer.pause("a"))] == [1]
    (snapshot,) = run_until(trainer, lambda _: False)
    assert isinstance(snapshot, TrainingSnapshot)
    assert snapshot.meta["num_steps"] == "1"


def test_a_pause_changes_nothing_of_what_is_learned(decoder: Decoder) -> None:
    undisturbed = Trainer([job_of(decoder, "a")], TickingClock())
    run_until(undisturbed, lambda e: len(reports(e)) >= 4)
    trainer = Trainer([job_of(decoder, "a")], TickingClock())
    run_until(trainer, lambda e: len(reports(e)) >= 2)
    run_quanta(trainer, lambda q: q.kind is QuantumKind.LOSS)
    trainer.pause("a")
    run_until(trainer, lambda _: False)
    trainer.resume("a")
    run_until(trainer, lambda e: len(reports(e)) >= 2)
    ours, theirs = take_snapshot(trainer), take_snapshot(undisturbed)
    assert ours.meta == theirs.meta
    assert torch.equal(ours.tensors["parameters"], theirs.tensors["parameters"])


def test_a_removed_job_leaves_the_others_alone(decoder: Decoder) -> None:
    trainer = Trainer([job_of(decoder, "a"), job_of(decoder, "b")], TickingClock())
    run_quanta(trainer, lambda q: q.kind is QuantumKind.BACKWARD and q.adapter == "a")
    trainer.remove("a")
    assert set(count_quanta(trainer, 100)) == {"b"}
    trainer.add(job_of(decoder, "a"))
    assert set(count_quanta(trainer, 200)) == {"a", "b"}


def test_the_job_that_fails_is_named(decoder: Decoder) -> None:
    broken = job_of(decoder, "b")
    trainer = Trainer([job_of(decoder, "a"), broken], TickingClock())
    broken.next_program = Mock(side_effect=RuntimeError)  # type: ignore[method-assign]
    with pytest.raises(RuntimeError):
        trainer.peek()
    assert trainer.turn == "b"
    trainer.remove("b")
    assert set(count_quanta(trainer, 50)) == {"a"}


def test_a_snapshot_goes_before_what_waits_for_its_turn(decoder: Decoder) -> None:
    """However long training waits for serving, the snapshot is what runs next."""
    trainer = Trainer([job_of(decoder, "a"), job_of(decoder, "b")], TickingClock())
    run_until(trainer, lambda events: len({r.adapter for r in reports(events)}) == 2)
    run_quanta(trainer, lambda q: q.kind is QuantumKind.BACKWARD)
    waits = trainer.peek()
    trainer.request_snapshots()
    ran = run_quanta(trainer, lambda q: q.kind is not QuantumKind.SNAPSHOT)
    assert [quantum.adapter for quantum in ran] == ["a", "b"]
    assert trainer.peek() is waits


def test_a_snapshot_splits_no_step(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every layer is an optimizer quantum of its own."""
    monkeypatch.setattr(state_module, "_OPTIMIZER_PARAMETERS", 1)
    trainer = Trainer([job_of(decoder, "a")], TickingClock())
    run_until(trainer, lambda e: len(reports(e)) >= 1)
    run_quanta(trainer, lambda q: q.kind is QuantumKind.OPTIMIZER)
    trainer.request_snapshots()
    first = trainer.peek()
    assert first is not None
    assert first.kind is QuantumKind.SNAPSHOT, "the step has not begun"
    events = list(run_until(trainer, lambda e: bool(e)))
    assert events[0].meta["num_steps"] == "1"
    half = trainer.peek()
    assert half is not None
    assert (half.kind, half.index) == (QuantumKind.OPTIMIZER, 0)
    trainer.run(half)
    trainer._jobs["a"]._snapshots.outdated()
    trainer.request_snapshots()
    rest = run_quanta(trainer, lambda q: q.kind is QuantumKind.SNAPSHOT)
    assert [quantum.kind for quantum in rest] == [QuantumKind.OPTIMIZER]
    events = run_until(trainer, lambda e: any(isinstance(s, TrainingSnapshot) for s in e))
    assert events[-1].meta["num_steps"] == "2"


def test_a_large_state_is_copied_in_pieces(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer([job_of(decoder, "a")], TickingClock())
    run_until(trainer, lambda e: len(reports(e)) >= 2)
    whole = take_snapshot(trainer)
    num_parameters = whole.tensors["mean"].numel()
    monkeypatch.setattr(state_module, "_SNAPSHOT_PARAMETERS", -(-num_parameters // 3))
    trainer._jobs["a"]._snapshots.outdated()
    trainer.request_snapshots()
    sizes, events = [], []
    while not events:
        quantum = trainer.peek()
        assert quantum is not None
        assert quantum.kind is QuantumKind.SNAPSHOT
        sizes.append(quantum.size)
        events = list(trainer.run(quantum))
    assert len(sizes) == 3
    assert sum(sizes) == num_parameters
    (pieced,) = events
    assert pieced.tensors.keys() == whole.tensors.keys() == {"parameters", "mean", "square"}
    assert all(pieced.tensors[name].equal(whole.tensors[name]) for name in whole.tensors)
    assert pieced.meta == whole.meta


def test_every_job_answers_a_request_for_snapshots(decoder: Decoder) -> None:
    jobs = [make_job(decoder, job_config(name)) for name in "ab"]
    trainer = Trainer(jobs, TickingClock())
    run_until(trainer, lambda events: len({r.adapter for r in reports(events)}) == 2)
    run_quanta(trainer, lambda q: q.kind is QuantumKind.LOSS)
    trainer.request_snapshots()
    events = run_until(
        trainer, lambda e: len([s for s in e if isinstance(s, TrainingSnapshot)]) == 2
    )
    taken = [event for event in events if isinstance(event, TrainingSnapshot)]
    assert {snapshot.adapter for snapshot in taken} == {"a", "b"}
    assert len(reports(events)) <= 4, "a snapshot waits for the next boundary of its job only"
