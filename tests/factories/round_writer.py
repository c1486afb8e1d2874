"""A process that runs rounds without end, to be killed; see ``killed_process``."""

import sys
import threading
from pathlib import Path

from factories.fake_members import FakeCluster, FakeMember
from factories.killed_process import acknowledge, kill_self_at
from factories.rounds import Rounds, open_folder


def new_cluster() -> FakeCluster:
    """Return two members that know nothing."""
    return FakeCluster(
        FakeMember("a", content=b"a", num_polls=0), FakeMember("b", content=b"b", num_polls=0)
    )


if __name__ == "__main__":
    if int(sys.argv[2]):
        kill_self_at(int(sys.argv[2]))
        threading.settrace(sys.gettrace())  # the journal is written by other threads
    with open_folder(Path(sys.argv[1])) as opened:
        rounds = Rounds(new_cluster(), opened)
        while True:
            record = rounds.run()
            acknowledge("ended", record.round, record.status)
