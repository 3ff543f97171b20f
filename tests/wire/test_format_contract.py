"""The contract of a wire format, held by every one of `proxy.wire.FORMATS`.

What is written is read back, what is echoed has the form of the reply, streams of any bytes give a response, and an end
marker matches at a stream's end only.
"""

import functools
import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.model.epoch import Replaced
from proxy.model.exchange import Answer
from proxy.model.messages import Message, MessageStructure
from proxy.wire import FORMATS
from proxy.wire.body import split_body
from proxy.wire.format import Format
from proxy.wire.rendering import render
from proxy.wire.streams import MARKER_REACH, ServerEvent, read_error_object, read_events
from proxy.wire.validity import Rules
from tests.support.examples import examples
from tests.support.valid_streams import find_faults

WIRES = list(FORMATS.values())
CHAT, RESPONSES, ANTHROPIC = WIRES

ENDS = [
    (CHAT, b"data: [DONE]"),
    (CHAT, b"data:[DONE]"),
    (RESPONSES, b"event: response.completed"),
    (RESPONSES, b"event:response.failed"),
    (RESPONSES, b"event: response.incomplete"),
    (RESPONSES, b'data: {"type":"response.completed"'),
    (RESPONSES, b'data:{"type": "response.failed"'),
    (RESPONSES, b'data: {    "type"    :    "response.incomplete"'),
    (RESPONSES, b"data: [DONE]"),
    (ANTHROPIC, b"event: message_stop"),
    (ANTHROPIC, b"event:message_stop"),
    (ANTHROPIC, b'data: {"type":"message_stop"'),
    (ANTHROPIC, b'data: {    "type"    :    "message_stop"'),
]

NEAR_MISSES = [
    (CHAT, b'data: {"choices":[{"delta":{"content":"[DONE]"}}]}'),
    (CHAT, b'data: {"choices":[{"delta":{"content":"\\ndata: [DONE]"}}]}'),
    (CHAT, b'data: {"choices":[{"delta":{"content":"data: [DONE]"}}]}'),
    (CHAT, b": data: [DONE]"),
    (CHAT, b"event: [DONE]"),
    (CHAT, b"data: DONE"),
    (CHAT, b'data: {"type":"response.completed"}'),
    (RESPONSES, b"event: response.completed_partially"),
    (RESPONSES, b"event: response.incomplete.soon"),
    (RESPONSES, b"event: response.created"),
    (RESPONSES, b'data: {"type":"response.output_text.delta","delta":"event: response.completed"}'),
    (RESPONSES, b'data: {"type":"response.output_text.delta","delta":"\\"type\\":\\"response.completed\\""}'),
    (RESPONSES, b'data: {"type":"response.output_text.done","text":"data: [DONE]"}'),
    (ANTHROPIC, b"event: message_stop_soon"),
    (ANTHROPIC, b"event: message_start"),
    (ANTHROPIC, b'data: {"type":"content_block_delta","delta":{"text":"event: message_stop"}}'),
    (ANTHROPIC, b"data: [DONE]"),
]


@pytest.mark.parametrize(("wire", "items_key"), [(CHAT, "messages"), (RESPONSES, "input"), (ANTHROPIC, "messages")])
def test_each_format_is_a_format(wire: Format, items_key: str) -> None:
    assert wire.items_key == items_key
    assert wire.read_answer({}).is_ended
    assert not wire.read_events([]).is_ended


def test_each_format_has_a_name_of_its_own() -> None:
    assert [wire.name for wire in WIRES] == ["chat_completions", "responses", "anthropic_messages"]


@pytest.mark.parametrize(("wire", "line"), ENDS)
@pytest.mark.parametrize("before", [b"", b"data: {}\n\n", b"data: {}\r\r", b"data: {}\r\n\r\n"])
def test_the_end_is_found_at_the_beginning_of_a_line(wire: Format, line: bytes, before: bytes) -> None:
    found = wire.end_marker.search(before + line + b"\n\n")
    assert found is not None
    assert found.span() == (len(before), len(before + line))


@pytest.mark.parametrize(("wire", "line"), NEAR_MISSES)
def test_what_only_looks_like_the_end_is_not_found(wire: Format, line: bytes) -> None:
    assert wire.end_marker.search(b"data: {}\n\n" + line + b"\n\n") is None


