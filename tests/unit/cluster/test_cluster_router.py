from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from collm.cluster.router import MAX_CANDIDATES, Router
from collm.cluster.routes import Choice, RouteRequest, Turned, TurnedReason
from collm.cluster.routing_config import RouterConfig
from collm.cluster.sent import Sent
from collm.cluster.table import ReplicaTable
from collm.server.prompt_ratio import PromptRatio
from collm.types import StepCoefficients, VersionId
from factories.fake_fleet import NUM_TEMPLATE_TOKENS, FakeFleet, FakeReplica
from factories.snapshots import ADAPTER, BASE_MODEL, COEFFICIENTS, make_snapshot

BUSY = {"num_running": 12, "num_context_tokens": 6_000}
LATE = {"num_running": 60, "queued_prefill_tokens": 6_000, "num_context_tokens": 20_000}


def make_router(seed: int = 0, **config: Any) -> Router:
    return Router(RouterConfig(**config), Random(seed))


def make_request(**changes: Any) -> RouteRequest:
    fields = {"model": ADAPTER, "num_prompt_bytes": 400, "num_output_tokens_guess": 20}
    return RouteRequest(**{**fields, **changes})


def choose(router: Router, request: RouteRequest, table: ReplicaTable, sent: Sent) -> Choice:
    choice = router.choose(request, table, sent, 0.0)
    assert isinstance(choice, Choice)
    return choice


def send_all(num: int, request: RouteRequest, table: ReplicaTable, seed: int = 0) -> list[str]:
    """Send copies at one instant, so that no snapshot tells of any of them."""
    router, sent, ids = make_router(seed), Sent(), []
    for _ in range(num):
        choice = choose(router, request, table, sent)
        sent.add(request, choice, 0.0)
        ids.append(choice.replica_id)
    return ids


def test_an_idle_replica_is_preferred_to_a_late_one() -> None:
    table = ReplicaTable([make_snapshot("busy", **LATE), make_snapshot("idle")])
    assert {
        choose(make_router(seed), make_request(), table, Sent()).replica_id for seed in range(20)
    } == {"idle"}


def test_a_burst_between_two_snapshots_spreads() -> None:
    table = ReplicaTable([make_snapshot(f"r{i}") for i in range(8)])
    counts = Counter(send_all(64, make_request(), table))
    assert min(counts.values()) >= 6
    assert max(counts.values()) <= 10


def test_of_a_burst_that_is_too_much_for_all_the_rest_goes_to_one() -> None:
    table = ReplicaTable([make_snapshot(f"r{i}") for i in range(8)])
    *others, most = sorted(Counter(send_all(128, make_request(), table)).values())
    assert max(others) <= 10  # as of half as many; none of more would be in time
    assert most >= 50


def test_a_hot_adapter_spreads_over_a_large_cluster() -> None:
    table = ReplicaTable(
        [make_snapshot(f"r{i}", quality={ADAPTER: 1.0 + (i == 7) / 50}) for i in range(100)]
    )
    counts = Counter(send_all(400, make_request(), table))
    assert max(counts.values()) <= 10
    assert len(counts) >= 80


@pytest.mark.parametrize("prefix_hashes", [(), (7,)])
def test_a_hot_adapter_spreads_and_meets_its_objectives_over_time(
    prefix_hashes: tuple[int, ...],
) -> None:
    fleet = FakeFleet(make_router(), [FakeReplica(f"r{i}") for i in range(4)])
    fleet.play(make_request(prefix_hashes=prefix_hashes), per_s=20.0, duration_s=10.0)
    assert min(fleet.counts.values()) >= 0.5 * fleet.counts.total() / 4
    assert fleet.met_share() >= 0.97


def test_caches_that_are_not_there_do_no_great_harm() -> None:
    replicas = [FakeReplica(f"r{i}", has_cache=False) for i in range(4)]
    fleet = FakeFleet(make_router(), replicas)
    fleet.play(make_request(prefix_hashes=(7,), session="all"), per_s=12.0, duration_s=10.0)
    assert fleet.met_share() >= 0.9


def test_a_replica_that_lies_about_its_load_does_not_attract_all_traffic() -> None:
    liar = FakeReplica("liar", slowness=15.0, claims_idle=True)
    fleet = FakeFleet(make_router(), [liar, *(FakeReplica(f"r{i}") for i in range(3))])
    fleet.play(make_request(), per_s=10.0, duration_s=20.0)
    assert fleet.counts["liar"] <= 0.1 * fleet.counts.total()
    assert fleet.met_share() >= 0.9


