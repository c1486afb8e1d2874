from collm.cluster.affinity import NOT_CACHED, Affinity, Cached
from collm.cluster.routes import RouteRequest
from collm.types import VersionId


def chat(
    *hashes: int, num_bytes: int = 300, model: str = "m", session: str | None = None
) -> RouteRequest:
    return RouteRequest(
        model=model, num_prompt_bytes=num_bytes, prefix_hashes=hashes, session=session
    )


def test_a_longer_conversation_finds_the_replica_of_its_beginning() -> None:
    affinity = Affinity()
    affinity.add(chat(1, 2, num_bytes=300), "a", None)
    assert affinity.cached(chat(1, 2, 3, 4, num_bytes=700)) == Cached({"a": None}, 300)


def test_the_longest_beginning_wins() -> None:
    affinity = Affinity()
    affinity.add(chat(1, 2, 3, num_bytes=900), "a", None)
    affinity.add(chat(1, num_bytes=100), "b", None)
    assert affinity.cached(chat(1, 2, 3, 4, num_bytes=999)).holders == {"a": None}
    assert affinity.cached(chat(1, 9)).holders == {"b": None, "a": None}


def test_a_message_inside_a_prompt_has_its_even_share_of_the_bytes() -> None:
    affinity = Affinity()
    affinity.add(chat(1, 2, 3, num_bytes=900), "a", None)
    assert affinity.cached(chat(1, 9, num_bytes=900)).num_bytes == 300


def test_a_whole_prompt_has_its_own_bytes_whatever_was_guessed_before_or_after() -> None:
    affinity = Affinity()
    affinity.add(chat(1, 2, num_bytes=1_000), "a", None)
    affinity.add(chat(1, num_bytes=40), "a", None)
    affinity.add(chat(1, 5, num_bytes=1_000), "a", None)
    assert affinity.cached(chat(1, 9, num_bytes=999)).num_bytes == 40


def test_no_more_is_cached_than_the_prompt_has() -> None:
    affinity = Affinity()
    affinity.add(chat(1, num_bytes=500), "a", None)
    assert affinity.cached(chat(1, num_bytes=200)).num_bytes == 200


def test_the_latest_two_replicas_of_a_prefix_are_remembered() -> None:
    affinity = Affinity()
    for replica_id in ("a", "b", "a", "c"):
        affinity.add(chat(1), replica_id, None)
    assert affinity.cached(chat(1)).holders == {"c": None, "a": None}


def test_prefixes_and_sessions_belong_to_a_model() -> None:
    affinity = Affinity()
    affinity.add(chat(1, session="s"), "a", None)
    assert affinity.cached(chat(1, model="other")) == NOT_CACHED
    assert affinity.session_home(chat(session="s", model="other")) is None
    assert affinity.session_home(chat(session="s")) == "a"
    assert affinity.latest("m") == "a"
    assert affinity.latest("other") is None


def test_a_request_without_a_session_has_no_home() -> None:
    affinity = Affinity()
    affinity.add(chat(), "a", None)
    assert affinity.session_home(chat()) is None


def test_what_was_not_sent_for_longest_is_forgotten() -> None:
    affinity = Affinity(max_entries=2)
    affinity.add(chat(1), "a", None)
    affinity.add(chat(2), "a", None)
    affinity.add(chat(1), "a", None)
    affinity.add(chat(3), "a", None)
    assert affinity.cached(chat(2)) == NOT_CACHED
    assert affinity.cached(chat(1)).holders == {"a": None}


def test_what_a_dead_replica_had_cached_is_gone_and_what_it_computes_anew_counts() -> None:
    affinity = Affinity()
    affinity.add(chat(1), "a", None)
    affinity.add(chat(1), "b", None)
    affinity.forget("b")
    assert affinity.cached(chat(1)).holders == {"a": None}
    affinity.add(chat(1), "b", None)
    assert list(affinity.cached(chat(1)).holders) == ["b", "a"]


def test_a_beginning_is_remembered_with_the_version_that_computed_it() -> None:
    affinity = Affinity()
    affinity.add(chat(1), "a", VersionId("m@1"))
    affinity.add(chat(1), "b", VersionId("m@2"))
    assert affinity.cached(chat(1)).holders == {"b": "m@2", "a": "m@1"}
