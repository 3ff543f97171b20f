"""What the next epoch would cut, before it opens: it is what opens, and looking changes nothing."""

import contextlib
import json
from typing import Any

import httpx
import pytest
from starlette.routing import Router

from proxy.context.conversation import SnapshotPolicy
from proxy.engine.compaction.preview import PreviewKind
from proxy.engine.memory.snapshots import SnapshotMemory
from proxy.engine.models import PriceList
from proxy.model.card import Card, Prices, Rates
from proxy.model.errors import Conflict
from proxy.model.exchange import Headers
from proxy.read.preview import EpochPreview, preview_epoch
from proxy.server.api.context import ContextApi
from tests.support.compacting import WIRES, Workshop, fail
from tests.support.managing import Message, make_history
from tests.support.manual_compaction import carry, compact, make_manual_compaction
from tests.support.remembering import make_memory, make_turn, report_with_facts

CARD = Card(window=1_000_000, prices=Prices(Rates(2e-6, 8e-6, 1e-6, 2e-6)), prices_source="settings")
OBSERVED: Headers = ((b"x-palimpsest-mode", b"observe"),)


async def preview(shop: Workshop, kind: PreviewKind = "automatic") -> EpochPreview:
    """The next epoch of the only session."""
    compaction = make_manual_compaction(shop)
    return await preview_epoch(compaction, PriceList(lambda upstream, model: CARD), shop.session, kind=kind)


def is_opened(found: EpochPreview, epoch: Any) -> bool:
    """Whether an epoch is the one that was foreseen."""
    rendered = tuple(bytes(each) for each in found.rendered)
    return (rendered, found.depth, found.through) == (epoch.rendered, epoch.depth, epoch.through.hex())


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("size", [700, 1200, 1900])
async def test_the_next_call_opens_what_was_foreseen(wire: str, size: int) -> None:
    shop = Workshop(fail, wire=wire)
    found = None
    for steps in range(2, 60):
        await shop.ask(make_history(steps, size))
        if shop.epochs:
            break
        try:
            found = await preview(shop)
        except Conflict:
            continue
    (epoch,) = shop.epochs
    assert found is not None and is_opened(found, epoch)
    assert (found.n, found.parent, found.strategy, found.state) == (1, "", "epochs", "preview")
    assert found.tokens_after < found.tokens_before
    assert found.calls_away == 0 and "with the next call" in found.explanation


@pytest.mark.parametrize("wire", WIRES)
async def test_a_compaction_opens_what_was_foreseen_where_no_model_can_be_asked(wire: str) -> None:
    shop = Workshop(ceiling=100_000, wire=wire)
    await carry(shop)
    shop = Workshop(ceiling=100_000, wire=wire, after=shop)  # no credential is known of the session any more
    found = await preview(shop, "manual")
    assert (found.why, found.call, shop.epochs, shop.summaries, shop.model.asked) == ("manual", 1, [], [], [])
    made = await compact(shop)
    assert made.epoch is not None
    if not any(edit.edit == "written" and "[Report by" in (edit.text or "") for edit in found.edits) and made.summaries:
        assert (found.depth, found.through) == (made.epoch.depth, made.epoch.through.hex())
    else:
        assert is_opened(found, made.epoch)


@pytest.mark.parametrize("first", [2, 3, 14])
async def test_looking_changes_nothing(first: int) -> None:
    """What a look counts, no later call may find counted: its bytes may prove that it need not be."""
    looked, other = Workshop(fail), Workshop(fail)
    for steps in range(first, 40):
        sent = [await shop.ask(make_history(steps, 1200)) for shop in (looked, other)]
        assert sent[0] == sent[1]
        kinds: tuple[PreviewKind, ...] = ("automatic", "manual")
        for kind in kinds:
            with contextlib.suppress(Conflict):
                await preview(looked, kind)
    assert len(looked.epochs) == len(other.epochs) > 0
    assert not looked.model.asked or len(looked.model.asked) == len(other.model.asked)


async def test_looking_after_a_restart_keeps_no_counts() -> None:
    first = Workshop(fail)
    for steps in range(2, 24):
        await first.ask(make_history(steps, 1200))
    assert first.epochs
    shop = Workshop(fail, after=first)
    caches, session = shop.controller.states.caches, shop.session
    with contextlib.suppress(Conflict):
        await preview(shop)
    context = await caches.contexts.load(session)
    assert context.sizes == {}


