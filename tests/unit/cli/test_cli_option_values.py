from dataclasses import dataclass
from typing import Annotated

import typer
from typer.testing import CliRunner

from collm.cli.option_values import takes


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    count: Annotated[int, typer.Option(min=1, help="How many.")] = 1
    names: Annotated[list[str] | None, typer.Option("--name")] = None


def run(*arguments: str):
    app, found = typer.Typer(), []

    @app.command()
    @takes(Options)
    def show(options: Options) -> None:
        """Show what was asked for."""
        found.append(options)

    return CliRunner().invoke(app, arguments), found


def test_a_command_gets_its_options_as_one_value() -> None:
    assert run()[1] == [Options()]
    assert run("--count", "2", "--name", "a", "--name", "b")[1] == [
        Options(count=2, names=["a", "b"])
    ]


def test_help_and_ranges_are_those_of_the_fields() -> None:
    result, found = run("--count", "0")
    assert result.exit_code == 2
    assert not found
    shown = run("--help")[0].output
    assert "How many." in shown
    assert "Show what was asked for." in shown
