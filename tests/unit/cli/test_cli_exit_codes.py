"""Commands end with the codes that the page lists."""

import ast
import inspect
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from collm.cli import exit_codes
from collm.cli import version as version_module
from collm.cli.exit_codes import ExitCode, exit_code_of
from collm.cli.main import app
from collm.errors import AdapterError, ConfigError, DataError, UnreachableError

PAGE = Path(__file__).parents[3] / "docs" / "cli.md"
runner = CliRunner()


def meanings() -> list[tuple[str, str, str]]:
    """Return each code's value, name and the docstring under it."""
    (body,) = (
        node.body
        for node in ast.parse(inspect.getsource(exit_codes)).body
        if isinstance(node, ast.ClassDef)
    )
    texts = [ast.literal_eval(node.value) for node in body if isinstance(node, ast.Expr)]
    return [
        (str(code.value), code.name, text) for code, text in zip(ExitCode, texts[1:], strict=True)
    ]


def test_the_page_lists_the_codes():
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \| (.+) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert rows == meanings()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), ExitCode.WRONG_SETTING),
        (UnreachableError("x"), ExitCode.NO_SERVER),
        (AdapterError("x"), ExitCode.FAILED),
        (DataError("x"), ExitCode.FAILED),
    ],
)
def test_errors_have_their_codes(error, code):
    assert exit_code_of(error) is code


def test_ctrl_c_has_its_code(monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(version_module, "installed_version", interrupted)
    assert runner.invoke(app, ["version"]).exit_code == ExitCode.INTERRUPTED
