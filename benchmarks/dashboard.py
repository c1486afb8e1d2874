"""How much of a core does a front's dashboard take, and how many bytes does a watcher get?

    python benchmarks/dashboard.py [--watchers 0,1,10] [--replicas 2] [--seconds 30]

A front, with replicas that answer as real ones do, runs in a process of its own, whose CPU time is
read; the watchers are here. No model is needed. The first line is the front without its dashboard:
it asks its replicas how they stand in any case.
"""

import argparse
import asyncio
import time
from collections.abc import Sequence

import httpx

from front import cpu_s, print_rows, running

_SIDES = "dashboard_sides.py"
_WARM_UP_S = 3.0


async def watch(url: str, received: list[int], stop: asyncio.Event) -> None:
    """Read a stream as a browser does, and count its bytes."""
    async with (
        httpx.AsyncClient(base_url=url, timeout=None, trust_env=False) as http,
        http.stream("GET", "/dashboard/stream") as response,
    ):
        async for piece in response.aiter_bytes():
            received[0] += len(piece)
            if stop.is_set():
                return


async def measure(url: str, pid: int, num_watchers: int, seconds: float) -> tuple[float, float]:
    """Return the share of a core that a front takes, and bytes per watcher and second."""
    stop, received = asyncio.Event(), [0]
    watching = [asyncio.create_task(watch(url, received, stop)) for _ in range(num_watchers)]
    await asyncio.sleep(_WARM_UP_S)
    begun_s, used_s, num_bytes = time.monotonic(), cpu_s(pid), received[0]
    await asyncio.sleep(seconds)
    elapsed_s = time.monotonic() - begun_s
    share = (cpu_s(pid) - used_s) / elapsed_s
    rate = (received[0] - num_bytes) / elapsed_s / max(1, num_watchers)
    stop.set()
    await asyncio.gather(*watching)
    return share, rate


def rows_of(arguments: argparse.Namespace) -> list[dict[str, str]]:
    """Return the table's lines, one per number of watchers."""
    rows, replicas = [], str(arguments.replicas)
    settings: Sequence[tuple[str, int]] = [
        ("bare", 0),
        *(("shown", int(number)) for number in arguments.watchers.split(",")),
    ]
    for kind, number in settings:
        with (
            running("replicas", replicas, sides=_SIDES) as (urls, _),
            running("front", urls, kind, sides=_SIDES) as (url, pid),
        ):
            share, rate = asyncio.run(measure(url, pid, number, arguments.seconds))
        rows.append(
            {
                "dashboard": "no" if kind == "bare" else "yes",
                "watchers": str(number),
                "share of one core": f"{share:.1%}",
                "bytes/s to each": f"{rate:.0f}" if number else "–",
            }
        )
    return rows


def main() -> None:
    """Print one line per number of watchers."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--watchers", default="0,1,10", help="numbers of watchers to measure")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=30.0, help="to measure each for")
    arguments = parser.parse_args()
    rows = rows_of(arguments)
    print_rows(__doc__, rows)


if __name__ == "__main__":
    main()
