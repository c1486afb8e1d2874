"""A replica's snapshot as JSON: what it answers on ``/control/state``, read with suspicion."""

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, TypeVar

from collm.errors import DataError
from collm.types import (
    AdapterTotals,
    Evaluation,
    GradientSums,
    LearningState,
    ReplicaSnapshot,
    ReplicaTotals,
    StepCoefficients,
    VersionId,
    WatchState,
)

_FRONTS_OWN = ("url", "taken_at_s")
"""Fields that only the front can know."""
_COEFFICIENTS = tuple(one.name for one in fields(StepCoefficients))
_EVALUATION = tuple(one.name for one in fields(Evaluation))
_WATCH = tuple(one.name for one in fields(WatchState))
_LEARNING = tuple(one.name for one in fields(LearningState))
_FIELDS = tuple(one.name for one in fields(ReplicaSnapshot) if one.name not in _FRONTS_OWN)
# Far beyond anything real, and such that no prediction overflows.
_MAX_NUMBER = 1e4
_MAX_COUNT = 2**40
_MAX_SUM = 1e30

_T = TypeVar("_T")


def to_json(snapshot: ReplicaSnapshot) -> dict[str, object]:
    """Return a snapshot as plain JSON values, without what only the front knows."""
    coefficients = snapshot.step_coefficients
    value: dict[str, object] = {name: getattr(snapshot, name) for name in _FIELDS}
    value["step_coefficients"] = {name: getattr(coefficients, name) for name in _COEFFICIENTS}
    value["names"] = list(snapshot.names)
    for name in ("active", "quality", "quality_noise"):
        value[name] = dict(getattr(snapshot, name))
    value["learning"] = {name: asdict(one) for name, one in snapshot.learning.items()}
    value["totals"] = asdict(snapshot.totals)
    value["watched"] = {name: asdict(one) for name, one in snapshot.watched.items()}
    return value


def from_json(value: object, *, url: str, taken_at_s: float) -> ReplicaSnapshot:
    """Read a snapshot that a replica sent.

    Args:
        value: The parsed JSON.
        url: Where the replica listens.
        taken_at_s: When the front asked.

    Raises:
        DataError: A field is missing, unknown, of the wrong type or out of range; names it. A
            router must never compute with such values.
    """
    row = _object("snapshot", value, _FIELDS)
    coefficients = _object("step_coefficients", row["step_coefficients"], _COEFFICIENTS)
    return ReplicaSnapshot(
        replica_id=_text("replica_id", row["replica_id"]),
        url=url,
        taken_at_s=taken_at_s,
        num_running=_count("num_running", row["num_running"]),
        num_waiting=_count("num_waiting", row["num_waiting"]),
        queued_prefill_tokens=_count("queued_prefill_tokens", row["queued_prefill_tokens"]),
        num_context_tokens=_count("num_context_tokens", row["num_context_tokens"]),
        num_free_blocks=_count("num_free_blocks", row["num_free_blocks"]),
        block_size=_count("block_size", row["block_size"], least=1),
        credit_share=_number("credit_share", row["credit_share"], most=1.0),
        bytes_per_token=_number("bytes_per_token", row["bytes_per_token"], least=0.01),
        step_coefficients=StepCoefficients(
            **{name: _number(name, coefficients[name]) for name in _COEFFICIENTS}
        ),
        ttft_s=_number("ttft_s", row["ttft_s"], least=1e-6),
        tpot_s=_number("tpot_s", row["tpot_s"], least=1e-6),
        names=_names(row["names"]),
        active={
            name: VersionId(_text(f"active.{name}", version))
            for name, version in _mapping("active", row["active"]).items()
        },
        quality=_numbers("quality", row["quality"]),
        quality_noise=_numbers("quality_noise", row["quality_noise"]),
        max_model_len=_count("max_model_len", row["max_model_len"], least=1),
        is_draining=_typed("is_draining", row["is_draining"], bool),
        base_digest=_typed("base_digest", row["base_digest"], str),
        learning={
            name: _learning(f"learning.{name}", one)
            for name, one in _mapping("learning", row["learning"]).items()
        },
        totals=_totals(row["totals"]),
        allocation=_count("allocation", row["allocation"]),
        credit_scale=_number("credit_scale", row["credit_scale"], most=1.0),
        num_template_tokens=_count("num_template_tokens", row["num_template_tokens"]),
        age_s=_number("age_s", row["age_s"], most=_MAX_SUM),
        watched={
            name: _watch(f"watched.{name}", one)
            for name, one in _mapping("watched", row["watched"]).items()
        },
    )


