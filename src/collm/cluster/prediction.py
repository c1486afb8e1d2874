"""What a request would meet at a replica: pure functions of a snapshot and of what was sent since.

They run for every candidate of every request, so they are written for speed: plain arithmetic.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

from collm.cluster.lanes import FLOOR_S, SentLoad
from collm.pacing.config import DEFAULT_MAX_PREFILL_TOKENS, DEFAULT_MIN_PREFILL_TOKENS
from collm.types import ReplicaSnapshot, VersionId

# How a replica fills a step unless told otherwise: a snapshot does not say.
_MIN_CHUNK = DEFAULT_MIN_PREFILL_TOKENS
_MAX_CHUNK = DEFAULT_MAX_PREFILL_TOKENS

_MAX_CREDIT = 0.9
"""Higher shares count as this one, so that predictions stay finite."""
SPREAD = 0.3
"""Standard deviation of the logarithm of true over predicted times; about what the step model of a
busy CPU replica leaves, queue and length guesses included."""
_STEEPNESS = math.pi / (math.sqrt(3.0) * SPREAD)
"""Of the log-logistic distribution with that deviation: nearly the log-normal, and one power."""


class Served(NamedTuple):
    """What a replica answers with when an adapter is asked for by its name alone."""

    version: VersionId | None
    quality: float | None
    noise: float
    """Standard error of ``quality``."""


NOT_SERVED = Served(None, None, 0.0)


class Standing(NamedTuple):
    """What predictions need of a snapshot, computed once when it arrives.

    Times are wall times: training's credit is in them.
    """

    snapshot: ReplicaSnapshot
    num_sequences: int
    num_queued_tokens: int
    num_free_tokens: int
    """Tokens that the free blocks hold, those of the queued prefill taken off."""
    step_s: float
    """A step of all its sequences with all their context, waiting ones included."""
    decode_s: float
    prefill_s: float
    context_s: float
    adapter_s: float
    tokens_per_byte: float
    num_template_tokens: int
    ttft_s: float
    tpot_s: float
    max_model_len: int
    taken_at_s: float
    adapters: Mapping[str, Served]


class Forecast(NamedTuple):
    """What is expected of a replica."""

    standing: Standing
    served: Served
    num_prompt: int
    num_prefill: int
    num_ahead: int
    """Tokens of others' prompts that are computed first."""
    num_sequences: int
    """Others that the replica has."""
    ttft_s: float
    """As corrected by what its others took, and by the age of its snapshot."""
    tpot_s: float
    claimed_ttft_s: float
    """Without those corrections."""
    work_s: float
    """Time that the replica would spend more than without this request."""
    chance: float
    """Of meeting both objectives."""

    @property
    def queue_s(self) -> float:
        """The part of the claimed time to the first token in which others' prompts are computed."""
        return self.claimed_ttft_s * self.num_ahead / (self.num_ahead + self.num_prefill)

    def overdue_s(self, num_output: int) -> float:
        """Return the time beyond the objectives over the whole answer; 0 when both are met."""
        overdue_s = max(self.ttft_s - self.standing.ttft_s, 0.0)
        if num_output > 1:
            overdue_s += max(self.tpot_s - self.standing.tpot_s, 0.0) * num_output
        return overdue_s


def stand(snapshot: ReplicaSnapshot, adapters: Mapping[str, Served] | None = None) -> Standing:
    """Return what predictions need of a snapshot.

    Args:
        snapshot: The replica's.
        adapters: What an earlier one said of its adapters, if this one says the same.
    """
    cost = snapshot.step_coefficients
    stretch = 1.0 / (1.0 - min(snapshot.credit_share, _MAX_CREDIT))
    num_sequences = snapshot.num_running + snapshot.num_waiting
    num_queued = snapshot.queued_prefill_tokens
    num_context = snapshot.num_context_tokens + num_queued
    step_s = cost.constant_s + cost.decode_s * num_sequences + cost.context_s * num_context
    return Standing(
        snapshot=snapshot,
        num_sequences=num_sequences,
        num_queued_tokens=num_queued,
        num_free_tokens=snapshot.num_free_blocks * snapshot.block_size - num_queued,
        step_s=stretch * step_s,
        decode_s=stretch * cost.decode_s,
        prefill_s=stretch * cost.prefill_s,
        context_s=stretch * cost.context_s,
        adapter_s=stretch * cost.adapter_s,
        tokens_per_byte=1.0 / snapshot.bytes_per_token,
        num_template_tokens=snapshot.num_template_tokens,
        ttft_s=snapshot.ttft_s,
        tpot_s=snapshot.tpot_s,
        max_model_len=snapshot.max_model_len,
        taken_at_s=snapshot.taken_at_s,
        adapters=_served(snapshot) if adapters is None else adapters,
    )


