"""Sessions on the Responses wire, at an upstream that refuses whatever the provider's API refuses.

Nothing is refused, not even inside a call. Requests that say that others keep or cut their history go as they came.
"""

import json
from typing import Any

import pytest

from proxy.model.card import Card
from proxy.model.messages import LEDGER_HEAD
from tests.support.response_sessions import Echo, ResponseSession
from tests.support.strict_responses import LATER, read_answer

NEVER = ("refused", "failed", "healed", "dropped", "put back")
TRIGGER = {"type": "compaction_trigger"}


@pytest.mark.parametrize(
    ("ceiling", "size", "echo", "often", "seed", "options"),
    [
        (8_000, 1_500, "between", 4, 1, {"is_stream": False}),
    ],
)
async def test_nothing_is_refused_because_of_us(
    ceiling: int, size: int, echo: Echo, often: int, seed: int, options: dict[str, Any]
) -> None:
    session = ResponseSession(ceiling, echo=echo, seed=seed, size=size, often=often, **options)
    await session.run(110)
    await session.talk.close()
    counts = session.counts
    assert session.upstream.refusals == []
    assert {name: counts[name] for name in NEVER} == dict.fromkeys(NEVER, 0)
    assert counts["managed"] > 0.25 * counts["calls"]


async def grow(**options: Any) -> ResponseSession:
    """A session with an epoch."""
    session = ResponseSession(8_000, size=1_500, often=0, **options)
    while session.counts["managed"] < 12:
        await session.call()
    return session


async def test_a_ledger_is_a_message_and_a_tombstone_stands_in_the_output() -> None:
    session = await grow()
    sent = session.upstream.read_last()
    (ledger,) = [item for item in sent["input"] if LEDGER_HEAD in json.dumps(item)][:1]
    assert (ledger["type"], ledger["role"], ledger["content"][0]["type"]) == ("message", "user", "input_text")
    pruned = [item for item in sent["input"] if "output pruned" in json.dumps(item.get("output", ""))]
    assert pruned
    assert {name: sent[name] for name in ("instructions", "tools", "store", "include", "prompt_cache_key")} == {
        name: json.loads(session.write())[name]
        for name in ("instructions", "tools", "store", "include", "prompt_cache_key")
    }
    assert sent["input"][0] == session.history[0]
    await session.talk.close()


async def test_what_is_counted_is_what_would_be_sent_and_it_is_no_part_of_the_session() -> None:
    session = await grow()
    epochs = await session.talk.log.list_epochs(session.talk.session)
    first = await session.count()
    counted = session.upstream.read_last()
    assert first.status == 200 and json.loads(first.body)["object"] == "response.input_tokens"
    assert "stream" not in counted and len(counted["input"]) < len(session.history)
    assert (await session.count()).body == first.body
    assert await session.talk.log.list_epochs(session.talk.session) == epochs
    assert (await session.count("observe")).status == 200
    assert session.upstream.read_last()["input"] == session.history
    session.upstream.refuses_next = True
    assert (await session.count()).status == 200
    assert session.upstream.read_last()["input"] == session.history
    await session.talk.close()


