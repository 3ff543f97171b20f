"""What the wires' normal forms share: hashes, reading in one go or one by one, and never an exception."""

import json
from random import Random
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.wire import FORMATS, identity
from proxy.wire.anthropic_messages import AnthropicMessages
from proxy.wire.body import ByteRange
from proxy.wire.chat_completions import ChatCompletions
from proxy.wire.format import Format
from proxy.wire.identity import FORM_SIZE, Item, count_preamble
from proxy.wire.json_values import load_json
from proxy.wire.responses import Responses
from tests.support.echoes import read, read_one

WIRES = list(FORMATS.values())
each_wire = pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
FOR_EVER = ["5eae79587fee1da09689ced006430318", "a00c1c25f1d2cb96fe5b420c4677fdf2", "ae6e01c826d07ac56970d5d715808748"]
HELLO = {"role": "user", "content": "hello"}


def test_the_leading_system_messages_are_the_preamble() -> None:
    items = [Item(role, b"") for role in ("system", "system", "user", "system")]
    assert [count_preamble(items[start:]) for start in range(5)] == [2, 1, 0, 1, 0]


def test_forms_are_the_same_for_ever() -> None:
    """They rest in the log: change one only with a new name for the wire's forms."""
    assert [read_one(wire, HELLO).form.hex() for wire in WIRES] == FOR_EVER


DEEP = ["[" * 100_000 + "]" * 100_000, '{"role":"user","content":' * 50_000 + "1" + "}" * 50_000]
UNREADABLE = [b"", b"{", b"nul", b'{"role":"user","content":"\xff"}', b'{"role":"user","content":"\n"}']


@each_wire
@pytest.mark.parametrize("raw", [*(text.encode() for text in DEEP), *UNREADABLE])
def test_what_is_no_json_or_too_deep_is_known_by_its_bytes(wire: Format, raw: bytes) -> None:
    one, other = wire.read_items(raw + raw[:-1], [ByteRange(0, len(raw)), ByteRange(len(raw), len(raw) * 2 - 1)])
    assert len(one.form) == FORM_SIZE
    assert (one.form != other.form) == bool(raw)
    assert (one.role, one.calls, one.results, one.weight) == ("", (), (), len(raw))


def test_a_part_too_deep_makes_its_message_known_by_its_bytes() -> None:
    forms = []
    for end in ("1", "2", "1.0"):
        part = '{"type":"image","x":' + "[" * 200 + end + "]" * 200 + "}"
        item = read(ChatCompletions(), [f'{{"role":"user","content":[{part}]}}'])[0]
        assert (item.role, item.weight) == ("user", len(part) + 28)
        forms.append(item.form)
    assert len(set(forms)) == 3


def test_an_answer_too_deep_to_write_is_known_for_nothing() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    found = ChatCompletions.reader.read_value({"role": "assistant", "content": deep})
    assert (found.role, found.weight) == ("", 0)
    while deep:  # taken apart from the outside, for freeing it recurses too
        deep = deep.pop()  # type: ignore[assignment]


members = st.sampled_from(
    [
        *("role", "content", "type", "text", "tool_calls", "function", "id", "name", "arguments", "input", "output"),
        *("tool_use_id", "is_error", "call_id", "tool_call_id", "function_call", "cache_control", "citations"),
    ]
)
said = st.sampled_from(
    [
        *("user", "assistant", "tool", "message", "text", "function", "custom", "tool_use", "tool_result", "thinking"),
        *(
            "reasoning",
            "function_call",
            "function_call_output",
            "item_reference",
            "input_text",
            "",
            "\ud800",
            '{"a":1}',
        ),
    ]
)
leaves = said | st.sampled_from([None, True, 0, 1.5, 2**70, float("inf"), float("nan")])
anything = st.recursive(
    leaves, lambda each: st.lists(each, max_size=3) | st.dictionaries(members, each, max_size=5), max_leaves=12
)
objects = st.dictionaries(members, anything, max_size=6)


@pytest.mark.no_cover
@each_wire
@given(st.lists(objects | anything, max_size=3), st.randoms(use_true_random=False))
def test_whatever_stands_there_has_an_item_that_does_not_depend_on_the_order_of_members(
    wire: Format, values: list[object], random: Random
) -> None:
    found = read(wire, [json.dumps(value) for value in values])
    assert [len(item.form) in (0, FORM_SIZE) for item in found] == [True] * len(values)
    assert found == [read_one(wire, value) for value in values]
    for value, item in zip(values, found, strict=True):
        if isinstance(value, dict):
            keys = random.sample(sorted(value), len(value))
            again = read_one(wire, {key: value[key] for key in keys})
            assert again.form == item.form or "\\ud800" in json.dumps(
                value
            )  # known by its bytes where no encoder helps
        wire.read_reply({"choices": [{"message": value}], "output": [value], "content": value})


@each_wire
@given(st.binary(max_size=40))
def test_any_bytes_have_a_form(wire: Format, raw: bytes) -> None:
    assert len(wire.read_items(raw, [ByteRange(0, len(raw))])) == 1
    wire.read_input(raw)


@pytest.mark.parametrize(
    ("wire", "message"),
    [
        (ChatCompletions(), {"tool_calls": [{"id": f"c{i}", "type": "custom", "custom": {}} for i in range(9)]}),
        (ChatCompletions(), {"content": [{"type": "image_url", "image_url": {"url": str(i)}} for i in range(9)]}),
        (AnthropicMessages(), {"content": [{"type": "image", "source": {"data": str(i)}} for i in range(9)]}),
        (AnthropicMessages(), {"content": [{"type": "text", "text": "a", "citations": [i]} for i in range(9)]}),
        (Responses(), {"content": [{"type": "input_image", "image_url": str(i)} for i in range(9)]}),
    ],
)
def test_a_message_with_many_unknown_parts_is_decoded_as_a_whole_only_once(
    wire: Format, message: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    decoding = Mock(wraps=load_json)
    monkeypatch.setattr(identity, "load_json", decoding)
    read_one(wire, {"role": "assistant", **message})
    assert decoding.call_count == 1
