"""Replica snapshots for tests: idle, on two CPU cores, unless told otherwise."""

from dataclasses import replace
from typing import Any

from collm.types import ReplicaSnapshot, StepCoefficients, VersionId

COEFFICIENTS = StepCoefficients(
    constant_s=0.02, decode_s=0.002, prefill_s=0.001, context_s=1e-6, adapter_s=0.002
)
BASE_MODEL = "tiny"
ADAPTER = "clinc"


def make_snapshot(replica_id: str = "r0", **changes: Any) -> ReplicaSnapshot:
    """Return an idle replica's snapshot with some fields changed."""
    snapshot = ReplicaSnapshot(
        replica_id=replica_id,
        url=f"http://127.0.0.1:1/{replica_id}",
        taken_at_s=0.0,
        num_running=0,
        num_waiting=0,
        queued_prefill_tokens=0,
        num_context_tokens=0,
        num_free_blocks=1_000,
        block_size=16,
        credit_share=0.0,
        bytes_per_token=4.0,
        step_coefficients=COEFFICIENTS,
        ttft_s=0.8,
        tpot_s=0.1,
        names=(BASE_MODEL, ADAPTER, f"{ADAPTER}@3"),
        active={ADAPTER: VersionId(f"{ADAPTER}@3")},
        quality={ADAPTER: 1.0},
        quality_noise={ADAPTER: 0.05},
        max_model_len=4_096,
        is_draining=False,
        base_digest="d" * 64,
    )
    return replace(snapshot, **changes)
