"""The commands against the server's own routes, so that both mean the same by every field."""

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from collm.cli import api_client
from collm.cli.main import app
from collm.server.app import make_app
from collm.server.config import ServerConfig
from factories.fake_backends import fake_backends
from factories.fake_desks import OLD_VERSION, FakeAdapterDesk
from factories.fake_replica import VERSION

runner = CliRunner()


@pytest.fixture
def desk(monkeypatch) -> FakeAdapterDesk:
    found = FakeAdapterDesk()
    server = make_app(fake_backends(adapters=found), ServerConfig())
    monkeypatch.setattr(
        api_client, "_open_http", lambda url, is_local: TestClient(server, base_url=url)
    )
    return found


def run(*arguments):
    return runner.invoke(app, ["adapters", *map(str, arguments)], env={"COLUMNS": "100"})


def test_versions_and_decisions_are_read_from_the_routes(desk):
    run("pin", OLD_VERSION)
    result = run("list")
    assert result.exit_code == 0
    (old,) = [line for line in result.stdout.splitlines() if OLD_VERSION in line]
    (new,) = [line for line in result.stdout.splitlines() if VERSION in line]
    assert "pinned" in old
    assert "active" in new
    result = run("history", "helper")
    assert f"after {OLD_VERSION}" in result.stdout
    assert "evidence 40" in result.stdout


def test_versions_go_out_and_come_back_in(desk, tmp_path):
    folder = tmp_path / "helper"
    assert run("export", VERSION, folder).exit_code == 0
    assert run("import", folder, "--name", "other").stdout == "other@1\n"
    assert run("import", folder, "--name", "other", "--no-promote").exit_code == 0
    assert desk.imported == [
        ("other", b"{}", b"weights", True),
        ("other", b"{}", b"weights", False),
    ]


def test_pins_and_promotions_reach_the_desk(desk):
    assert run("pin", VERSION).stdout == f"{VERSION} is pinned\n"
    assert desk.pins == {VERSION}
    assert run("unpin", VERSION).exit_code == 0
    assert desk.pins == set()
    assert run("promote", OLD_VERSION).stdout == f"{OLD_VERSION} is active\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["rollback", "helper"], "'helper' has no earlier version to return to"),
        (["history", "nobody"], "no adapter 'nobody'"),
        (["promote", "helper@99"], "no version 'helper@99'"),
        (["export", "helper@99", "nowhere/x"], "no version 'helper@99'"),
    ],
)
def test_refusal_of_a_route_is_one_line_and_exit_code_1(desk, arguments, words):
    result = run(*arguments)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"collm: {words}")
    assert result.stderr.count("\n") == 1


def test_bad_import_prints_the_servers_reason(desk, tmp_path):
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (tmp_path / name).write_text("{}")
    result = run("import", tmp_path, "--name", "../x")
    assert result.exit_code == 1
    assert "../x" in result.stderr
