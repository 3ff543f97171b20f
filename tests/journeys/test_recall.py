"""A model that recalls by the references of its ledger: the openai SDK, a provider, the proxy restarted in between."""

import json
import re
from pathlib import Path
from typing import Any

import openai

from proxy.engine.call.response_stream import WholeResponse
from proxy.lab.upstream import ScriptedCall
from proxy.model.messages import RECALL_TOOL
from tests.clients.script import Call, Turn
from tests.journeys.running import Running, run_command, run_proxy
from tests.support.answers import Tokens, reply, serve_answers
from tests.support.managing import MODEL, Message, make_history

FIELDS = {"x-palimpsest-session": "agent", "x-palimpsest-ceiling": "6000"}
TOOLS: Any = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]
_REFERENCE = re.compile(r"ref:([a-z0-9]{10})")


class RecallingProvider:
    """Expands the first reference that it sees, or searches, whenever a user asks for it; else it says a word."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    async def answer(self, call: ScriptedCall) -> WholeResponse:
        body = json.loads(call.body)
        self.sent.append(body)
        last, text = body["messages"][-1], json.dumps(body["messages"])
        calls: list[Call] = []
        named = _REFERENCE.findall(text)
        if str(last["content"]).startswith("Recall") and named:
            found, expanded = {"action": "search", "query": "module_1.py"}, {"action": "expand", "ref": named[0]}
            calls = [Call(RECALL_TOOL, expanded if "expand" in last["content"] else found)]
        turn, tokens = Turn(f"word {len(self.sent)}. ", tuple(calls)), Tokens(len(text) // 4, answer=3)
        return reply(call, turn, tokens, len(self.sent))


class _Client:
    """Asks with its whole history, and keeps the answers."""

    def __init__(self, proxy: Running, history: list[Message]) -> None:
        self.history = history
        self._sdk = openai.OpenAI(base_url=proxy.base_url, api_key="sk-agent-0123456789", max_retries=0, timeout=60)

    def ask(self, words: str = "", *, is_stream: bool = True) -> str:
        self.history += [{"role": "user", "content": words}] if words else []
        given: Any = {"model": MODEL, "messages": self.history, "tools": TOOLS, "extra_headers": FIELDS}
        if is_stream:
            chunks = list(self._sdk.chat.completions.create(**given, stream=True))
            assert {chunk.id for chunk in chunks} == {chunks[0].id}
            said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        else:
            said = self._sdk.chat.completions.create(**given).choices[0].message.content or ""
        self.history.append({"role": "assistant", "content": said})
        return said


def test_a_model_recalls_by_reference_and_by_words_before_and_after_a_restart(tmp_path: Path) -> None:
    provider, history = RecallingProvider(), list(make_history(24, 1200))
    with serve_answers(provider.answer) as url:
        with run_proxy(tmp_path, url) as proxy:
            client = _Client(proxy, [])
            for step in range(1, 24):
                client.history = list(history[: 2 + 2 * step])
                client.ask()
            said = client.ask("Recall, expand.")
            assert said.count("word") == 2
            first, second = provider.sent[-2:]
            assert second["messages"][: len(first["messages"])] == first["messages"]
            assert [each["role"] for each in second["messages"][-2:]] == ["assistant", "tool"]
            page = second["messages"][-1]["content"]
            assert page.startswith("ref:") and "as of step" in page
            assert any(str(each["content"])[:200] in page for each in history[2:20] if each["role"] == "tool")
            before = second["messages"]
            client.ask("Thanks.", is_stream=False)
            assert provider.sent[-1]["messages"][: len(before)] == before
        with run_proxy(tmp_path, url) as proxy:
            client = _Client(proxy, client.history)
            client.ask("And?")
            assert provider.sent[-1]["messages"][: len(before)] == before
            said = client.ask("Recall, by words.", is_stream=False)
            assert said.count("word") == 2 and provider.sent[-1]["messages"][-1]["role"] == "tool"
    assert run_command("verify", "--data", str(tmp_path)).returncode == 0