@pytest.mark.parametrize(("wire", "line"), ENDS + NEAR_MISSES)
def test_a_stream_in_pieces_is_searched_like_a_whole_one(wire: Format, line: bytes) -> None:
    stream = b'data: {"some":"chunk"}\n\n' + line + b"\n\n"
    is_end = (wire, line) in ENDS
    for size in (1, 2, 3, 7, 20, 50):
        assert _search_pieces(wire, stream, size) == is_end, size


def _search_pieces(wire: Format, stream: bytes, size: int) -> bool:
    """As the comment at MARKER_REACH tells the relay to."""
    window = b"\n"
    for start in range(0, len(stream), size):
        window = window[-MARKER_REACH:] + stream[start : start + size]
        if wire.end_marker.search(window, 1):
            return True
    return False


@pytest.mark.parametrize(("wire", "line"), ENDS)
def test_no_end_is_longer_than_its_stated_reach(wire: Format, line: bytes) -> None:
    assert len(b"\n" + line + b"\n") <= MARKER_REACH


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    "data",
    ["", "null", "7", "[]", '"text"', "{", '{"a":}', "[" * 100_000, '{"a":' * 100_000, '{"a":' * 300 + "1" + "}" * 300],
)
def test_data_that_is_no_usable_object_is_passed_over(wire: Format, data: str) -> None:
    answer = wire.read_events(read_events(f"data: {data}\n\n".encode()))
    assert answer == wire.read_events([])


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("number", ["1e400", "NaN", "-Infinity", "9" * 40, '"\\ud800"'])
def test_values_that_strict_parsers_refuse_do_not_cost_the_event(wire: Format, number: str) -> None:
    answer = wire.read_events(read_events(f'data: {{"error":{{"message":"m","odd":{number}}}}}\n\n'.encode()))
    assert answer.error == "m"
    json.dumps(answer.value)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"error": {"message": "too long", "code": 400}}, "too long"),
        ({"error": {"message": None, "code": "context_length_exceeded"}}, "context_length_exceeded"),
        ({"error": {"code": 429}}, "429"),
        ({"error": {"code": None, "type": "overloaded_error"}}, "overloaded_error"),
        ({"error": "model not found"}, "model not found"),
        ({"error": {"odd": 1}}, "error without a message"),
        ({"error": True}, "error without a message"),
        ({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, "Overloaded"),
        (
            {"object": "error", "message": "maximum context length", "type": "BadRequestError", "code": 400},
            "maximum context length",
        ),
        ({"detail": "Not Found"}, "Not Found"),
        ({"detail": [{"loc": ["body"], "msg": "missing"}, {"msg": "too short"}, 7]}, "missing; too short"),
        ({"detail": [7]}, "error without a message"),
        ({"detail": {"message": "Unauthorized"}}, "Unauthorized"),
        ({"id": "x", "detail": "high"}, ""),
        ({"id": "x", "error": None}, ""),
        ({}, ""),
    ],
)
def test_an_error_body_says_its_message(wire: Format, body: dict[str, object], error: str) -> None:
    answer = wire.read_answer(body)
    assert (answer.error, answer.value, answer.is_ended) == (error, body, True)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    ("stream", "error"),
    [
        (b'data: {"error":{"message":"upstream died"}}\n\n', "upstream died"),
        (b'event: error\ndata: {"message":"flat"}\n\n', "flat"),
        (b'event: error\ndata: {"error":{"message":"nested"}}\n\n', "nested"),
        (b"event: error\ndata: Internal Server Error\n\n", "Internal Server Error"),
        (b'data: {"object":"error","message":"vLLM","type":"BadRequestError","code":400}\n\n', "vLLM"),
        (b'data: {"type":"error","code":null,"message":"by its type"}\n\n', "by its type"),
        (b'data: {"error":"first"}\n\ndata: {"error":"second"}\n\n', "first"),
    ],
)
def test_an_error_after_the_head_was_sent_is_read(wire: Format, stream: bytes, error: str) -> None:
    answer = wire.read_events(read_events(stream))
    assert (answer.error, answer.is_ended) == (error, False)


def text(said: str, **fields: object) -> dict[str, object]:
    return {"type": "text", "text": said, **fields}


def read_orders(wire: Format, orders: object) -> bytes:
    return wire.read_instructions(json.dumps(orders).encode())


