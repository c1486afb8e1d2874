"""``collm front``: the process of a cluster that users talk to."""

import logging
import socket
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from collm.cli.config_file import load_config
from collm.cli.parent_watch import end_with_stdin
from collm.cli.secret_file import read_secret
from collm.errors import ConfigError

app = typer.Typer(add_completion=False)

_LAST_WORDS_S = 10.0
"""Time beyond the drain limit after which a front without its parent is ended."""


@app.command(
    epilog=(
        "Example: `collm front --config cluster.yaml --endpoints endpoints.json "
        "--control-secret-file secret`."
    )
)
def front(
    config_file: Annotated[
        Path, typer.Option("--config", "-c", help="YAML file of the cluster's settings.")
    ],
    endpoints: Annotated[
        Path, typer.Option(help="JSON file that says where the replicas listen; may change.")
    ],
    control_secret_file: Annotated[
        Path, typer.Option(help="File of the secret by which replicas know their front.")
    ],
    listen_fd: Annotated[
        int | None,
        typer.Option(
            metavar="FD",
            help="Listen on this inherited socket instead of server.host and server.port.",
        ),
    ] = None,
    end_with_stdin_: Annotated[
        bool,
        typer.Option(
            "--end-with-stdin", help="Shut down in good order when standard input closes."
        ),
    ] = False,
) -> None:
    """Run the front of a cluster, for a parent: `collm serve --replicas` starts it.

    It passes each request to a replica, and runs the rounds in which replicas learn together.
    When it is ready it prints its address. SIGTERM lets open answers end first; a second one ends
    them at once.
    """
    config = load_config(config_file)
    secret = read_secret(control_secret_file)
    listener = None if listen_fd is None else _inherited(listen_fd)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s front %(levelname)s %(name)s %(message)s"
    )
    # It would log each question to a replica, several a second.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    if end_with_stdin_:
        end_with_stdin(config.server.drain_timeout_s + _LAST_WORDS_S)
    import_module("collm.cli.front_process").run_front(
        config, endpoints=endpoints, control_secret=secret, listener=listener
    )


def _inherited(descriptor: int) -> socket.socket:
    """Return the socket of an inherited file descriptor."""
    try:
        return socket.socket(fileno=descriptor)
    except OSError as error:
        raise ConfigError(f"--listen-fd {descriptor} is no socket: {error.strerror}") from error
