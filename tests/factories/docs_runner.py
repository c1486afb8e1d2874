"""Runs the blocks of one page, against a tiny replica under the names that the pages use."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import httpx
import yaml
from typer.main import get_command

from collm.chats import parse_samples
from collm.cli import demo, serve
from collm.cli.cluster_settings import replica_config, with_replicas
from collm.cli.config_file import load_config
from collm.cli.training_jobs import with_jobs
from collm.config import CollmConfig
from factories.docs_pages import ROOT, Block
from factories.docs_server import DocsServer
from factories.replicas import CHATS

URL = "http://127.0.0.1:8000"
BEHIND_A_FRONT = {"several-replicas.md"}
"""Pages that are about a cluster."""
QUICKER = {"seconds = 20": "seconds = 1"}
"""What a page says → what is run."""
STARTS = {"serve": serve.app, "demo": demo.app}
"""Commands that run until they are stopped: what they are given is read, and they are not run."""


def kind_of(command: str) -> str:
    words = command.split()  # No shlex: the line may be part of what is quoted over several.
    if words[:1] == ["make"]:
        return "make"
    return "start" if words[:1] == ["collm"] and words[1] in STARTS else "run"


class Runner:
    """Takes one page's blocks in order, in a folder of the page's own."""

    def __init__(self, page: Path, server: DocsServer, folder: Path) -> None:
        is_cluster = page.name in BEHIND_A_FRONT
        self._url = server.front_url if is_cluster else server.url
        self._server = server
        self._folder = folder
        self._stand_ins = stand_ins(page.read_text("utf-8"), server)
        lay_out(folder, server)

    def take(self, block: Block) -> None:
        where = f"line {block.line}: {block.text}"
        if block.mark == "file":
            (self._folder / block.said).write_text(block.text, "utf-8")
        if block.mark == "not run" or block.language in ("text", "promql"):
            return
        printed = getattr(self, f"_{block.language}")(block, where)
        if block.mark == "prints":
            assert re.search(block.said, printed), f"{where}\n{printed}"

    def _bash(self, block: Block, where: str) -> str:
        kind = kind_of(block.commands[0])
        if kind == "make":
            for command in block.commands:
                self._check_make(command)
            return ""
        if kind == "start":
            for command in block.commands:
                self._check_start(shlex.split(command)[1:])
            return ""
        return self._run(["bash", "-euo", "pipefail", "-c", self._put(block.text)], where)

    def _python(self, block: Block, where: str) -> str:
        return self._run([sys.executable, "-W", "error", "-c", self._put(block.text)], where)

    def _yaml(self, block: Block, where: str) -> str:
        if block.mark == "file":
            self._config(self._folder / block.said, [])
        else:
            assert isinstance(yaml.safe_load(block.text), dict | list), where
        return ""

    def _json(self, block: Block, where: str) -> str:
        json.loads(block.text)
        return ""

    def _jsonl(self, block: Block, where: str) -> str:
        assert list(parse_samples(block.text.encode().splitlines()))
        return ""

    def _put(self, text: str) -> str:
        for said, meant in {URL: self._url, **self._stand_ins, **QUICKER}.items():
            text = text.replace(said, meant)
        return text

    def _run(self, command: list[str], where: str) -> str:
        here = Path(sys.executable).parent
        variables = {
            "OMP_NUM_THREADS": "1",
            "NO_PROXY": "127.0.0.1",
            "COLLM_URL": self._url,
            "CURL_HOME": str(self._folder),  # its .curlrc makes curl fail when the server refuses
            "PATH": f"{here}{os.pathsep}{os.environ['PATH']}",
        }
        result = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=300,
            cwd=self._folder,
            env=os.environ | variables,
        )
        assert result.returncode == 0, f"{where}\n{result.stdout}\n{result.stderr}"
        return result.stdout

    def _check_make(self, command: str) -> None:
        words = shlex.split(command, comments=True)
        found = subprocess.run(
            ["make", "-n", *words[1:]], capture_output=True, text=True, cwd=ROOT, check=True
        )
        started = [line for line in found.stdout.splitlines() if line.startswith(".venv/bin/collm")]
        for line in started:
            words = shlex.split(line)[1:]
            if words[0] in STARTS:
                self._check_start(words)

    def _check_start(self, words: list[str]) -> None:
        """Read what a server would be started with, to the last setting."""
        name, arguments = words[0], words[1:]
        parameters = get_command(STARTS[name]).make_context(name, arguments).params
        if name != "serve":
            return
        path = parameters["config_file"]
        overrides = [*(parameters["overrides"] or [])]
        config = self._config(path and self._folder / path, overrides, parameters["replicas"])
        with_jobs(config, parameters["train"] or [])

    def _config(
        self, path: Path | None, overrides: Sequence[str], replicas: int | None = None
    ) -> CollmConfig:
        config = with_replicas(load_config(path, overrides), replicas)
        for index in range(len(config.cluster.replicas)):
            replica_config(config, index, named_jobs=[], num_cores=2)
        return config


def lay_out(folder: Path, server: DocsServer) -> None:
    """Put beside a page's commands what they take for granted."""
    (folder / ".curlrc").write_text("fail-with-body\n")
    for name in ("configs", "benchmarks"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "collm-data").symlink_to(server.data_dir)
    for file in server.guest.iterdir():
        shutil.copy(file, folder)
    shutil.copytree(server.guest, server.import_root / "guest-folder", dirs_exist_ok=True)
    lines = [json.dumps({"messages": chat}) for chat in CHATS]
    for name in ("chats.jsonl", "support.jsonl"):
        (folder / name).write_text("\n".join(lines))


def stand_ins(text: str, server: DocsServer) -> dict[str, str]:
    """Return real ids for those that a page makes up."""
    found: dict[str, str] = {}
    with httpx.Client(base_url=server.url, timeout=120) as http:
        for said, make in MADE_UP.items():
            if said in text:
                found[said] = make(http)
    return found


def _answer(http: httpx.Client) -> str:
    body = {"model": "support", "messages": [{"role": "user", "content": "Where is my card?"}]}
    answer = http.post("/v1/chat/completions", json={**body, "max_tokens": 8}).raise_for_status()
    return str(answer.json()["id"])


def _feedback(http: httpx.Client) -> str:
    body = {"response_id": _answer(http), "answer": f"Answer {os.urandom(4).hex()}."}
    return str(http.post("/v1/feedback", json=body).raise_for_status().json()["id"])


def _file(http: httpx.Client) -> str:
    content = "\n".join(json.dumps({"messages": chat}) for chat in CHATS).encode()
    form = {"file": ("support.jsonl", content)}
    answer = http.post("/v1/files", data={"purpose": "fine-tune"}, files=form).raise_for_status()
    return str(answer.json()["id"])


def _job(http: httpx.Client) -> str:
    body = {"model": "smollm2-135m-instruct", "adapter": f"made-{os.urandom(4).hex()}"}
    body |= {"training_file": _file(http)}
    return str(http.post("/v1/fine_tuning/jobs", json=body).raise_for_status().json()["id"])


MADE_UP = {
    "chatcmpl-5f2b": _answer,
    "fb-0123456789abcdef01234567": _feedback,
    "file-0123456789abcdef01234567": _file,
    "ftjob-0123456789abcdef01234567": _job,
}
"""Ids in the pages, and what makes a real one."""
