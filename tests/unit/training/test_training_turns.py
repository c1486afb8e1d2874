"""Programs under way, and snapshots in their midst."""

from dataclasses import dataclass, field

import pytest

from collm.pacing.quanta import Quantum, QuantumKind
from collm.training.events import TrainingEvent
from collm.training.snapshots import Program
from collm.training.turns import Turns

LEARN, STEP, COPY = QuantumKind.FORWARD, QuantumKind.OPTIMIZER, QuantumKind.SNAPSHOT


@dataclass
class Listed:
    """A worker whose programs say which of their quanta were performed."""

    name: str = "a"
    events: list[TrainingEvent] = field(default_factory=list)
    done: list[tuple[QuantumKind, int]] = field(default_factory=list)

    def program(self, kind: QuantumKind, count: int) -> Program:
        for index in range(count):
            yield Quantum(kind, 1, index, self.name)
            self.done.append((kind, index))


def test_nothing_is_performed_before_it_is_asked_for() -> None:
    turns, worker = Turns(), Listed()
    assert turns.quantum is None
    turns.begin(worker, worker.program(LEARN, 2))
    assert turns.quantum == Quantum(LEARN, 1, 0, "a")
    assert worker.done == []
    assert turns.run() is worker
    assert worker.done == [(LEARN, 0)]
    turns.run()
    assert turns.quantum is None


def test_a_snapshot_goes_before_what_is_left_of_a_turn() -> None:
    turns, worker, other = Turns(), Listed(), Listed("b")
    turns.begin(worker, worker.program(LEARN, 2))
    turns.run()
    turns.interrupt(other, other.program(COPY, 2))
    assert turns.has_snapshot
    assert [turns.run(), turns.run(), turns.run()] == [other, other, worker]
    assert turns.quantum is None


def test_a_step_counts_as_begun_with_its_first_quantum() -> None:
    turns, worker = Turns(), Listed()
    turns.begin(worker, worker.program(STEP, 2))
    assert not turns.is_amid_step(worker)
    turns.run()
    assert turns.is_amid_step(worker)
    assert not turns.is_amid_step(Listed())
    turns.run()
    assert not turns.is_amid_step(worker)


def test_what_is_dropped_is_left_as_it_is_but_for_a_step() -> None:
    turns, worker, other = Turns(), Listed(), Listed("b")
    turns.begin(worker, worker.program(LEARN, 3))
    turns.interrupt(worker, worker.program(COPY, 3))
    turns.run()
    turns.drop(other)
    assert turns.quantum == Quantum(COPY, 1, 1, "a")
    turns.drop(worker)
    assert turns.quantum is None
    assert worker.done == [(COPY, 0)]
    turns.begin(worker, worker.program(STEP, 3))
    turns.run()
    turns.drop(worker)
    assert worker.done == [(COPY, 0), *((STEP, index) for index in range(3))]


def test_who_failed_is_named() -> None:
    def failing() -> Program:
        yield Quantum(LEARN, 1)
        raise RuntimeError

    turns, worker = Turns(), Listed()
    turns.begin(worker, failing())
    turns.latest = None
    with pytest.raises(RuntimeError):
        turns.run()
    assert turns.latest is worker