def _served(snapshot: ReplicaSnapshot) -> dict[str, Served]:
    quality, noise = snapshot.quality, snapshot.quality_noise
    return {
        name: Served(version, quality.get(name), noise.get(name, 0.0))
        for name, version in snapshot.active.items()
    }


def predict(
    standing: Standing,
    sent: SentLoad,
    served: Served,
    num_prompt: int,
    num_prefill: int,
    num_output: int,
    overtime_s: float,
    trust_s: float,
) -> Forecast:
    """Predict a request's times at a replica.

    Every step computes a token of all sequences and as much prefill as the TPOT objective leaves
    room for; a request's prefill waits for all that is queued. A snapshot older than ``trust_s``
    is believed less and less: the replica may have stood still since.

    Args:
        standing: How the replica stood.
        sent: What the front knows beyond it.
        served: What would answer.
        num_prompt: Tokens of the prompt.
        num_prefill: Those that are not cached there.
        num_output: Tokens of the answer, at least 1.
        overtime_s: The snapshot's age beyond ``trust_s``; below 0 if it is younger.
        trust_s: Age up to which a snapshot is believed.
    """
    num_new, num_new_queued = _unreported(standing, sent)
    num_needed = num_new_queued + num_prompt
    num_sequences = standing.num_sequences + num_new
    step_s = standing.step_s + standing.decode_s * num_new + standing.context_s * num_needed
    if served.version is not None:
        step_s += standing.adapter_s
    is_alone = num_sequences == 0
    num_ahead = standing.num_queued_tokens + num_new_queued
    claimed_s = _prefill_time_s(standing, num_ahead + num_prefill, step_s, is_alone)
    num_missing = num_needed - standing.num_free_tokens
    if num_missing > 0:
        claimed_s += _block_wait_s(standing, num_missing, num_output, step_s)

    own_step_s = standing.decode_s + standing.context_s * num_output / 2
    tpot_s = step_s + own_step_s
    # What a request adds to each step; all of it when nobody else shares the step.
    added_s = tpot_s if is_alone else own_step_s + standing.context_s * num_prompt
    work_s = added_s * num_output + standing.prefill_s * num_prefill

    ttft_s = max((claimed_s + FLOOR_S) * sent.ratio - FLOOR_S, 0.0)
    chance = 1.0
    if overtime_s > 0.0:
        ttft_s += overtime_s
        chance = trust_s / (trust_s + overtime_s)
    if num_prompt >= standing.max_model_len:
        chance = 0.0
    chance *= _within(ttft_s, standing.ttft_s)
    if num_output > 1:
        chance *= _within(tpot_s, standing.tpot_s)
    return Forecast(
        standing,
        served,
        num_prompt,
        num_prefill,
        num_ahead,
        num_sequences,
        ttft_s,
        tpot_s,
        claimed_s,
        work_s,
        chance,
    )


def _unreported(standing: Standing, sent: SentLoad) -> tuple[int, int]:
    """Return the sequences, and the tokens to prefill, that a snapshot has not seen.

    A replica has never less than what the front itself has open there, whatever its snapshot says.
    """
    num_sequences, num_tokens = sent.num_sequences, sent.num_prefill_tokens
    if num_sequences < sent.num_open - standing.num_sequences:
        num_sequences = sent.num_open - standing.num_sequences
    if num_tokens < sent.num_queued_tokens - standing.num_queued_tokens:
        num_tokens = sent.num_queued_tokens - standing.num_queued_tokens
    return num_sequences, num_tokens


def _within(seconds: float, limit_s: float) -> float:
    """Return the chance that a predicted time turns out to be within its limit."""
    power: float = (seconds / limit_s) ** _STEEPNESS
    return 1.0 / (1.0 + power)


def _prefill_time_s(standing: Standing, num_tokens: int, step_s: float, is_alone: bool) -> float:
    """Return the time of the steps that prefill ``num_tokens`` beside the decodes."""
    chunk = _MAX_CHUNK
    if not is_alone and standing.prefill_s > 0.0:
        room = (standing.tpot_s - step_s) / standing.prefill_s
        if room < _MAX_CHUNK:
            chunk = max(int(room), _MIN_CHUNK)
    return -(-num_tokens // chunk) * step_s + num_tokens * standing.prefill_s


def _block_wait_s(standing: Standing, num_missing: int, num_output: int, step_s: float) -> float:
    """Return how long until running sequences have given up the blocks that are missing.

    Sequences are taken to last ``num_output`` steps like this one, so that each step ends a share
    of them and frees that share of their context.
    """
    return step_s * num_output * num_missing / max(standing.snapshot.num_context_tokens, 1)
