from random import Random

import pytest

from collm.errors import DataError
from collm.model.tokenizer import Tokenizer
from collm.training.samples import (
    PreparedSamples,
    TokenSample,
    is_usable,
    prepare_samples,
    split_held_out,
)
from factories.checkpoints import EOS_TOKEN_ID, tiny_tokenizer
from factories.training import make_samples

SAMPLES = make_samples([10 + i % 7 for i in range(300)])
Chat = list[dict[str, object]]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    tiny_tokenizer(folder)
    return Tokenizer(folder, (EOS_TOKEN_ID,))


def chat(question: str, answer: str = "yes") -> Chat:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def prepare(
    tokenizer: Tokenizer, chats: list[Chat], share: float = 0.3, max_tokens: int = 100
) -> PreparedSamples:
    return prepare_samples(
        chats, tokenizer, max_tokens=max_tokens, held_out_share=share, max_held_out=50
    )


def test_split_is_disjoint_complete_and_near_its_share() -> None:
    training, held_out = split_held_out(SAMPLES, 0.2, 1_000)
    assert not set(training) & set(held_out)
    assert set(training) | set(held_out) == set(SAMPLES)
    assert 0.1 < len(held_out) / len(SAMPLES) < 0.3


def test_split_stays_when_samples_are_added_and_reordered() -> None:
    training, held_out = split_held_out(SAMPLES[:200], 0.2, 1_000)
    shuffled = list(SAMPLES)
    Random(0).shuffle(shuffled)
    more_training, more_held_out = split_held_out(shuffled, 0.2, 1_000)
    assert set(training) <= set(more_training)
    assert set(held_out) <= set(more_held_out)


def test_what_the_cap_cuts_off_is_never_trained_on() -> None:
    training, all_held_out = split_held_out(SAMPLES, 0.2, 1_000)
    capped_training, capped = split_held_out(SAMPLES, 0.2, 5)
    assert capped_training == training
    assert capped == all_held_out[:5]


def test_duplicates_fall_on_the_same_side() -> None:
    training, held_out = split_held_out(SAMPLES * 2, 0.2, 1_000)
    assert not set(training) & set(held_out)
    assert len(training) == 2 * len(set(training))


@pytest.mark.parametrize(
    ("token_ids", "is_supervised", "expected"),
    [
        ((1, 2), (False, True), True),
        ((1, 2), (False, False), False),
        ((1, 2), (True, True), False),
        ((1,), (False,), False),
        ((1, 2, 3, 4), (False, False, False, True), False),
    ],
)
def test_usable_samples_fit_and_supervise_a_later_token(
    token_ids: tuple[int, ...], is_supervised: tuple[bool, ...], expected: bool
) -> None:
    assert is_usable(TokenSample(token_ids, is_supervised), max_tokens=3) is expected


def test_prepared_samples_are_the_tokens_that_serving_sees(tokenizer: Tokenizer) -> None:
    chats = [chat(f"number {i}") for i in range(30)]
    prepared = prepare(tokenizer, chats)
    assert prepared.num_unusable == 0
    assert prepared.training
    assert prepared.held_out
    samples = {s.token_ids: s for s in (*prepared.training, *prepared.held_out)}
    for messages in chats:
        prompt = tuple(tokenizer.encode_chat(messages[:1]))
        (sample,) = (s for ids, s in samples.items() if ids[: len(prompt)] == prompt)
        assert sample.first_loss_row == len(prompt) - 1
        assert sample.token_ids[-1] == EOS_TOKEN_ID
        assert sample.is_supervised[-1]


def test_unusable_conversations_are_left_out_and_counted(tokenizer: Tokenizer) -> None:
    good = [chat(f"number {i}") for i in range(30)]
    no_answer: Chat = [{"role": "user", "content": "hello?"}]
    too_long = chat("word " * 200)
    prepared = prepare(tokenizer, [no_answer, *good, too_long])
    assert prepared.num_unusable == 2
    expected = prepare(tokenizer, good)
    assert (prepared.training, prepared.held_out) == (expected.training, expected.held_out)


def test_a_set_without_usable_samples_says_why(tokenizer: Tokenizer) -> None:
    with pytest.raises(DataError, match="none of 2 samples can be trained on; the first: .*at mos"):
        prepare(tokenizer, [chat("one two three"), chat("four")], max_tokens=5)
    with pytest.raises(DataError, match="none of 0 samples"):
        prepare(tokenizer, [])


def test_an_empty_side_of_the_split_is_named(tokenizer: Tokenizer) -> None:
    chats = [chat("one"), chat("two")]
    with pytest.raises(DataError, match="of 2 usable samples leaves none to evaluate on; raise"):
        prepare(tokenizer, chats, share=0.0001)
    with pytest.raises(DataError, match="leaves none to train on; lower it or add samples"):
        prepare(tokenizer, chats, share=0.9999)
