import pytest

from collm.engine.intake import Intake
from collm.errors import CapacityError, QueueFullError, RequestError
from factories.engine import request


@pytest.fixture
def intake():
    return Intake(max_model_len=64, max_len=32, max_waiting=8)


@pytest.mark.parametrize(
    ("num_tokens", "error"),
    [(0, RequestError), (1, None), (31, None), (32, CapacityError), (64, RequestError)],
)
def test_a_prompt_needs_room_for_one_token_of_output(intake, num_tokens, error):
    refusal = intake.refusal(request("a", [1] * num_tokens))
    assert refusal is None if error is None else type(refusal) is error


@pytest.mark.parametrize(
    ("choices", "num_places", "error"),
    [
        ((8,), 8, None),
        ((3, 5), 8, None),
        ((3, 5), 7, QueueFullError),
        ((9,), 8, CapacityError),
        ((3, 6), 0, CapacityError),
    ],
    ids=["fits", "fits together", "full", "too many", "too many, and full"],
)
def test_a_call_is_told_whether_another_try_may_help(intake, choices, num_places, error):
    requests = [request(f"r{n}", [1], n=n) for n in choices]
    refusal = intake.refusal_of_call(requests, num_places)
    assert refusal is None if error is None else type(refusal) is error