def test_a_replica_that_claims_to_be_idle_and_never_answers_gets_few_requests() -> None:
    hung = FakeReplica("hung", claims_idle=True, is_hung=True)
    fleet = FakeFleet(make_router(), [hung, *(FakeReplica(f"r{i}") for i in range(3))])
    fleet.play(make_request(), per_s=10.0, duration_s=20.0)
    assert fleet.counts["hung"] <= 0.05 * fleet.counts.total()


def test_a_liar_that_becomes_honest_is_trusted_again() -> None:
    liar = FakeReplica("liar", slowness=15.0, claims_idle=True)
    fleet = FakeFleet(make_router(), [liar, *(FakeReplica(f"r{i}") for i in range(3))])
    fleet.play(make_request(), per_s=10.0, duration_s=10.0)
    liar.slowness, liar.claims_idle = 1.0, False
    fleet.play(make_request(), per_s=10.0, duration_s=60.0)
    fleet.counts.clear()
    fleet.play(make_request(), per_s=10.0, duration_s=10.0)
    assert fleet.counts["liar"] >= 0.1 * fleet.counts.total()


def test_a_stale_snapshot_loses_against_fresh_ones_with_more_load() -> None:
    table = ReplicaTable(
        [
            make_snapshot("stale", taken_at_s=0.0),
            make_snapshot("fresh", taken_at_s=0.9, num_running=4),
        ]
    )
    for seed in range(20):
        choice = make_router(seed).choose(make_request(), table, Sent(), 1.0)
        assert isinstance(choice, Choice)
        assert choice.replica_id == "fresh"


def test_when_all_snapshots_are_stale_requests_still_go_out() -> None:
    table = ReplicaTable([make_snapshot("a"), make_snapshot("b")])
    assert isinstance(make_router().choose(make_request(), table, Sent(), 60.0), Choice)


@pytest.mark.parametrize("num_replicas", [2, 50])
@pytest.mark.parametrize("by", ["session", "prefix"])
def test_a_conversation_stays_on_its_replica(num_replicas: int, by: str) -> None:
    table = ReplicaTable([make_snapshot(f"r{i}") for i in range(num_replicas)])
    router, sent = make_router(), Sent()
    homes = set()
    for turn in range(1, 6):
        request = make_request(
            num_prompt_bytes=1_000 * turn if by == "prefix" else 400,
            prefix_hashes=tuple(range(100, 100 + 2 * turn)) if by == "prefix" else (),
            session="s" if by == "session" else None,
        )
        choice = choose(router, request, table, sent)
        sent.finished(sent.add(request, choice, 0.0), 0.0)
        homes.add(choice.replica_id)
        table.put(make_snapshot(choice.replica_id, num_running=2, num_context_tokens=500))
    assert len(homes) == 1


def test_a_conversation_leaves_a_replica_that_would_be_late() -> None:
    table = ReplicaTable([make_snapshot(f"r{i}") for i in range(3)])
    router, sent = make_router(), Sent()
    request = make_request(prefix_hashes=(1, 2), session="s")
    home = choose(router, request, table, sent)
    sent.finished(sent.add(request, home, 0.0), 0.0)
    table.put(make_snapshot(home.replica_id, **LATE))
    assert choose(router, request, table, sent).replica_id != home.replica_id


def test_a_cached_prompt_is_expected_sooner() -> None:
    table, router, sent = ReplicaTable([make_snapshot("r0")]), make_router(), Sent()
    request = make_request(num_prompt_bytes=2_000, prefix_hashes=(1, 2))
    first = choose(router, request, table, sent)
    sent.finished(sent.add(request, first, 0.0), 0.0)
    again = choose(router, request, table, sent)
    assert first.num_prefill_tokens == first.num_prompt_tokens == 501
    assert again.num_prefill_tokens == 1
    assert again.ttft_s < first.ttft_s - 0.4


def test_a_promotion_makes_caches_worthless() -> None:
    table, router, sent = ReplicaTable([make_snapshot("r0")]), make_router(), Sent()
    request = make_request(prefix_hashes=(1, 2))
    first = choose(router, request, table, sent)
    sent.finished(sent.add(request, first, 0.0), 0.0)
    table.put(make_snapshot("r0", active={ADAPTER: VersionId(f"{ADAPTER}@4")}))
    assert choose(router, request, table, sent).num_prefill_tokens == first.num_prefill_tokens


