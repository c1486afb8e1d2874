"""The router's indices and sums against plain recounts, over random histories."""

import json
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from collm.cluster.lanes import Ticket
from collm.cluster.router import Router
from collm.cluster.routes import Choice, RouteRequest
from collm.cluster.routing_config import RouterConfig
from collm.cluster.sent import Sent
from collm.cluster.snapshot_json import from_json, to_json
from collm.cluster.table import ANY, ReplicaTable
from collm.types import ReplicaSnapshot
from factories.snapshots import make_snapshot

NAMES = ("base", "one", "two")

snapshots = st.builds(
    make_snapshot,
    st.sampled_from([f"r{i}" for i in range(12)]),
    names=st.lists(st.sampled_from(NAMES)).map(tuple),
    active=st.dictionaries(st.sampled_from(NAMES), st.sampled_from(["x@1", "x@2", "x@3"])),
    quality=st.dictionaries(st.sampled_from(NAMES), st.floats(0.0, 10.0)),
    quality_noise=st.dictionaries(st.sampled_from(NAMES), st.floats(0.0, 10.0)),
    is_draining=st.booleans(),
    taken_at_s=st.floats(-100.0, 10.0),
    num_running=st.integers(0, 500),
    num_waiting=st.integers(0, 500),
    queued_prefill_tokens=st.integers(0, 10**6),
    num_context_tokens=st.integers(0, 10**6),
    num_free_blocks=st.integers(0, 10**5),
    credit_share=st.floats(0.0, 1.0),
)


@given(
    st.lists(st.one_of(snapshots, st.sampled_from([f"r{i}" for i in range(12)]))),
    st.floats(0.0, 1.0, exclude_max=True),
)
@settings(max_examples=60, deadline=None)
def test_pools_are_what_a_scan_of_all_snapshots_would_find(
    history: list[ReplicaSnapshot | str], drawn: float
) -> None:
    table, expected = ReplicaTable(), dict[str, ReplicaSnapshot]()
    for item in history:
        if isinstance(item, str):
            table.drop(item)
            expected.pop(item, None)
        else:
            table.put(item)
            expected[item.replica_id] = item
    assert dict(table) == expected
    for name in (ANY, *NAMES):
        serving = {
            one.replica_id: (one.active.get(name), one.quality.get(name, 0.0))
            for one in expected.values()
            if not one.is_draining and (name in one.names or name == ANY)
        }
        pool = table.pool(name)
        assert (pool is None) == (not serving)
        if pool is not None:
            assert sorted(pool.ids) == sorted(serving)
            worth = {
                one: max(quality for other, quality in serving.values() if other == version)
                for one, (version, _) in serving.items()
            }
            for count in (1, 2, 99):
                best = pool.best(count, lambda: drawn)
                if len({version for version, _ in serving.values()}) == 1:
                    assert best == []
                    continue
                assert len(best) == len(set(best)) == min(count, len(serving))
                highest = sorted(worth.values(), reverse=True)[:count]
                assert [worth[one] for one in best] == highest


@given(st.lists(snapshots, min_size=1), st.integers(0, 99), st.sampled_from(NAMES))
@settings(max_examples=60, deadline=None)
def test_every_choice_is_an_accepting_replica_with_a_sound_prediction(
    held: list[ReplicaSnapshot], seed: int, model: str
) -> None:
    table = ReplicaTable(held)
    request = RouteRequest(model=model, num_prompt_bytes=1_000, prefix_hashes=(1, 2), session="s")
    choice = Router(RouterConfig(), Random(seed)).choose(request, table, Sent(), 10.0)
    if not isinstance(choice, Choice):
        assert all(one.is_draining for one in table.values())
        return
    chosen = table[choice.replica_id]
    assert not chosen.is_draining
    if any(model in one.names for one in table.values() if not one.is_draining):
        assert model in chosen.names
    assert choice.ttft_s >= 0.0
    assert choice.tpot_s > 0.0
    assert 0.0 <= choice.chance <= 1.0


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "add whole", "start", "finish", "snapshot"]),
            st.integers(0, 9),
            st.integers(1, 50),
        )
    )
)
@settings(max_examples=100, deadline=None)
def test_the_sums_of_a_lane_are_those_of_its_requests(steps: list[tuple[str, int, int]]) -> None:
    sent, taken_at_s, now_s = Sent(), 0.0, 0.0
    tickets: list[Ticket] = []
    sent_at, tokens, whole = list[float](), list[int](), list[bool]()
    started, ended = set[int](), set[int]()
    for what, index, num_tokens in steps:
        now_s += 0.25
        if what.startswith("add"):
            request = RouteRequest(model="m", num_prompt_bytes=4, is_streamed=what == "add")
            choice = Choice(
                replica_id="r",
                ttft_s=1.0,
                tpot_s=0.1,
                chance=1.0,
                claimed_ttft_s=1.0,
                num_prompt_tokens=50,
                num_prefill_tokens=num_tokens,
            )
            tickets.append(sent.add(request, choice, now_s))
            sent_at.append(now_s)
            tokens.append(num_tokens)
            whole.append(what != "add")
        elif what == "snapshot":
            taken_at_s = now_s
        elif index < len(tickets) and what == "start":
            sent.started(tickets[index], now_s)
            started.add(index)
        elif index < len(tickets):
            sent.finished(tickets[index], now_s)
            ended.add(index)
        load = sent.load("r", taken_at_s, now_s)
        live = [i for i in range(len(tickets)) if i not in ended]
        waiting = [i for i in live if i not in started]
        assert load.num_open == len(live)
        assert load.num_sequences == sum(sent_at[i] >= taken_at_s for i in live)
        recent = [tokens[i] for i in waiting if sent_at[i] >= taken_at_s]
        assert load.num_prefill_tokens == sum(recent)
        assert load.num_queued_tokens == sum([tokens[i] for i in waiting if not whole[i]][1:])
        assert 0.5 <= load.ratio <= 64.0


@given(snapshots)
@settings(max_examples=60, deadline=None)
def test_every_snapshot_survives_json(snapshot: ReplicaSnapshot) -> None:
    value = json.loads(json.dumps(to_json(snapshot)))
    assert from_json(value, url=snapshot.url, taken_at_s=snapshot.taken_at_s) == snapshot
