import pytest

from collm.errors import DataError
from collm.server.dashboard.frames import CLUSTER, FIELDS, Recent, encode, frame, stretch_of
from collm.server.dashboard.readings import read
from factories.figures import figures


def recent_of(*times_s, **changes):
    recent = Recent()
    for at_s in times_s:
        recent.add(read(figures(at_s, **changes)), at_s)
    return recent


def row_of(stretches, name=CLUSTER, **at):
    rows = frame(1_700_000_000.0, stretches, ())["rows"]
    return dict(zip(FIELDS, rows[name], strict=True))


def test_row_says_what_happened_between_two_readings():
    row = row_of({"r0": stretch_of(recent_of(10.0, 20.0), 10.0)})
    shares = [row[kind] for kind in ("decode", "prefill", "train", "evaluate", "idle")]
    assert shares == [0.375, 0.125, 0.25, 0.125, 0.125]
    assert row["attained"] == pytest.approx(2 / 3, abs=1e-4)
    assert row["goodput"] == 2.0
    assert row["quality_goodput"] == 4.0  # Q = 1 / 0.5
    assert row["output_tokens"] == 30.0
    assert row["training_tokens"] == 100.0
    assert (row["running"], row["waiting"], row["kv"]) == (3.0, 1.0, 0.25)


@pytest.mark.parametrize(
    ("field", "seconds"),
    [("ttft_p50", 0.2), ("ttft_p95", 2.0), ("tpot_p50", 0.05), ("tpot_p95", 0.2)],
)
def test_percentiles_are_at_most_seven_percent_above_the_values(field, seconds):
    row = row_of({"r0": stretch_of(recent_of(10.0, 20.0), 10.0)})
    assert seconds <= row[field] <= seconds * 1.07


def test_cluster_row_adds_counts_and_averages_shares():
    busy = figures(0.0)["loop_seconds"] | {"serve": 0.0}
    idle = Recent()
    for at_s in (10.0, 20.0):
        idle.add(read(figures(at_s, loop_seconds=busy | {"train": 0.0, "idle": at_s})), at_s)
    stretches = {
        "r0": stretch_of(recent_of(10.0, 20.0), 10.0),
        "r1": stretch_of(idle, 10.0),
    }
    row = row_of(stretches)
    assert row["goodput"] == 4.0
    assert row["running"] == 6.0
    assert row["training_tokens"] == 200.0
    assert row["idle"] == pytest.approx((0.125 + 1.0) / 2, abs=1e-4)


def test_short_period_still_tells_of_half_a_minute_of_requests():
    recent = recent_of(*(float(second) for second in range(0, 41)))
    stretch = stretch_of(recent, 1.0)
    assert stretch.work.elapsed_s == 1.0
    assert stretch.requests.elapsed_s == 30.0


def test_readings_of_more_than_a_minute_ago_are_let_go():
    recent = recent_of(*(float(second) for second in range(0, 600)))
    assert recent.since(10_000.0).elapsed_s == 60.0


def test_totals_of_a_restarted_replica_are_not_mixed_with_those_of_its_life_before():
    recent = recent_of(100.0, 101.0, 2.0)
    assert stretch_of(recent, 1.0) is None
    recent.add(read(figures(3.0)), 103.0)
    row = row_of({"r0": stretch_of(recent, 1.0)})
    assert row["goodput"] == 2.0


def test_percentiles_and_attainment_are_unknown_without_requests():
    quiet = figures(0.0)["serving"]
    row = row_of({"r0": stretch_of(recent_of(10.0, 20.0, serving=quiet), 10.0)})
    assert [row[name] for name in ("ttft_p95", "tpot_p50", "attained")] == [None, None, None]
    assert row["goodput"] == 0.0


def test_frame_without_replicas_has_no_rows_and_names_who_is_missing():
    empty = frame(5.0, {}, {"r1", "r0"})
    assert empty["rows"] == {}
    assert empty["missing"] == ["r0", "r1"]


def test_frame_tells_how_each_adapter_learns_on_each_replica():
    made = frame(5.0, {"r0": stretch_of(recent_of(10.0, 20.0), 10.0)}, ())
    learning = made["learning"]["clinc"]["r0"]
    assert learning["version"] == "clinc@3"
    assert (learning["served"], learning["shadow"], learning["step"]) == (0.5, 0.4, 20)
    assert made["objectives"] == {"ttft_s": 0.8, "tpot_s": 0.1}


@pytest.mark.parametrize(
    "numbers",
    [
        None,
        [],
        {"num_running": 0},
        {**figures(1.0), "serving": {}},
        {**figures(1.0), "at_s": float("nan")},
        {**figures(1.0), "running": None},
        {**figures(1.0), "adapters": {"clinc": 3}},
    ],
)
def test_figures_of_another_form_are_refused_by_one_kind_of_error(numbers):
    with pytest.raises(DataError):
        read(numbers)


def test_what_browsers_cannot_read_is_never_encoded():
    with pytest.raises(ValueError, match="JSON"):
        encode({"loss": float("nan")})
