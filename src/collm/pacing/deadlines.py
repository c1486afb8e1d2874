"""When tokens are due, and how much time that leaves."""

import math
import sys
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from collm.pacing.config import Objectives
from collm.types import SequenceProgress, StepLoad


class StepCost(Protocol):
    """Bounds on step times: fitted on a replica, given in a simulation."""

    def upper_s(self, load: StepLoad) -> float:
        """Return seconds that a step of this load hardly ever exceeds."""
        ...


class PrefillLimit(Protocol):
    """How many prefill tokens a step may carry beside its decodes."""

    def prefill_tokens(self, progress: Sequence[SequenceProgress], now_s: float) -> int:
        """Return the most prefill tokens of a step, given all that runs and waits; at least 1."""
        ...


class Outlook(NamedTuple):
    """What serving needs from the time after ``now``.

    A tuple, as every pause makes one.
    """

    slack_s: float
    """Time that may pass before work must start again; infinite when there is none."""
    next_step_s: float
    """Upper bound of the next step, with the prefill that it may carry."""
    oldest_token_at_s: float
    """Earliest of the decoding sequences' latest tokens; infinite if nothing decodes."""
    has_prefill: bool
    """Whether a sequence waits, or has more to compute than one token."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs and nothing waits."""
        return self.slack_s == math.inf


IDLE = Outlook(slack_s=math.inf, next_step_s=0.0, oldest_token_at_s=math.inf, has_prefill=False)


def due_at_s(progress: SequenceProgress, objectives: Objectives) -> float:
    """Return when a sequence's next token is due, in reach or not: see ``next_deadline_s``."""
    first_s = progress.first_token_at_s
    if first_s is None:
        first_s = progress.arrived_at_s + objectives.ttft_s
    return first_s + progress.num_output_tokens * objectives.tpot_s


def next_deadline_s(
    progress: SequenceProgress, objectives: Objectives, now_s: float, work_s: float
) -> float:
    """Return when a sequence's next token is due, given that it cannot come before ``work_s``.

    The first token is due at arrival + TTFT, token ``k`` another ``k`` · TPOT after the first
    token; after the moment it was sent where that is known, else after its deadline. Once it is
    too late for the next token's deadline, the token takes the first reachable one of the same
    grid, ``n`` · TPOT later: a miss cannot be undone, and chasing it would freeze training.
    """
    due_s = due_at_s(progress, objectives)
    ready_s = now_s + work_s
    return due_s if due_s >= ready_s else _next_reachable_s(due_s, ready_s, objectives.tpot_s)


def _next_reachable_s(due_s: float, ready_s: float, tpot_s: float) -> float:
    num_missed = math.ceil((ready_s - due_s) / tpot_s)
    return max(due_s + num_missed * tpot_s, ready_s)


def look_ahead(
    progress: Sequence[SequenceProgress],
    objectives: Objectives,
    cost: StepCost,
    now_s: float,
    limit: PrefillLimit | None = None,
    num_adapters: int = 0,
    reserve_s: float = 0.0,
) -> Outlook:
    """Predict what is due when, as the step loop really works, at the upper quantile.

    Every step computes one token for all decoding sequences (one shared cost) and carries up to
    ``limit`` prefill tokens, earliest deadline first. So the work due by

    - a decode's deadline is the next step, with the prefill that it will carry;
    - a prefill's deadline is its own and all earlier prefill, in as many steps as that takes, each
      with its fixed cost and all the decodes.

    Waiting sequences count as if admitted at once; tokens that a sequence may produce after its
    next one are left to later calls. Slack is the least ``deadline - now - work`` and never
    negative, since a deadline out of reach is replaced, see ``next_deadline_s``.

    Args:
        progress: Every running and waiting sequence.
        objectives: What deadlines are made from.
        cost: Bounds on step times.
        now_s: The present.
        limit: Most prefill tokens in a step; ``None`` for any number.
        num_adapters: Different adapter versions in a step.
        reserve_s: How far ahead of its deadline a decode should stay, whatever is to come.
    """
    if not progress:
        return IDLE
    decodes = [one for one in progress if one.is_decoding]
    decode_load = StepLoad(
        num_decode_tokens=len(decodes),
        num_context_tokens=sum(one.num_context_tokens for one in decodes),
        num_adapters=num_adapters,
    )
    next_step_s, slack = cost.upper_s(decode_load), math.inf
    if len(decodes) < len(progress):
        max_chunk = sys.maxsize
        if limit is not None:
            max_chunk = limit.prefill_tokens(progress, now_s)
        prefills = [one for one in progress if not one.is_decoding]
        slack, next_step_s = _prefill_ahead(
            prefills, objectives, cost, now_s, decode_load, max_chunk
        )
    oldest_s = math.inf
    for one in decodes:
        slack = min(slack, _decode_spare_s(one, objectives, now_s, next_step_s, reserve_s))
        if one.last_token_at_s is not None and one.last_token_at_s < oldest_s:
            oldest_s = one.last_token_at_s
    return Outlook(
        slack_s=slack,
        next_step_s=next_step_s,
        oldest_token_at_s=oldest_s,
        has_prefill=len(decodes) < len(progress),
    )


