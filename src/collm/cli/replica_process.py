"""The process of one replica: its step loop and its HTTP server."""

import socket
import sys

import typer

from collm.cli.admin_key import admin_key
from collm.cli.cache import cache_dir
from collm.cli.replica_settings import replica_settings
from collm.cli.sample_sets import load_sample_sets
from collm.cli.start_signs import StartSigns
from collm.cli.traces import open_traces
from collm.config import CollmConfig
from collm.model.checkpoint import Checkpoint
from collm.model.sources import find_checkpoint
from collm.replica.assembly import Replica, claim_data, open_replica
from collm.server.app import make_app
from collm.server.backend import Backends
from collm.server.config import ServerConfig
from collm.server.run import bind, run
from collm.server.service import Membership

_SWITCH_INTERVAL_S = 0.001
"""How long the HTTP thread may hold the interpreter while the step loop wants it; Python's own 5 ms
would be felt in every step."""


def run_replica(
    config: CollmConfig, name: str | None = None, control_secret: str | None = None
) -> None:
    """Load the model, start learning, and serve until a signal.

    Args:
        config: The replica's own.
        name: Its name in a cluster; ``None`` serves alone.
        control_secret: By which it knows its front, given exactly with a name.

    Raises:
        ModelError: The model cannot be found or served.
        ConfigError: The address cannot be had, or a setting does not fit the model or the machine.
        DataError: A training set cannot be used.
    """
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    # Nobody should wait for a model to hear that the port is taken; it listens only when ready.
    with bind(config.server) as sock:
        _run_at(sock, config, name, control_secret)


def _run_at(
    sock: socket.socket, config: CollmConfig, name: str | None, control_secret: str | None
) -> None:
    samples = load_sample_sets(config.training)
    settings = replica_settings(config, name)
    signs = StartSigns()
    if name is not None:
        signs.begin()
    with claim_data(settings) as data:
        with signs.waiting():
            source = config.model.source
            folder = find_checkpoint(source, cache_dir=cache_dir(), progress=_Announcer())
        checkpoint = Checkpoint(folder)
        checkpoint.verify()
        traces = open_traces(config.traces, name or "replica")
        replica = open_replica(checkpoint, settings, samples, data, traces)
        try:
            membership = None
            if name is not None and control_secret is not None:
                membership = Membership(name, control_secret)
            signs.end()
            serve_replica(backends_of(replica), config.server, membership, sock)
        finally:
            replica.close()
            traces.close()


def backends_of(replica: Replica) -> Backends:
    """Return a replica as its HTTP server sees it."""
    return Backends(
        replica=replica.client,
        uploads=replica.uploads,
        fine_tuning=replica.fine_tuning,
        feedback=replica.feedback,
        adapters=replica.adapters,
        rounds=replica.rounds,
    )


def serve_replica(
    backends: Backends,
    config: ServerConfig,
    membership: Membership | None = None,
    sock: socket.socket | None = None,
) -> None:
    """Serve a replica in the main thread until a signal; prints the address once it listens.

    Args:
        backends: The replica.
        config: Of its listener.
        membership: Its place in a cluster; ``None`` serves alone.
        sock: A bound socket, closed at the end; ``None`` binds to the configured address.

    Raises:
        ConfigError: The address cannot be had.
        CollmError: The step loop ended by itself.
    """
    app = make_app(backends, config, membership, admin_key=admin_key())
    run(app, lambda url: typer.echo(f"collm is ready at {url}"), sock)


class _Announcer:
    """Says on stderr what a long start is doing, once for each activity."""

    def __init__(self) -> None:
        self._said = ""

    def __call__(self, activity: str, done_share: float) -> None:
        if activity != self._said:
            typer.echo(f"{activity} …", err=True)
            self._said = activity