BILLING = "x-anthropic-billing-header: cc_version=2.1; cc_entrypoint=cli; cch="
SAME_ORDERS = [
    (ANTHROPIC, ["You help.", [text("You help.")], [text("You help.", cache_control={"type": "ephemeral"})]]),
    (ANTHROPIC, ["You help.", [text(f"{BILLING}0a1;"), text("You help.")], f"{BILLING}0b2;\nYou help."]),
    (ANTHROPIC, [[text("a"), text("b")], [text(BILLING), text("a"), text("b", cache_control=None)]]),
    (RESPONSES, ["You help.", [{"type": "input_text", "text": "You help."}]]),
]


@pytest.mark.parametrize(("wire", "spellings"), SAME_ORDERS)
def test_orders_are_the_same_however_they_are_marked_and_billed(wire: Format, spellings: list[object]) -> None:
    assert len({read_orders(wire, orders) for orders in spellings}) == 1


@pytest.mark.parametrize("wire", [RESPONSES, ANTHROPIC])
def test_other_orders_are_others_and_none_are_too_odd(wire: Format) -> None:
    orders = ["You help.", "You help. ", f"You help. {BILLING}", 7, {"a": 1}, [7], [text("a"), text("b")], "\ud800"]
    forms = {read_orders(wire, each) for each in orders} | {
        wire.read_instructions(raw) for raw in (b"[" * 5000, b"x\xff")
    }
    assert len(forms) == len(orders) + 2


def test_chat_completions_have_orders_only_in_messages() -> None:
    assert (CHAT.instructions_key, CHAT.read_instructions(b'"You help."')) == ("", b"")


STREAMS: dict[str, bytes] = {
    "chat_completions": b"""\
data: {"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":"\xe2\x82\xac"},"logprobs":{"content":[]}}]}

data: {"choices":[{"index":1,"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{"}}]}}]}

data: {"choices":[{"index":1,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"}"}}]},"finish_reason":"stop"}]}

data: {"choices":[{"message":{"content":[{"type":"text"}]},"error":{"message":"x"}}],"x_groq":{"usage":{}},"error":{}}

data: {"choices":[],"usage":{"prompt_tokens":1,"prompt_tokens_details":{"cached_tokens":1}},"detail":[{"msg":"y"}]}

data: [DONE]

""",
    "responses": b"""\
event: response.created
data: {"type":"response.created","response":{"id":"r","status":"in_progress","output":[]}}

data: {"type":"response.output_item.added","output_index":0,"item":{"id":"m","type":"message","content":[]}}

data: {"type":"response.content_part.added","item_id":"m","content_index":0,"part":{"type":"output_text","text":""}}

data: {"type":"response.output_text.delta","item_id":"m","output_index":0,"content_index":0,"delta":"\xe2\x82\xac"}

data: {"type":"response.output_text.annotation.added","item_id":"m","content_index":0,"annotation":{"index":1}}

data: {"type":"response.output_text.done","item_id":"m","content_index":0,"text":"\xe2\x82\xac","logprobs":[]}

data: {"type":"response.reasoning_summary_text.delta","item_id":"s","summary_index":0,"delta":"x"}

data: {"type":"response.output_item.done","output_index":2,"item":{"type":"reasoning","summary":[{"text":"x"}]}}

data: {"type":"response.function_call_arguments.delta","output_index":1,"delta":"{}"}

data: {"type":"response.completed","response":{"id":"r","status":"completed","output":[],"usage":{"input_tokens":1}}}

""",
    "anthropic_messages": b"""\
event: message_start
data: {"type":"message_start","message":{"id":"m","content":[],"usage":{"input_tokens":1}}}

data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}

data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"\xe2\x82\xac"}}

data: {"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{}"}}

data: {"type":"content_block_delta","index":0,"delta":{"type":"citations_delta","citation":{"title":"t"}}}

data: {"type":"content_block_delta","index":2,"delta":{"type":"thinking_delta","thinking":"x"}}

data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":2}}

event: message_stop
data: {"type":"message_stop"}

""",
}


