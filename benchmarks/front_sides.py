"""The processes that ``front.py`` measures: a replica that emits tokens at a fixed pace, a front.

Each says its URL on standard output and ends with its standard input.
"""

import asyncio
import json
import re
import sys
import time
from collections.abc import Sequence
from random import Random

import httpx

from collm.clock import MonotonicClock
from collm.cluster.endpoints import Endpoint
from collm.cluster.http_source import HttpSnapshotSource
from collm.cluster.registry import Registry
from collm.cluster.router import Router
from collm.cluster.routing_config import RegistryConfig, RouterConfig
from collm.cluster.sent import Sent
from collm.cluster.snapshot_json import to_json
from collm.server.config import ServerConfig
from collm.server.front.app import make_front_app
from collm.server.front.backends import FrontBackends, NoRounds
from collm.server.front.run import serve_front
from collm.server.run import bind
from collm.types import ReplicaSnapshot, StepCoefficients

MODEL = "base"
FIRST_TOKEN_S = 0.02
_PADDING = "x" * 160
"""Makes an event as long as a chat completion's chunk."""
_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)

STATE = ReplicaSnapshot(
    replica_id="r0",
    url="",
    taken_at_s=0.0,
    num_running=0,
    num_waiting=0,
    queued_prefill_tokens=0,
    num_context_tokens=0,
    num_free_blocks=100_000,
    block_size=16,
    credit_share=0.0,
    bytes_per_token=4.0,
    step_coefficients=StepCoefficients(
        constant_s=0.01, decode_s=1e-4, prefill_s=1e-4, context_s=0.0, adapter_s=0.0
    ),
    ttft_s=0.8,
    tpot_s=0.1,
    names=(MODEL,),
    active={},
    quality={},
    quality_noise={},
    max_model_len=8_192,
    is_draining=False,
    base_digest="d" * 64,
)


def _chunk() -> bytes:
    event = json.dumps({"sent_ns": time.monotonic_ns(), "pad": _PADDING})
    data = f"data: {event}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(data), data)


async def _emit(writer: asyncio.StreamWriter, num_tokens: int, pace_s: float) -> None:
    loop = asyncio.get_running_loop()
    due_s = loop.time() + FIRST_TOKEN_S
    for number in range(num_tokens):
        await asyncio.sleep(max(due_s - loop.time(), 0.0))
        writer.write((_HEAD if number == 0 else b"") + _chunk())
        due_s += pace_s
    writer.write(b"0\r\n\r\n")
    await writer.drain()


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    state = json.dumps(to_json(STATE)).encode()
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = _LENGTH.search(head)
            body = await reader.readexactly(int(length[1])) if length else b""
            if head.startswith(b"GET"):
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(state) + state)
            else:
                asked = json.loads(body)
                await _emit(writer, asked["max_tokens"], asked["pace_s"])
    except (OSError, asyncio.IncompleteReadError):
        writer.close()


async def _replica() -> None:
    server = await asyncio.start_server(_serve, "127.0.0.1", 0, backlog=1024)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await asyncio.to_thread(sys.stdin.read)


async def run_front(urls: Sequence[str], *, is_shown: bool = True) -> None:
    """Serve a front of these replicas until standard input ends; print its URL.

    Args:
        urls: Where ``r0``, ``r1``, … answer.
        is_shown: Whether it has its dashboard.
    """
    clock, sent = MonotonicClock(), Sent()
    async with httpx.AsyncClient(trust_env=False) as client:
        registry = Registry(HttpSnapshotSource(client), sent, clock, RegistryConfig())
        registry.adopt(
            Endpoint(replica_id=f"r{number}", url=url, pid=0, started_at_s=0.0)
            for number, url in enumerate(urls)
        )
        await registry.refresh()
        backends = FrontBackends(
            registry=registry,
            router=Router(RouterConfig(), Random(0)),
            sent=sent,
            clock=clock,
            rounds=NoRounds(),
        )

        async def poll() -> None:
            while True:
                await registry.refresh()
                await asyncio.sleep(RegistryConfig().poll_every_s)

        config = ServerConfig(port=0)
        app, stop = make_front_app(backends, config), asyncio.Event()
        if not is_shown:
            app.state.dashboard = None
        serving = asyncio.create_task(
            serve_front(app, bind(config), stop, lambda url: print(url, flush=True), [poll])
        )
        await asyncio.to_thread(sys.stdin.read)
        stop.set()
        await serving


if __name__ == "__main__":
    asyncio.run(_replica() if sys.argv[1] == "replica" else run_front([sys.argv[2]]))
