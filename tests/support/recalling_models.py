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


async def recall(request: ManagedRequest, epoch: Epoch, arguments: str) -> str:
    """A page, whatever is asked for."""
    return f"{PAGE} {len(arguments)}"


def make_recalling(upstream: Any, seed: int = 0, chance: float = 0.4) -> list[int]:
    """Let a strict upstream's model recall in so many answers, often beside its other calls. Return those it made."""
    random, plain, made = Random(seed), upstream._call, list[int]()

    def call(number: int, **options: Any) -> list[dict[str, Any]]:
        is_offered = RECALL_TOOL.encode() in json.dumps(json.loads(upstream.calls[-1].body).get("tools")).encode()
        others: list[dict[str, Any]] = plain(number, **options)
        if not is_offered or random.random() >= chance:
            return others
        own = [_spell(upstream, number, i, random.choice(_OWN)) for i in range(random.choice((1, 1, 2, 8)))]
        made.append(number)
        return own if random.random() < 0.6 else [*own, *others] if random.random() < 0.5 else [*others, *own]

    upstream._call = call
    return made


def _spell(upstream: Any, number: int, i: int, arguments: str) -> dict[str, Any]:
    if hasattr(upstream, "answers"):  # Responses
        ids = {"id": f"fc_{number}_own{i}", "call_id": f"call_{number:020x}own{i}"}
        return ids | {"type": "function_call", "status": "completed", "name": RECALL_TOOL, "arguments": arguments}
    given = {"action": "search", "query": arguments}
    return {"type": "tool_use", "id": f"toolu_{number:020x}own{i}", "name": RECALL_TOOL, "input": given}
