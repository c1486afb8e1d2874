"""Files, jobs and feedback through the front, with real replica servers behind it."""

import asyncio
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace

import openai
import pytest

from collm.cluster.endpoints import Endpoint
from factories.fake_backends import fake_backends
from factories.fake_desks import FakeFeedbackDesk
from factories.fake_learning import FakeFineTuning, FakeUploads
from factories.fake_replica import BASE_MODEL, FakeReplica
from factories.front_server import running_front
from factories.scripted_upstream import Line
from factories.server_thread import running_server

LINE = (
    b'{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]}'
)
JOBS = "/v1/fine_tuning/jobs"
HEX = "0123456789abcdef01234567"


class Apart(FakeUploads):
    """Files whose ids are not those of the other replica, and whose times interleave."""

    def __init__(self, offset: int) -> None:
        super().__init__()
        self._offset = offset

    async def add(self, filename, purpose, content):
        file = await super().add(filename, purpose, content)
        number = 1000 + 2 * len(self.kept) + self._offset
        del self.kept[file.file_id], self.contents[file.file_id]
        file = replace(file, file_id=f"file-{number:024x}", created_at_s=1_700_000_000.0 + number)
        self.kept[file.file_id], self.contents[file.file_id] = file, content
        return file


class Site:
    """One replica: its parts and its server."""

    def __init__(self, number: int) -> None:
        self.name = f"r{number}"
        self.uploads = Apart(number)
        self.jobs = FakeFineTuning(self.uploads)
        self.feedback = FakeFeedbackDesk()
        self.backends = fake_backends(
            FakeReplica(), uploads=self.uploads, fine_tuning=self.jobs, feedback=self.feedback
        )
        self._number = number

    def forget(self) -> None:
        """Be as if new."""
        self.uploads.__init__(self._number)
        self.jobs.__init__(self.uploads)
        self.feedback.__init__()


@pytest.fixture(scope="module")
def served():
    with ExitStack() as stack:
        sites = [Site(0), Site(1)]
        servers = [stack.enter_context(running_server(site.backends)) for site in sites]
        yield [
            (site, Endpoint(replica_id=site.name, url=server.url, pid=1, started_at_s=0.0))
            for site, server in zip(sites, servers, strict=True)
        ]


@pytest.fixture
def two_sites(served):
    """Return what opens a front with two empty replicas."""

    @asynccontextmanager
    async def open_front():
        for site, _ in served:
            site.forget()
        async with running_front(others=[endpoint for _, endpoint in served]) as front:
            yield front, *(site for site, _ in served)

    return open_front


async def upload(front, name="a.jsonl", **more):
    return await front.http.post(
        "/v1/files",
        files={"file": (name, LINE)},
        data={"purpose": "fine-tune", **more.pop("data", {})},
        **more,
    )


@pytest.mark.parametrize("more", [{"data": {"replica": "r1"}}, {"params": {"replica": "r1"}}])
def test_a_file_goes_to_the_replica_that_its_client_names(two_sites, more):
    async def main():
        async with two_sites() as (front, r0, r1):
            reply = await upload(front, name='tricky "naïve" name.jsonl', **more)
            assert (reply.status_code, reply.headers["x-collm-replica"]) == (200, "r1")
            assert r0.uploads.kept == {}
            (file,) = r1.uploads.kept.values()
            assert r1.uploads.contents[file.file_id] == LINE
            assert reply.json()["filename"].endswith("name.jsonl")

    asyncio.run(main())


def test_a_file_without_a_name_goes_where_least_is_to_do(two_sites):
    async def main():
        async with two_sites() as (front, r0, r1):
            assert (await upload(front)).headers["x-collm-replica"] == "r0"

    asyncio.run(main())


def test_an_unknown_replica_is_refused_with_those_there_are(two_sites):
    async def main():
        async with two_sites() as (front, r0, r1):
            reply = await upload(front, params={"replica": "r7"})
            assert reply.status_code == 400
            assert "allowed: r0, r1" in reply.json()["error"]["message"]

    asyncio.run(main())


def test_a_large_file_passes_through_and_back(two_sites):
    async def main():
        content = LINE + b"\n" + (LINE + b"\n") * 30_000
        async with two_sites() as (front, r0, r1):
            form = {"files": {"file": ("b.jsonl", content)}, "data": {"purpose": "fine-tune"}}
            file_id = (await front.http.post("/v1/files", **form)).json()["id"]
            assert (await front.http.get(f"/v1/files/{file_id}/content")).content == content

    asyncio.run(main())


