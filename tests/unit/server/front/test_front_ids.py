import pytest

from collm.server.front.ids import replica_of

HEX = "0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("object_id", "replica"),
    [
        (f"chatcmpl-r0-{HEX}", "r0"),
        (f"chatcmpl-r0-{HEX}-1", "r0"),
        (f"file-eu-west-1-{HEX}", "eu-west-1"),
        (f"file-{HEX}", None),
        (f"file-{HEX}-{HEX}", HEX),
        ("chatcmpl-r0-short", None),
        ("", None),
    ],
)
def test_ids_name_their_replica_or_none(object_id, replica):
    assert replica_of(object_id) == replica
