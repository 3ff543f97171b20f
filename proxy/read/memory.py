"""What people and programs are shown of memory: items, calls of tools, bundles, and what a model would be sent.

A conversation is shown in the format of its own wire, byte for byte, or translated for another one.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from proxy.context.memory.bundle import render_bundle, render_turns
from proxy.context.memory.facts import choose_items, find_request, list_items
from proxy.context.memory.traces import pair_calls, read_turn_number
from proxy.engine.compaction.manual import ManualCompaction
from proxy.engine.compaction.preview import foresee_request
from proxy.engine.memory.path import MemoryPath, MemoryReader, find_answered, load_path
from proxy.engine.recorded.conversation import find_format, list_raws, split_whole
from proxy.engine.recorded.lookup import find_session
from proxy.model.errors import BadRequest, NotFound
from proxy.model.memory import Episodic, ItemType, MemoryBundle, RawTrace, Semantic, ToolInteraction
from proxy.read.savings import SavingsInputs
from proxy.read.window import HeldCache, Window, load_window
from proxy.wire import FORMATS
from proxy.wire.format import Format
from proxy.wire.json_values import encode_text, join_array
from proxy.wire.translation.conversations import read_instructions, translate

_UNSET = msgspec.UNSET

DEFAULT_LIMIT = 100
"""The most items of a kind that are shown, the newest, unless another number is asked for."""


class MemoryReport(msgspec.Struct, frozen=True):
    """The memory of a path: its items, the newest of each kind, and how many there are of each in all."""

    session: str
    exchange: str  # the newest one of the path
    turns: int
    is_requested: bool  # memory will be made of its turns behind the next response
    raw: tuple[RawTrace, ...]
    episodic: tuple[Episodic, ...]
    semantic: tuple[Semantic, ...]
    counts: dict[str, int]


class BundleDocument(MemoryBundle, frozen=True, kw_only=True):
    """The items that a model is shown, and their text."""

    text: str


class ConversationDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation as the members of a request of a wire; of these there are only those that the wire has."""

    session: str
    exchange: str  # the newest one of the conversation
    wire: str
    instructions: msgspec.Raw | msgspec.UnsetType = _UNSET
    system: msgspec.Raw | msgspec.UnsetType = _UNSET
    messages: msgspec.Raw | msgspec.UnsetType = _UNSET
    input: msgspec.Raw | msgspec.UnsetType = _UNSET


class SnapshotDocument(ConversationDocument, frozen=True, kw_only=True):
    """What a conversation would begin with if it were sent from memory: ids of the items, and of the turns."""

    episodic: list[str]
    semantic: list[str]
    turns: list[str]


class SendableDocument(ConversationDocument, frozen=True, kw_only=True):
    """What would be sent now; `epoch` is the id of the epoch that applies, empty if none does yet.

    `token_estimate` are its tokens, null without the messages. `window` is what fills the context of the newest call,
    by kind; null where that was erased.
    """

    epoch: str
    token_estimate: int | None = None
    window: Window | None = None


async def load_report(
    log: MemoryReader,
    prefix: str,
    *,
    kind: ItemType | None = None,
    turn: str = "",
    limit: int = DEFAULT_LIMIT,
    branch: str = "",
) -> MemoryReport:
    """Load the memory of the newest conversation of a session, or of a branch; only of a kind, or of a turn, if given.

    Raises NotFound, and BadRequest for an unknown turn.
    """
    session = await find_session(log, prefix)
    path = await load_path(log, session, branch)
    wanted = _expect_turn(path, turn) if turn else ""
    stored = await log.load_memory(session)
    items = list_items(stored, path.nodes)
    raw = [each for each in path.list_traces() if not wanted or each.turn_id == wanted]
    episodic = [each for each in items.episodic if not wanted or wanted in each.turn_ids]
    nodes = _list_nodes(path, wanted)
    semantic = [each for each in items.semantic if not wanted or nodes.intersection(each.nodes)]

    return MemoryReport(
        session=session,
        exchange=path.row.id,
        turns=len(path.turns),
        is_requested=find_request(stored),
        raw=tuple(raw[-limit:]) if kind in (None, "raw") else (),
        episodic=tuple(episodic[-limit:]) if kind in (None, "episodic") else (),
        semantic=tuple(semantic[-limit:]) if kind in (None, "semantic") else (),
        counts={"raw": len(raw), "episodic": len(episodic), "semantic": len(semantic)},
    )


async def load_tools(log: MemoryReader, prefix: str, turn: str = "", branch: str = "") -> tuple[ToolInteraction, ...]:
    """Load the calls of tools in the newest conversation of a session, with their results. Raises as `load_report`."""
    path = await load_path(log, await find_session(log, prefix), branch)
    wanted = _expect_turn(path, turn) if turn else ""
    return tuple(each for each in pair_calls(path.list_traces()) if not wanted or each.turn_id == wanted)


async def load_bundle(
    log: MemoryReader, prefix: str, max_episodic: int, max_semantic: int, branch: str = ""
) -> BundleDocument:
    """Load the items that a model would be shown, and their text. Raises NotFound."""
    session = await find_session(log, prefix)
    path = await load_path(log, session, branch)
    bundle = choose_items(list_items(await log.load_memory(session), path.nodes), max_episodic, max_semantic)
    return BundleDocument(bundle.episodic, bundle.semantic, text=render_bundle(bundle))


