"""``--json``: who has it, what it prints, and where it is documented."""

import json
import re
from importlib import import_module
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from collm.cli import api_client
from collm.cli.main import _COMMANDS, app
from factories.fake_api import FakeApi

PAGE = Path(__file__).parents[3] / "docs" / "cli.md"
JOBS = "/v1/fine_tuning/jobs"
PROCESSES = {"serve", "demo", "replica", "front"}
"""They run until they are stopped."""
PLAIN = {"models pull", "adapters export", "profile"}
"""What they make is a folder or a file, which they name."""
runner = CliRunner()


def commands():
    """Yield each command as it is called, with its parameters' options."""
    for name in _COMMANDS:
        found = get_command(import_module(f"collm.cli.{name}").app)
        parts = getattr(found, "commands", {"": found})
        for part, command in parts.items():
            yield f"{name} {part}".strip(), {o for p in command.params for o in p.opts}


def test_every_command_that_ends_by_itself_speaks_json():
    without = {name for name, options in commands() if "--json" not in options}
    assert without == PROCESSES | PLAIN


def test_the_page_says_what_each_prints():
    rows = re.findall(r"^\| (`.+?) \| .+ \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    said = set()
    for row in rows:
        group = ""
        for words in re.findall(r"`([a-z ]+?)(?: [A-Z]+)?`", row):
            group, _, verb = words.rpartition(" ") if " " in words else (group, "", words)
            said.add(f"{group} {verb}".strip())
    assert {name for name, options in commands() if "--json" in options} <= said


@pytest.mark.parametrize(
    ("arguments", "method", "path"),
    [
        ("adapters promote a@1", "POST", "/adapters/promote"),
        ("adapters rollback a", "POST", "/adapters/rollback"),
        ("adapters pin a@1", "POST", "/adapters/pin"),
        ("adapters unpin a@1", "POST", "/adapters/unpin"),
        ("jobs pause x", "POST", f"{JOBS}/x/pause"),
        ("jobs create --continuous", "POST", JOBS),
        ("files delete x", "DELETE", "/v1/files/x"),
    ],
)
def test_answer_is_printed_as_the_server_gives_it(monkeypatch, arguments, method, path):
    api = FakeApi()
    monkeypatch.setattr(api_client, "_open_http", api.open_http)
    answer = {"id": "x", "version": "a@1", "status": "paused", "adapter": "a"}
    api.on("GET", "/v1/models", {"data": [{"id": "base", "parent": None}]})
    api.on(method, path, answer)
    result = runner.invoke(app, [*arguments.split(), "--json"])
    assert (result.exit_code, result.stderr) == (0, "")
    assert json.loads(result.stdout) == answer


def test_rollback_names_the_replicas_that_were_not_reached(monkeypatch):
    api = FakeApi()
    monkeypatch.setattr(api_client, "_open_http", api.open_http)
    missed = {"r1": "it is silent"}
    api.on("POST", "/adapters/rollback", {"version": "a@1", "replicas": ["r0"], "missed": missed})
    result = runner.invoke(app, ["adapters", "rollback", "a"])
    assert result.stdout == "a@1 is active\n"
    assert "r1 was not reached" in result.stderr
