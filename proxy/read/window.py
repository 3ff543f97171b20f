"""What fills a session's context now, by kind, with what is held back of it, and the marks at which it is shortened."""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Literal

import msgspec
from msgspec.structs import replace

from proxy.context.budget import compute_soft_mark, make_budget
from proxy.engine.ports import LogReader
from proxy.engine.recorded.conversation import list_raws, load_body, load_history, read_body
from proxy.engine.recorded.lookup import find_newest_call, find_session, load_sent_epoch
from proxy.model.epoch import Epoch, Kept, Replaced, Strategy, Written, read_view
from proxy.model.errors import NotFound
from proxy.model.figures import Newest
from proxy.model.log import ExchangeRow
from proxy.model.lru import LruCache
from proxy.model.messages import LEDGER_HEAD, Message
from proxy.read.diff import Tally, load_difference
from proxy.read.savings import SavingsInputs
from proxy.wire import FORMATS
from proxy.wire.format import Format
from proxy.wire.identity import count_preamble
from proxy.wire.json_values import load_lenient
from proxy.wire.messages import read_reasoning

WindowKind = Literal[
    "system",
    "tools",
    "pinned",
    "ledger",
    "summary1",
    "summary2",
    "summary3",
    "user",
    "assistant",
    "reasoning",
    "output",
    "tombstone",
    "file",
    "other",
]

_NOTES: Mapping[WindowKind, str] = {
    "system": "Instructions of the client, never edited",
    "tools": "Definitions of tools, the client's and ours",
    "pinned": "Messages that a person pinned, word for word",
    "ledger": "Lines that stand for older steps",
    "summary1": "Summaries of level 1: structured",
    "summary2": "Summaries of level 2: aggressive",
    "summary3": "Summaries of level 3: a digest that no model wrote",
    "user": "Word for word, or cut to their beginnings",
    "assistant": "What the model said, and its calls, word for word",
    "reasoning": "What it thought, where that can be read",
    "output": "Outputs of tools, word for word",
    "tombstone": "Markers that stand for outputs of tools",
    "file": "Outlines that stand for long outputs",
    "other": "What is none of these",
}
_ROLES: Mapping[str, WindowKind] = {"system": "system", "user": "user", "assistant": "assistant", "tool": "output"}
_SUMMARIES: Mapping[int, WindowKind] = {1: "summary1", 2: "summary2", 3: "summary3"}
_ORDER: tuple[WindowKind, ...] = tuple(_NOTES)
_HEAD = 200  # characters
_MOST_KNOWN = 256

Held = tuple[tuple[WindowKind, int], ...]


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


class HeldCache(LruCache[str, Held]):
    """What epochs hold back, by their ids: a page asks every few seconds, and a long history takes seconds to read."""

    def __init__(self) -> None:
        super().__init__(_MOST_KNOWN)


async def load_window(
    log: LogReader,
    prefix: str,
    inputs: SavingsInputs,
    tally: Tally,
    *,
    pinned: Collection[bytes] | None = None,
    known: HeldCache | None = None,
) -> Window:
    """Load what fills the context of the session with this prefix. Raises NotFound where nothing can be read.

    `pinned` are the nodes of its pinned messages, None if they are to be loaded, too.
    """
    session = await find_session(log, prefix)
    row = await find_newest_call(log, session)
    form = FORMATS[row.wire]
    split = read_body(row, await log.load_sent(row.id, row.rounds[-1].k))
    (newest,) = await log.load_newest((session,)) or (Newest(session),)
    epoch = await load_sent_epoch(log, row)
    written = await _name_written(log, epoch)
    staying = await _list_pinned(log, row, pinned)
    raws = list_raws(split)
    leading = _count_leading(form, raws)
    found: list[tuple[WindowKind, int]] = []
    counts = zip(raws, await tally(row.model, raws), await _count_reasoning(row, raws, tally), strict=True)
    for place, (raw, count, thought) in enumerate(counts):
        kind: WindowKind = "system" if place < leading else find_kind(form.parse_message(raw), written)
        if raw in staying:
            kind, thought = "pinned", 0
        found += [("reasoning", min(thought, count))] if thought else []
        if count > thought:
            found.append((kind, count - thought))
    members: tuple[tuple[str, WindowKind], ...] = ((form.instructions_key, "system"), ("tools", "tools"))
    for name, kind in members:
        if name and (member := split.member(name)):
            (count,) = await tally(row.model, [b'{"role":"user","content":%b}' % member])
            found.append((kind, count))
    held = None if known is None or epoch is None else known.get(epoch.id)
    if held is None:
        held = await _list_held(log, row, epoch, tally)
        if known is not None and epoch is not None:
            known.put(epoch.id, held)
    return _describe(row, newest, inputs, found, held)


