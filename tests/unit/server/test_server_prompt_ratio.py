"""Bytes per token, from the prompts seen."""

import pytest

from collm.errors import RequestError
from collm.server.prompt_ratio import PromptRatio, count_template_tokens
from factories.fake_replica import ByteTokenizer


def test_begins_with_english_text_and_follows_the_prompts():
    ratio = PromptRatio()
    assert ratio.bytes_per_token == 4.0
    for _ in range(200):
        ratio.observe(300, 100)
    assert ratio.bytes_per_token == pytest.approx(3.0, rel=0.02)


def test_old_prompts_fade():
    ratio = PromptRatio()
    ratio.observe(10_000_000, 1_000_000)
    for _ in range(1_000):
        ratio.observe(2_000, 1_000)
    assert ratio.bytes_per_token == pytest.approx(2.0, rel=0.01)


def test_short_and_long_prompts_have_the_same_bytes_in_a_token():
    short, long = PromptRatio(30), PromptRatio(30)
    for _ in range(500):
        short.observe(65, 30 + 15)
    for _ in range(50):
        long.observe(1_300, 30 + 300)
    assert short.bytes_per_token == pytest.approx(long.bytes_per_token, rel=0.02)


def test_a_template_is_what_a_chat_without_text_has():
    assert count_template_tokens(ByteTokenizer()) == len("<user>\n<assistant>")


def test_a_model_without_chats_has_no_template():
    class Plain(ByteTokenizer):
        def encode_chat(self, messages, *, add_generation_prompt=True):
            raise RequestError("no template")

    assert count_template_tokens(Plain()) == 0
