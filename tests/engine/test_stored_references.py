"""Requests that refer to what the provider stores, by the id of a response or of items, at an upstream that checks all.

Below the soft mark they go as they came; above it their histories are written out of the log, if that holds all of
them, and shortened as those of a client that sends them whole. Rule: `StoringResponses` refuses what the provider
would, in requests of ours, too.
"""

import json
from functools import partialmethod
from itertools import pairwise
from typing import Any

import pytest

from proxy.engine.history.stored import ReferringRequest, ResolvedReferences, StoredHistories
from tests.support.engine import RecordingClient
from tests.support.storing_responses import ReferringSession

BY = pytest.mark.parametrize("by", ["response", "items"])
OWN = ((b"authorization", b"Bearer sk-1"),)
OTHER = ((b"authorization", b"Bearer sk-2"),)


def make(ceiling: int, by: str, **options: Any) -> ReferringSession:
    """A session that names itself nowhere."""
    session = ReferringSession(ceiling, by, **({"size": 1_500, "often": 0} | options))
    session.name = OWN
    return session


def read_mode(client: RecordingClient) -> str:
    return dict(client.labels).get(b"x-palimpsest-mode", b"").decode()


async def count_sessions(session: ReferringSession) -> int:
    return len(await session.talk.log.list_sessions())


async def resolve_unwritten(
    stored: StoredHistories, resolve: Any, asked: ReferringRequest, *, is_written: bool
) -> ResolvedReferences:
    found: ResolvedReferences = await resolve(stored, asked, is_written=False)
    return found


def list_inputs(session: ReferringSession) -> list[Any]:
    """The items of all requests that came, with what they refer to."""
    return [json.loads(bytes(call.body))["input"] for call in session.upstream.calls if isinstance(call.body, bytes)]


def is_referring(body: bytes) -> bool:
    return b'"previous_response_id"' in body or b'"item_reference"' in body


@BY
async def test_below_the_soft_mark_they_go_as_they_came_and_are_one_session(by: str) -> None:
    session = make(1_000_000, by)
    for _ in range(25):
        client = await session.call()
        assert session.upstream.raws[-1] == session.sent
        assert read_mode(client) == ""
    assert await count_sessions(session) == 1
    rows = await session.talk.log.list_exchanges(session.talk.session)
    assert [row.relation for row in rows] == ["root", *["append"] * 24]
    log, last = session.talk.log, rows[-1]
    assert await log.load_held(last.id) == await log.load_sent(last.id, 0) == session.sent
    whole = json.loads(await log.load_request(last.id))
    assert not is_referring(json.dumps(whole).encode())
    assert whole["input"] == session.upstream.read_last()["input"]
    await session.talk.close()


async def test_above_it_the_history_is_written_out_and_extends_one_prefix() -> None:
    whole = make(16_000, "whole")
    await whole.run(90)
    for by in ("response", "items"):
        session = make(16_000, by)
        await session.run(90)
        assert (session.upstream.refusals, await count_sessions(session)) == ([], 1)
        assert {name: session.counts[name] for name in ("refused", "failed", "healed")} == dict.fromkeys(
            ("refused", "failed", "healed"), 0
        )
        assert session.counts["managed"] > 70
        assert list_inputs(session) == list_inputs(whole)
        written = [json.loads(raw)["input"] for raw in session.upstream.raws if not is_referring(raw)]
        assert len(written) > session.counts["managed"] and any(item.get("type") == "reasoning" for item in written[-1])
        grown = [after[: len(before)] == before for before, after in pairwise(written)]
        assert grown.count(False) < len(await session.talk.log.list_epochs(session.talk.session)) < len(written) / 3
        await session.talk.close()
    await whole.talk.close()


@BY
async def test_they_are_written_out_after_a_restart(by: str) -> None:
    session = make(8_000, by)
    for _ in range(4):
        await session.run(8)
        await session.restart()
    before = session.upstream.raws[-1]
    await session.run(1)
    assert not is_referring(before) and not is_referring(session.upstream.raws[-1])
    assert (session.upstream.refusals, await count_sessions(session)) == ([], 1)
    await session.talk.close()


@BY
async def test_what_only_the_provider_has_stays_with_it_and_is_told(by: str) -> None:
    session = make(8_000, by, hides_reasoning=True)
    for _ in range(30):
        client = await session.call()
        assert session.upstream.raws[-1] == session.sent
    assert "only the provider has its reasoning" in read_mode(client)
    (row,) = (await session.talk.log.list_exchanges(session.talk.session))[-1:]
    assert "only the provider has its reasoning" in row.rounds[-1].plan.reason
    assert await count_sessions(session) == 1
    await session.talk.close()


async def test_what_the_log_does_not_have_goes_as_it_came_and_is_told() -> None:
    session = make(8_000, "response")
    await session.run(2)
    session.last = "resp_unknown"
    client = await session.call(keeps=False)
    assert session.upstream.raws[-1] == session.sent
    assert "has previous_response_id: the log has no response 'resp_unknown'" in read_mode(client)
    session.by, session.more = "items", {"conversation": "conv_1"}
    client = await session.call()
    assert session.upstream.raws[-1] == session.sent
    assert read_mode(client).endswith("the request has conversation")
    await session.talk.close()


@BY
async def test_nobody_gets_what_another_credential_has_stored(by: str) -> None:
    session = make(8_000, by)
    await session.run(40)
    owned, session.name = session.talk.session, OTHER
    await session.call(keeps=False)
    client = await session.call(keeps=False)
    assert session.upstream.raws[-1] == session.sent
    assert session.talk.session != owned and "stood-down" in read_mode(client)
    session.name = OWN
    await session.call()
    assert session.talk.session == owned and not is_referring(session.upstream.raws[-1])
    await session.talk.close()


async def test_a_history_that_was_shortened_is_whole_again_once_that_is_taken_back() -> None:
    session = make(30_000, "response", size=600)
    for _ in range(80):
        if session.counts["managed"] < 2:
            await session.call()
    (epoch,) = await session.talk.log.list_epochs(session.talk.session)
    assert epoch.why == "soft"
    await session.talk.care.revert(session.talk.session, 1)
    await session.call()
    sent = json.loads(session.upstream.raws[-1])
    assert "previous_response_id" not in sent
    assert sent["input"] == session.history[: len(sent["input"])] and len(sent["input"]) > epoch.depth
    (row,) = (await session.talk.log.list_exchanges(session.talk.session))[-1:]
    assert json.loads(await session.talk.log.load_sent(row.id, 0)) == sent
    await session.call()
    assert session.upstream.raws[-1] == session.sent and is_referring(session.sent)
    await session.talk.close()


async def test_what_was_recorded_by_ids_is_written_out_later(monkeypatch: pytest.MonkeyPatch) -> None:
    session = make(8_000, "response")
    with monkeypatch.context() as patch:  # as a log of an earlier version has them
        patch.setattr(StoredHistories, "resolve", partialmethod(resolve_unwritten, StoredHistories.resolve))
        await session.run(9)
        assert all(is_referring(raw) for raw in session.upstream.raws[1:])
    await session.run(5)
    assert not is_referring(session.upstream.raws[-1])
    assert (session.upstream.refusals, await count_sessions(session)) == ([], 1)
    await session.talk.close()


async def test_an_id_that_several_answers_have_is_not_written_out() -> None:
    session = make(8_000, "response")
    await session.run(3)
    session.begin_anew()
    await session.call()
    client = await session.call()
    assert session.upstream.raws[-1] == session.sent and is_referring(session.sent)
    assert "the log has more than one response 'resp_1' of this client" in read_mode(client)
    await session.talk.close()
