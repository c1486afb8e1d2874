"""A front on a free loopback port, in the test's own event loop, with the replicas it is given."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

import httpx
from fastapi import FastAPI

from collm.clock import ManualClock
from collm.cluster.endpoints import Endpoint
from collm.cluster.planner import NoPlanner
from collm.cluster.registry import Registry
from collm.cluster.router import Router
from collm.cluster.routing_config import RegistryConfig, RouterConfig
from collm.cluster.sent import Sent
from collm.cluster.snapshot_json import to_json
from collm.errors import UnreachableError
from collm.metrics.traces import NoTraces, Traces
from collm.server.config import ServerConfig
from collm.server.front.app import make_front_app
from collm.server.front.backends import FrontBackends, NoRounds, Planning, Rounds
from collm.server.front.front import Front
from collm.server.front.run import serve_front
from collm.server.run import bind
from factories.scripted_upstream import Script, ScriptedUpstream
from factories.snapshots import make_snapshot
from factories.waiting import WAIT_S


class FakeStates:
    """What replicas say of themselves: as given, or nothing from those that are silent."""

    def __init__(self, states: Mapping[str, Any]) -> None:
        self.states = dict(states)
        self.silent: set[str] = set()

    async def fetch(self, endpoint: Endpoint) -> object:
        if endpoint.replica_id in self.silent:
            raise UnreachableError("silent")
        return to_json(self.states[endpoint.replica_id])


@dataclass
class FrontServer:
    app: FastAPI
    front: Front
    http: httpx.AsyncClient
    url: str
    clock: ManualClock
    states: FakeStates
    upstreams: dict[str, ScriptedUpstream]
    serving: "asyncio.Task[None]"
    stop: asyncio.Event

    async def lose(self, replica_id: str) -> None:
        """Let a replica be silent until it counts as dead."""
        self.states.silent.add(replica_id)
        for _ in range(5):
            self.clock.advance(0.2)
            await self.front.registry.refresh()

    def unlist(self, replica_id: str) -> None:
        """Take a replica off the list, as when it has died and is being started again."""
        registry = self.front.registry
        listed = [member.endpoint for member in registry.members()]
        registry.adopt([endpoint for endpoint in listed if endpoint.replica_id != replica_id])


@asynccontextmanager
async def running_front(
    scripts: Mapping[str, Script] | None = None,
    *,
    states: Mapping[str, Any] | None = None,
    others: Sequence[Endpoint] = (),
    rounds: Rounds | None = None,
    planning: Planning | None = None,
    router: RouterConfig | None = None,
    traces: Traces | None = None,
    admin_key: str | None = None,
    has_dashboard: bool = False,
    **settings: Any,
) -> AsyncIterator[FrontServer]:
    """Serve.

    Args:
        scripts: How each replica answers; the first is idle, the next ones have ever more to do,
            unless ``states`` says otherwise.
        states: Snapshots of replicas that stand otherwise.
        others: Replicas that run elsewhere.
        rounds: Learning together, if there is any.
        planning: What shares out traffic and training, if anything does.
        router: What the operator set.
        traces: Where the paths of requests go.
        admin_key: What changing versions takes.
        has_dashboard: Whether replicas are asked for their figures every second.
        settings: Of the listener.
    """
    async with AsyncExitStack() as stack:
        upstreams = await _listening(scripts or {}, stack)
        endpoints = [*(upstream.endpoint for upstream in upstreams.values()), *others]
        clock, sent = ManualClock(100.0), Sent()
        source = FakeStates(_idle(endpoints) | dict(states or {}))
        names = [endpoint.replica_id for endpoint in endpoints]
        registry = Registry(source, sent, clock, RegistryConfig(), names)
        registry.adopt(endpoints)
        await registry.refresh()
        backends = FrontBackends(
            registry=registry,
            router=Router(router or RouterConfig(), Random(0)),
            sent=sent,
            clock=clock,
            rounds=rounds or NoRounds(),
            traces=traces or NoTraces(),
            planning=planning or NoPlanner(),
        )
        config = ServerConfig(**{"port": 0, **settings})
        app, stop = make_front_app(backends, config, admin_key=admin_key), asyncio.Event()
        if not has_dashboard:
            app.state.dashboard = None
        serving, url = await _serve(app, config, stop, stack)
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=WAIT_S))
        yield FrontServer(app, app.state.front, http, url, clock, source, upstreams, serving, stop)


async def _listening(
    scripts: Mapping[str, Script], stack: AsyncExitStack
) -> dict[str, ScriptedUpstream]:
    """Start replicas, which end with ``stack``."""
    upstreams = {name: ScriptedUpstream(name, script) for name, script in scripts.items()}
    for upstream in upstreams.values():
        await upstream.start()
        stack.push_async_callback(upstream.stop)
    return upstreams


def _idle(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """Return snapshots of which each has more to do than the one before."""
    return {
        one.replica_id: make_snapshot(one.replica_id, queued_prefill_tokens=4_000 * number)
        for number, one in enumerate(endpoints)
    }


async def _serve(
    app: FastAPI, config: ServerConfig, stop: asyncio.Event, stack: AsyncExitStack
) -> "tuple[asyncio.Task[None], str]":
    """Start to serve, until ``stack`` ends; return the task and the address."""
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve_front(app, bind(config), stop, ready.set_result, ()))

    async def end() -> None:
        stop.set()
        await asyncio.wait_for(serving, WAIT_S)

    stack.push_async_callback(end)
    await asyncio.wait((serving, ready), return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        await serving  # it says why it is not ready
    return serving, ready.result()
