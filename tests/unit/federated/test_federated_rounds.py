import json
import subprocess
import sys

import pytest

from collm.errors import RoundError
from collm.federated.rounds import (
    GatePlan,
    GateReport,
    RoundPlan,
    SliceSums,
    UpdateReport,
)
from collm.types import GradientSums, VersionId

PLAN = RoundPlan(
    adapter="clinc",
    round=3,
    members=("r0", "r1"),
    base_version=VersionId("clinc@2"),
    max_tokens=4096,
    deadline_s=60.0,
)
REPORT = UpdateReport(
    adapter="clinc",
    round=3,
    member="r0",
    base_version=VersionId("clinc@2"),
    num_examples=128,
    num_tokens=4000,
    loss_before=2.5,
    loss_after=None,
    is_complete=False,
    digest="0123456789abcdef" * 4,
    gradient=GradientSums(
        num_steps=3, num_differences=9, spread=0.5, square=2.0, inverse_tokens=0.003
    ),
)
GATE_PLAN = GatePlan(
    adapter="clinc", round=3, candidate=VersionId("clinc@3"), active=None, max_samples=64
)
GATE_REPORT = GateReport(
    member="r0",
    slices={"banking": SliceSums(4, -1.0, 0.5), "general": SliceSums(0, 0.0, 0.0)},
    num_not_finite=1,
)
MESSAGES = [PLAN, REPORT, GATE_PLAN, GATE_REPORT, SliceSums(2, 1.0, 0.5, 2.5)]


@pytest.mark.parametrize("message", MESSAGES)
def test_messages_survive_json(message):
    assert type(message).from_json(json.loads(json.dumps(message.to_json()))) == message


@pytest.mark.parametrize("message", MESSAGES)
def test_every_missing_or_null_field_is_named(message):
    optional = {"base_version", "active", "loss_before", "loss_after", "gradient", "sum_active"}
    for name in message.to_json().keys() - optional:
        value = message.to_json()
        with pytest.raises(RoundError, match=rf"{type(message).__name__}\.{name} must be .* null"):
            type(message).from_json(value | {name: None})
        del value[name]
        with pytest.raises(RoundError, match=rf"{type(message).__name__}\.{name} is missing"):
            type(message).from_json(value)


@pytest.mark.parametrize("message", MESSAGES)
def test_unknown_fields_are_named(message):
    with pytest.raises(RoundError, match="has no field 'text'"):
        type(message).from_json(message.to_json() | {"text": "secret"})


def test_an_update_of_before_there_were_gradient_sums_has_none():
    value = REPORT.to_json()
    del value["gradient"]
    assert UpdateReport.from_json(value).gradient == GradientSums()


@pytest.mark.parametrize("bad", [{"spread": -1.0}, {"num_steps": -1}])
def test_gradient_sums_below_zero_are_refused(bad):
    value = REPORT.to_json()
    with pytest.raises(RoundError, match="gradient"):
        UpdateReport.from_json(value | {"gradient": value["gradient"] | bad})


@pytest.mark.parametrize("value", [None, [], "plan", 3])
def test_what_is_no_object_is_refused(value):
    with pytest.raises(RoundError, match="RoundPlan must be a JSON object"):
        RoundPlan.from_json(value)


@pytest.mark.parametrize(
    ("message", "name", "value"),
    [
        (PLAN, "adapter", ""),
        (PLAN, "adapter", 3),
        (PLAN, "round", 0),
        (PLAN, "round", True),
        (PLAN, "round", 1.5),
        (PLAN, "round", 10**30),
        (PLAN, "members", []),
        (PLAN, "members", ["r0", "r0"]),
        (PLAN, "members", ["r0", 1]),
        (PLAN, "members", "r0"),
        (PLAN, "base_version", 2),
        (PLAN, "max_tokens", 0),
        (PLAN, "deadline_s", 0),
        (PLAN, "deadline_s", float("inf")),
        (PLAN, "deadline_s", 10**400),
        (REPORT, "num_examples", -1),
        (REPORT, "loss_before", float("nan")),
        (REPORT, "is_complete", 1),
        (REPORT, "digest", "../../etc"),
        (GATE_PLAN, "max_samples", 0),
        (GATE_PLAN, "candidate", ""),
        (GATE_REPORT, "slices", {"banking": {"n": 1, "sum_d": 1.0}}),
        (GATE_REPORT, "slices", {"": {"n": 0, "sum_d": 0.0, "sum_d2": 0.0}}),
        (GATE_REPORT, "num_not_finite", -1),
        (SliceSums(2, 1.0, 0.5), "n", -1),
        (SliceSums(2, 1.0, 0.5), "sum_d", float("nan")),
        (SliceSums(2, 1.0, 0.5), "sum_d2", float("inf")),
        (SliceSums(2, 1.0, 0.5), "sum_d2", 0.4),
        (SliceSums(2, 1.0, 0.5), "n", 0),
        (SliceSums(2, 1.0, 0.5), "sum_active", -0.1),
        (SliceSums(2, 1.0, 0.5), "sum_active", float("inf")),
    ],
)
def test_wrong_values_are_refused_and_the_field_named(message, name, value):
    with pytest.raises(RoundError, match=r"\.(" + name + r"|sum_d2)\b"):
        type(message).from_json(message.to_json() | {name: value})


def test_a_message_is_checked_when_built_too():
    with pytest.raises(RoundError, match=r"RoundPlan\.max_tokens is 0; allowed is 1 or more"):
        RoundPlan(
            adapter="a", round=1, members=("r",), base_version=None, max_tokens=0, deadline_s=1
        )


def test_sums_of_equal_differences_are_possible_despite_rounding():
    for n in range(1, 200):
        SliceSums(n, sum([0.1] * n), sum([0.1**2] * n))


def test_messages_verdict_weights_and_plan_need_no_torch():
    code = (
        "import sys; import collm.federated.rounds, collm.federated.verdict,"
        " collm.federated.weights, collm.federated.aggregate_plan;"
        " sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
