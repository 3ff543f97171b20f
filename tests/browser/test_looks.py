"""Each view is free of faults that axe knows, in both themes; nothing jumps; nothing is wider than a narrow screen."""

import importlib.util
import time
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.browser.asking import list_views
from tests.browser.chromium import watch
from tests.journeys.running import TOKEN, Running

VIEWS = ("sessions", "session", "conversation", "call", "epoch", "summaries", "search", "health")
_PACKAGE = importlib.util.find_spec("axe_playwright_python")
AXE = Path(_PACKAGE.origin if _PACKAGE and _PACKAGE.origin else "").with_name("axe.min.js")
SHIFTS = """window.shifts = []; new PerformanceObserver((list) => { for (const entry of list.getEntries())
  if (!entry.hadRecentInput) window.shifts.push(entry.value); }).observe({ type: "layout-shift", buffered: true })"""


def settle(page: Page) -> None:
    """Wait until all that the page asked for is drawn. The stream of events stays open."""
    expect(page.locator("[aria-busy=true], #doctor:disabled")).to_have_count(0, timeout=60_000)
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    page.wait_for_timeout(300)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing(browser: Browser, site: Running, theme: str) -> None:
    watched = watch(browser, site.origin, TOKEN, theme=theme)
    found = {}
    for view, path in list_views(site).items():
        watched.open(path)
        settle(watched.page)
        watched.page.evaluate(AXE.read_text("utf-8"))
        violations = watched.page.evaluate("axe.run()")["violations"]
        found[view] = [(each["id"], [node["html"][:200] for node in each["nodes"][:3]]) for each in violations]
    assert found == {view: [] for view in VIEWS}
    watched.check()


def answer_late(route: Route) -> None:
    """Let a check come when the rest of its page is there."""
    time.sleep(1.5)
    route.continue_()


@pytest.mark.parametrize("width", [1440, 390])
def test_nothing_jumps(browser: Browser, site: Running, width: int) -> None:
    watched = watch(browser, site.origin, TOKEN, width=width)
    watched.page.add_init_script(SHIFTS)
    watched.page.route("**/-/api/doctor*", answer_late)
    found = {}
    for view, path in list_views(site).items():
        watched.open(path)
        settle(watched.page)
        found[view] = sum(watched.page.evaluate("window.shifts"))
    assert {view: shift for view, shift in found.items() if shift >= 0.001} == {}
    watched.check()


@pytest.mark.parametrize("width", [320, 820, 2560])
def test_no_page_scrolls_sideways(browser: Browser, site: Running, width: int) -> None:
    watched = watch(browser, site.origin, TOKEN, width=width)
    found = {}
    for view, path in list_views(site).items():
        watched.open(path)
        settle(watched.page)
        found[view] = watched.page.evaluate("document.documentElement.scrollWidth")
    assert {view: wide for view, wide in found.items() if wide > width} == {}
    watched.check()


def test_what_a_call_loads_late_moves_nothing(browser: Browser, site: Running) -> None:
    watched = watch(browser, site.origin, TOKEN, width=390)
    watched.page.add_init_script(SHIFTS)
    watched.page.route("**/-/api/sessions/**", answer_late)  # each one behind the last, after the page is seen
    watched.open(list_views(site)["call"])
    expect(watched.page.locator(".cmp-row").first).to_be_visible(timeout=60_000)
    settle(watched.page)
    assert sum(watched.page.evaluate("window.shifts")) < 0.001
    watched.check()
