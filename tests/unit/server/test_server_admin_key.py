import asyncio

import httpx
import pytest

from collm.server.app import make_app
from collm.server.config import ServerConfig
from factories.dashboard import ShownReplica
from factories.fake_backends import fake_backends
from factories.front_server import running_front

KEY = "a key"
RIGHT = {"authorization": f"Bearer {KEY}"}
CHANGES = {
    "/adapters/promote": {"version": "helper@1"},
    "/adapters/rollback": {"adapter": "helper"},
    "/adapters/pin": {"version": "helper@2"},
    "/adapters/unpin": {"version": "helper@2"},
    "/v1/load_lora_adapter": {"lora_name": "x", "lora_path": "y"},
    "/v1/unload_lora_adapter": {"lora_name": "helper"},
    "/adapters/import": {},
}


def post(path, headers, admin_key=KEY):
    app = make_app(fake_backends(), ServerConfig(), admin_key=admin_key)

    async def send():
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            return await http.post(path, json=CHANGES[path], headers=headers)

    return asyncio.run(send())


@pytest.mark.parametrize("path", CHANGES)
@pytest.mark.parametrize("given", [{}, {"authorization": "Bearer another"}, {"authorization": KEY}])
def test_changing_versions_without_the_key_is_refused(path, given):
    response = post(path, given)
    assert response.status_code == 401
    assert response.json()["error"]["code"] == "unauthorized"


def test_the_key_opens_the_route():
    assert post("/adapters/pin", RIGHT).status_code == 200


def test_without_a_key_set_nothing_is_asked_for():
    assert post("/adapters/pin", {}, admin_key=None).status_code == 200


def test_front_asks_for_the_key_itself_and_passes_it_on():
    replica = ShownReplica()

    async def scene():
        async with running_front({"r0": replica.script}, admin_key=KEY) as server:
            body = {"adapter": "clinc"}
            refused = await server.http.post("/adapters/rollback", json=body)
            done = await server.http.post("/adapters/rollback", json=body, headers=RIGHT)
            return refused, done, server.upstreams["r0"].seen

    refused, done, seen = asyncio.run(scene())
    assert (refused.status_code, done.status_code) == (401, 200)
    (call,) = [one for one in seen if one.target == "/adapters/rollback"]
    assert call.headers["authorization"] == f"Bearer {KEY}"
