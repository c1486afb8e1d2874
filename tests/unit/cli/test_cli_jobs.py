import json

import pytest
from typer.testing import CliRunner

from collm.cli import api_client
from collm.cli.main import app
from factories.fake_api import FakeApi

runner = CliRunner()

JOBS = "/v1/fine_tuning/jobs"
JOB = {
    "id": "ftjob-1", "object": "fine_tuning.job", "adapter": "support", "status": "running",
    "created_at": 1_700_000_000, "finished_at": None, "trained_tokens": 12_345,
    "fine_tuned_model": None, "version": "support@3", "continuous": False, "training_file": "",
    "method": {"type": "supervised"}, "hyperparameters": {"n_epochs": 3}, "metadata": {},
}  # fmt: skip
EVENTS = [
    {"id": "e2", "created_at": 1_700_000_060, "level": "warn", "message": "reset", "data": None},
    {
        "id": "e1", "created_at": 1_700_000_000, "level": "info", "message": "step [7]",
        "data": {"loss": 2.5, "slices": {"a": {"n": 2, "sum_d": 1.0, "sum_d2": 1.0, "bound": 0.1}}},
        "type": "metrics",
    },
]  # fmt: skip
MODELS = {"data": [{"id": "support", "parent": "tiny"}, {"id": "tiny", "parent": None}]}


@pytest.fixture
def api(monkeypatch) -> FakeApi:
    fake = FakeApi()
    monkeypatch.setattr(api_client, "_open_http", fake.open_http)
    fake.on("GET", "/v1/models", MODELS)
    fake.on("POST", "/v1/files", {"id": "file-9"})
    fake.on("POST", JOBS, JOB)
    return fake


def run(*arguments):
    return runner.invoke(app, ["jobs", *map(str, arguments)], env={"COLUMNS": "100"})


def test_help_teaches_by_examples():
    result = run("--help")
    assert "Examples: `collm jobs create --name support --train" in result.stdout


def test_list_shows_what_each_job_is_at(api):
    api.on("GET", JOBS, {"object": "list", "data": [JOB], "has_more": False})
    result = run("list")
    assert result.exit_code == 0
    for words in ("ftjob-1", "support", "running", "12,345", "support@3"):
        assert words in result.stdout
    assert json.loads(run("list", "--json").stdout) == [JOB]


def test_list_keeps_ids_whole_on_a_narrow_terminal(api):
    job = {**JOB, "id": "ftjob-0123456789abcdef01234567", "adapter": "questions-of-customers"}
    api.on("GET", JOBS, {"object": "list", "data": [job], "has_more": False})
    shown = runner.invoke(app, ["jobs", "list"], env={"COLUMNS": "60"}).stdout
    assert job["id"] in shown
    assert max(map(len, shown.splitlines())) <= 60


def test_list_says_when_there_are_more_and_when_there_are_none(api):
    api.on("GET", JOBS, {"data": [JOB], "has_more": True})
    assert "--limit" in run("list", "--limit", 1).stderr
    api.on("GET", JOBS, {"data": [], "has_more": False})
    assert "collm jobs create" in run("list").stdout


def test_show_leaves_out_what_is_not_set(api):
    api.on("GET", f"{JOBS}/ftjob-1", JOB)
    result = run("show", "ftjob-1")
    assert "n_epochs 3" in result.stdout
    for name in ("finished_at", "training_file", "method"):
        assert name not in result.stdout
    assert json.loads(run("show", "ftjob-1", "--json").stdout) == JOB


def test_shipped_set_is_told_from_a_file_that_is_missing(api):
    result = run("create", "--name", "a", "--train", "clinc150")
    assert result.exit_code == 2
    assert "collm serve --train NAME=clinc150" in result.stderr
    assert "missing.jsonl cannot be read" in run("create", "--train", "missing.jsonl").stderr


def test_create_uploads_its_files_and_prints_the_id(api, tmp_path):
    (tmp_path / "t.jsonl").write_text('{"messages": []}\n')
    result = run(
        "create", "--name", "support", "--train", tmp_path / "t.jsonl", "--validation", "file-2",
        "--set", "n_epochs=3", "--set", "learning_rate=1e-3", "--set", "batch_size=auto",
        "--seed", 0, "--metadata", "team=a=b",
    )  # fmt: skip
    assert (result.exit_code, result.stdout) == (0, "ftjob-1\n")
    upload = next(request for request in api.requests if request.url.path == "/v1/files")
    assert b'name="purpose"\r\n\r\nfine-tune' in upload.content
    assert b'filename="t.jsonl"' in upload.content
    assert api.sent() == {
        "model": "tiny",
        "training_file": "file-9",
        "validation_file": "file-2",
        "adapter": "support",
        "hyperparameters": {"n_epochs": 3, "learning_rate": 0.001, "batch_size": "auto"},
        "seed": 0,
        "metadata": {"team": "a=b"},
    }


def test_continuous_job_needs_no_file(api):
    assert run("create", "--name", "support", "--continuous").exit_code == 0
    assert api.sent() == {"model": "tiny", "adapter": "support", "continuous": True}


@pytest.mark.parametrize(
    ("arguments", "exit_code", "words"),
    [
        ([], 2, "--train is missing"),
        (["--continuous", "--set", "rank"], 2, "--set is 'rank'; it must be KEY=VALUE"),
        (["--train", "no/such.jsonl"], 1, "no/such.jsonl cannot be read: No such file"),
    ],
)
def test_wrong_creation_is_one_line(api, arguments, exit_code, words):
    result = run("create", *arguments)
    assert result.exit_code == exit_code
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
    assert all(request.method == "GET" for request in api.requests)


def test_not_a_number_stays_a_text_for_the_server_to_refuse(api):
    run("create", "--continuous", "--set", "learning_rate=nan")
    assert api.sent()["hyperparameters"] == {"learning_rate": "nan"}


@pytest.mark.parametrize("verb", ["cancel", "pause", "resume"])
def test_steering_asks_and_says_what_the_job_is_now(api, verb):
    api.on("POST", f"{JOBS}/ftjob-1/{verb}", JOB)
    result = run(verb, "ftjob-1")
    assert (result.exit_code, result.stdout) == (0, "ftjob-1 is running\n")


def test_refused_steering_prints_the_reason(api):
    api.refuse("POST", f"{JOBS}/ftjob-1/cancel", 409, "ftjob-1 has ended")
    result = run("cancel", "ftjob-1")
    assert (result.exit_code, result.stderr) == (1, "collm: ftjob-1 has ended\n")


def test_events_are_a_log_with_the_latest_last(api):
    api.on("GET", f"{JOBS}/ftjob-1/events", {"data": EVENTS, "has_more": False})
    result = run("events", "ftjob-1")
    assert result.stdout.index("step [7]") < result.stdout.index("reset")
    assert "loss 2.5" in result.stdout
    assert "a: +0.500 > 0.1, n 2" in result.stdout
    assert json.loads(run("events", "ftjob-1", "--json").stdout) == EVENTS
