"""What whoever started a job should know about its data, in words."""

from collections.abc import Iterator

from collm.gate.evidence import fewest_differences
from collm.training.samples import PreparedSamples


def left_out(prepared: PreparedSamples, purpose: str) -> Iterator[str]:
    """Say how many samples cannot be used, and why the first of them cannot, if any."""
    if prepared.num_unusable:
        num_samples = len(prepared.samples) + prepared.num_unusable
        yield (
            f"left out: {prepared.num_unusable} of {num_samples} {purpose} samples, "
            f"{prepared.num_too_long} of them too long; the first: {prepared.reason}"
        )


def too_few_held_out(num_held_out: int, error: float) -> Iterator[str]:
    """Say so when the held-out samples could prove nothing at this error."""
    num_needed = fewest_differences(error)
    if num_held_out < num_needed:
        yield (
            f"too few samples are held out to judge by, {num_held_out}: fewer than {num_needed} "
            "can prove nothing, so no version is published until feedback adds to them; give more "
            "samples, or a validation file"
        )