def find_kind(message: Message, written: Mapping[str, WindowKind]) -> WindowKind:
    """Return the kind of a message that was sent, given the kinds of what we wrote, by its text."""
    text = message.text
    for each in (text, *message.outputs):
        if kind := written.get(each.strip()):
            return kind
    if LEDGER_HEAD in text[:_HEAD]:
        return "ledger"
    return _ROLES.get(message.role, "other")


def _count_leading(form: Format, raws: Sequence[bytes]) -> int:
    """Return how many raw messages are the preamble. A history of thousands is not read for that."""
    return sum(1 for _ in takewhile(lambda raw: count_preamble([form.reader.read_item(raw)]), raws))


async def _list_pinned(log: LogReader, row: ExchangeRow, pinned: Collection[bytes] | None) -> frozenset[bytes]:
    """Return the pinned messages of a call, as its client sent them; none where they cannot be read."""
    nodes = pinned
    if nodes is None:
        newest = {pin.node: pin.is_on for pin in (await log.load_context(row.session)).pins}
        nodes = [node for node, is_on in newest.items() if is_on]
    if not nodes:
        return frozenset()
    try:
        history = await load_history(log, row)
    except NotFound:
        return frozenset()
    return frozenset(raw for node, raw in zip(history.nodes, history.raws, strict=False) if node in nodes)


async def _count_reasoning(row: ExchangeRow, raws: Sequence[bytes], tally: Tally) -> list[int]:
    """Return the tokens of the reasoning in each message that can be read."""
    said = [read_reasoning(value) if isinstance(value := load_lenient(raw), dict) else "" for raw in raws]
    texts = [msgspec.json.encode({"role": "assistant", "content": text}) for text in said if text]
    counts = iter(await tally(row.model, texts) if texts else ())
    return [next(counts) if text else 0 for text in said]


async def _name_written(log: LogReader, epoch: Epoch | None) -> dict[str, WindowKind]:
    """Return the kinds of the texts that an epoch has in place of messages."""
    if epoch is None:
        return {}
    levels = {each.id: each.level for each in await log.list_summaries(epoch.session)}
    found: dict[str, WindowKind] = {}
    for edit in epoch.list_edits():
        if isinstance(edit, Replaced):
            if edit.text:
                found[edit.text.strip()] = "file" if edit.kind == "file" else "tombstone"
        elif isinstance(edit, Written):
            found[edit.text.strip()] = (
                _SUMMARIES.get(levels.get(edit.report, 1), "summary1") if edit.report else "ledger"
            )
    return found


async def _list_held(log: LogReader, row: ExchangeRow, epoch: Epoch | None, tally: Tally) -> Held:
    """Return the tokens, by their kinds, of the client's messages that were not sent as they are.

    Under an epoch these are the messages that it has something else for: the same ones for as long as it lasts.
    """
    try:
        if epoch is None:
            difference = await load_difference(log, row, tally)
            sides = [side for change in difference.changes for side in change.client]
            return tuple([(_ROLES.get(side.role, "other"), side.tokens) for side in sides])
        if not epoch.depth:
            return ()
        form = FORMATS[row.wire]
        raws = list_raws(await load_body(log, row))
    except NotFound:
        return ()
    kept = {edit.place for edit in epoch.list_edits() if isinstance(edit, Kept)}
    theirs = raws[_count_leading(form, raws) :][: epoch.depth]
    held = [raw for place, raw in enumerate(theirs) if place not in kept]
    sums: dict[WindowKind, int] = {}
    roles = await asyncio.to_thread(lambda: [form.parse_message(raw).role for raw in held])
    for role, tokens in zip(roles, await tally(row.model, held), strict=True):
        kind = _ROLES.get(role, "other")
        sums[kind] = sums.get(kind, 0) + tokens
    return tuple(sums.items())


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
    # the marks of the session's own server, which may have other settings
    plan = next((each.plan for each in reversed(row.rounds) if each.plan is not None and each.plan.soft), None)
    soft = plan.soft if plan is not None else compute_soft_mark(usable, inputs.policy)
    window = plan.window if plan is not None and plan.window else card.window
    counted = sum(count for _, count in found)
    known = last.usage.input if last.usage is not None else None
    used = known or (last.plan.tokens_upstream if last.plan is not None else None) or counted
    scale = used / counted if counted else 1.0
    after = [mark for mark in ((soft, "soft mark"), (usable, "high mark")) if mark[0] > used]
    kinds = [_sum_kind(kind, found, held, scale) for kind in _ORDER]
    return Window(
        call=row.n,
        window=window,
        ceiling=inputs.policy.ceiling_tokens or usable if usable == budget.usable else usable,
        high=usable,
        soft=soft,
        low=replace(budget, usable=usable, lifted=0).compute_low_mark(0),
        output_reserve=budget.output,
        used=used,
        free=max(0, (window or usable) - used),
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
