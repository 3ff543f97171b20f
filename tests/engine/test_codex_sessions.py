"""Codex in long sessions: turns, subagents and its kinds of compaction, each told from the others.

It compacts by a prompt of its own, by a `compaction_trigger` (remote v2), or at `/responses/compact` (remote v1, which
passes unread: `test_gateway_contract`). What the provider has compacted is the provider's to manage (BEHAVIOUR B7);
behind a digest of codex' own epochs open again.
"""

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from proxy.model.exchange import Headers
from proxy.model.log import ExchangeRow
from tests.support.engine import RecordingClient
from tests.support.managing import Message
from tests.support.response_sessions import ResponseSession
from tests.support.strict_responses import read_answer

KEY: Headers = ((b"authorization", b"Bearer sk-1"), (b"session-id", b"s"), (b"originator", b"codex_cli"))
MAIN, SUB = b"0199-main", b"0199-sub"
DIGEST = (
    "Summary of the work so far. " + "The parser's tests were looked at, part by part, and most of them pass. " * 20
)
STANDS_ASIDE = b"observe; stood-down:the messages have a compaction"


def user(text: str) -> Message:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def name(thread: bytes, kind: str = "turn", parent: bytes = b"") -> Headers:
    """The headers of a call of a thread."""
    turn = json.dumps({"request_kind": kind, "cwd": "/src"}).encode()
    named: Headers = ((b"thread-id", thread), (b"x-codex-turn-metadata", turn))
    return (*KEY, *named, *(((b"x-codex-parent-thread-id", parent),) if parent else ()))


class Codex(ResponseSession):
    """One codex with subagents, which share its upstream and its log."""

    def __init__(self, **options: Any) -> None:
        super().__init__(8_000, echo="codex", size=1_500, often=0, **options)
        self.name = name(MAIN)
        self.labels: list[dict[bytes, bytes]] = []

    async def send(self, calls: int = 1, *, keeps: bool = True) -> RecordingClient:
        """So many calls; the last one's answer."""
        for _ in range(calls):
            client = await self.call(keeps=keeps)
            await self.talk.settle()
            self.labels.append(dict(client.labels))
        return client

    async def list_calls(self, session: str = "") -> Sequence[ExchangeRow]:
        """The calls of a session, as the log has them."""
        rows: Sequence[ExchangeRow] = await self.talk.log.list_exchanges(session or self.talk.session, 0, 1000)
        return rows

    def list_sessions(self, calls: int) -> list[bytes]:
        """The sessions of the last calls."""
        return [labels[b"x-palimpsest-session"] for labels in self.labels[-calls:]]

    def restart_from(self, summary: Sequence[Message]) -> None:
        """Go on from the user's words and a summary, as codex does after a compaction."""
        kept = [item for item in self.history if item.get("role") in ("user", "developer")]
        self.history = [*kept[:3], *summary]

    async def count_epochs(self) -> int:
        return len(await self.talk.log.list_epochs(self.talk.session))


async def test_behind_a_digest_of_its_own_epochs_open_again() -> None:
    codex = Codex()
    await codex.send(40)
    before = await codex.count_epochs()
    assert before > 1
    codex.name, order = name(MAIN, "compaction"), user("Write a handoff summary for another model.")
    codex.history.append(order)
    codex.more = {"tools": []}
    await codex.send(keeps=False)
    assert ((await codex.list_calls())[-1].is_side, await codex.count_epochs()) == (True, before)
    assert len(codex.upstream.read_last()["input"]) < len(codex.history)  # under the epoch that was there
    codex.history.pop()
    codex.name, codex.more = name(MAIN), {}
    codex.restart_from([user(DIGEST)])
    await codex.send(60)
    first, *others = (await codex.list_calls())[-60:]
    assert (first.relation, {call.relation for call in others}) == ("compaction", {"append"})
    assert not any(call.is_side for call in (first, *others))
    assert len(set(codex.list_sessions(101))) == 1
    assert await codex.count_epochs() > before + 2
    assert (codex.upstream.refusals, codex.counts["healed"]) == ([], 0)
    await codex.talk.close()


async def test_what_the_provider_has_compacted_is_its_own_to_manage_and_that_is_said() -> None:
    codex = Codex()
    await codex.send(40)
    before = await codex.count_epochs()
    codex.history.append({"type": "compaction_trigger"})
    client = await codex.send(keeps=False)
    (compaction,) = read_answer(client.body)["output"]
    assert (compaction["type"], (await codex.list_calls())[-1].is_side) == ("compaction", True)
    codex.history.pop()
    codex.restart_from([compaction, user("Go on.")])
    for _ in range(30):
        await codex.send()
        assert codex.upstream.calls[-1].body == codex.sent
    assert {labels[b"x-palimpsest-mode"] for labels in codex.labels[-5:]} == {STANDS_ASIDE}
    assert "compaction" in codex.plans[-1].reason and codex.plans[-1].rung == "original"  # what `show` tells
    assert len(set(codex.list_sessions(71))) == 1
    assert (await codex.count_epochs(), codex.upstream.refusals) == (before, [])
    await codex.talk.close()


async def test_subagents_have_sessions_and_epochs_of_their_own() -> None:
    codex = Codex()
    main, other = codex.history, [*codex.begin(), user("Review the parser.")]
    for thread, parent in ((MAIN, b""), (SUB, MAIN), (MAIN, b""), (SUB, MAIN), (MAIN, b"")):
        codex.name, codex.history = name(thread, parent=parent), main if thread == MAIN else other
        await codex.send(25)
        main, other = (codex.history, other) if thread == MAIN else (main, codex.history)
    sessions = [codex.list_sessions(125)[i : i + 25] for i in range(0, 125, 25)]
    assert all(len(set(each)) == 1 for each in sessions)
    assert sessions[0][0] == sessions[2][0] == sessions[4][0] != sessions[1][0] == sessions[3][0]
    for session in (sessions[0][0], sessions[1][0]):
        calls = await codex.list_calls(session.decode())
        assert {call.relation for call in calls[1:]} == {"append"}
        assert all(before.depth < call.depth for before, call in pairwise(calls))
        assert len(await codex.talk.log.list_epochs(session.decode())) > 1
    assert (codex.upstream.refusals, codex.counts["healed"]) == ([], 0)
    await codex.talk.close()
