"""Choosing the next token from logits.

Every draw is a pure function of (logits, parameters, seed, position): no generator carries state
between steps, so a preempted or re-batched sequence draws what it would have drawn.
"""

import hashlib
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from collm.ops.native import sampling as native
from collm.types import SamplingParams, TokenLogprobs

_CANDIDATES = 1024
"""Most likely tokens looked at first: sorting a whole vocabulary takes milliseconds a row."""
_DRAW_BITS = 52
"""Random bits of a draw in [0, 1); one less than a double's, so that no rounding reaches 1."""
_LEAST_TEMPERATURE = 1e-30
"""What is smaller draws like this, without an overflow."""


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """What one row's next token depends on besides its logits."""

    params: SamplingParams
    token_ids: Sequence[int]
    """Known tokens: the prompt, then the output."""
    num_prompt_tokens: int
    seed: str
    """Names this choice's stream of draws."""
    stop_token_ids: frozenset[int]
    """Not sampled before ``params.min_tokens``."""

    @property
    def is_plain_greedy(self) -> bool:
        """Whether the row's token is the argmax of its logits as they are."""
        return self.params.temperature == 0.0 and not (self.has_penalties or self.is_below_minimum)

    @property
    def needs_ranking(self) -> bool:
        """Whether some of the less likely tokens are cut off before the draw."""
        return self.params.top_k > 0 or self.params.top_p < 1.0 or self.params.min_p > 0.0

    @property
    def has_penalties(self) -> bool:
        """Whether known tokens become more or less likely."""
        p = self.params
        return (
            p.repetition_penalty != 1.0 or p.presence_penalty != 0.0 or p.frequency_penalty != 0.0
        )

    @property
    def is_below_minimum(self) -> bool:
        """Whether the output may not end yet."""
        return len(self.token_ids) - self.num_prompt_tokens < self.params.min_tokens

    def draw(self) -> float:
        """Return the number in [0, 1) that the choice's seed and the token's position determine."""
        text = f"{self.seed}:{len(self.token_ids) - self.num_prompt_tokens}".encode()
        digest = hashlib.blake2b(text, digest_size=8).digest()
        return (int.from_bytes(digest, "little") >> (64 - _DRAW_BITS)) / 2.0**_DRAW_BITS

    def adjust_(self, logits: Tensor) -> None:
        """Apply penalties and the minimum length to ``logits`` [vocab_size], in place."""
        p = self.params
        if p.repetition_penalty != 1.0:
            seen = sorted(set(self.token_ids))
            values = logits[seen]
            logits[seen] = torch.where(
                values > 0, values / p.repetition_penalty, values * p.repetition_penalty
            )
        counts = Counter(self.token_ids[self.num_prompt_tokens :])
        if counts and (p.presence_penalty or p.frequency_penalty):
            penalties = [p.presence_penalty + p.frequency_penalty * n for n in counts.values()]
            logits[list(counts)] -= logits.new_tensor(penalties)
        if self.is_below_minimum:
            ends = [token_id for token_id in self.stop_token_ids if token_id < len(logits)]
            logits[ends] = -torch.inf


def sample(logits: Tensor, rows: Sequence[SamplingRow]) -> list[int | None]:
    """Return one token id per row of ``logits`` [num_rows, vocab_size], which stay as they are.

    Cuts keep the most likely tokens, of equally likely ones the first. One number then decides by
    inverting the distribution in the vocabulary's order, so a rounding difference in the logits
    changes the token only where the number falls within it of a border between two tokens.

    A row with NaN, or whose largest is infinite, has no token: whatever were drawn, the model did
    not say it. Neither has one whose every token is barred. Single tokens may be at -inf.
    """
    if native.can_sample(logits):
        found = native.sample(logits, [_choice(row) for row in rows])
        return [None if token_id < 0 else token_id for token_id in found]
    tokens = _most_likely(logits)
    for index, row in enumerate(rows):
        if tokens[index] is not None and not row.is_plain_greedy:
            tokens[index] = _sample_row(logits[index], row)
    return tokens


