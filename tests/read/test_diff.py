"""What was sent compared with what the client sent."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.model.errors import NotFound
from proxy.model.messages import Message, ToolCall
from proxy.read.diff import DifferenceDocument, align, load_difference, pair_messages
from tests.cli.commands import tally
from tests.support.fake_log import EXCHANGE, ROUND, FakeLog

SYSTEM = {"role": "system", "content": "Be good."}


class SentLog(FakeLog):
    """A log in which something else was sent."""

    def __init__(self, client: bytes, sent: bytes, **changes: Any) -> None:
        super().__init__(exchanges=[replace(EXCHANGE, **changes)], bodies={"x1": client})
        self._sent = sent

    async def load_sent(self, exchange: str, k: int) -> bytes:
        return self._sent


def spell(*messages: object, **members: object) -> bytes:
    return json.dumps({"model": "m", "messages": messages, **members}).encode()


def say(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


async def compare(client: bytes, sent: bytes) -> DifferenceDocument:
    log = SentLog(client, sent)
    return await load_difference(log, log.exchanges[0], tally)


async def test_a_run_is_told_with_what_stands_for_it() -> None:
    ours = say("user", "[ledger] ref:abcdefgh23 and ref:abcdefgh24, ref:abcdefgh23")
    kept, tail = say("user", "task"), say("user", "now")
    client = spell(SYSTEM, kept, say("assistant", "one"), say("user", "two"), tail)
    found = await compare(client, spell(SYSTEM, ours, kept, tail))
    told = msgspec.to_builtins(found)
    assert (told["messages"], told["kept"], told["members"]) == (4, 2, [])
    ledger, gone = told["changes"]
    assert (ledger["start"], ledger["stop"], ledger["client"]) == (0, 0, [])
    assert ledger["sent"][0]["references"] == ["abcdefgh23", "abcdefgh24"]
    assert (gone["start"], gone["stop"], gone["sent"]) == (1, 3, [])
    assert [(side["role"], side["text"]) for side in gone["client"]] == [("assistant", "one"), ("user", "two")]
    assert [side["tokens"] for side in gone["client"]] == [
        len(json.dumps(message)) // 4 for message in (say("assistant", "one"), say("user", "two"))
    ]


async def test_a_message_with_other_words_stands_in_its_place() -> None:
    client = spell(SYSTEM, say("user", "a"), say("user", "long"), say("user", "b"))
    (change,) = (await compare(client, spell(SYSTEM, say("user", "a"), say("user", "s"), say("user", "b")))).changes
    assert (change.start, change.stop, change.client[0].text, change.sent[0].text) == (1, 2, "long", "s")


async def test_members_beside_the_messages_are_told() -> None:
    found = await compare(spell(max_tokens=900, a=1), spell(max_tokens=400, b=2))
    assert msgspec.to_builtins(found)["members"] == [
        {"name": "max_tokens", "client": "900", "sent": "400"},
        {"name": "a", "client": "1", "sent": None},
        {"name": "b", "client": None, "sent": "2"},
    ]


async def test_what_cannot_be_compared_is_told() -> None:
    log = SentLog(spell(), b"{", rounds=(ROUND, replace(ROUND, k=1)))
    (row,) = log.exchanges
    with pytest.raises(NotFound, match="cannot be read: it is no JSON object"):
        await load_difference(log, row, tally)
    with pytest.raises(NotFound, match="has no such round; it has 2"):
        await load_difference(log, row, tally, 2)
    with pytest.raises(NotFound, match="has no such round; it has none"):
        await load_difference(log, replace(row, rounds=()), tally)


TEXTS = st.lists(st.sampled_from([b"a", b"b", b"c", b"d"]), max_size=8)


@given(TEXTS, TEXTS)
def test_an_alignment_accounts_for_every_message_in_order(client: list[bytes], sent: list[bytes]) -> None:
    runs = align(client, sent)
    assert write(client, sent, runs) == sent
    assert all(client[a:b] or sent[c:d] for a, b, c, d in runs)
    assert (runs == []) == (client == sent)


def write(client: Sequence[bytes], sent: Sequence[bytes], runs: list[tuple[int, int, int, int]]) -> list[bytes]:
    """What was sent, made of the client's messages with the runs replaced."""
    made: list[bytes] = []
    at = 0
    for start, stop, begin, end in runs:
        made += [*client[at:start], *sent[begin:end]]
        at = stop
    return [*made, *client[at:]]