def _learning(name: str, value: object) -> LearningState:
    row = _object(name, value, _LEARNING)
    found = row["evaluation"]
    return LearningState(
        tokens_per_step=_count(f"{name}.tokens_per_step", row["tokens_per_step"], least=1),
        micro_batch_tokens=_count(f"{name}.micro_batch_tokens", row["micro_batch_tokens"], least=1),
        is_joint=_typed(f"{name}.is_joint", row["is_joint"], bool),
        evaluation=None if found is None else _evaluation(f"{name}.evaluation", found),
    )


def _evaluation(name: str, value: object) -> Evaluation:
    row = _object(name, value, _EVALUATION)
    return Evaluation(
        num_tokens=_count(f"{name}.num_tokens", row["num_tokens"]),
        loss=_number(f"{name}.loss", row["loss"]),
        num_samples=_count(f"{name}.num_samples", row["num_samples"], least=1),
    )


def _watch(name: str, value: object) -> WatchState:
    row = _object(name, value, _WATCH)
    losses = {
        key: None if row[key] is None else _number(f"{name}.{key}", row[key], most=_MAX_SUM)
        for key in ("active_loss", "previous_loss")
    }
    return WatchState(
        active=VersionId(_text(f"{name}.active", row["active"])),
        previous=VersionId(_text(f"{name}.previous", row["previous"])),
        capital=_number(f"{name}.capital", row["capital"], most=_MAX_SUM),
        num_samples=_count(f"{name}.num_samples", row["num_samples"]),
        is_finite=_typed(f"{name}.is_finite", row["is_finite"], bool),
        **losses,
    )


def _totals(value: object) -> ReplicaTotals:
    names = tuple(one.name for one in fields(ReplicaTotals))
    row = _object("totals", value, names)
    adapters = _mapping("totals.adapters", row["adapters"])
    sums: dict[str, Any] = {
        name: _sum(f"totals.{name}", row[name]) for name in names if name != "adapters"
    }
    return ReplicaTotals(
        **sums,
        adapters={
            name: _adapter_totals(f"totals.adapters.{name}", adapters[name]) for name in adapters
        },
    )


def _adapter_totals(name: str, value: object) -> AdapterTotals:
    names = tuple(one.name for one in fields(AdapterTotals))
    row = _object(name, value, names)
    gradients = tuple(one.name for one in fields(GradientSums))
    gradient = _object(f"{name}.gradient", row["gradient"], gradients)
    sums: dict[str, Any] = {
        key: _sum(f"{name}.{key}", row[key]) for key in names if key != "gradient"
    }
    gradient_sums: dict[str, Any] = {
        key: _sum(f"{name}.gradient.{key}", gradient[key]) for key in gradients
    }
    return AdapterTotals(
        **sums,
        gradient=GradientSums(**gradient_sums),
    )


def _object(name: str, value: object, expected: tuple[str, ...]) -> Mapping[str, object]:
    row = _mapping(name, value)
    for missing in expected:
        if missing not in row:
            raise DataError(f"{name}.{missing} is missing")
    for unknown in row:
        if unknown not in expected:
            raise DataError(f"{name}.{unknown} is unknown; allowed: {', '.join(expected)}")
    return row


def _mapping(name: str, value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise DataError(f"{name} is {value!r}, must be an object")
    return value


def _typed(name: str, value: object, kind: type[_T]) -> _T:
    if not isinstance(value, kind):
        raise DataError(f"{name} is {value!r}, must be of type {kind.__name__}")
    return value


def _text(name: str, value: object) -> str:
    text = _typed(name, value, str)
    if not text:
        raise DataError(f"{name} is empty")
    return text


def _count(name: str, value: object, least: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _MAX_COUNT:
        raise DataError(f"{name} is {value!r}, must be an integer from {least} to {_MAX_COUNT}")
    return value


def _number(name: str, value: object, *, least: float = 0.0, most: float = _MAX_NUMBER) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise DataError(f"{name} is {value!r}, must be a number from {least} to {most}")
    return float(value)


def _numbers(name: str, value: object) -> dict[str, float]:
    rows = _mapping(name, value)
    return {key: _number(f"{name}.{key}", number) for key, number in rows.items()}


def _sum(name: str, value: object) -> int | float:
    """Read a total: a count where its name says so, else a finite number of 0 or more."""
    if name.rpartition(".")[2].startswith("num_"):
        return _count(name, value)
    return _number(name, value, most=_MAX_SUM)


def _names(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise DataError(f"names is {value!r}, must be a list")
    return tuple(_text("names", name) for name in value)
