"""A real parent process with children that do next to nothing."""

import contextlib
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from collm.cli.config_file import load_config
from collm.cluster.endpoints import read_endpoints
from factories.child_path import PYTHONPATH
from factories.ports import reserved_address
from factories.waiting import WAIT_S, wait_until


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # An orphan that nobody waits for stays in the table after its end.
    status = Path(f"/proc/{pid}/status")
    return not (status.exists() and "State:\tZ" in status.read_text())


class Parent:
    """Its port stays its own when it has ended."""

    def __init__(self, folder, **environment):
        self.folder = folder
        self._address = reserved_address()
        self.port = self._address.getsockname()[1]
        self.notes_path = folder / "notes"
        self.process = subprocess.Popen(
            [
                sys.executable, "-m", "factories.fake_cluster", "factories.fake_child",
                "--replicas", "2", "--port", str(self.port),
                "--set", f"replica.data_dir={folder / 'data'}",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={
                "PYTHONPATH": PYTHONPATH, "COLLM_TEST_NOTES": str(self.notes_path),
                "PATH": os.environ["PATH"], **environment,
            },
        )  # fmt: skip

    def notes(self, what):
        """Return (name, pid) of every note of one kind."""
        if not self.notes_path.exists():
            return []
        rows = [line.split() for line in self.notes_path.read_text().splitlines()]
        return [(name, int(pid)) for kind, name, pid in rows if kind == what]

    def pid_of(self, name):
        return [pid for found, pid in self.notes("started") if found == name][-1]

    def listed(self):
        return {item.replica_id: item.pid for item in read_endpoints(self.front / "endpoints.json")}

    @property
    def front(self):
        return self.folder / "data" / "front"

    def wait_ready(self):
        line = self.process.stdout.readline()
        assert line == f"collm is ready at http://127.0.0.1:{self.port}\n"

    def ask_front(self):
        """Return the pid of the front that answers a new connection."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_S) as connection:
            return int(connection.recv(100))

    def close(self):
        self.process.kill()
        self.process.communicate(timeout=WAIT_S)
        self._address.close()
        for _, pid in self.notes("started"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def start(tmp_path):
    """Call ``start()`` for a parent; all are ended."""
    with contextlib.ExitStack() as stack:

        def begin(**environment):
            parent = Parent(tmp_path, **environment)
            stack.callback(parent.close)
            return parent

        yield begin


@pytest.fixture
def parent(start):
    return start()


def test_parent_starts_everything_says_so_and_ends_it_in_order(parent):
    parent.wait_ready()
    assert parent.listed() == {name: parent.pid_of(name) for name in ("r0", "r1")}
    parent.process.send_signal(signal.SIGTERM)
    _, errors = parent.process.communicate(timeout=WAIT_S)
    assert parent.process.returncode == 0, errors
    assert parent.notes("ended")[0][0] == "front"
    assert {name for name, _ in parent.notes("ended")} == {"front", "r0", "r1"}
    assert parent.listed() == {}


def test_parent_writes_each_process_its_configuration_and_a_private_secret(parent):
    parent.wait_ready()
    own = load_config(parent.front / "r1.yaml")
    assert own.replica.data_dir == str(parent.folder / "data" / "r1")
    assert [entry.name for entry in load_config(parent.front / "front.yaml").cluster.replicas] == [
        "r0",
        "r1",
    ]
    secret = parent.front / "control-secret"
    assert len(secret.read_text()) > 30
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600


def test_killed_replica_comes_back_under_its_name(parent):
    parent.wait_ready()
    killed = parent.pid_of("r0")
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: parent.listed().get("r0", killed) != killed)
    assert parent.listed() == {name: parent.pid_of(name) for name in ("r0", "r1")}


def test_connection_made_while_the_front_is_dead_is_answered_by_the_next_one(parent):
    parent.wait_ready()
    killed = parent.ask_front()
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{killed}").exists())  # a thread of it may accept till then
    assert parent.ask_front() not in (killed, parent.pid_of("r0"), parent.pid_of("r1"))
    assert len(parent.listed()) == 2


def test_nothing_connects_once_the_parent_was_told_to_stop(parent):
    parent.wait_ready()
    parent.process.send_signal(signal.SIGTERM)
    parent.process.communicate(timeout=WAIT_S)
    with pytest.raises(ConnectionRefusedError):
        parent.ask_front()


def test_children_of_a_killed_parent_end_in_good_order(parent):
    parent.wait_ready()
    parent.process.kill()
    wait_until(lambda: len(parent.notes("ended")) == 3)
    wait_until(lambda: not any(is_running(pid) for _, pid in parent.notes("started")))


def test_second_parent_of_one_folder_is_refused(parent, start):
    parent.wait_ready()
    second = start()
    _, errors = second.process.communicate(timeout=WAIT_S)
    assert second.process.returncode == 2
    assert "is in use by another collm serve" in errors.splitlines()[-1]
    assert len(parent.notes("started")) == 3


def test_replica_that_cannot_run_ends_the_parent_with_its_name(start):
    parent = start(COLLM_TEST_REFUSES="r1")
    _, errors = parent.process.communicate(timeout=WAIT_S)
    assert parent.process.returncode == 1
    assert "this cannot be" in errors
    assert errors.splitlines()[-1] == "collm: r1 cannot run; its own messages say why"
    assert not any(is_running(pid) for _, pid in parent.notes("started"))
