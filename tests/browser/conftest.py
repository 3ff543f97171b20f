"""A seeded store, a server on it, and a browser. The store is that of the built-in demo: 150 calls, three epochs."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.browser.chromium import find_chromium, launch
from tests.journeys.provider import run_provider
from tests.journeys.running import Running, run_command, run_proxy


@pytest.fixture(scope="session")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a session that has ended."""
    find_chromium()
    data = tmp_path_factory.mktemp("seeded")
    done = run_command("demo", "--no-serve", "--data", str(data))
    assert done.returncode == 0, done.stderr
    return data


@pytest.fixture(scope="module")
def site(seeded: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server on a copy of the seeded store."""
    data = tmp_path_factory.mktemp("site") / "data"
    shutil.copytree(seeded, data)
    with run_provider() as provider, run_proxy(data, provider.base_url) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser without pages."""
    find_chromium()
    with launch() as running:
        yield running