@pytest.mark.parametrize("how", ["error", "failed"])
async def test_an_overflow_in_a_response_or_inside_its_stream_is_cut_and_never_seen(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = ResponseSession(100_000, size=1_500, often=0)
    models = session.talk.engine.controller.states.models
    monkeypatch.setattr(models, "card", lambda *_, **__: Card())  # its window is unknown
    for _ in range(20):
        await session.call()
    assert session.counts["managed"] == 0
    session.upstream.overflows_next = how
    client = await session.call()
    assert (client.status, read_answer(client.body)["status"]) == (200, "completed")
    (epoch,) = await session.talk.log.list_epochs(session.talk.session)
    assert (epoch.why, session.counts["managed"], session.upstream.refusals) == ("overflow", 1, [])
    await session.talk.close()


async def test_a_request_for_a_compaction_keeps_its_epoch_opens_none_and_its_answer_is_untouched() -> None:
    session = await grow()
    epochs = await session.talk.log.list_epochs(session.talk.session)
    history, session.history = session.history, [*session.history, TRIGGER]
    client = await session.call(keeps=False)
    sent = session.upstream.read_last()["input"]
    assert sent[-1] == TRIGGER and len(sent) < len(history)
    assert client.body == session.upstream.answers[-1]
    (compaction,) = read_answer(client.body)["output"]
    assert await session.talk.log.list_epochs(session.talk.session) == epochs
    # What the client makes of it is the provider's to manage.
    kept = [item for item in history if item.get("role") in ("user", "developer")]
    session.history = [*kept, compaction, {"type": "message", "role": "user", "content": "Go on."}]
    for _ in range(12):
        await session.call()
        assert session.upstream.calls[-1].body == session.sent
    assert session.upstream.refusals == []
    await session.talk.close()


async def test_a_request_for_a_compaction_opens_no_epoch_however_long_it_is() -> None:
    session = ResponseSession(8_000, size=1_500, often=0)
    for _ in range(25):
        await session.call("observe")
    session.history.append(TRIGGER)
    await session.call(keeps=False)
    assert session.upstream.calls[-1].body == session.sent
    await session.talk.close()


async def test_an_output_may_come_turns_later() -> None:
    session = ResponseSession(8_000, size=1_500, often=0)
    await session.run(4)
    call = {"type": "function_call", "call_id": "call_later", "name": LATER, "arguments": "{}"}
    session.history.insert(2, call)
    await session.run(25)
    assert session.counts["managed"] > 10
    assert call in session.upstream.read_last()["input"]
    session.history.append({"type": "function_call_output", "call_id": "call_later", "output": "At last."})
    await session.run(20)
    assert (session.upstream.refusals, session.counts["healed"]) == ([], 0)
    await session.talk.close()


async def test_items_of_unknown_kinds_stay_as_they_came() -> None:
    session = ResponseSession(8_000, size=1_500, often=0)
    await session.run(4)
    odd = {"type": "program", "id": "prog_1", "code": "x", "fingerprint": "f" * 40}
    session.history.append(odd)
    await session.run(50)
    assert session.counts["managed"] > 10
    sent = session.upstream.read_last()["input"]
    assert odd in sent
    own = json.loads(session.sent)["input"]
    updates = [item for item in own if item.get("type") == "configuration_update"]
    assert updates and [item for item in sent if item.get("type") == "configuration_update"] == updates
    assert session.upstream.refusals == []
    await session.talk.close()


@pytest.mark.parametrize(
    "more",
    [
        {"previous_response_id": "resp_0"},
        {"conversation": "conv_1"},
        {"truncation": "auto"},
        {"context_management": [{"type": "compaction", "compact_threshold": 1000}]},
    ],
)
async def test_what_others_keep_or_cut_goes_as_it_came(more: dict[str, Any]) -> None:
    session = ResponseSession(8_000, size=1_500, often=0, body=more)
    for _ in range(30):
        await session.call()
        assert session.upstream.calls[-1].body == session.sent
    await session.talk.close()


@pytest.mark.parametrize("store", [True, None])
async def test_what_the_provider_stores_is_managed_if_the_request_has_all_of_it(*, store: bool | None) -> None:
    session = ResponseSession(8_000, size=1_500, often=0, body={"store": store})
    await session.run(30)
    assert session.counts["managed"] > 10 and session.upstream.refusals == []
    await session.talk.close()


@pytest.mark.parametrize(
    "item", [{"type": "item_reference", "id": "msg_stored"}, {"type": "reasoning", "id": "rs_stored", "summary": []}]
)
async def test_references_to_stored_items_go_as_they_came(item: dict[str, Any]) -> None:
    session = ResponseSession(8_000, size=1_500, often=0)
    session.history.insert(1, item)
    for _ in range(30):
        await session.call()
        assert session.upstream.calls[-1].body == session.sent
    await session.talk.close()


async def test_a_refused_epoch_is_answered_with_the_clients_own_request() -> None:
    session = await grow()
    session.upstream.refuses_next = True
    client = await session.call()
    assert client.status == 200
    assert session.upstream.calls[-1].body == session.sent
    await session.talk.close()


async def test_the_upstream_is_strict() -> None:
    session = ResponseSession(1_000_000, often=0)
    await session.run(8)
    own = json.loads(session.write())
    items: list[Any] = own["input"]
    thought = next(i for i, item in enumerate(items) if item.get("type") == "reasoning")
    call = next(i for i, item in enumerate(items) if item.get("call_id"))
    output = next(i for i, item in enumerate(items) if item.get("type", "").endswith("_output"))
    sealed = items[thought] | {"encrypted_content": "other"}
    for changed, told in (
        (items[:thought] + items[thought + 1 :], "without its required 'reasoning' item: 'rs_"),
        ([*items[: thought + 1], items[0], *items[thought + 1 :]], "without its required following item"),
        (items[:call] + items[call + 1 :], "No tool call found for "),
        (items[:output] + items[output + 1 :], "No tool output found for "),
        ([*items, items[call]], "Duplicate item found with id "),
        ([*items[:thought], sealed, *items[thought + 1 :]], "could not be verified"),
        ([*items[:thought], items[thought] | {"encrypted_content": ""}], "not found. Items are not persisted"),
        ([TRIGGER, *items], "must be the last"),
        ([*items, {"role": "user", "content": [{"type": "text", "text": "x"}]}], "Invalid value: 'text'"),
    ):
        assert told in await session.try_direct(own | {"input": changed})
    assert await session.try_direct(own) == ""
