"""Killed at any instant, a server has lost nothing that it had acknowledged."""

from pathlib import Path
from random import Random

import pytest

from factories.kill_lives import Lives

NUM_LIVES = 3
MAX_LOSS_S = 10.0
"""Of training, with checkpoints a second apart; the rest is for a busy machine."""


@pytest.mark.parametrize("seed", [1])
def test_killed_again_and_again_it_loses_nothing_acknowledged(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    lives = Lives(tmp_path, seed)
    for life in range(NUM_LIVES):
        lives.live(random.randrange(40, 160))
        if life == 1:
            lives.die_young()
    lives.end_well()
    assert lives.max_loss_s < MAX_LOSS_S
    assert len(lives.ledger.served) > NUM_LIVES, "nothing was learned"
