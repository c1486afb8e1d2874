"""Training files: checked in full before they are kept."""

import asyncio
import json

import pytest

from collm.errors import RequestError, UnknownObjectError
from collm.replica.archive import Archive
from collm.replica.courtesy import Courtesy
from collm.replica.inbox import Inbox
from collm.replica.uploads import Uploads
from collm.replica.writer import Writer
from collm.store.data_folder import DataFolder
from factories.replicas import CHATS

GOOD = json.dumps({"messages": CHATS[0]}).encode()


@pytest.fixture
def uploads(tmp_path):
    writer = Writer(lambda: None, 1_000.0)
    with DataFolder(tmp_path, max_versions=5, now_s=lambda: 1.0) as data:
        archive = Archive(data, None, Inbox(), writer)
        writer.start()
        yield Uploads(data, archive, lambda: Courtesy(lambda: True))
        writer.close()


def add(uploads, content):
    return asyncio.run(uploads.add("my.jsonl", "fine-tune", content))


def test_file_is_kept_as_it_was_with_its_number_of_samples(uploads):
    content = GOOD + b"\n\n" + GOOD + b"\n"
    file = add(uploads, content)
    assert (file.filename, file.num_samples, file.num_bytes) == ("my.jsonl", 2, len(content))
    assert asyncio.run(uploads.read(file.file_id)) == content
    assert asyncio.run(uploads.get(file.file_id)) == file
    page = asyncio.run(uploads.list(after=None, limit=10, purpose="fine-tune", order="asc"))
    assert page.items == (file,)
    asyncio.run(uploads.delete(file.file_id))
    with pytest.raises(UnknownObjectError):
        asyncio.run(uploads.get(file.file_id))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (GOOD + b"\n" + GOOD.replace(b"assistant", b"robot"), r"line 2: messages\[1\]\.role"),
        (GOOD + b"\n{", "line 2: not JSON"),
        (b"\n \n", "holds no sample"),
        (b"", "holds no sample"),
        (b"\xff" + GOOD, "line 1: not UTF-8"),
    ],
)
def test_file_with_a_line_that_is_no_sample_is_refused_by_line_and_field(uploads, content, reason):
    with pytest.raises(RequestError, match=reason) as raised:
        add(uploads, content)
    assert (raised.value.param, raised.value.code) == ("file", "invalid_file_format")
    page = asyncio.run(uploads.list(after=None, limit=10, purpose=None, order="desc"))
    assert page.items == ()
