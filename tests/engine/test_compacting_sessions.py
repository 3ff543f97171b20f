"""Long sessions whose provider compacts conversations itself, on both wires, at upstreams that refuse what theirs do.

Nothing is refused, not even inside a call, whatever a client and a person do in between.
"""

import json
from typing import Any

import pytest

from proxy.engine.context.epoch_planner import read_plan
from proxy.engine.policy import Provider
from proxy.model.epoch import Compacted
from proxy.model.messages import LEDGER_HEAD
from tests.support.compacting_sessions import CompactingMessages, CompactingResponses
from tests.support.engine import RecordingClient

NEVER = ("refused", "failed", "healed", "dropped", "put back")
WIRES: list[Any] = [CompactingMessages, CompactingResponses]
NONE = Provider()


def spell_block(block: dict[str, Any], wire: str) -> bytes:
    spelled = json.dumps(block, separators=(",", ":"))
    return (spelled if wire == "responses" else f'{{"role":"assistant","content":[{spelled}]}}').encode()


async def close(session: Any) -> None:
    await session.talk.engine.settle()
    await session.talk.close()


def count_blocks(session: Any, since: int = 0) -> int:
    return sum(session.find_block(request) is not None for request in session.sent_requests[since:])


@pytest.mark.parametrize(
    ("kind", "seed", "options"),
    [
        (CompactingMessages, 0, {}),
        (CompactingResponses, 4, {"is_stream": False, "echo": "codex"}),
    ],
)
async def test_nothing_is_refused_because_of_it(kind: Any, seed: int, options: dict[str, Any]) -> None:
    session = kind(8_000, seed=seed, size=1_500, often=4, **options)
    await session.run(110)
    assert session.upstream.refusals == []
    assert {name: session.counts[name] for name in NEVER} == dict.fromkeys(NEVER, 0)
    assert len(session.upstream.compacted) >= 3
    assert count_blocks(session) > 0.3 * session.counts["calls"]
    assert {each.why for each in await session.talk.log.list_epochs(session.talk.session)} >= {"revert"}
    await close(session)


@pytest.mark.parametrize("kind", WIRES)
async def test_the_ledger_and_its_references_are_ours_and_the_rendering_is_replayed(kind: Any) -> None:
    session = kind(8_000, size=1_500, often=0)
    await session.run_until(2)
    before = session.sent_bodies[-1]
    block = session.find_block(json.loads(before))
    assert block in session.upstream.compacted
    raw = spell_block(block, session.wire)
    assert before.count(raw) == 1 and LEDGER_HEAD.encode() in before and b"ref:" in before
    frozen = before[: before.index(raw) + len(raw) + 2000]
    epochs = len(await session.talk.log.list_epochs(session.talk.session))
    await session.restart()
    await session.call()
    assert session.sent_bodies[-1].startswith(frozen)
    assert len(await session.talk.log.list_epochs(session.talk.session)) == epochs
    await session.run(40)
    assert (session.upstream.refusals, session.counts["healed"]) == ([], 0)
    assert len({json.dumps(session.find_block(each)) for each in session.sent_requests}) >= 3  # newer ones later
    await close(session)


@pytest.mark.parametrize("kind", WIRES)
async def test_where_it_is_refused_the_call_goes_on_without_and_the_session_has_no_other(kind: Any) -> None:
    session = kind(8_000, size=1_500, often=0)
    await session.run_until(2)
    session.upstream.compacted.clear()  # as if another organisation had the key by now
    asked, sent = len(session.asked), len(session.sent_requests)
    client = await session.call()
    assert client.status == 200 and session.counts["healed"] == 1
    notes = [value for name, value in client.labels if name == b"x-palimpsest-notice"]
    assert any(b"it went without the provider's own compaction" in note for note in notes)
    (refusal,) = session.upstream.refusals
    assert "signature is invalid" in refusal or "could not be verified" in refusal
    *_, epoch = await session.talk.log.list_epochs(session.talk.session)
    assert epoch.why == "uncompacted"
    for restarts in (False, True):
        if restarts:
            await session.restart()
        await session.run(30)
    assert session.upstream.refusals == [refusal]
    assert count_blocks(session, sent + 1) == 0
    assert len(session.asked) == asked
    assert [each for each in await session.list_summaries() if each.level == 1 and not each.block]  # models write them
    assert LEDGER_HEAD in json.dumps(session.sent_requests[-1])
    await close(session)


