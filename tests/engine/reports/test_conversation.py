"""The conversation as its client would go on with it, in each wire."""

import gzip
from dataclasses import replace
from typing import Any

import pytest

from proxy.cli.conversation import continue_conversation
from proxy.model.errors import NotFound
from proxy.model.log import ExchangeRow
from tests.cli.fake_log import EXCHANGE, ROUND


def row_of(wire: str, answer: bytes, **changes: Any) -> ExchangeRow:
    return replace(EXCHANGE, wire=wire, rounds=(replace(ROUND, answer=answer),), **changes)


@pytest.mark.parametrize(
    ("wire", "request_body", "answer", "items"),
    [
        (
            "chat_completions",
            b'{"messages":[{"a" : 1}, {"b":2}]}',
            b'{"choices":[{"message":{"c":3}},{"message":{"d":4}}]}',
            [b'{"a" : 1}', b'{"b":2}', b'{"c":3}'],
        ),
        (
            "anthropic_messages",
            b'{"messages":[{"a":1}]}',
            b'{"content":[{"type":"text","text":"\\ud800"}],"role":"assistant"}',
            [b'{"a":1}', b'{"role":"assistant","content":[{"type":"text","text":"\\ud800"}]}'],
        ),
        ("responses", b'{"input":[{"a":1}]}', b'{"output":[{"b":2},{"c":3}]}', [b'{"a":1}', b'{"b":2}', b'{"c":3}']),
        ("responses", b'{"input":"hello"}', b"", [b'{"role":"user","content":"hello"}']),
        ("chat_completions", b'{"messages":[{"a":1}]}', b'{"error":{"message":"no"}}', [b'{"a":1}']),
        ("chat_completions", b'{"messages":[{"a":1}]}', b'{"choices":[{"text":"x"}]}', [b'{"a":1}']),
        ("anthropic_messages", b'{"messages":[{"a":1}]}', b'{"type":"error"}', [b'{"a":1}']),
        ("chat_completions", b"{}", b"", []),
    ],
)
def test_items_are_the_clients_bytes_and_the_answer_follows(
    wire: str, request_body: bytes, answer: bytes, items: list[bytes]
) -> None:
    assert continue_conversation(row_of(wire, answer), request_body) == items


def test_a_call_without_an_answer_ends_with_its_request() -> None:
    row = replace(EXCHANGE, rounds=())
    assert continue_conversation(row, b'{"messages":[1]}') == [b"1"]


def test_a_compressed_request_is_read() -> None:
    row = row_of("chat_completions", b"", headers=((b"content-encoding", b"gzip"),))
    assert continue_conversation(row, gzip.compress(b'{"messages":[1, 2]}')) == [b"1", b"2"]


def test_a_request_that_cannot_be_read_says_so() -> None:
    row = row_of("chat_completions", b"", headers=((b"content-encoding", b"br"),))
    with pytest.raises(NotFound, match="cannot be read"):
        continue_conversation(row, b"x")
