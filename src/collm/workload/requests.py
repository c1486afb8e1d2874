"""A workload: the arrivals and lengths of a trace, filled with the texts of sample sets."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random

from collm.chats import Message, Sample
from collm.metrics.records import Kind
from collm.workload.config import WorkloadConfig
from collm.workload.traces import Trace, TraceRow


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadRequest:
    """One request to send at its time."""

    at_s: float
    """Seconds after the start of the replay."""
    kind: Kind
    site: str
    messages: tuple[Message, ...]
    expected: str | None
    """The right answer of a scored request."""
    max_tokens: int
    ignore_eos: bool


def build_requests(
    trace: Trace, scored: Sequence[Sample], filler: str, config: WorkloadConfig, seed: int
) -> tuple[WorkloadRequest, ...]:
    """Make one request of each row of the trace, in its order.

    Which rows are scored is drawn by ``seed``; their samples are taken in the order given, from
    the first again when they run out. A length request gets a piece of ``filler`` that starts
    at a drawn word, about as long as the row's prompt.

    Raises:
        ValueError: No samples for scored requests, or no filler for length requests.
    """
    random = Random(seed)
    num_scored = round(len(trace) * config.scored_share)
    if num_scored and not scored:
        raise ValueError("scored requests need samples")
    if num_scored < len(trace) and not filler.strip():
        raise ValueError("length requests need filler text")
    scored_rows = set(random.sample(range(len(trace)), num_scored))
    pieces = _FillerText(filler, random)
    requests: list[WorkloadRequest] = []
    num_used = 0
    for index, row in enumerate(trace):
        if index in scored_rows:
            requests.append(_scored_request(row, scored[num_used % len(scored)], config))
            num_used += 1
        else:
            requests.append(_length_request(row, pieces, config))
    return tuple(requests)


def filler_text(samples: Iterable[Sample]) -> str:
    """Join the texts of samples to one long text for length requests."""
    return " ".join(message.content for sample in samples for message in sample.messages)


class _FillerText:
    """One long text from which pieces are cut at drawn places, going round at its end."""

    def __init__(self, text: str, random: Random) -> None:
        self._words = text.split()
        self._random = random

    def cut(self, num_chars: int) -> str:
        """Return whole words of about ``num_chars`` characters, at least one word."""
        position = self._random.randrange(len(self._words))
        piece = [self._words[position]]
        length = len(piece[0])
        while True:
            position = (position + 1) % len(self._words)
            word = self._words[position]
            # Half a word too many or too few: on average the length is met.
            if length + 1 + len(word) / 2 > num_chars:
                return " ".join(piece)
            piece.append(word)
            length += 1 + len(word)


def _scored_request(row: TraceRow, sample: Sample, config: WorkloadConfig) -> WorkloadRequest:
    return WorkloadRequest(
        at_s=row.arrived_at_s,
        kind="scored",
        site=row.site,
        messages=sample.prompt,
        expected=sample.answer,
        max_tokens=config.max_scored_tokens,
        ignore_eos=False,
    )


def _length_request(row: TraceRow, pieces: _FillerText, config: WorkloadConfig) -> WorkloadRequest:
    num_tokens = max(1, row.prompt_tokens - config.template_tokens)
    return WorkloadRequest(
        at_s=row.arrived_at_s,
        kind="length",
        site=row.site,
        messages=(Message("user", pieces.cut(round(num_tokens * config.chars_per_token))),),
        expected=None,
        max_tokens=row.output_tokens,
        ignore_eos=True,
    )
