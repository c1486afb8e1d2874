"""The dashboard by keyboard, for a screen reader, on a phone, and in light and dark."""

import json

import pytest

from factories.dashboard_page import GOODPUT, LOSS, legend_of, needs_browser, opened

pytestmark = needs_browser


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_page_is_never_wider_than_its_window(browser, front, width):
    page = opened(browser, front.url, width=width, height=780)
    page.wait_for("document.querySelector('#round-list table')")
    assert page.js("document.documentElement.scrollWidth") <= width


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


def test_range_can_be_chosen_by_keyboard(browser, front):
    page = opened(browser, front.url)
    page.js("document.querySelector('#ranges input').focus()")
    page.press("ArrowRight")
    assert page.js("document.querySelector('#ranges input:checked').value") == "1"


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
  unnamed: [...document.querySelectorAll(
    'button, a, input, progress, figure, [role=slider]')].filter((it) => !(it.innerText
    || it.getAttribute('aria-label') || it.labels?.[0]?.innerText)).length,
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


def test_values_of_a_moment_are_read_by_keyboard(browser, filled_front):
    page = opened(browser, filled_front.url)
    page.click("#ranges input[value='1']")
    page.wait_for(f"document.querySelector('{GOODPUT} canvas')")
    latest = legend_of(page, GOODPUT)["requests/s"]
    page.js(f"document.querySelector('{GOODPUT} [role=slider]').focus()")
    page.press("Home")
    assert legend_of(page, GOODPUT)["requests/s"] == "0"
    moment = page.text(f"{GOODPUT} .when")
    assert moment != ""
    assert page.text(f"{LOSS} .when") == moment  # all charts show the same moment
    said = page.js(f"document.querySelector('{GOODPUT} [role=slider]').ariaValueText")
    assert said.startswith(f"{moment}: requests/s 0, ")
    page.press("ArrowRight")
    assert page.text(f"{GOODPUT} .when") > moment
    page.press("Escape")
    assert page.text(f"{GOODPUT} .when") == ""
    assert legend_of(page, GOODPUT)["requests/s"] == latest
    assert page.errors == []


def test_focus_returns_to_the_button_that_opened_the_rollback(browser, front):
    page = opened(browser, front.url)
    page.wait_for("document.querySelector('#adapters button:not(:disabled)')")
    page.js("document.querySelector('#adapters button').focus()")
    page.press("Enter")
    page.wait_for("document.querySelector('#rollback').open")
    page.js(
        "document.querySelector('#adapters button').dataset.old = '';"
        "delete document.querySelector('#adapters .card-head').dataset.shown"
    )
    page.wait_for("document.querySelector('#adapters button:not([data-old])')")
    page.press("Escape")
    page.wait_for("document.activeElement.closest('#adapters button') !== null")