def look_ahead_decoding(
    tokens: Sequence[tuple[float, int]],
    num_later: int,
    last_token_at_s: float,
    objectives: Objectives,
    cost: StepCost,
    now_s: float,
    decode_load: StepLoad,
    reserve_s: float = 0.0,
) -> Outlook:
    """Return what ``look_ahead`` does when everything decodes, without a view of each sequence.

    Args:
        tokens: Of each sequence, at least one: when its first token was sent, and how many had been
            sent some steps ago; in the order in which their next tokens are due.
        num_later: Tokens that each was sent since.
        last_token_at_s: When all of them were sent their latest token.
        objectives: What deadlines are made from.
        cost: Bounds on step times.
        now_s: The present.
        decode_load: The next step's.
        reserve_s: As for ``look_ahead``.
    """
    work_s, tpot_s = cost.upper_s(decode_load), objectives.tpot_s
    ready_s, slack = now_s + work_s, math.inf
    for first_token_at_s, num_output_tokens in tokens:
        due_s = first_token_at_s + (num_output_tokens + num_later) * tpot_s
        ahead_s = due_s - now_s - work_s
        # As in ``_decode_spare_s``; who is due later spares more.
        if ahead_s >= 0.0 or ahead_s >= -objectives.gap_s:
            slack = min(slack, max(ahead_s - reserve_s, 0.0))
            break
        spare_s = _next_reachable_s(due_s, ready_s, tpot_s) - now_s - work_s
        slack = min(slack, max(spare_s, 0.0))
    return Outlook(slack, work_s, last_token_at_s, False)  # by place: at every step


def _prefill_ahead(
    prefills: list[SequenceProgress],
    objectives: Objectives,
    cost: StepCost,
    now_s: float,
    decode_load: StepLoad,
    max_chunk: int,
) -> tuple[float, float]:
    """Return the slack of all prefills and the bound of the next step, in seconds."""
    step_s = cost.upper_s(decode_load)
    slack, next_step_s = math.inf, step_s
    num_tokens, prefill_s = 0, 0.0
    for one in sorted(prefills, key=lambda one: due_at_s(one, objectives)):
        num_own = max(one.num_remaining_prefill, 1)
        own_s = _prefill_s(one, num_own, decode_load, cost) - step_s
        next_step_s += own_s * min(max(max_chunk - num_tokens, 0), num_own) / num_own
        num_tokens += num_own
        prefill_s += own_s
        work_s = -(-num_tokens // max_chunk) * step_s + prefill_s
        slack = min(slack, _spare_s(one, objectives, now_s, work_s))
    return slack, next_step_s


def _prefill_s(
    progress: SequenceProgress, num_tokens: int, decode_load: StepLoad, cost: StepCost
) -> float:
    """Return the bound of a step that carries all of one sequence's remaining prefill."""
    context = decode_load.num_context_tokens + progress.num_context_tokens + num_tokens
    return cost.upper_s(
        StepLoad(
            num_decode_tokens=decode_load.num_decode_tokens,
            num_prefill_tokens=num_tokens,
            num_context_tokens=context,
            num_adapters=decode_load.num_adapters,
        )
    )


def _spare_s(
    progress: SequenceProgress, objectives: Objectives, now_s: float, work_s: float
) -> float:
    due_s = next_deadline_s(progress, objectives, now_s, work_s)
    return max(due_s - now_s - work_s, 0.0)


def _decode_spare_s(
    progress: SequenceProgress,
    objectives: Objectives,
    now_s: float,
    work_s: float,
    reserve_s: float,
) -> float:
    """Return what a decode can spare: nothing while it makes up for a short delay."""
    ahead_s = due_at_s(progress, objectives) - now_s - work_s
    if ahead_s < -objectives.gap_s:  # it will not catch up soon, and training goes on beside it
        return _spare_s(progress, objectives, now_s, work_s)
    return max(ahead_s - reserve_s, 0.0)