@pytest.mark.parametrize("kind", WIRES)
async def test_a_refusal_that_does_not_speak_of_it_is_not_laid_at_its_door(kind: Any) -> None:
    session = kind(8_000, size=1_500, often=0)
    await session.run_until(2)
    session.upstream.refuses_next = True
    assert (await session.call()).status == 200
    *_, epoch = await session.talk.log.list_epochs(session.talk.session)
    assert epoch.why == "refused"
    assert (await session.talk.log.load_context(session.talk.session)).given_up == ()
    await close(session)


@pytest.mark.parametrize("kind", WIRES)
async def test_an_upstream_that_is_to_have_none_any_more_gets_the_ledger_alone(kind: Any) -> None:
    session = kind(8_000, size=1_500, often=0)
    await session.run_until(2)
    session.upstream.has_compaction = False
    session.talk.set_provider(NONE)
    await session.restart()
    assert (await session.count()).status == 200 and session.upstream.refusals == []
    sent = len(session.sent_requests)
    assert (await session.call()).status == 200
    told = json.dumps(session.sent_requests[-1])
    assert LEDGER_HEAD in told and session.find_block(session.sent_requests[-1]) is None
    await session.run(30)
    assert (session.upstream.refusals, session.counts["healed"], count_blocks(session, sent)) == ([], 0, 0)
    whys = [each.why for each in await session.talk.log.list_epochs(session.talk.session)]
    assert whys.count("uncompacted") <= 1
    await close(session)


@pytest.mark.parametrize("kind", WIRES)
async def test_another_model_is_sent_none_of_this_ones(kind: Any) -> None:
    session = kind(8_000, size=1_500, often=0)
    await session.run_until(2)
    theirs = session.upstream.compacted[-1]
    session.model, sent = session.other, len(session.sent_requests)
    await session.run(1)
    assert session.find_block(session.sent_requests[-1]) is None and LEDGER_HEAD in json.dumps(
        session.sent_requests[-1]
    )
    await session.run(30)
    assert theirs not in [session.find_block(each) for each in session.sent_requests[sent:]]
    assert count_blocks(session, sent) > 0  # but its own
    session.model = session.own
    await session.run(1)
    assert session.upstream.refusals == []
    await close(session)


@pytest.mark.parametrize("kind", WIRES)
async def test_a_provider_that_has_none_is_asked_once_and_models_write_the_summaries(
    kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    session = kind(8_000, size=1_500, often=0)
    session.upstream.has_compaction = False
    await session.run(60)
    assert (len(session.asked), len(session.upstream.refusals), count_blocks(session)) == (1, 1, 0)
    assert {name: session.counts[name] for name in NEVER} == dict.fromkeys(NEVER, 0)
    assert len([each for each in caplog.messages if "gives no compaction of its own" in each]) == 1
    assert [each.level for each in await session.list_summaries()][:2] == [1, 1]
    await close(session)


async def test_no_branch_is_sent_what_was_said_on_another() -> None:
    session: Any = CompactingMessages(8_000, size=1_500, often=0)
    await session.run_until(1)
    *_, epoch = [each for each in await session.talk.log.list_epochs(session.talk.session)]
    context = session.talk.engine.context
    (edit,) = [each for each in read_plan(context.epochs[-1]).edits if isinstance(each, Compacted)]
    assert edit.stop <= epoch.depth
    del session.history[edit.stop - 2 :]
    session.history.append({"role": "user", "content": "Rather begin anew."})
    await session.call()
    assert session.find_block(session.sent_requests[-1]) is None
    await close(session)


async def test_what_is_counted_is_what_would_be_sent_header_included() -> None:
    session: Any = CompactingMessages(8_000, size=1_500, often=0)
    await session.run_until(1)
    client: RecordingClient = await session.count()
    assert client.status == 200
    counted = session.upstream.calls[-1]
    assert session.find_block(json.loads(counted.body)) and session.upstream.refusals == []
    assert dict(counted.headers)[b"anthropic-beta"] == b"compact-2026-09-04"
    await close(session)
