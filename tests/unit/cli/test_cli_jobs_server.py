"""The commands against the server's own routes, so that both mean the same by every field."""

import json

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from collm.cli import api_client
from collm.cli.main import app
from collm.server.app import make_app
from collm.server.config import ServerConfig
from collm.types import VersionId
from factories.fake_backends import fake_backends
from factories.fake_learning import FakeFineTuning, FakeUploads

runner = CliRunner()

SAMPLE = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}


@pytest.fixture
def tuning(monkeypatch) -> FakeFineTuning:
    uploads = FakeUploads()
    found = FakeFineTuning(uploads)
    server = make_app(fake_backends(uploads=uploads, fine_tuning=found), ServerConfig())
    monkeypatch.setattr(
        api_client, "_open_http", lambda url, is_local: TestClient(server, base_url=url)
    )
    return found


@pytest.fixture
def samples(tmp_path):
    path = tmp_path / "samples.jsonl"
    path.write_text(json.dumps(SAMPLE) + "\n")
    return path


def run(*arguments):
    return runner.invoke(app, list(map(str, arguments)), env={"COLUMNS": "120"})


def output(*arguments):
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout.strip()


def test_job_is_created_with_everything_that_was_asked_for(tuning, samples):
    held_out = output("files", "add", samples)
    job_id = output(
        "jobs", "create", "--name", "helper", "--train", samples, "--validation", held_out,
        "--set", "n_epochs=3", "--set", "learning_rate=1e-3", "--set", "batch_size=auto",
        "--set", "rank=4", "--seed", 0, "--metadata", "team=x",
    )  # fmt: skip
    (request,) = tuning.requests
    assert request.adapter == "helper"
    assert request.validation_file == held_out != request.training_file
    assert request.hyperparameters == {"n_epochs": 3, "learning_rate": 0.001, "rank": 4}
    assert (request.seed, request.metadata) == (0, {"team": "x"})
    shown = output("jobs", "show", job_id)
    assert "learning_rate 0.001" in shown
    assert "team x" in shown


def test_continuous_job_without_a_file_or_a_name_is_accepted(tuning):
    job_id = output("jobs", "create", "--continuous")
    assert tuning.requests[0].is_continuous
    assert tuning.requests[0].adapter.startswith("ft-")
    assert job_id in output("jobs", "list")


def test_job_is_steered(tuning):
    job_id = tuning.add_job(adapter="helper").job_id
    for verb, status in (("pause", "paused"), ("resume", "running"), ("cancel", "cancelled")):
        assert output("jobs", verb, job_id) == f"{job_id} is {status}"
    result = run("jobs", "cancel", job_id)
    assert (result.exit_code, result.stderr) == (1, f"collm: job {job_id} has ended: cancelled\n")


def test_lists_read_what_the_routes_say(tuning, samples):
    job_id = tuning.add_job(adapter="helper", result=VersionId("helper@2")).job_id
    for number in range(150):
        tuning.add_event(job_id, f"step {number}", loss=2.5)
    assert "helper@2" in output("jobs", "list")
    assert len(json.loads(output("jobs", "events", job_id, "--limit", 140, "--json"))) == 140
    latest = output("jobs", "events", job_id)
    assert latest.index("step 130") < latest.index("step 149")
    file_id = output("files", "add", samples)
    assert "samples.jsonl" in output("files", "list")
    output("files", "delete", file_id)
    assert json.loads(output("files", "list", "--json")) == []


def test_mistake_in_a_file_names_the_line(tuning, samples):
    samples.write_text(json.dumps(SAMPLE) + "\n{}\n")
    result = run("jobs", "create", "--train", samples)
    assert result.exit_code == 1
    assert "line 2" in result.stderr
    assert not tuning.requests
