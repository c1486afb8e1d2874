"""How long does choosing a replica take, by the number of replicas?

    python benchmarks/router.py [--requests 20000]

Replicas report five times a second and answer as they claim; the load is half of what meets the
objectives. Each size is measured twice: routing by itself, and following an allocation's prices and
shares of the traffic. Needs no model: only the router, its table and the front's book run.
"""

import argparse
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import TypeVar

from collm.cluster.lanes import Ticket
from collm.cluster.router import Router
from collm.cluster.routes import Choice, RouteRequest
from collm.cluster.routing_config import RouterConfig
from collm.cluster.sent import Sent
from collm.cluster.table import ReplicaTable
from collm.types import ReplicaSnapshot, StepCoefficients, VersionId

_T = TypeVar("_T")

SIZES = (2, 10, 100, 1_000)
NUM_MESSAGES = 5
NUM_SESSIONS = 2_000
ADAPTERS = tuple(f"adapter-{number}" for number in range(8))
PER_REPLICA_PER_S = 4.0
ANSWER_S = 2.0
SNAPSHOT_EVERY_S = 0.2


def snapshot_of(number: int, rng: Random) -> ReplicaSnapshot:
    """Return a half busy replica that serves every adapter, each a little better or worse."""
    num_running = rng.randrange(8)
    return ReplicaSnapshot(
        replica_id=f"replica-{number}",
        url="",
        taken_at_s=0.0,
        num_running=num_running,
        num_waiting=0,
        queued_prefill_tokens=rng.randrange(200),
        num_context_tokens=200 * num_running,
        num_free_blocks=2_000,
        block_size=16,
        credit_share=0.1,
        bytes_per_token=4.2,
        step_coefficients=StepCoefficients(
            constant_s=0.02, decode_s=0.002, prefill_s=0.001, context_s=1e-6, adapter_s=0.002
        ),
        ttft_s=0.8,
        tpot_s=0.1,
        names=("base", *ADAPTERS, *(f"{name}@1" for name in ADAPTERS)),
        active={name: VersionId(f"{name}@1") for name in ADAPTERS},
        quality={name: rng.uniform(0.8, 1.0) for name in ADAPTERS},
        quality_noise=dict.fromkeys(ADAPTERS, 0.03),
        max_model_len=4_096,
        is_draining=False,
        base_digest="0" * 64,
    )


def request_of(rng: Random) -> RouteRequest:
    """Return the next turn of some conversation."""
    session = rng.randrange(NUM_SESSIONS)
    first = session * 1_000
    return RouteRequest(
        model=ADAPTERS[session % len(ADAPTERS)],
        num_prompt_bytes=rng.randrange(200, 2_000),
        num_output_tokens_guess=64,
        prefix_hashes=tuple(range(first, first + NUM_MESSAGES)),
        session=str(session),
    )


@dataclass(frozen=True, slots=True)
class Times:
    """Microseconds of every call, by what was called."""

    choose: list[float]
    book: list[float]
    snapshot: list[float]


def follow_some_allocation(router: Router, snapshots: Sequence[ReplicaSnapshot]) -> None:
    """Give the router prices around a hundredth, and every replica an uneven share."""
    rng = Random(0)
    ids = [snapshot.replica_id for snapshot in snapshots]
    weights = {name: rng.uniform(0.5, 1.5) for name in ids}
    whole = sum(weights.values())
    shares = {name: weight / whole for name, weight in weights.items()}
    router.follow({name: rng.uniform(0.0, 0.02) for name in ids}, dict.fromkeys(ADAPTERS, shares))


def measure(num_replicas: int, num_requests: int, seed: int, *, is_following: bool) -> Times:
    """Route requests in virtual time; only the calls themselves are timed."""
    rng = Random(seed)
    snapshots = [snapshot_of(number, rng) for number in range(num_replicas)]
    table, sent, router = ReplicaTable(snapshots), Sent(), Router(RouterConfig(), Random(seed))
    if is_following:
        follow_some_allocation(router, snapshots)
    times = Times([], [], [])
    open_tickets: deque[tuple[float, Ticket]] = deque()
    now_s, num_due, num_snapshots = 0.0, 0.0, 0
    for _ in range(num_requests):
        gap_s = rng.expovariate(num_replicas * PER_REPLICA_PER_S)
        now_s += gap_s
        num_due += gap_s * num_replicas / SNAPSHOT_EVERY_S
        while num_due >= 1.0:
            num_due -= 1.0
            number = num_snapshots % num_replicas
            num_snapshots += 1
            fresh = replace(
                snapshot_of(number, rng), taken_at_s=now_s, quality=snapshots[number].quality
            )
            times.snapshot.append(timed(partial(table.put, fresh))[0])
        while open_tickets and open_tickets[0][0] <= now_s:
            sent.finished(open_tickets.popleft()[1], now_s)
        request = request_of(rng)
        took_us, choice = timed(partial(router.choose, request, table, sent, now_s))
        times.choose.append(took_us)
        assert isinstance(choice, Choice)
        took_us, ticket = timed(partial(sent.add, request, choice, now_s))
        times.book.append(took_us)
        sent.started(ticket, now_s + choice.claimed_ttft_s)
        open_tickets.append((now_s + ANSWER_S, ticket))
    return times


def timed(call: Callable[[], _T]) -> tuple[float, _T]:
    """Return the microseconds that a call took, and its result."""
    start_s = time.perf_counter()
    result = call()
    return (time.perf_counter() - start_s) * 1e6, result


def cells(values: Sequence[float]) -> str:
    """Return the median and the 99 % point."""
    ordered = sorted(values)
    return f"{ordered[len(ordered) // 2]:.1f} | {ordered[len(ordered) * 99 // 100]:.1f}"


def main() -> None:
    """Print one row per number of replicas, in microseconds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=20_000, help="requests of each size")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    columns = ("choose: median µs", "p99", "add: median µs", "p99", "snapshot: median µs", "p99")
    print(
        "| replicas | following an allocation | " + " | ".join(columns) + " |\n" + "|---" * 8 + "|"
    )
    for size in SIZES:
        for is_following in (False, True):
            times = measure(size, arguments.requests, arguments.seed, is_following=is_following)
            figures = " | ".join(cells(one) for one in (times.choose, times.book, times.snapshot))
            print(f"| {size} | {'yes' if is_following else 'no'} | {figures} |")


if __name__ == "__main__":
    main()
