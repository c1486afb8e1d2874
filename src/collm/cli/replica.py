"""``collm replica``: one replica of a cluster."""

import logging
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from collm.cli.config_file import load_config
from collm.cli.parent_watch import end_with_stdin
from collm.cli.secret_file import read_secret
from collm.cluster.config import ReplicaEntry

app = typer.Typer(add_completion=False)

_LAST_WORDS_S = 20.0
"""Time beyond the drain limit after which a replica without its parent is ended."""


@app.command(
    epilog="Example: `collm replica --name r0 --config r0.yaml --control-secret-file secret`."
)
def replica(
    name: Annotated[str, typer.Option(help="Its name in response ids, metrics and logs.")],
    config_file: Annotated[
        Path, typer.Option("--config", "-c", help="YAML file of its settings, as they are.")
    ],
    control_secret_file: Annotated[
        Path, typer.Option(help="File of the secret by which it knows its front.")
    ],
    end_with_stdin_: Annotated[
        bool,
        typer.Option(
            "--end-with-stdin", help="Shut down in good order when standard input closes."
        ),
    ] = False,
) -> None:
    """Run one replica of a cluster, for a parent: `collm serve --replicas` starts it.

    When it is ready it prints its address; a front sends it requests and has it take part in
    rounds. SIGTERM lets open answers end first; a second one ends them at once.
    """
    name = ReplicaEntry(name=name).name
    config = load_config(config_file)
    secret = read_secret(control_secret_file)
    logging.basicConfig(
        level=logging.INFO, format=f"%(asctime)s {name} %(levelname)s %(name)s %(message)s"
    )
    if end_with_stdin_:
        end_with_stdin(config.server.drain_timeout_s + _LAST_WORDS_S)
    import_module("collm.cli.replica_process").run_replica(config, name=name, control_secret=secret)
