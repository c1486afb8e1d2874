import asyncio
import os
import re
import signal
import sys
from pathlib import Path

import pytest
import yaml

from collm.chats import Message
from collm.cli.config_file import load_config
from collm.cli.demo_progress import Progress
from collm.cli.demo_replica import look_at_replica
from collm.cli.demo_server import ServerEndedError, ServerProcess
from collm.cli.demo_session import Scene, Session, prepare_folder, run_session
from collm.cli.demo_settings import DemoSettings, server_settings
from collm.cli.demo_traffic import TraceUse, Traffic
from collm.clock import MonotonicClock
from collm.workload.requests import WorkloadRequest
from factories.child_path import PYTHONPATH
from factories.demo import GROUPS

USE = TraceUse(
    length_divisor=2.0,
    trace="t", start_hour=0, num_hours=1, num_rows=9, num_requests=3, speed_up=60.0,
    max_prompt_tokens=9, max_output_tokens=9, num_scored=2,
)  # fmt: skip


@pytest.fixture
def settings(tmp_path, monkeypatch) -> DemoSettings:
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    return DemoSettings(
        minutes=0.01, requests_per_s=5, seed=3, out=tmp_path / "out", port=0, model="tiny",
        budget="latency",
    )  # fmt: skip


def request(at_s: float, expected: str | None) -> WorkloadRequest:
    return WorkloadRequest(
        at_s=at_s, kind="length" if expected is None else "scored", site="",
        messages=(Message("user", "how long"),), expected=expected, max_tokens=8,
        ignore_eos=expected is None,
    )  # fmt: skip


REQUESTS = (request(0.0, "timer"), request(0.1, "transfer"), request(0.2, None))


class SilentView:
    def __init__(self, on_show=lambda: None):
        self.on_show = on_show
        self.last_words: list[str] = []

    def starting(self, last_line):
        self.last_words.append(last_line)

    def started(self, url):
        self.url = url

    def show(self, progress, now_s):
        self.on_show()


def play(
    settings: DemoSettings, how: str, view: SilentView, *acts, requests=REQUESTS
) -> Session[Progress]:
    traffic = Traffic(requests=requests, groups=GROUPS, use=USE)
    prepare_folder(settings, server_settings(settings))
    command = [sys.executable, "-m", "factories.demo_server", how]
    scene = Scene(
        begin=lambda start_s: Progress(GROUPS, start_s), look=look_at_replica, view=view, acts=acts
    )
    return asyncio.run(run_session(scene, traffic, command, settings.log_path, MonotonicClock()))


def test_run_replays_everything_looks_at_the_server_and_stops_it(settings):
    view = SilentView()
    session = play(settings, "answer", view)
    assert session.end == "complete"
    assert session.error is None
    progress = session.progress
    assert progress.outcomes == {"completed": 3}
    assert [answer.is_right for answer in progress.answers] == [True, False]
    assert progress.swaps[0].version == "clinc@1"
    (url,) = re.findall(r"ready at (\S+)", settings.log_path.read_text())
    assert view.url == url
    (pid,) = re.findall(r"process (\d+)", settings.log_path.read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)


def test_ctrl_c_ends_the_run_and_keeps_what_was_seen(settings):
    interrupt = SilentView(lambda: os.kill(os.getpid(), signal.SIGINT))
    session = play(settings, "hang", interrupt)
    assert session.end == "interrupted"
    assert session.error is None
    assert session.progress.outcomes["aborted"] == len(session.progress.records)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_acts_follow_a_whole_replay_while_the_server_runs(settings):
    seen = []

    async def act(client, progress):
        seen.append((len(progress.records), (await client.get("/health")).status_code))

    session = play(settings, "answer", SilentView(), act, act)
    assert seen == [(3, 200), (3, 200)]
    assert session.end == "complete"


def test_ctrl_c_in_an_act_ends_the_run_and_skips_the_others(settings):
    seen = []

    async def wait(client, progress):
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(600)

    async def act(client, progress):
        seen.append(progress)

    session = play(settings, "answer", SilentView(), wait, act)
    assert session.end == "interrupted"
    assert session.progress.outcomes == {"completed": 3}
    assert session.elapsed_s < 600
    assert not seen


def test_dead_server_is_reported_with_its_last_words(settings):
    much_later = request(600.0, None)
    session = play(settings, "die", SilentView(), requests=(*REQUESTS, much_later))
    assert session.end == "server ended"
    assert "exit code 3" in str(session.error)
    assert "out of luck" in str(session.error)


def test_dead_server_is_reported_though_its_requests_fail_before_its_end_is_known(
    settings, monkeypatch
):
    end, calls, asked_again = ServerProcess.end, [], asyncio.Event()

    async def end_late(self):
        calls.append(self)
        if len(calls) == 1:
            await asked_again.wait()
        asked_again.set()
        return await end(self)

    monkeypatch.setattr(ServerProcess, "end", end_late)
    session = play(settings, "die", SilentView())
    assert session.end == "server ended"


def test_server_that_does_not_start_is_reported_with_its_last_words(settings):
    session = play(settings, "refuse", SilentView())
    assert session.end == "server ended"
    assert "exit code 1" in str(session.error)
    assert "no such model" in str(session.error)


def test_folder_is_made_anew_but_only_data_of_ours_is_deleted(settings):
    settings.data_dir.mkdir(parents=True)
    (settings.data_dir / "mine.txt").touch()
    prepare_folder(settings, server_settings(settings))
    assert (settings.data_dir / "mine.txt").exists()
    for database in ("collm.db", "r0/collm.db", "front/front.db"):
        (settings.data_dir / database).parent.mkdir(parents=True, exist_ok=True)
        (settings.data_dir / database).touch()
        prepare_folder(settings, server_settings(settings))
        assert not settings.data_dir.exists()


def test_written_configuration_is_what_the_server_reads(settings):
    path = prepare_folder(settings, server_settings(settings))
    config = load_config(path)
    assert config.seed == 3
    assert config.pacing.budget == "latency"
    assert (config.pacing.ttft_s, config.pacing.tpot_s) == (0.8, 0.1)
    (job,) = config.training.jobs
    assert (job.adapter, job.data, job.seed) == ("clinc", "clinc150", 0)
    assert Path(config.replica.data_dir) == settings.data_dir
    assert yaml.safe_load(path.read_text())["model"]["source"] == "tiny"


def test_server_that_ignores_sigterm_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr("collm.cli.demo_server._STOP_TIMEOUT_S", 0.1)
    code = (
        "import signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('collm is ready at http://x', flush=True)\n"
        "time.sleep(60)\n"
    )

    async def run() -> str:
        server = await ServerProcess.start([sys.executable, "-c", code], tmp_path / "log")
        url = await server.ready()
        await server.stop()
        assert isinstance(await server.end(), ServerEndedError)
        return url

    assert asyncio.run(run()) == "http://x"
