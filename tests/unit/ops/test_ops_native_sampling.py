"""Every path's draws against the distribution, written out in float64 token by token."""

from bisect import bisect
from collections import Counter
from dataclasses import dataclass
from itertools import accumulate

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from collm.ops.sampling import SamplingRow, sample
from collm.types import SamplingParams
from factories.kernels import PATHS, computing_on

NO_STOP: frozenset[int] = frozenset()
EVERY_PATH = pytest.mark.parametrize("path", [*PATHS, "torch"])
_ROUNDING = 2e-6
"""Of probabilities that are summed in float32."""


def make_row(
    seed: object = 0,
    known: tuple[int, ...] = (),
    num_prompt: int = 0,
    stop: frozenset[int] = NO_STOP,
    **params: object,
) -> SamplingRow:
    return SamplingRow(SamplingParams(**params), known, num_prompt, str(seed), stop)


def adjusted(logits: list[float], row: SamplingRow) -> list[float]:
    p, logits = row.params, list(logits)
    for token in set(row.token_ids):
        x = logits[token]
        logits[token] = x / p.repetition_penalty if x > 0 else x * p.repetition_penalty
    for token, n in Counter(row.token_ids[row.num_prompt_tokens :]).items():
        logits[token] -= p.presence_penalty + p.frequency_penalty * n
    return logits


def distribution(logits: list[float], row: SamplingRow, slack: float) -> list[float]:
    """Probabilities of all tokens; with slack, top-p and min-p leave a little more, or less."""
    p = row.params
    scaled = torch.tensor(logits, dtype=torch.float64)
    probs = ((scaled - scaled.max()) / p.temperature).exp().tolist()
    ranked = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    ranked = ranked[: p.top_k or None]
    total, before, kept = sum(probs[token] for token in ranked), 0.0, []
    for token in ranked:
        is_in = p.top_p == 1.0 or before < (p.top_p + slack) * total
        if not kept or (is_in and probs[token] >= p.min_p * (1.0 - slack)):
            kept.append(token)
        before += probs[token]
    rest = sum(probs[token] for token in kept)
    chosen = set(kept)
    return [probs[t] / rest if t in chosen else 0.0 for t in range(len(logits))]


def may_be_drawn(logits: Tensor, row: SamplingRow) -> set[int]:
    """The tokens in whose part of the distribution the row's number lies, or within rounding."""
    values = adjusted(logits.double().tolist(), row)
    allowed = set()
    for slack in (-_ROUNDING, 0.0, _ROUNDING):
        probs = distribution(values, row, slack)
        ends = list(accumulate(probs))
        first = bisect(ends, row.draw() - _ROUNDING)
        last = min(bisect(ends, row.draw() + _ROUNDING), len(ends) - 1)
        allowed |= {token for token in range(first, last + 1) if probs[token] > 0.0}
    return allowed


@dataclass(frozen=True)
class Case:
    logits: Tensor
    row: SamplingRow


@st.composite
def cases(draw: st.DrawFn) -> Case:
    size = draw(st.sampled_from([1, 2, 15, 16, 17, 500, 512, 513, 1_000, 1_536, 2_100]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1_000)))
    logits = draw(st.sampled_from([0.0, 1.0, 6.0])) * torch.randn(size, generator=generator)
    if draw(st.booleans()):
        logits = (2.0 * logits).round() / 2.0  # many ties, most of them where a cut may be
    if draw(st.booleans()):
        logits[torch.rand(size, generator=generator) < 0.3] = -torch.inf
    if draw(st.booleans()):
        logits[draw(st.integers(0, size - 1))] = draw(st.sampled_from([1.0, 30.0]))
    if not logits.max().isfinite():
        logits[draw(st.integers(0, size - 1))] = -2.5
    known = tuple(draw(st.lists(st.integers(0, size - 1), max_size=6)))
    row = make_row(
        draw(st.integers(0, 1_000)),
        known,
        draw(st.integers(0, len(known))),
        temperature=draw(st.sampled_from([0.3, 1.0, 4.0])),
        top_k=draw(st.sampled_from([0, 0, 1, 3, 50, 700, 5_000])),
        top_p=draw(st.sampled_from([1.0, 1.0, 0.0, 0.3, 0.9, 0.999])),
        min_p=draw(st.sampled_from([0.0, 0.0, 0.01, 0.5, 1.0])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.25])),
        presence_penalty=draw(st.sampled_from([0.0, 0.5])),
        frequency_penalty=draw(st.sampled_from([0.0, -0.25])),
    )
    return Case(logits.to(draw(st.sampled_from([torch.bfloat16, torch.float32]))), row)


