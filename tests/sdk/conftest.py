"""A provider and sessions for the tests of the SDK."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from proxy.sdk.engines import close_all
from proxy.sdk.session import Session
from proxy.worker.process import WorkerProcess
from tests.support.programs import ChatProvider, run_chat_provider
from tests.support.scripted import LIMIT

Create = Callable[..., Awaitable[Session]]


@pytest.fixture(autouse=True)
def worker_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the first job start a worker process, as after a loss: few tests here have one, and a start takes 0.5 s."""

    async def wait_for_a_job(worker: WorkerProcess) -> None:
        """Start nothing."""

    monkeypatch.setattr(WorkerProcess, "start", wait_for_a_job)


@pytest.fixture(autouse=True)
def patient_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have sessions wait for their log however long a busy machine takes."""
    for module in ("history.held", "turns.context", "turns.conversation"):
        monkeypatch.setattr(f"proxy.engine.{module}.LOG_SECONDS", LIMIT)


@pytest.fixture
async def provider() -> AsyncIterator[ChatProvider]:
    async with run_chat_provider() as running:
        yield running
        await close_all()


@pytest.fixture
def create(provider: ChatProvider, tmp_path: Path) -> Create:
    """Begins sessions on one log; settings by key path."""

    async def make(settings: dict[str, Any] | None = None, **options: Any) -> Session:
        config = provider.settings(tmp_path, **(settings or {}))
        return await Session.create(**{"model": "m", "config": config, **options})

    return make


@pytest.fixture
def load(provider: ChatProvider, tmp_path: Path) -> Create:
    """Opens sessions of that log."""

    async def open_again(session: str) -> Session:
        return await Session.load(session, db_path=tmp_path)

    return open_again
