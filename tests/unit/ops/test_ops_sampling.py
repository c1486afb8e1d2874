"""Sampling against definitions written out independently: by hand, by brute force, by counting."""

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from collm.ops.sampling import SamplingRow, sample, token_logprobs
from collm.types import SamplingParams
from factories.kernels import PATHS, computing_on

VOCAB_SIZE = 12


@pytest.fixture(params=[*PATHS, "torch"], scope="module", autouse=True)
def _path(request):
    with computing_on(request.param):
        yield


def row(
    output: tuple[int, ...] = (),
    prompt: tuple[int, ...] = (),
    seed: str = "s",
    stop: frozenset[int] = frozenset(),
    **params: object,
) -> SamplingRow:
    return SamplingRow(SamplingParams(**params), (*prompt, *output), len(prompt), seed, stop)


def draws(logits: Tensor, num: int, **params: object) -> Counter[int]:
    rows = [row(seed=str(index), **params) for index in range(num)]
    return Counter(sample(logits.expand(num, -1), rows))


def random_logits(seed: int, vocab_size: int = VOCAB_SIZE) -> Tensor:
    return 2.0 * torch.randn(vocab_size, generator=torch.Generator().manual_seed(seed))


def brute_force(logits: Tensor, top_k: int, top_p: float, min_p: float) -> dict[int, float]:
    """The definition, token by token, in float64: top-k, then top-p of what is left, then min-p."""
    probs = logits.double().softmax(dim=-1).tolist()
    ranked = sorted(range(len(probs)), key=lambda token: -probs[token])
    if top_k:
        ranked = ranked[:top_k]
    total = sum(probs[token] for token in ranked)
    kept, mass = [], 0.0
    for token in ranked:
        if mass < top_p or not kept:
            kept.append(token)
        mass += probs[token] / total
    kept = [token for token in kept if probs[token] >= min_p * probs[ranked[0]]]
    total = sum(probs[token] for token in kept)
    return {token: probs[token] / total for token in kept}


def assert_drawn_from(counts: Counter[int], probs: dict[int, float], logits_seed: int = 0) -> None:
    """Pearson's statistic under the 99.9 % quantile (Wilson-Hilferty), for these fixed seeds."""
    num = counts.total()
    assert set(counts) <= set(probs)
    frequent = {token: p for token, p in probs.items() if num * p >= 5}
    statistic = sum((counts[t] - num * p) ** 2 / (num * p) for t, p in frequent.items())
    freedom = max(len(frequent) - 1, 1)
    bound = freedom * (1 - 2 / (9 * freedom) + 3.09 * (2 / (9 * freedom)) ** 0.5) ** 3
    assert statistic < bound, (statistic, bound, counts, logits_seed)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_softmax(temperature):
    logits = random_logits(1)
    probs = (logits.double() / temperature).softmax(dim=-1).tolist()
    assert_drawn_from(draws(logits, 4_000, temperature=temperature), dict(enumerate(probs)))


@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"),
    [(5, 1.0, 0.0), (0, 0.8, 0.0), (0, 1.0, 0.1), (6, 0.7, 0.0), (6, 0.9, 0.15), (1, 1.0, 0.0)],
)
def test_draws_follow_the_renormalised_rest(top_k, top_p, min_p):
    logits = random_logits(2)
    counts = draws(logits, 3_000, top_k=top_k, top_p=top_p, min_p=min_p)
    assert_drawn_from(counts, brute_force(logits, top_k, top_p, min_p))


def test_top_p_is_a_share_of_what_top_k_left():
    # Of 0.4 0.3 0.2 0.1, top-k leaves 4/7 and 3/7: top-p 0.5 then keeps the first alone, though
    # 0.4 < 0.5 would keep both.
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    assert set(draws(logits, 200, top_k=2, top_p=0.5)) == {0}
    assert set(draws(logits, 200, top_p=0.5)) == {0, 1}


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10_000),
    top_k=st.integers(0, 14),
    top_p=st.floats(0.0, 1.0),
    min_p=st.floats(0.0, 1.0),
    draw=st.integers(0, 50),
)
def test_only_tokens_of_the_kept_set_are_drawn(seed, top_k, top_p, min_p, draw):
    logits = random_logits(seed)
    # Slack for float32 probabilities exactly at a border.
    wide = brute_force(logits, top_k, top_p + 1e-5, min_p - 1e-5)
    params = {"top_k": top_k, "top_p": top_p, "min_p": min_p}
    assert sample(logits[None], [row(seed=str(draw), **params)])[0] in wide


