"""The API of managed context, over sockets: a conversation is carried under a small ceiling, then looked at."""

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from proxy.context.budget import BudgetPolicy
from proxy.context.references import PAGE
from proxy.engine.compaction.job import ManualOptions
from proxy.engine.compaction.manual import Compaction
from proxy.engine.models import PriceList
from proxy.engine.recall.visibility import VisibilityReader
from proxy.engine.recorded.conversation import load_history
from proxy.engine.recorded.lookup import find_exchange, find_newest_call
from proxy.model.card import Card
from proxy.model.errors import Conflict, NotFound, ProxyError
from proxy.model.messages import LEDGER_HEAD, RECALL_TOOL
from proxy.model.search import Hit
from proxy.read.diff import load_difference
from proxy.read.savings import SavingsInputs
from proxy.read.window import HeldCache, load_window
from tests.store.samples import chain_body, make_key, make_leaf, make_opening
from tests.support.chat_clients import TOOLS
from tests.support.fake_log import EXCHANGE, FakeLog
from tests.support.kept_log import KeptLog
from tests.support.managing import make_history, spell
from tests.support.recalling import make_entry, make_hit
from tests.support.scripted import LIMIT, Message, ScriptedUpstream, Wire, answer, request
from tests.support.searching import FakeIndex
from tests.support.serving import TOKEN, Plan, Served, serving

BEARER = f"Authorization: Bearer {TOKEN}"
API = "/-/api"
STEPS = 31
HISTORY = make_history(STEPS, 300)


class PlainLog(FakeLog):
    """A log of calls that were sent as they came."""

    async def load_sent(self, exchange: str, k: int) -> bytes:
        return await self.load_request(exchange)


class Managed:
    """A server that has carried a conversation, and its session."""

    def __init__(self, served: Served, session: str, upstream: ScriptedUpstream) -> None:
        self.served, self.session, self.upstream = served, session, upstream

    async def call(self, path: str, method: str = "GET") -> Message:
        """The answer to a request with the token; it can never be shown as a page."""
        got = await self.served.ask(request(method, API + path.replace("{id}", self.session), BEARER))
        assert got.find(b"content-security-policy") == b"default-src 'none'; sandbox"
        return got

    async def load(self, path: str, method: str = "GET") -> Any:
        """The document at a path."""
        got = await self.call(path, method)
        assert (got.status, got.find(b"content-type")) == (200, b"application/json"), got.body
        document = json.loads(got.body)
        return document.get("items", document)

    async def refuse(self, path: str, method: str = "GET") -> tuple[int, str]:
        """Status and message of an error."""
        got = await self.call(path, method)
        return got.status, json.loads(got.body)["error"]["message"]


async def ask(served: Served, messages: Any, *fields: str) -> Message:
    """A call of the client's."""
    body = spell(messages, tools=TOOLS)
    return await served.ask(request("POST", "/v1/chat/completions", "x-palimpsest-session: talk", *fields, body=body))


@pytest.fixture
async def managed(plan: Plan, upstream: ScriptedUpstream) -> AsyncIterator[Managed]:
    said = {"role": "assistant", "content": "well"}
    content = json.dumps({"choices": [{"index": 0, "message": said, "finish_reason": "stop"}]}).encode()

    async def play(wire: Wire) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, TimeoutError):
            while True:
                upstream.requests.append(await wire.read_request())
                wire.send(answer(content, "Content-Type: application/json"))

    upstream.script = play
    async with serving(Plan(plan.base_url, ceiling=4000, has_recall=True), KeptLog()) as served:  # type: ignore[arg-type]
        for step in range(1, STEPS + 1):
            got = await ask(served, HISTORY[: 2 + 2 * step])
            assert got.status == 200
        assert await served.tasks.finish(LIMIT), "the last answer was not read"
        yield Managed(served, got.find(b"x-palimpsest-session").decode(), upstream)