def result(id: str, text: str) -> Message:
    return Message("tool", text, results=(id,))


def call(name: str, id: str) -> Message:
    return Message("assistant", "", (ToolCall(id, name, "{}"),))


async def test_each_output_that_has_become_short_is_an_edit_of_its_own() -> None:
    def answer(n: int, text: str) -> dict[str, object]:
        return {"role": "tool", "tool_call_id": f"call_{n}", "content": text}

    def ask(n: int) -> dict[str, object]:
        call = {"id": f"call_{n}", "type": "function", "function": {"name": "run", "arguments": "{}"}}
        return {"role": "assistant", "content": None, "tool_calls": [call]}

    steps = [part for n in range(4) for part in (ask(n), answer(n, f"output {n} " * 50))]
    client = spell(SYSTEM, say("user", "go"), *steps)
    ledger = say("user", "[ledger] one step")
    sent = spell(
        SYSTEM,
        say("user", "go"),
        ledger,
        ask(1),
        answer(1, "[short] ref:abcdefgh23"),
        ask(2),
        answer(2, "[short]"),
        *steps[6:],
    )
    found = await compare(client, sent)
    assert [(each.start, each.stop, len(each.sent)) for each in found.changes] == [(1, 3, 1), (4, 5, 1), (6, 7, 1)]
    assert found.kept == 5 and found.changes[1].sent[0].references == ["abcdefgh23"]


MESSAGES = st.lists(
    st.builds(
        Message,
        st.sampled_from(["user", "tool"]),
        st.sampled_from(["a", "b", "x" * 50, "x" * 50 + "y"]),
        st.just(()),
        st.sampled_from([(), ("1",), ("2",)]),
    ),
    max_size=6,
)


@given(MESSAGES, MESSAGES)
def test_edits_account_for_every_message_in_order(client: list[Message], sent: list[Message]) -> None:
    at = begin = 0
    for start, stop, first, last in pair_messages(client, sent):
        assert (start, first) == (at, begin) and (stop, last) != (at, begin)
        at, begin = stop, last
    assert (at, begin) == (len(client), len(sent))


@pytest.mark.parametrize(
    ("ours", "theirs", "is_pair"),
    [
        (result("1", "short"), result("1", "long"), True),
        (result("1", "long"), result("2", "long"), False),
        (Message("user", "x" * 40 + "[shortened]"), Message("user", "x" * 90), True),
        (Message("user", "x" * 39), Message("user", "x" * 90), False),
        (Message("assistant", "x" * 90), Message("user", "x" * 90), False),
        (call("run", "1"), call("run", "2"), True),
        (call("run", "1"), call("look", "1"), False),
    ],
)
def test_a_message_stands_for_what_it_answers_or_begins_like(ours: Message, theirs: Message, is_pair: bool) -> None:
    edits = list(pair_messages([Message("other", "first"), theirs], [ours]))
    assert edits == ([(0, 1, 0, 0), (1, 2, 0, 1)] if is_pair else [(0, 2, 0, 1)])


@given(TEXTS)
def test_what_is_left_out_and_put_in_is_found(client: list[bytes]) -> None:
    runs = align([*client, b"x", b"y", b"z"], [b"ours", *client, b"z"])
    kept = len(client) + 3 - sum(b - a for a, b, _, _ in runs)
    assert kept == len(client) + 1
