from pathlib import Path

import pytest
import torch

from collm.errors import ConfigError
from collm.replica.assembly import claim_data
from collm.replica.config import ReplicaConfig
from collm.replica.device import find_device
from factories.replicas import settings


def test_the_cpu_is_always_there() -> None:
    assert find_device("cpu") == torch.device("cpu")


def test_a_gpu_that_torch_does_not_see_is_an_error_that_says_how_many_it_sees(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    assert find_device("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(ConfigError, match=r"'cuda:2', but torch sees 2 CUDA devices here$"):
        find_device("cuda:2")


def test_a_build_of_torch_without_cuda_is_named_as_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(ConfigError, match="sees 0 CUDA devices here; this build of torch has no"):
        find_device("cuda:0")


def test_a_replica_without_its_device_does_not_touch_its_data_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    folder = tmp_path / "data"
    with pytest.raises(ConfigError, match=r"replica.device is 'cuda:3'"):
        claim_data(settings(folder, replica=ReplicaConfig(data_dir=str(folder), device="cuda:3")))
    assert not folder.exists()
