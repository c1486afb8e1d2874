import json

import httpx
import openai
import pytest
from openai.types import FileDeleted, FileObject

from factories.fake_backends import fake_backends
from factories.fake_learning import FakeUploads
from factories.server_thread import running_server
from factories.waiting import WAIT_S

TURNS = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
LINE = json.dumps({"messages": TURNS}).encode() + b"\n"
MAX_BYTES = 200_000


@pytest.fixture(scope="module")
def server():
    with running_server(fake_backends(uploads=FakeUploads()), max_file_bytes=MAX_BYTES) as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def http(server):
    with httpx.Client(base_url=server.url, timeout=WAIT_S) as client:
        yield client


def upload(client, content=LINE, name="chats.jsonl"):
    return client.files.create(file=(name, content), purpose="fine-tune")


def test_file_comes_back_as_it_was_sent(client):
    file = upload(client, LINE * 3)
    FileObject.model_validate(file.model_dump(), strict=True)
    assert (file.filename, file.purpose, file.status) == ("chats.jsonl", "fine-tune", "processed")
    assert file.bytes == 3 * len(LINE)
    assert file.model_extra == {"num_samples": 3}
    assert client.files.retrieve(file.id) == file
    assert client.files.content(file.id).read() == LINE * 3


def test_client_does_not_wait_for_processing(client):
    assert client.files.wait_for_processing(upload(client).id).status == "processed"


def test_path_of_an_upload_is_sent_by_its_name_alone(client, tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_bytes(LINE)
    assert client.files.create(file=path, purpose="fine-tune").filename == "mine.jsonl"


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("../../etc/passwd", "passwd"),
        ("C:\\data\\mine.jsonl", "mine.jsonl"),
        ("a/", "upload"),
        ("gr\u00fc\u00dfe \u2713.jsonl", "gr\u00fc\u00dfe \u2713.jsonl"),
        ("a\u202eb\u0085.jsonl", "ab.jsonl"),
        ("n" * 300, "n" * 255),
    ],
)
def test_name_is_kept_without_folders_and_control_characters(client, sent, kept):
    file = upload(client, name=sent)
    assert file.filename == kept
    assert client.files.content(file.id).read() == LINE


def test_files_are_listed_page_by_page(client):
    made = [upload(client).id for _ in range(5)]
    newest = client.files.list(limit=2)
    assert [file.id for file in newest.data] == made[:2:-1]
    assert newest.has_more
    assert [file.id for file in newest][:5] == made[::-1]
    oldest = client.files.list(order="asc", after=made[2])
    assert [file.id for file in oldest.data] == made[3:]
    assert not oldest.has_more
    assert client.files.list(purpose="batch").data == []


def test_list_names_its_first_and_last(http, client):
    upload(client)
    body = http.get("/v1/files", params={"limit": 1}).json()
    assert body["object"] == "list"
    assert body["first_id"] == body["last_id"] == body["data"][0]["id"]


def test_deleted_file_is_gone(client):
    file = upload(client)
    deleted = client.files.delete(file.id)
    assert deleted == FileDeleted(id=file.id, deleted=True, object="file")
    for call in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError, match=file.id):
            call(file.id)


def test_file_in_use_is_not_deleted():
    uploads = FakeUploads()
    with (
        running_server(fake_backends(uploads=uploads)) as server,
        openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client,
    ):
        file = upload(client)
        uploads.in_use.add(file.id)
        with pytest.raises(openai.ConflictError, match="ftjob-1") as caught:
            client.files.delete(file.id)
        assert caught.value.code == "file_in_use"
        assert client.files.retrieve(file.id) == file


def test_bad_line_is_named_with_its_field(client):
    bad = json.dumps({"messages": [TURNS[0], TURNS[1] | {"weight": 0}]}).encode()
    with pytest.raises(openai.BadRequestError, match=r"line 3: messages\[1\].weight: 0") as caught:
        upload(client, LINE * 2 + bad)
    assert (caught.value.param, caught.value.code) == ("file", "invalid_file_format")


@pytest.mark.parametrize("content", [b"", b"\n \r\n", b"\xef\xbb\xbf"])
def test_file_without_samples_is_refused(client, content):
    with pytest.raises(openai.BadRequestError, match="holds no sample"):
        upload(client, content)