async def test_what_goes_stands_beside_what_comes_with_cost_and_saving() -> None:
    shop = Workshop(ceiling=100_000, card=CARD)
    history = await carry(shop)
    found = await preview(shop, "manual")
    assert found.cost.tokens > 0 and found.saving.tokens > 0
    assert found.cost.money == pytest.approx(found.cost.tokens * 2e-6, rel=0.01)
    assert found.saving.money == pytest.approx(found.saving.tokens * 2e-6, rel=0.01)
    gone = [side.text for change in found.diff for side in change.client]
    assert gone and all(any(text in str(message["content"]) for message in history) for text in gone if text)
    assert found.references and found.edits
    with pytest.raises(Conflict, match="nothing would get shorter"):  # so far below its marks nothing needs to go
        await preview(shop)


async def test_where_nothing_gets_shorter_it_says_so() -> None:
    shop = Workshop(ceiling=100_000)
    await carry(shop, steps=2)
    with pytest.raises(Conflict, match="nothing would get shorter"):
        await preview(shop, "manual")


async def test_a_session_that_is_only_observed_shows_what_managing_would_do() -> None:
    shop = Workshop()
    await shop.ask(make_history(40, 1200), OBSERVED)
    found = await preview(shop)
    assert found.is_observed and "in mode observe" in found.explanation
    assert found.tokens_after < found.tokens_before and shop.epochs == []


async def test_a_snapshot_shows_what_memory_has_and_makes_none() -> None:
    shop, headers = Workshop(report_with_facts, ceiling=100_000), ((b"x-palimpsest-strategy", b"snapshot"),)
    memory = make_memory(shop).memory
    shop.controller.chain.memory = SnapshotMemory(memory=memory, worker=shop.worker, policy=SnapshotPolicy())
    history: list[Message] = [{"role": "system", "content": "You are an agent."}]
    for n in range(9):
        turn = make_turn(n, f"Do task {n}.")
        await shop.ask([*history, *turn[:-1]], headers)
        history += turn
    before = len(shop.summaries)
    try:
        await preview(shop, "manual")
    except Conflict as error:
        assert "nothing would get shorter" in str(error)
    assert (shop.epochs, len(shop.summaries)) == ([], before)
    await compact(shop)
    sent = json.dumps(shop.epochs[-1].edits.decode())
    assert "MEMORY" in sent


async def test_turns_foresee_what_the_strategy_cuts() -> None:
    shop, headers = Workshop(ceiling=100_000), ((b"x-palimpsest-strategy", b"turns"),)
    history: list[Message] = [{"role": "system", "content": "You are an agent."}]
    for n in range(4):
        turn = make_turn(n, f"Do task {n}.")
        history += turn[:-1]
        await shop.ask(history, headers)
        history += turn[-1:]
    with pytest.raises(Conflict, match="nothing would get shorter"):
        await preview(shop)


async def test_the_api_shows_it_and_a_dry_run_of_a_compaction_does_nothing() -> None:
    shop = Workshop(ceiling=100_000)
    await carry(shop)
    unused: Any = None
    tally = shop.controller.states.models.counter.count_messages
    api = ContextApi(shop.log, unused, make_manual_compaction(shop), tally, PriceList(lambda upstream, model: CARD))
    transport = httpx.ASGITransport(Router(api.list_routes()))
    async with httpx.AsyncClient(transport=transport, base_url="http://proxy") as client:
        path = f"/api/sessions/{shop.session[:8]}"
        shown = await client.get(f"{path}/epochs/next", params={"why": "manual"})
        tried = await client.post(f"{path}/compact", params={"dry_run": "true"}, json={"level": 3})
        refused = await client.get(f"{path}/epochs/next")
        unknown = await client.get(f"{path}/epochs/next", params={"why": "hard"})
    assert (shown.status_code, tried.status_code, refused.status_code, unknown.status_code) == (200, 200, 409, 400)
    assert shown.json() == tried.json()
    assert shown.json()["state"] == "preview" and shown.json()["rendered"]
    assert (shop.epochs, shop.summaries, shop.model.asked) == ([], [], [])
