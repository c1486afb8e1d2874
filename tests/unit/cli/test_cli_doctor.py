"""What the doctor makes of machines that lack something."""

import json
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from filelock import FileLock
from typer.testing import CliRunner

from collm.cli import doctor_places, doctor_software
from collm.cli.doctor_memory import available_bytes, check_memory, judge_memory, replica_bytes
from collm.cli.doctor_places import (
    check_data_folder,
    check_disk,
    check_model,
    check_port,
    data_folders,
    existing_part,
)
from collm.cli.doctor_report import Status
from collm.cli.doctor_software import check_extra, check_kernels, check_python
from collm.cli.main import app
from collm.cluster.config import ClusterConfig, ReplicaEntry
from collm.config import CollmConfig
from collm.engine.config import MemoryConfig
from collm.lora.bank import AdapterBank
from collm.lora.config import LoraConfig
from collm.lora.layout import lora_layout
from collm.model.checkpoint import Checkpoint
from collm.model.config import ModelConfig
from collm.replica.config import ReplicaConfig
from collm.server.config import ServerConfig
from factories.checkpoints import tiny_checkpoint

runner = CliRunner()


@pytest.fixture
def settings(tmp_path, monkeypatch) -> list[str]:
    """Options with which this machine is fit."""
    monkeypatch.setenv("COLLM_HOME", str(tmp_path / "cache"))
    model = tiny_checkpoint(tmp_path / "model", "llama")
    values = {
        "model.source": model,
        "server.port": 0,
        "replica.data_dir": tmp_path / "data",
        "memory.kv_cache_mib": 1,
    }
    return [text for key, value in values.items() for text in ("--set", f"{key}={value}")]


def examine(settings, *more):
    result = runner.invoke(app, ["doctor", "--json", *settings, *more])
    found = json.loads(result.stdout)
    return result.exit_code, {one["check"]: one for one in found["findings"]}, found["is_fit"]


def test_a_fit_machine_is_said_to_be_one(settings, tmp_path):
    code, findings, is_fit = examine(settings)
    assert (code, is_fit) == (0, True), findings
    assert {"Python", "torch", "CPU path", "memory", "port", "model"} <= set(findings)
    assert not (tmp_path / "data").exists()


def test_a_taken_port_has_to_be_fixed(settings):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, findings, is_fit = examine(settings, "--set", f"server.port={taken.getsockname()[1]}")
    assert (code, is_fit) == (1, False)
    assert findings["port"]["status"] == "fix"
    assert "server.port" in findings["port"]["advice"]


