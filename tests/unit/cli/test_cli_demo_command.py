import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from collm.cli import demo, demo_exam
from collm.cli.main import app
from factories.child_path import PYTHONPATH

runner = CliRunner()


def test_help_says_what_it_does_and_names_the_options():
    result = runner.invoke(app, ["demo", "--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    for words in ("clinc150", "exact match", "--minutes", "--budget", "report.json", "exit code"):
        assert words in result.stdout


def test_demo_needs_no_torch_of_its_own():
    code = "import sys, collm.cli.demo\nassert 'torch' not in sys.modules\n"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


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
    ("how", "minutes", "exit_code", "end"),
    [("answer", 0.02, 0, "complete"), ("die", 1, 1, "server ended")],
)
def test_demo_prints_tables_and_writes_the_report(
    monkeypatch, tmp_path, how, minutes, exit_code, end
):
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    monkeypatch.setattr(demo, "_SERVE", ("-m", "factories.demo_server", how))
    out = tmp_path / "out"
    arguments = ["--replicas", "1", "--minutes", str(minutes), "--requests-per-s", "4"]
    result = runner.invoke(app, ["demo", *arguments, "--out", str(out)])
    assert result.exit_code == exit_code, result.output
    assert "Exact match" in result.stdout
    assert "CC BY 3.0" in result.stdout
    report = json.loads((out / "report.json").read_text())
    assert report["end"] == end
    assert report["is_partial"] == (how == "die")
    assert ("out of luck" in result.stderr) == (how == "die")


def test_demo_has_two_replicas_by_default_and_reports_each_of_them(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    monkeypatch.setattr(demo, "_SERVE", ("-m", "factories.demo_server", "cluster"))
    monkeypatch.setattr(demo_exam, "QUESTIONS_PER_DOMAIN", 1)
    out = tmp_path / "out"
    arguments = ["--minutes", "0.02", "--requests-per-s", "4", "--model", "tiny"]
    result = runner.invoke(app, ["demo", *arguments, "--out", str(out)])
    assert result.exit_code == 0, result.output
    for words in ("r0, own domains", "r1, foreign domains", "together: clinc@1", "r0 200"):
        assert words in result.stdout
    report = json.loads((out / "report.json").read_text())
    assert report["configuration"]["cluster"]["rounds"][0]["rank"] == 16
    assert report["rounds"][0]["candidate"] == "clinc@1"
    for name in ("r0", "r1"):
        site = report["sites"][name]
        assert {stage: marks["model"] for stage, marks in site["exam"].items()} == {
            "before": "tiny",
            "alone": "alone",
            "together": "clinc@1",
        }
        assert site["exam"]["together"]["own"]["num_answers"] == 5
        assert (
            out / f"own-updates/{name}.safetensors"
        ).read_bytes() == f"factors of {name}".encode()
    assert report["sites"]["r0"]["num_requests"] == report["serving"]["outcomes"]["completed"]