def test_what_the_replica_says_against_a_form_is_passed_on(two_sites):
    async def main():
        async with two_sites() as (front, r0, r1):
            reply = await upload(front, data={"colour": "red"})
            assert reply.status_code == 400
            assert reply.json()["error"]["param"] == "colour"

    asyncio.run(main())


def test_files_of_all_replicas_are_one_list_page_by_page(two_sites):
    async def main():
        async with two_sites() as (front, r0, r1):
            for number in range(5):
                await upload(front, params={"replica": f"r{number % 2}"})
            client = openai.AsyncOpenAI(base_url=f"{front.url}/v1", api_key="x")
            async with client:
                for order in ("desc", "asc"):
                    found = [file async for file in client.files.list(limit=2, order=order)]
                    times = [file.created_at for file in found]
                    assert len({file.id for file in found}) == 5
                    assert times == sorted(times, reverse=order == "desc")
                    assert {file.model_extra["replica"] for file in found} == {"r0", "r1"}
            page = (await front.http.get("/v1/files", params={"limit": 2})).json()
            assert (len(page["data"]), page["has_more"]) == (2, True)
            assert page["last_id"] == page["data"][-1]["id"]

    asyncio.run(main())


def test_a_list_says_whose_part_is_missing(two_sites):
    async def main():
        async with two_sites() as (front, r0, r1):
            await upload(front, params={"replica": "r1"})
            await front.lose("r0")
            reply = await front.http.get("/v1/files")
            assert len(reply.json()["data"]) == 1
            assert reply.headers["x-collm-missing"] == "r0"

    asyncio.run(main())


@pytest.mark.parametrize("limit", ["0", "many", "100000"])
def test_a_bad_limit_is_refused_in_the_replicas_words(two_sites, limit):
    async def main():
        async with two_sites() as (front, r0, r1):
            reply = await front.http.get("/v1/files", params={"limit": limit})
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, "limit")

    asyncio.run(main())


def test_a_list_cannot_go_on_after_what_is_nowhere(two_sites):
    async def main():
        async with two_sites() as (front, r0, r1):
            reply = await front.http.get("/v1/files", params={"after": "file-nowhere"})
            assert reply.status_code == 404

    asyncio.run(main())


def test_objects_are_found_though_their_ids_name_no_replica(two_sites):
    async def main():
        async with two_sites() as (front, r0, r1):
            file_id = (await upload(front, params={"replica": "r1"})).json()["id"]
            shown = await front.http.get(f"/v1/files/{file_id}")
            assert (shown.json()["id"], shown.headers["x-collm-replica"]) == (file_id, "r1")
            assert (await front.http.delete(f"/v1/files/{file_id}")).json()["deleted"] is True
            assert r1.uploads.kept == {}
            gone = await front.http.get(f"/v1/files/{file_id}")
            assert (gone.status_code, gone.json()["error"]["code"]) == (404, "not_found")

    asyncio.run(main())


def test_a_job_follows_its_file_and_is_found_again(two_sites):
    async def main():
        async with two_sites() as (front, r0, r1):
            file_id = (await upload(front, params={"replica": "r1"})).json()["id"]
            body = {"model": BASE_MODEL, "training_file": file_id, "suffix": "mine"}
            job = await front.http.post(JOBS, json=body)
            assert (job.status_code, job.headers["x-collm-replica"]) == (200, "r1")
            path = f"{JOBS}/{job.json()['id']}"
            assert (await front.http.get(path)).json()["adapter"] == "mine"
            assert (await front.http.post(f"{path}/pause")).json()["status"] == "paused"
            assert (await front.http.get(f"{path}/events")).json()["data"] == []
            (row,) = (await front.http.get(JOBS)).json()["data"]
            assert row["replica"] == "r1"

    asyncio.run(main())


@pytest.mark.parametrize("more", [{"json": {"replica": "r1"}}, {"params": {"replica": "r1"}}])
def test_a_job_without_a_file_goes_where_its_client_says(two_sites, more):
    async def main():
        async with two_sites() as (front, r0, r1):
            body = {"model": BASE_MODEL, "continuous": True, **more.pop("json", {})}
            job = await front.http.post(JOBS, json=body, **more)
            assert (job.status_code, job.headers["x-collm-replica"]) == (200, "r1")

    asyncio.run(main())


