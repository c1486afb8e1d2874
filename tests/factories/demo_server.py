"""A stand-in for the demo's server: ``python -m factories.demo_server HOW --config FILE``.

With ``cluster`` as HOW it stands for a front and all of its replicas at once.
"""

import os
import sys
from pathlib import Path

import yaml
from fastapi import FastAPI, Request

from collm.server.app import make_app
from collm.server.config import ServerConfig
from collm.server.run import run
from collm.server.service import Membership
from collm.types import BASE, ModelCard
from factories.demo import cluster_state, numbers
from factories.fake_backends import fake_backends
from factories.fake_replica import BASE_MODEL, FakeReplica, Hold, events_for, saying


class DemoReplica(FakeReplica):
    def models(self):
        names = (BASE_MODEL, "clinc", "clinc@1", "alone", "tiny")
        return tuple(ModelCard(id=name, version=BASE) for name in names)

    def snapshot(self):
        return numbers(active="clinc@1", tokens=1_000)


def die(request):
    print("out of luck", flush=True)
    os._exit(3)


def hang(request):
    events = events_for(request, b"timer")
    return [events[0], Hold(), *events[1:]]


def add_front(app: FastAPI, settings: dict) -> None:
    """Answer as a front whose replicas all have reported an update."""
    names = [replica["name"] for replica in settings["cluster"]["replicas"]]
    folder = Path(settings["replica"]["data_dir"]) / "front/rounds/clinc/1"
    folder.mkdir(parents=True)
    for name in names:
        (folder / f"{name}.safetensors").write_bytes(b"factors of " + name.encode())

    @app.get("/cluster")
    def show_cluster(request: Request):
        return cluster_state(str(request.base_url).rstrip("/"), names)


def main() -> None:
    print("process", os.getpid(), flush=True)
    if sys.argv[1] == "refuse":
        sys.exit("no such model")
    script = {"die": die, "hang": hang}.get(sys.argv[1], saying(b"timer"))
    config = ServerConfig(port=0, drain_timeout_s=0.1)
    app = make_app(fake_backends(DemoReplica(script)), config, Membership("r0", "secret"))
    if sys.argv[1] == "cluster":
        add_front(app, yaml.safe_load(Path(sys.argv[-1]).read_text()))
    run(app, lambda url: print("collm is ready at", url, flush=True))


if __name__ == "__main__":
    main()