@EVERY_PATH
@settings(max_examples=120, deadline=None, derandomize=True)
@given(case=cases())
def test_a_number_chooses_the_token_in_whose_part_of_the_distribution_it_lies(path, case):
    before = case.logits.clone()
    with computing_on(path):
        (token,) = sample(case.logits[None], [case.row])
    assert token in may_be_drawn(case.logits, case.row)
    assert torch.equal(case.logits, before)


@EVERY_PATH
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_of_equally_likely_tokens_at_a_cut_the_first_stay(path, dtype):
    logits = torch.full((1_200,), -1.0)
    logits[[5, 600, 601, 1_100, 1_199]] = 2.0  # in several of the kernels' blocks
    logits[900] = 3.0
    rows = [make_row(seed, top_k=3) for seed in range(60)]
    halves = [make_row(seed, top_p=0.5) for seed in range(60)]
    with computing_on(path):
        tokens = sample(logits.to(dtype).expand(60, -1), rows)
        assert set(tokens) == {900, 5, 600}
        tokens = sample(torch.zeros(60, 1_200, dtype=dtype), halves)
        assert max(tokens) < 600
        assert len(set(tokens)) > 40


@EVERY_PATH
def test_tokens_do_not_depend_on_threads_or_batch_mates(path):
    generator = torch.Generator().manual_seed(3)
    logits = (3.0 * torch.randn(24, 4_000, generator=generator)).bfloat16()
    params = [{}, {"top_p": 0.9}, {"top_k": 20}, {"temperature": 0.0}, {"min_p": 0.05}]
    rows = [make_row(index, **params[index % 5]) for index in range(24)]
    usual = torch.get_num_threads()
    with computing_on(path):
        alone = [sample(logits[index][None], [row])[0] for index, row in enumerate(rows)]
        try:
            for num_threads in (1, 2, 3):
                torch.set_num_threads(num_threads)
                assert sample(logits, rows) == alone
        finally:
            torch.set_num_threads(usual)


@EVERY_PATH
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("value", [torch.nan, -torch.nan, torch.inf])
@pytest.mark.parametrize("place", [0, 700, 1_049])
@pytest.mark.parametrize("params", [{"temperature": 0.0}, {}, {"presence_penalty": 1.0}])
def test_one_value_that_is_no_number_leaves_no_token_wherever_it_is(
    path, dtype, value, place, params
):
    logits = torch.randn(2, 1_050, generator=torch.Generator().manual_seed(0)).to(dtype)
    logits[0, place] = value
    with computing_on(path):
        broken, whole = sample(logits, [make_row(**params)] * 2)
    assert broken is None
    assert whole is not None


@EVERY_PATH
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_whose_every_token_is_barred_has_none(path, temperature):
    logits = torch.tensor([[-torch.inf, 1.0, 2.0, -torch.inf]])
    row = make_row(stop=frozenset({1, 2}), min_tokens=1, temperature=temperature)
    with computing_on(path):
        assert sample(logits, [row]) == [None]


@EVERY_PATH
def test_ends_beyond_the_vocabulary_bar_nothing(path):
    row = make_row(stop=frozenset({2, 4, 100_000}), min_tokens=1, temperature=0.0)
    with computing_on(path):
        assert sample(torch.tensor([[0.0, 1.0, 2.0, 0.5]]), [row]) == [1]


@EVERY_PATH
@pytest.mark.parametrize("cut", [{}, {"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.1}])
def test_temperatures_too_small_to_divide_by_take_the_most_likely(path, cut):
    logits = torch.linspace(-1e38, 1e38, 600).flip(0)[None]
    for temperature in (1e-5, 1e-40, 5e-324):
        with computing_on(path):
            assert sample(logits, [make_row(temperature=temperature, **cut)]) == [0]
