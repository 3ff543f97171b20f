"""Make the screenshots of the pages: each view at three widths in both themes, of the session of the built-in demo.

`python -m scripts.screenshots [DIRECTORY]` (docs/pages). Needs Chromium, and the development environment.
"""

import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, ViewportSize, sync_playwright

from tests.browser.asking import list_views
from tests.browser.chromium import find_chromium
from tests.journeys.running import TOKEN, Running, run_command, run_proxy

_WIDTHS = ((1440, 900), (820, 1100), (390, 844))
_COLOURS = 192
_MOST_BYTES = 2_000_000
_FOLDER = Path(__file__).parent.parent / "docs" / "pages"


def save(page: Page, path: Path) -> int:
    """Save what is seen of a page with few colours; the size."""
    page.screenshot(path=path)
    with Image.open(path) as image:
        small = image.convert("RGB").quantize(_COLOURS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    small.save(path, optimize=True)
    return path.stat().st_size


def draw(proxy: Running, folder: Path) -> int:
    """Make all screenshots; their size in bytes."""
    views, total = list_views(proxy), 0
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        for theme in ("light", "dark"):
            for width, height in _WIDTHS:
                size = ViewportSize(width=width, height=height)
                page = browser.new_context(viewport=size, color_scheme=theme).new_page()
                page.goto(f"{proxy.origin}/-/?token={TOKEN}")
                for view, path in views.items():
                    page.goto(proxy.origin + path)
                    page.wait_for_selector("html[data-drawn]", state="attached")
                    page.wait_for_selector("#doctor:disabled, [aria-busy=true]", state="detached")
                    total += save(page, folder / f"{view}-{width}-{theme}.png")
        browser.close()
    return total


def main() -> int:
    """Seed a store, serve it, make the screenshots."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else _FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        data = Path(temporary) / "data"
        run_command("demo", "--no-serve", "--data", str(data)).check_returncode()
        with run_proxy(data, "http://127.0.0.1:9/v1") as proxy:
            total = draw(proxy, folder)
    print(f"{total:,} bytes in {folder}")
    return 0 if total < _MOST_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
