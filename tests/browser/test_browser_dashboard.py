"""The dashboard as a browser shows it. Skipped, with a reason, where there is no Chromium."""

import json
import threading
import time

import pytest
from fastapi.routing import APIRoute

from factories.browser import CHROMIUM, running_browser
from factories.dashboard import ALLOCATION, EXPLANATION, JOB, ShownReplica, listing, version_row
from factories.dashboard_front import dashboard_front
from factories.dashboard_history import fill
from factories.fake_replica import FakeReplica
from factories.figures import figures
from factories.server_thread import running_server

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium: apt-get install chromium; .ci/run does"
)

KEY = "the key"
IS_LIVE = "document.querySelector('#connection').dataset.state === 'live'"


@pytest.fixture(scope="module")
def browser():
    with running_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def front():
    with dashboard_front(rounds=Rounds()) as front:
        yield front


class Rounds:
    """A round with a late member and a replica that was not asked; the next one does not begin."""

    def status(self):
        def member(name, **changes):
            return {
                "member": name,
                "outcome": "reported",
                "reason": None,
                "report": {"num_tokens": 8192, "loss_before": 1.25, "loss_after": 0.75},
                "used_in": 1,
                **changes,
            }

        late = {"outcome": "late", "reason": "had not finished", "report": None, "used_in": None}
        row = {
            "round": 1,
            "status": "done",
            "reason": None,
            "base_version": None,
            "candidate": "clinc@3",
            "started_at_s": 1_700_000_000.0,
            "ended_at_s": 1_700_000_030.0,
            "results": {
                "planning": {"left_out": {"r2": "it serves another base model"}},
                "gate": {"increase": -0.125, "num_samples": 256},
            },
            "members": [member("r0"), member("r1", **late)],
        }
        pause = "a round needs 2 replicas of one base model; 1 answer"
        return {"clinc": {"active": "clinc@3", "pause": pause, "rounds": [row]}}

    async def roll_back(self, adapter):
        raise AssertionError("not asked for here")


def opened(browser, url, **look):
    page = browser.open_page(**look)
    page.goto(url)
    page.wait_for(IS_LIVE)
    return page


def test_frames_arrive_and_the_console_stays_empty(browser, front):
    page = opened(browser, front.url)
    page.wait_for("document.querySelector('#tiles').innerText.includes('66.6')")
    assert "Goodput" in page.text("#tiles")
    assert page.text("#model") == "tiny"
    page.wait_for("document.querySelectorAll('#replicas figure').length === 2")
    page.wait_for("document.querySelectorAll('#service-charts canvas').length === 6")
    assert page.errors == []


def test_every_part_shows_its_facts(browser, front):
    page = opened(browser, front.url)
    page.wait_for("document.querySelector('#round-list table')")
    rounds = page.text("#round-list")
    assert "late" in rounds
    assert "had not finished" in rounds
    assert "it serves another base model" in rounds
    assert "The next round of clinc does not begin: a round needs 2" in rounds
    assert "loss 1.250 → 0.750" in rounds
    assert "-0.1250" in rounds
    decisions = page.text("#decision-list")
    assert "better on held-out samples" in decisions
    assert "0.500" in decisions
    assert "-0.2000" in decisions
    assert "50 % → 75 %" in decisions
    versions = page.js(
        "[...document.querySelectorAll('#adapters tbody tr')].map((row) => row.innerText)"
    )
    assert "clinc@3" in versions[0]
    assert "63 %" in versions[0]
    assert "63 %" not in versions[1]
    assert JOB["id"] in page.text("#job-list")
    assert "No allocation yet" in page.text("#allocation-body")


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
        page.wait_for("document.querySelector('#adapters').innerText.includes('not measured yet')")
        assert page.js(f"document.querySelector('{LOSS} .plot').offsetParent === null")
        live |= {"active_held_out_loss": 0.5}
        page.wait_for(f"document.querySelector('{LOSS} .plot canvas')?.offsetParent")
        assert "nats per token" in page.text("#adapters")
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
        page.wait_for("document.querySelector('#job-list').innerText.includes('40 %, step 12')")
        assert page.js("document.querySelector('#job-list progress').value") == 0.4


def test_job_that_was_cancelled_does_not_seem_to_go_on(browser):
    replica = ShownReplica()
    ended = {"status": "cancelled", "finished_at": 1_700_000_900, "version": None}
    replica.answers["/v1/fine_tuning/jobs"] = lambda: listing({**JOB, **ended})
    with dashboard_front({"r0": replica}) as front:
        page = opened(browser, front.url)
        page.wait_for("document.querySelector('#job-list').innerText.includes('ended 2023-11-14')")
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
        shown = page.text("#allocation-body")
        assert "Allocation 7" in shown
        assert "r0 75 %, r1 25 %" in shown
        assert "10 % guaranteed, 2,048 tokens a step" in shown
        page.click("#allocation-body summary")
        assert EXPLANATION["text"][0] in page.text("#allocation-body")
        assert page.errors == []


