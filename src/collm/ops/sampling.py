"""Choosing the next token from logits.

Every draw is a pure function of (logits, parameters, seed, position): no generator carries state
between steps, so a preempted or re-batched sequence draws what it would have drawn.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from collm.ops.native import logits as native
from collm.ops.native.library import can_take
from collm.types import SamplingParams, TokenLogprobs

_CANDIDATES = 1024
"""Most likely tokens looked at first: sorting a whole vocabulary takes milliseconds a row."""
_DRAW_BITS = 52
"""Random bits of a draw in [0, 1); one less than a double's, so that no rounding reaches 1."""


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """What one row's next token depends on besides its logits."""

    params: SamplingParams
    prompt: Sequence[int]
    output: Sequence[int]
    seed: str
    """Names this choice's stream of draws."""
    stop_token_ids: frozenset[int]
    """Not sampled before ``params.min_tokens``."""

    @property
    def is_plain_greedy(self) -> bool:
        """Whether the row's token is the argmax of its logits as they are."""
        p = self.params
        return (
            p.temperature == 0.0
            and p.repetition_penalty == 1.0
            and p.presence_penalty == 0.0
            and p.frequency_penalty == 0.0
            and not self._is_below_minimum
        )

    @property
    def needs_ranking(self) -> bool:
        """Whether some of the less likely tokens are cut off before the draw."""
        return self.params.top_k > 0 or self.params.top_p < 1.0 or self.params.min_p > 0.0

    @property
    def _is_below_minimum(self) -> bool:
        return len(self.output) < self.params.min_tokens and bool(self.stop_token_ids)

    def adjust_(self, logits: Tensor) -> None:
        """Apply penalties and the minimum length to ``logits`` [vocab_size], in place."""
        p = self.params
        if p.repetition_penalty != 1.0:
            seen = sorted({*self.prompt, *self.output})
            values = logits[seen]
            logits[seen] = torch.where(
                values > 0, values / p.repetition_penalty, values * p.repetition_penalty
            )
        if self.output and (p.presence_penalty or p.frequency_penalty):
            counts = Counter(self.output)
            penalties = [p.presence_penalty + p.frequency_penalty * n for n in counts.values()]
            logits[list(counts)] -= logits.new_tensor(penalties)
        if self._is_below_minimum:
            logits[list(self.stop_token_ids)] = -torch.inf


def sample(logits: Tensor, rows: Sequence[SamplingRow]) -> list[int | None]:
    """Return one token id per row of ``logits`` [num_rows, vocab_size], which stay as they are.

    A row with NaN or infinity in it has none: whatever were drawn, the model did not say it.
    """
    tokens = _most_likely(logits)
    for index, row in enumerate(rows):
        if tokens[index] is not None and not row.is_plain_greedy:
            tokens[index] = _sample_row(logits[index], row)
    return tokens


def token_logprobs(logits: Tensor, token_id: int, num_top: int) -> TokenLogprobs:
    """Return log-probabilities of the unmodified distribution ``logits`` [vocab_size]."""
    logprobs = logits.float().log_softmax(dim=-1)
    values, ids = logprobs.topk(num_top)
    top = tuple(zip(ids.tolist(), values.tolist(), strict=True))
    return TokenLogprobs(float(logprobs[token_id]), top)


def _most_likely(logits: Tensor) -> list[int | None]:
    """Return each row's most likely token, the first of several; ``None`` if it is not finite."""
    if can_take(logits):
        found: list[int] = native.most_likely(logits).tolist()
        return [None if token_id < 0 else token_id for token_id in found]
    top = logits.max(dim=-1)  # NaN counts as the largest
    finite: list[bool] = top.values.isfinite().tolist()
    return [
        token_id if is_finite else None
        for token_id, is_finite in zip(top.indices.tolist(), finite, strict=True)
    ]


def _sample_row(logits: Tensor, row: SamplingRow) -> int:
    logits = logits.to(torch.float32, copy=True)
    row.adjust_(logits)
    if row.params.temperature == 0.0:
        return int(logits.argmax())
    logits /= row.params.temperature
    if not row.needs_ranking:
        return _draw(logits, row)
    ids, logits = _candidates(logits, row.params)
    return int(ids[_draw(logits, row)])


def _candidates(logits: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor]:
    """Return ids and logits, most likely first, of the tokens that top-k, top-p and min-p leave."""
    vocab_size = logits.shape[0]
    num = min(params.top_k or _CANDIDATES, vocab_size)
    values, ids = logits.topk(num)
    total = (values if params.top_k else logits).logsumexp(dim=-1)
    num_kept = _num_kept((values - total).exp(), params)
    if num_kept == num and not params.top_k:  # the next ones may belong to it as well
        values, ids = logits.topk(vocab_size)
        num_kept = _num_kept((values - total).exp(), params)
    return ids[:num_kept], values[:num_kept]


def _num_kept(probs: Tensor, params: SamplingParams) -> int:
    """Return how many of ``probs``, in falling order, pass top-p and min-p; at least one.

    ``probs`` are those of top-k's choice, so top-p is a share of what top-k left. Every token is
    kept before which less than top-p lies, so the one that crosses it is the last.
    """
    keep = probs >= params.min_p * probs[0]
    if params.top_p < 1.0:
        keep &= probs.cumsum(dim=-1, dtype=torch.float64) - probs < params.top_p
    return max(int(keep.sum()), 1)


def _draw(logits: Tensor, row: SamplingRow) -> int:
    """Return an index drawn from the softmax of ``logits`` by inverting its distribution.

    One number decides, so a rounding difference in the logits changes the token only where the
    number falls within it of a border between two tokens.
    """
    cdf = logits.softmax(dim=-1).cumsum(dim=-1, dtype=torch.float64)
    share = _draw_number(row) * cdf[-1]
    # Past the end only for NaN, which a tiny temperature makes of large logits; it must not fail
    # the other requests of the step.
    return min(int(torch.searchsorted(cdf, share, right=True)), len(cdf) - 1)


def _draw_number(row: SamplingRow) -> float:
    """Return a number in [0, 1) that the choice's seed and the token's position determine."""
    text = f"{row.seed}:{len(row.output)}".encode()
    digest = hashlib.blake2b(text, digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> (64 - _DRAW_BITS)) / 2.0**_DRAW_BITS
