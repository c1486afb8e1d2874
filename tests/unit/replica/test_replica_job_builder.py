"""What of a job's data is learned, and how much is held out."""

import pytest

from collm.chats import Message, Sample
from collm.replica import job_builder


def test_turns_of_a_sample_that_are_not_to_be_learned_are_told():
    turns = (
        Message("user", "a"),
        Message("assistant", "b", is_learned=False),
        Message("user", "c"),
        Message("assistant", "d"),
    )
    conversation = job_builder.conversation_of(Sample(messages=turns))
    assert conversation.learned is not None
    assert 1 not in conversation.learned
    assert 3 in conversation.learned
    assert conversation.messages[1] == {"role": "assistant", "content": "b"}


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
