import json

import pytest

from collm.metrics.records import RequestRecord
from collm.metrics.service_times import ServiceTimes, bucket, counts_of, percentile_s
from collm.pacing.config import PacingConfig
from collm.types import VersionId


def record(**changes):
    """A request that met objectives of 0.8 s and 0.1 s: TTFT 0.2 s, TPOT 0.05 s."""
    fields = {
        "request_id": "r",
        "model": "clinc",
        "versions": (VersionId("clinc@2"),),
        "arrived_at_s": 10.0,
        "first_token_at_s": 10.2,
        "last_token_at_s": 10.4,
        "num_output_tokens": 5,
        "outcome": "completed",
        **changes,
    }
    return RequestRecord(**fields)


@pytest.fixture
def times():
    return ServiceTimes(PacingConfig(ttft_s=0.8, tpot_s=0.1))


def test_step_time_is_divided_between_the_phases(times):
    times.observe_step(0.4, 0.25)
    times.observe_step(0.1, 0.0)
    assert times.show()["phase_seconds"] == pytest.approx({"prefill": 0.1, "decode": 0.4})


def test_latencies_come_back_from_json_as_percentiles(times):
    for number in range(1, 101):
        times.observe_request(record(first_token_at_s=10.0 + number / 100))
    counts = counts_of(json.loads(json.dumps(times.show()))["ttft"])
    for share in (0.5, 0.95, 1.0):
        assert share <= percentile_s(counts, share) <= share * 1.07


@pytest.mark.parametrize("seconds", [0.0, 1e-6, 0.001, 0.0203, 0.8, 59.0])
def test_a_bucket_bound_is_never_below_its_values(seconds):
    bound = percentile_s({bucket(seconds): 1}, 1.0)
    assert bound >= seconds * (1 - 1e-9)


def test_there_is_no_percentile_of_nothing():
    assert percentile_s({}, 0.95) is None
