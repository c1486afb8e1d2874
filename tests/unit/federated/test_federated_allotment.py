import json

import pytest

from collm.errors import RoundError
from collm.federated.allotment import AdapterAllotment, Allotment

ONE = {"credit_share": 0.1, "time_share": 0.5, "tokens_per_step": 2_048}


def plain(**changes):
    return {"number": 3, "valid_s": 600.0, "adapters": {"a": ONE}} | changes


def test_allotment_survives_json():
    allotment = Allotment(
        number=3,
        valid_s=600.0,
        adapters={"a": AdapterAllotment(**ONE), "b": AdapterAllotment(**ONE)},
    )
    assert Allotment.from_json(json.loads(json.dumps(allotment.to_json()))) == allotment
    assert allotment.credit_share == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"number": 0}, "number"),
        ({"valid_s": 0.0}, "valid_s"),
        ({"valid_s": "long"}, "valid_s"),
        ({"adapters": {"a": ONE | {"credit_share": 1.0}}}, "credit_share"),
        ({"adapters": {"a": ONE | {"credit_share": -0.1}}}, "credit_share"),
        ({"adapters": {"a": ONE | {"time_share": 0.0}}}, "time_share"),
        ({"adapters": {"a": ONE | {"tokens_per_step": 0}}}, "tokens_per_step"),
        ({"adapters": {"a": ONE | {"surprise": 1}}}, "surprise"),
        (
            {"adapters": {"a": ONE | {"credit_share": 0.6}, "b": ONE | {"credit_share": 0.6}}},
            "credit",
        ),
        ({"adapters": []}, "adapters"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_what_is_wrong_is_named(changes, named):
    with pytest.raises(RoundError, match=named):
        Allotment.from_json(plain(**changes))
