"""From one choice's token events to the pieces of text that a client may see."""

from dataclasses import dataclass

from collm.server.backend import Detokenizer
from collm.server.stops import StopMatcher
from collm.types import FinishReason, TokenEvent, TokenLogprobs


@dataclass(frozen=True, slots=True)
class TokenReport:
    """A token whose text was shown, with its log-probabilities."""

    token_id: int
    logprobs: TokenLogprobs
    text_offset: int
    """Characters of this choice's text before the token."""


@dataclass(frozen=True, slots=True)
class Delta:
    """What became visible of one choice."""

    index: int
    text: str
    tokens: tuple[TokenReport, ...] = ()
    finish_reason: FinishReason | None = None
    """Set once, on the last delta of a choice."""


class ChoiceText:
    """Detokenizes one choice and ends it at its first stop string.

    The token that ended the choice (end of sequence, a stop token id) is not part of the text.
    Stop strings are looked for after ``min_tokens``.
    """

    def __init__(
        self, index: int, detokenizer: Detokenizer, stops: StopMatcher | None, min_tokens: int
    ) -> None:
        self._index = index
        self._detokenizer = detokenizer
        self._stops = stops
        self._min_tokens = min_tokens
        self._num_chars_read = 0
        self._num_chars_shown = 0
        self._hidden: list[TokenReport] = []
        self.num_tokens = 0
        """Tokens generated up to the end of this choice."""
        self.is_finished = False

    def push(self, event: TokenEvent) -> Delta | None:
        """Take the next event; ``None`` when nothing new may be shown."""
        if self.is_finished:
            return None
        text = self._read(event)
        finish_reason = event.finish_reason
        is_stopped = False
        if self._stops is not None and self.num_tokens > self._min_tokens:
            text, is_stopped = self._stops.push(text)
            if not is_stopped and finish_reason is not None:
                text += self._stops.flush()
        if is_stopped:
            finish_reason = FinishReason.STOP
        self._num_chars_shown += len(text)
        self.is_finished = finish_reason is not None
        if not text and not self.is_finished:
            return None
        tokens = self._shown_tokens(keep_all=self.is_finished and not is_stopped)
        return Delta(self._index, text, tokens, finish_reason)

    def _read(self, event: TokenEvent) -> str:
        """Return the text that the event completes, and remember its token's report."""
        text = ""
        if event.token_id is not None:
            self.num_tokens += 1
            if event.finish_reason is not FinishReason.STOP:
                if event.logprobs is not None:
                    report = TokenReport(event.token_id, event.logprobs, self._num_chars_read)
                    self._hidden.append(report)
                text = self._detokenizer.push(event.token_id)
        if event.finish_reason is not None:
            text += self._detokenizer.flush()
        self._num_chars_read += len(text)
        return text

    def _shown_tokens(self, *, keep_all: bool) -> tuple[TokenReport, ...]:
        """Take the reports of tokens whose text has begun to show."""
        if not self._hidden:
            return ()
        num_shown = sum(
            keep_all or report.text_offset < self._num_chars_shown for report in self._hidden
        )
        shown = tuple(self._hidden[:num_shown])
        del self._hidden[:num_shown]
        return shown
