"""Everything that a server acts on, as fakes."""

from collm.server.adapter_backend import AdapterDesk, FeedbackDesk
from collm.server.backend import Backends, Replica
from collm.server.control_backend import RoundDesk
from collm.server.learning_backend import FineTuning, Uploads
from factories.fake_desks import FakeAdapterDesk, FakeFeedbackDesk
from factories.fake_learning import FakeFineTuning, FakeUploads
from factories.fake_replica import FakeReplica
from factories.fake_rounds import FakeRoundDesk


def fake_backends(
    replica: Replica | None = None,
    *,
    uploads: Uploads | None = None,
    fine_tuning: FineTuning | None = None,
    feedback: FeedbackDesk | None = None,
    adapters: AdapterDesk | None = None,
    rounds: RoundDesk | None = None,
) -> Backends:
    """Return backends of which those that are not given are fakes."""
    return Backends(
        replica=replica or FakeReplica(),
        uploads=uploads or FakeUploads(),
        fine_tuning=fine_tuning or FakeFineTuning(FakeUploads()),
        feedback=feedback or FakeFeedbackDesk(),
        adapters=adapters or FakeAdapterDesk(),
        rounds=rounds or FakeRoundDesk(),
    )
