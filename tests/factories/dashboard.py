"""Replicas whose answers the dashboard shows, scripted."""

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from factories.figures import figures
from factories.scripted_upstream import Line, Script

ADAPTER = "clinc"
DECISION = {
    "decided_at_s": 1_700_000_300.0,
    "kind": "promotion",
    "adapter": ADAPTER,
    "version": "clinc@3",
    "previous": "clinc@2",
    "reason": "better on held-out samples",
    "numbers": {
        "candidate_loss": 0.5,
        "active_loss": 0.7,
        "active_exact_match": 0.5,
        "candidate_exact_match": 0.75,
        "num_short_answers": 64,
        "evidence": 25.0,
        "num_samples": 64,
    },
}
JOB = {
    "id": "ftjob-r0-1",
    "object": "fine_tuning.job",
    "created_at": 1_700_000_000,
    "finished_at": None,
    "status": "running",
    "error": None,
    "adapter": ADAPTER,
    "version": "clinc@3",
    "continuous": True,
    "hyperparameters": {},
    "trained_tokens": 100,
}

ALLOCATION = {
    "number": 7,
    "made_at_s": 1_700_000_400.0,
    "objective": {"serving": 120.5, "learning": 30.25, "debt": 1.5, "total": 149.25},
    "alternatives": [{"name": "all traffic on r1", "total": 140.0}],
    "adapters": {
        "clinc": {
            "arrivals_per_s": 2.5,
            "expected_tokens": 9000.0,
            "quality_gain": 0.031,
            "traffic": {"r0": 0.75, "r1": 0.25},
            "members": ["r0", "r1"],
        }
    },
    "replicas": {
        "r0": {
            "arrivals_per_s": 1.875,
            "attainment": 0.97,
            "free_share": 0.4,
            "price": 0.012,
            "grants": {"clinc": {"credit_share": 0.1, "time_share": 1.0, "batch_tokens": 2048}},
        }
    },
}
"""What a front says on ``/cluster/allocation``, as far as the page shows it."""
EXPLANATION = {"number": 7, "text": ["It serves most of clinc, for it is the faster one."]}
"""The same, asked about one replica."""


def version_row(number: int, **changes: Any) -> dict[str, Any]:
    """A row of ``/adapters``; version 3 is the active one."""
    return {
        "version": f"{ADAPTER}@{number}",
        "adapter": ADAPTER,
        "digest": "ab",
        "rank": 8,
        "metadata": {},
        "published_at_s": 1_700_000_000.0 + 100 * number,
        "slot": number,
        "num_pins": 0,
        "is_active": number == 3,
        "is_pinned": False,
        **changes,
    }


def listing(*rows: Mapping[str, Any]) -> dict[str, Any]:
    return {"object": "list", "data": list(rows), "has_more": False}


class ShownReplica:
    """Answers what the dashboard asks; ``answers`` may be changed at any time."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self.rollbacks: list[dict[str, Any]] = []
        self.answers: dict[str, Callable[[], Any]] = {
            "/control/snapshot": lambda: figures(100.0 + time.monotonic() - self._began_s),
            "/v1/models": lambda: listing({"id": "tiny", "parent": None}),
            "/adapters": lambda: listing(version_row(2), version_row(3)),
            f"/adapters/{ADAPTER}/history": lambda: listing(DECISION),
            "/v1/fine_tuning/jobs": lambda: listing(JOB),
        }

    @property
    def script(self) -> Script:
        async def answer(line: Line) -> None:
            path = line.seen.target.partition("?")[0]
            if path == "/adapters/rollback":
                self.rollbacks.append(json.loads(line.seen.body))
                body: Any = {"adapter": ADAPTER, "version": "clinc@2", "is_active": True}
            elif path in self.answers:
                body = self.answers[path]()
            else:
                await line.whole(b"{}", status=404)
                return
            await line.whole(json.dumps(body).encode())

        return answer
