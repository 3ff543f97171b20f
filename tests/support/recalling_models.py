"""Models that call the tool to recall whenever it is offered, at the strict upstreams of all wires."""

import json
from random import Random
from typing import Any

from proxy.engine.request import ManagedRequest
from proxy.model.epoch import Epoch
from proxy.model.messages import RECALL_TOOL

PAGE = "page 1 of 3: def function(value): return other.path"
_OWN = (
    '{"action":"search","query":"parser"}',
    "{}",
    "no JSON",
    '{"action":7}',
    '{"action":"expand","ref":"abcdefghij"}',
)


async def recall(request: ManagedRequest, epoch: Epoch, arguments: str, room: int) -> str:
    """A page, whatever is asked for."""
    return f"{PAGE} {len(arguments)}"


def make_recalling(upstream: Any, seed: int = 0, chance: float = 0.4) -> list[int]:
    """Let a strict upstream's model recall in so many answers, often beside its other calls. Return those it made."""
    random, made = Random(seed), list[int]()
    if not hasattr(upstream, "call"):
        return _make_chat_recalling(upstream, random, chance)
    plain = upstream.call

    def call(number: int, **options: Any) -> list[dict[str, Any]]:
        is_offered = RECALL_TOOL.encode() in json.dumps(json.loads(upstream.calls[-1].body).get("tools")).encode()
        others: list[dict[str, Any]] = plain(number, **options)
        if not is_offered or random.random() >= chance:
            return others
        own = [_spell(upstream, number, i, random.choice(_OWN)) for i in range(random.choice((1, 1, 2, 8)))]
        made.append(number)
        return own if random.random() < 0.6 else [*own, *others] if random.random() < 0.5 else [*others, *own]

    upstream.call = call
    return made


def _make_chat_recalling(upstream: Any, random: Random, chance: float) -> list[int]:
    plain, made = upstream.think, list[int]()

    def think(request: dict[str, Any]) -> dict[str, Any]:
        message: dict[str, Any] = plain(request)
        if RECALL_TOOL not in json.dumps(request.get("tools")) or random.random() >= chance:
            return message
        made.append(len(made))
        function = {"name": RECALL_TOOL, "arguments": random.choice(_OWN)}
        own = [{"id": f"call_{len(made)}own{i}", "type": "function", "function": function} for i in range(2)]
        others = [] if random.random() < 0.6 else message.get("tool_calls") or []
        return message | {"tool_calls": [*own, *others] if random.random() < 0.5 else [*others, *own]}

    upstream.think = think
    return made


def _spell(upstream: Any, number: int, i: int, arguments: str) -> dict[str, Any]:
    if hasattr(upstream, "answers"):  # Responses
        ids = {"id": f"fc_{number}_own{i}", "call_id": f"call_{number:020x}own{i}"}
        return ids | {"type": "function_call", "status": "completed", "name": RECALL_TOOL, "arguments": arguments}
    given = {"action": "search", "query": arguments}
    return {"type": "tool_use", "id": f"toolu_{number:020x}own{i}", "name": RECALL_TOOL, "input": given}
