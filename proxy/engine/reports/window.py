"""What fills a session's context now, by kind, with what is held back of it, and the marks at which it is shortened."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from proxy.context.budget import compute_soft_mark, make_budget
from proxy.engine.ports import LogReader
from proxy.engine.reports.conversation import list_raws, read_request, split_whole
from proxy.engine.reports.diff import Tally, load_difference
from proxy.engine.reports.lookup import find_session, read_back
from proxy.engine.reports.savings import SavingsInputs
from proxy.model.epoch import Edit, Epoch, Replaced, Strategy, Written, read_view
from proxy.model.errors import NotFound
from proxy.model.exchange import CONVERSATION
from proxy.model.figures import Newest
from proxy.model.log import ExchangeRow
from proxy.model.messages import LEDGER_HEAD, Message
from proxy.wire import FORMATS
from proxy.wire.identity import count_preamble

WindowKind = Literal[
    "system",
    "tools",
    "ledger",
    "summary1",
    "summary2",
    "summary3",
    "user",
    "assistant",
    "output",
    "tombstone",
    "file",
    "other",
]

_NOTES: Mapping[WindowKind, str] = {
    "system": "Instructions of the client, never edited",
    "tools": "Definitions of tools, the client's and ours",
    "ledger": "Lines that stand for older steps",
    "summary1": "Summaries of level 1: structured",
    "summary2": "Summaries of level 2: aggressive",
    "summary3": "Summaries of level 3: a digest that no model wrote",
    "user": "Word for word, or cut to their beginnings",
    "assistant": "Word for word, reasoning included",
    "output": "Outputs of tools, word for word",
    "tombstone": "Markers that stand for outputs of tools",
    "file": "Outlines that stand for long outputs",
    "other": "What is none of these",
}
_ROLES: Mapping[str, WindowKind] = {"system": "system", "user": "user", "assistant": "assistant", "tool": "output"}
_SUMMARIES: Mapping[int, WindowKind] = {1: "summary1", 2: "summary2", 3: "summary3"}
_ORDER: tuple[WindowKind, ...] = tuple(_NOTES)
_HEAD = 200  # characters
_edits = msgspec.json.Decoder(tuple[Edit, ...])


class WindowPart(msgspec.Struct, frozen=True):
    """What one kind takes of the context, in how many messages, and how many tokens of that kind are held back."""

    kind: WindowKind
    tokens: int
    count: int
    held_tokens: int
    note: str


class NextEpoch(msgspec.Struct, frozen=True):
    """When the next epoch may open: at so many `tokens`, which are so many `away`."""

    reason: str
    tokens: int
    away: int


class Window(msgspec.Struct, frozen=True):
    """What fills the context of a session's newest call, in the model's tokens; a window of null is unknown.

    An epoch may open above `soft` where it pays, and opens at `high`; it shortens to about `low`. `ceiling` is the part
    of the window that may be used, `output_reserve` is kept for the response. `view` and `strategy` are those of the
    call, null where there was nothing to decide.
    """

    call: int
    window: int | None
    ceiling: int
    high: int
    soft: int
    low: int
    output_reserve: int
    used: int
    free: int
    view: str
    strategy: Strategy | None
    next_epoch: NextEpoch | None
    kinds: list[WindowPart]


async def load_window(log: LogReader, prefix: str, inputs: SavingsInputs, tally: Tally) -> Window:
    """Load what fills the context of the session with this prefix. Raises NotFound where nothing can be read."""
    session = await find_session(log, prefix)
    row = await _find_newest(log, session)
    k = row.rounds[-1].k
    split = split_whole(read_request(row, await log.load_sent(row.id, k)), FORMATS[row.wire].items_key)
    (newest,) = await log.load_newest((session,)) or (Newest(session),)
    written = await _name_written(log, session, row)
    form, raws = FORMATS[row.wire], list_raws(split)
    leading = count_preamble([form.reader.read_item(raw) for raw in raws])
    found: list[tuple[WindowKind, int]] = []
    for place, (raw, count) in enumerate(zip(raws, await tally(row.model, raws), strict=True)):
        found.append(("system" if place < leading else find_kind(form.parse_message(raw), written), count))
    members: tuple[tuple[str, WindowKind], ...] = ((form.instructions_key, "system"), ("tools", "tools"))
    for name, kind in members:
        if name and (member := split.member(name)):
            (count,) = await tally(row.model, [b'{"role":"user","content":%b}' % member])
            found.append((kind, count))
    return _describe(row, newest, inputs, found, await _list_held(log, session, row, tally))


def find_kind(message: Message, written: Mapping[str, WindowKind]) -> WindowKind:
    """Return the kind of a message that was sent, given the kinds of what we wrote, by its text."""
    text = message.text
    for each in (text, *message.outputs):
        if kind := written.get(each.strip()):
            return kind
    if LEDGER_HEAD in text[:_HEAD]:
        return "ledger"
    return _ROLES.get(message.role, "other")


async def _find_newest(log: LogReader, session: str) -> ExchangeRow:
    async for row in read_back(log, session):
        if row.kind in CONVERSATION and row.wire in FORMATS and row.rounds and not row.is_side:
            return row
    raise NotFound("no call of this session can be read: none was in a known wire format")


async def _name_written(log: LogReader, session: str, row: ExchangeRow) -> dict[str, WindowKind]:
    """Return the kinds of the texts that the epoch of a call has in place of messages."""
    name = next((each.plan.epoch for each in reversed(row.rounds) if each.plan is not None and each.plan.epoch), "")
    epochs: Sequence[Epoch] = await log.list_epochs(session) if name else ()
    edits = next((each.edits for each in epochs if each.id == name), b"")
    levels = {each.id: each.level for each in await log.list_summaries(session)} if edits else {}
    found: dict[str, WindowKind] = {}
    for edit in _edits.decode(edits) if edits else ():
        if isinstance(edit, Replaced):
            if edit.text:
                found[edit.text.strip()] = "file" if edit.kind == "file" else "tombstone"
        elif isinstance(edit, Written):
            found[edit.text.strip()] = (
                _SUMMARIES.get(levels.get(edit.report, 1), "summary1") if edit.report else "ledger"
            )
    return found


async def _list_held(log: LogReader, session: str, row: ExchangeRow, tally: Tally) -> list[tuple[WindowKind, int]]:
    """Return the kinds and tokens of the client's messages that were not sent as they are."""
    try:
        difference = await load_difference(log, session, row.n, tally)
    except NotFound:
        return []
    return [(_ROLES.get(side.role, "other"), side.tokens) for change in difference.changes for side in change.client]