@pytest.mark.parametrize("flatness", [0.0, 3.0])
@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"),
    [
        (0, 0.3, 0.0),
        (0, 0.9, 0.0),
        (0, 1.0, 0.2),
        (0, 0.999, 1e-3),
        (3, 0.9, 0.0),
        (1500, 0.9, 0.0),
    ],
)
def test_large_vocabularies_keep_the_same_set(top_k, top_p, min_p, flatness):
    """Above 1,024 tokens only the most likely are looked at first."""
    logits = flatness * random_logits(8, 3_000) + torch.linspace(0, 1e-3, 3_000)
    expected = brute_force(logits, top_k, top_p, min_p)
    params = {"top_k": top_k, "top_p": top_p, "min_p": min_p}
    counts = draws(logits, 24, **params)
    allowed = brute_force(logits, top_k, top_p + 1e-4, min_p - 1e-5)
    assert set(counts) <= set(allowed)
    if flatness < 1.0 and len(expected) > 1_100:
        ranked = logits.argsort(descending=True)[:1024].tolist()
        assert set(counts) - set(ranked), "tokens beyond the first ones are reached"


@pytest.mark.parametrize("params", [{"top_k": 1}, {"top_p": 0.0}, {"min_p": 1.0}, {"top_p": 1e-9}])
def test_the_narrowest_choice_is_the_most_likely_token(params):
    logits = random_logits(3)
    assert set(draws(logits, 50, **params)) == {int(logits.argmax())}


def test_zero_temperature_takes_the_most_likely_token_whatever_else_is_set():
    logits = random_logits(4)
    assert set(draws(logits, 20, temperature=0.0, top_k=5, top_p=0.5)) == {int(logits.argmax())}


def test_smallest_temperature_of_the_api_is_finite():
    logits = 20.0 * random_logits(4)
    assert set(draws(logits, 20, temperature=1e-5)) == {int(logits.argmax())}


def test_repetition_penalty_by_hand():
    # Positive logits of seen tokens are divided, negative ones multiplied.
    logits = torch.tensor([[3.0, 2.9, -1.0, -1.1]])
    greedy = {"temperature": 0.0, "repetition_penalty": 2.0}
    assert sample(logits, [row(**greedy)]) == [0]
    assert sample(logits, [row(prompt=(0,), **greedy)]) == [1]
    assert sample(logits, [row(output=(0,), **greedy)]) == [1]
    # 3 / 2 = 1.5 and 2.9 / 2 = 1.45: the order is the old one when both were seen.
    assert sample(logits, [row(prompt=(0,), output=(1, 1), **greedy)]) == [0]
    negative = torch.tensor([[-1.0, -1.5, -9.0, -9.0]])
    assert sample(negative, [row(prompt=(0,), **greedy)]) == [1]


def test_presence_and_frequency_penalties_by_hand():
    logits = torch.tensor([[2.0, 1.6, 1.3, 0.0]])
    # presence: 2.0 - 0.5 = 1.5, once whatever the count; only the output counts
    presence = {"temperature": 0.0, "presence_penalty": 0.5}
    assert sample(logits, [row(prompt=(0, 0), **presence)]) == [0]
    assert sample(logits, [row(output=(0,), **presence)]) == [1]
    assert sample(logits, [row(output=(0, 1, 0, 1, 0), **presence)]) == [0]
    # frequency: 2.0 - 3 * 0.25 = 1.25, 1.6 - 0.25 = 1.35, 1.3 - 0 = 1.3
    frequency = {"temperature": 0.0, "frequency_penalty": 0.25}
    assert sample(logits, [row(output=(0, 1, 0, 0), **frequency)]) == [1]
    both = {"temperature": 0.0, "frequency_penalty": 0.25, "presence_penalty": 0.5}
    assert sample(logits, [row(output=(0, 1), **both)]) == [2]
    # negative penalties reward
    assert sample(logits, [row(output=(2,), temperature=0.0, presence_penalty=-1.0)]) == [2]


def test_penalties_shape_the_distribution_and_leave_the_logits_alone():
    logits = random_logits(5)
    before = logits.clone()
    adjusted = logits.double().clone()
    adjusted[3] -= 1.0 + 2 * 0.5
    adjusted[4] -= 1.0 + 0.5
    rows = [
        row(output=(3, 4, 3), seed=str(n), presence_penalty=1.0, frequency_penalty=0.5)
        for n in range(3_000)
    ]
    counts = Counter(sample(logits.expand(3_000, -1), rows))
    assert_drawn_from(counts, dict(enumerate(adjusted.softmax(dim=-1).tolist())))
    assert torch.equal(logits, before)


def test_stop_tokens_are_not_sampled_before_the_minimum():
    logits = torch.tensor([[5.0, 4.0, 3.0]])
    stop = frozenset({0, 1})
    greedy = {"temperature": 0.0, "min_tokens": 2, "stop": stop}
    assert sample(logits, [row(**greedy)]) == [2]
    assert sample(logits, [row(output=(2,), **greedy)]) == [2]
    assert sample(logits, [row(output=(2, 2), **greedy)]) == [0]
    rows = [row(seed=str(n), min_tokens=1, stop=stop) for n in range(100)]
    assert set(sample(logits.expand(100, -1), rows)) == {2}


