"""kill -9 between two turns: a client that names no session goes on where it was, and nowhere else."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import openai

from proxy.assembly import open_log
from proxy.config import load_settings
from tests.journeys.provider import Provider, run_provider
from tests.journeys.running import Running, run_proxy, start_proxy
from tests.journeys.talk import Talk, user

Messages = Sequence[dict[str, Any]]


def say(proxy: Running, history: Messages, text: str) -> tuple[str, Messages]:
    """One turn, of a client that is as new as its connection; the session it was given, and the history after it."""
    with openai.OpenAI(base_url=proxy.base_url, api_key="sk-journey-0123456789", max_retries=0, timeout=60) as client:
        talk = Talk(client)
        asked = (*history, user(text))
        answer = talk.ask(*asked)
        return talk.labels[0][0], (*asked, answer)


def talk_until_killed(data: Path, provider: Provider, texts: Sequence[str]) -> tuple[str, Messages]:
    """A conversation that ends with the proxy, the moment its last answer is there."""
    proxy = start_proxy(data, provider.base_url)
    try:
        sessions: set[str] = set()
        history: Messages = ()
        for text in texts:
            session, history = say(proxy, history, text)
            sessions.add(session)
    finally:
        proxy.kill()
    (session,) = sessions
    return session, history


async def list_relations(data: Path, session: str) -> list[str]:
    """How each call of a session goes on."""
    log = open_log(load_settings(None, {"data": data}))
    try:
        return [row.relation for row in await log.list_exchanges(session)]
    finally:
        await log.close()


def test_a_conversation_goes_on_after_a_kill(tmp_path: Path) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    with run_provider() as provider:
        session, history = talk_until_killed(here, provider, ["Hello.", "More.", "And more."])
        with run_proxy(here, provider.base_url) as proxy:
            assert say(proxy, history, "And now?")[0] == session
        with run_proxy(elsewhere, provider.base_url) as proxy:
            other, _ = say(proxy, history, "And now?")
    assert other != session
    assert asyncio.run(list_relations(here, session)) == ["root", "append", "append", "append"]
    assert asyncio.run(list_relations(elsewhere, other)) == ["root"]


def test_the_one_answer_that_a_kill_left_unread_is_gone_on_from(tmp_path: Path) -> None:
    with run_provider() as provider:
        session, history = talk_until_killed(tmp_path, provider, ["Hello."])
        with run_proxy(tmp_path, provider.base_url) as proxy:
            assert say(proxy, history, "And now?")[0] == session
    assert asyncio.run(list_relations(tmp_path, session)) == ["root", "append"]
