import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from collm.cli.main import app

runner = CliRunner()


@pytest.fixture
def files(tmp_path):
    config, secret = tmp_path / "config.yaml", tmp_path / "secret"
    config.write_text("server: {port: 8123}\n")
    secret.write_text("open sesame\n")
    return SimpleNamespace(config=str(config), secret=str(secret), folder=tmp_path)


def fake_module(monkeypatch, name, function):
    calls = []
    module = SimpleNamespace(**{function: lambda *given, **named: calls.append((given, named))})
    monkeypatch.setitem(sys.modules, name, module)
    return calls


def test_replica_runs_with_its_name_and_secret(files, monkeypatch):
    calls = fake_module(monkeypatch, "collm.cli.replica_process", "run_replica")
    options = ["--name", "r0", "--config", files.config, "--control-secret-file", files.secret]
    assert runner.invoke(app, ["replica", *options]).exit_code == 0
    [((config,), named)] = calls
    assert config.server.port == 8123
    assert named == {"name": "r0", "control_secret": "open sesame"}


def test_front_runs_with_the_inherited_socket(files, monkeypatch):
    calls = fake_module(monkeypatch, "collm.cli.front_process", "run_front")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        options = [
            "--config", files.config, "--endpoints", str(files.folder / "endpoints.json"),
            "--control-secret-file", files.secret, "--listen-fd", str(listener.fileno()),
        ]  # fmt: skip
        assert runner.invoke(app, ["front", *options]).exit_code == 0
        [((config,), named)] = calls
        inherited = named.pop("listener")
        assert inherited.getsockname() == listener.getsockname()
        inherited.detach()
    assert config.server.port == 8123
    assert named == {
        "endpoints": files.folder / "endpoints.json",
        "control_secret": "open sesame",
    }


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--name", "a.b"], "name is 'a.b'"),
        (["--name", "r0", "--control-secret-file", "no/such"], "control secret no/such"),
        (["--name", "r0", "--config", "no/such.yaml"], "no/such.yaml"),
    ],
)
def test_wrong_option_of_a_replica_is_one_line(files, options, words):
    usual = ["--config", files.config, "--control-secret-file", files.secret]
    result = runner.invoke(app, ["replica", *usual, *options])
    assert result.exit_code == 2
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


def test_empty_secret_is_refused(files):
    empty = files.folder / "empty"
    empty.touch()
    result = runner.invoke(
        app,
        ["replica", "--name", "a", "--config", files.config, "--control-secret-file", str(empty)],
    )
    assert result.exit_code == 2
    assert "is empty" in result.stderr


def test_descriptor_that_is_no_socket_is_refused(files):
    options = ["--config", files.config, "--endpoints", "x", "--control-secret-file", files.secret]
    with open(files.config) as file:
        result = runner.invoke(app, ["front", *options, "--listen-fd", str(file.fileno())])
    assert result.exit_code == 2
    assert "is no socket" in result.stderr


def test_number_of_replicas_must_fit_the_listed_ones(files):
    result = runner.invoke(
        app, ["serve", "--replicas", "3", "--set", "cluster.replicas=[{name: a}, {name: b}]"]
    )
    assert result.exit_code == 2
    assert "the configuration lists 2" in result.stderr


def test_parent_and_front_never_imports_torch():
    code = (
        "import sys\n"
        "import collm.cli.parent_process, collm.cli.front_process\n"
        "import collm.cli.serve, collm.cli.front, collm.cli.replica\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
