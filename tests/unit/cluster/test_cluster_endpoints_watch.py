from pathlib import Path

from collm.cluster.endpoints import Endpoint, write_endpoints
from collm.cluster.endpoints_watch import EndpointsWatch

FIRST = Endpoint(replica_id="a", url="http://127.0.0.1:1", pid=1, started_at_s=1.0)
SECOND = Endpoint(replica_id="b", url="http://127.0.0.1:2", pid=2, started_at_s=2.0)


def test_the_file_is_read_once_per_change(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.json"
    watch = EndpointsWatch(path)
    assert watch.read_if_changed() is None
    write_endpoints(path, [FIRST])
    assert watch.read_if_changed() == (FIRST,)
    assert watch.read_if_changed() is None
    write_endpoints(path, [FIRST, SECOND])
    assert watch.read_if_changed() == (FIRST, SECOND)


def test_a_new_watch_finds_what_was_written_before_it(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.json"
    write_endpoints(path, [FIRST])
    assert EndpointsWatch(path).read_if_changed() == (FIRST,)


def test_a_file_that_is_malformed_or_vanishes_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.json"
    watch = EndpointsWatch(path)
    path.write_text("{")
    assert watch.read_if_changed() is None
    path.unlink()
    assert watch.read_if_changed() is None
    write_endpoints(path, [SECOND])
    assert watch.read_if_changed() == (SECOND,)