def test_a_draw_depends_on_seed_and_position_alone():
    logits = torch.stack([random_logits(n) for n in range(6)])
    rows = [row(seed=str(n), output=tuple(range(n)), top_p=0.95) for n in range(6)]
    together = sample(logits, rows)
    order = [4, 0, 5, 2, 1, 3]
    assert sample(logits[order], [rows[n] for n in order]) == [together[n] for n in order]
    assert [sample(logits[n : n + 1], [rows[n]])[0] for n in range(6)] == together
    mixed = [rows[0], row(temperature=0.0), rows[2]]
    tokens = sample(logits[:3], mixed)
    assert tokens == [together[0], int(logits[1].argmax()), together[2]]


def test_draws_at_other_positions_and_of_other_seeds_differ():
    flat = torch.zeros(1, 1_000)
    by_position = {sample(flat, [row(output=(0,) * n)])[0] for n in range(20)}
    by_seed = {sample(flat, [row(seed=str(n))])[0] for n in range(20)}
    assert len(by_position) > 15
    assert len(by_seed) > 15


def test_a_rounding_error_in_the_logits_does_not_change_a_draw():
    logits = random_logits(6, 400).expand(300, -1)
    noise = 1e-6 * torch.randn(300, 400, generator=torch.Generator().manual_seed(0))
    rows = [row(seed=str(n), top_p=0.9) for n in range(300)]
    assert sample(logits, rows) == sample(logits + noise, rows)


@pytest.mark.parametrize("params", [{}, {"top_k": 3}, {"top_p": 0.9}, {"min_p": 0.1}])
def test_logits_that_are_no_numbers_give_no_token_and_leave_the_other_rows_alone(params):
    broken = torch.zeros(3, VOCAB_SIZE)
    broken[0, 1] = torch.nan
    broken[1, 1] = torch.inf
    broken[2] = -torch.inf
    logits = torch.cat([broken, random_logits(7)[None]])
    tokens = sample(logits, [row(**params)] * 4)
    assert tokens[:3] == [None] * 3
    assert tokens[3:] == sample(logits[3:], [row(**params)])
    assert tokens[3] is not None


@pytest.mark.parametrize("num_top", [0, 1, 5, 700, 1_100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab_size", [VOCAB_SIZE, 1_037])
def test_logprobs_are_the_log_softmax_of_the_plain_logits(num_top, dtype, vocab_size):
    logits = torch.stack([random_logits(seed, vocab_size) for seed in range(3)]).to(dtype)
    tokens = [3, None, vocab_size - 1]
    reports = token_logprobs(logits, tokens, [num_top, num_top, 2])
    assert reports[1] is None
    for index, num in ((0, min(num_top, vocab_size)), (2, 2)):
        report, expected = reports[index], logits[index].double().log_softmax(dim=-1)
        assert report.logprob == pytest.approx(float(expected[tokens[index]]), abs=2e-6)
        ids = [token_id for token_id, _ in report.top]
        assert len(set(ids)) == num
        values = torch.tensor([value for _, value in report.top], dtype=torch.float64)
        assert_close(values, expected[ids], atol=2e-6, rtol=1e-6)
        assert_close(values, expected.topk(num).values, atol=2e-6, rtol=1e-6)


def test_logprobs_are_made_only_where_they_are_asked_for():
    logits = random_logits(1).expand(3, -1)
    assert token_logprobs(logits, [1, 2, None], [None, None, 4]) == [None] * 3
    assert [report is None for report in token_logprobs(logits, [1, 2, 3], [None, 0, None])] == [
        True,
        False,
        True,
    ]


@pytest.mark.parametrize("vocab_size", [32, 1_056, 4_128])
def test_the_first_of_the_most_likely_tokens_is_found_in_bfloat16(vocab_size):
    logits = random_logits(0, 8 * vocab_size).view(8, vocab_size).bfloat16()
    expected: list[int | None] = logits.argmax(dim=-1).tolist()
    logits[1, [vocab_size - 1, vocab_size // 2]] = 50.0  # a tie
    logits[2] = -logits[2].abs() - 3.0
    logits[2, vocab_size - 2] = -0.0
    logits[3, vocab_size // 3] = torch.nan
    logits[4, 0] = torch.inf
    logits[5, 1:] = torch.nan
    expected[1:6] = [vocab_size // 2, vocab_size - 2, None, None, None]
    assert sample(logits, [row(temperature=0.0)] * 8) == expected


def test_draws_from_bfloat16_logits_are_those_from_their_values():
    logits = random_logits(1, 64).bfloat16().expand(20, -1)
    rows = [row(seed=str(index), temperature=1.0, top_p=0.9) for index in range(20)]
    assert sample(logits, rows) == sample(logits.float(), rows)
