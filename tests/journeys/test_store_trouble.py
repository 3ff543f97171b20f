"""A log that takes no writes: calls keep flowing and it is loud, or they are refused; spooled records appear later."""

import asyncio
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.journeys.provider import Provider, run_provider
from tests.journeys.running import Running, run_command, run_proxy, start_proxy

PATIENCE = 60.0


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with run_provider() as running:
        yield running


def call(proxy: Running, session: str, content: str = "hello") -> httpx.Response:
    body = {"model": "m", "messages": [{"role": "user", "content": content}]}
    headers = {"x-palimpsest-session": session}
    return httpx.post(f"{proxy.base_url}/chat/completions", json=body, headers=headers, timeout=PATIENCE)


def read_state(proxy: Running) -> tuple[int, str]:
    answer = httpx.get(f"{proxy.origin}/-/ready", timeout=PATIENCE)
    return answer.status_code, answer.json()["status"]


def read_reasons(proxy: Running) -> list[str]:
    reasons: list[str] = httpx.get(f"{proxy.origin}/-/ready", timeout=PATIENCE).json()["reasons"]
    return reasons


async def wait_for_state(proxy: Running, state: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while (await asyncio.to_thread(read_state, proxy))[1] != state:
            pass


def list_families(data: Path) -> dict[str, int]:
    rows = json.loads(run_command("sessions", "--json", "--data", str(data)).stdout)
    return {row["family"]: row["calls"] for row in rows}


async def test_calls_flow_while_the_log_is_locked_and_are_in_it_afterwards(provider: Provider, tmp_path: Path) -> None:
    with run_proxy(tmp_path, provider.base_url) as proxy:
        await wait_for_state(proxy, "ready")
        lock = sqlite3.connect(tmp_path / "log.db", isolation_level=None)
        lock.execute("BEGIN IMMEDIATE")
        assert [call(proxy, "locked").status_code for _ in range(3)] == [200, 200, 200]
        await wait_for_state(proxy, "degraded")
        assert read_state(proxy)[0] == 200, "degraded is ready all the same: calls are served"
        lock.execute("ROLLBACK")
        lock.close()
        await wait_for_state(proxy, "ready")
        assert list_families(tmp_path) == {"locked": 3}


async def test_calls_are_refused_while_the_log_is_locked_where_the_settings_say_so(
    provider: Provider, tmp_path: Path
) -> None:
    with run_proxy(tmp_path, provider.base_url, STORE__ON_FAILURE="refuse") as proxy:
        lock = sqlite3.connect(tmp_path / "log.db", isolation_level=None)
        lock.execute("BEGIN IMMEDIATE")
        call(proxy, "first")
        await wait_for_state(proxy, "degraded")
        asked = len(provider.seen)
        refused = call(proxy, "second")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "store_unavailable")
        assert len(provider.seen) == asked
        assert read_state(proxy)[0] == 503
        lock.execute("ROLLBACK")
        lock.close()
        await wait_for_state(proxy, "ready")
        assert call(proxy, "third").status_code == 200
    assert list_families(tmp_path) == {"first": 1, "third": 1}


async def test_a_full_log_says_so_and_calls_go_on(provider: Provider, tmp_path: Path) -> None:
    with run_proxy(tmp_path, provider.base_url, STORE__MAX_BYTES="400000") as proxy:
        for n in range(40):
            noise = "".join(chr(0x4E00 + (n * 7919 + i * i) % 20000) for i in range(10_000))
            assert call(proxy, "full", noise).status_code == 200
            if read_state(proxy)[1] == "degraded":
                break
        await wait_for_state(proxy, "degraded")
        assert "store.max_bytes" in " ".join(read_reasons(proxy))
        assert call(proxy, "full").status_code == 200
    assert (tmp_path / "log.db").stat().st_size <= 400_000


def fill(proxy: Running) -> list[int]:
    """Make calls of text that does not pack until the log is full; their status codes."""
    codes = []
    for n in range(40):
        noise = "".join(chr(0x4E00 + (n * 7919 + i * i) % 20000) for i in range(10_000))
        codes.append(call(proxy, f"call-{n}", noise).status_code)
        if read_state(proxy)[1] == "degraded":
            break
    return codes


def test_what_a_stop_loses_is_told_before_and_the_stop_is_no_success(provider: Provider, tmp_path: Path) -> None:
    proxy = start_proxy(tmp_path, provider.base_url, STORE__MAX_BYTES="400000", STORE__DURABILITY="full")
    codes = fill(proxy)
    assert set(codes) == {200}
    assert "a stop before the log takes them loses them" in " ".join(read_reasons(proxy))
    assert proxy.stop() == 1
    output = "".join(proxy.output)
    assert "records are in memory only" in output
    assert "records are lost with this stop" in output
    assert len(list_families(tmp_path)) < len(codes)


@pytest.mark.parametrize("durability", ["full", "normal"])
def test_where_calls_are_refused_no_answer_that_was_given_whole_is_lost_at_a_stop(
    provider: Provider, tmp_path: Path, durability: str
) -> None:
    settings = {"STORE__ON_FAILURE": "refuse", "STORE__DURABILITY": durability}
    proxy = start_proxy(tmp_path, provider.base_url, STORE__MAX_BYTES="400000", **settings)
    codes = fill(proxy)
    codes += [call(proxy, f"call-{len(codes)}").status_code]
    assert 503 in codes
    proxy.stop()
    with run_proxy(tmp_path, provider.base_url):  # what is in the journal comes in
        kept = list_families(tmp_path)
    assert {f"call-{n}" for n, code in enumerate(codes) if code == 200} <= kept.keys()


def test_a_second_server_on_the_same_log_is_refused_and_told_why(provider: Provider, tmp_path: Path) -> None:
    with run_proxy(tmp_path, provider.base_url):
        second = run_command("serve", "--port", "0", "--data", str(tmp_path), "--upstream", provider.base_url)
    assert second.returncode == 1
    assert b"written by another process" in second.stderr
