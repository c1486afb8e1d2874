import errno

import pytest

from collm.errors import (
    AdapterError,
    CapacityError,
    DiskFullError,
    QueueFullError,
    RequestError,
    UnknownAdapterError,
)
from collm.server.config import ServerConfig
from collm.server.errors import UnavailableError, reply_to
from collm.server.service import Service
from factories.fake_backends import fake_backends
from factories.fake_replica import FakeReplica, as_replica


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (RequestError("m", param="p", code="c"), 400, "c"),
        (UnknownAdapterError("m"), 404, "model_not_found"),
        (AdapterError("m"), 409, "adapter_conflict"),
        (CapacityError("m"), 400, "capacity_exceeded"),
        (QueueFullError("m"), 429, "queue_full"),
        (UnavailableError("m"), 503, "unavailable"),
    ],
)
def test_expected_errors_keep_their_message(error, status, code):
    reply = reply_to(error)
    assert (reply.status, reply.code, reply.message) == (status, code, "m")
    assert reply.body()["error"]["param"] == getattr(error, "param", None)


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "no space"), OSError(errno.EDQUOT, "quota"), DiskFullError("m")]
)
def test_full_disk_is_told_with_what_can_be_done(error, caplog):
    caplog.set_level("CRITICAL")
    reply = reply_to(error)
    assert (reply.status, reply.kind, reply.code) == (507, "server_error", "disk_full")
    assert "nothing of this was kept. Free space" in reply.message
    assert reply_to(OSError(errno.EACCES, "no")).status == 500


def test_unexpected_error_tells_the_log_but_not_the_client(caplog):
    reply = reply_to(KeyError("secret"))
    assert reply.status == 500
    assert "secret" not in reply.message
    assert "secret" in caplog.text


def test_ended_step_loop_is_unavailable():
    replica = FakeReplica()
    service = Service(backends=fake_backends(as_replica(replica)), config=ServerConfig())
    service.require_alive()
    replica.is_alive = False
    with pytest.raises(UnavailableError, match="restart"):
        service.require_alive()
