"""Records of replicas that are moved on one after the other."""

from collm.metrics.records import RequestRecord
from collm.sim.records import RecordOrder


def record(request_id: str, ended_at_s: float) -> RequestRecord:
    return RequestRecord(
        request_id=request_id,
        model="adapter",
        arrived_at_s=0.0,
        num_prompt_tokens=1,
        outcome="completed",
        ended_at_s=ended_at_s,
    )


def test_records_come_by_their_ends_then_by_replica_and_not_before_all_are_as_far() -> None:
    got: list[RequestRecord] = []
    order = RecordOrder(got.append)
    for request_id, ended_at_s, replica_id in (
        ("late", 2.0, "replica-0"),
        ("second of two", 1.5, "replica-1"),
        ("first of two", 1.5, "replica-0"),
        ("early", 1.0, "replica-1"),
    ):
        order.put(record(request_id, ended_at_s), replica_id)
    assert got == []
    order.release(1.5)
    assert [one.request_id for one in got] == ["early", "first of two", "second of two"]
    order.put(record("later", 1.7), "replica-1")
    order.release(3.0)
    assert [one.request_id for one in got[3:]] == ["later", "late"]
    order.release(3.0)
    assert len(got) == 5
