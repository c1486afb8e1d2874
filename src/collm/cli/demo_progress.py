"""What a running demo has seen so far of a replica: finished requests, and looks at it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from collm.cli.demo_answers import Answer
from collm.cli.demo_settings import ADAPTER
from collm.cli.demo_traffic import OUT_OF_SCOPE
from collm.metrics.records import RequestRecord
from collm.workload.score import exact_match_score

_RATE_WINDOW_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The server's live figures at one moment."""

    at_s: float
    running: int
    waiting: int
    active: str | None
    """The version that new requests are bound to; ``None`` before the first promotion."""
    steps: int
    training_tokens: int
    training_samples: int
    shadow_loss: float | None
    """Latest held-out loss of what training writes, nats per token."""
    served_loss: float | None
    """Held-out loss of what is served."""
    promotions: int
    loop_seconds: Mapping[str, float]
    quanta: Mapping[str, Mapping[str, Any]]
    calibration: Mapping[str, Any]
    token_gaps: Mapping[str, Any]
    """Times between tokens as the server sent them. The client cannot see them all: once an
    adapter has learned to stop, ``ignore_eos`` makes it go on with tokens without text."""
    resident_bytes: int | None

    @property
    def loop_shares(self) -> dict[str, float]:
        """Return each kind of work's share of the loop's time."""
        total_s = sum(self.loop_seconds.values()) or 1.0
        return {work: spent_s / total_s for work, spent_s in self.loop_seconds.items()}


@dataclass(frozen=True, slots=True)
class Swap:
    """A change of the active version, seen by a look at the server."""

    at_s: float
    version: str
    loss: float | None
    """Held-out loss of the version."""


def read_look(numbers: Mapping[str, Any], at_s: float) -> Look:
    """Return what a server's ``/control/snapshot`` says."""
    adapter = numbers["adapters"][ADAPTER]
    return Look(
        at_s=at_s,
        running=numbers["running"],
        waiting=numbers["waiting"],
        active=adapter["active"],
        steps=adapter["step"],
        training_tokens=adapter["training_tokens"],
        training_samples=adapter["training_samples"],
        shadow_loss=adapter["held_out_loss"],
        served_loss=adapter["active_held_out_loss"],
        promotions=adapter["promotions"],
        loop_seconds=numbers["loop_seconds"],
        quanta=numbers["quanta"],
        calibration=numbers["calibration"],
        token_gaps=numbers["token_gaps"],
        resident_bytes=numbers["resident_bytes"],
    )


class Progress:
    """Collects records and looks; all times in seconds since ``start_s``."""

    def __init__(self, groups: Mapping[str, str], start_s: float) -> None:
        """Start empty.

        Args:
            groups: Group of each right answer.
            start_s: Start of the replay on the clock of the records.
        """
        self.start_s = start_s
        self.records: list[RequestRecord] = []
        self.outcomes: Counter[str] = Counter()
        self.num_mixed = 0
        self.answers: list[Answer] = []
        """Of the task's own groups, in the order in which they ended."""
        self.out_of_scope: list[Answer] = []
        self.looks: list[Look] = []
        self.swaps: list[Swap] = []
        self._groups = groups

    def add(self, record: RequestRecord) -> None:
        """Take in a request that ended."""
        self.records.append(record)
        self.outcomes[record.outcome] += 1
        self.num_mixed += record.is_mixed
        score = exact_match_score(record)
        if score is None or record.outcome == "aborted":
            return
        group = self._groups[record.expected or ""]
        ended_at_s = record.ended_at_s or record.arrived_at_s
        answer = Answer(ended_at_s - self.start_s, score == 1.0, group)
        (self.out_of_scope if group == OUT_OF_SCOPE else self.answers).append(answer)

    def look(self, look: Look) -> None:
        """Take in the server's figures."""
        before = self.looks[-1].active if self.looks else None
        if look.active is not None and look.active != before:
            self.swaps.append(Swap(look.at_s, look.active, look.served_loss))
        self.looks.append(look)

    @property
    def num_failed(self) -> int:
        """Requests that got no answer: failed, or turned away."""
        return self.outcomes["failed"] + self.outcomes["rejected"]

    @property
    def latest(self) -> Look | None:
        """Return the latest look."""
        return self.looks[-1] if self.looks else None

    def recent_tokens_per_s(self) -> float | None:
        """Return the training speed over the latest half minute."""
        recent = [x for x in self.looks if x.at_s >= self.looks[-1].at_s - _RATE_WINDOW_S]
        return _tokens_per_s(recent)

    def tokens_per_s(self) -> float | None:
        """Return the training speed over the whole run."""
        return _tokens_per_s(self.looks)


def active_version(look: Look | None) -> str:
    """Return the version that new requests get, in words before there is one."""
    return (look.active if look else None) or "base model"


def _tokens_per_s(looks: Sequence[Look]) -> float | None:
    if len(looks) < 2 or looks[-1].at_s <= looks[0].at_s:
        return None
    tokens = looks[-1].training_tokens - looks[0].training_tokens
    return tokens / (looks[-1].at_s - looks[0].at_s)
