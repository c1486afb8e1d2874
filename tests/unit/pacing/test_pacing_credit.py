import pytest
from hypothesis import given
from hypothesis import strategies as st

from collm.clock import ManualClock
from collm.pacing.credit import Credit


def test_credit_accrues_its_share_of_wall_time_up_to_the_burst() -> None:
    clock, credit = ManualClock(7.0), Credit(share=0.2, burst_s=0.5)
    credit.accrue(clock.now_s())
    assert credit.balance_s == 0.0
    clock.advance(1.0)
    credit.accrue(clock.now_s())
    assert credit.balance_s == pytest.approx(0.2)
    clock.advance(100.0)
    credit.accrue(clock.now_s())
    assert credit.balance_s == 0.5


def test_a_quantum_is_covered_by_what_is_at_hand_and_charged_for_what_it_took() -> None:
    credit = Credit(share=0.1, burst_s=1.0)
    credit.accrue(0.0)
    credit.accrue(1.0)
    assert credit.covers(0.09)
    assert not credit.covers(0.11)
    credit.charge(0.15)
    assert credit.balance_s == pytest.approx(-0.05)
    assert not credit.covers(0.001)


def test_no_share_never_covers_anything() -> None:
    credit = Credit(share=0.0)
    credit.accrue(0.0)
    credit.accrue(1e9)
    assert not credit.covers(1e-9)


def test_misses_halve_and_met_requests_restore_step_by_step() -> None:
    credit = Credit(share=0.5, burst_s=1.0)
    credit.accrue(0.0)
    credit.accrue(10.0)
    credit.missed()
    credit.missed()
    assert credit.scale == 0.25
    assert credit.balance_s == 0.25
    credit.charge(0.25)
    credit.accrue(11.0)
    assert credit.balance_s == pytest.approx(0.5 * 0.25)
    credit.met()
    assert credit.scale == pytest.approx(0.27)
    for _ in range(100):
        credit.met()
    assert credit.scale == 1.0


def test_an_allocation_without_credit_takes_what_has_piled_up() -> None:
    credit = Credit(share=0.5)
    credit.accrue(0.0)
    credit.accrue(10.0)
    credit.set_share(0.0)
    credit.set_share(0.1)
    assert credit.balance_s == 0.0


def test_a_share_outside_zero_to_one_is_refused() -> None:
    with pytest.raises(ValueError, match=r"credit share 1\.5"):
        Credit(share=1.5)


@given(
    st.floats(0, 1),
    st.lists(st.tuples(st.sampled_from(("wait", "run", "met", "missed")), st.floats(0, 3))),
)
def test_training_on_credit_never_exceeds_share_of_time_plus_one_burst(
    share: float, actions: list[tuple[str, float]]
) -> None:
    credit, now_s, ran_s = Credit(share, burst_s=0.5), 0.0, 0.0
    credit.accrue(now_s)
    for name, seconds in actions:
        if name == "wait":
            now_s += seconds
            credit.accrue(now_s)
        elif name == "run" and credit.covers(seconds):
            credit.charge(seconds)
            ran_s += seconds
        elif name in ("met", "missed"):
            getattr(credit, name)()
        assert 0.0 < credit.scale <= 1.0
        assert ran_s <= share * now_s + 1e-9
        assert credit.balance_s <= 0.5
