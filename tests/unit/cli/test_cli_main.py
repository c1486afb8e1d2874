import subprocess
import sys

import pytest
from typer.testing import CliRunner

from collm.cli.config_reference import config_reference
from collm.cli.main import app

runner = CliRunner()


def test_help_lists_the_commands_and_where_to_start():
    result = runner.invoke(app, ["--help"])
    assert result.exit_code == 0
    for words in ("serve", "models", "--print-config"):
        assert words in result.stdout


def test_help_and_wrong_settings_need_no_torch():
    code = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from collm.cli.main import app\n"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0\n"
        "assert CliRunner().invoke(app, ['serve', '--set', 'a=1']).exit_code == 2\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "server.prot=1"], "server.prot is not a setting; did you mean port?"),
        (["--port", "70000"], "server.port is 70000; allowed: 0 to 65535"),
        (["--config", "no/such.yaml"], "no/such.yaml"),
        (["--model", ""], "model.source is empty"),
    ],
)
def test_wrong_setting_is_one_line_and_exit_code_2(arguments, words):
    result = runner.invoke(app, ["serve", *arguments])
    assert result.exit_code == 2
    assert result.stderr.startswith("collm: ")
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


def test_unknown_command_and_option_exit_with_2():
    assert runner.invoke(app, ["sevre"]).exit_code == 2
    assert runner.invoke(app, ["serve", "--prot", "1"]).exit_code == 2


def test_print_config_prints_the_reference():
    result = runner.invoke(app, ["serve", "--print-config"])
    assert result.exit_code == 0
    assert result.stdout == config_reference()


def test_version_is_printed():
    result = runner.invoke(app, ["version"])
    assert result.exit_code == 0
    assert result.stdout.strip()