@pytest.mark.parametrize("num_bytes", [MAX_BYTES + 1, MAX_BYTES * 2])
def test_file_over_the_limit_is_413(client, num_bytes):
    with pytest.raises(openai.APIStatusError, match=r"allowed: \d+ bytes") as caught:
        upload(client, b" " * num_bytes)
    assert caught.value.status_code == 413


def test_file_of_the_largest_size_is_taken(client):
    assert upload(client, LINE + b" " * (MAX_BYTES - len(LINE))).bytes == MAX_BYTES


FILE = ("file", ("a.jsonl", LINE))
PURPOSE = ("purpose", (None, "fine-tune"))

BAD_FORMS = [
    # (parts, field named, words of the message)
    ([FILE], "purpose", "required"),
    ([PURPOSE], "file", "required"),
    ([PURPOSE, ("file", (None, "text"))], "file", "must be a file"),
    ([FILE, ("purpose", ("p.txt", b"fine-tune"))], "purpose", "must be text"),
    ([FILE, ("purpose", (None, "batch"))], "purpose", "'batch' is not supported; allowed: fine"),
    ([FILE, FILE, PURPOSE], "file", "more than once"),
    ([FILE, PURPOSE, PURPOSE], "purpose", "more than once"),
    ([FILE, PURPOSE, ("porpose", (None, "x"))], "porpose", "allowed: file, purpose"),
    ([FILE, PURPOSE, ("expires_after[seconds]", (None, "1"))], "expires_after", "not supported"),
    ([("file", ("x", LINE)) for _ in range(9)], None, "Too many files"),
    ([(f"f{i}", (None, "x")) for i in range(99)], None, "Too many fields"),
    ([FILE, ("purpose", (None, "x" * 20_000))], None, "exceeded maximum size"),
]


@pytest.mark.parametrize(("parts", "field", "words"), BAD_FORMS)
def test_bad_form_names_the_part(http, parts, field, words):
    response = http.post("/v1/files", files=parts)
    error = response.json()["error"]
    assert response.status_code == 400
    assert error["param"] == field
    assert words in error["message"]


def test_expiry_that_the_client_sends_is_refused(client):
    with pytest.raises(openai.BadRequestError, match="stay until they are deleted"):
        client.files.create(
            file=LINE,
            purpose="fine-tune",
            expires_after={"anchor": "created_at", "seconds": 3600},
        )


def form(boundary=b"b", disposition=b'name="file"; filename="a"', end=b"--"):
    head = b"--" + boundary + b"\r\nContent-Disposition: form-data; " + disposition
    return head + b"\r\n\r\n" + LINE + b"\r\n--" + boundary + end + b"\r\n"


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/json", b"{}"),
        ("multipart/form-data", form()),
        ("multipart/form-data; boundary=b", b""),
        ("multipart/form-data; boundary=b", b"nonsense"),
        ("multipart/form-data; boundary=b", form(disposition=b'filename="a"')),
        ("multipart/form-data; boundary=b", form(disposition=b"x" * 100_000)),
        ("multipart/form-data; boundary=b; charset=undefined", form()),
        (
            "multipart/form-data; boundary=b; charset=unicode_escape",
            form(disposition=rb'name="\ud800"; filename="a"'),
        ),
        ("multipart/form-data; boundary=b; charset=hex", form()),
        ("multipart/form-data; boundary=" + "b" * 300, form(boundary=b"b" * 300)),
    ],
)
def test_body_that_is_no_form_is_400(http, kind, body):
    response = http.post("/v1/files", content=body, headers={"content-type": kind})
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"limit": "0"}, "limit"),
        ({"limit": "10001"}, "limit"),
        ({"limit": "many"}, "limit"),
        ({"order": "up"}, "order"),
        ({"after": ""}, "after"),
        ({"page": "2"}, "page"),
    ],
)
def test_bad_list_parameter_is_named(http, params, field):
    response = http.get("/v1/files", params=params)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == field


def test_list_after_an_unknown_file_is_404(client):
    with pytest.raises(openai.NotFoundError, match="file-x"):
        client.files.list(after="file-x")


def test_upload_that_breaks_off_leaves_the_server_well(server, client):
    def broken():
        yield form()[:60]
        raise httpx.WriteError("cut")

    headers = {"content-type": "multipart/form-data; boundary=b"}
    with (
        httpx.Client(base_url=server.url, timeout=WAIT_S) as other,
        pytest.raises(httpx.WriteError, match="cut"),
    ):
        other.post("/v1/files", content=broken(), headers=headers)
    assert upload(client).status == "processed"
