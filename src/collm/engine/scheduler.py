"""Decide what each step computes, and turn its tokens into events."""

from bisect import insort
from collections.abc import Sequence as Row
from operator import attrgetter
from typing import Protocol

from collm.engine.blocks import Blocks
from collm.engine.config import SchedulerConfig
from collm.engine.ends import Ends
from collm.engine.events import News, end_event, in_order, not_finite, token_event
from collm.engine.groups import Groups, VersionPins
from collm.engine.intake import Intake
from collm.engine.plan import (
    Backlog,
    SampledToken,
    ScheduledSequence,
    StepOutput,
    StepPlan,
    scheduled,
)
from collm.engine.sequence import RequestGroup, Sequence
from collm.engine.stretch import Stretch, find_stretch
from collm.engine.waiting import WaitingQueue
from collm.errors import AdapterError, CollmError
from collm.types import (
    FinishReason,
    Request,
    RequestId,
    SequenceProgress,
    TokenEvent,
)

_BY_ORDER = attrgetter("order")


class PrefillLimit(Protocol):
    """Says how much prefill may join a step, so that its decodes are not late."""

    def prefill_tokens(self, progress: Row[SequenceProgress], now_s: float) -> int:
        """Return the most prefill tokens, at least 1, given all that runs and waits."""
        ...


