"""``collm serve`` killed in the midst of everything, and started again on the same folder."""

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import closing
from dataclasses import asdict

import httpx
import pytest

from collm.cli.replica_process import backends_of
from collm.engine.config import MemoryConfig
from collm.lora.config import LoraConfig
from collm.store.data_folder import DataFolder
from factories.checkpoints import tiny_checkpoint
from factories.replicas import CHATS, learning, open_tiny_replica
from factories.server_thread import running_server
from factories.training import gate_config
from factories.waiting import wait_until

CHAT = {
    "model": "tutor",
    "messages": [{"role": "user", "content": "Number 7?"}],
    "temperature": 0,
    "max_tokens": 12,
    "ignore_eos": True,
}
LORA = LoraConfig(max_rank=4, num_slots=6)
ROOMS = {"lora": LORA, "memory": MemoryConfig(kv_cache_mib=1, block_size=4, max_model_len=256)}


def ask(url, **fields):
    response = httpx.post(url + "/v1/chat/completions", json=CHAT | fields, timeout=120)
    response.raise_for_status()
    body = response.json()
    return body["system_fingerprint"], body["choices"][0]["message"]["content"]


def number_of(version):
    return int(version.partition("@")[2] or 0)


def check_training_goes_on(checkpoint, data_dir):
    """A job that began anew would soon be as far again; it says itself where it begins."""
    with DataFolder(data_dir, max_versions=1000, now_s=lambda: 0.0) as data:
        (job,) = data.jobs.unfinished()
        saved = data.checkpoints.load("tutor").meta
    with closing(open_tiny_replica(checkpoint, data_dir, learning(), **ROOMS)) as replica:
        assert replica.client.snapshot()["adapters"]["tutor"]["step"] >= int(saved["num_steps"])
        wait_until(
            lambda: replica.client.snapshot()["adapters"]["tutor"]["step"] > int(saved["num_steps"])
        )
    with DataFolder(data_dir, max_versions=1000, now_s=lambda: 0.0) as data:
        events = data.job_logs.events(job.job_id, limit=1_000).items
        later = data.checkpoints.load("tutor").meta
    begins = ("training begins", "training goes on")
    latest, *_ = (event.message for event in events if event.message.startswith(begins))
    assert latest == f"training goes on at step {saved['num_steps']}"
    assert int(later["num_steps"]) > int(saved["num_steps"])


@pytest.fixture
def folders(tmp_path):
    """The checkpoint's folder and the data folder."""
    return tiny_checkpoint(tmp_path / "model", "llama"), tmp_path / "data"


@pytest.fixture
def process(folders, tmp_path):
    checkpoint, data_dir = folders
    samples = tmp_path / "chats.jsonl"
    samples.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in CHATS))
    job = learning()
    config = {
        "model": {"source": str(checkpoint), "name": "tiny", "dtype": "float32"},
        "replica": {
            "data_dir": str(data_dir),
            "threads": 1,
            "min_promotion_interval_s": 0,
            "max_versions": 1000,
        },
        "memory": {"kv_cache_mib": 1, "block_size": 4, "max_model_len": 256},
        "lora": {"max_rank": LORA.max_rank, "num_slots": LORA.num_slots},
        "server": {"port": 0},
        "training": {
            "checkpoint_interval_s": 1,
            "general_data": None,
            "gate": asdict(gate_config()),
            "jobs": [
                {
                    "adapter": job.adapter,
                    "data": str(samples),
                    "rank": job.rank,
                    "warmup_steps": job.warmup_steps,
                    "tokens_per_step": job.tokens_per_step,
                    "micro_batch_tokens": job.micro_batch_tokens,
                    "evaluate_every": job.evaluate_every,
                    "held_out_share": job.held_out_share,
                    "learning_rate": job.learning_rate,
                }
            ],
        },
    }
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps(config))
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "collm", "serve", "--config", str(path)],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    yield process
    process.kill()
    process.wait(60)
    process.stdout.close()


def test_killed_replica_comes_back_with_its_versions_and_its_training(folders, process):
    checkpoint, data_dir = folders
    line = process.stdout.readline()
    assert line.startswith("collm is ready at "), line
    url = line.split()[-1]
    answers = {}

    def has_answered_two_versions_and_saved():
        version, text = ask(url)
        assert answers.setdefault(version, text) == text
        is_saved = any((data_dir / "training" / "tutor").glob("[0-9]*"))
        return is_saved and len(set(answers) - {"base"}) >= 2

    wait_until(has_answered_two_versions_and_saved)
    process.send_signal(signal.SIGKILL)
    process.wait(60)

    with DataFolder(data_dir, max_versions=1000, now_s=lambda: 0.0) as data:
        active = data.decisions.active()["tutor"]
        published = {item.version: item.digest for item in data.versions.published()}
        num_steps = int(data.checkpoints.load("tutor").meta["num_steps"])
    assert set(answers) - {"base"} <= set(published)
    assert number_of(active) >= max(map(number_of, answers))
    assert num_steps > 0

    check_training_goes_on(checkpoint, shutil.copytree(data_dir, data_dir.parent / "copy"))

    with (
        closing(open_tiny_replica(checkpoint, data_dir, **ROOMS)) as replica,
        running_server(backends_of(replica)) as server,
    ):
        serving = {info.version: info for info in replica.client.versions()}
        assert serving[active].is_active
        assert ask(server.url)[0] == active
        for version in sorted(set(answers) - {"base"}, key=number_of):
            body = {"version": version}
            httpx.post(server.url + "/adapters/promote", json=body, timeout=120).raise_for_status()
            serving = {info.version: info for info in replica.client.versions()}
            assert serving[version].digest == published[version]
            assert ask(server.url) == (version, answers[version])
        last = version

    with (
        closing(open_tiny_replica(checkpoint, data_dir, learning(), **ROOMS)) as replica,
        running_server(backends_of(replica)) as server,
    ):
        version, text = ask(server.url)
        assert version == last or number_of(version) > max(map(number_of, published))
        assert text == answers.get(version, text)
        # Its job ended when the configuration had none; this is another one.
        wait_until(lambda: replica.client.snapshot()["adapters"]["tutor"]["step"] > 0)
        assert replica.client.snapshot()["adapters"]["tutor"]["error"] is None
