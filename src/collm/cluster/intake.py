"""Taking in one member's update: asked for, checked, on disk, on record."""

import asyncio
import hashlib
import logging
from enum import Enum, auto

from collm.cluster.client import MemberControl
from collm.cluster.members import Members
from collm.errors import CollmError, RoundError, UnknownObjectError, UnreachableError
from collm.federated.rounds import UpdateReport
from collm.store.front_folder import FrontFolder
from collm.store.rounds import MemberOutcome

_log = logging.getLogger(__name__)


class Receipt(Enum):
    """What came of asking a member for its update."""

    SILENT = auto()
    """It does not answer."""
    WORKING = auto()
    """It is still training."""
    UNKNOWN = auto()
    """It knows of no such round: it was never asked, or was restarted."""
    SETTLED = auto()
    """The update, or why there is none, is on record."""


class Intake:
    """Takes in updates; stateless, so that what was lost in a kill is simply done again."""

    def __init__(self, members: Members, folder: FrontFolder) -> None:
        """Take in what ``members`` offer and keep it in ``folder``."""
        self._members = members
        self._folder = folder

    async def take(self, adapter: str, number: int, member: str) -> Receipt:
        """Ask a member for its update of a round, and settle its part if there is an answer."""
        try:
            control = self._members.control(member)
            progress = await control.round_report(adapter, number)
            if progress.report is not None:
                await self._keep(progress.report, adapter, number, member, control)
                return Receipt.SETTLED
        except UnreachableError:
            return Receipt.SILENT
        except UnknownObjectError:
            return Receipt.UNKNOWN
        except CollmError as error:
            await self.fail(adapter, number, member, str(error))
            return Receipt.SETTLED
        if progress.error is not None:
            await self.fail(adapter, number, member, progress.error)
            return Receipt.SETTLED
        return Receipt.WORKING

    async def fail(
        self,
        adapter: str,
        number: int,
        member: str,
        reason: str,
        outcome: MemberOutcome = MemberOutcome.FAILED,
    ) -> None:
        """Record that there will be no update, and why."""
        _log.info("%s round %d: %s %s: %s", adapter, number, member, outcome, reason)
        await asyncio.to_thread(
            self._folder.rounds.settle, adapter, number, member, outcome, reason=reason
        )

    async def _keep(
        self, report: UpdateReport, adapter: str, number: int, member: str, control: MemberControl
    ) -> None:
        """Fetch the update, check it against what was said of it, and keep both, in this order.

        Raises:
            RoundError: It is another's, or not what was said.
        """
        if (report.adapter, report.round, report.member) != (adapter, number, member):
            raise RoundError(
                f"{member} reports for {report.member}, {report.adapter} round {report.round}",
                member=member,
            )
        content = await control.update(adapter, number)
        if await asyncio.to_thread(_digest, content) != report.digest:
            raise RoundError(f"{member} sent an update of another digest", member=member)
        await asyncio.to_thread(self._folder.updates.save, adapter, number, member, content)
        await asyncio.to_thread(
            self._folder.rounds.settle,
            adapter,
            number,
            member,
            MemberOutcome.REPORTED,
            report=report.to_json(),
        )


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
