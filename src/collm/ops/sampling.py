"""Choosing the next token from logits.

Every draw is a pure function of (logits, parameters, seed, position): no generator carries state
between steps, so a preempted or re-batched sequence draws what it would have drawn.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from collm.types import SamplingParams, TokenLogprobs

_CANDIDATES = 1024
"""Most likely tokens looked at first for top-p: sorting a whole vocabulary takes milliseconds a row."""


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
    def _is_below_minimum(self) -> bool:
        return len(self.output) < self.params.min_tokens and bool(self.stop_token_ids)

    def adjust_(self, logits: Tensor) -> None:
        """Apply penalties and the minimum length to ``logits`` [vocab_size], in place."""
        p = self.params
        if p.repetition_penalty != 1.0:
            seen = torch.tensor(sorted({*self.prompt, *self.output}))
            values = logits[seen]
            logits[seen] = torch.where(
                values > 0, values / p.repetition_penalty, values * p.repetition_penalty
            )
        if self.output and (p.presence_penalty or p.frequency_penalty):
            used, counts = torch.tensor(self.output).unique(return_counts=True)
            logits[used] -= p.presence_penalty + p.frequency_penalty * counts
        if self._is_below_minimum:
            logits[list(self.stop_token_ids)] = -torch.inf


def sample(logits: Tensor, rows: Sequence[SamplingRow]) -> list[int]:
    """Return one token id per row of ``logits`` [num_rows, vocab_size], float32; not changed."""
    if all(row.is_plain_greedy for row in rows):
        tokens: list[int] = logits.argmax(dim=-1).tolist()
        return tokens
    return [_sample_row(logits[index], row) for index, row in enumerate(rows)]


def token_logprobs(logits: Tensor, token_id: int, num_top: int) -> TokenLogprobs:
    """Return log-probabilities of the unmodified distribution ``logits`` [vocab_size]."""
    logprobs = logits.log_softmax(dim=-1)
    values, ids = logprobs.topk(num_top) if num_top else (logprobs[:0], logprobs[:0].long())
    top = tuple(zip(ids.tolist(), values.tolist(), strict=True))
    return TokenLogprobs(float(logprobs[token_id]), top)


def _sample_row(logits: Tensor, row: SamplingRow) -> int:
    logits = logits.clone()
    row.adjust_(logits)
    if row.params.temperature == 0.0:
        return int(logits.argmax())
    ids, logits = _candidates(logits / row.params.temperature, row.params)
    generator = torch.Generator().manual_seed(_draw_seed(row))
    # The race of exponential clocks is won by token i with probability softmax(logits)[i].
    noise = torch.empty_like(logits).exponential_(generator=generator)
    winner = int((logits.softmax(dim=-1) / noise).argmax())
    return winner if ids is None else int(ids[winner])


def _candidates(logits: Tensor, params: SamplingParams) -> tuple[Tensor | None, Tensor]:
    """Return the ids and logits that top-k, top-p and min-p leave; ids ``None`` stands for all."""
    if not params.top_k and params.top_p >= 1.0 and params.min_p <= 0.0:
        return None, logits
    vocab_size = logits.shape[0]
    limit = min(params.top_k or vocab_size, vocab_size)
    total = logits.logsumexp(dim=-1)
    num = min(limit, _CANDIDATES)
    while True:
        values, ids = logits.topk(num)
        probs = (values - total).exp()
        if params.top_k:
            probs = probs / (values.logsumexp(-1) - total).exp() if num == limit else probs
        before = probs.cumsum(-1) - probs
        if num == limit or float(before[-1]) >= params.top_p or _is_below(probs[-1], probs[0], params):
            break
        num = limit
    keep = (before < params.top_p) & (probs >= params.min_p * probs[0])
    keep[0] = True
    return ids[keep], values[keep]


def _is_below(last: Tensor, first: Tensor, params: SamplingParams) -> bool:
    return float(last) < params.min_p * float(first)


def _draw_seed(row: SamplingRow) -> int:
    text = f"{row.seed}:{len(row.output)}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1
