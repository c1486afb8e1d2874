import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from collm.cli.demo_files import write_files
from collm.cli.demo_progress import Progress
from collm.cli.demo_replica import make_contents
from collm.cli.demo_report import DemoReport, make_report
from collm.cli.demo_settings import DemoSettings, server_settings
from collm.cli.demo_tables import draw_report
from collm.cli.demo_traffic import TraceUse
from collm.pacing.config import Objectives
from collm.types import VersionId
from factories.demo import GROUPS, START_S, learning_run, record

USE = TraceUse(
    length_divisor=2.0,
    trace="t", start_hour=1, num_hours=2, num_rows=9, num_requests=3, speed_up=60.0,
    max_prompt_tokens=512, max_output_tokens=128, num_scored=1,
)  # fmt: skip


def settings(out: Path) -> DemoSettings:
    return DemoSettings(
        minutes=2, requests_per_s=1, seed=7, out=out, port=0, model="tiny", budget="objective"
    )


def write(report: DemoReport, progress: Progress, chosen: DemoSettings) -> Path:
    return write_files(make_contents(report, progress, server_settings(chosen)), chosen, USE)


def report_of(progress: Progress) -> DemoReport:
    return make_report(progress, Objectives(), 100.0, "complete")


def test_first_and_last_answers_do_not_overlap():
    found = report_of(learning_run(num_answers=40)).exact_match
    assert (found.first.num_right, found.first.num_answers) == (0, 20)
    assert (found.last.num_right, found.last.num_answers) == (20, 20)
    assert (found.all.num_right, found.all.num_answers) == (20, 40)


def test_long_run_compares_three_hundred_answers():
    report = report_of(learning_run(num_answers=700))
    assert report.exact_match.first.num_answers == report.exact_match.last.num_answers == 300
    assert {name: found.num_answers for name, found in report.exact_match_by_domain.items()} == {
        "banking": 150,
        "utility": 150,
    }
    assert report.out_of_scope.all.num_right == 1


def test_objectives_are_judged_together_and_alone():
    progress = Progress(GROUPS, START_S)
    progress.add(record(0.0))
    progress.add(record(1.0, first_token_at_s=START_S + 1.9, last_token_at_s=START_S + 2.2))
    progress.add(record(2.0, last_token_at_s=START_S + 9.0))
    progress.add(record(3.0, outcome="failed"))
    serving = report_of(progress).serving
    assert serving.attainment.num_met == 1
    assert serving.ttft_met.num_met == 2
    assert serving.tpot_met.num_met == 2
    assert serving.attainment.num_counted == 4
    assert serving.attainment_by_kind["length"].num_counted == 4
    assert serving.longest_scored_gap_s is None


@pytest.mark.parametrize(
    "bad",
    [
        {"outcome": "failed"},
        {"outcome": "rejected"},
        {"versions": (VersionId("base"), VersionId("clinc@1"))},
    ],
)
def test_run_with_a_bad_request_is_not_clean(bad):
    progress = learning_run()
    assert report_of(progress).serving.is_clean
    progress.add(record(5.0, **bad))
    assert not report_of(progress).serving.is_clean


def test_files_hold_the_run(tmp_path):
    progress = learning_run()
    path = write(report_of(progress), progress, settings(tmp_path))
    report = json.loads(path.read_text())
    assert report["seed"] == 7
    assert report["is_partial"] is False
    last = report["exact_match"]["last"]
    assert (last["num_right"], last["num_answers"], last["share"]) == (20, 20, 1.0)
    assert last["interval"] == [pytest.approx(0.839, abs=1e-3), 1.0]
    assert report["serving"]["attainment"]["share"] == 1.0
    assert report["trace"]["num_rows"] == 9
    assert report["configuration"]["pacing"]["budget"] == "objective"
    assert {"torch", "collm"} <= report["versions"].keys()
    assert [row["share"] for row in report["exact_match_over_time"]][:10] == [0.0] * 5 + [1.0] * 5
    assert any("CC BY 3.0" in line for line in report["attributions"])
    rows = [json.loads(line) for line in (tmp_path / "requests.jsonl").read_text().splitlines()]
    assert len(rows) == 81
    assert rows[2]["arrived_at_s"] == pytest.approx(2.5)
    assert rows[2]["ttft_s"] == pytest.approx(0.2)
    assert len((tmp_path / "looks.jsonl").read_text().splitlines()) == 3


def test_run_without_any_request_can_be_reported(tmp_path):
    progress = Progress(GROUPS, START_S)
    report = make_report(progress, Objectives(), 0.0, "interrupted")
    content = json.loads(write(report, progress, settings(tmp_path)).read_text())
    assert content["is_partial"]
    assert content["end"] == "interrupted"
    assert content["serving"]["attainment"]["share"] is None
    console = Console(file=StringIO(), width=80)
    console.print(draw_report(report, settings(tmp_path)))


def test_tables_fit_eighty_columns_and_name_the_figures(tmp_path):
    file = StringIO()
    report = report_of(learning_run(700))
    Console(file=file, width=80).print(draw_report(report, settings(tmp_path)))
    text = file.getvalue()
    for words in ("100.0 %  300/300", "0.0 %  0/300", "TTFT ≤ 0.8 s", "90 ms · 120 ms", "30,000"):
        assert words in text
    assert "…" not in text
