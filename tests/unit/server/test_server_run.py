import json
import socket
import threading

import httpx
import pytest

from collm.errors import CollmError, ConfigError
from collm.server import run
from collm.server.config import ServerConfig
from collm.server.run import bind, url_of
from factories.fake_replica import BASE_MODEL, FakeReplica, Hold, events_for
from factories.server_thread import running_server
from factories.waiting import WAIT_S

BODY = {"model": BASE_MODEL, "messages": [{"role": "user", "content": "hi"}], "stream": True}


def hold_after_two(request):
    events = events_for(request, b"Hello")
    return [*events[:2], Hold(), *events[2:]]


class StreamReader(threading.Thread):
    """Reads one stream to its end and says when its first text is there."""

    def __init__(self, url):
        super().__init__()
        self._url = url
        self.has_begun = threading.Event()
        self.lines = []

    def run(self):
        with httpx.stream(
            "POST", self._url + "/v1/chat/completions", json=BODY, timeout=WAIT_S
        ) as response:
            for line in response.iter_lines():
                self.lines.append(line)
                if '"content":"H"' in line:
                    self.has_begun.set()


def test_drain_lets_open_streams_end_and_accepts_no_more():
    replica = FakeReplica(hold_after_two)
    with running_server(replica) as server:
        reader = StreamReader(server.url)
        reader.start()
        assert reader.has_begun.wait(WAIT_S)
        server.ask_to_stop()
        while _accepts(server.url):
            pass
        replica.release()
        reader.join(WAIT_S)
        server.join()
    assert "data: [DONE]" in reader.lines
    assert server.error is None
    assert replica.closed_early == []


def test_drain_limit_ends_streams_with_an_error_event(monkeypatch):
    monkeypatch.setattr(run, "_LAST_WORDS_S", WAIT_S)
    replica = FakeReplica(hold_after_two)
    with running_server(replica, drain_timeout_s=0.1) as server:
        reader = StreamReader(server.url)
        reader.start()
        assert reader.has_begun.wait(WAIT_S)
        server.ask_to_stop()
        reader.join(WAIT_S)
    last = [line for line in reader.lines if line][-1]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "unavailable"


def test_server_ends_when_the_step_loop_has_ended():
    replica = FakeReplica()
    with running_server(replica) as server:
        replica.is_alive = False
        server.join()
    assert isinstance(server.error, CollmError)


def test_port_in_use_is_a_config_error_that_names_it():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=str(port)):
            bind(ServerConfig(port=port))


def test_free_port_is_chosen_and_named():
    sock = bind(ServerConfig(port=0))
    try:
        assert url_of(sock) == f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        sock.close()


def _accepts(url):
    try:
        return httpx.get(url + "/health", timeout=WAIT_S).status_code == 200
    except httpx.TransportError:
        return False
