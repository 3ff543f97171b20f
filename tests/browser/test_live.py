"""The live tail: a call is shown soon after it is recorded, and the page goes on across a restart of the server."""

import time
from pathlib import Path

from playwright.sync_api import Browser, expect

from tests.browser.asking import read, send
from tests.browser.chromium import watch
from tests.journeys.provider import run_provider
from tests.journeys.running import TOKEN, run_proxy

BODY = b'{"model": "m", "messages": [{"role": "user", "content": "tell me a story"}]}'
NAME = {"x-palimpsest-session": "story"}
SOON = 60_000  # milliseconds
SLOWEST = 10.0  # seconds; what is expected is less than one, on a machine that does nothing else


def test_a_call_is_shown_while_it_happens_and_after_a_restart(browser: Browser, tmp_path: Path) -> None:
    with run_provider() as provider:
        with run_proxy(tmp_path, provider.base_url) as proxy:
            send(proxy, BODY, NAME)
            session = read(proxy, "/sessions")["items"][0]["id"]
            watched = watch(browser, proxy.origin, TOKEN)
            watched.open(f"/-/sessions/{session}")
            page, note = watched.page, watched.page.locator("#tail-note")
            row = "#tail a[href$='/calls/{}']"
            page.wait_for_selector(row.format(1))
            expect(note).to_have_text("following", timeout=SOON)
            send(proxy, BODY, NAME)
            began = time.monotonic()
            page.wait_for_selector(row.format(2))
            passed = time.monotonic() - began
            print(f"shown {passed:.2f} s after the response had ended")
            assert passed < SLOWEST
            watched.check()
            port = str(proxy.port)
        expect(note).not_to_have_text("following", timeout=SOON)
        with run_proxy(tmp_path, provider.base_url, "--port", port) as proxy:
            expect(note).to_have_text("following", timeout=SOON)
            send(proxy, BODY, NAME)
            page.wait_for_selector(row.format(3))
            assert not watched.foreign


def test_the_list_of_sessions_follows(browser: Browser, tmp_path: Path) -> None:
    with run_provider() as provider, run_proxy(tmp_path, provider.base_url) as proxy:
        watched = watch(browser, proxy.origin, TOKEN)
        watched.page.wait_for_selector("text=No session yet")
        send(proxy, BODY, NAME)
        watched.page.wait_for_selector("tbody >> text=tell me a story")
        watched.check()
