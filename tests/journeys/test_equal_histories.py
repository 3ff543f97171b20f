"""The same history without a session id, sent again and again by the openai SDK, as best-of-n and evaluations do."""

import json
from pathlib import Path
from urllib.request import Request, urlopen

import openai
import pytest

from tests.journeys.provider import run_provider
from tests.journeys.running import TOKEN, run_proxy
from tests.support.managing import make_history

TIMES = 40
TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}}}]


@pytest.mark.parametrize("steps", [6, 24], ids=["as it came", "under an epoch"])
def test_its_answers_are_siblings_and_the_same_is_sent_each_time(tmp_path: Path, steps: int) -> None:
    history = make_history(steps, 1600)
    with (
        run_provider() as provider,
        run_proxy(tmp_path, provider.base_url, "--ceiling", "8000") as proxy,
        openai.OpenAI(base_url=proxy.base_url, api_key="sk-journey-0123456789", max_retries=0, timeout=60) as client,
    ):
        for number in range(TIMES):
            client.chat.completions.create(model="m", messages=history, tools=TOOLS, seed=number)  # type: ignore[arg-type]
        headers = {"Authorization": f"Bearer {TOKEN}"}
        with urlopen(Request(f"{proxy.origin}/-/api/sessions", headers=headers), timeout=60) as answer:
            sessions = json.loads(answer.read())["items"]
    sent = [json.loads(seen.body) for seen in provider.seen if seen.target.endswith("/chat/completions")]
    assert [session["calls"] for session in sessions] == [TIMES]
    assert [each["seed"] for each in sent] == list(range(TIMES))
    assert all(each["messages"] == sent[0]["messages"] and each["tools"] == sent[0]["tools"] for each in sent)
    assert (sent[0]["messages"] == history) is (steps == 6)
