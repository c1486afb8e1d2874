"""What is measured of one sample; exact answers are those of transformers, searching greedily."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from collm.gate.exact_match import MAX_ANSWER_TOKENS
from collm.lora.layout import lora_layout
from collm.pacing.quanta import QuantumKind
from collm.training.base_version import fresh_state
from collm.training.measuring import Limits, Measured, Meter, mean_of
from collm.training.microbatch import pack
from collm.training.samples import TokenSample
from factories.training import FixedSizes, tiny_decoder

PROMPTS = [(20, 300, 41), (7, 8, 9, 10, 11), (450, 30, 222, 61)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("measuring")


@pytest.fixture(scope="module")
def decoder(folder):
    return tiny_decoder(folder, "llama")


@pytest.fixture(scope="module")
def greedy(decoder, folder):
    """What the bare model answers, token by token."""
    model = AutoModelForCausalLM.from_pretrained(folder / "llama", dtype=torch.float32)

    def answer(prompt, num_tokens):
        tokens = list(prompt)
        for _ in range(num_tokens):
            with torch.no_grad():
                tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
        return tuple(tokens[len(prompt) :])

    return answer


def sample(prompt, answer):
    flags = (False,) * len(prompt) + (True,) * len(answer)
    return TokenSample((*prompt, *answer), flags)


def measure(decoder, samples):
    meter = Meter(decoder, "a", Limits(FixedSizes(), 0.04, 1_000))

    def run():
        operand = yield from meter.stage(fresh_state("a", lora_layout(decoder.spec, 4)))
        return (yield from meter.measure(pack(samples), operand))

    program = run()
    while True:
        try:
            next(program)
        except StopIteration as end:
            return [end.value[one.sample_id] for one in samples]


def test_answer_of_a_greedy_search_is_exact_and_any_other_is_not(decoder, greedy):
    right = [sample(prompt, greedy(prompt, 5)) for prompt in PROMPTS]
    wrong = [
        sample(prompt, (*answer[:place], 3, *answer[place + 1 :]))
        for prompt, place in zip(PROMPTS, (0, 2, 4), strict=True)
        for answer in [greedy(prompt, 5)]
    ]
    assert [one.is_exact for one in measure(decoder, right)] == [True] * 3
    assert [one.is_exact for one in measure(decoder, wrong)] == [False] * 3


def test_answer_that_is_too_long_is_neither(decoder, greedy):
    longest = sample(PROMPTS[0], greedy(PROMPTS[0], MAX_ANSWER_TOKENS))
    longer = sample(PROMPTS[0], greedy(PROMPTS[0], MAX_ANSWER_TOKENS + 1))
    assert [one.is_exact for one in measure(decoder, [longest, longer])] == [True, None]


def test_mean_counts_the_short_answers_among_its_samples():
    mean = mean_of([Measured(1.0, True), Measured(2.0, None), Measured(6.0, False)])
    assert (mean.loss, mean.num_samples) == (3.0, 3)
    assert (mean.exact.num_exact, mean.exact.num_answers) == (1, 2)


def test_sizes_leave_room_below_the_longest_quantum_wanted():
    class SecondsPerThousand:
        def max_size(self, kind, limit_s):
            return int(limit_s * 1_000)

    limits = Limits(SecondsPerThousand(), 0.1, 1_000)
    assert limits.max_tokens() == limits.max_loss_rows(QuantumKind.LOSS) == 85
