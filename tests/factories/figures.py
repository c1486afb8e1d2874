"""What a replica shows on ``/control/snapshot``, as far as the dashboard reads it."""

from typing import Any

from collm.metrics.service_times import bucket


def figures(at_s: float, **changes: Any) -> dict[str, Any]:
    """A replica that has lived for ``at_s`` seconds, half of them serving and a quarter training.

    Each second it met the objectives of two requests of ``clinc`` with a TTFT of 0.2 s and a TPOT
    of 0.05 s, missed those of one with 2 s and 0.2 s, and trained on 100 tokens.
    """
    count = int(at_s)
    return {
        "at_s": at_s,
        "running": 3,
        "waiting": 1,
        "used_blocks": 25,
        "num_blocks": 100,
        "loop_seconds": {
            "serve": at_s / 2,
            "train": at_s / 4,
            "evaluate": at_s / 8,
            "idle": at_s / 8,
        },
        "serving": {
            "objectives": {"ttft_s": 0.8, "tpot_s": 0.1},
            "adapters": {
                "clinc": {"ended": 3 * count, "met": 2 * count, "output_tokens": 30 * count}
            },
            "phase_seconds": {"prefill": at_s / 8, "decode": at_s * 3 / 8},
            "ttft": [[bucket(0.2), 2 * count], [bucket(2.0), count]],
            "tpot": [[bucket(0.05), 2 * count], [bucket(0.2), count]],
        },
        "adapters": {
            "clinc": {
                "active": "clinc@3",
                "status": "running",
                "step": count,
                "training_tokens": 100 * count,
                "training_loss": 1.5,
                "held_out_loss": 0.4,
                "active_held_out_loss": 0.5,
                "held_out_exact_match": 0.75,
                "active_exact_match": 0.625,
                "error": None,
            }
        },
        **changes,
    }
