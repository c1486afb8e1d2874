import asyncio
import json
import re

import httpx
import pytest

from collm.server.dashboard.assets import load_assets
from collm.server.service import Membership
from factories.dashboard import ShownReplica
from factories.fake_replica import FakeReplica
from factories.figures import figures
from factories.front_server import running_front
from factories.server_thread import running_server
from factories.waiting import WAIT_S


@pytest.fixture(scope="module")
def server():
    with running_server(FakeReplica()) as server:
        yield server


async def events_of(url, wanted):
    """Read a stream until every event of ``wanted`` has come; return the first of each."""
    found, name = {}, ""
    async with (
        httpx.AsyncClient(base_url=url, timeout=WAIT_S) as http,
        http.stream("GET", "/dashboard/stream") as response,
    ):
        assert response.headers["content-type"].startswith("text/event-stream")
        async for line in response.aiter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                found.setdefault(name, json.loads(line.removeprefix("data: ")))
            if set(wanted) <= found.keys():
                return found
    raise AssertionError(f"the stream ended after {list(found)}")


def test_page_forbids_everything_that_is_not_from_here(server):
    response = httpx.get(server.url + "/", timeout=WAIT_S)
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy


def test_every_file_that_the_page_names_is_there_and_from_here(server):
    page = httpx.get(server.url + "/", timeout=WAIT_S).text
    links = re.findall(r'(?:src|href)="([^"#]+)"', page)
    assert len(links) >= 6
    for link in links:
        assert link.startswith("/"), link
        assert httpx.get(server.url + link, timeout=WAIT_S).status_code == 200, link


def test_page_has_no_inline_script_or_style(server):
    page = httpx.get(server.url + "/", timeout=WAIT_S).text
    assert not re.search(r"<style|\sstyle=|\son\w+=", page)
    assert all('src="' in tag for tag in re.findall(r"<script[^>]*>", page))


def test_files_are_sent_again_only_when_they_changed(server):
    first = httpx.get(server.url + "/dashboard/assets/app.js", timeout=WAIT_S)
    assert first.headers["content-type"] == "text/javascript; charset=utf-8"
    again = httpx.get(
        server.url + "/dashboard/assets/app.js",
        headers={"if-none-match": first.headers["etag"]},
        timeout=WAIT_S,
    )
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("path", ["nothing.js", "../assets.py", "%2e%2e/assets.py", ""])
def test_other_files_are_not_served(server, path):
    assert httpx.get(f"{server.url}/dashboard/assets/{path}", timeout=WAIT_S).status_code == 404


def test_chart_library_comes_with_its_licence():
    assets = load_assets()
    assert b"MIT License" in assets["vendor/uPlot.LICENSE"].content


def test_replica_alone_shows_itself():
    replica = FakeReplica()
    replica.snapshot = lambda: figures(10.0)
    with running_server(replica) as server:
        found = asyncio.run(events_of(server.url, ["history", "facts", "frame"]))
    assert found["facts"]["replicas"] is None
    assert [row["name"] for row in found["facts"]["adapters"]] == ["helper"]
    assert found["history"]["tiers"][0]["period_s"] == 1
    assert found["frame"]["tier"] == 0


def test_replica_of_a_cluster_has_no_page_of_its_own():
    with running_server(FakeReplica(), Membership("r0", "secret")) as server:
        assert httpx.get(server.url + "/", timeout=WAIT_S).status_code == 404


def test_front_shows_its_replicas():
    async def scene():
        async with running_front({"r0": ShownReplica().script}, has_dashboard=True) as server:
            found = await events_of(server.url, ["facts", "frame"])
            history = (await server.http.get("/dashboard/history")).json()
            return found, history, (await server.http.get("/")).status_code

    found, history, status = asyncio.run(scene())
    assert status == 200
    assert [one["id"] for one in found["facts"]["replicas"]] == ["r0"]
    assert history["tiers"][0]["frames"][0]["at"] > 1e9


def test_open_stream_does_not_hold_up_the_end_of_the_server():
    async def scene():
        async with running_front(
            {"r0": ShownReplica().script}, has_dashboard=True, drain_timeout_s=600.0
        ) as server:
            watching = asyncio.create_task(events_of(server.url, ["never"]))
            async with asyncio.timeout(60.0):
                while len(server.app.state.dashboard.watchers) == 0:
                    await asyncio.sleep(0.01)
            server.stop.set()
            await asyncio.wait_for(asyncio.shield(server.serving), WAIT_S)
            with pytest.raises(AssertionError, match="the stream ended"):
                await watching

    asyncio.run(scene())
