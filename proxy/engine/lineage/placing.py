"""Where a request belongs: its session, and how it goes on from what is known there (PROTOCOL §2, BEHAVIOUR B1).

Rule: an id that the client sends names the session; without one a recorded answer in the request's own chain must prove
it. Where nothing proves it the request begins a session: a conversation that is found twice does no harm, one that is
given to another does.
"""

import re
from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from proxy.engine.lineage.forest import Forest
from proxy.engine.lineage.known import Known, Traits
from proxy.model.exchange import SessionKey
from proxy.model.lineage import Mark, NodeRow, Relation, Step, name_mark
from proxy.wire.identity import Item

# Ids that some servers count up instead of drawing them: `name:0`, `functions.name:3`.
_COUNTED = re.compile(r"(?:functions\.)?[\w.-]*:\d+")
_TELLING_CHARACTERS = 40
_LONG_CHARACTERS = 500
_SMALL_ANSWER = 64
_FEW_MESSAGES = 3
_ADOPTABLE_NODES = 3
_MOST_REMEMBERED = 4096
_MOST_NAMES = 64


class Asked(msgspec.Struct, frozen=True, gc=False):
    """A request as lineage sees it. `session` is the one its id names, or its own where it has none;
    `token` is its very credential, hashed.

    `nodes` has one element for each message behind the preamble; `fresh` are the messages from `start` on, which is
    where the bytes that were seen before end. `root` is the parent of the first node.
    """

    exchange: str
    session: SessionKey
    token: bytes
    traits: Traits
    root: bytes
    nodes: Sequence[bytes]
    fresh: Sequence[Item]
    start: int = 0
    most_output: int = 0

    @property
    def tip(self) -> bytes:
        """The last node; the root where there is none."""
        return self.nodes[-1] if self.nodes else self.root


class Place(msgspec.Struct, frozen=True, gc=False):
    """What was decided. `source`: the session of another credential that this one goes on from, and the node."""

    session: SessionKey
    step: Step
    source: tuple[str, bytes] | None = None


class Placing:
    """Decides from what is in memory; `lacks` tells whether the log should be asked first."""

    def __init__(self, forest: Forest) -> None:
        self._forest = forest
        self._unanswered: OrderedDict[bytes, Known] = OrderedDict()
        self._recalled: OrderedDict[bytes, None] = OrderedDict()

    def lacks(self, asked: Asked) -> bool:
        """Whether the request holds an assistant's message that nothing in memory accounts for."""
        if self._forest.is_complete:
            return False
        known = self._forest.get(asked.session.id) if asked.session.family else self._prove(asked)[0]
        base = known.measure(asked.nodes) if known is not None else 0
        return base < asked.start or any(node not in self._recalled for node in _list_foreign(asked, base))

    def note_recalled(self, asked: Asked) -> None:
        """The log has been asked, and has said all it knows."""
        for node in _list_foreign(asked, 0):
            self._recalled[node] = None
        while len(self._recalled) > _MOST_REMEMBERED:
            self._recalled.popitem(last=False)

    def place(self, asked: Asked) -> Place:
        """Decide, and remember what was decided."""
        known, source = self._find(asked)
        base = known.measure(asked.nodes)
        step = Step(
            exchange=asked.exchange,
            relation=_relate(asked, known, base),
            is_side=_is_side(asked, known, base),
            tip=asked.tip,
            depth=len(asked.nodes),
            base=base,
            nodes=tuple(_list_new(asked, known, base)),
            marks=tuple(_list_marks(asked, base)),
        )
        self._remember(asked, known, step)
        return Place(known.key, step, source)

    def note_unanswered(self, known: Known, tip: bytes) -> None:
        """A first request came to nothing: the next one like it is a retry, not another conversation."""
        if known.key.family or known.tips != {tip} or not known.is_leaf(tip):
            return
        self._unanswered[tip] = known
        if len(self._unanswered) > _MOST_REMEMBERED:
            self._unanswered.popitem(last=False)

    def _find(self, asked: Asked) -> tuple[Known, tuple[str, bytes] | None]:
        proven, source = self._prove(asked)
        if asked.session.family:
            known = self._forest.open(asked.session)
            return known, None if known.measure(asked.nodes) else source
        found = proven or self._join(asked) or self._recognise(asked)
        if found is not None:
            return self._forest.open(found.key), None
        return self._forest.open(asked.session), source

    def _prove(self, asked: Asked) -> tuple[Known | None, tuple[str, bytes] | None]:
        """The caller's session whose recorded answer is deepest in the chain; or another's, where there is none."""
        source = None
        for count in range(len(asked.nodes), 0, -1):
            node = asked.nodes[count - 1]
            namesakes = self._forest.find_by_node(node)
            own = [known for known in namesakes if known.key.tenant == asked.session.tenant]
            if own:
                return next((known for known in reversed(own) if known.is_leaf(node)), own[-1]), None
            if namesakes and source is None and count >= _ADOPTABLE_NODES:
                source = (namesakes[-1].key.id, node)
        return None, source

    def _join(self, asked: Asked) -> Known | None:
        known = self._unanswered.pop(asked.tip, None)
        if known is None or known.key.tenant != asked.session.tenant:
            return None
        return known

    def _recognise(self, asked: Asked) -> Known | None:
        """The one session that made the calls or gave the answers which this request shows elsewhere in its chain."""
        votes: dict[str, int] = {}
        for item in asked.fresh:
            for name in _name_item(item):
                bearers = [
                    known
                    for known in self._forest.find_by_mark(name)
                    if known.key.tenant == asked.session.tenant
                    and known.key.upstream == asked.session.upstream
                    and known.marks[name].form == item.form
                ]
                if len(bearers) == 1:
                    votes[bearers[0].key.id] = votes.get(bearers[0].key.id, 0) + 1
        return self._forest.get(max(votes, key=lambda session: votes[session])) if len(votes) == 1 else None

    def _remember(self, asked: Asked, known: Known, step: Step) -> None:
        self._forest.add(known, step.nodes, step.marks)
        known.tips.add(step.tip)
        if not step.is_side:
            known.traits = asked.traits
            known.depth = step.depth


