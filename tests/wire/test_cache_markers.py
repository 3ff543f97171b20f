"""Cache markers of ours: behind the system prompt, and where a marker of the client is too far from the one before."""

import json
from typing import Any

import pytest

from proxy.model.messages import MessageStructure
from proxy.wire import FORMATS
from proxy.wire.body import SplitBody, split_body
from proxy.wire.rendering import RenderedRequest, add_markers, apply, find_hop

ANTHROPIC = "anthropic_messages"
MARK = {"cache_control": {"type": "ephemeral"}}
USER = b'{"role":"user","content":"%b"}'


def text(said: str) -> dict[str, str]:
    return {"type": "text", "text": said}


def split(content: bytes) -> SplitBody:
    body = split_body(content, "messages")
    assert body is not None
    return body


def mark_system(system: Any, **members: Any) -> Any:
    """The system prompt of a request to Anthropic's API, with the markers of ours."""
    form = FORMATS[ANTHROPIC]
    given = {} if system is None else {"system": system}
    body = split(json.dumps({**given, **members, "messages": [{"role": "user", "content": "a"}] * 3}).encode())
    kept = form.read_cache_terms(body, 0)
    sent = add_markers(form, body, RenderedRequest((USER % b"b",), {}), preamble=0, through=1, kept=kept, lost=())
    value = json.loads(apply(body, 0, 1, sent.rendered, sent.changed, members=sent.members))
    assert [name for name in value if name != "system"] == [*members, "messages"]
    return value.get("system")


@pytest.mark.parametrize(
    ("system", "members", "marked"),
    [
        ("Be good.", {}, [text("Be good.") | MARK]),
        ([text("Be"), text("good.")], {}, [text("Be"), text("good.") | MARK]),
        ([text("Be"), text("good.")], MARK, [text("Be"), text("good.") | MARK]),
        # what is there already, or nothing that could have one
        ([text("Be") | MARK, text("good.")], {}, [text("Be") | MARK, text("good.")]),
        ("Be good.", {"tools": [MARK]}, "Be good."),
        ("", {}, ""),
        ([], {}, []),
        (None, {}, None),
    ],
)
def test_a_marker_of_ours_stands_behind_the_top_level_system_prompt(system: Any, members: Any, marked: Any) -> None:
    assert mark_system(system, **members) == marked


def put_hop(spec: str, newest: int | None = None, *, preamble: int = 0) -> int:
    """Where a marker is needed: `spec` has the roles and numbers of blocks of the messages."""
    roles = {"u": "user", "a": "assistant"}
    messages = [
        {"role": roles[each[0]], "content": [text("a")] * int(each[1:]) if each[1:] else "a"} for each in spec.split()
    ]
    body = split(json.dumps({"messages": messages}).encode())
    own = messages[preamble:]
    structures = [FORMATS[ANTHROPIC].parse_structure(json.dumps(each).encode()) for each in own]
    return find_hop(body, preamble, structures, len(own) - 1 if newest is None else newest, {})


@pytest.mark.parametrize(
    ("spec", "newest", "place"),
    [
        ("u a u", None, -1),
        ("u a10 u9", None, -1),
        ("u a10 u10", None, 0),
        ("u a u a9 a2 u8 u", None, 2),
        ("u a u a30 u a u", None, -1),  # the earlier request has written behind it
        ("u a u a30 u a u", 4, 2),
        ("u30", None, -1),
        ("a30 u", None, -1),
        ("u a u19", None, 0),
        ("u a u18", None, -1),
    ],
)
def test_a_marker_is_needed_where_the_earlier_request_ended_too_many_blocks_back(
    spec: str, newest: int | None, place: int
) -> None:
    assert put_hop(spec, newest) == place


def test_blocks_are_counted_not_what_they_contain() -> None:
    results = {"role": "user", "content": [{"type": "tool_result", "content": [text("a")] * 30}]}
    body = split(
        json.dumps({"messages": [*[{"role": "user", "content": "a"}, {"role": "assistant"}], results]}).encode()
    )
    structures = [MessageStructure(role) for role in ("user", "assistant", "tool")]
    assert find_hop(body, 0, structures, 2, {}) == -1
    changed = {2: json.dumps({"role": "user", "content": [text("a")] * 20}).encode()}
    assert find_hop(body, 0, structures, 2, changed) == 0


def send_with_hop(place: int, *, is_ours: bool, tail: int = 3, **members: Any) -> list[int]:
    """The messages with a marker, where one more is needed at `place`; the client has one at its last message."""
    form = FORMATS[ANTHROPIC]
    messages: list[Any] = [{"role": "user", "content": "a"} for _ in range(1 + tail)]
    messages[-1]["content"] = [text("a") | MARK]
    body = split(json.dumps({**members, "messages": messages}).encode())
    kept = form.read_cache_terms(body, 0, ["5m"])
    sent = RenderedRequest((USER % b"b",), {})
    sent = add_markers(form, body, sent, preamble=0, through=1, kept=kept, lost=(), hop=(place, "5m"), is_ours=is_ours)
    value = json.loads(apply(body, 0, 1, sent.rendered, sent.changed, members=sent.members))
    return [at for at, each in enumerate(value["messages"]) if "cache_control" in json.dumps(each)]


@pytest.mark.parametrize(
    ("place", "is_ours", "members", "marked"),
    [
        (2, False, {}, [2, 3]),
        (2, True, {}, [0, 2, 3]),
        (0, False, {}, [3]),  # it is in the frozen part
        (3, False, {}, [3]),  # there is one
        (2, True, {"tools": [MARK] * 2}, [2, 3]),
        (2, True, {"tools": [MARK] * 3}, [3]),
        (2, False, {"tools": [MARK] * 3}, [3]),
    ],
)
def test_a_marker_where_the_earlier_request_ended_comes_first(
    place: int, is_ours: bool, members: Any, marked: list[int]
) -> None:
    assert send_with_hop(place, is_ours=is_ours, **members) == marked
