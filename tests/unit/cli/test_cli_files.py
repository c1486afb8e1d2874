import json

import pytest
from typer.testing import CliRunner

from collm.cli import api_client
from collm.cli.main import app
from factories.fake_api import FakeApi

runner = CliRunner()

FILE = {
    "id": "file-1", "object": "file", "bytes": 2_500_000, "created_at": 1_700_000_000,
    "filename": "support\x1b[2J.jsonl", "purpose": "fine-tune", "num_samples": 512,
}  # fmt: skip


@pytest.fixture
def api(monkeypatch) -> FakeApi:
    fake = FakeApi()
    monkeypatch.setattr(api_client, "_open_http", fake.open_http)
    return fake


def run(*arguments):
    return runner.invoke(app, ["files", *map(str, arguments)], env={"COLUMNS": "100"})


def test_help_shows_what_a_file_holds():
    assert '{"messages": [{"role":' in run("--help").stdout


def test_list_shows_the_files(api):
    api.on("GET", "/v1/files", {"object": "list", "data": [FILE], "has_more": False})
    result = run("list")
    assert result.exit_code == 0
    for words in ("file-1", "support", "512", "2.5 MB"):
        assert words in result.stdout
    assert "\x1b" not in result.stdout
    assert json.loads(run("list", "--json").stdout) == [FILE]


def test_empty_list_says_what_to_do(api):
    api.on("GET", "/v1/files", {"data": [], "has_more": False})
    assert run("list").stdout == "No files yet: `collm files add FILE`.\n"


def test_added_file_is_uploaded_and_its_id_printed(api, tmp_path):
    (tmp_path / "a.jsonl").write_text("sample")
    api.on("POST", "/v1/files", FILE)
    result = run("add", tmp_path / "a.jsonl")
    assert (result.exit_code, result.stdout) == (0, "file-1\n")
    assert b'name="file"; filename="a.jsonl"' in api.requests[-1].content


def test_mistake_in_a_file_is_told_as_the_server_tells_it(api, tmp_path):
    (tmp_path / "a.jsonl").write_text("x")
    api.refuse("POST", "/v1/files", 400, "line 1: not JSON")
    result = run("add", tmp_path / "a.jsonl")
    assert (result.exit_code, result.stderr) == (1, "collm: line 1: not JSON\n")


@pytest.mark.parametrize("name", ["none.jsonl", "."])
def test_file_that_cannot_be_read_is_one_line(api, tmp_path, name):
    result = run("add", tmp_path / name)
    assert result.exit_code == 1
    assert "cannot be read" in result.stderr
    assert result.stderr.count("\n") == 1


def test_delete_confirms(api):
    api.on("DELETE", "/v1/files/file-1", {"id": "file-1", "deleted": True})
    result = run("delete", "file-1")
    assert (result.exit_code, result.stdout) == (0, "file-1 is deleted\n")
