from dataclasses import replace

import pytest

from collm.errors import DataError, RequestError
from collm.gate.config import GENERAL
from collm.model.tokenizer import Tokenizer
from collm.training.samples import (
    Conversation,
    PreparedSamples,
    TokenSample,
    clipped,
    encode_sample,
    prepare_general,
    prepare_samples,
)
from factories.checkpoints import EOS_TOKEN_ID, tiny_tokenizer
from factories.training import make_samples


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    tiny_tokenizer(folder)
    return Tokenizer(folder, (EOS_TOKEN_ID,))


def chat(question: str, answer: str = "yes", **fields: str) -> Conversation:
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return Conversation(messages=messages, **fields)


def prepare(
    tokenizer: Tokenizer, chats: list[Conversation], max_tokens: int = 100
) -> PreparedSamples:
    return prepare_samples(chats, tokenizer, max_tokens=max_tokens)


NO_ANSWER = Conversation(messages=[{"role": "user", "content": "hello?"}])


def test_equal_texts_are_held_out_or_not_together() -> None:
    samples = make_samples([10 + i % 7 for i in range(300)])
    others = [replace(sample, sample_id=f"other {i}") for i, sample in enumerate(samples)]
    sides = [sample.is_held_out(0.2) for sample in samples]
    assert sides == [sample.is_held_out(0.2) for sample in others]
    assert 0.1 < sum(sides) / len(sides) < 0.3


def test_an_id_is_derived_from_the_text_unless_one_is_given() -> None:
    (first, second) = make_samples([9, 9])
    assert first.sample_id == replace(first, slice="x", weight=2.0).sample_id
    assert first.sample_id != second.sample_id
    assert replace(first, sample_id="fb-1").sample_id == "fb-1"
    assert replace(first, sample_id="fb-1").text_digest == first.text_digest


def test_a_weight_is_above_zero() -> None:
    with pytest.raises(AssertionError):
        TokenSample((1, 2), (False, True), weight=0.0)


def test_prepared_samples_are_the_tokens_that_serving_sees(tokenizer: Tokenizer) -> None:
    chats = [chat(f"number {i}", slice="numbers", sample_id=f"n{i}") for i in range(30)]
    prepared = prepare(tokenizer, chats)
    assert (prepared.num_unusable, prepared.num_too_long, prepared.reason) == (0, 0, "")
    for conversation, sample in zip(chats, prepared.samples, strict=True):
        prompt = tuple(tokenizer.encode_chat(conversation.messages[:1]))
        assert sample.token_ids[: len(prompt)] == prompt
        assert sample.first_loss_row == len(prompt) - 1
        assert sample.token_ids[-1] == EOS_TOKEN_ID
        assert sample.is_supervised[-1]
        assert (sample.sample_id, sample.slice) == (conversation.sample_id, "numbers")


def test_a_text_that_comes_again_gets_an_id_of_its_own(tokenizer: Tokenizer) -> None:
    first, second, third = prepare(tokenizer, [chat("one")] * 3).samples
    assert len({first.sample_id, second.sample_id, third.sample_id}) == 3
    assert first.text_digest == second.text_digest == third.text_digest


def test_an_own_domain_called_general_stays_an_own_domain(tokenizer: Tokenizer) -> None:
    (sample,) = prepare(tokenizer, [chat("one", slice=GENERAL)]).samples
    assert sample.slice not in ("", GENERAL)


def test_unusable_conversations_are_left_out_and_counted(tokenizer: Tokenizer) -> None:
    good = [chat(f"number {i}") for i in range(30)]
    prepared = prepare(tokenizer, [chat("word " * 200), *good, NO_ANSWER])
    assert (prepared.num_unusable, prepared.num_too_long) == (2, 1)
    assert prepared.reason.endswith("tokens; at most 100 fit")
    assert prepared.samples == prepare(tokenizer, good).samples


def test_a_set_without_usable_samples_says_why(tokenizer: Tokenizer) -> None:
    with pytest.raises(DataError, match="none of 2 samples can be trained on; the first: .*at mos"):
        prepare(tokenizer, [chat("one two three"), chat("four")], max_tokens=5)
    assert prepare(tokenizer, []).samples == ()


def test_one_unusable_conversation_says_why(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match="tokens; at most 100 fit") as raised:
        encode_sample(chat("word " * 200), tokenizer, max_tokens=100)
    assert raised.value.code == "too_long"
    with pytest.raises(RequestError, match="assistant"):
        encode_sample(NO_ANSWER, tokenizer, max_tokens=100)


def test_general_text_is_cut_and_evenly_chosen(tokenizer: Tokenizer) -> None:
    chats = [chat(f"number {i}", "word " * 300) for i in range(90)]
    general = prepare_general(chats, tokenizer, max_samples=20)
    whole = [prepare_samples([c], tokenizer, max_tokens=10_000).samples[0] for c in chats[::5]]
    assert len(general) == 18
    for cut, sample in zip(general, whole, strict=True):
        assert cut.token_ids == sample.token_ids[:64]
        assert (cut.slice, cut.sample_id) == (GENERAL, sample.text_digest)


def test_cut_samples_still_teach() -> None:
    samples = make_samples([30] * 20)
    cut = clipped(samples, 12)
    assert 0 < len(cut) < len(samples)
    assert all(len(s.token_ids) == 12 and any(s.is_supervised) for s in cut)
    assert clipped(samples, 30) == samples
