import asyncio
from collections import Counter

import httpx
import pytest

from collm.chats import Message, Sample
from collm.cli import demo_exam
from collm.cli.demo_cluster_progress import ClusterProgress
from collm.cli.demo_exam import QUESTIONS_PER_DOMAIN, Examinee, Examiner, choose_questions, mark
from collm.cli.demo_own_updates import OwnUpdates
from collm.cli.demo_rounds import read_rounds
from collm.cli.demo_sites import deal_sites
from collm.clock import ManualClock
from factories.demo import GROUPS, SITES, START_S, cluster_state, record, round_entry


def question(group: str, answer: str) -> Sample:
    return Sample(messages=(Message("user", "?"), Message("assistant", answer)), group=group)


QUESTIONS = (question("banking", "transfer"), question("utility", "timer"))


@pytest.fixture
def updates(tmp_path) -> OwnUpdates:
    received = tmp_path / "data/front/rounds/clinc"
    for number in (1, 2):
        (received / str(number)).mkdir(parents=True)
        (received / str(number) / "r0.safetensors").write_bytes(f"round {number}".encode())
    return OwnUpdates(tmp_path / "data", tmp_path / "own")


def test_questions_are_the_same_each_time_and_even_over_all_domains():
    sites = deal_sites(2)
    questions = choose_questions(sites)
    assert questions == choose_questions(sites)
    counts = Counter(sample.group for sample in questions)
    assert set(counts) == sites[0].domains | sites[1].domains
    assert set(counts.values()) == {QUESTIONS_PER_DOMAIN}


def test_marks_tell_own_from_foreign_and_leave_out_what_was_not_answered():
    examinee = Examinee(SITES[0], "http://r0", "clinc@1")
    records = (
        record(0.0, "transfer", text="Transfer "),
        record(0.0, "transfer", text="no"),
        record(0.0, "transfer", outcome="failed"),
        record(0.0, "timer", text="timer"),
    )
    questions = (*QUESTIONS[:1] * 3, QUESTIONS[1])
    marks = mark(examinee, questions, records)
    assert (marks.own.num_right, marks.own.num_answers) == (1, 2)
    assert (marks.foreign.num_right, marks.foreign.num_answers) == (1, 1)


def test_updates_of_the_first_round_alone_are_kept_as_they_come_in(updates, tmp_path):
    updates.keep(read_rounds({"rounds": [round_entry(2)]}))
    assert not updates.has("r0")
    updates.keep(read_rounds({"rounds": [round_entry(1)]}))
    assert updates.has("r0")
    assert not updates.has("r1")
    (tmp_path / "data/front/rounds/clinc/1/r0.safetensors").unlink()
    updates.keep(read_rounds({"rounds": [round_entry(1)]}))
    assert (tmp_path / "own/r0.safetensors").read_bytes() == b"round 1"
    assert not OwnUpdates(tmp_path / "data", tmp_path / "own").has("r0")


def examined(updates, monkeypatch, answer):
    """Examine both replicas; ``answer(url, model, expected)`` gives each answer's text."""
    uploads = []

    def respond(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/adapters/import":
            uploads.append((request.url.host, request.read()))
            return httpx.Response(200, json={})
        return httpx.Response(200, json=cluster_state("http://front", ("r0", "r1")))

    async def replay(requests, target, clock):
        return tuple(
            record(0.0, it.expected, text=answer(target.base_url, target.model, it.expected))
            for it in requests
        )

    async def run() -> ClusterProgress:
        progress = ClusterProgress(GROUPS, SITES, START_S)
        transport = httpx.MockTransport(respond)
        async with httpx.AsyncClient(transport=transport, base_url="http://front") as client:
            examiner = Examiner(QUESTIONS, updates, "tiny", ManualClock())
            await examiner.examine(client, progress)
        return progress

    monkeypatch.setattr(demo_exam, "replay", replay)
    return asyncio.run(run()), uploads


def test_replica_answers_as_base_alone_and_together_where_it_has_something_to_show(
    updates, monkeypatch
):
    updates.keep(read_rounds({"rounds": [round_entry(1)]}))

    def answer(url, model, expected):
        knows = {"tiny": (), "alone": ("transfer",), "clinc@1": ("transfer", "timer")}[model]
        return expected if expected in knows else "no idea"

    progress, uploads = examined(updates, monkeypatch, answer)
    shares = {
        (name, stage): (marks.own.share, marks.foreign.share)
        for name, site in progress.sites.items()
        for stage, marks in site.exam.items()
    }
    assert shares == {
        ("r0", "before"): (0.0, 0.0),
        ("r0", "alone"): (1.0, 0.0),
        ("r0", "together"): (1.0, 1.0),
        ("r1", "before"): (0.0, 0.0),
        ("r1", "together"): (1.0, 1.0),
    }
    ((_, body),) = uploads
    assert b"round 1" in body
    assert b'"lora_alpha": 16' in body


def test_front_that_does_not_answer_leaves_no_marks(updates):
    async def run() -> ClusterProgress:
        progress = ClusterProgress(GROUPS, SITES, START_S)
        transport = httpx.MockTransport(lambda _: httpx.Response(503))
        async with httpx.AsyncClient(transport=transport, base_url="http://front") as client:
            await Examiner(QUESTIONS, updates, "tiny", ManualClock()).examine(client, progress)
        return progress

    assert not any(site.exam for site in asyncio.run(run()).sites.values())
