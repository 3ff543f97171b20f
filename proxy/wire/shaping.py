"""Messages as shapes, wire by wire: what the validity of a rewritten request hangs on (PROTOCOL §3).

Rule: total; what cannot be read has the role "" and a flaw. Flaws are strict, since they are held only against what we
wrote ourselves: whatever the client sent is the upstream's to judge.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import chain

from proxy.model.shapes import Shape
from proxy.wire.identity import name_role
from proxy.wire.json_values import JSON_ERRORS, encode_canonical, load_json, read_objects, read_text

_Fields = Mapping[str, object]

LONGEST_CHAT_ID = 40
LONGEST_RESPONSES_ID = 64
_ANTHROPIC_ID = re.compile(r"[A-Za-z0-9_-]+\Z")

_CHAT_REASONING = ("reasoning_content", "reasoning", "reasoning_details", "thinking_blocks")
THINKING = frozenset({"thinking", "redacted_thinking"})
_UNSPELT = b"unspelt"
TEXTS = frozenset({"text", "input_text", "output_text"})
_TEXT_ROLES = frozenset({"system", "tool"})


def read_shape(wire: str, raw: bytes) -> Shape:
    """The shape of one raw message, or item, of a wire (`Format.name`)."""
    try:
        value = load_json(raw)
    except JSON_ERRORS:
        value = None
    if not isinstance(value, dict):
        return Shape("", flaws=("unreadable",))
    return _READERS[wire](value, _read_own_markers(value, raw), b"json" in raw.lower())


def _read_own_markers(message: _Fields, raw: bytes) -> tuple[str, ...]:
    """The markers of a message. Most messages are a text, which need not be searched for a word that may be in it."""
    if not (isinstance(message.get("content"), list) or message.get("tool_calls")):
        return tuple(_find_markers(message)) if "cache_control" in message else ()
    # A name may be spelt with escapes.
    return tuple(_find_markers(message)) if b"cache_control" in raw or b"\\u" in raw else ()


def _read_chat(message: _Fields, markers: tuple[str, ...], says_json: bool) -> Shape:
    role, content, calls = name_message_role(message), message.get("content"), message.get("tool_calls")
    answered = read_text(message.get("tool_call_id"))
    bound = [message[name] for name in _CHAT_REASONING if message.get(name)]
    if isinstance(content, list):
        bound += [part for part in read_objects(content) if read_text(part.get("type")) in THINKING]
    ids = [read_text(call.get("id")) for call in read_objects(calls)] if calls else []
    flaws: list[str] = []
    if not ids and not message.get("function_call") and _is_empty(content):
        flaws.append("empty")
    if role in _TEXT_ROLES and _is_foreign(content):
        flaws.append("not text")
    if calls == []:
        flaws.append("no calls")
    if _are_odd_ids([*ids, answered] if role == "tool" else ids, LONGEST_CHAT_ID):
        flaws.append("id")
    results = (answered,) if answered else ()
    is_signed = bool(bound) and _is_signed(message, bound)
    return Shape(role, tuple(filter(None, ids)), results, _digest(bound), markers, says_json, tuple(flaws), is_signed)


def _is_signed(message: _Fields, bound: Sequence[object]) -> bool:
    """Whether reasoning is signed or encrypted, as LiteLLM, OpenRouter and Anthropic's own parts have it."""
    if message.get("thinking_blocks"):
        return True
    details = [*read_objects(message.get("reasoning_details")), *(part for part in bound if isinstance(part, dict))]
    return any(part.get("signature") or part.get("data") for part in details)


def _read_anthropic(message: _Fields, markers: tuple[str, ...], says_json: bool) -> Shape:
    content = message.get("content")
    blocks = read_objects(content)
    calls = [read_text(block.get("id")) for block in blocks if block.get("type") == "tool_use"]
    results = [read_text(block.get("tool_use_id")) for block in blocks if block.get("type") == "tool_result"]
    thinking = [block for block in blocks if read_text(block.get("type")) in THINKING]
    return Shape(
        "tool" if results else name_message_role(message),
        tuple(filter(None, calls)),
        tuple(filter(None, results)),
        _digest(thinking),
        markers,
        says_json,
        tuple(
            chain(
                ["empty"] if _is_empty(content) else (),
                _find_disorder(blocks, len(results)),
                ["id"] if not all(map(_ANTHROPIC_ID.match, [*calls, *results])) else (),
            )
        ),
    )


