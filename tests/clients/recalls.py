"""The model's calls of the proxy's own tool in a request, in any of the three wire formats, and what it got for them.

Rule: pure.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from proxy.model.messages import RECALL_TOOL
from tests.clients.script import Json, list_items

_RESULTS = ("tool_call_id", "call_id", "tool_use_id")


@dataclass(frozen=True, slots=True)
class Recalled:
    """A call of the tool: its arguments as text, and its result, None where the request shows none."""

    arguments: str
    result: str | None


def read_recalls(asked: Json) -> dict[str, Recalled]:
    """The calls that a request shows, by their ids."""
    items = list_items(asked)
    results = {part[name]: json.dumps(part, ensure_ascii=False) for part, name in _list_results(items)}
    return {id_: Recalled(arguments, results.get(id_)) for id_, arguments in _list_calls(items)}


def ends_with_result(asked: Json) -> bool:
    """Whether what was recalled is behind all that the model said."""
    items = list_items(asked)
    ids = {id_ for id_, _ in _list_calls(items)}
    following = list(takewhile(lambda item: not _is_of_model(item), reversed(items)))
    return any(_is_result(part, ids) for part in _list_parts(following))


def drop_results(items: Sequence[Json]) -> list[Json]:
    """The messages of a request without what was recalled, which tells of steps as if they were the newest."""
    ids = {id_ for id_, _ in _list_calls(items)}
    kept = [item for item in items if not _is_result(item, ids)]
    return [
        item | {"content": [part for part in item["content"] if not _is_result(part, ids)]}
        if isinstance(item.get("content"), list)
        else item
        for item in kept
    ]


def _list_calls(items: Sequence[Json]) -> Iterator[tuple[str, str]]:
    for part in _list_parts(items):
        if part.get("name") == RECALL_TOOL and "call_id" in part:
            yield part["call_id"], part["arguments"]
        elif part.get("name") == RECALL_TOOL and part.get("type") == "tool_use":
            yield part["id"], json.dumps(part["input"])
        for call in part.get("tool_calls") or ():
            if call["function"]["name"] == RECALL_TOOL:
                yield call["id"], call["function"]["arguments"]


def _list_results(items: Sequence[Json]) -> Iterator[tuple[Json, str]]:
    for part in _list_parts(items):
        name = next((name for name in _RESULTS if name in part), "")
        if name and "name" not in part:
            yield part, name


def _list_parts(items: Sequence[Json]) -> Iterator[Json]:
    """The messages, and the parts of their contents."""
    for item in items:
        yield item
        content: Any = item.get("content")
        yield from (part for part in content or () if isinstance(part, dict)) if isinstance(content, list) else ()


def _is_of_model(item: Json) -> bool:
    return item.get("role") == "assistant" or item.get("type") == "function_call"


def _is_result(part: Any, ids: set[str]) -> bool:
    return isinstance(part, dict) and "name" not in part and any(part.get(name) in ids for name in _RESULTS)
