"""Discounts and pooled qualities on a recorded run of two members that learned together.

Each has five domains of ``clinc150``; their rounds were real training of SmolLM2-135M. The truth is
measured apart: one adapter's learning from all samples in one place, and losses on test questions.
"""

import math
from pathlib import Path
from statistics import fmean

import pytest

from collm.cluster.planning.qualities import Qualities
from collm.metrics.goodput import paper_quality
from collm.types import VersionId
from factories.snapshots import ADAPTER, make_snapshot
from foretelling_together import (
    learned_discounts,
    measured_discounts,
    read_together,
    tokens_in_one_place,
    write_together,
)

RECORDING = Path(__file__).parents[2] / "data" / "together.json.gz"


@pytest.fixture(scope="module")
def found():
    return read_together(RECORDING)


def test_recording_of_rounds_is_read_as_it_was_written(found, tmp_path):
    path = tmp_path / "again.json.gz"
    write_together(found, path, made_by="a test")
    assert read_together(path) == found


def test_tokens_in_one_place_lie_on_the_line_between_two_points():
    central = [(100, 4.0), (200, 2.0), (300, 1.0)]
    assert tokens_in_one_place(central, 3.0) == pytest.approx(150.0)
    assert tokens_in_one_place(central, 5.0) == 100.0
    assert tokens_in_one_place(central, 0.5) == 300.0


def test_discount_is_learned_from_what_members_report(found):
    measured, learned = measured_discounts(found)[-1], learned_discounts(found)
    prior = 1.0 / math.sqrt(2.0)
    assert learned[0] == pytest.approx(prior)
    assert measured < 0.5
    assert abs(learned[-1] - measured) < 0.13
    assert abs(learned[-1] - measured) < 0.5 * abs(prior - measured)


def test_one_version_is_rated_better_by_all_members_than_by_one(found):
    alone, pooled = [], []
    for number, one in enumerate(found.rounds, start=1):
        measured = paper_quality(fmean(one.losses.values()))
        live = {
            name: serving(name, number, paper_quality(loss), found.num_held_out)
            for name, loss in one.own_losses.items()
        }
        alone += [abs(math.log(it.quality[ADAPTER] / measured)) for it in live.values()]
        pooled.append(abs(math.log(Qualities(live).of(next(iter(live)), ADAPTER) / measured)))
    assert fmean(pooled) < 0.07
    assert fmean(pooled) < 0.6 * fmean(alone)


def serving(name, number, quality, num_samples):
    return make_snapshot(
        name,
        active={ADAPTER: VersionId(f"{ADAPTER}@{number}")},
        quality={ADAPTER: quality},
        quality_noise={ADAPTER: quality / math.sqrt(num_samples)},  # as replicas state it
    )