def list_members(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        yield from value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else []:
        yield from list_members(inner)


def list_strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else []:
        yield from list_strings(inner)


def check(wire: Format, answer: Answer) -> None:
    assert isinstance(json.loads(json.dumps(answer.value)), dict)
    again = wire.read_answer(answer.value)
    assert (again.usage, again.finish) == (answer.usage, answer.finish)


@functools.cache
def list_events(wire: str) -> st.SearchStrategy[list[tuple[str, dict[str, object]]]]:
    """Events with the members, the kinds and the words of a wire, put together at random."""
    known = [json.loads(event.data) for event in read_events(STREAMS[wire]) if event.data != "[DONE]"]
    outer, inner = sorted({key for event in known for key in event}), sorted(set(list_members(known)))
    said = sorted(set(list_strings(known)))
    leaves = st.sampled_from([None, True, -1, 0, 1, 2**70, 0.5, float("inf"), "", "\ud800", *said])
    values = st.recursive(
        leaves,
        lambda each: st.lists(each, max_size=3) | st.dictionaries(st.sampled_from(inner), each, max_size=3),
        max_leaves=12,
    )
    objects = st.dictionaries(st.sampled_from(inner), values, max_size=4)
    likely = values | objects | st.lists(objects, max_size=3)
    events = st.dictionaries(st.sampled_from(outer), likely, max_size=5)
    return st.lists(st.tuples(st.sampled_from(["", "error", *said]), events), max_size=6)


@pytest.mark.no_cover
@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
@examples(50)
@given(st.data())
def test_events_whose_members_are_of_any_kind(wire: Format, data: st.DataObject) -> None:
    sent = data.draw(list_events(wire.name))
    check(wire, wire.read_events(ServerEvent(kind, "", json.loads(json.dumps(event))) for kind, event in sent))
    for _, event in sent:
        wire.read_answer(event)


def spell(events: list[tuple[str, dict[str, object]]]) -> str:
    return "".join(
        f"event: {kind}\ndata: {json.dumps(event)}\n\n" if kind else f"data: {json.dumps(event)}\n\n"
        for kind, event in events
        if kind.isprintable()
    )


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
@pytest.mark.parametrize(
    ("before", "behind"),
    [(": waiting\n\n", ""), ("", "data: {\n\n"), ("id: 7\n", "data: [[]]"), ("", f"data: {'[' * 200}{']' * 200}\n\n")],
)
@examples(25)
@given(st.data())
def test_lines_that_say_nothing_change_nothing(wire: Format, before: str, behind: str, data: st.DataObject) -> None:
    """They make the events be split, or decoded, one by one."""
    stream = spell(data.draw(list_events(wire.name)))
    plain, other = (wire.read_events(read_events(each.encode())) for each in (stream, before + stream + behind))
    assert (repr(plain), json.dumps(plain.value)) == (repr(other), json.dumps(other.value))


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
@given(st.binary())
def test_any_bytes(wire: Format, stream: bytes) -> None:
    check(wire, wire.read_events(read_events(stream)))


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 60), st.binary(max_size=6)), max_size=6))
def test_a_garbled_stream(wire: Format, changes: list[tuple[int, int, bytes]]) -> None:
    stream = STREAMS[wire.name]
    for start, length, put in changes:
        stream = stream[:start] + put + stream[start + length :]
    check(wire, wire.read_events(read_events(stream)))


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
@given(st.permutations(range(16)))
def test_a_stream_in_another_order(wire: Format, order: list[int]) -> None:
    events = list(read_events(STREAMS[wire.name]))
    check(wire, wire.read_events(events[i] for i in order if i < len(events)))


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
def test_a_stream_cut_at_any_byte_says_less_than_the_whole_and_has_not_ended(wire: Format) -> None:
    stream = STREAMS[wire.name]
    sizes = [len(str(wire.read_events(read_events(stream[:cut])).value)) for cut in range(len(stream) + 1)]
    assert sizes[-1] == max(sizes) > min(sizes) == sizes[0]
    ended = [wire.read_events(read_events(stream[:cut])).is_ended for cut in range(len(stream) + 1)]
    assert ended == sorted(ended)
    assert ended[-1]