def test_empty_server_says_what_is_not_there_yet(browser):
    replica = FakeReplica()
    replica.versions = lambda: ()
    with running_server(replica) as server:
        page = browser.open_page()
        page.goto(server.url)
        page.wait_for("document.querySelector('#job-list').innerText.includes('No fine-tuning')")
        page.wait_for("document.querySelector('#replicas').innerText.includes('not answering')")
        assert "learns alone" in page.text("#round-list")
        assert page.errors == []


def test_replica_that_is_lost_is_named(browser):
    with dashboard_front() as front:
        page = opened(browser, front.url)
        front.call(lambda server: server.states.silent.add("r1"))
        page.wait_for("document.querySelector('#replicas').innerText.includes('✕ not answering')")


def test_stalled_stream_says_for_how_long_and_recovers(browser):
    with dashboard_front() as front:
        page = opened(browser, front.url)
        front.call(_mute)
        page.wait_for("document.querySelector('#connection').dataset.state === 'stalled'", 20)
        assert "last update" in page.text("#connection")
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
        assert "trying again" in page.text("#connection")
        front.start()
        page.wait_for(IS_LIVE, 30)
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
        page.wait_for(
            "document.querySelector('#rollback-error').innerText.includes('not the admin')"
        )
        assert front.replicas["r0"].rollbacks == []
        page.type("#rollback-key", KEY)
        page.press("Enter")
        page.wait_for("!document.querySelector('#rollback').open")
        assert page.text("#notice") == "clinc was rolled back to clinc@2."
        assert front.replicas["r0"].rollbacks == [{"adapter": "clinc"}]
        assert [error for error in page.errors if "401" not in error] == []


def test_rollback_can_be_left_with_escape_and_changes_nothing(browser, front):
    page = opened(browser, front.url)
    page.wait_for("document.querySelector('#adapters button:not(:disabled)')")
    page.click("#adapters button")
    assert (
        page.js("getComputedStyle(document.querySelector('#rollback-key-row')).display") == "none"
    )
    page.press("Escape")
    page.wait_for("!document.querySelector('#rollback').open")
    assert all(replica.rollbacks == [] for replica in front.replicas.values())


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_page_is_never_wider_than_its_window(browser, front, width):
    page = opened(browser, front.url, width=width, height=780)
    page.wait_for("document.querySelector('#round-list table')")
    assert page.js("document.documentElement.scrollWidth") <= width


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
        assert name in page.text("#adapters")
        assert name in page.text("#job-list")
        assert page.js("document.querySelectorAll('main img').length") == 0
        assert page.errors == []


def test_range_can_be_chosen_by_keyboard(browser, front):
    page = opened(browser, front.url)
    page.js("document.querySelector('#ranges input').focus()")
    page.press("ArrowRight")
    assert page.js("document.querySelector('#ranges input:checked').value") == "1"


def legend_of(page, figure):
    """The values that a chart's legend shows, by name."""
    return page.js(
        f"Object.fromEntries([...document.querySelectorAll({json.dumps(figure + ' .legend li')})]"
        ".map((it) => [it.querySelector('span').innerText, it.querySelector('b').innerText]))"
    )


@pytest.fixture(scope="module")
def filled_front():
    with dashboard_front() as front:
        done = threading.Event()
        front.call(lambda server: (fill(server.app.state.dashboard.history), done.set()))
        assert done.wait(10)
        yield front


GOODPUT = "#service-charts figure:nth-child(3)"
LOSS = "#adapters figure:nth-child(1)"


@pytest.mark.parametrize("tier", [1, 2], ids=["hour", "day"])
def test_an_hour_and_a_day_are_shown_from_end_to_end(browser, filled_front, tier):
    page = opened(browser, filled_front.url)
    page.wait_for("document.querySelectorAll('#replicas figure').length === 2")
    page.click(f"#ranges input[value='{tier}']")
    for share, goodput in ((0.0, 0.0), (0.5, 0.5), (1.0, 1.0)):
        page.hover(f"{GOODPUT} .u-over", share)
        shown = float(legend_of(page, GOODPUT)["requests/s"])
        assert shown == pytest.approx(goodput, abs=0.02)
    page.hover(f"{LOSS} .u-over", 0.25)
    shown = legend_of(page, LOSS)
    assert float(shown["r0 served"]) == pytest.approx(1.75, abs=0.02)
    assert shown["r1 served"] == shown["r0 served"]
    page.hover(f"{LOSS} .u-over", 0.5)
    assert legend_of(page, LOSS)["r1 served"] == "–"
    assert page.js("document.documentElement.scrollWidth") <= 1280
    assert page.errors == []


