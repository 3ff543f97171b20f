"""What holds for every test: how long hypothesis looks, how long calls wait for the log, what is told of failures.

Hypothesis tries 40 examples of a property; `HYPOTHESIS_PROFILE=thorough` has it try fifty times as many everywhere. No
example has a time limit, nor has the making of examples, for what that measures is the machine and who else is busy on
it.

Long tests are marked `no_cover`: `make coverage` leaves them out, for tracing doubles their time, and other tests reach
all that they reach.
"""

import heapq
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from proxy.context.model_catalog import Encoding
from proxy.upstream.tokenizer import CountingTokenizer, Encoder, Estimate, load_encoder, make_tokenizer
from tests.support.scripted import LIMIT

# How long a call waits for the log, or for a plan, before it goes on without. A busy machine takes longer, and then
# another request would be sent than the test is about; tests of these bounds set them themselves.
_WAITS = (
    "proxy.engine.lineage.tracker.RECALL_SECONDS",
    "proxy.engine.context.session_context.LOAD_SECONDS",
    "proxy.engine.context.fallback.SOFT_WAIT",
    "proxy.store.sqlite.archive._MOST_LAG_OF_A_CALL_SECONDS",
)

settings.register_profile(
    "quick", settings(), max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("quick")
settings.register_profile("thorough", settings(), max_examples=2000)
if profile := os.environ.get("HYPOTHESIS_PROFILE"):
    settings.load_profile(profile)


class FailureNames:
    """Names a failing test when it fails; pytest itself does so when all are done."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Part of pytest's hooks. With xdist this is the process that writes to the terminal."""
        reporter: Any = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and reporter is not None:
            crash = getattr(report.longrepr, "reprcrash", None)
            reason = f": {crash.message.splitlines()[0]}" if crash is not None and crash.message else ""
            reporter.write(f"\nFAILED at {report.when}: {report.nodeid}{reason}\n", red=True, flush=True)


class Durations:
    """Writes the slowest phases of tests into a file, the slowest first, as `--durations` prints them."""

    def __init__(self, file: Path, most: int) -> None:
        self._file, self._most = file, most
        self._found: list[tuple[float, str]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Part of pytest's hooks."""
        self._found.append((report.duration, f"{report.when:8} {report.nodeid}"))

    def pytest_sessionfinish(self) -> None:
        """Part of pytest's hooks."""
        slowest = heapq.nlargest(self._most, self._found)
        self._file.parent.mkdir(exist_ok=True)
        self._file.write_text("".join(f"{seconds:8.2f}s {name}\n" for seconds, name in slowest))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Part of pytest's hooks."""
    parser.addoption("--durations-file", type=Path, help="where the 50 slowest phases of tests are written")


def pytest_configure(config: pytest.Config) -> None:
    """Part of pytest's hooks."""
    if not hasattr(config, "workerinput"):  # a worker's reports are written by the process that started it
        config.pluginmanager.register(FailureNames(config))
        if file := config.getoption("--durations-file"):
            config.pluginmanager.register(Durations(file, 50))


@pytest.fixture(autouse=True, scope="session")
def patience() -> Iterator[None]:
    """Have calls wait for the log and for plans, and answers be read without waiting for more of them."""
    with pytest.MonkeyPatch.context() as patch:
        for name in _WAITS:
            patch.setattr(name, LIMIT)
        patch.setattr("proxy.engine.call.response_reader.GATHER_SECONDS", 0.0)
        yield


@pytest.fixture(autouse=True, scope="session")
def shared_encoders() -> Iterator[None]:
    """Have the engines of a run count with the same encoders: each would take 0.2 s of processor time for its own."""

    @cache
    def load_once(encoding: Encoding) -> Encoder | None:
        return load_encoder(encoding)

    def share_encoders(estimate: Estimate | None) -> CountingTokenizer:
        return CountingTokenizer(load_once) if estimate is None else make_tokenizer(estimate)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("proxy.reading.make_tokenizer", share_encoders)
        yield
