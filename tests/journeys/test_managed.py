"""A session that grows past a small ceiling, by the openai SDK: what is sent, what can be had back, what is decided.

The provider is a dummy that counts; the proxy is a process of its own, and is restarted in between.
"""

import json
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import openai
import pytest

from proxy.cli.formatting import CAUSES
from proxy.engine.call.response_stream import WholeResponse
from proxy.engine.token_counter import TokenCounter
from proxy.lab.upstream import ScriptedCall
from proxy.model.messages import LEDGER_HEAD
from proxy.upstream.tokenizer import CountingTokenizer
from tests.cli.commands import call_on_disk
from tests.clients.script import Turn
from tests.journeys.running import TOKEN, Running, run_command, run_proxy
from tests.support.answers import Tokens, reply, serve_answers
from tests.support.compacting import is_own
from tests.support.managing import MODEL, Message, make_history

STEPS = 40
FIELDS = {"x-palimpsest-session": "agent", "x-palimpsest-ceiling": "6000"}
TOOLS: Any = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]


class Dummy:
    """A provider whose usage is about what was sent, as a real one's is.

    `sent` are the bodies it got of its clients' calls, `asked` those of the proxy's own.
    """

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.asked: list[bytes] = []
        self._counting = TokenCounter(CountingTokenizer())

    def say(self, body: bytes) -> str:
        """The words of an answer."""
        return f"word {len(self.sent)}"

    async def answer(self, call: ScriptedCall) -> WholeResponse:
        (self.asked if is_own(call.body) else self.sent).append(call.body)
        tokens = sum(await self._counting.count_messages(MODEL, [call.body]))
        return reply(call, Turn(self.say(call.body)), Tokens(tokens, answer=3))


class Agent:
    """A client that holds its whole history and asks with it, step by step; the labels of its answers."""

    def __init__(self, proxy: Running, provider: Dummy, fields: Mapping[str, str] = MappingProxyType({})) -> None:
        self._fields = {**FIELDS, **fields}
        self._client = openai.OpenAI(base_url=proxy.base_url, api_key="sk-agent-0123456789", max_retries=0, timeout=60)
        self._provider = provider
        self.labels: list[dict[str, str]] = []

    def ask(self, messages: list[Message], **fields: str) -> bytes:
        """One call; what came to the provider."""
        given: Any = messages
        raw = self._client.chat.completions.with_raw_response.create(
            model=MODEL,
            messages=given,
            tools=TOOLS,
            extra_headers={**self._fields, **fields},
        )
        assert raw.parse().choices[0].message.content
        self.labels.append({name: value for name, value in raw.headers.items() if name.startswith("x-palimpsest-")})
        return self._provider.sent[-1]

    def close(self) -> None:
        self._client.close()


def call(proxy: Running, path: str, method: str = "GET") -> tuple[int, bytes]:
    """A call of the API."""
    headers = {"authorization": f"Bearer {TOKEN}"}
    asked = urllib.request.Request(f"{proxy.origin}/-/api{path}", method=method, headers=headers)
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def load(proxy: Running, path: str, method: str = "GET") -> Any:
    status, content = call(proxy, path, method)
    assert status == 200, content
    document = json.loads(content)
    return document["items"] if "items" in document and "next" in document else document


GROW = """
import json, sys, openai
history, tools, model = json.load(open(sys.argv[1]))
client = openai.OpenAI(api_key="sk-agent-0123456789", max_retries=0, timeout=60)
for step in range(1, len(history) // 2 - 1):
    client.chat.completions.create(
        model=model, messages=history[: 2 + 2 * step], tools=tools, extra_headers={"x-session-id": "grown"}
    )
import time
time.sleep(1.5)  # notices are looked for every second
"""


@pytest.fixture
def history() -> list[Message]:
    return make_history(STEPS, 1200)


def grow(agent: Agent, history: list[Message], steps: range) -> list[bytes]:
    return [agent.ask(history[: 2 + 2 * step]) for step in steps]


