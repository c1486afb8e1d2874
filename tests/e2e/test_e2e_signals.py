"""A server process that is told to stop while it answers."""

import signal
import subprocess
import sys

import httpx
import pytest

from factories.child_path import PYTHONPATH
from factories.fake_replica import BASE_MODEL
from factories.waiting import WAIT_S

PROGRAM = """
import sys
import threading
from collm.cli.replica_process import serve_replica
from collm.server.config import ServerConfig
from factories.fake_backends import fake_backends
from factories.child_path import PYTHONPATH
from factories.fake_replica import FakeReplica, Hold, events_for

def script(request):
    events = events_for(request, b"Hello")
    return [events[0], Hold(), *events[1:]]

def release_on_request():
    sys.stdin.readline()
    replica.release()

replica = FakeReplica(script)
threading.Thread(target=release_on_request, daemon=True).start()
serve_replica(fake_backends(replica), ServerConfig(port=0))
print("ended well")
"""


@pytest.fixture
def process():
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": PYTHONPATH},
    )
    yield process
    process.kill()
    process.wait(WAIT_S)
    process.stdin.close()
    process.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_lets_the_open_stream_end(process, number):
    line = process.stdout.readline()
    assert line.startswith("collm is ready at http://127.0.0.1:")
    url = line.split()[-1]
    body = {"model": BASE_MODEL, "messages": [{"role": "user", "content": "x"}], "stream": True}
    with httpx.stream("POST", url + "/v1/chat/completions", json=body, timeout=WAIT_S) as response:
        lines = response.iter_lines()
        while '"content":"H"' not in next(lines):
            pass
        process.send_signal(number)
        process.stdin.write("go\n")
        process.stdin.flush()
        assert "data: [DONE]" in list(lines)
    assert process.wait(WAIT_S) == 0
    assert process.stdout.read() == "ended well\n"


def test_second_signal_ends_the_open_stream_with_an_error_event(process):
    url = process.stdout.readline().split()[-1]
    body = {"model": BASE_MODEL, "messages": [{"role": "user", "content": "x"}], "stream": True}
    with httpx.stream("POST", url + "/v1/chat/completions", json=body, timeout=WAIT_S) as response:
        lines = response.iter_lines()
        while '"content":"H"' not in next(lines):
            pass
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        assert any('"code": "unavailable"' in line for line in lines)
    assert process.wait(WAIT_S) == 0
