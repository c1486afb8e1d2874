import pytest

from collm.engine.ends import Ends
from collm.engine.sequence import RequestGroup
from collm.types import FinishReason
from factories.engine import request

EOS, STOP, PLAIN = 2, 9, 5


def reason(token_id, num_before=0, **sampling):
    """Of an answer that has ``num_before`` tokens and gets another."""
    sampling = {"ignore_eos": False, "max_tokens": 4, **sampling}
    (sequence,) = RequestGroup(request("a", [1, 1, 1], **sampling)).sequences
    sequence.token_ids += [PLAIN] * num_before + [token_id]
    return Ends(frozenset({EOS}), max_len=10).reason(sequence)


@pytest.mark.parametrize(
    ("token_id", "num_before", "sampling", "expected"),
    [
        (PLAIN, 0, {}, None),
        (PLAIN, 3, {}, FinishReason.LENGTH),
        (PLAIN, 6, {"max_tokens": 50}, FinishReason.LENGTH),
        (EOS, 0, {}, FinishReason.STOP),
        (EOS, 3, {}, FinishReason.STOP),
        (EOS, 0, {"ignore_eos": True}, None),
        (EOS, 0, {"min_tokens": 2}, None),
        (STOP, 0, {"stop_token_ids": (STOP,), "ignore_eos": True}, FinishReason.STOP),
    ],
    ids=["goes on", "limit", "room", "eos", "eos at limit", "ignored", "too early", "stop token"],
)
def test_an_answer_ends_by_its_tokens_or_its_limits(token_id, num_before, sampling, expected):
    assert reason(token_id, num_before, **sampling) is expected
