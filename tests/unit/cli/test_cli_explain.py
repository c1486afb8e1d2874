"""``collm explain`` with what a front really answers, made by its planner's own functions."""

import json

import pytest
from typer.testing import CliRunner

from collm.cli import api_client
from collm.cli.main import app
from collm.cluster.planning.allocator import Allocator
from collm.cluster.planning.explain import describe, explain
from factories.allocation_problems import adapter, problem, replica
from factories.fake_api import FakeApi

runner = CliRunner()
CASE = problem({"r0": replica(), "r1": replica()}, {"support": adapter()})
ALLOCATION = Allocator().solve(CASE)
HEAD = {"number": 12, "made_at_s": 7.0}


@pytest.fixture
def api(monkeypatch):
    api = FakeApi()
    monkeypatch.setattr(api_client, "_open_http", api.open_http)
    return api


def output(*arguments):
    result = runner.invoke(app, ["explain", *arguments], env={"COLUMNS": "140"})
    assert result.exit_code == 0, result.output
    return result.stdout


def test_all_replicas_are_a_table_under_the_objective(api):
    api.on("GET", "/cluster/allocation", HEAD | describe(CASE, ALLOCATION))
    text = output()
    assert "12" in text
    assert "proportional traffic, no credit" in text
    for name in ("r0", "r1"):
        assert name in text
    assert "support 100% in steps of" in text


def test_one_replicas_part_is_explained_in_lines(api):
    content = HEAD | explain(CASE, ALLOCATION, "r1")
    api.on("GET", "/cluster/allocation", content)
    lines = output("r1").splitlines()
    assert lines[0] == "r1, allocation 12"
    assert [line.strip() for line in lines[1:]] == content["text"]
    assert api.requests[-1].url.params["replica"] == "r1"


def test_json_is_what_the_front_says(api):
    content = HEAD | explain(CASE, ALLOCATION, "r1")
    api.on("GET", "/cluster/allocation", content)
    assert json.loads(output("r1", "--json")) == json.loads(json.dumps(content))


def test_lone_replica_is_told_from_a_front_that_has_allocated_nothing(api):
    api.refuse("GET", "/cluster/allocation", 404, "There is no route.", code="unknown_url")
    result = runner.invoke(app, ["explain"])
    assert result.exit_code == 1
    assert "one replica alone" in result.stderr
    assert "--replicas" in result.stderr


def test_refusal_is_one_line(api):
    api.refuse("GET", "/cluster/allocation", 404, "there is no allocation yet")
    result = runner.invoke(app, ["explain"])
    assert result.exit_code == 1
    assert result.stderr.strip() == "collm: there is no allocation yet"
