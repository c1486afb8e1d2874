import pytest

from collm.cli import demo
from collm.cli.demo_answers import WINDOW
from collm.cli.demo_traffic import OUT_OF_SCOPE, build_traffic
from collm.errors import ConfigError
from collm.workload.config import WorkloadConfig


def test_same_seed_gives_the_same_requests_and_another_does_not():
    assert build_traffic(1.0, 1.6, 3) == build_traffic(1.0, 1.6, 3)
    assert build_traffic(1.0, 1.6, 3).requests != build_traffic(1.0, 1.6, 4).requests


def test_rate_and_mix_are_as_asked():
    traffic = build_traffic(8.0, 1.6, 0)
    requests = traffic.requests
    assert len(requests) == traffic.use.num_requests == pytest.approx(768, abs=2)
    assert traffic.use.num_scored == pytest.approx(len(requests) / 2, abs=1)
    assert 0 <= requests[0].at_s <= requests[-1].at_s <= 480
    halves = [sum(lower <= r.at_s < lower + 240 for r in requests) for lower in (0, 240)]
    assert min(halves) > 0.35 * len(requests)


def test_a_usual_run_of_one_replica_has_300_answers_at_either_end():
    traffic = build_traffic(demo._MINUTES, demo._RATE, 0)
    scored = [r.expected for r in traffic.requests if r.expected is not None]
    own = [answer for answer in scored if traffic.groups[answer] != OUT_OF_SCOPE]
    assert len(own) >= 2 * WINDOW


def test_all_ten_domains_and_out_of_scope_appear_throughout():
    traffic = build_traffic(8.0, 1.6, 0)
    answers = [r.expected for r in traffic.requests if r.expected is not None]
    groups = [traffic.groups[answer] for answer in answers]
    for start in range(0, len(groups) - 11, 11):
        assert len(set(groups[start : start + 11])) == 11
    prompts = [r.messages[0].content for r in traffic.requests if r.kind == "scored"]
    assert len(set(prompts)) == len(prompts), "no test sample is asked twice"


def test_lengths_are_halved_and_clipped():
    requests = build_traffic(8.0, 1.6, 0).requests
    length = [r for r in requests if r.kind == "length"]
    assert all(r.ignore_eos and r.max_tokens <= 128 for r in length)
    most_chars = 256 * WorkloadConfig().chars_per_token
    assert 0.75 * most_chars < max(len(r.messages[0].content) for r in length) <= most_chars


@pytest.mark.parametrize(
    ("minutes", "rate", "words"),
    [(0.0, 1.0, "--minutes is 0"), (25.0, 1.0, "--minutes is 25"), (1.0, 99.0, "up to"),
     (1.0, 0.0, "--requests-per-s is 0")],
)  # fmt: skip
def test_impossible_traffic_is_refused(minutes, rate, words):
    with pytest.raises(ConfigError, match=words):
        build_traffic(minutes, rate, 0)


def test_longest_run_starts_at_midnight():
    use = build_traffic(24.0, 0.2, 0).use
    assert (use.start_hour, use.num_hours, use.num_rows) == (0.0, 24.0, 30_199)