def test_a_home_with_a_little_less_chance_is_kept() -> None:
    """Predicted at 58 % of the objective: 4 % to be late, where others have none."""
    table = ReplicaTable([make_snapshot(f"r{i}") for i in range(3)])
    router, sent = make_router(), Sent()
    request = make_request(prefix_hashes=(1, 2))
    home = choose(router, request, table, sent)
    sent.finished(sent.add(request, home, 0.0), 0.0)
    table.put(make_snapshot(home.replica_id, num_running=16, num_context_tokens=2_000))
    again = choose(router, request, table, sent)
    assert again.replica_id == home.replica_id
    assert 0.95 < again.chance < 0.98


def test_a_template_is_part_of_a_prompt_and_computed_once_for_all() -> None:
    table = ReplicaTable([make_snapshot("r0", num_template_tokens=31)])
    choice = choose(make_router(), make_request(num_prompt_bytes=60), table, Sent())
    assert (choice.num_prompt_tokens, choice.num_prefill_tokens) == (47, 16)


def test_a_template_that_all_have_cached_makes_nobody_a_home() -> None:
    idle = {"num_template_tokens": 31}
    table = ReplicaTable([make_snapshot(f"r{i}", **idle) for i in range(3)])
    router, sent = make_router(), Sent()
    request = make_request(num_prompt_bytes=60, session="s")
    home = choose(router, request, table, sent)
    sent.finished(sent.add(request, home, 0.0), 0.0)
    busier = {"num_running": 16, "num_context_tokens": 2_000}
    table.put(make_snapshot(home.replica_id, **idle, **busier))
    assert choose(router, request, table, sent).replica_id == home.replica_id


OLDER = {ADAPTER: VersionId(f"{ADAPTER}@2")}


def test_the_better_adapter_wins_although_its_replica_is_busier() -> None:
    table = ReplicaTable(
        [
            make_snapshot("good", quality={ADAPTER: 1.5}, **BUSY),
            make_snapshot("poor", quality={ADAPTER: 1.0}, active=OLDER),
        ]
    )
    assert choose(make_router(), make_request(), table, Sent()).replica_id == "good"


def test_one_version_is_equally_good_wherever_it_was_measured() -> None:
    table = ReplicaTable(
        [
            make_snapshot("easy samples", quality={ADAPTER: 1.5}, **BUSY),
            make_snapshot("hard samples", quality={ADAPTER: 1.0}),
        ]
    )
    assert choose(make_router(), make_request(), table, Sent()).replica_id == "hard samples"


def test_quality_differences_inside_their_noise_count_as_none() -> None:
    noise = {ADAPTER: 0.2}
    table = ReplicaTable(
        [
            make_snapshot("lucky", quality={ADAPTER: 1.5}, quality_noise=noise, **BUSY),
            make_snapshot("other", quality={ADAPTER: 1.0}, quality_noise=noise, active=OLDER),
        ]
    )
    assert choose(make_router(), make_request(), table, Sent()).replica_id == "other"


def test_an_unmeasured_quality_is_no_reason_to_stay_away() -> None:
    table = ReplicaTable([make_snapshot("known", **BUSY), make_snapshot("new", quality={})])
    assert choose(make_router(), make_request(), table, Sent()).replica_id == "new"


def test_the_base_model_has_no_quality() -> None:
    table = ReplicaTable([make_snapshot("a", quality={ADAPTER: 9.0}, **BUSY), make_snapshot("b")])
    request = make_request(model=BASE_MODEL)
    assert choose(make_router(), request, table, Sent()).replica_id == "b"


def test_a_version_asked_for_by_its_label_has_the_same_quality_everywhere() -> None:
    table = ReplicaTable([make_snapshot("a", quality={ADAPTER: 9.0}, **BUSY), make_snapshot("b")])
    choice = choose(make_router(), make_request(model=f"{ADAPTER}@3"), table, Sent())
    assert (choice.replica_id, choice.version) == ("b", f"{ADAPTER}@3")


