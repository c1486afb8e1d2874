"""The estimates on a recorded run of a real replica, within the bounds that were seen there.

Seven minutes of SmolLM2-135M on two cores that had nothing else to do: 14 windows of 30 s of 0 to 2
requests per second, while the default job learned. See docs/coordination.md.
"""

from pathlib import Path

import pytest

from collm.cluster.planning.debt import SloDebt
from collm.cluster.planning.forecast import EmaForecaster
from collm.cluster.planning.replica_estimates import ReplicaEstimates
from collm.cluster.planning.windows import WindowBook
from foretelling import foretell, mean_error, read_recording, write_recording

RECORDING = Path(__file__).parents[2] / "data" / "estimates.json.gz"
ADAPTER = "clinc"
FIRST_FIT = 6
"""Windows until the curve rests on what was measured rather than on a guess."""


@pytest.fixture(scope="module")
def snapshots():
    return read_recording(RECORDING)


@pytest.fixture(scope="module")
def rows(snapshots):
    return foretell(snapshots, ADAPTER)


def test_a_recording_is_read_as_it_was_written(snapshots, tmp_path):
    path = tmp_path / "again.json.gz"
    write_recording(snapshots, path, made_by="a test")
    assert read_recording(path) == snapshots


def test_the_chance_to_meet_the_objectives_is_foretold(rows):
    found = mean_error((one.met, one.expected_met) for one in rows)
    as_before = mean_error(
        (now.met, before.met) for before, now in zip(rows, rows[1:], strict=False)
    )
    assert found < 0.14
    assert found < 0.55 * as_before


def test_the_free_share_is_foretold(rows):
    assert mean_error((one.free_share, one.expected_free) for one in rows) < 0.09


def test_training_speed_is_foretold(rows):
    learned = rows[4:]
    expected = sum(one.expected_tokens for one in learned)
    assert sum(one.num_tokens for one in learned) == pytest.approx(expected, rel=0.1)
    for one in learned:
        if one.num_tokens > 5_000:  # of fewer, a step more or less is too large a part
            assert one.num_tokens == pytest.approx(one.expected_tokens, rel=0.35)


def test_the_curve_falls_ahead_as_the_loss_does(rows):
    measured = [one for one in rows[FIRST_FIT:] if one.loss is not None]
    assert len(measured) >= 4
    for one in measured:
        assert 0.8 * one.loss < one.expected_loss < 2.2 * one.loss


def test_the_noise_scale_is_learned_by_the_default_job(rows, snapshots):
    done = snapshots[-1].totals.adapters[ADAPTER]
    assert done.gradient.num_differences > 20
    assert rows[0].phi_tokens == 4_000.0
    for one in rows[FIRST_FIT:]:
        assert 1_200.0 < one.phi_tokens < 2_100.0


def test_arrivals_are_forecast_within_the_error_that_the_forecast_states(snapshots):
    forecaster, book, scores = EmaForecaster(60.0), WindowBook(), []
    book.observe(snapshots[0])
    for snapshot in snapshots[1:]:
        book.observe(snapshot)
        (window,) = book.close().values()
        expected = forecaster.forecast(window.start_s, window.end_s)
        found_per_s = window.num_arrived / window.seconds
        scores.append(abs(found_per_s - expected.mean_per_s) / expected.std_per_s)
        forecaster.observe(window.start_s, window.end_s, window.num_arrived)
    late = scores[3:]
    assert sum(score < 2.0 for score in late) >= 0.9 * len(late)


def windows_of(snapshots):
    book = WindowBook()
    book.observe(snapshots[0])
    for snapshot in snapshots[1:]:
        book.observe(snapshot)
        (window,) = book.close().values()
        yield window, snapshot


def test_debt_is_the_largest_sum_of_misses_up_to_now_and_at_most_a_round(snapshots):
    target_share, uncapped, replica = 0.95, SloDebt(0.95, max_debt=1e9), ReplicaEstimates(0.95, 30)
    owed, debts = [], []
    for window, snapshot in windows_of(snapshots):
        replica.learn(window, snapshot)
        uncapped.observe(window.num_ended, window.num_met)
        owed.append(target_share - window.num_met / window.num_ended)
        # Lindley: what a queue holds is the largest sum of what came last, less what was served.
        sums = [sum(owed[start:]) for start in range(len(owed) + 1)]
        assert uncapped.value == pytest.approx(max(sums))
        debts.append(replica.debt / 100.0)
    before_burst, after_burst = debts[2], debts[6]
    assert before_burst == 0.0
    assert after_burst == 1.0  # a window in which all missed
    assert max(debts) == 1.0 < uncapped.value
    paid = [later < now for now, later in zip(debts, debts[1:], strict=False)]
    good = [one < 0.0 for one in owed[1:]]
    assert paid == [is_good and now > 0.0 for is_good, now in zip(good, debts, strict=False)]
