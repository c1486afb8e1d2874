from dataclasses import replace
from pathlib import Path

import pytest

from collm.metrics.records import RequestRecord
from slo_plan import Turn
from slo_report import LATENCY, OFF, Block, Coverage, Work
from slo_store import BlockFolder

SETTINGS = {"model": "tiny", "seed": 0, "max_s": 150.0, "quick": False}
BLOCK = Block(
    arm=LATENCY,
    load=0.5,
    number=1,
    records=(
        RequestRecord(
            request_id="",
            model="learner",
            arrived_at_s=0.5,
            first_token_at_s=0.75,
            last_token_at_s=1.5,
            num_prompt_tokens=17,
            num_output_tokens=3,
            max_gap_s=0.4,
            finish_reason="length",
            outcome="completed",
        ),
        RequestRecord(
            request_id="", model="learner", arrived_at_s=0.6, outcome="failed", error="full"
        ),
    ),
    gaps_s=(0.35, 0.4),
    work=Work(
        wall_s=3.0,
        serve_s=1.0,
        train_s=1.5,
        evaluate_s=0.25,
        num_training_tokens=900,
        steps=Coverage(40, 38),
        quanta={"forward": Coverage(9, 9)},
    ),
)


def test_a_kept_block_is_read_back_as_it_was(tmp_path: Path) -> None:
    BlockFolder(tmp_path, SETTINGS).put(BLOCK)
    assert list(BlockFolder(tmp_path, SETTINGS).blocks()) == [BLOCK]


def test_only_finished_turns_are_known(tmp_path: Path) -> None:
    folder = BlockFolder(tmp_path, SETTINGS)
    folder.put(BLOCK)
    assert folder.has(Turn(arm=LATENCY, load=0.5, block=1))
    assert not folder.has(Turn(arm=LATENCY, load=0.5, block=0))
    assert not folder.has(Turn(arm=OFF, load=0.5, block=1))


def test_blocks_come_by_load_arm_and_number(tmp_path: Path) -> None:
    folder = BlockFolder(tmp_path, SETTINGS)
    for load, arm, number in ((0.9, OFF, 0), (0.1, OFF, 1), (0.1, LATENCY, 10), (0.1, LATENCY, 9)):
        folder.put(replace(BLOCK, load=load, arm=arm, number=number))
    found = [(block.load, block.arm, block.number) for block in folder.blocks()]
    assert found == [(0.1, LATENCY, 9), (0.1, LATENCY, 10), (0.1, OFF, 1), (0.9, OFF, 0)]


def test_what_all_blocks_share_is_kept(tmp_path: Path) -> None:
    folder = BlockFolder(tmp_path, SETTINGS)
    assert folder.capacity_per_s is None
    assert folder.first_version is None
    folder.put_capacity(1.75)
    folder.put_first_version("")
    again = BlockFolder(tmp_path, SETTINGS)
    assert again.capacity_per_s == 1.75
    assert again.first_version == ""


def test_a_folder_of_other_settings_is_refused(tmp_path: Path) -> None:
    BlockFolder(tmp_path, SETTINGS)
    with pytest.raises(SystemExit, match="other settings"):
        BlockFolder(tmp_path, {**SETTINGS, "seed": 1})
