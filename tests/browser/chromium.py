"""A headless Chromium of the system, driven by playwright: nothing is downloaded."""

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, sync_playwright

_NAMES = ("chromium", "chromium-browser", "google-chrome")


@dataclass(eq=False)
class Watched:
    """A page of a browser, and what it did besides showing: errors on the console, requests to other origins."""

    page: Page
    origin: str
    errors: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)

    def note_message(self, message: ConsoleMessage) -> None:
        """Keep what is an error."""
        if message.type == "error":
            self.errors.append(message.text)

    def note_request(self, request: Request) -> None:
        """Keep a request that leaves the origin."""
        if not request.url.startswith((f"{self.origin}/", "data:", "blob:")):
            self.foreign.append(request.url)

    def open(self, path: str) -> None:
        """Open a path below the origin, and wait until it is drawn."""
        self.page.goto(f"{self.origin}{path}")
        self.page.wait_for_selector("html[data-drawn]", state="attached")

    def check(self) -> None:
        """Nothing failed, and nothing left the origin."""
        assert not self.errors, self.errors
        assert not self.foreign, self.foreign


def find_chromium() -> str:
    """The path of the browser. Skips the test on a system without one."""
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        pytest.skip("there is no Chromium on this system (apt-get install chromium)")
    return found


@contextlib.contextmanager
def launch() -> Iterator[Browser]:
    """A browser for the length of a `with` block."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


def watch(
    browser: Browser, origin: str, token: str, *, width: int = 1440, height: int = 900, theme: str = "light"
) -> Watched:
    """A page that the start-up link has given its cookie."""
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if theme == "dark" else "light",
        reduced_motion="no-preference",
        permissions=["clipboard-read", "clipboard-write"],
        base_url=origin,
    )
    page = context.new_page()
    page.set_default_timeout(60_000)
    watched = Watched(page, origin)
    page.on("console", lambda message: watched.note_message(message))
    page.on("pageerror", lambda error: watched.errors.append(str(error)))
    page.on("request", lambda request: watched.note_request(request))
    page.goto(f"{origin}/-/?token={token}")
    page.wait_for_selector("html[data-drawn]", state="attached")
    return watched