def test_a_price_on_work_moves_traffic_to_the_replica_where_it_adds_least() -> None:
    table = ReplicaTable([make_snapshot("serving", num_running=4), make_snapshot("training")])
    router, request = make_router(), make_request()
    assert choose(router, request, table, Sent()).replica_id == "training"
    router.follow({"serving": 0.5, "training": 0.5}, {})
    assert choose(router, request, table, Sent()).replica_id == "serving"


def test_no_price_makes_a_request_miss_that_another_replica_would_serve_in_time() -> None:
    late = make_snapshot("late", queued_prefill_tokens=2_000)
    table, router = ReplicaTable([late, make_snapshot("idle")]), make_router()
    router.follow({"late": 0.0, "idle": 1e6}, {})
    assert choose(router, make_request(), table, Sent()).replica_id == "idle"


def follow_shares(router: Router, table: ReplicaTable, num_requests: int) -> Counter[str]:
    """Return where requests go that are answered at once."""
    sent, counts = Sent(), Counter[str]()
    for number in range(num_requests):
        request = make_request(prefix_hashes=(number,))
        choice = choose(router, request, table, sent)
        ticket = sent.add(request, choice, 0.0)
        sent.started(ticket, 0.0)
        sent.finished(ticket, 0.0)
        counts[choice.replica_id] += 1
    return counts


def test_traffic_follows_the_shares_of_an_allocation_among_equals() -> None:
    table = ReplicaTable([make_snapshot("a"), make_snapshot("b")])
    router = make_router()
    router.follow({}, {ADAPTER: {"a": 0.2, "b": 0.8}})
    counts = follow_shares(router, table, 200)
    assert 20 <= counts["a"] <= 60
    assert counts["a"] + counts["b"] == 200


def test_shares_do_not_make_a_request_miss() -> None:
    late = make_snapshot("late", queued_prefill_tokens=2_000)
    table, router = ReplicaTable([late, make_snapshot("idle")]), make_router()
    router.follow({}, {ADAPTER: {"late": 1.0, "idle": 0.0}})
    assert follow_shares(router, table, 50) == {"idle": 50}


def test_replica_left_to_training_is_spared_although_its_price_is_low() -> None:
    busy = make_snapshot("busy", num_running=4)
    table, router = ReplicaTable([busy, make_snapshot("training")]), make_router()
    router.follow({"busy": 60.0, "training": 30.0}, {ADAPTER: {"busy": 1.0, "training": 0.0}})
    assert follow_shares(router, table, 50)["training"] <= 1


def test_adapter_without_shares_is_routed_as_before() -> None:
    table = ReplicaTable([make_snapshot("a"), make_snapshot("b")])
    router, plain = make_router(), make_router()
    router.follow({}, {"another": {"a": 1.0, "b": 0.0}})
    assert follow_shares(router, table, 50) == follow_shares(plain, table, 50)


def test_when_all_are_late_the_least_late_is_chosen() -> None:
    table = ReplicaTable(
        [
            make_snapshot("a", num_running=66, num_context_tokens=20_000),
            make_snapshot("b", num_running=60, num_context_tokens=20_000),
            make_snapshot("c", num_running=63, num_context_tokens=20_000),
        ]
    )
    assert choose(make_router(), make_request(), table, Sent()).replica_id == "b"


def test_what_is_too_much_for_all_goes_where_whatever_comes_is_late_already() -> None:
    table = ReplicaTable(
        [
            make_snapshot("a", **{**LATE, "queued_prefill_tokens": 0}),
            make_snapshot("b", **LATE),
            make_snapshot("c", **{**LATE, "queued_prefill_tokens": 7_000}),
        ]
    )
    assert choose(make_router(), make_request(), table, Sent()).replica_id == "c"


def test_long_prompt_that_is_late_everywhere_goes_where_it_is_least_late() -> None:
    slow = replace(COEFFICIENTS, prefill_s=4.0 * COEFFICIENTS.prefill_s)
    table = ReplicaTable([make_snapshot("a", step_coefficients=slow), make_snapshot("b")])
    request = make_request(num_prompt_bytes=12_000)
    assert choose(make_router(), request, table, Sent()).replica_id == "b"


def test_overload_leaves_most_of_the_replicas_in_time() -> None:
    fleet = FakeFleet(make_router(), [FakeReplica(str(number)) for number in range(4)])
    fleet.play(make_request(), per_s=30.0, duration_s=60.0)
    assert fleet.met_share() > 0.55  # a tenth when all are equally late
    *_, third, fourth = sorted(fleet.counts.values())
    assert fourth > 1.4 * third