async def test_epochs_are_listed_and_shown(managed: Managed) -> None:
    (listed,) = await managed.load("/sessions/{id}/epochs")
    assert (listed["n"], listed["why"], listed["parent"]) == (1, "soft", "")
    assert listed["tokens_before"] > 2 * listed["tokens_after"]
    shown = await managed.load(f"/sessions/{managed.session[:6]}/epochs/1")
    same = ("n", "id", "view", "parent", "why", "exchange", "depth", "tokens_before", "tokens_after", "references")
    assert [listed[name] for name in same] == [shown[name] for name in same]
    assert (listed["state"], listed["strategy"], listed["cost"]) == ("active", "epochs", None)  # no usage came back
    assert listed["explanation"].startswith("It paid: ") and listed["paid_back"]["calls"] > 1
    line = await managed.load("/sessions/{id}/timeline")
    assert (line["n"][-1], line["epoch"][-1], line["epoch"][0]) == (STEPS, 1, 0)
    assert line["client"][-1] > line["sent"][-1]
    assert [(mark["n"], mark["kind"]) for mark in line["marks"]] == [(listed["call"], "epoch")]
    assert set(line["branch"]) == {0}
    assert [edit["edit"] for edit in shown["edits"]][:2] == ["kept", "written"]
    assert shown["edits"][1]["text"] == shown["rendered"][1]["content"]
    sent = json.loads(managed.upstream.requests[-1].body)["messages"]
    assert shown["rendered"] == sent[1 : 1 + len(shown["rendered"])]
    written = "\n".join(edit.get("text", "") for edit in shown["edits"])
    assert shown["references"] and all(f"ref:{each['id']}" in written for each in shown["references"])