def test_hours_of_frames_do_not_grow_the_page(browser, filled_front):
    page = opened(browser, filled_front.url)
    counted = page.js(
        """import('/dashboard/assets/store.js').then(({ Store }) => {
             const store = new Store();
             const tier = { period_s: 1, num_frames: 300, frames: [] };
             store.setHistory({ fields: [], tiers: [tier] });
             for (let at = 0; at < 20000; at++) store.addFrame({ tier: 0, frame: { at } });
             return [store.tiers[0].frames.length, store.latest.at];
           })"""
    )
    assert counted == [300, 19_999]


def test_lines_are_not_drawn_over_a_time_without_frames(browser, filled_front):
    page = opened(browser, filled_front.url)
    shown = page.js(
        """import('/dashboard/assets/store.js').then(({ Store }) => {
             const store = new Store();
             const frames = [1, 2, 3, 60, 61].map((at) => ({ at, rows: { '': [at] } }));
             const tier = { period_s: 1, num_frames: 300, frames };
             store.setHistory({ fields: ['x'], tiers: [tier] });
             const before = [store.times(0), store.series(0, 'x')];
             store.addFrame({ tier: 0, frame: { at: 303, rows: { '': [303] } } });
             return [...before, store.times(0)];
           })"""
    )
    assert shown[0] == [1, 2, 3, 4, 60, 61]
    assert shown[1] == [1, 2, 3, None, 60, 61]
    assert shown[2] == [4, 60, 61, 62, 303]  # what is older than the span is gone


def test_first_tab_leads_past_the_header(browser, front):
    page = opened(browser, front.url)
    page.press("Tab")
    assert page.js("document.activeElement.className") == "skip"
    assert page.js("document.activeElement.getBoundingClientRect().top >= 0")


_LANDMARKS = """(() => ({
  titled: document.title !== '' && document.documentElement.lang === 'en',
  landmarks: ['header', 'main', 'nav', 'footer'].map(
    (tag) => document.querySelectorAll(tag).length),
  headings: [...document.querySelectorAll('h1, h2, h3')].filter((it) => it.offsetParent)
    .map((it) => Number(it.tagName[1])),
  untitledSections: [...document.querySelectorAll('section')].filter(
    (it) => !document.getElementById(it.getAttribute('aria-labelledby'))?.innerText).length,
  tablesWithoutCaption: [...document.querySelectorAll('table')].filter(
    (it) => !it.caption?.innerText).length,
  cellsWithoutScope: [...document.querySelectorAll('thead th, tbody th')].filter(
    (it) => !it.scope).length,
  unnamed: [...document.querySelectorAll('button, a, input, progress, figure')].filter((it) =>
    !(it.innerText || it.getAttribute('aria-label') || it.labels?.[0]?.innerText)).length,
  imagesWithoutAlt: [...document.querySelectorAll('img:not([alt])')].length,
  doubleIds: [...document.querySelectorAll('[id]')].length
    - new Set([...document.querySelectorAll('[id]')].map((it) => it.id)).size,
  live: document.querySelector('#connection').getAttribute('role'),
}))()"""


def test_structure_can_be_followed_without_seeing(browser, front):
    page = opened(browser, front.url)
    page.wait_for("document.querySelector('#round-list table')")
    found = page.js(_LANDMARKS)
    headings = found.pop("headings")
    assert headings[0] == 1
    assert headings.count(1) == 1
    assert all(after - before <= 1 for before, after in zip(headings, headings[1:], strict=False))
    assert found == {
        "titled": True,
        "landmarks": [1, 1, 1, 1],
        "untitledSections": 0,
        "tablesWithoutCaption": 0,
        "cellsWithoutScope": 0,
        "unnamed": 0,
        "imagesWithoutAlt": 0,
        "doubleIds": 0,
        "live": "status",
    }


_CONTRASTS = """(() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255).map((v) =>
    v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (it) => {
    for (; it; it = it.parentElement) {
      const colour = parse(getComputedStyle(it).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const poor = [];
  for (const it of document.querySelectorAll('body *')) {
    const own = [...it.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || !it.offsetParent || it.disabled) continue;
    const [a, b] = [light(parse(getComputedStyle(it).color)), light(ground(it))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) poor.push(`${it.tagName}.${it.className} ${it.innerText} ${ratio.toFixed(2)}`);
  }
  return poor;
})()"""


@pytest.mark.parametrize("dark", [False, True])
def test_text_stands_out_from_its_ground(browser, front, dark):
    page = opened(browser, front.url, dark=dark)
    page.wait_for("document.querySelector('#round-list table')")
    ground = page.js("getComputedStyle(document.body).backgroundColor")
    assert (sum(json.loads(ground.replace("rgb(", "[").replace(")", "]"))) < 200) == dark
    assert page.js(_CONTRASTS) == []
