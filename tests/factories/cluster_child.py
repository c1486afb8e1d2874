"""Children of a test's cluster: the real front, and replicas that answer "Hello" from a script.

A replica stops until ``POST /test/release`` after the first letter, if the request's seed is 7, and
before it, if that is 8. A front writes its pid into the file that COLLM_TEST_FRONT_PID names.
"""

import argparse
import sys
from dataclasses import replace

from collm.cli import main as command_line
from collm.cli.parent_watch import end_with_stdin
from collm.server.app import make_app
from collm.server.config import ServerConfig
from collm.server.run import run
from factories.fake_backends import fake_backends
from factories.fake_replica import BASE_MODEL, FakeReplica, Hold, events_for
from factories.fake_rounds import FakeRoundDesk
from factories.noting_child import note_front_pid
from factories.snapshots import make_snapshot

GRACE_S = 20.0


def script(request):
    events = events_for(request, b"Hello")
    place = {7: 1, 8: 0}.get(request.sampling.seed)
    return events if place is None else [*events[:place], Hold(), *events[place:]]


def run_replica(name):
    replica = FakeReplica(script)
    snapshot = replace(make_snapshot(name), names=(BASE_MODEL,), active={}, quality={})
    rounds = FakeRoundDesk(snapshot)
    app = make_app(fake_backends(replica, rounds=rounds), ServerConfig(port=0))

    @app.post("/test/release")
    def release():
        replica.release()

    run(app, lambda url: print(f"collm is ready at {url}", flush=True))


def main():
    if sys.argv[1] == "front":
        note_front_pid()
        command_line.main()
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("--name")
    name = parser.parse_known_args()[0].name
    end_with_stdin(GRACE_S)
    run_replica(name)


if __name__ == "__main__":
    main()
