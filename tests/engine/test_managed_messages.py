"""Sessions on Anthropic's wire, at an upstream that refuses whatever the provider's API refuses.

Nothing is refused, not even inside a call; on models that bind their thinking what is not sent is told.
"""

import json
from hashlib import sha256
from typing import Any

import pytest

from proxy.engine.policy import Provider
from tests.support.message_sessions import Marking, MessageSession
from tests.support.strict_messages import StrictMessages, list_parts
from tests.support.strict_upstream import Check, Member

NEVER = ("refused", "failed", "healed", "dropped", "put back")
MARK = {"type": "ephemeral"}
UNBOUND = {"model": "claude-sonnet-4-5", "other": "claude-opus-4-1"}


@pytest.mark.no_cover
@pytest.mark.parametrize(
    ("ceiling", "size", "marking", "often", "seed", "options"),
    [
        (8_000, 1_500, "long", 4, 1, {}),
    ],
)
async def test_nothing_is_refused_because_of_us(
    ceiling: int, size: int, marking: Marking, often: int, seed: int, options: dict[str, Any]
) -> None:
    session = MessageSession(ceiling, marking=marking, seed=seed, size=size, often=often, **options)
    await session.run(110)
    await session.talk.close()
    counts = session.counts
    assert session.upstream.refusals == []
    assert {name: counts[name] for name in NEVER} == dict.fromkeys(NEVER, 0)
    assert options.get("model") or not counts["unsaid"]
    assert counts["managed"] > 0.25 * counts["calls"]
    assert counts["blocks sent"] > 0.2 * counts["messages"]


async def test_the_line_that_changes_with_each_request_is_no_part_of_what_is_cached() -> None:
    told = []
    for is_billed in (False, True):
        session = MessageSession(8_000, size=1_500, often=0, is_billed=is_billed)
        await session.run(40)
        plans = [plan for plan in session.plans if plan.client_read is not None]
        told.append((session.counts["managed"], sum((plan.client_read or 0) > 0 for plan in plans), len(plans)))
        await session.talk.close()
    assert told[0] == told[1]
    assert told[0][1] == told[0][2] > 30


