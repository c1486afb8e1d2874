"""When a replica that lives counts as hung."""

import asyncio
from collections.abc import Iterator

from collm.cluster.endpoints import Endpoint
from collm.cluster.hang_watch import HangWatch
from collm.cluster.snapshot_json import to_json
from factories.fake_processes import FakeTime
from factories.snapshots import make_snapshot

ENDPOINT = Endpoint(replica_id="r0", url="http://r0", pid=1, started_at_s=1.0)
WELL = to_json(make_snapshot("r0"))
STILL = to_json(make_snapshot("r0", age_s=11.0))


class Answers:
    """Gives one answer after the other; an error is raised."""

    def __init__(self, *answers: object) -> None:
        self._answers: Iterator[object] = iter(answers)
        self.num_asked = 0

    async def fetch(self, endpoint: Endpoint) -> object:
        assert endpoint == ENDPOINT
        self.num_asked += 1
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer


def num_asked(*answers: object, patience_s: float) -> int:
    """Return how many questions are asked until the replica hangs."""
    source, time = Answers(*answers), FakeTime()
    asyncio.run(HangWatch(source, time.keeper_time, patience_s).until_hung(ENDPOINT))
    assert time.clock.now_s() == 5.0 * (source.num_asked - 1)
    return source.num_asked


def test_replica_hangs_when_it_says_nothing_for_so_long() -> None:
    assert num_asked(*[ConnectionRefusedError()] * 5, patience_s=12.0) == 3


def test_one_answer_is_enough_to_go_on() -> None:
    silent = [TimeoutError()] * 2
    assert num_asked(*silent, WELL, *silent, WELL, WELL, *silent * 2, patience_s=20.0) == 11


def test_an_answer_while_the_step_loop_stands_still_is_none() -> None:
    assert num_asked(WELL, STILL, STILL, patience_s=10.0) == 3
