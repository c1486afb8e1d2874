"""How the replica stands, in the words of a router."""

from collections.abc import Callable, Mapping

from collm.metrics.totals import Totals
from collm.pacing.config import PacingConfig
from collm.replica.allotments import Allotments
from collm.replica.engine_parts import EngineParts
from collm.replica.job_progress import Quality
from collm.types import LearningState, ReplicaSnapshot, StepCoefficients, WatchState

LONE_REPLICA = "replica"
"""Name of a replica that has no others beside it."""
_BYTES_PER_TOKEN = 4.0
"""Of English text; the server, which sees texts, knows better."""
_MAX_SECONDS = 1e4


class Outlook:
    """Makes snapshots; loop thread only.

    Args:
        name: The replica's.
        engine: What serves.
        pacing: The objectives.
        base_digest: The base model's.
        qualities: Returns the quality of what is served, by adapter.
        learning: Returns how each adapter learns.
        watched: Returns what is found of versions that rounds promoted, by adapter.
        totals: What was done so far.
        allotments: What a coordinator has allotted.
    """

    def __init__(
        self,
        name: str,
        engine: EngineParts,
        pacing: PacingConfig,
        base_digest: str,
        qualities: Callable[[], Mapping[str, Quality]],
        learning: Callable[[], Mapping[str, LearningState]],
        watched: Callable[[], Mapping[str, WatchState]],
        totals: Totals,
        allotments: Allotments,
    ) -> None:
        self._name = name
        self._engine = engine
        self._objectives = pacing
        self._base_digest = base_digest
        self._qualities = qualities
        self._learning = learning
        self._watched = watched
        self._totals = totals
        self._allotments = allotments

    def look(self) -> ReplicaSnapshot:
        """Return how things are now; the front adds what only it can know."""
        engine = self._engine
        backlog = engine.scheduler.backlog()
        active = {info.adapter: info.version for info in engine.adapters.infos() if info.is_active}
        qualities = self._qualities()
        return ReplicaSnapshot(
            replica_id=self._name,
            url="",
            taken_at_s=0.0,
            num_running=engine.scheduler.num_running,
            num_waiting=engine.scheduler.num_waiting,
            queued_prefill_tokens=backlog.num_prefill_tokens,
            num_context_tokens=backlog.num_context_tokens,
            num_free_blocks=engine.blocks.num_free,
            block_size=engine.memory.block_size,
            credit_share=engine.pacing.credit.share,
            bytes_per_token=_BYTES_PER_TOKEN,
            step_coefficients=StepCoefficients(
                **dict(zip(_COEFFICIENTS, engine.pacing.step_cost.coefficients, strict=True))
            ),
            ttft_s=min(self._objectives.ttft_s, _MAX_SECONDS),
            tpot_s=min(self._objectives.tpot_s, _MAX_SECONDS),
            names=engine.adapters.names(),
            active=active,
            quality={adapter: quality.value for adapter, quality in qualities.items()},
            quality_noise={adapter: quality.noise for adapter, quality in qualities.items()},
            max_model_len=engine.memory.max_model_len,
            # One that drains takes no connections, so that nobody would read it here.
            is_draining=False,
            base_digest=self._base_digest,
            learning=self._learning(),
            totals=self._totals.totals(),
            allocation=self._allotments.number,
            credit_scale=self._allotments.credit_scale,
            watched=self._watched(),
        )


_COEFFICIENTS = ("constant_s", "decode_s", "prefill_s", "context_s", "adapter_s")
