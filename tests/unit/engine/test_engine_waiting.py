from collm.engine.sequence import Sequence
from collm.engine.waiting import WaitingQueue
from factories.engine import request


def sequence_of(request_id: str, arrived_at_s: float, model: str = "base") -> Sequence:
    return Sequence(request(request_id, [1], arrived_at_s=arrived_at_s, model=model), 0)


def test_sequences_wait_by_arrival_then_id_whatever_the_order_of_pushes():
    queue = WaitingQueue(8)
    late, b, a = sequence_of("0", 2.0), sequence_of("b", 1.0), sequence_of("a", 1.0)
    for sequence in (late, b, a):
        queue.push(sequence)
    assert [queue[i] for i in range(len(queue))] == [a, b, late]
    assert [p.arrived_at_s for p in queue.progress()] == [1.0, 1.0, 2.0]


def test_progress_follows_removals_and_is_not_made_again_while_nothing_changes():
    queue = WaitingQueue(8)
    a, b = sequence_of("a", 1.0), sequence_of("b", 2.0)
    queue.push(a)
    queue.push(b)
    assert queue.progress() is queue.progress()
    queue.remove(a)
    assert [p.arrived_at_s for p in queue.progress()] == [2.0]
    assert len(queue) == 1


def test_an_eighth_of_the_places_is_for_models_of_which_nothing_waits():
    queue = WaitingQueue(16)
    assert queue.num_places("a") == 16
    flood = [sequence_of(f"a{n}", float(n), "a") for n in range(14)]
    for sequence in flood:
        queue.push(sequence)
    assert (queue.num_places("a"), queue.num_places("b")) == (0, 2)
    queue.push(sequence_of("b", 20.0, "b"))
    assert (queue.num_places("b"), queue.num_places("c")) == (0, 1)
    for sequence in flood:
        queue.remove(sequence)
    assert (queue.num_places("a"), queue.num_places("b")) == (15, 13)


def test_preempted_sequences_that_overfill_the_queue_leave_no_place():
    queue = WaitingQueue(2)
    for number in range(3):
        queue.push(sequence_of(str(number), 1.0))
    assert queue.num_places("a") == 0
