"""The conversation as its client would continue it, in each wire format, and the messages of a recorded request."""

import gzip
import json
from dataclasses import replace
from typing import Any

import pytest

from proxy.engine.recorded.conversation import load_conversation, load_history, pick_end, split_whole
from proxy.model.errors import NotFound
from proxy.model.log import ExchangeRow
from tests.support.fake_log import BRANCHES, EXCHANGE, ROUND, TREE, FakeLog, branch, exchange, stand, tip_of
from tests.support.managing import make_history
from tests.support.talking import Talk


def row_of(wire: str, answer: bytes, **changes: Any) -> ExchangeRow:
    return replace(EXCHANGE, wire=wire, rounds=(replace(ROUND, answer=answer),), **changes)


async def load(row: ExchangeRow, request_body: bytes) -> list[bytes]:
    """The conversation of a session that has only this call."""
    return (await load_conversation(FakeLog(exchanges=[row], bodies={row.id: request_body}), "abc1")).items


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
async def test_items_are_the_clients_bytes_and_the_answer_follows(
    wire: str, request_body: bytes, answer: bytes, items: list[bytes]
) -> None:
    assert await load(row_of(wire, answer), request_body) == items


async def test_a_call_without_an_answer_ends_with_its_request() -> None:
    assert await load(replace(EXCHANGE, rounds=()), b'{"messages":[1]}') == [b"1"]


async def test_a_conversation_of_any_length_is_read() -> None:
    body = b'{"messages":[%b]}' % b",".join([b"1"] * 20_001)
    assert len(await load(replace(EXCHANGE, rounds=()), body)) == 20_001


async def test_a_compressed_request_is_read() -> None:
    row = row_of("chat_completions", b"", headers=((b"content-encoding", b"gzip"),))
    assert await load(row, gzip.compress(b'{"messages":[1, 2]}')) == [b"1", b"2"]


