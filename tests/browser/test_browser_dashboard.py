"""The dashboard as a browser shows it: what is there, what is missing, and what comes back."""

import json
import time

from fastapi.routing import APIRoute

from factories.dashboard import ALLOCATION, EXPLANATION, JOB, ShownReplica, listing, version_row
from factories.dashboard_front import dashboard_front
from factories.dashboard_page import IS_LIVE, LOSS, needs_browser, opened
from factories.fake_replica import FakeReplica
from factories.figures import figures
from factories.server_thread import running_server

KEY = "the key"
pytestmark = needs_browser


def test_frames_arrive_and_the_console_stays_empty(browser, front):
    page = opened(browser, front.url)
    page.wait_for_text("#tiles", "Goodput", "66.6")
    page.wait_for_text("#model", "tiny")
    page.wait_for("document.querySelectorAll('#replicas figure').length === 2")
    page.wait_for("document.querySelectorAll('#service-charts canvas').length === 6")
    assert page.errors == []


def test_every_part_shows_its_facts(browser, front):
    page = opened(browser, front.url)
    page.wait_for_text(
        "#round-list",
        "late",
        "had not finished",
        "it serves another base model",
        "The next round of clinc does not begin: a round needs 2",
        "loss 1.250 → 0.750",
        "-0.1250",
    )
    page.wait_for_text(
        "#decision-list", "better on held-out samples", "0.500", "-0.2000", "50 % → 75 %"
    )
    page.wait_for_text("#adapters tbody", "clinc@3", "63 %")
    versions = page.js(
        "[...document.querySelectorAll('#adapters tbody tr')].map((row) => row.innerText)"
    )
    assert "clinc@3" in versions[0]
    assert "63 %" in versions[0]
    assert "63 %" not in versions[1]
    page.wait_for_text("#job-list", JOB["id"])
    page.wait_for_text("#allocation-body", "No allocation yet")


def test_exact_match_is_drawn_where_answers_are_short_and_not_where_they_are_long(browser):
    long, short = ShownReplica(), ShownReplica()
    live = figures(10.0)["adapters"]["clinc"] | {
        "held_out_exact_match": None,
        "active_exact_match": None,
    }
    long.answers["/control/snapshot"] = lambda: figures(time.monotonic(), adapters={"clinc": live})
    for replica, is_shown in ((short, True), (long, False)):
        with dashboard_front({"r0": replica}) as front:
            page = opened(browser, front.url)
            page.wait_for("document.querySelectorAll('#adapters figure').length === 2")
            page.wait_for("document.querySelector('#adapters tbody')")
            chart = "document.querySelectorAll('#adapters figure')[1]"
            page.wait_for(f"({chart}.offsetParent !== null) === {json.dumps(is_shown)}")
            page.wait_for(f"{chart}.innerText.includes('63 %')" if is_shown else f"{chart}.hidden")


def test_loss_that_was_never_measured_has_no_axis(browser):
    replica = ShownReplica()
    unknown = {"held_out_loss": None, "active_held_out_loss": None}
    live = figures(10.0)["adapters"]["clinc"] | unknown
    replica.answers["/control/snapshot"] = lambda: figures(
        time.monotonic(), adapters={"clinc": live}
    )
    with dashboard_front({"r0": replica}) as front:
        page = opened(browser, front.url)
        page.wait_for_text("#adapters", "not measured yet")
        assert page.js(f"document.querySelector('{LOSS} .plot').offsetParent === null")
        live |= {"active_held_out_loss": 0.5}
        page.wait_for(f"document.querySelector('{LOSS} .plot canvas')?.offsetParent")
        page.wait_for_text("#adapters", "nats per token")
        assert page.errors == []


def test_job_with_an_end_shows_how_much_of_it_is_done(browser):
    replica = ShownReplica()
    replica.answers["/v1/fine_tuning/jobs"] = lambda: listing({**JOB, "continuous": False})
    live = figures(10.0)["adapters"]["clinc"] | {"done_share": 0.4, "step": 12}
    replica.answers["/control/snapshot"] = lambda: figures(
        time.monotonic(), adapters={"clinc": live}
    )
    with dashboard_front({"r0": replica}) as front:
        page = opened(browser, front.url)
        page.wait_for_text("#job-list", "40 %, step 12")
        assert page.js("document.querySelector('#job-list progress').value") == 0.4


def test_job_that_was_cancelled_does_not_seem_to_go_on(browser):
    replica = ShownReplica()
    ended = {"status": "cancelled", "finished_at": 1_700_000_900, "version": None}
    replica.answers["/v1/fine_tuning/jobs"] = lambda: listing({**JOB, **ended})
    with dashboard_front({"r0": replica}) as front:
        page = opened(browser, front.url)
        page.wait_for_text("#job-list", "ended 2023-11-14")
        assert "goes on" not in page.text("#job-list")
        assert "nothing yet" not in page.text("#job-list")


