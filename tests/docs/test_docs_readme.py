"""Every code block of the README runs, against a tiny replica under the names that it uses."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from collm.cli.main import app
from collm.cli.replica_process import backends_of
from collm.engine.config import MemoryConfig, SchedulerConfig
from collm.lora.config import LoraConfig
from collm.model.checkpoint import Checkpoint
from collm.pacing.config import PacingConfig
from collm.replica.assembly import claim_data, open_replica
from collm.replica.config import ReplicaConfig
from collm.replica.settings import ReplicaSettings, SampleSets
from collm.training.config import JobConfig, TrainingConfig
from factories.checkpoints import tiny_checkpoint
from factories.replicas import CHATS, SAMPLES
from factories.server_thread import running_server

ROOT = Path(__file__).parents[2]
README_URL = "http://127.0.0.1:8000"
BLOCK = re.compile(r"(<!-- not run: [^>]+ -->\n)?^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = [match.groups() for match in BLOCK.finditer((ROOT / "README.md").read_text("utf-8"))]
MAKE_LINES = [
    line
    for _, language, text in BLOCKS
    if language == "bash"
    for line in text.splitlines()
    if line.startswith("make ")
]


def blocks_to_run(language: str) -> list[str]:
    return [
        text
        for mark, found, text in BLOCKS
        if found == language and not mark and not text.startswith("make ")
    ]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that knows the names in the README's examples."""
    folder = tmp_path_factory.mktemp("readme")
    settings = ReplicaSettings(
        base_model="smollm2-135m-instruct",
        dtype=torch.float32,
        replica=ReplicaConfig(data_dir=str(folder / "data"), threads=1),
        memory=MemoryConfig(kv_cache_mib=4),
        scheduler=SchedulerConfig(),
        lora=LoraConfig(max_rank=16, num_slots=6),
        pacing=PacingConfig(),
        training=TrainingConfig(
            jobs=(JobConfig(adapter="intents", data="chats", rank=4),), general_data=None
        ),
    )
    checkpoint = Checkpoint(tiny_checkpoint(folder, "llama"))
    samples = SampleSets(by_name={"chats": SAMPLES})
    replica = open_replica(checkpoint, settings, samples, claim_data(settings))
    try:
        with running_server(backends_of(replica)) as server:
            yield server.url
    finally:
        replica.close()


def run(command: list[str], cwd: Path = ROOT, **variables: str) -> str:
    here = Path(sys.executable).parent
    extra = {
        "OMP_NUM_THREADS": "1",
        "NO_PROXY": "127.0.0.1",
        "PATH": f"{here}{os.pathsep}{os.environ['PATH']}",
        **variables,
    }
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=60, cwd=cwd, env=os.environ | extra
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_every_block_is_of_a_kind_that_is_run():
    assert MAKE_LINES
    assert blocks_to_run("bash")
    assert blocks_to_run("python")
    for mark, language, text in BLOCKS:
        assert mark or language in ("bash", "python"), text
        if "make " in text:
            assert all(line in MAKE_LINES for line in text.splitlines()), text


@pytest.mark.parametrize("line", MAKE_LINES)
def test_make_line_names_a_target_whose_command_has_these_options(line: str):
    target, commands = line.split()[1], run(["make", "-n", *shlex.split(line)[1:]])
    main_job = [cmd for cmd in commands.splitlines() if cmd.startswith(f".venv/bin/collm {target}")]
    assert len(main_job) == 1, commands
    result = CliRunner().invoke(app, [*shlex.split(main_job[0])[1:], "--help"])
    assert result.exit_code == 0, result.output


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")
@pytest.mark.parametrize("text", [t for t in blocks_to_run("bash") if "curl" in t])
def test_shell_example_is_answered(text: str, url: str):
    assert README_URL in text
    assert '"finish_reason"' in run(["bash", "-euc", text.replace(README_URL, url)])


@pytest.mark.parametrize("text", [t for t in blocks_to_run("bash") if "curl" not in t])
def test_command_example_is_answered(text: str, url: str):
    assert all(line.startswith("collm ") for line in text.splitlines())
    assert "intents" in run(["bash", "-euc", text], COLLM_URL=url)


@pytest.mark.parametrize("text", blocks_to_run("python"))
def test_python_example_is_answered(text: str, url: str, tmp_path: Path):
    lines = [json.dumps({"messages": chat}) for chat in CHATS]
    (tmp_path / "chats.jsonl").write_text("\n".join(lines))
    assert README_URL in text
    code = text.replace(README_URL, url)
    printed = run([sys.executable, "-W", "error", "-c", code], tmp_path)
    assert re.search(r"from (base|(intents|support)@\d+)$", printed), printed