def test_a_session_past_its_ceiling(
    tmp_path: Path, history: list[Message], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    provider = Dummy()
    with serve_answers(provider.answer) as url:
        with run_proxy(tmp_path, url) as proxy:
            agent = Agent(proxy, provider)
            sent = grow(agent, history, range(1, STEPS - 1))
            agent.close()
            session = agent.labels[0]["x-palimpsest-session"]
            opened = [label for label in agent.labels if "x-palimpsest-notice" in label]
            assert opened
            assert opened[0]["x-palimpsest-notice"].startswith("compacted ")
            check_prefixes(sent, agent.labels)
            check_originals(proxy, session, history, capfdbinary)
        with run_proxy(tmp_path, url) as proxy:
            agent = Agent(proxy, provider)
            after = grow(agent, history, range(STEPS - 2, STEPS))
            assert after[0] == sent[-1]
            decide(agent, proxy, session, history)
            agent.close()
    assert run_command("verify", "--data", str(tmp_path)).returncode == 0


def check_prefixes(sent: list[bytes], labels: list[dict[str, str]]) -> None:
    """Between two openings each request begins with the messages of the one before it, byte for byte."""
    for before, now, label in zip(sent, sent[1:], labels[1:], strict=False):
        if "x-palimpsest-notice" not in label:
            end = before.rindex(b"]", 0, before.index(b'"model"'))
            assert now.startswith(before[:end])


def check_originals(
    proxy: Running, session: str, history: list[Message], capture: pytest.CaptureFixture[bytes]
) -> None:
    """Every message that an epoch archived can be read by its references, over HTTP and on the command line."""
    data = proxy.data
    count = len(load(proxy, f"/sessions/{session}/epochs"))
    epoch = load(proxy, f"/sessions/{session}/epochs/{count}")
    texts = []
    capture.readouterr()
    for reference in epoch["references"]:
        status, content = call(proxy, f"/refs/{reference['id']}?page=all")
        assert status == 200
        texts.append(content.decode())
        assert call_on_disk(data, "expand", reference["id"], "--all") == 0
        assert capture.readouterr().out == content
    expanded = run_command("expand", epoch["references"][-1]["id"], "--all", "--data", str(data))
    assert (expanded.returncode, expanded.stdout.decode()) == (0, texts[-1])
    kept = {edit["place"] for edit in epoch["edits"] if edit["edit"] == "kept"}
    archived = [history[1 + place]["content"] for place in range(epoch["depth"]) if place not in kept]
    assert archived
    assert [text for text in archived if not any(text in original for original in texts)] == []
    assert call(proxy, "/refs/aaaaaaaaaa")[0] == 404
    newest = find_newest(proxy, session)
    told = run_command("diff", session, newest, "--data", str(data)).stdout.decode()
    assert f"ref:{epoch['references'][0]['id']}" in told
    assert LEDGER_HEAD in run_command("handoff", session, "--data", str(data)).stdout.decode()
    shown = run_command("show", session, newest, "--data", str(data)).stdout.decode()
    assert re.search(
        r"(?m)^sent      under (the open|a new) epoch", shown
    )  # the newest call may be the one that opened an epoch


def find_newest(proxy: Running, session: str) -> str:
    """The number of the client's newest call; there may be calls of the proxy's own among them, and behind it."""
    calls = [each for each in load(proxy, f"/sessions/{session}/exchanges?limit=200") if each["kind"] == "managed"]
    assert len(calls) == STEPS - 2
    return str(max(each["n"] for each in calls))


def decide(agent: Agent, proxy: Running, session: str, history: list[Message]) -> None:
    """Go back, pin, observe."""
    count = len(load(proxy, f"/sessions/{session}/epochs"))
    quoted = load(proxy, f"/sessions/{session}/epochs/{count}/revert?dry_run=true", "POST")
    assert quoted["price"]["once"] > 0
    done = load(proxy, f"/sessions/{session}/epochs/{count}/revert", "POST")
    sent = agent.ask(history, **{"x-palimpsest-ceiling": "100000"})
    assert agent.labels[-1].get("x-palimpsest-epoch", done["epoch"]) == done["epoch"]
    assert len(sent) > len(agent.ask(history[:4]))
    pinned = load(proxy, f"/sessions/{session}/pins?exchange=2&place=2", "POST")
    assert [each["node"] for each in load(proxy, f"/sessions/{session}/pins")] == [pinned["node"]]
    assert json.loads(agent.ask(history, **{"x-palimpsest-mode": "observe"}))["messages"] == history
    metrics = urllib.request.Request(f"{proxy.origin}/-/metrics", headers={"authorization": f"Bearer {TOKEN}"})
    with urllib.request.urlopen(metrics, timeout=60) as answer:
        assert b'palimpsest_epochs_total{why="revert"} 1.0' in answer.read()


def test_a_run_tells_of_its_epochs_and_what_it_came_to(tmp_path: Path, history: list[Message]) -> None:
    provider, data, file = Dummy(), str(tmp_path / "data"), tmp_path / "history.json"
    file.write_text(json.dumps([history, TOOLS, MODEL]))
    with serve_answers(provider.answer) as url:
        options = ("--upstream", url, "--data", data, "--ceiling", "6000")
        done = run_command("run", *options, "--", sys.executable, "-c", GROW, str(file))
    assert done.returncode == 0, done.stderr
    _, connected, *notices, last = done.stderr.decode().splitlines()
    assert connected.startswith(f"palimpsest: {sys.executable} runs through http://127.0.0.1:")
    assert notices
    notice = rf"palimpsest: compacted [\d,]+ to [\d,]+ tokens: (?:{'|'.join(CAUSES.values())})"
    assert [line for line in notices if not re.fullmatch(notice, line)] == []
    found = re.fullmatch(
        r"palimpsest: (\d+) calls; ([\d,]+) tokens sent, [\d,]+ received; (\d+) epochs; (\w+) .+", last
    )
    assert found
    assert (int(found[1]), int(found[3])) == (len(provider.sent), len(notices))
    estimate = json.loads(run_command("sessions", "--json", "--data", data).stdout)[0]["saved"]
    assert found[4] == ("lost" if estimate["is_loss"] else "saved")
    told = run_command("statusline", "--data", data).stdout.decode()
    assert re.fullmatch(r"palimpsest: [\d,]+ tokens, [\d,]+ held back, (?:saved|lost) .+\n", told)
