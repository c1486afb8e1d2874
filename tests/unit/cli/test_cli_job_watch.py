"""``collm jobs watch`` against a server whose answers change from look to look."""

import json

import httpx
import pytest
from typer.testing import CliRunner

from collm.cli import api_client, job_watch
from collm.cli.main import app
from factories.fake_api import FakeApi

runner = CliRunner()

JOBS = "/v1/fine_tuning/jobs"
JOB = {
    "id": "ftjob-1", "adapter": "support", "status": "running", "created_at": 1_700_000_000,
    "trained_tokens": 100, "version": None, "error": None, "progress": 0.5,
}  # fmt: skip
DONE = {**JOB, "status": "succeeded", "version": "support@2", "progress": 1.0}
FAILED = {**JOB, "status": "failed", "error": {"code": "x", "message": "out of memory"}}


def event(number, message, level="info"):
    return {"id": f"e{number}", "created_at": 1_700_000_000, "level": level, "message": message}


ONE, TWO, THREE = event(1, "began"), event(2, "step 10", "warn"), event(3, "ended")


@pytest.fixture
def api(monkeypatch) -> FakeApi:
    fake = FakeApi()
    monkeypatch.setattr(api_client, "_open_http", fake.open_http)
    monkeypatch.setattr(job_watch, "_PERIOD_S", 0.0)
    return fake


def play(api, *looks):
    """Answer each look with the next job and its events, newest first; ``None`` answers none."""
    left = list(looks)

    def job(request):
        look = left[0]
        if look is None:
            left.pop(0)
            raise httpx.ConnectError("refused")
        return httpx.Response(200, json=look[0])

    def events(request):
        return httpx.Response(200, json={"data": left.pop(0)[1], "has_more": False})

    api.answer("GET", f"{JOBS}/ftjob-1", job)
    api.answer("GET", f"{JOBS}/ftjob-1/events", events)


def run(*arguments):
    return runner.invoke(app, ["jobs", "watch", *map(str, arguments)], env={"COLUMNS": "100"})


def messages(result):
    return [line.split(maxsplit=2)[2] for line in result.stdout.splitlines()]


def test_each_event_is_printed_once_in_order_until_the_job_ends(api):
    play(api, (JOB, [ONE]), (JOB, [TWO, ONE]), (JOB, [TWO, ONE]), (DONE, [THREE, TWO, ONE]))
    result = run("ftjob-1")
    assert messages(result) == ["began", "warn: step 10", "ended"]
    assert result.stderr == "ftjob-1 is succeeded; its latest version is support@2\n"
    assert result.exit_code == 0


def test_json_is_a_line_for_each_event_and_nothing_else(api):
    play(api, (JOB, [TWO, ONE]), (DONE, [THREE, TWO, ONE]))
    result = run("ftjob-1", "--json")
    assert [json.loads(line) for line in result.stdout.splitlines()] == [ONE, TWO, THREE]


def test_earlier_events_are_left_out_past_the_limit(api):
    play(api, (JOB, [TWO, ONE]), (DONE, [THREE, TWO, ONE]))
    assert messages(run("ftjob-1", "--limit", 1)) == ["warn: step 10", "ended"]
    play(api, (DONE, [THREE, TWO, ONE]))
    assert run("ftjob-1", "--limit", 0).stdout == ""


def test_job_that_failed_ends_the_command_with_one_and_its_reason(api):
    play(api, (FAILED, []))
    result = run("ftjob-1")
    assert (result.exit_code, result.stderr) == (1, "ftjob-1 is failed: out of memory\n")


def test_server_that_is_started_anew_is_waited_for(api):
    play(api, (JOB, [ONE]), None, None, (DONE, [TWO, ONE]))
    result = run("ftjob-1")
    assert (result.exit_code, messages(result)) == (0, ["began", "warn: step 10"])


def test_server_that_was_never_there_is_not_waited_for(api):
    play(api, None)
    result = run("ftjob-1")
    assert result.exit_code == 3
    assert "no server answers" in result.stderr


def test_server_that_stays_away_is_given_up(api, monkeypatch):
    monkeypatch.setattr(job_watch, "_PATIENCE_S", 0.0)
    play(api, (JOB, [ONE]), None, None)
    assert run("ftjob-1").exit_code == 3


def test_without_an_id_the_newest_open_job_is_followed(api):
    others = [{**DONE, "id": "ftjob-3"}, JOB, {**JOB, "id": "ftjob-0"}]
    api.on("GET", JOBS, {"data": others, "has_more": False})
    play(api, (DONE, [ONE]))
    assert "ftjob-1 is succeeded" in run().stderr
    api.on("GET", JOBS, {"data": [DONE], "has_more": False})
    result = run()
    assert result.exit_code == 1
    assert "no job is under way" in result.stderr


def test_text_of_a_server_cannot_steer_the_terminal(api):
    play(api, (DONE, [event(1, "a\x1b[2Jb")]))
    assert "\x1b" not in run("ftjob-1").stdout
