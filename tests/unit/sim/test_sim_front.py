import pytest

from collm.cluster.routes import OUTPUT_TOKENS_GUESS, Turned, TurnedReason
from collm.sim.config import SimConfig
from collm.sim.front import RouterDispatcher
from collm.sim.requests import SimRequest


class Listening:
    """A router that turns everything away, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked = []

    def choose(self, request, table, sent, now_s):
        self.asked.append(request)
        return Turned(1.0, TurnedReason.NO_REPLICA)


@pytest.mark.parametrize(("says_lengths", "guess"), [(True, 300), (False, OUTPUT_TOKENS_GUESS)])
def test_front_knows_how_long_an_answer_gets_only_if_it_is_told(says_lengths, guess) -> None:
    dispatcher = RouterDispatcher(
        SimConfig(says_lengths=says_lengths), bytes_per_token=4.0, replicas={}
    )
    dispatcher.router = Listening()
    request = SimRequest(0, 0.0, 50, 300, domain=0, is_scored=False)
    assert dispatcher.choose(request, 0.0) is None
    (asked,) = dispatcher.router.asked
    assert (asked.num_output_tokens_guess, asked.num_prompt_bytes) == (guess, 200)
