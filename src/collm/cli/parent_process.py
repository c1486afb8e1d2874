"""The parent of a cluster: prepares its folder, and keeps the front and the replicas running."""

import asyncio
import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import httpx
import typer
from filelock import FileLock, Timeout

from collm.cli.cluster_settings import replica_config
from collm.cli.config_reference import resolved_config
from collm.cli.cores import num_cores
from collm.clock import MonotonicClock
from collm.cluster.asking import ask
from collm.cluster.config import FRONT
from collm.cluster.hosts import LocalHost, ProcessSpec
from collm.cluster.http_source import HttpSnapshotSource
from collm.cluster.keeper import KeeperTime
from collm.cluster.supervisor import ClusterProcesses, Supervisor
from collm.config import CollmConfig
from collm.errors import ConfigError
from collm.server.run import bind, url_of
from collm.store.files import make_folder

_COLLM = (sys.executable, "-m", "collm")
_SECRET_BYTES = 32


def run_parent(config: CollmConfig, named_jobs: list[str]) -> None:
    """Run a cluster until a signal; prints its address once everything is ready.

    Args:
        config: Names at least one replica.
        named_jobs: ``NAME=DATA`` each: jobs that every replica has, besides those of ``config``.

    Raises:
        ConfigError: A setting is wrong, the folder is in use, or the address cannot be had.
        CollmError: The front or a replica cannot run; each says why itself.
    """
    folder = Path(config.replica.data_dir) / FRONT
    try:
        make_folder(folder)
        with FileLock(folder / "parent.lock", timeout=0):
            _run_locked(config, named_jobs, folder)
    except Timeout:
        raise ConfigError(
            f"data folder {config.replica.data_dir} is in use by another collm serve"
        ) from None
    except OSError as error:
        raise ConfigError(
            f"data folder {config.replica.data_dir} cannot be used: {error}"
        ) from error


def _run_locked(config: CollmConfig, named_jobs: list[str], folder: Path) -> None:
    files = _ParentFiles(folder)
    files.write_secret()
    replicas = [
        _replica_spec(config, index, named_jobs, files)
        for index in range(len(config.cluster.replicas))
    ]
    # Held here, so that connections wait while a front that died is started again.
    sock = bind(config.server)
    host = LocalHost()
    clock, client = MonotonicClock(), httpx.AsyncClient(trust_env=False)
    source = HttpSnapshotSource(client)
    supervisor = Supervisor(
        ClusterProcesses(
            front=_front_spec(config, files, sock),
            front_host=host,
            replicas=replicas,
            replica_host=host,
            ask_front=source.reach,
            ask_replica=lambda endpoint: ask(source, endpoint, asked_at_s=clock.now_s()),
        ),
        files.endpoints,
        drain_s=config.server.drain_timeout_s,
        time=KeeperTime(clock=clock),
        on_ready=partial(typer.echo, f"collm is ready at {url_of(sock)}"),
    )
    # It would log each question.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    asyncio.run(_until_signal(supervisor, client, sock.close))


async def _until_signal(
    supervisor: Supervisor, client: httpx.AsyncClient, stop_listening: Callable[[], None]
) -> None:
    stop, hurry = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    async with client:
        await supervisor.run(stop, hurry, stop_listening)


def _replica_spec(
    config: CollmConfig, index: int, named_jobs: list[str], files: "_ParentFiles"
) -> ProcessSpec:
    name = config.cluster.replicas[index].name
    own = replica_config(config, index, named_jobs=named_jobs, num_cores=num_cores())
    return ProcessSpec(
        name=name,
        command=(
            *_COLLM, "replica", "--name", name, "--config", files.write_config(name, own),
            "--control-secret-file", str(files.secret), "--end-with-stdin",
        ),
        # Besides the steps, whatever else computes in the process keeps to its share.
        environment={"OMP_NUM_THREADS": str(own.replica.threads)},
    )  # fmt: skip


def _front_spec(config: CollmConfig, files: "_ParentFiles", sock: socket.socket) -> ProcessSpec:
    return ProcessSpec(
        name=FRONT,
        command=(
            *_COLLM, "front", "--config", files.write_config(FRONT, config),
            "--endpoints", str(files.endpoints), "--control-secret-file", str(files.secret),
            "--listen-fd", str(sock.fileno()), "--end-with-stdin",
        ),
        shared_files=(sock.fileno(),),
    )  # fmt: skip


class _ParentFiles:
    """What the parent writes for the processes it starts, in the front's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.endpoints = folder / "endpoints.json"
        self.secret = folder / "control-secret"

    def write_secret(self) -> None:
        """Write a new secret, by which replicas know their front, for this user's eyes alone."""
        self.secret.unlink(missing_ok=True)
        descriptor = os.open(self.secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(secrets.token_urlsafe(_SECRET_BYTES))

    def write_config(self, name: str, config: CollmConfig) -> str:
        """Write a process's configuration; return the file's path."""
        path = self._folder / f"{name}.yaml"
        path.write_text(resolved_config(config), encoding="utf-8")
        return str(path)
