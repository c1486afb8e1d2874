"""The first half of a round: members are asked, train, and report until the round can go on."""

import asyncio
import dataclasses
import logging

from collm.cluster.intake import Intake, Receipt
from collm.cluster.members import Members
from collm.cluster.round_rules import GRACE_S, MAX_STALE_ROUNDS, MemberState, Move, next_move
from collm.cluster.spreading import Spreader
from collm.cluster.timing import Timing
from collm.errors import CollmError, StateError, UnknownObjectError, UnreachableError
from collm.federated.rounds import RoundPlan
from collm.store.front_folder import FrontFolder
from collm.store.rounds import MemberOutcome

_log = logging.getLogger(__name__)
_POLL_S = 0.25


class Collection:
    """Collects one round's updates, and late ones of the rounds before.

    What matters is in the journal: a new object goes on where a killed process was.
    """

    def __init__(
        self,
        plan: RoundPlan,
        members: Members,
        folder: FrontFolder,
        spreader: Spreader,
        timing: Timing,
        left_s: float,
    ) -> None:
        """Collect the updates that ``plan`` asks for, which are due in ``left_s`` seconds."""
        self._plan = plan
        self._members = members
        self._folder = folder
        self._spreader = spreader
        self._timing = timing
        self._intake = Intake(members, folder)
        now_s = timing.clock.now_s()
        self._due_at_s = now_s + left_s
        self._heard_at_s = dict.fromkeys(plan.members, now_s)
        self._hurried: set[str] = set()

    async def ask(self) -> None:
        """Ask every member to train, once what it still owes has been asked for."""
        await self._take_late()
        await asyncio.gather(*(self._ask(member) for member in self._open()))

    async def run(self, quorum_share: float) -> bool:
        """Wait for updates until the round can go on; return whether there is a quorum."""
        while True:
            await asyncio.gather(
                self._take_late(), *(self._visit(member) for member in self._open())
            )
            move = next_move(
                self._states().values(),
                quorum_share=quorum_share,
                left_s=self._left_s(),
                grace_s=GRACE_S,
            )
            if move in (Move.ENOUGH, Move.TOO_FEW):
                await self._close()
                return move is Move.ENOUGH
            if move is Move.HURRY:
                await self._hurry()
            await self._timing.sleep(_POLL_S)

    async def _visit(self, member: str) -> None:
        receipt = await self._intake.take(self._plan.adapter, self._plan.round, member)
        if receipt is not Receipt.SILENT:
            self._heard_at_s[member] = self._timing.clock.now_s()
        if receipt is Receipt.UNKNOWN:
            await self._ask(member)

    async def _ask(self, member: str) -> None:
        """Ask a member to train in the time that is left; one that is busy is asked again later."""
        left_s = self._left_s()
        if left_s <= 0.0:
            await self._settle(member, MemberOutcome.FAILED, "it trains nothing at the deadline")
            return
        plan = dataclasses.replace(self._plan, deadline_s=left_s)
        try:
            await self._start(member, plan)
        except (UnreachableError, StateError) as error:
            _log.info("%s round %d: asking %s: %s", plan.adapter, plan.round, member, error)
        except CollmError as error:
            await self._settle(member, MemberOutcome.DECLINED, str(error))

    async def _start(self, member: str, plan: RoundPlan) -> None:
        control = self._members.control(member)
        try:
            await control.start_round(plan)
        except UnknownObjectError:
            if plan.base_version is None:
                raise
            await self._spreader.publish(control, plan.base_version)  # it may be just back
            await control.start_round(plan)

    async def _hurry(self) -> None:
        """Tell who is still training to report what it has."""
        for member in self._open():
            if member not in self._hurried:
                try:
                    control = self._members.control(member)
                    await control.finish_round(self._plan.adapter, self._plan.round)
                except UnreachableError:
                    continue
                except CollmError as error:
                    _log.info("%s: telling %s to finish: %s", self._plan.adapter, member, error)
                self._hurried.add(member)

    async def _close(self) -> None:
        """Settle the parts that the round does not wait for; what they trained is for later."""
        await self._hurry()
        for member, state in self._states().items():
            if state.is_open and state.is_silent:
                await self._settle(member, MemberOutcome.DEAD, "it does not answer")
            elif state.is_open:
                await self._settle(member, MemberOutcome.LATE, "it had not finished in time")

    async def _take_late(self) -> None:
        """Take in what members owe from earlier rounds, as far as they have it now."""
        number = self._plan.round
        rounds = range(number - MAX_STALE_ROUNDS, number)
        for part in self._folder.rounds.owed(self._plan.adapter, rounds):
            receipt = await self._intake.take(part.adapter, part.round, part.member)
            if receipt is Receipt.UNKNOWN:
                await self._intake.fail(
                    part.adapter, part.round, part.member, "it lost what it had trained"
                )

    async def _settle(self, member: str, outcome: MemberOutcome, reason: str) -> None:
        await self._intake.fail(self._plan.adapter, self._plan.round, member, reason, outcome)

    def _open(self) -> list[str]:
        return [member for member, state in self._states().items() if state.is_open]

    def _states(self) -> dict[str, MemberState]:
        now_s = self._timing.clock.now_s()
        parts = self._folder.rounds.members(self._plan.adapter, self._plan.round)
        return {
            part.member: MemberState(part.outcome, now_s - self._heard_at_s[part.member])
            for part in parts
        }

    def _left_s(self) -> float:
        return self._due_at_s - self._timing.clock.now_s()
