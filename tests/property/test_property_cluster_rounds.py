"""Whatever members do, rounds end and everyone agrees on what is served."""

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from collm.errors import RoundError, StateError
from collm.federated.rounds import RoundStatus
from collm.store.rounds import MemberOutcome
from factories.fake_members import NAN, FakeCluster, FakeMember
from factories.rounds import ADAPTER, Rounds, open_folder

BEHAVIOURS = {
    "good": {},
    "slow": {"num_polls": 10**9},
    "stuck": {"num_polls": 10**9, "is_deaf": True},
    "dead": {"is_live": False},
    "failing": {"failure": "no memory"},
    "busy": {"refusal": StateError("busy")},
    "unwilling": {"refusal": RoundError("no job")},
    "lying": {"report_changes": {"digest": "0" * 64}},
    "broken": {"content": NAN},
    "harmful": {"increase": 1.0},
}
USUAL = FakeMember("")
FINAL = {RoundStatus.DONE, RoundStatus.REFUSED, RoundStatus.ABANDONED}


def behave(member: FakeMember, behaviour: str) -> None:
    changes = {"content": member.name.encode(), **BEHAVIOURS[behaviour]}
    for name in ("num_polls", "is_deaf", "is_live", "failure", "refusal", "report_changes"):
        setattr(member, name, changes.get(name, getattr(USUAL, name)))
    member.increase = changes.get("increase", USUAL.increase)
    member.content = changes["content"]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.lists(st.sampled_from(sorted(BEHAVIOURS)), min_size=3, max_size=3),
        min_size=1,
        max_size=4,
    )
)
def test_rounds_end_and_leave_one_truth(history: list[list[str]]) -> None:
    members = [FakeMember(name) for name in "abc"]
    with tempfile.TemporaryDirectory() as path, open_folder(Path(path)) as folder:
        rounds = Rounds(FakeCluster(*members), folder)
        for number, behaviours in enumerate(history, start=1):
            for member, behaviour in zip(members, behaviours, strict=True):
                behave(member, behaviour)
            before = folder.decisions.active().get(ADAPTER)
            record = rounds.run()
            active = folder.decisions.active().get(ADAPTER)
            assert record.status in FINAL
            assert active == (record.candidate if record.status == RoundStatus.DONE else before)
            parts = folder.rounds.members(ADAPTER, number)
            assert all(part.outcome is not MemberOutcome.OPEN for part in parts)
            if record.status == RoundStatus.DONE:
                assert {m.active[ADAPTER] for m in members if m.is_live} <= {active}
        used = [
            (part.round, part.member)
            for number in range(1, len(history) + 1)
            for part in folder.rounds.members(ADAPTER, number)
            if part.used_in is not None
        ]
        aggregated = [
            name
            for record in folder.rounds.latest(ADAPTER, 10)
            for name in record.results.get("aggregation", {}).get("weights", {})
        ]
        assert len(used) == len(aggregated)  # no update counts twice
