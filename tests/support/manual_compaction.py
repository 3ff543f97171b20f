"""A session of which a person asks a summary, over fakes (`support/compacting`)."""

import json
from collections.abc import Sequence
from typing import Any

from proxy.engine.compaction.job import ManualOptions, SentRequest
from proxy.engine.compaction.manual import Compaction, ManualCompaction
from proxy.engine.policy import EnginePolicy
from proxy.engine.ports import Archive
from tests.support.compacting import Workshop
from tests.support.managing import Message, make_history

STEPS = 12


def make_manual_compaction(shop: Workshop, archive: Any = None, gate: Any = None) -> ManualCompaction:
    """Return what compacts the sessions of an engine."""
    log: Archive = archive or shop.log
    return ManualCompaction(
        archive=log,
        gate=gate or shop.gate,
        worker=shop.worker,
        controller=shop.controller,
        find_strategy=EnginePolicy().find_strategy,
    )


async def compact(shop: Workshop, view: str = "", branch: str = "", **wish: Any) -> Compaction:
    """Compact the only session."""
    found = await make_manual_compaction(shop).compact(shop.session, ManualOptions(**wish), view, branch)
    await shop.settle()
    return found


async def load_newest(shop: Workshop) -> SentRequest:
    """Return the newest request of the only session, as a compaction by hand sees it."""
    compaction = make_manual_compaction(shop)
    return await compaction.load_request(await compaction.find_newest(shop.session))


async def carry(shop: Workshop, steps: int = STEPS, size: int = 1200) -> list[Message]:
    """An agent's calls so far, of which only the last is made: nothing was ever shortened. Its history."""
    history = make_history(steps, size)
    await shop.ask(history)
    return history


async def go_on(
    shop: Workshop, history: Sequence[Message], size: int = 1200
) -> tuple[list[Message], dict[bytes, bytes]]:
    """The agent's next call: the messages that went upstream, and the labels of the answer."""
    longer = [*history, *make_history(len(history) // 2, size)[len(history) :]]
    client = await shop.call(longer)
    await shop.settle()
    sent: list[Message] = json.loads(shop.model.sent[-1])["messages"]
    return sent, dict(client.labels)