def token_logprobs(
    logits: Tensor, tokens: Sequence[int | None], nums_top: Sequence[int | None]
) -> list[TokenLogprobs | None]:
    """Return log-probabilities of the unmodified distributions ``logits`` [num_rows, vocab_size].

    Args:
        logits: As ``sample`` takes them.
        tokens: Each row's token.
        nums_top: How many of the most likely tokens are listed beside it, all of them at most.

    Returns:
        Of each row; ``None`` where either of the two is ``None``.
    """
    asked = [
        (row, token_id, min(num_top, logits.shape[1]))
        for row, (token_id, num_top) in enumerate(zip(tokens, nums_top, strict=True))
        if token_id is not None and num_top is not None
    ]
    found: list[TokenLogprobs | None] = [None] * len(tokens)
    if not asked:
        return found
    if native.can_sample(logits):
        reports = native.log_probabilities(logits, asked)
    else:
        reports = [_report(logits[row], token_id, num_top) for row, token_id, num_top in asked]
    for (row, _, _), report in zip(asked, reports, strict=True):
        found[row] = report
    return found


def _report(logits: Tensor, token_id: int, num_top: int) -> TokenLogprobs:
    logprobs = logits.float().log_softmax(dim=-1)
    values, ids = logprobs.topk(num_top)
    top = tuple(zip(ids.tolist(), values.tolist(), strict=True))
    return TokenLogprobs(float(logprobs[token_id]), top)


def _choice(row: SamplingRow) -> native.Choice:
    p = row.params
    fields = native.ChoiceFields(
        0.0 if p.temperature == 0.0 else row.draw(),
        p.temperature,
        p.top_p,
        p.min_p,
        p.top_k,
        p.repetition_penalty,
        p.presence_penalty,
        p.frequency_penalty,
    )
    known: Sequence[int] = ()
    if p.repetition_penalty != 1.0:
        known, fields.num_prompt = row.token_ids, row.num_prompt_tokens
    elif row.has_penalties:
        known = row.token_ids[row.num_prompt_tokens :]
    barred = row.stop_token_ids if row.is_below_minimum else ()
    return native.Choice(fields, array("i", known), array("i", barred))


def _most_likely(logits: Tensor) -> list[int | None]:
    """Return each row's most likely token, the first of several; ``None`` if it is not finite."""
    top = logits.max(dim=-1)  # NaN counts as the largest
    finite: list[bool] = top.values.isfinite().tolist()
    return [
        token_id if is_finite else None
        for token_id, is_finite in zip(top.indices.tolist(), finite, strict=True)
    ]


def _sample_row(logits: Tensor, row: SamplingRow) -> int | None:
    logits = logits.to(torch.float32, copy=True)
    row.adjust_(logits)
    top = logits.max()
    if not top.isfinite():
        return None
    if row.params.temperature == 0.0:
        return int(logits.argmax())
    logits = (logits - top) / max(row.params.temperature, _LEAST_TEMPERATURE)
    if row.needs_ranking:
        logits = _without_unlikely(logits, row.params)
    cdf = logits.softmax(dim=-1).cumsum(dim=-1, dtype=torch.float64)
    return int(torch.searchsorted(cdf, row.draw() * cdf[-1], right=True))


def _without_unlikely(logits: Tensor, params: SamplingParams) -> Tensor:
    """Return ``logits`` [vocab_size] with -inf where top-k, top-p or min-p leave no token."""
    values, num_kept = _candidates(logits, params)
    least = values[num_kept - 1]
    kept = logits > least
    num_ties = num_kept - int(kept.sum())
    kept[(logits == least).nonzero()[:num_ties, 0]] = True
    return logits.where(kept, -torch.inf)


def _candidates(logits: Tensor, params: SamplingParams) -> tuple[Tensor, int]:
    """Return the largest logits, in falling order, and how many of them are kept."""
    vocab_size = logits.shape[0]
    num = min(params.top_k or _CANDIDATES, vocab_size)
    values = logits.topk(num).values
    total = (values if params.top_k else logits).logsumexp(dim=-1)
    num_kept = _num_kept((values - total).exp(), params)
    if num_kept == num and not params.top_k:  # the next ones may belong to it as well
        values = logits.topk(vocab_size).values
        num_kept = _num_kept((values - total).exp(), params)
    return values, num_kept


def _num_kept(probs: Tensor, params: SamplingParams) -> int:
    """Return how many of ``probs``, in falling order, pass top-p and min-p; at least one.

    ``probs`` are those of top-k's choice, so top-p is a share of what top-k left. Every token is
    kept before which less than top-p lies, so the one that crosses it is the last.
    """
    keep = probs >= params.min_p * probs[0]
    if params.top_p < 1.0:
        keep &= probs.cumsum(dim=-1, dtype=torch.float64) - probs < params.top_p
    return max(int(keep.sum()), 1)
