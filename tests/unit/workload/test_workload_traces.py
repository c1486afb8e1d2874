import gzip
import itertools
import statistics
from random import Random

import pytest

from collm.errors import DataError
from collm.workload.traces import SHIPPED_TRACES, Trace, TraceRow, load_trace
from collm.workload.transforms import (
    clip_lengths,
    divide_lengths,
    scale_time,
    slice_time,
    thin_keeping_bursts,
)

TRACE = (
    TraceRow(0.0, 100, 10, "a"),
    TraceRow(1.0, 200, 20, "b"),
    TraceRow(1.5, 3000, 900, "a"),
    TraceRow(4.0, 1, 1, "b"),
)


def gap_variation(trace: Trace) -> float:
    """Return the coefficient of variation of the gaps between arrivals; 1 for Poisson."""
    gaps = [after.arrived_at_s - row.arrived_at_s for row, after in itertools.pairwise(trace)]
    return statistics.pstdev(gaps) / statistics.fmean(gaps)


def thin(trace: Trace, keep_share: float, seed: int) -> Trace:
    """Keep each row with a probability, at its own time."""
    random = Random(seed)
    return tuple(row for row in trace if random.random() < keep_share)


@pytest.mark.parametrize(
    ("name", "num_rows", "variation"),
    [
        ("azure_conv_2023", 19_366, 1.09),
        ("azure_code_2023", 8_819, 13.15),
        ("servegen_edge16_day", 30_199, 1.28),
    ],
)
def test_shipped_trace_has_the_rows_and_variation_its_source_states(name, num_rows, variation):
    trace = load_trace(name)
    assert len(trace) == num_rows
    assert gap_variation(trace) == pytest.approx(variation, abs=0.01)


def test_every_shipped_trace_is_listed():
    assert len(SHIPPED_TRACES) == 3
    assert len({row.site for row in load_trace("servegen_edge16_day")}) == 16


@pytest.mark.parametrize("packed", [False, True])
def test_own_trace_is_read_from_a_path(tmp_path, packed):
    text = "arrived_at_s,prompt_tokens,output_tokens\n0.5,3,4\n0.5,5,6\n"
    path = tmp_path / ("t.csv.gz" if packed else "t.csv")
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    assert load_trace(path) == (TraceRow(0.5, 3, 4), TraceRow(0.5, 5, 6))


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ("when,prompt_tokens,output_tokens\n", "line 1: columns must be arrived_at_s"),
        ("arrived_at_s,prompt_tokens,output_tokens\n1,2\n", "line 2: 2 fields instead of 3"),
        ("arrived_at_s,prompt_tokens,output_tokens\n1,2,x\n", "line 2: invalid literal"),
        ("arrived_at_s,prompt_tokens,output_tokens\nnan,2,3\n", "line 2: arrived_at_s must be"),
        ("arrived_at_s,prompt_tokens,output_tokens\n1,0,3\n", "line 2: prompt_tokens and"),
        ("arrived_at_s,prompt_tokens,output_tokens\n1,2,3\n0,2,3\n", "line 3: arrived_at_s is"),
    ],
)
def test_malformed_trace_names_file_and_line(tmp_path, rows, complaint):
    path = tmp_path / "bad.csv"
    path.write_text(rows)
    with pytest.raises(DataError, match=complaint) as error:
        load_trace(path)
    assert "bad.csv" in str(error.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("no.csv.gz", b"arrived_at_s"),
        (
            "cut.csv.gz",
            gzip.compress(b"arrived_at_s,prompt_tokens,output_tokens\n" * 9, mtime=0)[:30],
        ),
        ("latin.csv", b"arrived_at_s,prompt_tokens,output_tokens\n\xff,1,1\n"),
        ("long.csv", b"arrived_at_s,prompt_tokens,output_tokens\n" + b"1" * 200_000),
    ],
)
def test_trace_that_cannot_be_read_is_named(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=f"{name} cannot be read: "):
        load_trace(tmp_path / name)


def test_unknown_trace_lists_what_is_shipped():
    with pytest.raises(DataError, match="azure_conv_2023"):
        load_trace("azure_chat")


def test_slice_counts_time_from_its_start_and_leaves_out_its_end():
    assert [row.arrived_at_s for row in slice_time(TRACE, 1.0, 4.0)] == [0.0, 0.5]


def test_scaling_time_keeps_lengths_and_variation():
    scaled = scale_time(TRACE, 0.5)
    assert [row.arrived_at_s for row in scaled] == [0.0, 0.5, 0.75, 2.0]
    assert gap_variation(scaled) == pytest.approx(gap_variation(TRACE))
    assert scaled[2].prompt_tokens == 3000


def test_lengths_are_clipped_or_divided_to_at_least_one_token():
    clipped = clip_lengths(TRACE, 1000, 15)
    assert [(row.prompt_tokens, row.output_tokens) for row in clipped] == [
        (100, 10), (200, 15), (1000, 15), (1, 1),
    ]  # fmt: skip
    divided = divide_lengths(TRACE, 20)
    assert [(row.prompt_tokens, row.output_tokens) for row in divided] == [
        (5, 1), (10, 1), (150, 45), (1, 1),
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("keep_share", [0.5, 0.25])
def test_burst_keeping_thinning_keeps_the_variation_that_plain_thinning_loses(keep_share, seed):
    trace = load_trace("azure_code_2023")
    before = gap_variation(trace)
    kept = thin_keeping_bursts(trace, keep_share, seed)
    assert gap_variation(kept) == pytest.approx(before, rel=0.1)
    assert gap_variation(thin(trace, keep_share, seed)) < 0.75 * before


def test_burst_keeping_thinning_does_not_make_bursts_where_there_were_none():
    trace = load_trace("azure_conv_2023")
    variations = [gap_variation(thin_keeping_bursts(trace, 0.05, seed)) for seed in range(3)]
    assert statistics.fmean(variations) == pytest.approx(gap_variation(trace), rel=0.15)


def test_burst_keeping_thinning_keeps_count_duration_and_order():
    trace = load_trace("azure_code_2023")
    kept = thin_keeping_bursts(trace, 0.1, seed=0)
    assert len(kept) == pytest.approx(0.1 * len(trace), abs=2)
    assert kept[-1].arrived_at_s == pytest.approx(trace[-1].arrived_at_s)
    times = [row.arrived_at_s for row in kept]
    assert times == sorted(times)


def test_thinning_is_repeatable_and_keeping_all_changes_nothing():
    trace = load_trace("azure_code_2023")[:500]
    assert thin_keeping_bursts(trace, 0.3, 7) == thin_keeping_bursts(trace, 0.3, 7)
    assert thin_keeping_bursts(trace, 0.3, 7) != thin_keeping_bursts(trace, 0.3, 8)
    everything = thin_keeping_bursts(trace, 1.0, 7)
    assert [row.prompt_tokens for row in everything] == [row.prompt_tokens for row in trace]
    assert [row.arrived_at_s for row in everything] == pytest.approx(
        [row.arrived_at_s for row in trace]
    )
    with pytest.raises(ValueError, match="keep_share"):
        thin_keeping_bursts(trace, 0.0, 7)


def test_thinning_takes_traces_without_gaps():
    assert thin_keeping_bursts((), 0.5, 0) == ()
    assert thin_keeping_bursts(TRACE[:1], 0.5, 0) == TRACE[:1]
    together = (TraceRow(1.0, 1, 1),) * 5
    assert {row.arrived_at_s for row in thin_keeping_bursts(together, 0.5, 0)} == {1.0}
