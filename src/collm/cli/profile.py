"""``collm profile``: measure what a replica takes here, for ``collm simulate``."""

from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from collm.cli.config_file import load_config
from collm.cli.config_options import ConfigFile, Overrides
from collm.errors import ConfigError

app = typer.Typer(add_completion=False)


@app.command(epilog="Example: `collm profile --out here.json --seconds 180`.")
def profile(
    out: Annotated[Path, typer.Option(help="JSON file to write.")],
    data: Annotated[
        str, typer.Option(help="What to train on: a JSONL file or a shipped sample set.")
    ] = "clinc150",
    seconds: Annotated[
        float, typer.Option(min=20.0, help="Time to measure for, half of it training alone.")
    ] = 180.0,
    config_file: ConfigFile = None,
    overrides: Overrides = None,
    seed: Annotated[int, typer.Option(help="Draws the load.")] = 0,
) -> None:
    """Run one replica on this machine, under load and without, and write its profile.

    Run it on a machine that is otherwise idle, or as busy as it will be beside the replica.
    """
    config = load_config(config_file, overrides or ())
    if config.training.jobs or config.training.rounds:
        raise ConfigError("training.jobs and training.rounds must be empty: a job is made here")
    if not out.parent.is_dir():
        raise ConfigError(f"--out is {out}; there is no folder {out.parent}")
    found = import_module("collm.cli.profile_run").measure(config, data, seconds, seed)
    out.write_text(found.to_json(), encoding="utf-8")
    typer.echo(f"{out}: measured profile {found.name}")
