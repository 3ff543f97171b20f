"""What the wires' normal forms share: hashes, reading in one go or one by one, and never an exception."""

import json
from random import Random
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.wire import FORMATS, identity
from proxy.wire.anthropic_messages import AnthropicMessages
from proxy.wire.body import ByteRange, split_body
from proxy.wire.chat_completions import ChatCompletions
from proxy.wire.format import Format
from proxy.wire.identity import FORM_SIZE, Item, collapse, count_preamble, digest_form, normalize_values, weigh
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


@each_wire
@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant"])
def test_all_messages_have_one_and_the_same_role_object(wire: Format, role: str) -> None:
    messages = [{"role": role, "content": content} for content in ("hello", "there")]
    content = json.dumps({wire.items_key: messages}).encode()
    split = split_body(content, wire.items_key)
    assert split is not None
    one, other = (item.role for item in wire.read_items(content, split.items))
    assert one is other
    one, other = (wire.parse_structure(content[span.start : span.end]).role for span in split.items)
    assert one is other


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("w", "a", "b"), ("w", "ab", "")),
        (("w", "a"), ("w", b"a")),
        (("w", None), ("w", "")),
        (("w", ("a", "b")), ("w", "a", "b")),
        (("w", "\ud800"), ("w", "\udfff")),
        (("w", "\ud800"), ("w", b"\\ud800")),
        (("w", "\ud800", None), ("w", "\ud800", "None")),
        (("w", True), ("w", None)),
    ],
)
def test_forms_that_differ_have_different_hashes(one: tuple[object, ...], other: tuple[object, ...]) -> None:
    assert digest_form(one) != digest_form(other)
    assert len(digest_form(one)) == len(digest_form(other)) == FORM_SIZE


def test_forms_are_the_same_for_ever() -> None:
    """They rest in the log: change one only with a new name for the wire's forms."""
    assert [read_one(wire, HELLO).form.hex() for wire in WIRES] == FOR_EVER


def test_wires_do_not_share_forms() -> None:
    for value in (HELLO, 7, {"role": 7}):
        assert len({read_one(wire, value).form for wire in WIRES}) == len(WIRES)
    assert len({wire.read_items(b"nul", [ByteRange(0, 3)])[0].form for wire in WIRES}) == len(WIRES)


def test_nothing_one_text_and_several_parts_collapse() -> None:
    assert [collapse([]), collapse(["a"]), collapse(["a", "b"]), collapse([b"a"])] == [None, "a", ["a", "b"], [b"a"]]


def test_weight_is_text_and_bytes_and_the_last_of_a_tuple() -> None:
    assert weigh(["ab", b"c", ("name", "id", ["d", ("x", None)]), None]) == 4


def test_parts_already_decoded() -> None:
    texts, dropped = frozenset({"text"}), frozenset({"thinking"})
    parts = [{"type": "text", "text": "a"}, {"type": "text"}, {"type": "thinking"}, {"type": "odd", "x": 1.5}, "b"]
    assert normalize_values(parts, texts, dropped) == ["a", b'{"type":"odd","x":1.5}', b'"b"']
    assert [normalize_values(value, texts) for value in ("a", "", None, 7)] == [["a"], [], [], [("whole", b"7")]]


@each_wire
def test_items_are_read_alike_together_one_by_one_and_from_the_middle(wire: Format) -> None:
    odd = [HELLO, 7, {"role": "user", "content": "\ud800"}, {"role": "user", "content": 1.5}, HELLO]
    for values in (odd, [HELLO] * 3, [HELLO, {"role": "assistant", "content": [{"type": "image", "x": 1}]}]):
        alone = [read_one(wire, value) for value in values]
        assert read(wire, [json.dumps(value) for value in values]) == alone
        body = json.dumps({wire.items_key: values, "model": "m"}).encode()
        split = split_body(body, wire.items_key)
        assert split is not None
        for start in range(len(values)):
            assert wire.read_items(body, split.items[start:]) == alone[start:]
        assert wire.read_items(body, split.items[::2]) == alone[::2]
        assert wire.read_items(body, split.items[::-1]) == alone[::-1]


DEEP = ["[" * 100_000 + "]" * 100_000, '{"role":"user","content":' * 50_000 + "1" + "}" * 50_000]
UNREADABLE = [b"", b"{", b"nul", b'{"role":"user","content":"\xff"}', b'{"role":"user","content":"\n"}']


@each_wire
@pytest.mark.parametrize("raw", [*(text.encode() for text in DEEP), *UNREADABLE])
def test_what_is_no_json_or_too_deep_is_known_by_its_bytes(wire: Format, raw: bytes) -> None:
    one, other = wire.read_items(raw + raw[:-1], [ByteRange(0, len(raw)), ByteRange(len(raw), len(raw) * 2 - 1)])
    assert len(one.form) == FORM_SIZE
    assert (one.form != other.form) == bool(raw)
    assert (one.role, one.calls, one.results, one.weight) == ("", (), (), len(raw))


@each_wire
def test_a_member_that_does_not_count_may_be_deep(wire: Format) -> None:
    raw = json.dumps(HELLO)[:-1].encode() + b',"odd":' + b"[" * 200 + b"]" * 200 + b"}"
    assert wire.read_items(raw, [ByteRange(0, len(raw))])[0].form == read_one(wire, HELLO).form


def test_a_part_too_deep_makes_its_message_known_by_its_bytes() -> None:
    forms = []
    for end in ("1", "2", "1.0"):
        part = '{"type":"image","x":' + "[" * 200 + end + "]" * 200 + "}"
        item = read(ChatCompletions(), [f'{{"role":"user","content":[{part}]}}'])[0]
        assert (item.role, item.weight) == ("user", len(part) + 28)
        forms.append(item.form)
    assert len(set(forms)) == 3


def test_another_shape_keeps_its_role_and_weighs_its_bytes() -> None:
    item = read_one(ChatCompletions(), {"role": "developer", "content": 1.0})
    assert (item.role, item.weight) == ("system", len('{"content":1,"role":"developer"}'))
    odd = read_one(ChatCompletions(), {"role": "function", "content": [float("inf"), "\ud800"]})
    assert (odd.role, odd.weight) == ("tool", len('{"role": "function", "content": [Infinity, "\\ud800"]}'))


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
