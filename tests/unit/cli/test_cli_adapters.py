import io
import json
import stat
import time
import zipfile

import httpx
import pytest
from typer.testing import CliRunner

from collm.cli import api_client
from collm.cli.main import app
from factories.fake_api import FakeApi

runner = CliRunner()

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
INFO = {"version": "support@3", "adapter": "support", "rank": 8, "is_active": True}
VERSIONS = [
    {
        "version": "support@2", "adapter": "support", "rank": 8, "slot": None, "num_pins": 0,
        "is_active": False, "is_pinned": False, "published_at_s": 1.7e9, "metadata": {},
    },
    {
        "version": "support@3", "adapter": "support", "rank": 8, "slot": 1, "num_pins": 2,
        "is_active": True, "is_pinned": True, "published_at_s": None,
        "metadata": {"step": "40", "slices": "{}"},
    },
]  # fmt: skip
NUMBERS = {
    "verdict": "better", "num_samples": 48, "active_loss": 2.13456, "candidate_loss": 1.98765,
    "evidence": 31.2345, "evidence_worse": 0.04, "step": 120,
    "slices": {
        "billing": {"n": 40, "sum_d": -8.0, "sum_d2": 2.0, "bound": 0.1},
        "general": {"n": 8, "sum_d": 3.2, "sum_d2": 0.1, "bound": 0.3},
        "empty": {"n": 0, "sum_d": 0.0, "sum_d2": 0.0, "bound": "inf"},
    },
}  # fmt: skip
DECISIONS = [
    {
        "decided_at_s": 1.7e9, "kind": "refusal", "adapter": "support", "version": None,
        "previous": None, "reason": "not finite\x1b[31m",
        "numbers": {"candidate_loss": "nan", "previous_loss": None},
    },
    {
        "decided_at_s": 1.7e9 + 60, "kind": "promotion", "adapter": "support",
        "version": "support@3", "previous": "support@2",
        "reason": "better on held-out samples, no slice worse [x]", "numbers": NUMBERS,
    },
]  # fmt: skip


@pytest.fixture
def api(monkeypatch) -> FakeApi:
    fake = FakeApi()
    monkeypatch.setattr(api_client, "_open_http", fake.open_http)
    return fake


@pytest.fixture(autouse=True)
def in_utc(monkeypatch):
    monkeypatch.setattr("collm.cli.listing.time.localtime", time.gmtime)


def run(*arguments, columns=100):
    return runner.invoke(app, ["adapters", *map(str, arguments)], env={"COLUMNS": str(columns)})


def zip_of(**files):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return content.getvalue()


def serve_export(api, content=None):
    if content is None:
        content = zip_of(**{CONFIG: "{}", WEIGHTS: "w" * 100_000, "../evil": "x"})
    api.answer("GET", "/adapters/export", lambda _: httpx.Response(200, content=content))


def adapter_folder(folder):
    folder.mkdir()
    (folder / CONFIG).write_text('{"r": 8}')
    (folder / WEIGHTS).write_bytes(b"weights" * 20_000)
    return folder


def test_help_teaches_by_examples():
    result = run("--help", columns=200)
    assert result.exit_code == 0
    for words in ("history", "rollback", "import", "collm adapters export support@3 ./support"):
        assert words in result.stdout
    assert "Example:" in run("promote", "--help").stdout


def test_list_says_which_version_is_active_loaded_and_pinned(api):
    api.on("GET", "/adapters", {"object": "list", "data": VERSIONS})
    result = run("list")
    assert result.exit_code == 0
    (second,) = [line for line in result.stdout.splitlines() if "support@2" in line]
    (third,) = [line for line in result.stdout.splitlines() if "support@3" in line]
    assert "on disk" in second
    assert "2023-11-14 22:13:20" in second
    assert "active, pinned, loaded" in third
    assert "step 40" in third
    assert "slices {}" in result.stdout


def test_list_as_json_is_what_the_server_says(api):
    api.on("GET", "/adapters", {"object": "list", "data": VERSIONS})
    assert json.loads(run("list", "--json").stdout) == VERSIONS


def test_empty_list_says_what_to_do(api):
    api.on("GET", "/adapters", {"object": "list", "data": []})
    assert "collm jobs create" in run("list").stdout


def test_history_shows_every_number_in_100_columns(api):
    api.on("GET", "/adapters/support/history", {"object": "list", "data": DECISIONS})
    result = run("history", "support")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 100
    assert all(line[-1] in "┓┃┩│┤┘" for line in lines)
    assert "…" not in result.stdout
    for words in (
        "2023-11-14", "22:14:20", "promotion", "support@3", "after support@2", "n 48", "step 120",
        "loss 2.135 → 1.988", "evidence for 31.23", "evidence against 0.04", "verdict better",
        "billing: -0.200 ≤ 0.1, n 40", "general: +0.400 > 0.3, n 8", "empty: n 0", "[x]",
        "instead of base", "candidate loss nan", "previous loss –",
    ):  # fmt: skip
        assert words in result.stdout, words
    assert result.stdout.index("refusal") < result.stdout.index("promotion")


def test_history_cannot_steer_the_terminal(api):
    api.on("GET", "/adapters/support/history", {"data": DECISIONS})
    assert "\x1b" not in run("history", "support").stdout


