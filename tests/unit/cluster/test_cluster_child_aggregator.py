"""The coordinator's way to the aggregating process and back."""

import asyncio
import hashlib
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from collm.cluster.aggregating import ChildAggregator
from collm.errors import RoundError
from collm.federated.aggregate_plan import AggregatePlan, StrategyName, UpdateFile

MODULE = "base_model.model.model.layers.0.self_attn.q_proj"


def update(path: Path, member: str, value: float) -> UpdateFile:
    file = path / f"{member}.safetensors"
    factors = {
        f"{MODULE}.lora_A.weight": np.full((2, 8), value, np.float32),
        f"{MODULE}.lora_B.weight": np.ones((6, 2), np.float32),
    }
    save_file(factors, file)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return UpdateFile(member=member, path=file, digest=digest, num_examples=1)


def plan(path: Path, *updates: UpdateFile) -> AggregatePlan:
    return AggregatePlan(
        strategy=StrategyName.SVD,
        rank=2,
        min_updates=2,
        base_model="tiny",
        base=None,
        updates=updates,
        output=path / "output",
    )


def test_updates_are_combined_and_a_non_finite_one_is_named(tmp_path: Path) -> None:
    updates = [update(tmp_path, name, value) for name, value in (("a", 1.0), ("b", 3.0))]
    updates.append(update(tmp_path, "c", np.nan))
    report = asyncio.run(ChildAggregator().aggregate(plan(tmp_path, *updates)))
    assert report.weights == {"a": 0.5, "b": 0.5}
    assert list(report.refused) == ["c"]
    factors = load_file(tmp_path / "output" / "adapter_model.safetensors")
    product = factors[f"{MODULE}.lora_B.weight"] @ factors[f"{MODULE}.lora_A.weight"]
    np.testing.assert_allclose(product, np.full((6, 8), 4.0), rtol=1e-5)  # mean of 2 and 6


def test_too_few_usable_updates_come_back_as_a_report(tmp_path: Path) -> None:
    updates = [update(tmp_path, "a", 1.0), update(tmp_path, "b", np.nan)]
    report = asyncio.run(ChildAggregator().aggregate(plan(tmp_path, *updates)))
    assert not report.is_aggregated
    assert list(report.refused) == ["b"]


def test_process_that_fails_is_an_error_that_says_why(tmp_path: Path) -> None:
    (tmp_path / "output").mkdir()
    with pytest.raises(RoundError, match="aggregating ended with"):
        asyncio.run(ChildAggregator().aggregate(plan(tmp_path, update(tmp_path, "a", 1.0))))