def _read_responses(item: _Fields, markers: tuple[str, ...], says_json: bool) -> Shape:
    kind = read_item_kind(item)
    named = read_text(item.get("call_id"))
    ids = (named,) if named else ()
    if kind == "message":
        role, content = name_message_role(item), item.get("content")
        flaws = ["empty"] if _is_empty(content) else []
        if role in _TEXT_ROLES and _is_foreign(content):
            flaws.append("not text")
        return Shape(role, markers=markers, says_json=says_json, flaws=tuple(flaws))
    are_odd = (ids or kind.startswith("function_call")) and _are_odd_ids(ids, LONGEST_RESPONSES_ID)
    odd = ("id",) if are_odd else ()
    if is_answer(kind):
        return Shape("tool", (), ids, b"", markers, says_json, odd)
    reasoning = _digest([item]) if kind == "reasoning" else b""
    return Shape("assistant", ids, (), reasoning, markers, says_json, odd)


def read_item_kind(item: _Fields) -> str:
    """The type of a Responses item; one without a type is a message if it has a role."""
    return read_text(item.get("type")) or ("message" if item.get("role") else "")


def is_answer(kind: str) -> bool:
    """Whether a Responses item of this type answers a call."""
    return kind.endswith("_output") or kind == "mcp_approval_response"


_READERS: Mapping[str, Callable[[_Fields, tuple[str, ...], bool], Shape]] = {
    "chat_completions": _read_chat,
    "anthropic_messages": _read_anthropic,
    "responses": _read_responses,
}


def name_message_role(message: _Fields) -> str:
    """The role a message states, by the name a Shape has for it."""
    return name_role(read_text(message.get("role")))


def _digest(values: Sequence[object]) -> bytes:
    """What stands for opaque values; nothing for none, and one and the same for those that have no spelling."""
    if not values:
        return b""
    try:
        return sha256(encode_canonical(values)).digest()[:16]
    except JSON_ERRORS:
        return _UNSPELT


def _is_empty(content: object) -> bool:
    """Whether content says nothing, or has a text which does not."""
    if isinstance(content, str):
        return not content or content.isspace()
    texts = [part.get("text") for part in read_objects(content) if read_text(part.get("type")) in TEXTS]
    return not content or not all(texts)


def _is_foreign(content: object) -> bool:
    """Whether there is anything but text in content."""
    return any([read_text(part.get("type")) not in TEXTS for part in read_objects(content)])


def _are_odd_ids(ids: Sequence[str], longest: int) -> bool:
    return any([not 0 < len(each) <= longest for each in ids])


def _find_disorder(blocks: list[dict[str, object]], results: int) -> Iterator[str]:
    """Results come before whatever else a message says, thinking before the calls it led to."""
    kinds = [read_text(block.get("type")) for block in blocks]
    if any(kind != "tool_result" for kind in kinds[:results]):
        yield "result behind text"
    if "tool_use" in kinds and any(kind in THINKING for kind in kinds[kinds.index("tool_use") :]):
        yield "thinking behind a call"


def read_markers(value: object) -> tuple[str, ...]:
    """The retentions of the cache markers in a list of decoded blocks, tools or messages, in order."""
    return tuple(chain.from_iterable(map(_find_markers, read_objects(value))))


def _find_markers(message: _Fields, depth: int = 2) -> Iterator[str]:
    """Of a message: its parts, what stands inside a result, its calls; its own, which counts for the end of it."""
    inner = (message.get("content"), message.get("tool_calls")) if depth else ()
    for part in chain.from_iterable(map(read_objects, inner)):
        yield from _find_markers(part, depth - 1)
    marker = message.get("cache_control")
    if isinstance(marker, dict):
        yield read_text(marker.get("ttl")) or "5m"
