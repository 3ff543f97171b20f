"""The official openai SDK on a history that the proxy holds; kill -9 between calls keeps the path."""

import json
from pathlib import Path
from typing import Any

import openai
import pytest

from proxy.assembly import open_log
from proxy.config import load_settings
from tests.journeys.provider import Provider, run_provider
from tests.journeys.running import Running, start_proxy

KEY = "sk-journey-0123456789abcdef"


def ask(proxy: Running, text: str, history: str = "server", **more: Any) -> str:
    headers = {"x-palimpsest-session": "night-watch", "x-palimpsest-history": history}
    with openai.OpenAI(base_url=proxy.base_url, api_key=KEY, max_retries=0, timeout=60) as client:
        messages: Any = [{"role": "user", "content": text}]
        if more.pop("is_stream", False):
            chunks = client.chat.completions.create(
                model="m", messages=messages, stream=True, extra_headers=headers, **more
            )
            return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        done = client.chat.completions.create(model="m", messages=messages, extra_headers=headers, **more)
        return done.choices[0].message.content or ""


def list_sent(provider: Provider) -> list[str]:
    """What the messages say that the provider got last."""
    body = [each.body for each in provider.seen if each.body][-1]
    return [str(each["content"]) for each in json.loads(body)["messages"]]


async def test_a_killed_proxy_goes_on_where_the_last_answer_was(tmp_path: Path) -> None:
    with run_provider() as provider:
        proxy = start_proxy(tmp_path, provider.base_url)
        said = [ask(proxy, "watch the build", "new"), ask(proxy, "and now?", is_stream=True)]
        proxy.kill()
        proxy = start_proxy(tmp_path, provider.base_url)
        try:
            assert ask(proxy, "still there?")
            told = ["watch the build", said[0], "and now?", said[1], "still there?"]
            assert list_sent(provider) == told
            with pytest.raises(openai.ConflictError) as taken:
                ask(proxy, "once more", "new")
            assert "night-watch" in str(taken.value)
            with pytest.raises(openai.BadRequestError):
                ask(proxy, "hm", "mine")
            assert list_sent(provider) == told
        finally:
            assert proxy.stop() == 0
        log = open_log(load_settings(None, {"data": tmp_path}))
        (session,) = await log.list_sessions()
        rows = await log.list_exchanges(session.id)
        assert [row.relation for row in rows] == ["root", "append", "append"]
        own = json.loads(await log.load_held(rows[-1].id))
        assert own["messages"] == [{"role": "user", "content": "still there?"}]
        assert (await log.verify()).faults == ()
        await log.close()
