"""The items of memory that count on a path, and which of them a model is shown.

Equal facts are one. A newer fact replaces an older one if it says so, or if both give one subject different values.
What only a tool or a model claims never replaces what the user said.
"""

import re
from collections.abc import Iterator, Sequence

import msgspec

from proxy.model.memory import (
    CLAIMED,
    Episodic,
    LearnedFact,
    MemoryBundle,
    Remembered,
    Semantic,
    StoredMemory,
)

PINNED = "pinned"
"""The tag of an item that a person has pinned."""

_WORD = re.compile(r"\w+")
_VALUE = re.compile(
    r"(?P<subject>.{2,119}?\S)(?:\s*+[:=]\s*+|\s++(?:is|are|was|were|becomes|moved to)\s++)(?P<value>\S{1,80})"
)
_REPLACED_SHARE = 0.7
_LEAST_REPLACED_WORDS = 3


class _LiveFact(msgspec.Struct, gc=False):
    """A fact that counts, and the key of what equal ones have in common."""

    item: Semantic
    key: tuple[str, ...]
    subject: tuple[str, ...]


def is_on_path(entry: Remembered, nodes: Sequence[bytes]) -> bool:
    """Return whether a path contains the whole span of an entry."""
    return 0 <= entry.start < entry.stop <= len(nodes) and nodes[entry.stop - 1] == entry.last


def format_turn(number: int) -> str:
    """Return the id of a turn."""
    return f"turn_{number:04}"


def format_episode(number: int) -> str:
    """Return the id of a report."""
    return f"ep_{number:04}"


def format_fact(number: int) -> str:
    """Return the id of a fact."""
    return f"sem_{number:04}"


def list_items(memory: StoredMemory, nodes: Sequence[bytes]) -> MemoryBundle:
    """Return all items that count on a path, reports in the order of their spans, facts as they were made."""
    since = max((number for number, order in memory.orders if order.kind == "reset"), default=-1)
    entries = [(n, entry) for n, entry in memory.entries if n > since and is_on_path(entry, nodes)]
    orders = _Orders(memory)
    return MemoryBundle(tuple(_list_reports(entries, orders)), tuple(_list_facts(entries, orders)))


def list_spans(memory: StoredMemory, nodes: Sequence[bytes]) -> list[tuple[int, int]]:
    """Return from which place up to which the reports of a path that count cover it."""
    shown = {item.id for item in list_items(memory, nodes).episodic}
    entries = [entry for _, entry in memory.entries if is_on_path(entry, nodes)]
    return [(entry.start, entry.stop) for entry in entries if format_episode(entry.number) in shown]


def choose_items(items: MemoryBundle, max_episodic: int, max_semantic: int) -> MemoryBundle:
    """Return the newest reports, oldest first, and the facts that come first by salience, then recency, then id."""
    pinned = [each for each in items.episodic if PINNED in each.tags]
    others = [each for each in items.episodic if PINNED not in each.tags]
    room = max(0, max_episodic)
    chosen = [*pinned[-room:], *others[len(others) - max(0, room - len(pinned)) :]] if room else []
    ids = {each.id for each in chosen}
    ranked = sorted(items.semantic, key=lambda each: (-each.salience, -each.ts, each.id))
    return MemoryBundle(tuple(each for each in items.episodic if each.id in ids), tuple(ranked[: max(0, max_semantic)]))


def find_request(memory: StoredMemory) -> bool:
    """Return whether memory is to be made of the session behind its next response."""
    asked = [order.kind for _, order in memory.orders if order.kind in ("request", "clear", "reset")]
    return bool(asked) and asked[-1] == "request"


def count_items(memory: StoredMemory) -> tuple[int, int]:
    """Return the highest numbers of reports and of facts so far, whatever path they are of."""
    reports = max((entry.number for _, entry in memory.entries), default=0)
    facts = max((entry.first_fact + len(entry.facts) - 1 for _, entry in memory.entries), default=0)
    return reports, max(0, facts)


class _Orders:
    """What was ordered about items. Who retracts a fact means all equal ones that were stated until then."""

    def __init__(self, memory: StoredMemory) -> None:
        self._pinned: dict[str, bool] = {}
        self._retracted: dict[str, int] = {}
        self._unsaid: dict[tuple[str, ...], int] = {}
        for number, order in memory.orders:
            if order.kind == "retract":
                self._retracted[order.item] = number
            if order.kind in ("pin", "unpin", "retract"):
                self._pinned[order.item] = order.kind == "pin"
        for _, entry in memory.entries if self._retracted else ():
            for id, fact in _list_numbered(entry):
                key, at = _list_words(fact.text), self._retracted.get(id, 0)
                self._unsaid[key] = max(at, self._unsaid.get(key, 0))

    def is_pinned(self, id: str) -> bool:
        """Return whether an item is pinned."""
        return self._pinned.get(id, False)

    def is_retracted(self, id: str) -> bool:
        """Return whether an item is retracted."""
        return id in self._retracted

    def is_unsaid(self, fact: LearnedFact, number: int) -> bool:
        """Return whether a fact of the record with this number, or an equal one, was retracted after it."""
        return bool(self._unsaid) and number < self._unsaid.get(_list_words(fact.text), 0)


