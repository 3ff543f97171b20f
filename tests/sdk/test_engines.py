"""The engines under sessions: one for each log, whose it is, and which upstream, key and settings they have."""

import asyncio
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import proxy
from proxy.assembly import build_engine
from proxy.config import ConfigError, Settings, make_settings
from proxy.sdk import engines
from proxy.sdk.engines import ENGINES, close_all, complete_settings, find_folder
from proxy.sdk.errors import LogHeldError, SessionClosedError, SessionNotFoundError, StoreError, naming_errors
from proxy.sdk.session import Session
from tests.sdk.conftest import Create
from tests.support.programs import ChatProvider, say

OPENAI = {"upstreams": [{"base_url": "https://api.openai.com/v1"}]}
HOLDER = """
import sys, time
from pathlib import Path
from proxy.store.sqlite.connection import WriterLock
lock = WriterLock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for names in (("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY", "PALIMPSEST_CONFIG"),):
        for name in names:
            monkeypatch.delenv(name, raising=False)


async def test_sessions_on_one_log_share_an_engine_that_closes_with_the_last(
    create: Create, load: Create, tmp_path: Path
) -> None:
    first = await create()
    second = await load(first.id)
    third = await Session.create(model="m", db_path=tmp_path / "log.db")
    (shared,) = ENGINES.open.values()
    assert (shared.path, shared.users) == (find_folder(shared.settings, tmp_path), 3)
    await first.close()
    await third.close()
    await second.send("a")
    await second.close()
    assert (ENGINES.open, shared.is_closed) == ({}, True)
    again = await create()
    assert next(iter(ENGINES.open.values())) is not shared
    await again.close()


async def test_close_all_closes_every_session(create: Create, tmp_path: Path, provider: ChatProvider) -> None:
    first, other = await create(), await create(db_path=tmp_path / "other")
    closed = list[str]()
    first.subscribe("SESSION_CLOSED", lambda event, payload: closed.append(payload.session))
    await close_all()
    assert (ENGINES.open, closed) == ({}, [first.id])
    for session in (first, other):
        with pytest.raises(SessionClosedError):
            await session.send("a")
        await session.close()
    await close_all()


async def test_one_log_has_one_config(create: Create, provider: ChatProvider, tmp_path: Path) -> None:
    async with await create() as session:
        with pytest.raises(StoreError, match="open with other settings"):
            await create({"mode": "observe"})
        (shared,) = ENGINES.open.values()
        assert shared.users == 1
        await (await Session.load(session.id, provider.settings(Path("elsewhere")), tmp_path)).close()


async def test_a_log_that_another_event_loop_has_open(create: Create, tmp_path: Path) -> None:
    problems = list[BaseException]()

    def run() -> None:
        try:
            asyncio.run(_open_and_close(tmp_path))
        except StoreError as error:
            problems.append(error)

    async with await create():
        thread = threading.Thread(target=run)
        thread.start()
        await asyncio.to_thread(thread.join)
    assert "another event loop" in str(problems[0])


async def _open_and_close(path: Path) -> None:
    await (await Session.create(model="m", db_path=path)).close()


@pytest.mark.parametrize("address", ["", "http://127.0.0.1:8484\n"])
async def test_a_log_that_another_process_writes(
    create: Create, tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = Settings.store_policy
    monkeypatch.setattr(Settings, "store_policy", lambda self: replace(waiting(self), lock_ms=100))
    if address:
        (tmp_path / "address").write_text(address)
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "log.db")]
    pipe = asyncio.subprocess.PIPE
    holder = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert holder.stdout is not None and holder.stdin is not None
    assert await holder.stdout.readline() == b"held\n"
    with pytest.raises(LogHeldError, match=f"id {holder.pid}") as held:
        await create()
    holder.stdin.close()
    await holder.wait()
    told = "base_url http://127.0.0.1:8484/v1" if address else "end that process"
    assert told in str(held.value)
    assert "another db_path" in str(held.value)
    assert ENGINES.open == {}


async def test_a_log_that_cannot_be_opened(create: Create, tmp_path: Path) -> None:
    (tmp_path / "log.db").mkdir()
    with pytest.raises(StoreError) as unreadable:
        await create()
    assert not isinstance(unreadable.value, LogHeldError)


def test_where_a_log_is(tmp_path: Path) -> None:
    config = make_settings({"data": str(tmp_path)})
    assert find_folder(config, None) == find_folder(config, tmp_path / "log.db") == tmp_path.resolve()
    (tmp_path / "mine.db").touch()
    with pytest.raises(StoreError, match="names a file; db_path is the directory of a log"):
        find_folder(config, tmp_path / "mine.db")


async def test_a_key_is_that_of_the_settings_or_of_the_usual_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = make_settings({"data": str(tmp_path), **OPENAI})
    with pytest.raises(
        ConfigError, match=r"upstreams\[0\].api_key: no key for https://api.openai.com/v1: set OPENAI_API_KEY"
    ):
        await Session.create(model="gpt-5", config=config)
    assert ENGINES.open == {}
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-environment")
    assert complete_settings(config).upstream_policies()[0].api_key == "sk-of-environment"
    own = make_settings({"upstreams": [{"base_url": "https://api.openai.com/v1", "api_key": "sk-own"}]})
    assert complete_settings(own).upstream_policies()[0].api_key == "sk-own"
    unneeded = make_settings({"upstreams": [{"base_url": "https://api.openai.com/v1", "auth": "none"}]})
    assert complete_settings(unneeded).upstream_policies()[0].api_key == ""
    await (await Session.create(model="gpt-5", config=config)).close()


async def test_the_key_is_sent_and_not_kept(create: Create, provider: ChatProvider, tmp_path: Path) -> None:
    keyed = {"upstreams": [{"base_url": provider.base_url, "api_key": "sk-secret-0123456789"}]}
    provider.queue.append(say("you sent sk-secret-0123456789"))
    async with await create(keyed) as session:
        await session.send("a")
        assert provider.headers[0]["authorization"] == "Bearer sk-secret-0123456789"
        told = [part.text for each in await session.messages() for part in each.parts if hasattr(part, "text")]
        assert not any("sk-secret" in text for text in told)
    # a session does not belong to a key
    other = {"upstreams": [{"base_url": provider.base_url, "api_key": "sk-another-0123456789"}]}
    again = await Session.load(session.id, provider.settings(tmp_path, **other))
    await again.send("b")
    assert provider.headers[-1]["authorization"] == "Bearer sk-another-0123456789"
    await again.close()


async def test_without_upstreams_the_variables_of_the_providers_own_sdk_hold(
    monkeypatch: pytest.MonkeyPatch, provider: ChatProvider, tmp_path: Path
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-environment")
    monkeypatch.setenv("OPENAI_BASE_URL", provider.base_url)
    provider.queue.append(say("here"))
    async with await Session.create(model="gpt-5", config=make_settings({"data": str(tmp_path)})) as session:
        assert (await session.send("where?")).text == "here"
    assert provider.headers[0]["authorization"] == "Bearer sk-of-environment"
    stated = complete_settings(make_settings(OPENAI))
    assert stated.upstream_policies()[0].base_url == "https://api.openai.com/v1"
    monkeypatch.setenv("OPENAI_BASE_URL", "nowhere")
    with pytest.raises(ConfigError, match="OPENAI_BASE_URL: must be an address"):
        complete_settings(make_settings({"data": str(tmp_path)}))


async def test_models_of_litellm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-x")
    usual = make_settings({"data": str(tmp_path)})
    policies = complete_settings(usual).upstream_policies()
    assert [(each.kind, each.models, each.is_deferred) for each in policies] == [
        ("openai", (), False), ("litellm", ("*/*",), True),
    ]  # fmt: skip
    assert len(complete_settings(make_settings(OPENAI)).upstreams) == 1
    async with await Session.create(model="anthropic/claude-sonnet-4-5", config=usual) as session:
        assert "litellm" in repr(next(iter(ENGINES.open.values())).engine.network.upstreams[1])
        assert session.model == "anthropic/claude-sonnet-4-5"
    monkeypatch.setattr(engines, "is_installed", lambda: False)
    with pytest.raises(ConfigError, match=r"none takes 'anthropic/claude-sonnet-4-5'.*make install EXTRAS=providers"):
        await Session.create(model="anthropic/claude-sonnet-4-5", config=usual)


async def test_a_session_whose_upstream_has_gone(create: Create, provider: ChatProvider, tmp_path: Path) -> None:
    async with await create() as session:
        await session.send("a")
    renamed = provider.settings(tmp_path, upstreams=[{"base_url": provider.base_url, "name": "other"}])
    with pytest.raises(ConfigError, match="its upstream 'openai' is no longer there"):
        await Session.load(session.id, renamed)
    assert ENGINES.open == {}


async def test_a_session_of_another_format(create: Create, tmp_path: Path) -> None:
    with pytest.raises(SessionNotFoundError), naming_errors():
        await (await build_engine(make_settings({"data": str(tmp_path / "x")}))).conversations.load("0" * 20)


def test_importing_the_package_loads_nothing() -> None:
    code = "import sys, proxy; print(sorted(each for each in sys.modules if each.startswith(('proxy', 'pydantic'))))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['proxy']"


def test_the_names_of_the_sdk() -> None:
    found: dict[str, Any] = {name: getattr(proxy, name) for name in proxy.__all__}
    assert found["Session"] is Session
    assert found["Settings"] is Settings
    assert all(found.values())
    assert set(proxy.__all__) <= set(dir(proxy)) and "import_module" not in dir(proxy)
    with pytest.raises(AttributeError, match="has no attribute 'Sesion'"):
        proxy.Sesion  # noqa: B018
