import pytest

from collm.cluster.planning.qualities import Qualities
from collm.types import VersionId
from factories.snapshots import ADAPTER, BASE_MODEL, make_snapshot


def of(*snapshots):
    return Qualities({one.replica_id: one for one in snapshots})


def serving(replica_id, label, value=None, noise=0.1):
    return make_snapshot(
        replica_id,
        active={ADAPTER: VersionId(f"{ADAPTER}@{label}")},
        quality={} if value is None else {ADAPTER: value},
        quality_noise={} if value is None else {ADAPTER: noise},
    )


def test_one_version_is_as_good_everywhere_as_its_mean_loss_over_all_samples_says():
    # 100 samples of loss 1, and 300 of loss 0.5.
    noise = 2.0 / 300**0.5
    found = of(serving("r0", 3, 1.0, noise=0.1), serving("r1", 3, 2.0, noise), serving("r2", 3))
    assert [found.of(name, ADAPTER) for name in ("r0", "r1", "r2")] == pytest.approx([1.6] * 3)


def test_versions_are_told_apart():
    found = of(serving("r0", "3.r0.1", 1.0), serving("r1", "3.r1.1", 2.0))
    assert (found.of("r0", ADAPTER), found.of("r1", ADAPTER)) == (1.0, 2.0)


def test_what_nobody_measured_is_as_good_as_the_rest():
    found = of(serving("r0", 3, 1.0), serving("r1", 4, 2.0), serving("r2", 5))
    assert found.of("r2", ADAPTER) == 1.5
    assert found.of("r0", BASE_MODEL) == 1.5
    assert of(serving("r0", 3)).of("r0", ADAPTER) == 1.0


def test_a_quality_of_nothing_is_no_error():
    assert 0.0 < of(serving("r0", 3, 0.0, noise=0.0)).of("r0", ADAPTER) < 0.01