def test_when_all_are_late_and_the_operator_wants_it_the_request_is_turned_away() -> None:
    table = ReplicaTable([make_snapshot("a", **LATE), make_snapshot("b", **LATE)])
    turned = make_router(rejects_late=True).choose(make_request(), table, Sent(), 0.0)
    assert isinstance(turned, Turned)
    assert turned.reason is TurnedReason.LATE
    assert 1.0 <= turned.retry_after_s < 600.0


def test_a_request_that_can_be_in_time_is_not_turned_away() -> None:
    table = ReplicaTable([make_snapshot("a", **LATE), make_snapshot("b")])
    assert isinstance(
        make_router(rejects_late=True).choose(make_request(), table, Sent(), 0.0), Choice
    )


@pytest.mark.parametrize("table", [ReplicaTable(), ReplicaTable([make_snapshot(is_draining=True)])])
def test_without_an_accepting_replica_a_request_is_turned_away(table: ReplicaTable) -> None:
    turned = make_router().choose(make_request(), table, Sent(), 0.0)
    assert turned == Turned(1.0, TurnedReason.NO_REPLICA)


def test_an_excluded_replica_is_not_chosen() -> None:
    table = ReplicaTable([make_snapshot("a"), make_snapshot("b")])
    for seed in range(20):
        choice = make_router(seed).choose(make_request(), table, Sent(), 0.0, exclude=("a",))
        assert isinstance(choice, Choice)
        assert choice.replica_id == "b"
    turned = make_router().choose(make_request(), table, Sent(), 0.0, exclude=("a", "b"))
    assert isinstance(turned, Turned)


def test_a_replica_that_catches_up_is_spared_while_another_can_answer() -> None:
    table = ReplicaTable([make_snapshot("back"), make_snapshot("busy", **BUSY)])
    router = make_router()
    router.spare(lambda model: {"busy"} if model == ADAPTER else None)
    assert choose(router, make_request(), table, Sent()).replica_id == "busy"
    assert choose(router, make_request(model=BASE_MODEL), table, Sent()).replica_id == "back"
    table.drop("busy")
    assert choose(router, make_request(), table, Sent()).replica_id == "back"


def test_a_request_goes_to_a_replica_that_serves_its_model() -> None:
    table = ReplicaTable([make_snapshot("a", names=(BASE_MODEL,)), make_snapshot("b", **BUSY)])
    assert choose(make_router(), make_request(), table, Sent()).replica_id == "b"


def test_a_name_that_nobody_serves_goes_to_some_replica_for_its_answer() -> None:
    table = ReplicaTable([make_snapshot("a")])
    assert choose(make_router(), make_request(model="missing"), table, Sent()).replica_id == "a"


def test_a_prompt_too_long_for_one_replica_goes_to_another() -> None:
    table = ReplicaTable([make_snapshot("small", max_model_len=64), make_snapshot("large", **BUSY)])
    assert choose(make_router(), make_request(), table, Sent()).replica_id == "large"


def test_equal_replicas_share_requests_that_come_one_by_one() -> None:
    table, router = ReplicaTable([make_snapshot(f"r{i}") for i in range(4)]), make_router()
    counts = Counter(choose(router, make_request(), table, Sent()).replica_id for _ in range(200))
    assert min(counts.values()) >= 30


def a_little_slower(cost: StepCoefficients) -> StepCoefficients:
    return replace(cost, constant_s=1.1 * cost.constant_s, prefill_s=1.1 * cost.prefill_s)


def test_replicas_that_look_a_little_different_share_requests_that_come_one_by_one() -> None:
    slower = make_snapshot("slower", step_coefficients=a_little_slower(COEFFICIENTS))
    table, router = ReplicaTable([make_snapshot("a"), slower]), make_router()
    counts = Counter(choose(router, make_request(), table, Sent()).replica_id for _ in range(200))
    assert min(counts.values()) >= 70


