import json

import pytest

from collm.cluster.endpoints import Endpoint, read_endpoints, write_endpoints
from collm.errors import DataError

FIRST = Endpoint(replica_id="r0", url="http://127.0.0.1:4001", pid=17, started_at_s=1000.5)
SECOND = Endpoint(replica_id="r1", url="http://127.0.0.1:4002", pid=18, started_at_s=1001.0)


def test_endpoints_read_back_as_written(tmp_path):
    path = tmp_path / "endpoints.json"
    write_endpoints(path, [FIRST, SECOND])
    assert read_endpoints(path) == (FIRST, SECOND)
    write_endpoints(path, [SECOND])
    assert read_endpoints(path) == (SECOND,)
    assert list(tmp_path.iterdir()) == [path]


def test_format_is_the_documented_one(tmp_path):
    path = tmp_path / "endpoints.json"
    write_endpoints(path, [FIRST])
    row = {"id": "r0", "url": "http://127.0.0.1:4001", "pid": 17, "started_at_s": 1000.5}
    assert json.loads(path.read_text()) == {"replicas": [row]}


def test_missing_file_lists_no_replica(tmp_path):
    assert read_endpoints(tmp_path / "endpoints.json") == ()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"replicas": [{"id": "r0"}]}',
        '{"replicas": 3}',
        '{"replicas": [1]}',
        "[" * 99_999,
    ],
)
def test_other_content_is_refused_with_the_path(tmp_path, text):
    path = tmp_path / "endpoints.json"
    path.write_text(text)
    with pytest.raises(DataError, match="endpoints.json is no list of replicas"):
        read_endpoints(path)


def test_unreadable_file_is_refused(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        read_endpoints(tmp_path)
