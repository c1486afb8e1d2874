"""Bytes per token, from the prompts seen."""

import pytest

from collm.server.prompt_ratio import PromptRatio


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
