"""The processes that ``dashboard.py`` measures: replicas with figures that move, and their front.

Each says its URLs on standard output and ends with its standard input.
"""

import asyncio
import json
import sys
import time
from typing import Any

from collm.cluster.snapshot_json import to_json
from front_sides import STATE, run_front

_VERSIONS = 20
_DECISIONS = 40


def _figures() -> dict[str, Any]:
    now_s = time.monotonic()
    count = int(now_s) % 100_000
    spread = [[number, count] for number in range(60, 130)]  # as many buckets as real traffic fills
    return {
        "at_s": now_s,
        "running": 8,
        "waiting": 2,
        "used_blocks": 400,
        "num_blocks": 1000,
        "loop_seconds": {"serve": now_s / 2, "train": now_s / 4, "evaluate": 0.0, "idle": 0.0},
        "serving": {
            "objectives": {"ttft_s": 0.8, "tpot_s": 0.1},
            "adapters": {
                "clinc": {"ended": count + count // 50, "met": count, "output_tokens": 100 * count}
            },
            "phase_seconds": {"prefill": now_s / 8, "decode": now_s * 3 / 8},
            "ttft": spread,
            "tpot": spread,
        },
        "adapters": {
            "clinc": {
                "active": f"clinc@{_VERSIONS}",
                "status": "running",
                "step": count,
                "training_tokens": 400 * count,
                "training_loss": 1.0,
                "held_out_loss": 0.9,
                "active_held_out_loss": 1.0,
                "held_out_exact_match": 0.7,
                "active_exact_match": 0.65,
            }
        },
    }


def _versions() -> list[dict[str, Any]]:
    row = {"adapter": "clinc", "rank": 16, "is_pinned": False, "metadata": {}, "slot": 0}
    return [
        {**row, "version": f"clinc@{number}", "published_at_s": 1.7e9 + number,
         "is_active": number == _VERSIONS}
        for number in range(1, _VERSIONS + 1)
    ]  # fmt: skip


def _decisions() -> list[dict[str, Any]]:
    numbers = {"candidate_loss": 0.9, "active_loss": 1.0, "evidence": 21.0, "num_samples": 128}
    row = {"adapter": "clinc", "kind": "refusal", "version": None, "previous": None}
    return [
        {**row, "decided_at_s": 1.7e9 + number, "reason": "not shown", "numbers": numbers}
        for number in range(_DECISIONS)
    ]


_ANSWERS = {
    "/control/state": lambda: to_json(STATE),
    "/control/snapshot": _figures,
    "/adapters": lambda: {"data": _versions()},
    "/adapters/clinc/history": lambda: {"data": _decisions()},
    "/v1/models": lambda: {"data": [{"id": "base", "parent": None}]},
    "/v1/fine_tuning/jobs": lambda: {"data": [], "has_more": False},
    "/v1/feedback": lambda: {"data": [], "has_more": False},
}


async def _serve(name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            path = head.split(b" ", 2)[1].decode().partition("?")[0]
            value = _ANSWERS[path]()
            if path == "/control/state":
                value["replica_id"] = name
            body = json.dumps(value).encode()
            kind = b"content-type: application/json"
            writer.write(
                b"HTTP/1.1 200 OK\r\n%b\r\ncontent-length: %d\r\n\r\n%b" % (kind, len(body), body)
            )
    except (OSError, asyncio.IncompleteReadError):
        writer.close()


async def _replicas(count: int) -> None:
    urls, servers = [], []
    for number in range(count):

        def serve(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: str = f"r{number}"
        ) -> Any:
            return _serve(name, reader, writer)

        servers.append(await asyncio.start_server(serve, "127.0.0.1", 0))
        urls.append(f"http://127.0.0.1:{servers[-1].sockets[0].getsockname()[1]}")
    print(",".join(urls), flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    if sys.argv[1] == "replicas":
        asyncio.run(_replicas(int(sys.argv[2])))
    else:
        asyncio.run(run_front(sys.argv[2].split(","), is_shown=sys.argv[3] == "shown"))
