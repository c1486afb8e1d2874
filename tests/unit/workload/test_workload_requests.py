import statistics

import pytest

from collm.errors import ConfigError
from collm.workload.config import WorkloadConfig
from collm.workload.requests import build_requests, filler_text
from collm.workload.samples import load_samples
from collm.workload.traces import TraceRow, load_trace

TRACE = tuple(TraceRow(float(i), 200 + i, 10 + i, f"site{i % 2}") for i in range(100))
SCORED = load_samples("clinc150", "test")[:30]
FILLER = filler_text(load_samples("medquad", "test"))


def test_at_least_half_of_the_requests_are_length_requests_by_default():
    requests = build_requests(TRACE, SCORED, FILLER, WorkloadConfig(), seed=1)
    assert [request.kind for request in requests].count("length") == 50
    assert [request.at_s for request in requests] == [row.arrived_at_s for row in TRACE]
    assert [request.site for request in requests] == [row.site for row in TRACE]


def test_scored_requests_take_samples_in_order_and_answer_to_their_natural_end():
    requests = build_requests(TRACE, SCORED, FILLER, WorkloadConfig(), seed=1)
    scored = [request for request in requests if request.kind == "scored"]
    wanted = [SCORED[number % 30] for number in range(50)]
    assert [request.messages for request in scored] == [sample.prompt for sample in wanted]
    assert [request.expected for request in scored] == [sample.answer for sample in wanted]
    assert {(request.max_tokens, request.ignore_eos) for request in scored} == {(24, False)}


def test_length_requests_have_the_lengths_of_the_trace():
    config = WorkloadConfig(scored_share=0.0, chars_per_token=4.0, template_tokens=30)
    requests = build_requests(TRACE, (), FILLER, config, seed=1)
    for request, row in zip(requests, TRACE, strict=True):
        assert request.max_tokens == row.output_tokens
        assert request.ignore_eos
        assert request.expected is None
    errors = [
        len(request.messages[0].content) - 4.0 * (row.prompt_tokens - 30)
        for request, row in zip(requests, TRACE, strict=True)
    ]
    assert max(map(abs, errors)) < 15
    assert abs(statistics.fmean(errors)) < 2


def test_length_prompts_start_at_different_places():
    config = WorkloadConfig(scored_share=0.0)
    requests = build_requests(TRACE, (), FILLER, config, seed=1)
    assert len({request.messages[0].content[:40] for request in requests}) > 95


def test_filler_shorter_than_a_prompt_goes_round():
    config = WorkloadConfig(scored_share=0.0, chars_per_token=1.0, template_tokens=0)
    (request,) = build_requests((TraceRow(0.0, 20, 1),), (), "ab cd", config, seed=0)
    assert len(request.messages[0].content) in {20, 21, 19}


def test_the_seed_decides_the_workload():
    trace = load_trace("servegen_edge16_day")[:50]
    config = WorkloadConfig()
    first = build_requests(trace, SCORED, FILLER, config, seed=1)
    assert first == build_requests(trace, SCORED, FILLER, config, seed=1)
    assert first != build_requests(trace, SCORED, FILLER, config, seed=2)


def test_missing_texts_are_named():
    with pytest.raises(ValueError, match="samples"):
        build_requests(TRACE, (), FILLER, WorkloadConfig(), seed=1)
    with pytest.raises(ValueError, match="filler"):
        build_requests(TRACE, SCORED, " ", WorkloadConfig(), seed=1)


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("scored_share", 1.5),
        ("max_scored_tokens", 0),
        ("chars_per_token", 0),
        ("template_tokens", -1),
    ],
)
def test_wrong_configuration_names_the_field(field, wrong):
    with pytest.raises(ConfigError, match=field):
        WorkloadConfig(**{field: wrong})