def test_a_job_with_files_of_two_replicas_is_refused(two_sites):
    async def main():
        async with two_sites() as (front, r0, r1):
            names = ("r0", "r1")
            ids = [(await upload(front, params={"replica": one})).json()["id"] for one in names]
            body = {"model": BASE_MODEL, "training_file": ids[0], "validation_file": ids[1]}
            reply = await front.http.post(JOBS, json=body)
            assert reply.status_code == 400
            assert "r0, r1" in reply.json()["error"]["message"]

    asyncio.run(main())


def test_a_job_with_a_file_that_is_nowhere_is_refused_by_a_replica(two_sites):
    async def main():
        async with two_sites() as (front, r0, r1):
            body = {"model": BASE_MODEL, "training_file": "file-nowhere"}
            reply = await front.http.post(JOBS, json=body)
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, "training_file")

    asyncio.run(main())


def test_feedback_finds_the_replica_that_answered(two_sites):
    async def main():
        async with two_sites() as (front, r0, r1):
            chat = {"model": "helper", "messages": [{"role": "user", "content": "hi"}]}
            await front.lose("r0")  # so that the other one answers
            answer = await front.http.post("/v1/chat/completions", json=chat)
            front.states.silent.clear()
            await front.front.registry.refresh()
            body = {"response_id": answer.json()["id"], "rating": 1.0}
            reply = await front.http.post("/v1/feedback", json=body)
            assert (reply.status_code, reply.headers["x-collm-replica"]) == (200, "r1")
            (row,) = (await front.http.get("/v1/feedback")).json()["data"]
            assert (row["rating"], row["replica"]) == (1.0, "r1")

    asyncio.run(main())


async def echo_target(line: Line) -> None:
    await line.whole(line.seen.target.encode())


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", f"/v1/files/file-eu-1-{HEX}", None),
        ("GET", f"/v1/files/file-eu-1-{HEX}/content", None),
        ("DELETE", f"/v1/files/file-eu-1-{HEX}", None),
        ("POST", f"{JOBS}/ftjob-eu-1-{HEX}/cancel", None),
        ("GET", f"{JOBS}/ftjob-eu-1-{HEX}/events?limit=3", None),
        ("GET", f"/v1/feedback/fb-eu-1-{HEX}", None),
        ("POST", "/v1/feedback", {"response_id": f"chatcmpl-eu-1-{HEX}", "rating": 1}),
        ("POST", JOBS, {"training_file": f"file-eu-1-{HEX}"}),
    ],
)
def test_an_id_that_names_its_replica_is_asked_for_there_alone(method, path, body):
    async def main():
        async with running_front({"eu": echo_target, "eu-1": echo_target}) as front:
            reply = await front.http.request(method, path, json=body)
            assert (reply.text, reply.headers["x-collm-replica"]) == (path, "eu-1")
            assert front.upstreams["eu"].seen == []

    asyncio.run(main())


def test_a_dead_replica_is_named_when_it_holds_what_is_asked_for():
    async def main():
        async with running_front({"eu": echo_target, "eu-1": echo_target}) as front:
            front.upstreams["eu-1"].refuse()
            reply = await front.http.get(f"/v1/files/file-eu-1-{HEX}")
            assert reply.status_code == 503
            assert "'eu-1' does not answer" in reply.json()["error"]["message"]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", f"{JOBS}/ftjob-eu-1-{HEX}", None),
        ("POST", f"{JOBS}/ftjob-eu-1-{HEX}/pause", {}),
        ("GET", f"/v1/files/file-eu-1-{HEX}", None),
        ("POST", "/v1/feedback", {"response_id": f"chatcmpl-eu-1-{HEX}", "rating": 1}),
        ("POST", JOBS, {"training_file": f"file-eu-1-{HEX}"}),
        ("POST", JOBS, {"replica": "eu-1"}),
        ("GET", f"{JOBS}?replica=eu-1", None),
    ],
)
def test_what_is_at_a_replica_that_is_being_started_again_is_not_unknown(method, path, body):
    async def main():
        async with running_front({"eu": echo_target, "eu-1": echo_target}) as front:
            front.unlist("eu-1")
            reply = await front.http.request(method, path, json=body)
            assert reply.status_code == 503
            assert int(reply.headers["retry-after"]) >= 1
            assert "'eu-1' is not there now" in reply.json()["error"]["message"]
            assert front.upstreams["eu"].seen == []

    asyncio.run(main())
