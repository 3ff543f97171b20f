"""A client that uses all four cache markers on Messages, as Copilot CLI does; a model that recalls beside its calls."""

import json
import re
from pathlib import Path
from typing import Any

from proxy.model.messages import RECALL_TOOL
from tests.journeys.running import run_proxy
from tests.support.answers import serve_answers
from tests.support.plain_wires import Item, PlainClient, PlainUpstream, count, make_tool, say, write_prose

CEILING, STEPS, MOST = 32_000, 60, 4
_MARKER = {"type": "ephemeral"}
_REFERENCE = re.compile(r"ref:([a-z0-9]{10})")


class Model:
    """Reads a file in each answer. Beside every fifth call it also recalls, once it has seen a reference."""

    def __init__(self) -> None:
        self.answers = self.recalls = 0
        self.refused: list[int] = []

    def respond(self, body: Item) -> tuple[int, Item]:
        text = json.dumps(body)
        if (markers := text.count('"cache_control"')) > MOST:
            self.refused.append(markers)
            told = f"A maximum of {MOST} blocks with cache_control may be provided. Found {markers}."
            return 400, {"type": "error", "error": {"type": "invalid_request_error", "message": told}}
        self.answers += 1
        call: Item = {"type": "tool_use", "id": f"toolu_{self.answers:04d}", "name": "read"}
        call["input"] = {"path": f"src/file_{self.answers}.py"}
        content = [{"type": "text", "text": f"Step {self.answers}."}, call]
        named = _REFERENCE.findall(text)
        if named and self.answers % 5 == 0:
            self.recalls += 1
            given = {"action": "expand", "ref": named[0]}
            own: Item = {"type": "tool_use", "id": f"own_{self.answers}", "name": RECALL_TOOL, "input": given}
            content.insert(1, own)
        usage = {"input_tokens": count(body), "output_tokens": 9}
        said = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "stop_reason": "tool_use"}
        return 200, {**said, "content": content, "usage": usage}


def mark(items: list[Item]) -> list[Item]:
    """The history with a marker at its last two messages of the user, as clients move them."""
    marked = list(items)
    for place in [place for place, each in enumerate(items) if each["role"] == "user"][-2:]:
        content: Any = items[place]["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
        marked[place] = {"role": "user", "content": [*parts[:-1], {**parts[-1], "cache_control": _MARKER}]}
    return marked


def test_recalled_rounds_keep_no_marker_of_a_client_that_uses_all_four(tmp_path: Path) -> None:
    model = Model()
    upstream = PlainUpstream("messages", model.respond)
    with (
        serve_answers(upstream.answer) as url,
        run_proxy(tmp_path, url, "--ceiling", str(CEILING)) as proxy,
    ):
        tools = [{**make_tool("messages", "read", "Reads a file."), "cache_control": _MARKER}]
        client = PlainClient(proxy.origin, "messages", tools, [say("messages", "Mend the parser.")])
        system = [{"type": "text", "text": "You are an agent.", "cache_control": _MARKER}]
        for step in range(STEPS):
            answer = client.send(messages=mark(client.items), system=system)
            assert RECALL_TOOL not in json.dumps(answer)
            client.items.append({"role": "assistant", "content": answer["content"]})
            (call,) = [each for each in answer["content"] if each["type"] == "tool_use"]
            result = {"type": "tool_result", "tool_use_id": call["id"], "content": write_prose(700, step)}
            client.items.append({"role": "user", "content": [result]})
    assert model.refused == [] and model.recalls >= 4
    sizes = [count(body) for body in upstream.sent]
    assert max(sizes) <= CEILING and count({"messages": client.items}) > 1.2 * CEILING
    later = [body for body in upstream.sent if f'"name": "{RECALL_TOOL}", "input"' in json.dumps(body["messages"])]
    assert len(later) >= 8  # requests repeat what was recalled
    assert not client.list_told("above the ceiling")
    assert not [each for each in client.labels if "x-palimpsest-mode" in each]
