"""How far an adapter is from the version that it is trained from, and in the round under way."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from collm.lora.state import AdapterState
from collm.training.events import TrainReport
from collm.types import GradientSums


@dataclass(frozen=True, slots=True)
class Counts:
    """What was learned."""

    num_examples: int = 0
    num_tokens: int = 0
    gradient: GradientSums = GradientSums()
    """Not in checkpoints: an estimate can do without a few steps."""

    def plus(self, report: TrainReport) -> "Counts":
        """Return the counts after one more step."""
        return Counts(
            self.num_examples + report.num_samples,
            self.num_tokens + report.num_tokens,
            self.gradient.plus(report.gradient),
        )


@dataclass(slots=True)
class OpenRound:
    """A round whose update is still to be trained."""

    number: int
    max_tokens: int
    num_tokens: int = 0
    """Trained on in this round."""
    is_hurried: bool = False
    """Whether it shall report what it has."""

    @property
    def num_left(self) -> int:
        """Tokens that may still be trained on."""
        return self.max_tokens - self.num_tokens


@dataclass(slots=True)
class Gained:
    """What a shadow has beyond its base; the part that was reported, and all of it."""

    counts: Counts = Counts()
    """Since the base."""
    unreported: Counts = Counts()
    """Since the latest report."""
    reported: AdapterState | None = None
    """The shadow at the latest report; ``None`` without one since the base."""
    is_worse: bool = False
    """Whether the latest report found the shadow surely worse than its base."""
    latest: tuple[int, int] = field(default=(0, 0))
    """Number of the latest round, and the tokens trained on in it."""

    def add(self, report: TrainReport, open_round: OpenRound) -> None:
        """Count an optimizer step."""
        self.counts = self.counts.plus(report)
        self.unreported = self.unreported.plus(report)
        open_round.num_tokens += report.num_tokens
        self.latest = (open_round.number, open_round.num_tokens)

    def begin(self, number: int, max_tokens: int) -> OpenRound:
        """Return a round to be trained; one that a restart interrupted goes on."""
        num_done = self.latest[1] if self.latest[0] == number else 0
        return OpenRound(number, max_tokens, num_done)

    def keep_unreported(self) -> None:
        """Note that what was reported is in the new base."""
        self.counts, self.reported, self.is_worse = self.unreported, None, False

    def note_report(self, state: AdapterState) -> None:
        """Note that an update was reported."""
        self.unreported, self.reported = Counts(), state

    def to_meta(self) -> dict[str, str]:
        """Return it as strings for a checkpoint."""
        values = {
            "base_examples": self.counts.num_examples,
            "base_tokens": self.counts.num_tokens,
            "is_reported": int(self.reported is not None and self.unreported == Counts()),
            "round": self.latest[0],
            "round_tokens": self.latest[1],
        }
        return {name: str(value) for name, value in values.items()}

    @staticmethod
    def from_meta(meta: Mapping[str, str], state: AdapterState) -> "Gained":
        """Read what ``to_meta`` wrote; ``state`` is the shadow then."""
        counts = Counts(int(meta["base_examples"]), int(meta["base_tokens"]))
        gained = Gained(counts, counts, latest=(int(meta["round"]), int(meta["round_tokens"])))
        if int(meta["is_reported"]):
            gained.note_report(state)
        return gained

    def latest_only(self) -> "Gained":
        """Return what stays when the shadow is thrown away."""
        return replace(Gained(), latest=(self.latest[0], 0))
