"""What is seen, shown and reported of a demo of several replicas."""

import json
from io import StringIO

import pytest
from rich.console import Console

from collm.cli.demo_answers import share_right
from collm.cli.demo_cluster import make_contents
from collm.cli.demo_cluster_progress import ClusterProgress
from collm.cli.demo_cluster_report import make_cluster_report
from collm.cli.demo_cluster_screen import cluster_line, draw_cluster_screen
from collm.cli.demo_cluster_tables import draw_cluster_report
from collm.cli.demo_settings import DemoSettings
from collm.pacing.config import Objectives
from factories.demo import GROUPS, SITES, START_S, answered_by, learning_cluster, record

SETTINGS = DemoSettings(
    minutes=2, requests_per_s=1, seed=7, out="out", port=0, model="smollm2-135m-instruct",
    budget="latency", num_replicas=2,
)  # fmt: skip


def report_of(progress):
    return make_cluster_report(progress, Objectives(), 100.0, "complete")


def test_answer_counts_for_the_replica_that_gave_it_as_own_or_foreign():
    progress = ClusterProgress(GROUPS, SITES, START_S)
    for number, (name, expected) in enumerate(
        [("r0", "transfer"), ("r0", "timer"), ("r0", "out of scope"), ("r1", "timer")]
    ):
        progress.add(record(number, expected, request_id=answered_by(name, number)))
    first, second = progress.sites["r0"], progress.sites["r1"]
    assert [answer.group for answer in first.own] == ["banking"]
    assert [answer.group for answer in first.foreign] == ["utility"]
    assert [answer.group for answer in second.own] == ["utility"]
    assert not second.foreign
    assert len(progress.whole.out_of_scope) == 1


@pytest.mark.parametrize("request_id", ["replay-3", answered_by("stranger", 1)])
def test_request_that_no_replica_answered_is_counted_once(request_id):
    progress = ClusterProgress(GROUPS, SITES, START_S)
    progress.add(record(0.0, "timer", request_id=request_id, outcome="failed"))
    assert progress.whole.num_failed == 1
    assert not any(site.seen.records for site in progress.sites.values())


def test_a_round_is_kept_as_of_the_latest_look():
    progress = learning_cluster()
    assert progress.latest_round.number == 2
    assert progress.latest_round.status == "gating"
    assert progress.num_promoted == 1
    assert progress.num_sequences() == (4, 2)


def test_report_tells_own_from_foreign_by_replica():
    report = report_of(learning_cluster())
    for site in report.sites.values():
        assert share_right([]) is None
        assert (site.own.first.share, site.own.last.share) == (1.0, 1.0)
        assert (site.foreign.first.share, site.foreign.last.share) == (0.0, 1.0)
        assert site.exam["together"].foreign.share == 0.7
        assert [served.version for served in site.versions] == ["clinc@1"]
    assert not report.serving.is_clean


def test_contents_are_ready_for_json_with_looks_in_their_order():
    progress = learning_cluster()
    contents = make_contents(report_of(progress), progress, {"seed": 7})
    figures = json.loads(json.dumps(contents.figures, allow_nan=False))
    assert figures["sites"]["r0"]["exam"]["alone"]["own"]["share"] == 0.3
    assert figures["rounds"][0]["parts"][0]["num_tokens"] == 6_000
    assert figures["exact_match_over_time"]["r1"]["foreign"][0]["share"] == 0.0
    assert [look["replica"] for look in contents.looks] == ["r0", "r1"]


def test_tables_fit_eighty_columns_and_name_the_figures():
    file = StringIO()
    report = report_of(learning_cluster())
    Console(file=file, width=80).print(draw_cluster_report(report, SETTINGS))
    text = file.getvalue()
    for words in (
        "r0, own domains", "r1, foreign domains", "30.0 %  3/10", "70.0 %  7/10", "-0.250",
        "clinc@1 promoted on r0, r1", "samples: r0 200, r1 200", "together: clinc@1",
    ):  # fmt: skip
        assert words in text
    assert "…" not in text


def test_run_that_has_seen_nothing_can_be_reported():
    progress = ClusterProgress(GROUPS, SITES, START_S)
    report = make_cluster_report(progress, Objectives(), 0.0, "interrupted")
    Console(file=StringIO(), width=80).print(draw_cluster_report(report, SETTINGS))
    assert "base model" in cluster_line(progress, 0.0)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40)])
def test_screen_shows_each_replica_and_the_rounds(width, height):
    console = Console(file=StringIO(), width=width, height=height, force_terminal=False)
    screen = draw_cluster_screen(learning_cluster(), SETTINGS, 100.0)
    lines = console.render_lines(screen, console.options.update(height=height))
    assert len(lines) == height
    text = "\n".join("".join(segment.text for segment in line) for line in lines)
    for words in (
        "2 of 2 live", "round 2", "gating", "loss -0.250", "r0: banking", "r1: utility",
        "own domains, last 30: 100.0 %", "foreign domains, last 30: 50.0 %", "clinc@1",
    ):  # fmt: skip
        assert words in text


def test_line_names_the_round_and_each_replica():
    line = cluster_line(learning_cluster(), 60.0)
    for words in ("1:00", "round 2 gating", "r0 clinc@1: own 100.0 %, foreign 50.0 %", "serving"):
        assert words in line
