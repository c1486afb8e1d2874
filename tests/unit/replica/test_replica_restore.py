"""What a process takes up again of what the data folder says."""

from collm.gate.trial import Verdict
from collm.replica.restore import restore_watches
from collm.store.data_folder import DataFolder
from collm.types import VersionId

BETTER = {"verdict": Verdict.BETTER.value}


class NotedWatches:
    """Notes by what decision an adapter is served as it is."""

    def __init__(self):
        self.resumed = []

    def resume(self, decision):
        self.resumed.append((decision.version, decision.numbers))


def promote(data, adapter, *labels, numbers):
    for label in labels:
        data.versions.publish(
            adapter, label, digest=label, base_digest="b", rank=4, metadata={}, write=lambda _: None
        )
        data.decisions.promote(VersionId(f"{adapter}@{label}"), "why", numbers)


def test_what_was_found_better_is_watched_again_whatever_became_of_its_job(tmp_path):
    watches = NotedWatches()
    with DataFolder(tmp_path, max_versions=5, now_s=lambda: 0.0) as data:
        promote(data, "learned", "1", "2", numbers=BETTER)
        data.decisions.refuse("learned", None, "worse", {"verdict": "worse"})
        promote(data, "imported", "1", numbers={})
        promote(data, "taken-back", "1", "2", numbers=BETTER)
        data.decisions.rollback(VersionId("taken-back@1"), "worse", {"evidence": 120.0})
        restore_watches(watches, data)
    assert watches.resumed == [
        ("imported@1", {}),
        ("learned@2", BETTER),
        ("taken-back@1", {"evidence": 120.0}),
    ]