def name_unknown(asked: Asked) -> list[str]:
    """The names by which the log may know what a request shows."""
    return [name for item in asked.fresh for name in _name_item(item)][-_MOST_NAMES:]


def name_answer(item: Item, own_id: str) -> list[str]:
    """The names by which a message of an answer may be known again; `own_id` is what the upstream stores it under."""
    return [*_name_item(item), *([name_mark(f"item:{own_id}")] if own_id and item.form else [])]


def _list_foreign(asked: Asked, base: int) -> list[bytes]:
    """The nodes of assistant messages behind the first `base`, as far as they are fresh."""
    first = max(0, base - asked.start)
    pairs = zip(asked.fresh[first:], asked.nodes[asked.start + first :], strict=True)
    return [node for item, node in pairs if item.role == "assistant" and item.form]


def _name_item(item: Item) -> list[str]:
    if item.role != "assistant" or not item.form:
        return []
    names = [name_mark(f"call:{call}") for call in item.calls if not _COUNTED.fullmatch(call)]
    if not item.calls and item.weight >= _TELLING_CHARACTERS:
        names.append(f"form:{item.form.hex()}")
    return names


def _list_new(asked: Asked, known: Known, base: int) -> list[NodeRow]:
    rows = []
    parent = asked.nodes[base - 1] if base else asked.root
    for node in asked.nodes[base:]:
        if node != parent:  # a message without a form adds none
            rows.append(NodeRow(node, parent, False))
        parent = node
    return rows


def _list_marks(asked: Asked, base: int) -> list[Mark]:
    """Calls that a client shows and that were not recorded as answers: the client brought them along."""
    marks = []
    for offset, item in enumerate(asked.fresh):
        at = asked.start + offset
        if at >= base:
            marks += [Mark(name, asked.nodes[at], item.form) for name in _name_item(item) if name[0] == "c"]
    return marks


def _relate(asked: Asked, known: Known, base: int) -> Relation:
    if not known.tips:
        return "root"
    if base == 0:
        return "compaction" if _is_compacted(asked, known) else "root"
    if base == len(asked.nodes):
        return "retry" if asked.tip in known.tips else "branch"
    return "append" if known.is_leaf(asked.nodes[base - 1]) else "branch"


def _is_compacted(asked: Asked, known: Known) -> bool:
    is_shorter = 0 < len(asked.nodes) < known.depth
    return is_shorter and not _is_side(asked, known, 0) and any(i.weight >= _LONG_CHARACTERS for i in asked.fresh)


def _is_side(asked: Asked, known: Known, base: int) -> bool:
    """PROTOCOL §2: no tools where the conversation has them, or a tiny answer, or two lesser signs."""
    before = known.traits
    if before is None:
        return 0 < asked.most_output <= _SMALL_ANSWER
    now = asked.traits
    lesser = [
        now.model != before.model,
        now.system != before.system,
        before.is_stream and not now.is_stream,
        base == 0 and len(asked.nodes) <= _FEW_MESSAGES,
    ]
    lacks_tools = before.has_tools and not now.has_tools
    if base:
        return lacks_tools and any(lesser)
    return lacks_tools or 0 < asked.most_output <= _SMALL_ANSWER or sum(lesser) >= 2
