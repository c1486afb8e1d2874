from collm.cli.demo_rounds import read_rounds
from factories.demo import round_entry


def test_rounds_come_oldest_first_with_what_their_members_reported():
    first, second = read_rounds({"rounds": [round_entry(2, "training"), round_entry(1)]})
    assert (first.number, first.status, first.took_s) == (1, "done", 60.0)
    assert first.num_tokens == 12_000
    assert first.loss_change == -0.25
    assert [part.member for part in first.parts] == ["r0", "r1"]
    assert (second.number, second.took_s, second.loss_change) == (2, None, None)


def test_member_without_an_update_counts_nothing():
    member = {"member": "r0", "outcome": "dead", "reason": None, "report": None}
    (found,) = read_rounds({"rounds": [round_entry(members=[member])]})
    assert found.num_tokens == 0
    assert found.parts[0].loss_after is None