async def build_snapshot(
    log: MemoryReader,
    prefix: str,
    *,
    max_episodic: int,
    max_semantic: int,
    raw_tail_turns: int,
    is_text: bool = False,
    wire: str = "",
    branch: str = "",
) -> SnapshotDocument:
    """Return what a conversation would begin with if it were sent from memory now.

    These are the system prompt, a message with the bundle, the turns before the current one, as messages or as text,
    and the current turn. Raises NotFound, and BadRequest for an unknown wire.
    """
    bundle = await load_bundle(log, prefix, max_episodic, max_semantic, branch)
    text = bundle.text
    path = await load_path(log, await find_session(log, prefix), branch)
    form, tail = find_format(path.row), path.list_tail(raw_tail_turns)
    current = path.turns[-1].start if path.turns else 0
    start = tail[0].start if tail else current
    if is_text and tail:
        ids = {turn.id for turn in tail}
        recent = render_turns([trace for trace in path.list_traces() if trace.turn_id in ids])
        text, start = "\n\n".join(filter(None, (text, recent))), current
    places = _list_joined(path, start)
    ours = (form.write_message("user", encode_text(text)),) if text else ()
    return SnapshotDocument(
        session=path.row.session,
        exchange=path.row.id,
        episodic=[each.id for each in bundle.episodic],
        semantic=[each.id for each in bundle.semantic],
        turns=[turn.id for turn in (*tail, *path.turns[-1:])],
        **_describe(path, form, (*ours, *(path.raws[place] for place in places)), wire),
    )


async def load_sendable(
    log: MemoryReader,
    manual: ManualCompaction,
    prefix: str,
    inputs: SavingsInputs,
    *,
    wire: str = "",
    branch: str = "",
    has_messages: bool = True,
    known: HeldCache | None = None,
) -> SendableDocument:
    """Return what would be sent now if a client went on with a session's newest conversation that was answered.

    Raises NotFound, BadRequest for an unknown wire, and Conflict where no call was answered.
    """
    session = await find_session(log, prefix)
    try:
        pinned = (await manual.states.caches.contexts.load(session)).pinned
        window = await load_window(
            log, session, inputs, manual.states.models.counter.count_messages, pinned=pinned, known=known
        )
    except NotFound:
        window = None
    if not has_messages:  # needs no settings of the upstream, which may be gone, and not all of a long history
        row = (await load_path(log, session, branch)).row if branch else await find_answered(log, session)
        plans = [each.plan for each in row.rounds if each.plan is not None]
        epoch = plans[-1].epoch if plans else ""
        wire = wire or row.wire
        return SendableDocument(session=session, exchange=row.id, wire=wire, epoch=epoch, window=window)
    path = await _load_answered(log, session, branch)
    form = find_format(path.row)
    sent = await foresee_request(manual, path.row, path.raws[path.row.depth :])
    items = list_raws(split_whole(sent.body, form.items_key))[len(path.leading) :]
    members = _describe(path, form, items, wire)
    return SendableDocument(
        session=session,
        exchange=path.row.id,
        epoch=sent.epoch,
        token_estimate=sent.tokens,
        window=window,
        **members,
    )


async def _load_answered(log: MemoryReader, session: str, branch: str) -> MemoryPath:
    """Return the conversation that goes on: up to its newest complete answer, if no branch is named and it has one."""
    if not branch:
        try:
            return await load_path(log, session, is_whole=True)
        except NotFound:  # no call was answered
            pass
    return await load_path(log, session, branch)


def _describe(path: MemoryPath, form: Format, items: Sequence[bytes], wire: str) -> dict[str, Any]:
    """Return a conversation as the members of a request of a wire, the session's own if none is named."""
    target = form if not wire else FORMATS.get(wire)
    if target is None:
        raise BadRequest(f"wire is one of {', '.join(FORMATS)}, not {wire[:40]!r}")
    member = path.split.member(form.instructions_key) if form.instructions_key else b""
    found: dict[str, Any] = {"wire": target.name}
    if target is form:
        if member:
            found[form.instructions_key] = msgspec.Raw(member)
        return found | {form.items_key: msgspec.Raw(join_array((*path.leading, *items)))}
    made = translate(form, target, items, path.leading, read_instructions(form, member))
    if made.instructions:
        found[target.instructions_key] = msgspec.Raw(encode_text(made.instructions))
    return found | {target.items_key: msgspec.Raw(join_array(made.items))}


def _list_joined(path: MemoryPath, start: int) -> list[int]:
    """Return the places from `start` on, without late results whose calls stand before it: nobody takes these."""
    asked = {call.id for seen in path.messages[start:] for call in seen.message.calls}
    results = [(place, path.messages[place].message.results) for place in range(start, len(path.messages))]
    return [place for place, ids in results if not ids or not asked.isdisjoint(ids)]


def _expect_turn(path: MemoryPath, turn: str) -> str:
    """Return the id of a turn, given as `turn_0012` or as `12`. Raises BadRequest."""
    number = int(turn) if turn.isascii() and turn.isdigit() and len(turn) < 10 else read_turn_number(turn)
    if not 1 <= number <= len(path.turns):
        raise BadRequest(f"turn is 1 to {len(path.turns)}, or turn_0001 and so on, not {turn[:40]!r}")
    return path.turns[number - 1].id


def _list_nodes(path: MemoryPath, turn: str) -> frozenset[str]:
    places = (place for each in path.turns if each.id == turn for place in range(each.start, each.stop))
    return frozenset(path.nodes[place].hex() for place in places)
