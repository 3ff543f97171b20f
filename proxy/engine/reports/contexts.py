"""How a session was managed: what was decided for its rounds, and its epochs, as JSON.

Rule: what was not counted is null, and then a bound that bytes prove stands beside it, under a name of its own.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from proxy.context.budget import bound_tokens
from proxy.engine.ports import LogReader
from proxy.engine.reports.finding import find_session
from proxy.model.epoch import Epoch
from proxy.model.errors import NotFound
from proxy.model.log import ExchangeRow
from proxy.model.plan import Edit, Kept, Plan, Replaced

Document = dict[str, Any]

_edits = msgspec.json.Decoder(tuple[Edit, ...])
_PLAN_FIELDS = ("rung", "epoch", "pressure", "reason", "tokens_client", "tokens_upstream", "usable", "owed", "saving")
_EPOCH_FIELDS = (*("id", "view", "parent", "why", "exchange", "opened_ms", "depth", "tokens_before", "tokens_after"),)


def describe_plan(plan: Plan | None) -> Document | None:
    """What was decided for a round; `saving` and `owed` are in tokens of uncached input, the former may be negative."""
    return None if plan is None else {name: getattr(plan, name) for name in _PLAN_FIELDS}


def find_bound(row: ExchangeRow, request: bytes) -> int | None:
    """More tokens than a request has, where nothing of it was counted; None where it was, or where none can tell."""
    if row.kind != "managed" or row.is_capped or any(is_counted(each.plan) for each in row.rounds):
        return None
    return bound_tokens(request)


def is_counted(plan: Plan | None) -> bool:
    """Whether both its tokens are known."""
    return plan is not None and plan.tokens_client is not None and plan.tokens_upstream is not None


async def list_epochs(log: LogReader, prefix: str) -> list[Document]:
    """The epochs of the session whose id begins so, the oldest first. Raises NotFound."""
    epochs = await log.list_epochs(await find_session(log, prefix))
    return [describe_epoch(epoch, n) for n, epoch in enumerate(epochs, 1)]


async def load_epoch(log: LogReader, prefix: str, n: int) -> Document:
    """The n-th epoch of that session, with all it sends. Raises NotFound."""
    session = await find_session(log, prefix)
    try:
        epoch = await log.load_epoch(session, n)
    except NotFound as error:
        count = len(await log.list_epochs(session))
        raise NotFound(f"{error}; it has {count}, counted from 1") from error
    return describe_epoch(epoch, n) | {
        "through": epoch.through.hex(),
        "edits": [describe_edit(edit) for edit in read_edits(epoch)],
        "rendered": [msgspec.Raw(message) for message in epoch.rendered],
    }


def describe_epoch(epoch: Epoch, n: int) -> Document:
    """An epoch as in a listing."""
    return {"n": n} | {name: getattr(epoch, name) for name in _EPOCH_FIELDS} | {"references": list_references(epoch)}


def list_references(epoch: Epoch) -> list[Document]:
    """What its references stand for: messages from `start` up to `stop`, from a character of their text on."""
    return [
        {"id": each.id, "start": each.place, "stop": each.place + len(each.digests), "offset": each.offset}
        for each in epoch.originals
    ]


def read_edits(epoch: Epoch) -> Sequence[Edit]:
    """An epoch's edits; none where they were erased."""
    return _edits.decode(epoch.edits) if epoch.edits else ()


def describe_edit(edit: Edit) -> Document:
    """An edit under the name of its kind."""
    if isinstance(edit, Kept):
        return {"edit": "kept", "place": edit.place}
    if isinstance(edit, Replaced):
        return {"edit": edit.kind, "place": edit.place, "text": edit.text}
    return {"edit": "written", "start": edit.start, "stop": edit.stop, "text": edit.text}