def test_history_shows_the_latest_and_says_that_there_are_more(api):
    api.on("GET", "/adapters/support/history", {"data": DECISIONS})
    result = run("history", "support", "--limit", 1)
    assert "promotion" in result.stdout
    assert "refusal" not in result.stdout
    assert "--limit" in result.stderr
    assert json.loads(run("history", "support", "--json", "--limit", 1).stdout) == DECISIONS[1:]
    asked = [dict(request.url.params) for request in api.requests]
    assert asked == [{"limit": "2"}] * 2, "not all that were ever made"


def test_history_of_an_unknown_adapter_is_one_line_and_exit_code_1(api):
    api.refuse("GET", "/adapters/a%2Fb/history", 404, "no adapter 'a/b';\nbeing served: x")
    result = run("history", "a/b")
    assert (result.exit_code, result.stderr) == (1, "collm: no adapter 'a/b'; being served: x\n")


@pytest.mark.parametrize(
    ("arguments", "path", "body", "words"),
    [
        (["promote", "support@3"], "promote", {"version": "support@3"}, "support@3 is active"),
        (["rollback", "support"], "rollback", {"adapter": "support"}, "support@3 is active"),
        (["pin", "support@3"], "pin", {"version": "support@3"}, "support@3 is pinned"),
        (["unpin", "support@3"], "unpin", {"version": "support@3"}, "support@3 is not pinned"),
    ],
)
def test_change_is_asked_for_and_confirmed(api, arguments, path, body, words):
    api.on("POST", f"/adapters/{path}", INFO)
    result = run(*arguments)
    assert result.exit_code == 0
    assert result.stdout.strip() == words
    assert api.sent() == body


def test_rollback_of_the_first_version_says_whose_base_it_is(api):
    api.on("POST", "/adapters/rollback", INFO | {"version": "base"})
    assert run("rollback", "support").stdout.strip() == "support: base is active"


def test_refused_change_prints_the_reason(api):
    api.refuse("POST", "/adapters/rollback", 409, "nothing to return to")
    result = run("rollback", "support")
    assert (result.exit_code, result.stderr) == (1, "collm: nothing to return to\n")


def test_export_writes_the_two_files_and_nothing_else(api, tmp_path):
    serve_export(api)
    folder = tmp_path / "a" / "support"
    result = run("export", "support@3", folder)
    assert (result.exit_code, result.stdout.strip()) == (0, str(folder))
    assert api.requests[-1].url.params["version"] == "support@3"
    assert {path.name for path in folder.iterdir()} == {CONFIG, WEIGHTS}
    assert (folder / WEIGHTS).stat().st_size == 100_000
    assert stat.S_ISREG((folder / CONFIG).lstat().st_mode)
    assert not (tmp_path / "a" / "evil").exists()


def test_export_never_overwrites_without_force(api, tmp_path):
    folder = adapter_folder(tmp_path / "mine")
    result = run("export", "support@3", folder)
    assert result.exit_code == 1
    assert "mine is not empty; --force" in result.stderr
    assert not api.requests
    assert (folder / CONFIG).read_text() == '{"r": 8}'
    serve_export(api)
    assert run("export", "support@3", folder, "--force").exit_code == 0
    assert (folder / CONFIG).read_text() == "{}"


@pytest.mark.parametrize("content", [b"no zip", zip_of(**{CONFIG: "{}"})])
def test_broken_export_leaves_the_folder_as_it_was(api, tmp_path, content):
    serve_export(api, content)
    folder = adapter_folder(tmp_path / "mine")
    result = run("export", "support@3", folder, "--force")
    assert result.exit_code == 1
    assert "no exported adapter" in result.stderr
    assert {path.name for path in folder.iterdir()} == {CONFIG, WEIGHTS}
    assert (folder / CONFIG).read_text() == '{"r": 8}'


def test_refused_export_leaves_no_new_folder(api, tmp_path):
    api.refuse("GET", "/adapters/export", 404, "no such version")
    assert run("export", "support@9", tmp_path / "new").stderr == "collm: no such version\n"
    assert list(tmp_path.iterdir()) == []


def test_export_to_a_file_is_refused(api, tmp_path):
    (tmp_path / "file").write_text("")
    assert "is not a folder" in run("export", "support@3", tmp_path / "file", "--force").stderr


@pytest.mark.parametrize(("option", "promotes"), [([], "true"), (["--no-promote"], "false")])
def test_import_uploads_the_folder_and_prints_the_version(api, tmp_path, option, promotes):
    api.on("POST", "/adapters/import", INFO)
    folder = adapter_folder(tmp_path / "mine")
    result = run("import", folder, "--name", "support", *option)
    assert (result.exit_code, result.stdout) == (0, "support@3\n")
    content = api.requests[-1].content
    for part in (
        b'name="name"\r\n\r\nsupport\r\n',
        b'name="promote"\r\n\r\n' + promotes.encode() + b"\r\n",
        b'name="adapter_config.json"; filename="adapter_config.json"',
        b'name="adapter_model.safetensors"; filename="adapter_model.safetensors"',
        b'{"r": 8}',
        b"weights" * 20_000,
    ):
        assert part in content


def test_import_of_what_is_no_adapter_folder_is_refused_before_any_upload(api, tmp_path):
    (tmp_path / "adapter_model.bin").write_bytes(b"pickle")
    (tmp_path / CONFIG).write_text("{}")
    for folder, words in ((tmp_path, "is a pickle file"), (tmp_path / "no", "No such file")):
        result = run("import", folder, "--name", "support")
        assert result.exit_code == 1
        assert words in result.stderr
        assert result.stderr.count("\n") == 1
    assert not api.requests


def test_import_needs_a_name(tmp_path):
    assert run("import", tmp_path).exit_code == 2