@pytest.mark.parametrize(
    ("content", "changes", "reason"),
    [
        (b"x", {"headers": ((b"content-encoding", b"compress"),)}, "'compress' is not read here"),
        (b'{"messages":[1]}', {"is_capped": True}, "not all of it was kept"),
        (b"[1]", {}, "it is no JSON object"),
    ],
)
async def test_a_request_that_cannot_be_read_says_so(content: bytes, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(NotFound, match=f"the request of exchange 1 cannot be read: .*{reason}"):
        await load(row_of("chat_completions", b"", **changes), content)


def stored(n: int, name: str, before: str = "") -> tuple[ExchangeRow, bytes]:
    """A Responses call whose answer is stored under a name."""
    previous = f'"previous_response_id":"{before}",' if before else ""
    row = exchange(
        n, wire="responses", rounds=(replace(ROUND, answer=b'{"id":"%b","output":[%d]}' % (name.encode(), -n)),)
    )
    return row, b'{%b"input":[%d]}' % (previous.encode(), n)


async def test_what_comes_before_a_stored_answer_is_put_in_front() -> None:
    calls = [stored(1, "a"), stored(2, "b", "a"), stored(3, "c", "a"), stored(4, "d", "c")]
    rows = [row for row, _ in calls]
    log = FakeLog(exchanges=rows, bodies={row.id: body for row, body in calls})
    assert (await load_conversation(log, "abc1")).items == [b"1", b"-1", b"3", b"-3", b"4", b"-4"]


async def test_a_stored_answer_of_elsewhere_is_not_left_out_quietly() -> None:
    row, body = stored(1, "a", "gone")
    with pytest.raises(NotFound, match="exchange 1 goes on from 'gone', which is not in this session"):
        await load(row, body)


async def test_answers_that_name_each_other_come_to_an_end() -> None:
    calls = [stored(1, "a", "b"), stored(2, "b", "a")]
    log = FakeLog(exchanges=[row for row, _ in calls], bodies={row.id: body for row, body in calls})
    with pytest.raises(NotFound, match="which is not in this session"):
        await load_conversation(log, "abc1")


async def test_a_long_session_is_gone_through_page_by_page() -> None:
    """What the end is, and what it goes on from, may be pages apart; a side call at the end counts in no page."""
    calls = [stored(1, "a"), *(stored(n, f"s{n}") for n in range(2, 350)), stored(350, "b", "a")]
    rows = [replace(row, is_side=1 < row.n < 350) for row, _ in calls]
    log = FakeLog(exchanges=[*rows, exchange(351, is_side=True)], bodies={row.id: body for row, body in calls})
    assert (await load_conversation(log, "abc1")).items == [b"1", b"-1", b"350", b"-350"]
    log.exchanges = [replace(row, is_side=True, tip=tip_of("one") if row.n == 1 else b"") for row in rows]
    assert (await load_conversation(log, "abc1", branch("one", 1, (1,)))).items == [b"1", b"-1"]
    with pytest.raises(NotFound, match="not in the log"):
        await load_conversation(log, "abc1", branch("two", 1, (1,)))


def test_the_newest_call_that_is_no_side_call_ends_the_conversation() -> None:
    assert pick_end(TREE).n == 6
    assert pick_end(TREE[-2:]).n == 7
    assert pick_end([*TREE, replace(TREE[5], n=9, kind="auxiliary")]).n == 6


def test_a_branch_ends_with_the_newest_answered_call_at_its_tip() -> None:
    open_ = replace(ROUND, answer=b"", completeness="")
    rows = [*TREE[:3], stand(8, "three", 5, "retry", rounds=(open_,)), stand(9, "three", 5, "retry", rounds=())]
    assert pick_end(rows, BRANCHES[0]).n == 3
    assert pick_end(rows[3:], BRANCHES[0]).n == 9
    assert pick_end(TREE, BRANCHES[1]).n == 5
    with pytest.raises(NotFound):
        pick_end(TREE[:3], BRANCHES[1])


def test_without_a_known_wire_there_is_no_conversation() -> None:
    with pytest.raises(NotFound, match="--json"):
        pick_end(TREE[-1:])


async def test_a_call_of_our_own_is_no_conversation() -> None:
    calls = [stored(1, "a"), stored(2, "s"), stored(3, "b", "a")]
    rows = [replace(row, kind="auxiliary" if row.n == 2 else "managed") for row, _ in calls]
    bodies = {row.id: body for row, body in calls}
    assert (await load_conversation(FakeLog(exchanges=rows, bodies=bodies), "abc1")).items == [b"1", b"-1", b"3", b"-3"]
    assert (await load_conversation(FakeLog(exchanges=rows[:2], bodies=bodies), "abc1")).items == [b"1", b"-1"]
    with pytest.raises(NotFound, match="no call in a known wire format"):
        await load_conversation(FakeLog(exchanges=rows[1:2], bodies=bodies), "abc1")


async def test_a_newest_call_that_cannot_be_read_does_not_keep_the_others_from_being_written() -> None:
    rows = [exchange(n, tip=tip_of(f"{n}"), is_capped=n == 3) for n in range(1, 4)]
    rows += [exchange(4, tip=tip_of("side"), is_side=True), exchange(5, tip=b""), exchange(6, tip=b"")]
    bodies = {row.id: b'{"messages":[%d]}' % row.n for row in rows} | {rows[n].id: b'{"messages":[' for n in (2, 4, 5)}
    conversation = await load_conversation(FakeLog(exchanges=rows, bodies=bodies), "abc1")
    assert conversation.end == rows[1]
    assert conversation.items[0] == b"2"


async def test_where_no_call_can_be_read_a_branch_may_be_named() -> None:
    rows = [exchange(1, tip=tip_of("one")), exchange(2, tip=b"")]
    log = FakeLog(exchanges=rows, bodies={row.id: b"x" for row in rows})
    with pytest.raises(NotFound, match=r"the request of exchange 2 cannot be read: .*--branch BRANCH"):
        await load_conversation(log, "abc1")


async def test_they_are_the_nodes_that_the_request_had() -> None:
    talk = Talk()
    history = await talk.grow(3)
    (row,) = await talk.log.list_exchanges(talk.session, 2, 1)
    found = await load_history(talk.log, row)
    assert found.leading == 1
    assert [json.loads(raw) for raw in found.raws] == history[1:]
    assert found.nodes[-1] == row.tip
    assert len(found.nodes) == row.depth
    await talk.close()


@pytest.mark.parametrize(
    ("changes", "body", "told"),
    [
        ({"wire": ""}, b"{}", "no known wire format"),
        ({}, json.dumps({"messages": make_history(1)}).encode(), "have no place of their own"),
        ({"tip": b"\x01" * 16}, json.dumps({"messages": make_history(1)}).encode(), "have no place of their own"),
        ({}, b"[]", "it is no JSON object"),
    ],
)
async def test_what_has_no_place_is_told(changes: dict[str, object], body: bytes, told: str) -> None:
    row = replace(EXCHANGE, **changes)  # type: ignore[arg-type]
    with pytest.raises(NotFound, match=told):
        await load_history(FakeLog(exchanges=[row], bodies={row.id: body}), row)


def test_a_body_that_cannot_be_taken_apart_is_told() -> None:
    with pytest.raises(NotFound, match="cannot be taken apart"):
        split_whole(b"{", "messages")
    assert len(split_whole(b'{"messages":[%b]}' % b",".join([b"1"] * 30_000), "messages").items) == 30_000