def test_the_table_says_what_to_do(settings, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    result = runner.invoke(app, ["doctor", *settings, "--set", "model.source=no/such/model"])
    assert result.exit_code == 1
    assert "set model.source to a checkpoint folder" in result.stdout


def test_a_wrong_setting_is_no_finding(settings):
    assert runner.invoke(app, ["doctor", "--set", "server.prot=1"]).exit_code == 2


def test_old_python_has_to_be_fixed():
    assert check_python((3, 10)).status is Status.FIX
    assert check_python((3, 11)).status is Status.OK


@pytest.mark.parametrize(
    ("path", "obstacle", "dtype", "status", "words"),
    [
        ("avx512", None, "bfloat16", Status.OK, "compiled kernels for AVX512, bfloat16"),
        ("avx512", None, "float32", Status.NOTE, "model.dtype is float32"),
        ("avx2", "no x", "bfloat16", Status.NOTE, "kernels for AVX2, bfloat16, because no x"),
        ("torch", "this CPU lacks x", "bfloat16", Status.NOTE, "torch, because this CPU lacks x"),
    ],
)
def test_the_cpu_path_is_told_with_its_reason(path, obstacle, dtype, status, words):
    finding = check_kernels(path, obstacle, dtype)
    assert finding.status is status
    assert words in finding.found


def test_chosen_kernels_are_told_as_chosen(settings):
    _, findings, _ = examine(settings, "--set", "replica.kernels=torch")
    assert findings["CPU path"]["found"] == "torch, because replica.kernels says so"


def test_a_missing_extra_has_to_be_fixed(settings, monkeypatch):
    monkeypatch.setattr(doctor_software, "find_spec", lambda name: None)
    finding = check_extra("traces", "opentelemetry", "otel")
    assert (finding.status, finding.advice) == (Status.FIX, "pip install 'collm[otel]'")
    endpoint = "traces.endpoint=http://127.0.0.1:4318/v1/traces"
    code, findings, _ = examine(settings, "--set", endpoint)
    assert (code, findings["traces"]["status"]) == (1, "fix")


def test_ray_is_looked_for_when_asked_and_nothing_depends_on_it(settings, monkeypatch):
    for found, words in ((None, "not installed"), (object(), "installed")):
        monkeypatch.setattr(doctor_software, "find_spec", lambda name, found=found: found)
        code, findings, is_fit = examine(settings, "--ray")
        assert (code, is_fit, findings["Ray"]["found"]) == (0, True, words)
        assert "does not use Ray" in findings["Ray"]["advice"]
    assert "Ray" not in examine(settings)[1]


def test_memory_is_judged_for_all_replicas_together():
    parts = {"weights": 300, "keys and values": 700}
    assert judge_memory(parts, 2, 2_000).status is Status.OK
    finding = judge_memory(parts, 3, 2_000)
    assert finding.status is Status.FIX
    assert "3 replicas" in finding.found
    assert judge_memory(parts, 3, None).status is Status.OK


def test_memory_counts_what_a_replica_will_hold(tmp_path):
    checkpoint = Checkpoint(tiny_checkpoint(tmp_path, "llama"))
    config = CollmConfig(
        memory=MemoryConfig(kv_cache_mib=3), lora=LoraConfig(max_rank=4, num_slots=5)
    )
    parts = replica_bytes(config, checkpoint)
    layout = lora_layout(checkpoint.spec, 4)
    bank = AdapterBank(layout, 5, torch.bfloat16, torch.device("cpu"))
    assert parts["adapter slots"] == bank.num_bytes
    assert parts["keys and values"] == 3 * 2**20


def test_a_context_that_does_not_fit_the_memory_has_to_be_fixed(tmp_path):
    folder = tiny_checkpoint(tmp_path, "llama")
    config = CollmConfig(
        model=ModelConfig(source=str(folder)), memory=MemoryConfig(max_model_len=10**9)
    )
    finding = check_memory(config, tmp_path, 2**40)
    assert finding.status is Status.FIX
    assert "memory." in finding.found


def test_a_containers_limit_counts(tmp_path):
    meminfo, limit = tmp_path / "meminfo", tmp_path / "memory.max"
    meminfo.write_text("MemTotal: 9000 kB\nMemAvailable: 8000 kB\n")
    assert available_bytes(meminfo, limit) == 8_000 * 1024
    limit.write_text("max\n")
    assert available_bytes(meminfo, limit) == 8_000 * 1024
    limit.write_text("1000000\n")
    assert available_bytes(meminfo, limit) == 1_000_000
    assert available_bytes(tmp_path / "none", limit) is None


def test_a_held_data_folder_has_to_be_fixed(tmp_path):
    assert check_data_folder(tmp_path).status is Status.OK
    with FileLock(tmp_path / "collm.lock"):
        finding = check_data_folder(tmp_path)
    assert finding.status is Status.FIX
    assert "in use" in finding.found
    assert check_data_folder(tmp_path).status is Status.OK


def test_a_data_folder_below_a_file_has_to_be_fixed(tmp_path):
    (tmp_path / "file").touch()
    assert check_data_folder(tmp_path / "file" / "data").status is Status.FIX


def test_each_process_of_a_cluster_has_its_folder(tmp_path):
    entries = (ReplicaEntry(name="a"), ReplicaEntry(name="b", data_dir=str(tmp_path / "x")))
    config = CollmConfig(
        cluster=ClusterConfig(replicas=entries),
        replica=ReplicaConfig(data_dir=str(tmp_path)),
    )
    assert data_folders(config) == [tmp_path / "front", tmp_path / "a", tmp_path / "x"]


@pytest.mark.parametrize(
    ("free", "status"), [(2**20, Status.FIX), (2**30, Status.NOTE), (2**34, Status.OK)]
)
def test_disk_space_is_judged(monkeypatch, tmp_path, free, status):
    usage = SimpleNamespace(free=free)
    monkeypatch.setattr(doctor_places.shutil, "disk_usage", lambda _: usage)
    assert check_disk(tmp_path).status is status


@pytest.mark.parametrize(
    ("source", "status"),
    [
        ("smollm2-135m-instruct", Status.NOTE),
        ("some/model", Status.NOTE),
        ("./no/such/folder", Status.FIX),
        ("nothing", Status.FIX),
    ],
)
def test_a_model_that_is_not_here_is_fetched_or_missed(tmp_path, source, status):
    assert check_model(source, tmp_path).status is status
    assert list(tmp_path.iterdir()) == []


def test_port_0_is_always_free():
    assert check_port(CollmConfig(server=ServerConfig(port=0))).status is Status.OK


def test_the_existing_part_of_a_path_is_found(tmp_path):
    assert existing_part(tmp_path / "a" / "b") == tmp_path
    assert existing_part(Path("/")) == Path("/")
