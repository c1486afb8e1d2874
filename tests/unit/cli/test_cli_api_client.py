import socket

import httpx
import pytest
from typer.testing import CliRunner

from collm.cli import api_client
from collm.cli.api_client import ServerError, connect, segment
from collm.cli.main import app
from collm.errors import ConfigError
from factories.fake_api import FakeApi

runner = CliRunner()


@pytest.fixture
def api(monkeypatch) -> FakeApi:
    fake = FakeApi()
    monkeypatch.setattr(api_client, "_open_http", fake.open_http)
    return fake


def raise_error(error):
    def answer(request):
        raise error

    return answer


def test_server_that_is_not_there_is_named_with_how_to_start_one():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        result = runner.invoke(app, ["adapters", "list", "--url", url])
    assert result.exit_code == 3
    assert result.stderr.startswith(f"collm: no server answers at {url}; start one with `collm ser")
    assert result.stderr.count("\n") == 1


def test_url_comes_from_the_option_before_the_environment(api):
    api.on("GET", "/adapters", {"data": []})
    env = {"COLLM_URL": "http://from.env:1/v1/"}
    for arguments, host in (([], "from.env:1"), (["--url", "http://x"], "x")):
        result = runner.invoke(app, ["adapters", "list", *arguments], env=env)
        assert result.exit_code == 0
        assert api.requests[-1].url == f"http://{host}/adapters"


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://x", "http://", "http://x:y"])
def test_wrong_url_exits_with_2(url):
    result = runner.invoke(app, ["adapters", "list", "--url", url])
    assert result.exit_code == 2
    assert result.stderr.startswith("collm: --url is ")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (httpx.ConnectTimeout("slow"), "no server answers at http://x"),
        (httpx.ReadTimeout("slow"), "did not answer within 300 s"),
        (httpx.RemoteProtocolError("cut"), "http://x broke off: cut"),
    ],
)
def test_failure_on_the_way_is_one_error(api, error, words):
    api.answer("GET", "/adapters", raise_error(error))
    with connect("http://x") as client, pytest.raises(ServerError, match=words):
        client.get("/adapters")


@pytest.mark.parametrize(
    ("response", "words"),
    [
        (httpx.Response(409, json={"error": {"message": "no such thing"}}), "^no such thing$"),
        (httpx.Response(502, text="<html>"), "http://x answered 502 Bad Gateway"),
        (httpx.Response(404, json={"detail": "?"}), "http://x answered 404 Not Found"),
        (httpx.Response(200, text="<html>"), "does not answer as a collm server"),
        (httpx.Response(200, content=b"\xff"), "does not answer as a collm server"),
        (httpx.Response(200, json=[]), "does not answer as a collm server"),
    ],
)
def test_refusal_says_what_the_server_says(api, response, words):
    api.answer("POST", "/a", lambda _: response)
    with connect("http://x") as client, pytest.raises(ServerError, match=words):
        client.post("/a")


def test_long_list_is_fetched_page_by_page(api):
    def page(request):
        first = int(request.url.params.get("after", "0")) + 1
        last = min(first + int(request.url.params["limit"]), 251)
        rows = [{"id": str(number)} for number in range(first, last)]
        return httpx.Response(200, json={"data": rows, "has_more": last < 251})

    api.answer("GET", "/things", page)
    with connect("http://x") as client:
        rows, has_more = client.list_objects("/things", limit=230)
        assert ([row["id"] for row in rows], has_more) == ([str(n) for n in range(1, 231)], True)
        assert len(api.requests) == 3
        rows, has_more = client.list_objects("/things", limit=999)
        assert (len(rows), has_more) == (250, False)


def test_refused_download_says_why_and_writes_nothing(api, tmp_path):
    api.refuse("GET", "/zip", 404, "no version x")
    with (tmp_path / "f").open("w+b") as file, connect("http://x") as client:
        with pytest.raises(ServerError, match="no version x"):
            client.download("/zip", {}, file)
        assert file.tell() == 0


def test_proxies_are_left_out_for_this_machine_only(monkeypatch):
    seen = []
    monkeypatch.setattr(
        api_client, "_open_http", lambda url, is_local: seen.append(is_local) or httpx.Client()
    )
    urls = (
        "http://localhost:1",
        "http://127.0.0.2",
        "http://[::1]:8",
        "http://10.0.0.1",
        "http://h",
    )
    for url in urls:
        connect(url)._http.close()
    assert seen == [True, True, True, False, False]


def test_wrong_url_is_a_configuration_error():
    with pytest.raises(ConfigError, match="must be like http"):
        connect("/tmp/x")


def test_segment_keeps_a_name_in_its_place():
    assert segment("a@1") == "a@1"
    assert segment("../x?y") == "..%2Fx%3Fy"
