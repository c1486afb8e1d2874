"""Which kinds of quanta the training benchmark fails for."""

from collm.pacing.quanta import Quantum, QuantumKind
from quantum_log import QuantumLog


def log_of(kind, times_ms):
    log = QuantumLog(limit_ms=40.0)
    for time_ms in times_ms:
        log.add(Quantum(kind, 100), time_ms / 1e3)
    return log


def test_a_kind_past_its_limit_once_in_a_hundred_is_not_late():
    log = log_of(QuantumKind.BACKWARD, [10.0] * 99 + [90.0])
    assert log.late_kinds() == {}
    assert log.rows()[0]["p99 ≤ 40 ms"] == "yes"


def test_a_kind_past_its_limit_more_often_is_late_and_says_how_long_it_takes():
    log = log_of(QuantumKind.BACKWARD, [10.0] * 98 + [50.0, 90.0])
    log.add(Quantum(QuantumKind.LOSS, 32), 0.020)
    assert log.late_kinds() == {QuantumKind.BACKWARD: 50.0}
    assert [row["p99 ≤ 40 ms"] for row in log.rows()] == ["NO", "yes"]


def test_the_rate_counts_the_time_of_learning_alone():
    log = log_of(QuantumKind.BACKWARD, [500.0])
    log.add(Quantum(QuantumKind.EVALUATE_FORWARD, 100), 10.0)
    log.num_tokens = 100
    assert log.rate() == 200.0
