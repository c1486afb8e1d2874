"""Members compare a candidate with what is served, each on its own held-out samples."""

import asyncio
import logging

from collm.cluster.members import Members
from collm.cluster.round_rules import MemberState, Move, next_gate_move
from collm.cluster.spreading import Spreader
from collm.cluster.timing import Timing
from collm.errors import CollmError, StateError, UnknownObjectError, UnreachableError
from collm.federated.rounds import GatePlan, GateReport
from collm.store.rounds import MemberOutcome

_log = logging.getLogger(__name__)
_POLL_S = 0.25


class Gating:
    """Gathers what members find about one candidate; they keep it, so a kill here loses nothing."""

    def __init__(
        self,
        plan: GatePlan,
        judges: tuple[str, ...],
        members: Members,
        spreader: Spreader,
        timing: Timing,
        *,
        deadline_s: float,
    ) -> None:
        """Let ``judges`` compare what ``plan`` says, in ``deadline_s`` seconds."""
        self._plan = plan
        self._members = members
        self._spreader = spreader
        self._timing = timing
        now_s = timing.clock.now_s()
        self._deadline_s = deadline_s
        self._due_at_s = now_s + deadline_s
        self._heard_at_s = dict.fromkeys(judges, now_s)
        self._outcomes = dict.fromkeys(judges, MemberOutcome.OPEN)
        self._reports: dict[str, GateReport] = {}
        self._failures: dict[str, str] = {}
        self._informed: set[str] = set()

    @property
    def failures(self) -> dict[str, str]:
        """Why members have not judged, as far as they said."""
        return dict(self._failures)

    async def run(self, quorum_share: float) -> tuple[GateReport, ...] | None:
        """Return the reports, by member, as soon as enough are in; ``None`` without a quorum."""
        while True:
            open_members = [m for m, o in self._outcomes.items() if o is MemberOutcome.OPEN]
            await asyncio.gather(*(self._visit(member) for member in open_members))
            move = self._next_move(quorum_share)
            if move is Move.ENOUGH:
                return tuple(report for _, report in sorted(self._reports.items()))
            if move is Move.TOO_FEW:
                return None
            await self._timing.sleep(_POLL_S)

    def _next_move(self, quorum_share: float) -> Move:
        now_s = self._timing.clock.now_s()
        states = [
            MemberState(outcome, now_s - self._heard_at_s[member])
            for member, outcome in self._outcomes.items()
        ]
        return next_gate_move(
            states,
            quorum_share=quorum_share,
            left_s=self._due_at_s - now_s,
            deadline_s=self._deadline_s,
        )

    async def _visit(self, member: str) -> None:
        plan = self._plan
        try:
            progress = await self._members.control(member).gate_report(plan.adapter, plan.round)
        except UnreachableError:
            return
        except UnknownObjectError:
            await self._ask(member)
            return
        except CollmError as error:
            self._fail(member, str(error))
            return
        self._heard_at_s[member] = self._timing.clock.now_s()
        if progress.error is not None:
            self._fail(member, progress.error)
        elif progress.report is not None and progress.report.member != member:
            self._fail(member, f"it reports for {progress.report.member}")
        elif progress.report is not None:
            self._reports[member] = progress.report
            self._outcomes[member] = MemberOutcome.REPORTED

    async def _ask(self, member: str) -> None:
        """Bring a member the candidate and ask for its opinion; a busy one is asked again later."""
        try:
            control = self._members.control(member)
            if member not in self._informed:
                await self._spreader.publish(control, self._plan.candidate)
                self._informed.add(member)
            await control.start_gate(self._plan)
        except (UnreachableError, StateError) as error:
            _log.info("%s: asking %s to judge: %s", self._plan.candidate, member, error)
            return
        except CollmError as error:
            self._fail(member, str(error))
        self._heard_at_s[member] = self._timing.clock.now_s()

    def _fail(self, member: str, reason: str) -> None:
        _log.warning("%s: %s does not judge: %s", self._plan.candidate, member, reason)
        self._outcomes[member] = MemberOutcome.FAILED
        self._failures[member] = reason
