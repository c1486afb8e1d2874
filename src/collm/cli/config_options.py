"""The options by which commands take the configuration."""

from pathlib import Path
from typing import Annotated

import typer

ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="YAML file of settings; defaults stand for the rest."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change one setting, as in scheduler.max_running=32; may be given several times.",
    ),
]
