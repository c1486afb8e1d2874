"""How much of a job's data is held out."""

import pytest

from collm.replica import job_builder


@pytest.mark.parametrize(
    ("num_samples", "share"), [(20, 0.25), (96, 0.25), (240, 0.1), (480, 0.05), (9_000, 0.05)]
)
def test_more_of_a_small_file_is_held_out_so_that_the_gate_can_judge(num_samples, share):
    config = job_builder.JobConfig(adapter="tutor", data="chats")
    chosen = job_builder._held_out_enough(config, num_samples, min_samples=24)
    assert chosen.held_out_share == pytest.approx(share)


@pytest.mark.parametrize(("asked", "share"), [(0.05, 0.2), (0.3, 0.3)])
def test_fifth_of_feedback_alone_is_held_out_unless_more_was_asked_for(asked, share):
    config = job_builder.JobConfig(adapter="tutor", data="", held_out_share=asked)
    chosen = job_builder._held_out_enough(config, 0, min_samples=24)
    assert chosen.held_out_share == pytest.approx(share)
