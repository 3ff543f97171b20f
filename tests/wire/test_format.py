"""What the three formats have in common: the Protocol, errors, and end markers that match at a stream's end only."""

import json

import pytest

from proxy.wire.anthropic_messages import AnthropicMessages
from proxy.wire.chat_completions import ChatCompletions
from proxy.wire.format import Format
from proxy.wire.responses import Responses
from proxy.wire.streams import MARKER_REACH, read_events

CHAT: Format = ChatCompletions()
RESPONSES: Format = Responses()
ANTHROPIC: Format = AnthropicMessages()
FORMATS = [CHAT, RESPONSES, ANTHROPIC]

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
    assert [wire.name for wire in FORMATS] == ["chat_completions", "responses", "anthropic_messages"]


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


@pytest.mark.parametrize("wire", FORMATS)
@pytest.mark.parametrize(
    "data",
    ["", "null", "7", "[]", '"text"', "{", '{"a":}', "[" * 100_000, '{"a":' * 100_000, '{"a":' * 300 + "1" + "}" * 300],
)
def test_data_that_is_no_usable_object_is_passed_over(wire: Format, data: str) -> None:
    answer = wire.read_events(read_events(f"data: {data}\n\n".encode()))
    assert answer == wire.read_events([])


@pytest.mark.parametrize("wire", FORMATS)
@pytest.mark.parametrize("number", ["1e400", "NaN", "-Infinity", "9" * 40, '"\\ud800"'])
def test_values_that_strict_parsers_refuse_do_not_cost_the_event(wire: Format, number: str) -> None:
    answer = wire.read_events(read_events(f'data: {{"error":{{"message":"m","odd":{number}}}}}\n\n'.encode()))
    assert answer.error == "m"
    json.dumps(answer.value)


@pytest.mark.parametrize("wire", FORMATS)
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


@pytest.mark.parametrize("wire", FORMATS)
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
