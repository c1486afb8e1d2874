"""What does the front add to a call: to its first token, to each later one, and in CPU time?

    python benchmarks/front.py [--rounds 5] [--tokens 100] [--pace-ms 20]

A fake replica emits tokens at a fixed pace, each with the time of its sending; a client reads them
from it and, in turn, through a front. Three processes, on one machine; no model is needed.
"""

import argparse
import asyncio
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from collm.clock import MonotonicClock
from collm.server.front.calls import make_call
from collm.server.front.pool import ConnectionPool
from front_sides import FIRST_TOKEN_S, MODEL

STREAMS = (1, 16, 64)
_SENT = re.compile(rb'"sent_ns": (\d+)')
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass
class Side:
    """One way to the replica, and what was measured on it."""

    url: str
    ttfts_s: list[float] = field(default_factory=list)
    """Call to first token, less the time that the replica takes."""
    delays_s: list[float] = field(default_factory=list)
    """Each later token's way from the replica to the client."""


@contextmanager
def running(*arguments: str, sides: str = "front_sides.py") -> Iterator[tuple[str, int]]:
    """Start one of the other processes; yield its first line, a URL, and its process id."""
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name(sides)), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip(), process.pid
    finally:
        process.stdin.close()
        process.wait()


def cpu_s(pid: int) -> float:
    """Return the CPU time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


async def read_streams(
    pool: ConnectionPool, side: Side, num_streams: int, num_tokens: int, pace_s: float
) -> None:
    """Read some streams; they begin one after another in the time that half of one takes."""
    apart_s = num_tokens * pace_s / 2 / num_streams
    await asyncio.gather(
        *(
            _read_stream(pool, side, number * apart_s, num_tokens, pace_s)
            for number in range(num_streams)
        )
    )


async def _read_stream(
    pool: ConnectionPool, side: Side, wait_s: float, num_tokens: int, pace_s: float
) -> None:
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "What is the weather like today? " * 8}],
        "stream": True,
        "max_tokens": num_tokens,
        "pace_s": pace_s,
    }
    call = make_call(
        "POST", "/v1/chat/completions", (), json.dumps(body).encode(), is_repeatable=True
    )
    await asyncio.sleep(wait_s)
    begun_ns, num_read = time.monotonic_ns(), 0
    exchange = await pool.start(side.url, call)
    while piece := await exchange.read():
        now_ns = time.monotonic_ns()
        for sent_ns in _SENT.findall(piece):
            if num_read == 0:
                side.ttfts_s.append((now_ns - begun_ns) / 1e9 - FIRST_TOKEN_S)
            else:
                side.delays_s.append((now_ns - int(sent_ns)) / 1e9)
            num_read += 1
    exchange.close()
    assert num_read == num_tokens, f"{num_read} of {num_tokens} tokens came"


async def measure(
    replica_url: str, front_url: str, front_pid: int, arguments: argparse.Namespace
) -> list[dict[str, str]]:
    """Return the table's lines, one per number of streams; the sides take turns."""
    pool, pace_s = ConnectionPool(MonotonicClock()), arguments.pace_ms / 1e3
    rows = []
    for num_streams in STREAMS:
        direct, front, used_s = Side(replica_url), Side(front_url), 0.0
        for turn in range(arguments.rounds + 1):
            for side in (direct, front):
                before_s = cpu_s(front_pid)
                await read_streams(pool, side, num_streams, arguments.tokens, pace_s)
                used_s += cpu_s(front_pid) - before_s if side is front else 0.0
            if turn == 0:  # only warms up
                direct, front, used_s = Side(replica_url), Side(front_url), 0.0
        rows.append(row_of(num_streams, direct, front, used_s))
    pool.cut_all()
    return rows


def row_of(num_streams: int, direct: Side, front: Side, front_cpu_s: float) -> dict[str, str]:
    """Return one line of the table; times in milliseconds, CPU time in microseconds."""
    num_tokens = len(front.delays_s) + len(front.ttfts_s)
    row = {"streams": str(num_streams)}
    for name, one, other in (
        ("TTFT", direct.ttfts_s, front.ttfts_s),
        ("token", direct.delays_s, front.delays_s),
    ):
        for label, share in (("median", 0.5), ("p99", 0.99)):
            before, after = quantile(one, share), quantile(other, share)
            row[f"{name} {label} direct → front (ms)"] = f"{before * 1e3:.2f} → {after * 1e3:.2f}"
            row[f"added {name} {label} (ms)"] = f"{(after - before) * 1e3:+.2f}"
    row["front's CPU per token (µs)"] = f"{front_cpu_s / num_tokens * 1e6:.0f}"
    return row


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value that this share of all does not exceed."""
    if share == 0.5:
        return statistics.median(values)
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def main() -> None:
    """Print one line per number of streams."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="turns of each side")
    parser.add_argument("--tokens", type=int, default=100, help="per stream")
    parser.add_argument("--pace-ms", type=float, default=20.0, help="between two tokens")
    arguments = parser.parse_args()
    with running("replica") as (replica_url, _), running("front", replica_url) as (url, pid):
        rows = asyncio.run(measure(replica_url, url, pid, arguments))
    print_rows(__doc__, rows)


def print_rows(text: str, rows: Sequence[Mapping[str, str]]) -> None:
    """Print a table under a script's title, the first line of its ``text``, and its command."""
    print(f"# {text.partition(chr(10))[0]}\n\n`python {shlex.join(sys.argv)}`\n")
    print("| " + " | ".join(rows[0]) + " |\n|" + "---|" * len(rows[0]))
    for row in rows:
        print("| " + " | ".join(row.values()) + " |")


if __name__ == "__main__":
    main()
