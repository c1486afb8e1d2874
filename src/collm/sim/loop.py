"""The step loop on a virtual clock: the real scheduler and pacing on a modelled device."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from collm.cluster.lanes import Ticket
from collm.engine.plan import Backlog, SampledToken, StepOutput, StepPlan
from collm.engine.scheduler import Scheduler
from collm.metrics.loop_times import LoopTimes
from collm.metrics.totals import Totals
from collm.pacing.budgets import Budget
from collm.pacing.config import Objectives
from collm.pacing.credit import Credit
from collm.pacing.deadlines import IDLE
from collm.sim.blocks import CountedBlocks
from collm.sim.device import Device, GivenStepCost, StepCosts
from collm.sim.duty import Duty
from collm.sim.inbox import SimInbox
from collm.sim.log import OpenRequest, SimLog
from collm.sim.pauses import OnCandidate, Pauses
from collm.sim.requests import SimRequest
from collm.sim.row import DecodeRow
from collm.sim.trainer import SimTrainer
from collm.sim.versions import ADAPTER
from collm.types import Request, RequestId, SamplingParams, StepLoad

_TOKEN = SampledToken(0)
"""Every generated token: what is said does not matter here."""
_NOTHING = StepLoad()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopParts:
    """What a loop is made of, all its own; snapshots look at some of it."""

    scheduler: Scheduler
    blocks: CountedBlocks
    credit: Credit
    budget: Budget
    objectives: Objectives
    """What the budget works towards."""
    step_cost: StepCosts
    device: Device
    duty: Duty
    trainer: SimTrainer | None
    log: SimLog
    times: LoopTimes
    totals: Totals
    on_candidate: OnCandidate


class SimLoop:
    """Goes through the iterations of ``replica.loop``: steps and quanta take virtual time.

    It is moved on by ``advance``; between two calls it stands still, which nobody notices who calls
    ``advance`` before looking. How often that is changes nothing. Requests come through ``submit``.

    With ``fast_forward``, rows of plain decodes are counted rather than scheduled one by one: each
    still takes its own time, and the budget still decides about every quantum.

    Args:
        parts: What decides, and what takes its time.
        request_s: From a request's arrival to the step loop.
        fast_forward: Whether to count rows of decodes.
    """

    def __init__(self, parts: LoopParts, request_s: float, *, fast_forward: bool) -> None:
        self.times = parts.times
        """Where the time went."""
        self._scheduler = parts.scheduler
        self._budget = parts.budget
        self._objectives = parts.objectives
        self._step_cost = parts.step_cost
        self._learns_steps = not isinstance(parts.step_cost, GivenStepCost)
        self._device = parts.device
        self._duty = parts.duty
        self._trainer = parts.trainer
        self._log = parts.log
        self._request_s = request_s
        self._fast_forward = fast_forward
        self._inbox = SimInbox()
        self._pauses = Pauses(
            parts.trainer,
            parts.budget,
            parts.device,
            parts.times,
            parts.totals,
            parts.on_candidate,
            self._inbox,
            fast_forward=fast_forward,
        )
        self._now_s = 0.0
        self._due_s = 0.0
        self._earliest_s = 0.0
        self._until_s = 0.0
        self._next: Callable[[], None] = self._iterate
        self._is_asleep = False
        self._asleep_since_s = 0.0
        self._is_in_step = False
        self._row: DecodeRow | None = None
        self._plan = StepPlan()
        self._load = _NOTHING
        self._has_stepped = False
        self._began_s = 0.0

    @property
    def came_to_s(self) -> float:
        """Up to when everything is done."""
        return self._until_s

    @property
    def has_requests(self) -> bool:
        """Whether a request is on its way here, or has not ended."""
        return self._scheduler.has_work or self._inbox.next_s < math.inf

    def submit(self, request: SimRequest, ticket: Ticket | None, now_s: float) -> None:
        """Take a request that arrives now; it wakes a sleeping loop before another one comes."""
        self.advance(now_s)
        due_s = now_s + self._request_s
        self._inbox.put(due_s, _engine_request(request), OpenRequest(request, ticket))
        if self._is_asleep:
            self._due_s = self._wake_s()
            self.advance(now_s)

    def wake(self, now_s: float) -> None:
        """Look for something to learn, as when a round begins."""
        self.advance(now_s)
        if self._is_asleep:
            self._due_s = max(now_s, self._earliest_s)

    def stand_still(self, now_s: float, until_s: float) -> None:
        """Do nothing more before ``until_s``: what is under way ends then at the earliest."""
        self.advance(now_s)
        self._earliest_s = until_s
        self._due_s = max(self._due_s, until_s)

    def slow_down(self, now_s: float, factor: float) -> None:
        """Take ``factor`` times as long for whatever begins from now on."""
        self.advance(now_s)
        self._device.slow_down(factor)

    def die(self, now_s: float) -> None:
        """End every request with an error, and do nothing any more."""
        self.advance(now_s)
        self.settle()
        self._due_s = math.inf
        self._is_asleep = True
        while self._inbox.next_s < math.inf:
            request, entry = self._inbox.take()
            self._log.begin(request.request_id, entry)
        self._log.fail_all(now_s)

    def advance(self, until_s: float) -> None:
        """Do everything that is due up to ``until_s``, included."""
        self._until_s = until_s
        while self._due_s <= until_s:
            self._now_s = self._inbox.now_s = self._due_s
            self._next()

    def is_open(self, now_s: float) -> bool:
        """Whether steps may begin now."""
        return self._duty.serves(now_s)

    def backlog(self) -> Backlog:
        """Return what the scheduler's backlog is by now."""
        row = self._row
        if row is None:
            return self._scheduler.backlog()
        return Backlog(num_prefill_tokens=0, num_context_tokens=row.num_context_tokens)

    def num_lacking(self) -> int:
        """Return the blocks that are taken by now, but not in the block manager's book yet."""
        row = self._row
        return 0 if row is None else row.num_lacking(has_begun_next=self._is_in_step)

    def settle(self) -> None:
        """Bring scheduler, blocks and log up to date, for whoever looks at them."""
        if self._row is not None:
            self._row.settle(self._log, has_begun_next=self._is_in_step)

    # One iteration

    def _iterate(self) -> None:
        """Drain the inbox, start a step."""
        now_s, inbox = self._now_s, self._inbox
        if self._is_asleep:
            self._is_asleep = False
            self.times.add("idle", now_s - self._asleep_since_s)
        while inbox.has_messages():
            request, entry = inbox.take()
            self._log.begin(request.request_id, entry)
            self._log.observe(self._scheduler.add(request), now_s)
        self._pauses.num_quanta = 0
        self._has_stepped = False
        if not self._duty.serves(now_s):
            self._budget.begin((), now_s)
            self._train()
            return
        if self._fast_forward:
            stretch = self._scheduler.stretch()
            if stretch is not None:
                self._row, self._has_stepped = DecodeRow(stretch, 0, self._objectives), True
                if self._trainer is not None and not self._learns_steps:
                    self._row.fix_reserve(self._budget)
                self._go_on()
                return
        self._plan = self._scheduler.schedule(now_s)
        if self._plan.is_empty:
            self._load = _NOTHING
            self._pause(StepOutput())
            return
        self._has_stepped = True
        self._load = self._plan.load()
        self._began_s = now_s
        self._due_s = now_s + self._device.step_s(self._load)
        self._is_in_step, self._next = True, self._end_step

    def _end_step(self) -> None:
        self._is_in_step = False
        seconds = self._now_s - self._began_s
        self._step_cost.observe(self._load, seconds)
        self.times.add("serve", seconds)
        num_tokens = sum(1 for item in self._plan.items if item.samples)
        self._pause(StepOutput((_TOKEN,) * num_tokens))

    def _pause(self, output: StepOutput) -> None:
        """Publish a step's tokens, then train while the budget allows."""
        now_s = self._now_s
        self._log.observe(self._scheduler.update(self._plan, output, now_s), now_s)
        if self._trainer is not None:
            self._budget.begin(
                self._scheduler.progress(),
                now_s,
                self._load.num_adapters,
                is_blocked=self._load.num_prefill_tokens == 0,
            )
        self._train()

    def _train(self) -> None:
        """Go through quanta up to where ``advance`` ends, or else start the next iteration."""
        pauses = self._pauses
        self._now_s = pauses.go_on(self._now_s, self._until_s)
        if pauses.is_in_quantum:
            self._due_s, self._next = pauses.ends_s, self._end_quantum
            return
        if not self._has_stepped and not pauses.num_quanta:
            self._is_asleep, self._asleep_since_s = True, self._now_s
            self._due_s = self._wake_s()
        else:
            self._due_s = self._now_s + self._device.loop_s
        self._next = self._iterate if self._row is None else self._go_on

    def _wake_s(self) -> float:
        """Return when there may be something to do again."""
        changes_s = self._duty.changes_s(self._now_s)
        if self._duty.serves(self._now_s):
            return max(min(self._inbox.next_s, changes_s), self._earliest_s)
        return max(changes_s, self._earliest_s)

    def _end_quantum(self) -> None:
        self._pauses.end_quantum(self._now_s)
        self._train()

    # Rows of decodes: the same, but what is sure about the plan is not worked out again

    def _go_on(self) -> None:
        """Go through the row's steps up to where ``advance`` ends.

        When the row is over or a request came, a whole iteration follows.
        """
        row, inbox, until_s, now_s = self._row, self._inbox, self._until_s, self._now_s
        device, pauses, trains = self._device, self._pauses, self._trainer is not None
        assert row is not None
        num_sequences, num_adapters = row.num_sequences, row.num_adapters
        free_until_s = now_s
        if self._duty.serves(now_s):
            free_until_s = min(inbox.next_s, self._duty.changes_s(now_s))
        while row.num_left and now_s < free_until_s:
            ends_s = now_s + device.decode_s(
                num_sequences, row.num_context_tokens + num_sequences, num_adapters
            )
            if ends_s > until_s:
                self._began_s, self._due_s = now_s, ends_s
                self._is_in_step, self._next = True, self._end_decode
                return
            inbox.now_s = ends_s
            self._note_decode(row, ends_s - now_s, ends_s)
            now_s = ends_s
            if trains:
                now_s = pauses.go_on(ends_s, until_s)
                if pauses.is_in_quantum:
                    self._due_s, self._next = pauses.ends_s, self._end_quantum
                    return
            now_s += device.loop_s
            if now_s > until_s:
                self._due_s = now_s
                self._next = self._iterate if self._row is None else self._go_on
                return
        self._now_s = inbox.now_s = now_s
        self.settle()
        self._row = None
        self._iterate()

    def _end_decode(self) -> None:
        assert self._row is not None
        self._is_in_step = False
        self._note_decode(self._row, self._now_s - self._began_s, self._now_s)
        self._train()

    def _note_decode(self, row: DecodeRow, seconds: float, now_s: float) -> None:
        """Account for a step of the row, which ends now, and start the pause after it."""
        if self._learns_steps:
            self._step_cost.observe(row.load(), seconds)
        self.times.add("serve", seconds)
        row.end_step(now_s)
        self._pauses.num_quanta = 0
        if not row.num_left and row.stretch.ending:
            self._end_row(row, now_s)
        elif self._trainer is not None:
            outlook = IDLE
            if self._trainer.peek() is not None:
                outlook = row.outlook(self._step_cost, now_s, self._budget)
            self._budget.begin_seeing(outlook, now_s)

    def _end_row(self, row: DecodeRow, now_s: float) -> None:
        """Publish the ends that a row's last step brings, and start the pause after it."""
        self.settle()
        self._row = None
        self._log.observe(self._scheduler.end_stretch(row.stretch), now_s)
        if self._trainer is not None:
            progress = self._scheduler.progress()
            self._budget.begin(progress, now_s, row.num_adapters, is_blocked=True)


def _engine_request(request: SimRequest) -> Request:
    """Return a request whose prompt no other one shares."""
    first = -1 - request.number
    return Request(
        request_id=RequestId(f"{request.number:09d}"),
        model=ADAPTER,
        prompt=(first,) * request.num_prompt_tokens,
        sampling=SamplingParams(max_tokens=request.num_output_tokens, ignore_eos=True),
        arrived_at_s=request.at_s,
    )
