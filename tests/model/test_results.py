"""Parts and results: their names on the wire, and sums of tokens."""

import msgspec
import pytest

from proxy.model.exchange import Usage
from proxy.model.parts import FileRefPart, MessagePart, TextPart, ToolPart
from proxy.model.results import FileHandleResult, TokenUsage, count_usage


def test_a_part_is_told_by_its_type() -> None:
    part = ToolPart("bash", "c1", {"command": "ls"}, "a\nb")
    found = msgspec.json.decode(msgspec.json.encode(part))
    assert (found["type"], found["status"]["state"], found["input"]) == ("tool", "pending", {"command": "ls"})
    assert msgspec.json.decode(msgspec.json.encode(part), type=MessagePart) == part
    assert msgspec.json.decode(b'{"type":"text","text":"hi"}', type=MessagePart) == TextPart("hi")


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (None, TokenUsage()),
        (Usage(100, 10, 60, 30), TokenUsage(10, 10, 60, 30, 110)),
        (Usage(5, None, 9), TokenUsage(0, 0, 9, 0, 5)),
    ],
)
def test_the_input_of_a_usage_has_no_token_of_the_cache(usage: Usage | None, expected: TokenUsage) -> None:
    assert count_usage(usage) == expected


def test_usages_add_up_and_so_do_their_effective_totals() -> None:
    told, untold = TokenUsage(10, 2, 3, 4, 25), TokenUsage(1, 1, 1, 1)
    assert (told.effective_total(), untold.effective_total()) == (25, 4)
    assert told + untold == TokenUsage(11, 3, 4, 5, 29)
    assert (untold + untold).total == 0
    assert sum([told, untold], TokenUsage()).effective_total() == 29


def test_a_file_is_inline_unless_a_reference_stands_for_it() -> None:
    assert FileHandleResult(path="a.py", inline_content="x").is_inline
    assert not FileHandleResult(path="a.py", file_ref=FileRefPart("id", "a.py", "python", 1, "")).is_inline