each_format = pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
RESPONSE_BODIES: dict[str, dict[str, object]] = {
    "chat_completions": {
        "choices": [
            {"message": {"role": "assistant", "content": "Done.", "tool_calls": [{"id": "a", "type": "function"}]}},
            {"message": {"role": "assistant", "content": "Or not."}},
        ]
    },
    "responses": {
        "output": [
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Done."}]},
            {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
        ]
    },
    "anthropic_messages": {"role": "assistant", "content": [{"type": "text", "text": "Done."}]},
}


@each_format
@pytest.mark.parametrize("role", ["user", "assistant"])
def test_a_written_message_is_read_back(wire: Format, role: str) -> None:
    raw = wire.write_message(role, b'"hello"')
    assert wire.parse_message(raw) == Message(role, "hello")
    assert wire.parse_structure(raw) == MessageStructure(role)
    with_part = b'{"role":"%b","content":[%b]}' % (role.encode(), wire.write_text_part(role, b'"hello"'))
    assert wire.parse_message(with_part) == Message(role, "hello")


@each_format
def test_a_message_decoded_once_gives_what_each_parser_gives(wire: Format) -> None:
    for raw in (wire.write_message("user", b'"hello"'), b'"words"', b"no json", b"[1]", b"[" * 300 + b"]" * 300):
        decoded = wire.decode_message(raw)
        assert (decoded.message, decoded.structure) == (wire.parse_message(raw), wire.parse_structure(raw))
        assert decoded.content.frame


@each_format
def test_a_replaced_message_says_what_it_was_replaced_with(wire: Format) -> None:
    (rendered,) = render(wire, [Replaced(0, "new", "shortened")], [wire.write_message("user", b'"old"')])
    assert wire.parse_message(rendered) == Message("user", "new")


@each_format
def test_what_a_client_echoes_has_the_form_of_the_reply(wire: Format) -> None:
    value = RESPONSE_BODIES[wire.name]
    echoes = wire.list_echoes(json.dumps(value).encode())
    body = split_body(b'{"%b":[%b]}' % (wire.items_key.encode(), b",".join(echoes)), wire.items_key)
    assert body is not None
    assert tuple(wire.read_items(body.content, body.items)) == wire.read_reply(value)[0]


@each_format
def test_an_error_has_neither_echo_nor_reply(wire: Format) -> None:
    error = {"error": {"message": "no"}}
    assert (wire.list_echoes(json.dumps(error).encode()), wire.read_reply(error)) == ([], ())


@each_format
def test_a_plain_request_demands_nothing_and_is_not_managed(wire: Format) -> None:
    body = split_body(b'{"%b":[%b]}' % (wire.items_key.encode(), wire.write_message("user", b'"hi"')), wire.items_key)
    assert body is not None
    assert wire.read_rules(body) == Rules(is_itemised=wire.is_itemised)
    assert wire.find_management(body) == ""


def test_every_format_is_listed_under_its_name_and_has_paths_of_its_own() -> None:
    assert list(FORMATS) == [wire.name for wire in WIRES]
    assert len({wire.path_ending for wire in WIRES}) == len(WIRES)


@pytest.mark.parametrize("wire", [wire for wire in WIRES if not wire.is_itemised])
def test_only_items_have_ids_of_their_own_and_outputs_outside_messages(wire: Format) -> None:
    raw = b'{"id":"m","type":"message","role":"assistant","content":"x","output":"x"}'
    assert wire.detach(raw) is raw
    assert wire.replace_output(raw, json.loads(raw), "new") is raw
    body = split_body(b'{"%b":[%b]}' % (wire.items_key.encode(), raw), wire.items_key)
    assert body is not None and not wire.is_aside(body)


@each_format
def test_only_the_items_of_a_response_have_ids_to_refer_to(wire: Format) -> None:
    value = {"id": "r", "output": [{"id": "m"}, {"id": "f"}], "choices": [{"id": "c"}], "content": [{"id": "t"}]}
    assert wire.read_ids(value) == (("m", "f") if wire.previous_key else ())


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b'{"error":{"message":"busy","type":"overloaded","code":null}}', {"type": "overloaded", "message": "busy"}),
        (b'{"error":{"code":"x"}}', {"type": "server_error", "message": "x", "code": "x"}),
        (b'{"error":"busy"}', {"type": "server_error", "message": "busy"}),
        (b'{"detail":"busy"}', {"type": "server_error", "message": "busy"}),
        (b'{"message":"busy"}', {"type": "server_error", "message": "busy"}),
        (b"<h1>busy</h1>\n", {"type": "server_error", "message": "<h1>busy</h1>"}),
        (b"", {"type": "server_error", "message": "error without a message"}),
    ],
)
def test_a_body_becomes_the_error_event_of_each_format(body: bytes, error: dict[str, object]) -> None:
    assert read_error_object(body) == error
    for name, form in FORMATS.items():
        event = form.spell_error(error, 7)
        (read,) = read_events(event)
        sent = json.loads(read.data)
        assert sent["error"].items() >= error.items() and find_faults(name, event) in ([], ["it does not begin once"])
        assert form.read_events([read]).error == error["message"]
        assert (read.name, sent.get("type")) == (("", None) if name == "chat_completions" else ("error", "error"))
        assert sent.get("sequence_number") == (7 if name == "responses" else None)
        assert name != "responses" or (isinstance(sent["code"], str) and sent["message"] == error["message"])