def _describe(
    row: ExchangeRow,
    newest: Newest,
    inputs: SavingsInputs,
    found: Sequence[tuple[WindowKind, int]],
    held: Sequence[tuple[WindowKind, int]],
) -> Window:
    last = row.rounds[-1]
    card = inputs.prices.find_card(last.upstream, row.model)
    budget = make_budget(card.window, card.output, None, inputs.policy, prices=card.prices)
    usable = newest.usable or budget.usable
    soft = compute_soft_mark(usable, inputs.policy)
    counted = sum(count for _, count in found)
    known = last.usage.input if last.usage is not None else None
    used = known or (last.plan.tokens_upstream if last.plan is not None else None) or counted
    scale = used / counted if counted else 1.0
    after = [mark for mark in ((soft, "soft mark"), (usable, "high mark")) if mark[0] > used]
    kinds = [_sum_kind(kind, found, held, scale) for kind in _ORDER]
    return Window(
        call=row.n,
        window=card.window,
        ceiling=inputs.policy.ceiling_tokens or usable,
        high=usable,
        soft=soft,
        low=budget.limit(usable).compute_low_mark(0),
        output_reserve=budget.output,
        used=used,
        free=max(0, (card.window or usable) - used),
        view=newest.view,
        strategy=read_view(newest.view)[1] if newest.view else None,
        next_epoch=NextEpoch(after[0][1], after[0][0], after[0][0] - used) if after else NextEpoch("due", used, 0),
        kinds=[each for each in kinds if each.count or each.held_tokens],
    )


def _sum_kind(
    kind: WindowKind,
    found: Iterable[tuple[WindowKind, int]],
    held: Iterable[tuple[WindowKind, int]],
    scale: float,
) -> WindowPart:
    counts = [count for name, count in found if name == kind]
    away = sum(count for name, count in held if name == kind)
    return WindowPart(kind, round(sum(counts) * scale), len(counts), round(away * scale), _NOTES[kind])
