import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from collm.cli import demo
from collm.cli.main import app

TESTS = Path(__file__).parents[2]
runner = CliRunner()


def test_help_says_what_it_does_and_names_the_options():
    result = runner.invoke(app, ["demo", "--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    for words in ("clinc150", "exact match", "--minutes", "--budget", "report.json", "exit code"):
        assert words in result.stdout


def test_demo_needs_no_torch_of_its_own():
    code = "import sys, collm.cli.demo\nassert 'torch' not in sys.modules\n"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--minutes", "30"], "--minutes"),
        (["--budget", "none"], "--budget"),
        (["--requests-per-s", "1000"], "--requests-per-s is 1000"),
    ],
)
def test_wrong_option_exits_with_2(arguments, words, tmp_path):
    result = runner.invoke(app, ["demo", "--out", str(tmp_path / "out"), *arguments])
    assert result.exit_code == 2
    assert words in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("how", "exit_code", "end"), [("answer", 0, "complete"), ("die", 1, "server ended")]
)
def test_demo_prints_tables_and_writes_the_report(monkeypatch, tmp_path, how, exit_code, end):
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    monkeypatch.setattr(demo, "_SERVE", ("-m", "factories.demo_server", how))
    out = tmp_path / "out"
    arguments = ["--minutes", "0.02", "--requests-per-s", "4", "--out", str(out)]
    result = runner.invoke(app, ["demo", *arguments])
    assert result.exit_code == exit_code, result.output
    assert "Exact match" in result.stdout
    assert "CC BY 3.0" in result.stdout
    report = json.loads((out / "report.json").read_text())
    assert report["end"] == end
    assert report["is_partial"] == (how == "die")
    assert ("out of luck" in result.stderr) == (how == "die")