QUESTION = make_request(num_prompt_bytes=250, num_output_tokens_guess=7)
LONGER = make_request(num_prompt_bytes=700, num_output_tokens_guess=60)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("quality", [1.0, 2.0])
def test_two_replicas_that_learn_together_share_the_traffic_of_the_demo(
    quality: float, seed: int
) -> None:
    """Two requests a second for minutes; one replica has easier samples and looks 10 % faster."""
    claims = {"quality": {ADAPTER: quality}, "quality_noise": {ADAPTER: 0.02}}
    slower = {"step_coefficients": a_little_slower(COEFFICIENTS)}
    replicas = [
        FakeReplica("r0", slowness=1.5, quantum_s=0.04, claims=claims, random=Random(seed)),
        FakeReplica("r1", slowness=1.5, quantum_s=0.04, claims=slower, random=Random(seed + 1)),
    ]
    fleet = FakeFleet(make_router(seed), replicas)
    for second in range(240):
        request = QUESTION if second % 2 else LONGER
        fleet.play(request, per_s=2.0, duration_s=1.0, seed=1000 * seed + second)
    assert min(fleet.counts.values()) >= 0.4 * fleet.counts.total()
    assert fleet.met_share() >= 0.99


@pytest.mark.parametrize("seed", range(5))
def test_prompts_of_all_lengths_are_shared_by_replicas_that_count_their_tokens(seed: int) -> None:
    """Prompts are hardly longer than their template, as the demo's are, but for one in ten.

    One replica has seen long ones so far, the other short ones.
    """
    replicas = []
    for number, num_text in enumerate((200, 10)):
        lengths = PromptRatio(NUM_TEMPLATE_TOKENS)
        for _ in range(50):
            lengths.observe(4 * num_text, num_text + NUM_TEMPLATE_TOKENS)
        replicas.append(
            FakeReplica(f"r{number}", quantum_s=0.04, lengths=lengths, random=Random(seed + number))
        )
    fleet = FakeFleet(make_router(seed), replicas)
    num_long: Counter[str] = Counter()
    for second in range(480):
        fleet.play(
            make_request(num_prompt_bytes=64, num_output_tokens_guess=7),
            per_s=1.8, duration_s=1.0, seed=1000 * seed + second,
        )  # fmt: skip
        if second % 5 == 0:
            request = make_request(num_prompt_bytes=700, num_output_tokens_guess=30)
            num_long[fleet.send(request).replica_id] += 1
    for counts in (fleet.counts, num_long):
        assert min(counts["r0"], counts["r1"]) >= 0.4 * counts.total()


def test_an_idle_replica_is_preferred_to_a_busy_one_that_looks_a_little_faster() -> None:
    slower = make_snapshot("idle", step_coefficients=a_little_slower(COEFFICIENTS))
    table = ReplicaTable([make_snapshot("busy", num_running=1, num_context_tokens=100), slower])
    assert {
        choose(make_router(seed), make_request(), table, Sent()).replica_id for seed in range(20)
    } == {"idle"}


def test_a_replica_that_is_far_faster_gets_what_it_can_serve_in_time() -> None:
    cost = COEFFICIENTS
    slow = replace(cost, constant_s=2 * cost.constant_s, prefill_s=2 * cost.prefill_s)
    table = ReplicaTable(
        [make_snapshot("fast", num_running=1), make_snapshot("slow", step_coefficients=slow)]
    )
    assert {
        choose(make_router(seed), make_request(), table, Sent()).replica_id for seed in range(20)
    } == {"fast"}


def test_same_seed_same_choices() -> None:
    table = ReplicaTable([make_snapshot(f"r{i}", num_running=i % 5) for i in range(40)])
    first, second, other = (send_all(50, make_request(), table, seed) for seed in (1, 1, 2))
    assert first == second
    assert first != other


def test_a_large_cluster_has_few_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    table, router, sent = ReplicaTable(), make_router(), Sent()
    for i in range(50):
        table.put(make_snapshot(f"r{i:02}", num_running=i))
    newer = {ADAPTER: VersionId(f"{ADAPTER}@4")}
    table.put(make_snapshot("r33", active=newer, quality={ADAPTER: 2.0}, num_running=33))
    request = make_request(session="s", prefix_hashes=(1, 2))
    home = Choice(
        replica_id="r49",
        ttft_s=0.1,
        tpot_s=0.1,
        chance=1.0,
        claimed_ttft_s=0.1,
        num_prompt_tokens=9,
        num_prefill_tokens=9,
    )
    sent.add(request, home, 0.0)
    standing = table.standing
    monkeypatch.setattr(table, "standing", lambda one: seen.append(one) or standing(one))
    choose(router, request, table, sent)
    assert {"r49", "r33"} <= set(seen)
    assert 4 < len(seen) == len(set(seen)) <= MAX_CANDIDATES
