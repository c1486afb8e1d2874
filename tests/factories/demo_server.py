"""A stand-in for the demo's server: ``python -m factories.demo_server HOW [FOLDER]``."""

import os
import sys

from collm.server.app import make_app
from collm.server.config import ServerConfig
from collm.server.run import run
from collm.types import BASE, ModelCard
from factories.demo import numbers
from factories.fake_backends import fake_backends
from factories.fake_replica import BASE_MODEL, FakeReplica, Hold, events_for, saying


class DemoReplica(FakeReplica):
    def models(self):
        return (ModelCard(id=BASE_MODEL, version=BASE), ModelCard(id="clinc", version=BASE))

    def snapshot(self):
        return numbers(active="clinc@1", tokens=1_000)


def die(request):
    print("out of luck", flush=True)
    os._exit(3)


def hang(request):
    events = events_for(request, b"timer")
    return [events[0], Hold(), *events[1:]]


def main() -> None:
    if sys.argv[1] == "refuse":
        sys.exit("no such model")
    script = {"answer": saying(b"timer"), "die": die, "hang": hang}[sys.argv[1]]
    config = ServerConfig(port=0, drain_timeout_s=0.1)
    run(
        make_app(fake_backends(DemoReplica(script)), config),
        lambda url: print("collm is ready at", url, flush=True),
    )


if __name__ == "__main__":
    main()
