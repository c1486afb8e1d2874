"""Records and looks of a made-up demo run."""

from collections.abc import Sequence
from typing import Any

from collm.cli.demo_answers import Accuracy
from collm.cli.demo_cluster_progress import ClusterProgress, Marks
from collm.cli.demo_progress import Look, Progress, read_look
from collm.cli.demo_rounds import read_rounds
from collm.cli.demo_sites import Site
from collm.metrics.records import RequestRecord
from collm.types import VersionId

GROUPS = {"transfer": "banking", "timer": "utility", "out of scope": "oos"}
START_S = 1_000.0


def record(at_s: float, expected: str | None = None, **fields: Any) -> RequestRecord:
    """One completed request that met its objectives, with a wrong answer unless ``text`` is set."""
    sent_s = START_S + at_s
    values = {
        "request_id": f"r{at_s}",
        "model": "clinc",
        "versions": (VersionId("base"),),
        "kind": "length" if expected is None else "scored",
        "arrived_at_s": sent_s,
        "first_token_at_s": sent_s + 0.2,
        "last_token_at_s": sent_s + 0.5,
        "num_output_tokens": 7,
        "max_gap_s": 0.08,
        "outcome": "completed",
        "ended_at_s": sent_s + 0.5,
        "expected": expected,
        "text": None if expected is None else "no idea",
        **fields,
    }
    return RequestRecord(**values)


def numbers(active: str | None = None, tokens: int = 0, loss: float | None = 2.0) -> dict[str, Any]:
    """What a server's snapshot says."""
    return {
        "running": 2,
        "waiting": 1,
        "adapters": {
            "clinc": {
                "active": active,
                "step": tokens // 768,
                "training_tokens": tokens,
                "training_samples": tokens // 48,
                "held_out_loss": loss,
                "active_held_out_loss": loss,
                "promotions": 0 if active is None else 1,
            }
        },
        "loop_seconds": {"serve": 5.0, "train": 3.0, "evaluate": 1.0, "idle": 1.0},
        "quanta": {"loss": {"count": 9, "p99_s": 0.03, "max_s": 0.05}},
        "calibration": {"step": {"num_observed": 10, "covered_share": 0.9}, "quanta": {}},
        "token_gaps": {"count": 99, "p99_s": 0.09, "max_s": 0.12},
        "resident_bytes": 700_000_000,
    }


def look(at_s: float, **fields: Any) -> Look:
    return read_look(numbers(**fields), at_s)


def learning_run(num_answers: int = 40, seconds: float = 100.0) -> Progress:
    """A run whose second half answers right, with a swap in the middle and one failed request."""
    progress = Progress(GROUPS, START_S)
    progress.look(look(0.0))
    for index in range(num_answers):
        expected = "transfer" if index % 2 else "timer"
        is_late = index >= num_answers // 2
        at_s = index * seconds / num_answers
        progress.add(record(at_s, expected, text=expected.upper() if is_late else "no idea"))
        progress.add(record(at_s))
    progress.add(record(seconds / 2, "out of scope", text="Out of  scope"))
    progress.look(look(seconds / 2, active="clinc@1", tokens=10_000, loss=1.0))
    progress.look(look(seconds, active="clinc@1", tokens=30_000, loss=0.5))
    return progress


SITES = (
    Site(name="r0", domains=frozenset({"banking"}), samples=()),
    Site(name="r1", domains=frozenset({"utility"}), samples=()),
)


def round_entry(number: int = 1, status: str = "done", **fields: Any) -> dict[str, Any]:
    """A round as a front's ``/cluster`` has it."""
    report = {"num_examples": 200, "num_tokens": 6_000, "loss_before": 2.0, "loss_after": 1.5}
    entry = {
        "round": number,
        "status": status,
        "reason": "promoted on r0, r1" if status == "done" else None,
        "base_version": None,
        "candidate": f"clinc@{number}",
        "started_at_s": 100.0,
        "ended_at_s": 160.0 if status == "done" else None,
        "results": {"gate": {"increase": -0.25}} if status == "done" else {},
        "members": [
            {"member": name, "outcome": "reported", "reason": None, "report": report}
            for name in ("r0", "r1")
        ],
    }
    return {**entry, **fields}


def cluster_state(url: str, names: Sequence[str]) -> dict[str, Any]:
    """What ``/cluster`` says of replicas that all are at one URL."""
    return {
        "replicas": [{"id": name, "url": url, "is_live": True} for name in names],
        "adapters": {"clinc": dict.fromkeys(names, "clinc@1")},
        "rounds": {"clinc": {"active": "clinc@1", "rounds": [round_entry()]}},
    }


def answered_by(name: str, number: int) -> str:
    return f"chatcmpl-{name}-{number:024x}"


def learning_cluster(seconds: float = 100.0) -> ClusterProgress:
    """Both replicas answer both domains: own ones from the start, foreign ones in the second half.

    One request is answered by nobody; two rounds are seen, the second under way.
    """
    progress = ClusterProgress(GROUPS, SITES, START_S)
    progress.look({}, (), num_live=2)
    for index in range(40):
        name, expected = ("r0", "r1")[index % 2], ("transfer", "timer")[index // 2 % 2]
        is_own = (name, expected) in (("r0", "transfer"), ("r1", "timer"))
        text = expected if is_own or index >= 20 else "no idea"
        at_s = index * seconds / 40
        progress.add(record(at_s, expected, text=text, request_id=answered_by(name, index)))
    progress.add(record(1.0, request_id="replay-9", outcome="failed"))
    looks = {name: look(seconds, active="clinc@1", tokens=9_000) for name in ("r0", "r1")}
    rounds = read_rounds({"rounds": [round_entry(2, "gating"), round_entry(1)]})
    progress.look(looks, rounds, num_live=2)
    for site in progress.sites.values():
        for stage, num_right in (("before", 0), ("alone", 3), ("together", 7)):
            found = Accuracy(num_right=num_right, num_answers=10)
            model = "clinc@1" if stage == "together" else stage
            site.exam[stage] = Marks(model=model, own=found, foreign=found)
    return progress
