"""``collm serve`` that is killed again and again while clients use everything it has."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from random import Random

import httpx

from collm.lora.peft_folder import save_peft
from collm.model.checkpoint import Checkpoint
from factories.checkpoints import tiny_checkpoint
from factories.engines import random_adapter
from factories.kill_checks import MAX_MODEL_LEN, MAX_VERSIONS, DiskCheck, check_served
from factories.kill_clients import (
    LEARNER,
    STEADY,
    Client,
    ask,
    ask_by_stream,
    jsonl,
    keep_files,
    operate,
    run_jobs,
    teach,
    watch,
)
from factories.kill_ledger import Course, Ledger
from factories.replicas import BASE_MODEL, CHATS, learning, training

CHECKPOINT_INTERVAL_S = 1.0
_WAIT_S = 120.0
"""Longest time that anything may take, on a machine however busy."""


class Lives:
    """One data folder, the servers that used it in turn, and what they acknowledged.

    Args:
        folder: For everything.
        seed: Draws what clients do and when a server is killed.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self.ledger = Ledger()
        self.num_lives = 0
        self.num_acknowledged = 0
        self.max_loss_s = 0.0
        """The most training that one kill undid, in seconds."""
        self._folder, self._data_dir = folder, folder / "data"
        self._random = Random(seed)
        self._seed = seed
        self._checkpoint = tiny_checkpoint(folder / "model", "llama")
        samples = folder / "chats.jsonl"
        samples.write_bytes(jsonl(CHATS))
        self._training = training(
            replace(learning(LEARNER), data=str(samples)),
            checkpoint_interval_s=CHECKPOINT_INTERVAL_S,
        )
        self._write_config()
        self._disk = DiskCheck(self._checkpoint, self._data_dir, self._training)
        self._visitor = self._adapter(seed=9)
        self._lived_s = 0.0

    def live(self, num_acknowledgements: int) -> None:
        """Start a server, check it, kill it once so much is acknowledged, and check its folder.

        The kill comes up to a twentieth of a second after the last acknowledgement waited for.
        """
        with self._server() as (process, url):
            born_s = time.monotonic()

            def now_s() -> float:
                return self._lived_s + time.monotonic() - born_s

            end = threading.Event()
            client = partial(self._client, url, now_s=now_s, end=end)
            self._begin(client("checks"))
            failures: list[BaseException] = []
            threads = [
                threading.Thread(target=_go_on, args=(client(name), act, failures))
                for name, act in self._roles().items()
            ]
            self._count_acknowledged()
            for thread in threads:
                thread.start()
            self._wait_for(num_acknowledgements, process, failures)
            end.wait(self._random.uniform(0.0, 0.05))  # somewhere between two acknowledgements
            process.kill()
            killed_s = now_s()
            end.set()
            for thread in threads:
                thread.join(_WAIT_S)
            assert not failures, failures
            self._lived_s = killed_s
        self._check_folder(killed_s)
        self.num_lives += 1

    def die_young(self) -> None:
        """Start a server and kill it while it starts."""
        with self._process() as process:
            threading.Event().wait(self._random.uniform(0.5, 4.0))
            process.kill()
        self._disk.check(self.ledger)

    def end_well(self) -> None:
        """Start a server, check it, and let it end in good order."""
        with self._server() as (process, url):
            self._begin(self._client(url, "checks", now_s=lambda: 0.0, end=threading.Event()))
            process.send_signal(signal.SIGTERM)
            assert process.wait(_WAIT_S) == 0
        self._disk.check(self.ledger)

    def _begin(self, client: Client) -> None:
        """Check what a server knows of its earlier lives; in the first one, lay the ground."""
        with client.http:
            if self.num_lives > 0:
                check_served(client)
                return
            client.upload(jsonl(CHATS))
            self.ledger.courses.note(STEADY, Course())
            for seed in (1, 2, 3):
                version = client.bring(STEADY, self._adapter(seed), promote=True)
                course = self.ledger.courses[STEADY].promoted(version)
                self.ledger.courses.note(STEADY, course)

    def _count_acknowledged(self) -> None:
        """Let nothing be left that was acknowledged before."""
        while self.ledger.acknowledgements.acquire(blocking=False):
            self.num_acknowledged += 1

    def _wait_for(
        self,
        num_acknowledgements: int,
        process: subprocess.Popen[str],
        failures: list[BaseException],
    ) -> None:
        """Return once so much is acknowledged, and training has been saved at least once."""
        deadline_s = time.monotonic() + _WAIT_S
        while num_acknowledgements > 0 or not self._has_saved():
            assert not failures, failures
            assert process.poll() is None, "it ended by itself"
            assert time.monotonic() < deadline_s, "nothing is acknowledged any more"
            if self.ledger.acknowledgements.acquire(timeout=0.2):
                num_acknowledgements -= 1
                self.num_acknowledged += 1

    def _has_saved(self) -> bool:
        return any((self._data_dir / "training" / LEARNER).glob("[0-9]*"))

    def _check_folder(self, killed_s: float) -> None:
        """Check what a kill left, and how much training it undid."""
        step = self._disk.check(self.ledger)
        undone = [at_s for at_s, seen in self.ledger.steps if seen > step]
        if undone:
            self.max_loss_s = max(self.max_loss_s, killed_s - undone[0])
        self.ledger.steps = [(at_s, seen) for at_s, seen in self.ledger.steps if seen <= step]

    def _roles(self) -> dict[str, Callable[[Client], None]]:
        return {
            "asker": ask,
            "listener": ask_by_stream,
            "teacher": teach,
            "librarian": keep_files,
            "foreman": run_jobs,
            "operator": partial(operate, visitor=self._visitor),
            "watcher": watch,
        }

    def _client(
        self, url: str, name: str, *, now_s: Callable[[], float], end: threading.Event
    ) -> Client:
        random = Random(f"{self._seed} {self.num_lives} {name}")
        return Client(url, self.ledger, random, now_s, end)

    def _adapter(self, seed: int) -> dict[str, bytes]:
        """Return the files of an adapter that some other program made."""
        folder = self._folder / f"adapter-{seed}"
        folder.mkdir()
        save_peft(random_adapter(Checkpoint(self._checkpoint).spec, seed=seed), folder, BASE_MODEL)
        return {path.name: path.read_bytes() for path in folder.iterdir()}

    def _write_config(self) -> None:
        config = {
            "model": {"source": str(self._checkpoint), "name": BASE_MODEL, "dtype": "float32"},
            "replica": {
                "data_dir": str(self._data_dir),
                "threads": 1,
                "min_promotion_interval_s": 0,
                "max_versions": MAX_VERSIONS,
            },
            "memory": {"kv_cache_mib": 1, "block_size": 4, "max_model_len": MAX_MODEL_LEN},
            "lora": {"max_rank": 4, "num_slots": 16},
            "server": {"port": 0},
            "training": asdict(self._training),
        }
        (self._folder / "config.yaml").write_text(json.dumps(config))

    @contextmanager
    def _server(self) -> Iterator[tuple[subprocess.Popen[str], str]]:
        """Run a server; yield it and its address once it is ready."""
        with self._process() as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("collm is ready at "), self._log.read_text()[-4000:]
            yield process, line.split()[-1]

    @contextmanager
    def _process(self) -> Iterator[subprocess.Popen[str]]:
        config = self._folder / "config.yaml"
        with (
            self._log.open("ab") as log,
            subprocess.Popen(
                [sys.executable, "-m", "collm", "serve", "--config", str(config)],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"},
            ) as process,
        ):
            try:
                yield process
            finally:
                process.kill()

    @property
    def _log(self) -> Path:
        return self._folder / "log"


def _go_on(client: Client, act: Callable[[Client], None], failures: list[BaseException]) -> None:
    """Do the same thing until the server is gone."""
    try:
        with client.http:
            while not client.end.is_set():
                act(client)
    except httpx.TimeoutException as error:
        failures.append(error)
    except httpx.TransportError:
        pass  # it was killed, or has ended by itself, which is found out
    except BaseException as error:
        failures.append(error)