def test_allocation_is_shown_with_its_reasons(browser):
    def allocate(server):
        async def show_allocation(replica: str | None = None):
            return ALLOCATION if replica is None else EXPLANATION

        # A route of the same path that was there before would go on answering.
        server.app.router.routes.insert(0, APIRoute("/cluster/allocation", show_allocation))

    with dashboard_front() as front:
        front.call(allocate)
        page = opened(browser, front.url)
        page.wait_for("document.querySelectorAll('#allocation-body table').length === 2")
        page.wait_for_text(
            "#allocation-body",
            "Allocation 7",
            "r0 75 %, r1 25 %",
            "10 % guaranteed, 2,048 tokens a step",
        )
        page.click("#allocation-body summary")
        page.wait_for_text("#allocation-body", EXPLANATION["text"][0])
        assert page.errors == []


def test_empty_server_says_what_is_not_there_yet(browser):
    replica = FakeReplica()
    replica.versions = lambda: ()
    with running_server(replica) as server:
        page = browser.open_page()
        page.goto(server.url)
        page.wait_for_text("#job-list", "No fine-tuning")
        page.wait_for_text("#replicas", "not answering")
        page.wait_for_text("#round-list", "learns alone")
        assert page.errors == []


def test_what_cannot_be_read_is_not_said_to_be_nothing(browser):
    replica = ShownReplica()
    for path in ("/adapters", "/v1/fine_tuning/jobs"):
        del replica.answers[path]
    with dashboard_front({"r0": replica}) as front:
        page = opened(browser, front.url)
        page.wait_for_text("#job-list", "cannot be read")
        page.wait_for_text("#adapters", "versions cannot be read now")
        page.wait_for_text("#decision-list", "decisions cannot be read now")
        assert page.errors == []


def test_replica_that_is_lost_is_named(browser):
    with dashboard_front() as front:
        page = opened(browser, front.url)
        front.call(lambda server: server.states.silent.add("r1"))
        page.wait_for_text("#replicas", "✕ not answering")


def test_stalled_stream_says_for_how_long_and_recovers(browser):
    with dashboard_front() as front:
        page = opened(browser, front.url)
        front.call(_mute)
        page.wait_for("document.querySelector('#connection').dataset.state === 'stalled'")
        page.wait_for_text("#connection", "last update")
        front.call(_unmute)
        page.wait_for(IS_LIVE)
        assert page.errors == []


def _mute(server):
    watchers = server.app.state.dashboard.watchers
    watchers.publish = lambda event: None


def _unmute(server):
    del server.app.state.dashboard.watchers.publish


def test_page_finds_a_restarted_front_again(browser):
    with dashboard_front() as front:
        page = opened(browser, front.url)
        front.stop()
        page.wait_for("document.querySelector('#connection').dataset.state === 'gone'")
        page.wait_for_text("#connection", "trying again")
        front.start()
        page.wait_for(IS_LIVE)
        page.wait_for("document.querySelectorAll('#replicas figure').length === 2")
        assert page.errors == []


def test_rollback_takes_a_confirmation_and_the_right_key(browser):
    with dashboard_front({"r0": ShownReplica()}, admin_key=KEY) as front:
        page = opened(browser, front.url)
        page.wait_for("document.querySelector('#adapters button:not(:disabled)')")
        page.click("#adapters button")
        assert page.js("document.querySelector('#rollback').open")
        assert "clinc@3" in page.text("#rollback-text")
        assert front.replicas["r0"].rollbacks == []
        page.type("#rollback-key", "wrong")
        page.press("Enter")
        page.wait_for_text("#rollback-error", "not the admin")
        assert front.replicas["r0"].rollbacks == []
        page.type("#rollback-key", KEY)
        page.press("Enter")
        page.wait_for("!document.querySelector('#rollback').open")
        page.wait_for_text("#notice", "clinc was rolled back to clinc@2.")
        assert front.replicas["r0"].rollbacks == [{"adapter": "clinc"}]
        assert [error for error in page.errors if "401" not in error] == []


def test_names_from_users_stay_text(browser):
    name = "<img src=x onerror=alert(1)>"
    replica = ShownReplica()
    replica.answers["/adapters"] = lambda: listing(version_row(3, adapter=name, version=name))
    replica.answers["/v1/fine_tuning/jobs"] = lambda: listing({**JOB, "adapter": name})
    replica.answers["/control/snapshot"] = lambda: figures(
        10.0, adapters={name: {"active": name, "status": "running"}}
    )
    with dashboard_front({"r0": replica}) as front:
        page = opened(browser, front.url)
        page.wait_for("document.querySelector('#job-list table')")
        page.wait_for("document.querySelector('#adapters h3')")
        page.wait_for_text("#adapters", name)
        page.wait_for_text("#job-list", name)
        assert page.js("document.querySelectorAll('main img').length") == 0
        assert page.errors == []
