from collm.engine.sequence import Sequence
from collm.engine.waiting import WaitingQueue
from factories.engine import request


def sequence_of(request_id: str, arrived_at_s: float) -> Sequence:
    return Sequence(request(request_id, [1], arrived_at_s=arrived_at_s), 0)


def test_sequences_wait_by_arrival_then_id_whatever_the_order_of_pushes():
    queue = WaitingQueue()
    late, b, a = sequence_of("0", 2.0), sequence_of("b", 1.0), sequence_of("a", 1.0)
    for sequence in (late, b, a):
        queue.push(sequence)
    assert [queue[i] for i in range(len(queue))] == [a, b, late]
    assert [p.arrived_at_s for p in queue.progress()] == [1.0, 1.0, 2.0]


def test_progress_follows_removals_and_is_not_made_again_while_nothing_changes():
    queue = WaitingQueue()
    a, b = sequence_of("a", 1.0), sequence_of("b", 2.0)
    queue.push(a)
    queue.push(b)
    assert queue.progress() is queue.progress()
    queue.remove(a)
    assert [p.arrived_at_s for p in queue.progress()] == [2.0]
    assert len(queue) == 1
