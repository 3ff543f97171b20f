"""A session goes on, below its ceiling, whatever happens to the worker process."""

import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.journeys.running import Running, run_proxy
from tests.journeys.test_managed import Agent, Dummy, grow
from tests.support.answers import serve_answers
from tests.support.managing import make_history

STEPS = 40


def find_worker(proxy: Running) -> int | None:
    """Return the process id of a proxy's worker; None while there is none."""
    for path in Path(f"/proc/{proxy.process.pid}/task").glob("*/children"):
        for child in path.read_text().split():
            with contextlib.suppress(OSError):
                if b"proxy.worker.program" in Path(f"/proc/{child}/cmdline").read_bytes():
                    return int(child)
    return None


def send(proxy: Running, number: signal.Signals) -> None:
    worker = find_worker(proxy)
    if worker is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, number)


@contextlib.contextmanager
def repeat(work: Callable[[], None], seconds: float) -> Iterator[None]:
    """Do something every so often, beside the block."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(seconds):
            work()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextlib.contextmanager
def slow(proxy: Running) -> Iterator[None]:
    """Let the worker run for a tenth of the time."""
    with repeat(lambda: send(proxy, signal.SIGSTOP), 0.01), repeat(lambda: send(proxy, signal.SIGCONT), 0.1):
        yield
    send(proxy, signal.SIGCONT)


@contextlib.contextmanager
def kill(proxy: Running) -> Iterator[None]:
    with repeat(lambda: send(proxy, signal.SIGKILL), 0.05):
        yield


@contextlib.contextmanager
def starve(proxy: Running) -> Iterator[None]:
    send(proxy, signal.SIGSTOP)
    yield
    send(proxy, signal.SIGCONT)


@pytest.mark.parametrize("trouble", [slow, kill, starve])
def test_a_session_goes_on_below_its_ceiling(
    tmp_path: Path, trouble: Callable[[Running], contextlib.AbstractContextManager[None]]
) -> None:
    provider, history = Dummy(), make_history(STEPS, 1200)
    with (
        serve_answers(provider.answer) as url,
        run_proxy(tmp_path, url, COMPACTION__HARD_WAIT_SECONDS="0.2") as proxy,
    ):
        agent = Agent(proxy, provider)
        grow(agent, history, range(1, 5))
        with trouble(proxy):
            grow(agent, history, range(5, STEPS))
        agent.close()
        assert not [label for label in agent.labels if "above the ceiling" in label.get("x-palimpsest-notice", "")]
        assert [label for label in agent.labels if label.get("x-palimpsest-epoch")]
        assert max(map(len, provider.sent)) < len(json.dumps(history)) / 2
        assert proxy.stop() == 0