async def test_what_fills_the_context_is_told_by_kind_with_what_is_held_back(managed: Managed) -> None:
    log: Any = managed.served.archive
    inputs = SavingsInputs(PriceList(lambda upstream, model: Card(window=8000)), BudgetPolicy(4000))

    async def tally(model: str, raws: Sequence[bytes]) -> list[int]:
        return [len(raw) // 4 for raw in raws]

    window = await load_window(log, managed.session, inputs, tally)
    kinds = {part.kind: part for part in window.kinds}
    assert window.call == STEPS
    assert sum(part.tokens for part in window.kinds) == pytest.approx(window.used, abs=len(window.kinds))
    assert kinds["ledger"].count == 1
    assert (window.view, window.strategy, window.window, window.ceiling) == ("gpt-4o", "epochs", 1_000_000, 4000)
    assert 0 < window.low < window.soft < window.high
    assert window.next_epoch is not None
    assert window.next_epoch.tokens - window.next_epoch.away == window.used
    assert sum(part.held_tokens for part in window.kinds) > kinds["ledger"].tokens
    with pytest.raises(NotFound):
        await load_window(log, "zzz", inputs, tally)
    other = SavingsInputs(inputs.prices, BudgetPolicy(2000, soft_fraction=0.1))  # a command with other settings
    there = await load_window(log, managed.session, other, tally)
    assert (there.window, there.high, there.soft, there.low) == (window.window, window.high, window.soft, window.low)
    assert (there.ceiling, there.next_epoch) == (there.high, window.next_epoch)
    assert "pinned" not in kinds
    pinned = await managed.load("/sessions/{id}/pins?newest=true", "POST")
    for nodes in (None, {bytes.fromhex(pinned["node"])}):
        again = await load_window(log, managed.session, inputs, tally, pinned=nodes)
        counts = {part.kind: part.count for part in again.kinds}
        assert counts["pinned"] == 1
        assert sum(counts.values()) == sum(part.count for part in window.kinds)


async def test_what_a_model_thought_is_a_kind_of_its_own() -> None:
    user = b'{"role":"user","content":"Hi"}'
    assistant = b'{"role":"assistant","content":"Hello, what can I do?","reasoning_content":"A greeting."}'
    thought = b'{"role":"assistant","content":"A greeting."}'
    body = b'{"model":"m","messages":[%b,%b]}' % (user, assistant)

    async def tally(model: str, raws: Sequence[bytes]) -> list[int]:
        return [len(raw) for raw in raws]

    inputs = SavingsInputs(PriceList(lambda upstream, model: Card(window=8000)), BudgetPolicy(4000))
    row = dataclasses.replace(EXCHANGE, rounds=(dataclasses.replace(EXCHANGE.rounds[0], usage=None),))
    window = await load_window(PlainLog(bodies={"x1": body}, exchanges=(row,)), row.session, inputs, tally)
    assert {part.kind: part.tokens for part in window.kinds} == {
        "user": len(user),
        "assistant": len(assistant) - len(thought),
        "reasoning": len(thought),
    }


async def test_a_hit_says_whether_the_model_sees_it_now(managed: Managed) -> None:
    log: Any = managed.served.archive
    row = await find_newest_call(log, managed.session)
    nodes = (await load_history(log, row)).nodes
    (epoch,) = await log.list_epochs(managed.session)
    ledger = next(edit["text"] for edit in (await managed.load("/sessions/{id}/epochs/1"))["edits"] if "start" in edit)
    entry = make_entry(reference="ledgerrrrr", kind="ledger", text=f"{ledger}\n")
    reader = VisibilityReader(log, FakeIndex(entry=entry))

    def hit(node: bytes = b"", **changes: Any) -> Hit:
        return make_hit(**{"session": managed.session, "node": node, "exchange": "older", **changes})

    removed = nodes[epoch.depth // 2]
    hits = (
        hit(nodes[-1]),
        hit(removed),
        hit(b"another branch"),
        hit(b"its answer", exchange=row.id),
        hit(kind="ledger", reference="ledgerrrrr"),
        hit(kind="ledger", reference="anotherrrr"),
        hit(nodes[-1], session="unknown"),
    )
    expected = ["sent", "in_short", "not_sent", "sent", "sent", "not_sent", None]
    assert await reader.judge(hits) == await reader.judge(hits) == expected


async def test_what_an_epoch_holds_back_is_summed_once(managed: Managed) -> None:
    log: Any = managed.served.archive
    inputs = SavingsInputs(PriceList(lambda upstream, model: Card(window=8000)), BudgetPolicy(4000))
    counted: list[int] = []
    sizes: list[int] = []

    async def tally(model: str, raws: Sequence[bytes]) -> list[int]:
        counted.append(len(raws))
        sizes.extend(len(raw) // 4 for raw in raws)
        return [len(raw) // 4 for raw in raws]

    known = HeldCache()
    first = await load_window(log, managed.session, inputs, tally, known=known)
    few = len(counted)
    sizes.clear()
    assert await load_window(log, managed.session, inputs, tally, known=known) == first
    sent = sum(sizes)
    assert len(counted) - few == few - 1 and sum(counted[few:]) < sum(counted[:few]) / 2
    difference = await load_difference(log, await find_exchange(log, managed.session, STEPS), tally)
    held = sum(side.tokens for change in difference.changes for side in change.client)
    assert (await load_window(log, managed.session, inputs, tally)).kinds == first.kinds
    assert sum(part.held_tokens for part in first.kinds) / held == pytest.approx(first.used / sent, rel=0.1)


async def test_a_reference_gives_its_original_in_pages(managed: Managed) -> None:
    (epoch,) = await managed.load("/sessions/{id}/epochs")
    name = epoch["references"][-1]["id"]
    whole = await managed.call(f"/refs/{name}?page=all")
    assert (whole.status, whole.find(b"content-type")) == (200, b"text/plain; charset=utf-8")
    assert whole.find(b"x-palimpsest-pages") == b"1"
    text = whole.body.decode()
    assert any(message["content"] and message["content"] in text for message in HISTORY)
    first = await managed.call(f"/refs/ref:{name}")
    assert first.body == whole.body if len(text) <= PAGE else first.body.startswith(text[:PAGE].encode())


async def test_summaries_are_listed_and_shown_and_lead_to_what_they_cover(managed: Managed) -> None:
    assert await managed.load("/sessions/{id}/summaries") == []
    messages, session = [json.dumps(message).encode() for message in HISTORY[2:4]], make_key().id
    leaf = make_leaf("abcdefgh23", messages, 1, text="# Goal\nto see")
    opening = make_opening("a1", chain_body([(b"", raw) for raw in messages]), kind="auxiliary")
    assert await managed.served.archive.append(opening, leaf)
    (listed,) = await managed.load(f"/sessions/{session}/summaries")
    assert (listed["id"], listed["text"], listed["is_live"]) == ("abcdefgh23", "# Goal\nto see", True)
    assert await managed.load(f"/sessions/{session}/summaries/ref:abcdefgh23") == listed
    original = await managed.call("/refs/abcdefgh23")
    assert HISTORY[2]["content"] in original.body.decode()
    row = (await managed.load(f"/sessions/{session}"))["session"]
    assert (row["calls"], row["auxiliary"]["calls"]) == (0, 1)


async def test_errors_say_what_to_do(managed: Managed) -> None:
    for path, status, told in [
        ("/refs/aaaaaaaaaa", 404, "there is no reference aaaaaaaaaa; `palimpsest diff SESSION N`"),
        ("/refs/no", 404, "'no' is no reference: one is `ref:` and ten letters and digits"),
        ("/refs/aaaaaaaaaa?page=x", 400, "page is a number"),
        ("/sessions/zzz/epochs", 404, "no session begins with 'zzz'"),
        ("/sessions/{id}/epochs/2", 404, "it has 1, counted from 1"),
        ("/sessions/{id}/epochs/0", 404, "there is no epoch 0"),
        ("/sessions/zzz/summaries", 404, "no session begins with 'zzz'"),
        ("/sessions/{id}/summaries/aaaaaaaaaa", 404, "no summary 'aaaaaaaaaa'; it has none"),
        ("/sessions/{id}/summaries?page=3", 400, "this path takes: cursor, limit"),
        ("/sessions/{id}/epochs/x", 400, "n is a number"),
        ("/sessions/{id}/exchanges/99/diff", 404, "no exchange 99"),
        ("/sessions/{id}/exchanges/1/diff?k=3", 404, "has no such round; it has 1"),
        ("/sessions/{id}/handoff?branch=zz", 404, "no branch begins with 'zz'"),
    ]:
        got, message = await managed.refuse(path)
        assert (got, told in message) == (status, True), (path, message)


async def test_what_cannot_be_done_is_refused(managed: Managed) -> None:
    for path, method, status, told in [
        ("/epochs/1/revert", "GET", 405, "it takes POST"),
        ("/epochs/1/revert?dry_run=maybe", "POST", 400, "dry_run is true or false"),
        ("/epochs/7/revert", "POST", 404, "there is no epoch 7"),
        ("/pins", "PUT", 405, "it takes GET, HEAD, POST, DELETE"),
        ("/pins", "POST", 400, "say which message"),
        ("/pins?place=3", "POST", 400, "say which message"),
        ("/pins?newest=true&place=3", "POST", 400, "say which message"),
        ("/pins?exchange=1&newest=true", "POST", 400, "say which message"),
        ("/pins?exchange=1&place=9", "POST", 404, "3 messages behind its preamble"),
        ("/pins?exchange=1&place=-1", "POST", 400, "place is a number"),
        ("/pins?node=zz", "DELETE", 400, "node is in hexadecimal digits"),
        ("/pins?node=00", "DELETE", 404, "not pinned"),
        ("/pins?newest=true&branch=zz", "DELETE", 404, "no branch begins with 'zz'"),
    ]:
        got, message = await managed.refuse("/sessions/{id}" + path, method)
        assert (got, told in message) == (status, True), (path, method, message)


async def test_a_revert_quotes_its_price_and_is_done(managed: Managed) -> None:
    quoted = await managed.load("/sessions/{id}/epochs/1/revert?dry_run=true", "POST")
    assert (quoted["is_done"], quoted["epoch"], quoted["depth"], quoted["is_lasting"]) == (False, None, 0, True)
    assert quoted["tokens_then"] > quoted["tokens_now"]
    assert quoted["price"]["once"] > quoted["price"]["each"] > 0
    done = await managed.load("/sessions/{id}/epochs/1/revert", "POST")
    assert done["is_done"]
    assert {**done, "is_done": False, "epoch": None} == quoted
    await ask(managed.served, HISTORY)
    assert managed.upstream.requests[-1].body == spell(HISTORY, tools=TOOLS)
    assert [each["why"] for each in await managed.load("/sessions/{id}/epochs")] == ["soft", "revert"]
    assert await managed.refuse("/sessions/{id}/epochs/1/revert", "POST") == (
        409,
        "palimpsest: this epoch is reverted already",
    )


async def test_messages_are_pinned_listed_and_let_go(managed: Managed) -> None:
    pinned = await managed.load("/sessions/{id}/pins?exchange=3&place=4", "POST")
    assert (pinned["exchange"], pinned["place"], pinned["role"]) == (3, 4, "tool")
    assert pinned["text"] == HISTORY[5]["content"][:200]
    assert pinned["tokens"] > 0
    newest = await managed.load("/sessions/{id}/pins?newest=true", "POST")
    assert (newest["exchange"], newest["place"]) == (STEPS, 2 * STEPS)
    assert [each["node"] for each in await managed.load("/sessions/{id}/pins")] == [pinned["node"], newest["node"]]
    left = await managed.load(f"/sessions/{{id}}/pins?node={pinned['node']}", "DELETE")
    assert [each["node"] for each in left] == [newest["node"]]
    assert await managed.load("/sessions/{id}/pins?newest=true", "DELETE") == []


async def test_the_price_of_a_pin_is_said_before(managed: Managed) -> None:
    quoted = await managed.load("/sessions/{id}/pins?exchange=3&place=4&dry_run=true", "POST")
    assert await managed.load("/sessions/{id}/pins") == []
    assert quoted["price"]["unit"] == "tokens of uncached input"
    assert quoted["price"]["once"] >= quoted["tokens"] > quoted["price"]["each"] > 0
    pinned = await managed.load("/sessions/{id}/pins?exchange=3&place=4", "POST")
    assert pinned == {**quoted, "price": None}
    again = await managed.load("/sessions/{id}/pins?exchange=3&place=4&dry_run=true", "POST")
    assert again == quoted


async def test_pins_beyond_their_share_are_refused(managed: Managed) -> None:
    statuses = [
        (await managed.call(f"/sessions/{{id}}/pins?exchange={STEPS}&place={place}", "POST")).status
        for place in range(2, 14, 2)
    ]
    assert set(statuses) == {200, 409}
    assert statuses == sorted(statuses)


async def test_a_difference_is_told(managed: Managed) -> None:
    equal = await managed.load("/sessions/{id}/exchanges/1/diff")
    assert (equal["is_modified"], equal["changes"]) == (False, [])
    told = await managed.load(f"/sessions/{{id}}/exchanges/{STEPS}/diff?k=0")
    assert (told["is_modified"], told["messages"]) == (True, 1 + 2 * STEPS)
    (tools,) = told["members"]
    *same, added = json.loads(tools["sent"])
    assert (tools["name"], json.loads(tools["client"])) == ("tools", TOOLS)
    assert same == TOOLS
    assert added["function"]["name"] == RECALL_TOOL
    assert told["plan"]["rung"] == "epoch"
    ledger = next(side for change in told["changes"] for side in change["sent"])
    (epoch,) = await managed.load("/sessions/{id}/epochs")
    assert ledger["references"] == [each["id"] for each in epoch["references"]]
    gone = {place for change in told["changes"] for place in range(change["start"], change["stop"])}
    assert told["kept"] == told["messages"] - len(gone)
    assert 0 not in gone


async def test_a_handoff_is_given(managed: Managed) -> None:
    got = await managed.call("/sessions/{id}/handoff")
    assert (got.status, got.find(b"content-type")) == (200, b"text/markdown; charset=utf-8")
    assert LEDGER_HEAD.encode() in got.body
    branch = (await managed.load("/sessions/{id}"))["branches"][0]["tip"]
    assert (await managed.call(f"/sessions/{{id}}/handoff?branch={branch[:8]}")).body == got.body


async def test_an_exchange_says_what_was_decided(managed: Managed) -> None:
    shown = await managed.load(f"/sessions/{{id}}/exchanges/{STEPS}")
    plan = shown["rounds"][0]["plan"]
    assert (plan["rung"], plan["pressure"], shown["bound"]) == ("epoch", "none", None)
    assert plan["tokens_client"] > plan["tokens_upstream"] > 0
    (row,) = await managed.load("/sessions")
    assert row["window_tokens"]["client"] > row["window_tokens"]["sent"] > 0
    assert row["client_tokens"] > row["sent_tokens"] > 0
    assert (row["strategy"], row["epochs"], row["saved"]) == ("epochs", 1, None)  # no usage came back


async def test_only_the_administrator_reads_and_decides(managed: Managed) -> None:
    for path in ["/refs/aaaaaaaaaa", "/sessions/{id}/epochs", "/sessions/{id}/pins", "/sessions/{id}/handoff"]:
        for fields in [(), ("Authorization: Bearer wrong",), (BEARER, "Origin: http://evil.example")]:
            for method in ("GET", "POST", "DELETE"):
                asked = request(method, API + path.replace("{id}", managed.session), *fields)
                assert (await managed.served.ask(asked)).status in (401, 403), (path, method, fields)


async def test_a_revert_needs_the_administrator(managed: Managed) -> None:
    asked = request("POST", f"{API}/sessions/{managed.session}/epochs/1/revert")
    assert (await managed.served.ask(asked)).status == 401
    assert len(await managed.load("/sessions/{id}/epochs")) == 1


class Compacting:
    """Compacts as it was told; `asked` is what for."""

    def __init__(self, found: Compaction | ProxyError) -> None:
        self.asked: list[tuple[str, ManualOptions, str, str]] = []
        self._found = found

    async def compact(self, session: str, options: ManualOptions, view: str, branch: str) -> Compaction:
        self.asked.append((session, options, view, branch))
        if isinstance(self._found, ProxyError):
            raise self._found
        return self._found


async def post(served: Served, body: bytes) -> tuple[int, Any]:
    got = await served.ask(request("POST", f"{API}/sessions/se/compact", BEARER, body=body))
    return got.status, json.loads(got.body)


@pytest.fixture
async def archive() -> KeptLog:
    """A log with one session."""
    archive = KeptLog()
    assert await archive.append(make_opening("x1", key=replace(make_key(), id="session")))
    return archive


async def test_a_session_is_compacted_as_it_is_asked_for(plan: Plan, archive: KeptLog) -> None:
    compacting = Compacting(Compaction("session", None, (), 100, 5, ("x2",), 3.0, "it is short"))
    async with serving(Plan(plan.base_url, compacting=compacting), archive) as served:  # type: ignore[arg-type]
        status, found = await post(served, b"")
        assert (status, found["session"], found["calls"], found["reason"]) == (200, "session", ["x2"], "it is short")
        await post(served, b'{"model":"m","prompt":"p","level":3,"view":"v","branch":"ab"}')
        assert compacting.asked == [
            ("session", ManualOptions(), "", ""),
            ("session", ManualOptions("m", "p", 3), "v", "ab"),
        ]
        for body in (b'{"level":4}', b'{"spend":true}', b"null"):
            status, found = await post(served, body)
            assert (status, found["error"]["code"]) == (400, "bad_request")
        assert len(compacting.asked) == 2
        got = await served.ask(request("GET", f"{API}/sessions/session/compact", BEARER))
        assert (got.status, got.find(b"allow")) == (405, b"POST")
        got = await served.ask(request("POST", f"{API}/sessions/other/compact", BEARER))
        assert got.status == 404
        got = await served.ask(request("POST", f"{API}/sessions/session/compact"))
        assert got.status == 401


async def test_what_cannot_be_compacted_is_a_conflict(plan: Plan, archive: KeptLog) -> None:
    compacting = Compacting(Conflict("there is too little"))
    async with serving(Plan(plan.base_url, compacting=compacting), archive) as served:  # type: ignore[arg-type]
        status, found = await post(served, b"{}")
        assert (status, found["error"]["message"]) == (409, "palimpsest: there is too little")