def _list_numbered(entry: Remembered) -> Iterator[tuple[str, LearnedFact]]:
    """Yield the facts of an entry with their ids."""
    for number, fact in enumerate(entry.facts, entry.first_fact):
        yield format_fact(number), fact


def _list_reports(entries: Sequence[tuple[int, Remembered]], orders: _Orders) -> Iterator[Episodic]:
    """Yield reports in the order of their spans, without those of which a newer one covers the whole span."""
    shown: list[Remembered] = []
    for _, entry in reversed(entries):
        is_covered = any(each.start <= entry.start and entry.stop <= each.stop for each in shown)
        if not is_covered and not orders.is_retracted(format_episode(entry.number)):
            shown.append(entry)
    for entry in sorted(shown, key=lambda each: (each.stop, each.start)):
        id = format_episode(entry.number)
        is_pinned = orders.is_pinned(id)
        turns = tuple(map(format_turn, range(entry.first_turn, entry.last_turn + 1)))
        tags = (*entry.tags, *((f"ref:{entry.report}",) if entry.report else ()), *((PINNED,) if is_pinned else ()))
        yield Episodic(id, entry.made_ms / 1000, turns, entry.summary, tags, 1.0 if is_pinned else entry.salience)


def _list_facts(entries: Sequence[tuple[int, Remembered]], orders: _Orders) -> Iterator[Semantic]:
    live: dict[tuple[str, ...], _LiveFact] = {}
    for number, entry in entries:
        for id, fact in _list_numbered(entry):
            if not orders.is_unsaid(fact, number):
                _add_fact(live, _make_fact(id, entry, fact, is_pinned=orders.is_pinned(id)), fact.replaces)
    for each in live.values():
        yield each.item


def _make_fact(id: str, entry: Remembered, fact: LearnedFact, *, is_pinned: bool) -> Semantic:
    return Semantic(
        id=id,
        ts=entry.made_ms / 1000,
        fact=fact.text,
        tags=(*fact.tags, *((PINNED,) if is_pinned else ())),
        confidence=fact.confidence,
        salience=1.0 if is_pinned else fact.salience,
        kind=fact.kind,
        nodes=tuple(node.hex() for node in fact.nodes),
    )


def _add_fact(live: dict[tuple[str, ...], _LiveFact], new: Semantic, replaces: str) -> None:
    """Add a fact to those that count: as part of an equal one, or in place of those that it replaces."""
    key, subject = _list_words(new.fact), _find_subject(new)
    if (old := live.get(key)) is not None:
        old.item = _merge(old.item, new)
        return
    gone = [each for each in live.values() if _is_replaced(each, new, subject, _list_words(replaces))]
    ids: list[str] = []
    for each in gone:
        del live[each.key]
        ids += (*each.item.supersedes, each.item.id)
    live[key] = _LiveFact(msgspec.structs.replace(new, supersedes=tuple(ids)), key, subject)


def _merge(old: Semantic, new: Semantic) -> Semantic:
    """Return one fact for two equal ones: the older id, the newer time, and the better evidence."""
    best = old if CLAIMED not in old.tags or CLAIMED in new.tags else new
    tags = dict.fromkeys((*old.tags, *new.tags))
    if CLAIMED not in best.tags:
        tags.pop(CLAIMED, None)
    nodes = (*old.nodes, *new.nodes) if (CLAIMED in old.tags) == (CLAIMED in new.tags) else best.nodes
    return Semantic(
        id=old.id,
        ts=max(old.ts, new.ts),
        fact=best.fact,
        tags=tuple(tags),
        confidence=max(old.confidence, new.confidence) if best is old else new.confidence,
        salience=max(old.salience, new.salience),
        kind=best.kind,
        nodes=tuple(dict.fromkeys(nodes)),
        supersedes=old.supersedes,
    )


def _is_replaced(old: _LiveFact, new: Semantic, subject: tuple[str, ...], quoted: tuple[str, ...]) -> bool:
    if CLAIMED in new.tags and CLAIMED not in old.item.tags:
        return False
    if len(quoted) >= _LEAST_REPLACED_WORDS:
        known = set(old.key)
        if sum(word in known for word in quoted) >= _REPLACED_SHARE * max(len(quoted), len(old.key)):
            return True
    return bool(subject) and subject == old.subject


def _find_subject(item: Semantic) -> tuple[str, ...]:
    """Return the words of the subject that a fact gives a value of one word; none if it is no such fact, or a rule."""
    found = _VALUE.fullmatch(item.fact.strip().rstrip(".!")) if item.kind != "constraint" else None
    return _list_words(found["subject"]) if found is not None else ()


def _list_words(text: str) -> tuple[str, ...]:
    return tuple(_WORD.findall(text.casefold()))