async def test_what_is_counted_is_what_would_be_sent_and_it_is_no_part_of_the_session() -> None:
    session = MessageSession(8_000, size=1_500, often=0)
    while session.counts["managed"] < 12:
        await session.call()
    epochs = await session.talk.log.list_epochs(session.talk.session)
    first = await session.count()
    counted = session.upstream.read_last()
    assert (first.status, json.loads(first.body)) == (200, {"input_tokens": len(session.upstream.calls[-1].body) // 4})
    assert "max_tokens" not in counted and len(counted["messages"]) < len(session.history)
    assert (await session.count()).body == first.body
    assert await session.talk.log.list_epochs(session.talk.session) == epochs
    await session.call()
    sent = session.upstream.read_last()
    own = len(session.history) - (2 if session.history[-1]["role"] != "system" else 3)  # before the answer came
    assert sent["messages"][: len(counted["messages"])] == counted["messages"] or own < len(counted["messages"])
    assert session.upstream.refusals == []
    # It is counted as the client sent it where that was asked for, or where what we make of it is refused.
    assert (await session.count("observe")).status == 200
    assert len(session.upstream.read_last()["messages"]) == len(session.history)
    session.upstream.refuses_next = True
    assert (await session.count()).status == 200
    assert len(session.upstream.read_last()["messages"]) == len(session.history)
    assert session.upstream.find_faults(session.upstream.read_last()) == []
    await session.talk.close()


@pytest.mark.parametrize("is_stream", [True, False])
async def test_after_an_answer_that_filled_the_window_the_next_request_opens_an_epoch(is_stream: bool) -> None:
    session = MessageSession(100_000, size=1_500, often=0, is_stream=is_stream)
    for _ in range(20):
        await session.call()
    assert session.counts["managed"] == 0
    session.upstream.is_full_next = True
    await session.call()
    await session.call()
    (epoch,) = await session.talk.log.list_epochs(session.talk.session)
    assert (epoch.why, session.counts["managed"], session.upstream.refusals) == ("overflow", 1, [])
    await session.talk.close()


@pytest.mark.parametrize(("marking", "most"), [("", 3), ("hopping", 3), ("top", 3), ("long", 4)])
async def test_a_marker_of_ours_stands_behind_the_frozen_messages_where_the_upstream_takes_them(
    marking: Marking, most: int
) -> None:
    session = MessageSession(8_000, marking=marking, size=1_500, often=0, provider=Provider(cache="breakpoints"))
    await session.run(30)
    await session.talk.close()
    numbers = [call.body.count(b'"cache_control"') for call in session.upstream.calls]
    assert (max(numbers), session.upstream.refusals) == (most, [])
    assert session.counts["managed"] > 10


async def test_what_no_session_knows_is_counted_as_it_came() -> None:
    session = MessageSession(8_000, often=0)
    assert (await session.count()).status == 200
    assert session.upstream.read_last()["messages"][0]["content"][0]["text"] == session.history[0]["content"]
    await session.talk.close()


async def test_the_upstream_is_strict() -> None:
    session = MessageSession(1_000_000, often=0)
    await session.run(8)
    own = json.loads(session.write())
    messages = own["messages"]
    call = next(i for i, m in enumerate(messages) if any(b["type"] == "tool_use" for b in list_parts(m)))
    for changed, told in (
        (messages[:call] + messages[call + 1 :], "unexpected `tool_use_id`"),
        (messages[: call + 1] + messages[call + 2 :], "without `tool_result` blocks immediately after"),
        ([{"role": "user", "content": ""}, *messages], "non-empty content"),
        ([{"role": "user", "content": "Before."}, *messages], "bound to a different conversation"),
        ([{"role": "system", "content": "x"}, *messages], 'must use the "user" role'),
        ([messages[0], {"role": "system", "content": "x"}, *messages], "must precede an 'assistant' message"),
        (messages[:-1], "assistant message prefill"),
    ):
        assert told in await session.try_direct(own | {"messages": changed})
    assert await session.try_direct(own | {"messages": messages}) == ""
    many = [{"name": f"t{i}", "cache_control": MARK} for i in range(4)]
    assert "A maximum of 4 blocks" in await session.try_direct(own | {"tools": many})


MANUAL = {"type": "enabled", "budget_tokens": 2048}


@pytest.mark.parametrize(("options", "is_interleaved"), [(UNBOUND, False), ({"model": "unknown-1"}, True)])
async def test_where_thinking_has_a_budget_a_turn_under_way_begins_with_thinking(
    options: dict[str, Any], *, is_interleaved: bool
) -> None:
    session = MessageSession(8_000, size=1_500, often=0, seed=7, body={"thinking": MANUAL}, **options)
    session.upstream.is_interleaved = is_interleaved
    await session.run(60)
    await session.talk.close()
    assert session.upstream.refusals == []
    assert {name: session.counts[name] for name in NEVER} == dict.fromkeys(NEVER, 0)
    assert session.counts["managed"] > 0.4 * session.counts["calls"]


@pytest.mark.parametrize("model", ["claude-sonnet-4-5", "unknown-1"])
async def test_a_loop_without_an_end_whose_thinking_has_a_budget_stays_under_its_ceiling(model: str) -> None:
    session = MessageSession(8_000, size=1_500, often=0, seed=7, body={"thinking": MANUAL}, model=model)
    session.upstream.end_chance = 0.0
    await session.run(60)
    await session.talk.close()
    assert session.upstream.refusals == []
    assert session.counts["managed"] > 40
    sizes = [len(call.body) for call in session.upstream.calls]
    assert max(sizes) < 4 * 8_000  # as the test counts tokens


class WideMessages(StrictMessages):
    """Sometimes a step with a dozen calls; some upstreams count each call and each result as a block."""

    def call(self, number: int) -> list[dict[str, Any]]:
        (call, *_) = super().call(number)
        return [call | {"id": f"{call['id']}{i}"} for i in range(13 if number % 7 == 0 else 1)]


class WideSession(MessageSession):
    def make_upstream(self, check: Check, member: Member, seed: int) -> StrictMessages:
        return WideMessages(check, seed)


class BlockCache:
    """Reads up to an entry at most twenty blocks before a marker, and writes one at each marker."""

    def __init__(self) -> None:
        self._entries: set[bytes] = set()

    def send(self, request: dict[str, Any]) -> tuple[int, int]:
        """How many blocks of a request are read, and at how many the last marker is."""
        system = (
            [{"type": "text", "text": request["system"]}] if isinstance(request["system"], str) else request["system"]
        )
        blocks = [*system, *(part for message in request["messages"] for part in list_parts(message))]
        key, keys, marks = b"", list[bytes](), list[int]()
        for at, block in enumerate(blocks):
            plain = {name: value for name, value in block.items() if name != "cache_control"}
            key = sha256(key + json.dumps(plain, sort_keys=True).encode()).digest()
            keys.append(key)
            marks += [at] if "cache_control" in block else []
        marks += [len(blocks) - 1] if "cache_control" in request else []
        looked = {at for mark in marks for at in range(max(0, mark - 19), mark + 1)}
        read = max((at + 1 for at in looked if keys[at] in self._entries), default=0)
        self._entries |= {keys[at] for at in marks}
        return read, marks[-1] + 1 if marks else 0


@pytest.mark.parametrize(
    ("marking", "provider"),
    [("hopping", Provider()), ("top", Provider()), ("", Provider(cache="breakpoints")), ("long", Provider())],
)
async def test_after_a_step_of_many_blocks_all_that_was_sent_before_is_read(
    marking: Marking, provider: Provider
) -> None:
    session = WideSession(16_000, marking=marking, size=600, often=0, model="claude-sonnet-4-5", provider=provider)
    cache, end, missed, wide = BlockCache(), 0, 0, 0
    for _ in range(60):
        before = session.counts["managed"]
        client = await session.call()
        labels = dict(client.labels)
        read, marked = cache.send(session.upstream.read_last())
        is_kept = session.counts["managed"] > before and b"compacted" not in labels.get(b"x-palimpsest-notice", b"")
        missed += is_kept and read < end
        wide += is_kept and marked - end > 20
        end = marked
    await session.talk.close()
    assert (missed, session.upstream.refusals) == (0, [])
    assert wide > 2


async def test_a_marker_of_ours_ends_the_top_level_system_prompt() -> None:
    session = MessageSession(8_000, marking="", size=1_500, often=0, provider=Provider(cache="breakpoints"))
    await session.run(30)
    await session.talk.close()
    (block,) = session.upstream.read_last()["system"]
    assert block.pop("cache_control") == MARK and [block] == json.loads(session.sent)["system"]
    assert session.upstream.refusals == [] and session.counts["healed"] == 0
