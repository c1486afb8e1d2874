"""The process of one replica: its step loop and its HTTP server."""

import typer

from collm.server.app import make_app
from collm.server.backend import Replica
from collm.server.config import ServerConfig
from collm.server.run import run


def serve_replica(replica: Replica, config: ServerConfig) -> None:
    """Serve a replica in the main thread until a signal; prints the address once it listens.

    Raises:
        ConfigError: The address cannot be had.
        CollmError: The step loop ended by itself.
    """
    run(make_app(replica, config), on_ready=lambda url: typer.echo(f"collm is ready at {url}"))
