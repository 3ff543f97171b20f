"""What was sent upstream compared with what the client sent, message by message, from the recorded bytes."""

import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial

import msgspec

from proxy.context.memory.traces import fit_text
from proxy.engine.ports import LogReader
from proxy.engine.recorded.conversation import find_format, list_raws, read_body
from proxy.model.errors import NotFound
from proxy.model.log import ExchangeRow
from proxy.model.messages import Message
from proxy.read.context import PlanDocument, describe_plan
from proxy.wire import FORMATS
from proxy.wire.body import SplitBody
from proxy.wire.identity import count_preamble

Tally = Callable[[str, Sequence[bytes]], Awaitable[Sequence[int]]]
"""Counts the tokens of each message, for a model."""

# Characters from which on two texts with the same beginning are the same one, shortened.
_SAME_BEGINNING = 40
_REFERENCE = re.compile(r"\bref:([a-z0-9]{10})\b")


class SideDocument(msgspec.Struct, frozen=True):
    """A message that the client sent and that was replaced."""

    role: str
    tokens: int
    text: str
    calls: tuple[str, ...]


class SentDocument(SideDocument, frozen=True):
    """A message that was sent in place of others, with the references in it."""

    references: list[str]


class ChangeDocument(msgspec.Struct, frozen=True):
    """A run of the client's messages, from `start` up to `stop` after the preamble, and what was sent in its place."""

    start: int
    stop: int
    client: list[SideDocument]
    sent: list[SentDocument]


class MemberDocument(msgspec.Struct, frozen=True):
    """Another member of the body that differs, as raw JSON; null where a side does not have it."""

    name: str
    client: str | None
    sent: str | None


class DifferenceDocument(msgspec.Struct, frozen=True):
    """What was sent in round `k` of call `n`, compared with what the client sent.

    `messages` is how many messages the client sent after the preamble, `kept` how many of these were sent unchanged;
    both are 0 where nothing was modified.
    """

    session: str
    n: int
    k: int
    is_modified: bool
    plan: PlanDocument | None
    messages: int
    kept: int
    members: list[MemberDocument]
    changes: list[ChangeDocument]


async def load_difference(log: LogReader, row: ExchangeRow, tally: Tally, k: int | None = None) -> DifferenceDocument:
    """Compare round k of an exchange, or its last. Raises NotFound."""
    rounds = {each.k: each for each in row.rounds}
    found = rounds.get(max(rounds, default=0) if k is None else k)
    if found is None:
        raise NotFound(f"exchange {row.n} has no such round; it has {len(rounds) or 'none'}")
    request, sent = await log.load_request(row.id), await log.load_sent(row.id, found.k)
    plan = describe_plan(found.plan)
    same = DifferenceDocument(row.session, row.n, found.k, False, plan, 0, 0, [], [])
    if request == sent:
        return same
    form, client, upstream = find_format(row), read_body(row, request), read_body(row, sent)
    if client.content == upstream.content:
        return same
    theirs, ours = list_raws(client), list_raws(upstream)
    count = count_preamble(form.read_items(client.content, client.items))
    changes = await compare_messages(row.wire, theirs, ours, partial(tally, row.model), count)
    kept = len(theirs) - sum(b - a for a, b, _, _ in align(theirs, ours)) - count
    members = list(_compare_members(client, upstream, form.items_key))
    return DifferenceDocument(row.session, row.n, found.k, True, plan, len(theirs) - count, kept, members, changes)


def align(client: Sequence[bytes], sent: Sequence[bytes]) -> list[tuple[int, int, int, int]]:
    """Return the runs that differ, each as start and stop among the client's messages, then among those sent.

    The common prefix and suffix are equal; in between, each message that was sent is matched with the next equal one of
    the client's, if there is one, so that matches never cross.
    """
    head = _count_equal(client, sent)
    tail = _count_equal(client[head:][::-1], sent[head:][::-1])
    stop, end = len(client) - tail, len(sent) - tail
    runs, at, begin = [], head, head
    for j in range(head, end):
        found = next((i for i in range(at, stop) if client[i] == sent[j]), None)
        if found is None:
            continue
        if found > at or j > begin:
            runs.append((at, found, begin, j))
        at, begin = found + 1, j + 1
    if stop > at or end > begin:
        runs.append((at, stop, begin, end))
    return runs


def pair_messages(client: Sequence[Message], sent: Sequence[Message]) -> Iterator[tuple[int, int, int, int]]:
    """Yield the edits of a run that differs, as `align` does its runs.

    A message that stands for one of the client's, since it has the result of the same call or begins like it, is an
    edit of its own. What lies between two of these is one edit.
    """
    at = begin = 0
    for j, ours in enumerate(sent):
        found = next((i for i in range(at, len(client)) if _stands_for(ours, client[i])), None)
        if found is None:
            continue
        if found > at or j > begin:
            yield at, found, begin, j
        yield found, found + 1, j, j + 1
        at, begin = found + 1, j + 1
    if len(client) > at or len(sent) > begin:
        yield at, len(client), begin, len(sent)


def _stands_for(sent: Message, client: Message) -> bool:
    if sent.role != client.role:
        return False
    if sent.results or client.results:
        return sent.results == client.results
    is_same = sent.text == client.text and _name_calls(sent) == _name_calls(client)
    return is_same or _count_equal(sent.text, client.text) >= _SAME_BEGINNING


async def compare_messages(
    wire: str,
    theirs: Sequence[bytes],
    ours: Sequence[bytes],
    tally: Callable[[Sequence[bytes]], Awaitable[Sequence[int]]],
    leading: int = 0,
) -> list[ChangeDocument]:
    """Compare raw messages that were sent with the client's, whose first `leading` ones have no place."""
    runs, parse = align(theirs, ours), FORMATS[wire].parse_message
    tokens = iter(await tally([raw for a, b, c, d in runs for raw in (*theirs[a:b], *ours[c:d])]))
    changes = []
    for a, b, c, d in runs:
        left, right = ([parse(raw) for raw in raws] for raws in (theirs[a:b], ours[c:d]))
        gone = [SideDocument(*_list_facts(each, next(tokens))) for each in left]
        put = [
            SentDocument(*_list_facts(each, next(tokens)), list(dict.fromkeys(_REFERENCE.findall(each.text))))
            for each in right
        ]
        for start, stop, begin, end in pair_messages(left, right):
            first, last = a + start - leading, a + stop - leading
            changes.append(ChangeDocument(first, last, gone[start:stop], put[begin:end]))
    return changes


def _compare_members(client: SplitBody, sent: SplitBody, key: str) -> Iterator[MemberDocument]:
    for name in dict.fromkeys((*client.members, *sent.members)):
        if name != key and client.member(name) != sent.member(name):
            yield MemberDocument(name, _decode(client.member(name)), _decode(sent.member(name)))


def _count_equal(one: Sequence[object], other: Sequence[object]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _list_facts(message: Message, tokens: int) -> tuple[str, int, str, tuple[str, ...]]:
    return fit_text(message.role), tokens, fit_text(message.text), tuple(map(fit_text, _name_calls(message)))


def _name_calls(message: Message) -> list[str]:
    return [call.name for call in message.calls]


def _decode(raw: bytes) -> str | None:
    return raw.decode("utf-8", "replace") if raw else None
