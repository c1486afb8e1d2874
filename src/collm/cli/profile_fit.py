"""A profile out of what a measured replica has learned of its times."""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import torch

from collm.cli.profile_load import LONE_PROMPT_TOKENS
from collm.lora.layout import lora_layout
from collm.model.checkpoint import Checkpoint
from collm.pacing.cost import QuantumCostModel, StepCostModel
from collm.pacing.online import Observed
from collm.pacing.quanta import QuantumKind
from collm.replica.assembly import Replica
from collm.replica.settings import ReplicaSettings
from collm.sim.curve import fit_curve
from collm.sim.device import step_names
from collm.sim.profile import Profile, QuantumTime, TrainingShape
from collm.training.config import JobConfig, TrainingConfig
from collm.types import StepCoefficients, StepLoad

ADAPTER = "profile"
"""What the measured replica learns."""
_NUM_QUANTILES = 33


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the clock said."""

    points: Sequence[tuple[float, float]]
    """(training tokens, loss) while training alone."""
    alone: Mapping[QuantumKind, Observed]
    """Quanta while training alone, once micro-batches had their size."""
    quanta: Mapping[QuantumKind, Observed]
    """Those, and those beside requests."""
    steps: Observed
    """Steps beside training."""
    num_evaluations: int
    num_alone_tokens: float
    """Sample tokens trained on meanwhile."""
    alone_tokens_per_s: float | None
    lone_ttft_s: float
    loop_s: float


def make_profile(
    found: Found,
    replica: Replica,
    checkpoint: Checkpoint,
    settings: ReplicaSettings,
    training: TrainingConfig,
) -> Profile:
    """Return what the replica takes, its steps as they were beside training."""
    step_cost, costs = replica.pacing.step_cost, replica.pacing.quantum_cost
    step = _step_time(step_cost, found.steps)
    numbers = replica.client.snapshot()
    lone = StepLoad(
        num_prefill_tokens=LONE_PROMPT_TOKENS,
        num_context_tokens=LONE_PROMPT_TOKENS,
        num_adapters=int(bool(numbers["adapters"][ADAPTER]["active"])),
    )
    return Profile(
        name=f"{settings.base_model} on {platform.node() or 'this machine'}",
        origin="measured",
        note=(
            f"{platform.processor() or platform.machine()}, torch {torch.__version__} with"
            f" {torch.get_num_threads()} threads, {settings.quantization or settings.dtype};"
            f" trained on {training.jobs[0].data}."
        ),
        step=step,
        step_ratios=_quantiles(step_cost.ratios),
        quanta={kind: _quantum_time(costs, kind, found.quanta[kind]) for kind in QuantumKind},
        loop_s=found.loop_s,
        request_s=max(found.lone_ttft_s - step_cost.predict_s(lone), 0.0),
        num_blocks=int(numbers["num_blocks"]),
        block_size=settings.memory.block_size,
        max_model_len=replica.client.max_model_len,
        training=_shape(found, checkpoint, training.jobs[0]),
        loss=fit_curve(found.points),
    )


def _shape(found: Found, checkpoint: Checkpoint, job: JobConfig) -> TrainingShape:
    num_layers = checkpoint.spec.num_layers
    layout = lora_layout(checkpoint.spec, job.rank)
    num_forward, num_tokens = _sizes(found.alone[QuantumKind.FORWARD])
    num_loss, num_rows = _sizes(found.alone[QuantumKind.LOSS])
    _, num_evaluated = _sizes(found.alone[QuantumKind.EVALUATE_FORWARD])
    num_optimizer, num_parameters = _sizes(found.alone[QuantumKind.OPTIMIZER])
    mean_tokens = num_tokens / num_forward
    mean_rows = num_rows / max(num_forward / (2 * num_layers), 1.0)
    tokens_per_evaluation = num_evaluated / (2 * num_layers) / max(found.num_evaluations, 1)
    return TrainingShape(
        num_layers=num_layers,
        layer_parameters=layout.num_parameters // num_layers,
        micro_batch_tokens=max(1, round(mean_tokens)),
        tokens_per_row=max(1.0, found.num_alone_tokens * 2 * num_layers / max(num_tokens, 1.0)),
        supervised_share=min(mean_rows / max(mean_tokens, 1.0), 1.0),
        max_loss_rows=max(1, round(num_rows / num_loss)),
        max_optimizer_parameters=max(1, round(num_parameters / num_optimizer)),
        tokens_per_step=job.tokens_per_step,
        noise_scale_tokens=float(job.tokens_per_step),
        evaluate_every=job.evaluate_every,
        alone_tokens_per_s=found.alone_tokens_per_s,
        evaluation_tokens=max(1, round(tokens_per_evaluation)),
    )


def _sizes(seen: Observed) -> tuple[int, float]:
    """Return how many quanta were seen, at least one, and their sizes added up."""
    return max(seen.num, 1), seen.features[1]


def _step_time(cost: StepCostModel, seen: Observed) -> StepCoefficients:
    coefficients = _scaled(cost.coefficients, seen)
    return StepCoefficients(**step_names(coefficients))


def _quantum_time(costs: QuantumCostModel, kind: QuantumKind, seen: Observed) -> QuantumTime:
    fixed_s, per_unit_s = _scaled(costs.coefficients(kind), seen)
    # A slope of nothing is allowed for a kind of one size only; the smallest number is no worse.
    return QuantumTime(
        fixed_s=fixed_s, per_unit_s=max(per_unit_s, 1e-12), ratios=_quantiles(costs.ratios(kind))
    )


def _scaled(coefficients: tuple[float, ...], seen: Observed) -> tuple[float, ...]:
    """Return the coefficients, scaled so that all that was seen takes the time that it took.

    The fit says how times depend on sizes, but knows the latest few hundred alone, a few seconds'
    worth of quanta, and is on the fast side of the mean where times vary.
    """
    predicted_s = sum(c * x for c, x in zip(coefficients, seen.features, strict=True))
    scale = seen.seconds / predicted_s if predicted_s > 0.0 and seen.num else 1.0
    return tuple(scale * c for c in coefficients)


def _quantiles(ratios: Sequence[float]) -> tuple[float, ...]:
    """Return the quantile function of ratios, relative to their mean, at even shares.

    It is 1 where nothing was measured.
    """
    if not ratios:
        return (1.0,)
    ordered, last, mean = sorted(ratios), len(ratios) - 1, fmean(ratios)
    return tuple(
        ordered[round(share * last / (_NUM_QUANTILES - 1))] / mean
        for share in range(_NUM_QUANTILES)
    )