class Scheduler:
    """Continuous batching with chunked prefill, prefix reuse and preemption by recompute.

    Sequences have one total order: arrival, then request id, then choice. Admission follows it,
    preemption takes its last running sequence, events of one step are sorted by it. So the first
    unfinished sequence always makes progress, and with it every sequence in turn.

    Which version a request holds, and from when on, is said by ``Groups``.

    ``schedule`` and ``update`` alternate; ``add``, ``finish`` and ``abort`` may come at any time.
    What a step in flight still reads (blocks, version) is released by that step's ``update``.

    Args:
        config: Limits of one step.
        blocks: The KV pool, used by this scheduler alone.
        pins: Where versions are held.
        prefill_limit: Bounds the prefill of a step, besides ``max_step_tokens``.
        eos_token_ids: The model's own end-of-sequence tokens.
        max_model_len: Most tokens of a sequence, prompt and output; a pool that holds fewer
            lowers it, so that a sequence which runs alone always finds its blocks.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        blocks: Blocks,
        pins: VersionPins,
        prefill_limit: PrefillLimit,
        eos_token_ids: frozenset[int],
        max_model_len: int,
    ) -> None:
        self._blocks = blocks
        self._prefill_limit = prefill_limit
        self.num_preemptions = 0
        """How often a sequence lost its blocks to an earlier one."""
        self._max_len = min(max_model_len, blocks.num_blocks * blocks.block_size)
        self._max_step_tokens = config.max_step_tokens
        # With no more sequences than tokens in a step, every decode has its place in every step.
        self._max_running = min(config.max_running, config.max_step_tokens)
        self._ends = Ends(eos_token_ids, self._max_len)
        self._intake = Intake(
            max_model_len=max_model_len, max_len=self._max_len, max_waiting=config.max_waiting
        )
        self._groups = Groups(pins)
        self._running: list[Sequence] = []  # sorted by order
        self._waiting = WaitingQueue(config.max_waiting)
        self._in_flight: set[Sequence] = set()
        self._failed_admissions: News = []

    @property
    def has_work(self) -> bool:
        """Whether any sequence runs or waits."""
        return bool(self._running) or len(self._waiting) > 0

    @property
    def num_running(self) -> int:
        """Sequences that hold blocks and go on."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Sequences that wait for admission, preempted ones included."""
        return len(self._waiting)

    def models(self) -> tuple[frozenset[str], frozenset[str]]:
        """Return the model names that running sequences ask for, and those that waiting ones do."""
        running = frozenset(sequence.request.model for sequence in self._running)
        return running, self._waiting.models()

    def progress(self) -> tuple[SequenceProgress, ...]:
        """Return how far every sequence is: running ones first, then waiting ones, in order."""
        running = [sequence.progress(is_running=True) for sequence in self._running]
        return (*running, *self._waiting.progress())

    def backlog(self) -> Backlog:
        """Return how much there is to prefill, and how much context runs."""
        # A sequence that decodes has one known token to compute, which is no prefill.
        queued = [one.num_remaining for one in self._running if one.is_prefilling]
        return Backlog(
            num_prefill_tokens=sum(queued) + self._waiting.num_prefill_tokens,
            num_context_tokens=sum(one.num_computed_tokens for one in self._running),
        )

    def stretch(self) -> Stretch | None:
        """Return the row of plain decodes that comes next for sure, if there is one."""
        assert not self._in_flight, "the last plan was not updated"
        if not self._running or self._waiting or self._failed_admissions:
            return None
        return find_stretch(self._running, self._blocks, self._max_len)

    def end_stretch(self, stretch: Stretch) -> list[TokenEvent]:
        """End what ends with a stretch's last step, which was skipped; their tokens are no news."""
        for sequence in stretch.ending:
            self._finish(sequence)
        return [end_event(sequence, FinishReason.LENGTH) for sequence in stretch.ending]

    def add(self, *requests: Request) -> list[TokenEvent]:
        """Queue the requests of one call, each with its choices; several get the same version.

        All ask for one model. Without places for all of them none is queued.

        Returns:
            Nothing, or an error event per choice of a request that is refused: ``RequestError``
            when the model cannot hold its prompt, ``CapacityError`` when this replica never can,
            ``QueueFullError`` when too many wait, ``AdapterError`` when it names no version.
        """
        num_places = self._waiting.num_places(requests[0].model)
        error = self._intake.refusal_of_call(requests, num_places)
        if error is not None:
            refusals = ((one, self._intake.refusal(one) or error) for one in requests)
            return [event for one, why in refusals for event in _refused(one, why)]
        is_shared = len(requests) > 1
        return [event for one in requests for event in self._add(one, is_shared=is_shared)]

    def abort(self, request_id: RequestId) -> list[TokenEvent]:
        """End a request's live choices; an unknown or ended request has none."""
        group = self._groups.find(request_id)
        return [] if group is None else in_order(self._end_group(group, FinishReason.ABORT))

    def finish(self, request_id: RequestId, choice: int) -> list[TokenEvent]:
        """End one choice with ``FinishReason.STOP``, as when its text met a stop string.

        An unknown request, or a choice that has ended, says nothing.
        """
        group = self._groups.find(request_id)
        if group is None or group.sequences[choice].is_finished:
            return []
        event = end_event(group.sequences[choice], FinishReason.STOP)
        self._finish(group.sequences[choice])
        return [event]

    def schedule(self, now_s: float) -> StepPlan:
        """Choose the next step's work: decodes, then running prefills, then waiting sequences.

        Preempts the latest arrivals when decodes need their blocks. Requests whose version is
        gone end here; their events leave with the next ``update``.
        """
        assert not self._in_flight, "the last plan was not updated"
        items = self._schedule_decodes()
        prefills = [sequence for sequence in self._running if sequence.is_prefilling]
        if prefills or len(self._waiting):
            limit = self._prefill_limit.prefill_tokens(self.progress(), now_s)
            budget = min(max(limit, 1), self._max_step_tokens - len(items))
            budget = self._schedule_prefills(prefills, items, budget)
            self._admit(items, budget, now_s)
        self._in_flight = {item.sequence for item in items}
        return StepPlan(tuple(items))

    def update(self, plan: StepPlan, output: StepOutput, now_s: float) -> list[TokenEvent]:
        """Take in what a step computed.

        Args:
            plan: What ``schedule`` returned last.
            output: The runner's tokens for it.
            now_s: When the tokens are there.

        Returns:
            One event per new token, and those of failed admissions, in the order of sequences.
            Sequences that were aborted meanwhile have none. Without a token for one of its
            choices a request ends.
        """
        self._in_flight.clear()
        news, self._failed_admissions = self._failed_admissions, []
        tokens, broken = iter(output.tokens), list[Sequence]()
        for sequence, num_new_tokens, _, samples in plan.items:
            token = next(tokens) if samples else None
            if sequence.is_finished:
                self._release(sequence)
                continue
            sequence.num_computed_tokens += num_new_tokens
            self._blocks.commit(sequence)
            if token is None:
                continue
            if sequence.choice == 0 and sequence.first_token_at_s is None:
                self._groups.of(sequence).has_computed_prompt = True
            if token.token_id is None:
                broken.append(sequence)
            else:
                news.append((sequence.order, self._append(sequence, token, now_s)))
        assert next(tokens, None) is None, "more tokens than the plan samples"
        for sequence in broken:
            if not sequence.is_finished:
                group = self._groups.of(sequence)
                news += self._end_group(group, FinishReason.ERROR, not_finite(sequence))
        return in_order(news)

    def fail(self, plan: StepPlan, error: Exception) -> list[TokenEvent]:
        """End every request of a step that could not be computed; takes the place of ``update``."""
        self._in_flight.clear()
        news, self._failed_admissions = self._failed_admissions, []
        sequences = [item.sequence for item in plan.items]
        live = [sequence for sequence in sequences if not sequence.is_finished]
        groups = {one.request.request_id: self._groups.of(one) for one in live}
        for sequence in sequences:
            if sequence.is_finished:
                self._release(sequence)
        for group in groups.values():
            news += self._end_group(group, FinishReason.ERROR, error)
        return in_order(news)

    def check(self) -> None:
        """Assert what only a bug could break, about blocks above all; cheap enough when idle."""
        ended_in_flight = [sequence for sequence in self._in_flight if sequence.is_finished]
        self._blocks.check([*self._running, *ended_in_flight])
        assert len(self._running) <= self._max_running
        assert self._running == sorted(self._running, key=_BY_ORDER)
        for sequence in self._running:
            assert sequence.num_remaining >= 1, f"{sequence.order} has nothing to compute"
            assert sequence.binding is not None
        assert len(self._groups.live()) == len(self._running) + len(self._waiting), (
            "a sequence is lost"
        )

    def _add(self, request: Request, *, is_shared: bool) -> list[TokenEvent]:
        refusal = self._intake.refusal(request)
        opened = refusal or self._groups.open(request, is_shared=is_shared)
        if isinstance(opened, CollmError):
            return _refused(request, opened)
        for sequence in opened.sequences:
            self._waiting.push(sequence)
        return []

    def _schedule_decodes(self) -> list[ScheduledSequence]:
        """Plan every running sequence that lacks one token, making room by preemption."""
        items: list[ScheduledSequence] = []
        try_allocate = self._blocks.try_allocate
        for sequence in self._running:  # preemption only shortens the end of this list
            if sequence.is_prefilling:
                continue
            while not try_allocate(sequence, 1):
                victim = self._running.pop()
                self._preempt(victim)
                if victim is sequence:
                    return items
            items.append(scheduled(sequence, 1))
        return items

    def _schedule_prefills(
        self, prefills: list[Sequence], items: list[ScheduledSequence], budget: int
    ) -> int:
        """Plan chunks of admitted sequences, which have their blocks; return the budget left."""
        for sequence in prefills:
            if budget == 0:
                break
            chunk = min(sequence.num_remaining, budget)
            items.append(scheduled(sequence, chunk))
            budget -= chunk
        return budget

    def _admit(self, items: list[ScheduledSequence], budget: int, now_s: float) -> None:
        """Move waiting sequences to running, in order, until tokens, blocks or places run out."""
        index = 0
        while budget > 0 and index < len(self._waiting) and len(self._running) < self._max_running:
            sequence = self._waiting[index]
            group = self._groups.of(sequence)
            if not group.is_ready(sequence):
                index += 1  # its first choice is still computing the prompt: let others pass
                continue
            try:
                is_admitted = self._try_admit(group, sequence)
            except AdapterError as error:
                self._failed_admissions += self._end_group(group, FinishReason.ERROR, error)
                continue
            if not is_admitted:
                return
            if sequence.admitted_at_s is None:
                sequence.admitted_at_s = now_s
                sequence.num_cached_tokens = sequence.num_computed_tokens
            chunk = min(sequence.num_remaining, budget)
            items.append(scheduled(sequence, chunk))
            budget -= chunk

    def _try_admit(self, group: RequestGroup, sequence: Sequence) -> bool:
        """Pin the request if it holds no version yet, and take blocks; undo both if too few."""
        is_new = self._groups.hold(group)
        # A spare block for each running sequence: they would soon preempt the newcomer otherwise.
        if not self._blocks.try_admit(sequence, num_spare=len(self._running)):
            if is_new:
                self._groups.let_go(group)
            return False
        self._waiting.remove(sequence)
        insort(self._running, sequence, key=_BY_ORDER)
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self._blocks.free(sequence)
        sequence.num_preemptions += 1
        self.num_preemptions += 1
        self._waiting.push(sequence)

    def _append(self, sequence: Sequence, token: SampledToken, now_s: float) -> TokenEvent:
        assert token.token_id is not None
        sequence.token_ids.append(token.token_id)
        if sequence.first_token_at_s is None:
            sequence.first_token_at_s = now_s
        sequence.last_token_at_s = now_s
        reason = self._ends.reason(sequence)
        if reason is not None:
            self._finish(sequence)
        return token_event(sequence, token, reason)

    def _end_group(
        self, group: RequestGroup, reason: FinishReason, error: Exception | None = None
    ) -> News:
        live = [sequence for sequence in group.sequences if not sequence.is_finished]
        news = [(sequence.order, end_event(sequence, reason, error)) for sequence in live]
        for sequence in live:
            self._finish(sequence)
        return news

    def _finish(self, sequence: Sequence) -> None:
        """Take an ended sequence out; a step in flight still reads its blocks until ``update``."""
        sequence.is_finished = True
        if sequence.block_table:
            self._running.remove(sequence)
        else:
            self._waiting.remove(sequence)
        if sequence not in self._in_flight:
            self._release(sequence)

    def _release(self, sequence: Sequence) -> None:
        self._blocks.free(sequence)
        self._groups.release(sequence)


def _refused(request: Request, error: CollmError) -> list[TokenEvent]:
    """Return the only events of a request that was not queued."""
    group = RequestGroup(request)
    return [end_event(one, FinishReason.ERROR, error) for one in group.sequences]
