import asyncio
from random import Random

import pytest

from collm.clock import MonotonicClock
from collm.cluster.registry import Registry
from collm.cluster.router import Router
from collm.cluster.routing_config import RegistryConfig, RouterConfig
from collm.cluster.sent import Sent
from collm.errors import CollmError, DataError
from collm.server.config import ServerConfig
from collm.server.front.app import make_front_app
from collm.server.front.backends import FrontBackends, NoRounds
from collm.server.front.run import serve_front
from collm.server.run import bind
from factories.front_server import FakeStates


def test_a_loop_that_fails_ends_the_front_and_says_why():
    async def main():
        ready = asyncio.Event()

        async def fail():
            await ready.wait()
            raise DataError("the journal is gone")

        clock, sent, config = MonotonicClock(), Sent(), ServerConfig(port=0)
        backends = FrontBackends(
            registry=Registry(FakeStates({}), sent, clock, RegistryConfig()),
            router=Router(RouterConfig(), Random(0)),
            sent=sent,
            clock=clock,
            rounds=NoRounds(),
        )
        app = make_front_app(backends, config)
        with pytest.raises(CollmError, match="the journal is gone"):
            await serve_front(app, bind(config), asyncio.Event(), lambda _: ready.set(), [fail])

    asyncio.run(main())
