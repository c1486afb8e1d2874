"""The ``collm`` command. Loads a command's module only when that command is called."""

import os
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from collm.cli.exit_codes import exit_code_of
from collm.errors import CollmError

# Each is the module of that name in this room, holding a Typer ``app``.
_COMMANDS = {
    "serve": "Serve a model over the OpenAI API, and fine-tune it meanwhile.",
    "demo": "Watch a model serve a real workload and get better at it meanwhile.",
    "adapters": "See, promote, roll back, export and import adapters of a running server.",
    "jobs": "Start fine-tuning jobs on a running server, and steer them.",
    "files": "Upload training files to a running server, see and delete them.",
    "explain": "Say why a cluster's replicas have the traffic and training they have.",
    "replica": "Run one replica of a cluster; `collm serve` does it for you.",
    "front": "Run the front of a cluster; `collm serve` does it for you.",
    "simulate": "Simulate a cluster under a trace, on a virtual clock.",
    "profile": "Measure what a replica takes on this machine, for `collm simulate`.",
    "models": "Fetch base models and see which are there.",
    "doctor": "Check this machine: what is installed, memory, port, folders; say what to fix.",
    "version": "Print the version of collm.",
}

# Read by libraries when they are first imported. What the user has set already stays.
_ENVIRONMENT = {
    # Threads that spin while they wait suffer from any other load on the machine; a few
    # microseconds bridge the gap between two products of a step.
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "1000",
    "KMP_BLOCKTIME": "0",
    # Its threads would compete with the step loop for the same cores.
    "TOKENIZERS_PARALLELISM": "false",
    # Each counter would be exported a second time, as the moment at which it began.
    "PROMETHEUS_DISABLE_CREATED_SERIES": "true",
}


class _CommandGroup(TyperGroup):
    """Imports commands late, and turns expected errors into one line."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Replace a command's listing entry by the command itself."""
        if args and args[0] in _COMMANDS:
            module = import_module(f"collm.cli.{args[0]}")
            self.commands[args[0]] = get_command(module.app)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an expected error ends it with one of ``exit_codes``."""
        try:
            return super().invoke(ctx)
        except CollmError as error:
            typer.echo(f"collm: {' '.join(str(error).split())}", err=True)
            raise typer.Exit(exit_code_of(error)) from error


app = typer.Typer(
    cls=_CommandGroup,
    name="collm",
    help="Language-model serving that keeps learning, on one copy of the weights.",
    epilog="Start with `collm serve`; `collm serve --print-config` explains every setting.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _list(name: str, summary: str) -> None:
    """Make a command appear in ``collm --help`` without importing it."""
    app.command(name, help=summary)(lambda: None)


for _name, _summary in _COMMANDS.items():
    _list(_name, _summary)


def main() -> None:
    """Run the command line."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    app()
