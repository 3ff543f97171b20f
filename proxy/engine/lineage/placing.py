"""Where a request belongs: its session, and how it goes on from what is known there (PROTOCOL §2, BEHAVIOUR B1).

Rule: an id that the client sends names the session; without one a recorded answer in the request's own chain must prove
it, or one that is shown elsewhere (a client's own compaction). Where nothing proves it the request begins a session: a
conversation that is found twice does no harm, one that is given to another does.
"""

import re
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import chain, islice, pairwise

import msgspec

from proxy.engine.lineage.forest import Forest
from proxy.engine.lineage.known import SessionNodes, Traits
from proxy.engine.ports import MOST_MARKS
from proxy.model.exchange import SessionKey
from proxy.model.lineage import CallFingerprint, NodeRow, Relation, Step, name_mark
from proxy.wire.identity import Item

# Ids that some servers count up instead of drawing them, so that any two conversations are certain to have equal ones:
# `name:0` and `functions.name:3` (BEHAVIOUR B1), and just so `call_1`, `read_file_2` and `12`.
_COUNTED = re.compile(r"[\w.-]*:\d+|(?:(?:[A-Za-z]+[_.-])+|call|tool)?\d{1,4}")
_TELLING_CHARACTERS = 40
_LONG_CHARACTERS = 500
_SMALL_ANSWER = 64
_FEW_MESSAGES = 3
_ADOPTABLE_NODES = 3
_MOST_REMEMBERED = 4096
_MOST_BROUGHT = 2048
# 2 MB: the histories of two hundred tasks of an evaluation.
_MOST_SHOWN = 16_384


Likeness = tuple[bytes, bytes, bytes, str]


class LineageQuery(msgspec.Struct, frozen=True, gc=False):
    """A request as lineage sees it. `session` is the one its id names, or its own where it has none;
    `token` is its very credential, hashed. `is_trusted`: it may use what is known of the tenant (BEHAVIOUR B2).
    `previous` is the id of the stored answer that it goes on from, known or not. `until` is when, on the
    monotonic clock, it has waited for the log for long enough.

    `nodes` and `items` have one element for each message behind the preamble; `root` is the parent of the first node.
    """

    exchange: str
    session: SessionKey
    token: bytes
    traits: Traits
    root: bytes
    nodes: Sequence[bytes]
    items: Sequence[Item]
    most_output: int = 0
    previous: str = ""
    is_trusted: bool = True
    until: float = 0.0

    @property
    def tip(self) -> bytes:
        """The last node; the root where there is none."""
        return self.nodes[-1] if self.nodes else self.root

    @property
    def likeness(self) -> Likeness:
        """What a request and its retry have in common; equal first messages under other orders are other calls."""
        return self.session.tenant, self.tip, self.traits.system, self.previous

    def node_at(self, depth: int) -> bytes:
        """The node of the message at this depth, counted from 1; the root at 0."""
        return self.nodes[depth - 1] if depth else self.root


class Placement(msgspec.Struct, frozen=True, gc=False):
    """What was decided. `source`: the session of another credential that this one goes on from, and the node.

    `step` is None for a request that is not trusted: `Placing.enter` tells when the upstream has accepted it. `is_new`:
    it is the first of its session. `is_certain`: the log has said, or need not say, what it knows of it.
    """

    session: SessionKey
    step: Step | None
    source: tuple[str, bytes] | None = None
    is_new: bool = False
    is_certain: bool = True


class Strangers:
    """Histories of which the log has said that it knows nothing, so that it need not be asked again.

    That stays so until an answer is recorded that one of them shows: what is merely sent again proves nothing.
    """

    def __init__(self) -> None:
        self._shown: OrderedDict[bytes, tuple[bytes | str, ...]] = OrderedDict()
        self._showing: dict[bytes | str, set[bytes]] = {}
        self._weight = 0

    def __contains__(self, history: bytes) -> bool:
        return history in self._shown

    def add(self, history: bytes, shown: tuple[bytes | str, ...]) -> None:
        """Nothing is known of a history, nor of what it shows: the nodes and names of answers."""
        self.discard(history)
        self._shown[history] = shown
        self._weight += len(shown)
        for each in shown:
            self._showing.setdefault(each, set()).add(history)
        while self._weight > _MOST_SHOWN:
            self.discard(next(iter(self._shown)))

    def note_answer(self, told: Iterable[bytes | str]) -> None:
        """An answer was recorded: these are its nodes and names."""
        for each in told:
            for history in tuple(self._showing.get(each, ())):
                self.discard(history)

    def discard(self, history: bytes) -> None:
        """The log has to be asked again."""
        shown = self._shown.pop(history, ())
        self._weight -= len(shown)
        for each in shown:
            showing = self._showing.get(each, set())
            showing.discard(history)
            if not showing:
                self._showing.pop(each, None)

    def clear(self) -> None:
        """The same of all of them."""
        self._shown.clear()
        self._showing.clear()
        self._weight = 0


class Placing:
    """Decides from what is in memory; `lacks` tells whether the log should be asked first."""

    def __init__(self, forest: Forest) -> None:
        self._forest = forest
        self._unanswered: OrderedDict[Likeness, str] = OrderedDict()
        self._recalled: OrderedDict[bytes, None] = OrderedDict()
        self._strangers = Strangers()
        self._losses = self._resets = 0

    def lacks(self, asked: LineageQuery) -> bool:
        """Whether memory does not have the session that is named, or a message of an assistant is from nowhere."""
        if self._forest.is_complete:
            return False
        if asked.session.family:  # what it is to go on from was asked for when it was met first
            named = self._forest.get(asked.session.id)
            return named is None or named.is_partial
        known = self._prove(asked)[0] if _find_foreign(asked, 0) else None
        # One with a name may have gone the way of one without, which is to be preferred.
        is_settled = known is not None and not known.key.family
        foreign = _find_foreign(asked, known.measure(asked.nodes) if known is not None and is_settled else 0)
        if not foreign or self._is_strange(asked):
            return False
        return asked.session.tenant + foreign not in self._recalled or self._losses != self._forest.losses

    def is_unproven(self, asked: LineageQuery) -> bool:
        """Whether the request shows answers, none of which is known to be one in its own chain."""
        return not asked.session.family and bool(_find_foreign(asked, 0)) and self._prove(asked)[0] is None

    def list_undecided(self, asked: LineageQuery) -> Sequence[bytes]:
        """The nodes behind which another answer might decide where the request belongs, the deepest first.

        Those behind its deepest known answer, and the one that this was given at: another session may have it, too.
        """
        found: list[bytes] = []
        find_own, is_answered = self._forest.find_own, False
        for node in chain(islice(reversed(asked.nodes), 1, None), (asked.root,)):
            found.append(node)
            own = find_own(asked.session.tenant, node)
            is_answer = bool(own) and any(known.is_answer(node) for known in own)
            if is_answered and not is_answer:
                break
            is_answered = is_answer
        return found

    def note_recalled(self, asked: LineageQuery) -> None:
        """The log has been asked, and has said all it knows."""
        if self._losses != self._forest.losses:  # what was recalled before may have been dropped since
            self._losses = self._forest.losses
            self._recalled.clear()
        if named := self._forest.get(asked.session.id):
            named.is_partial = False
        if foreign := _find_foreign(asked, 0):
            name = asked.session.tenant + foreign  # the log speaks of what is the asking tenant's
            self._recalled[name] = None
            if self._prove(asked) == (None, None) and not self._find_witnesses(asked):
                self._strangers.add(name, _list_shown(asked))
        if len(self._recalled) > _MOST_REMEMBERED:
            self._recalled.popitem(last=False)

    def note_answer(self, nodes: Iterable[NodeRow], marks: Iterable[CallFingerprint]) -> None:
        """An answer was recorded: somebody may show it."""
        self._strangers.note_answer([*(row.node for row in nodes), *(mark.name for mark in marks)])

    def place(self, asked: LineageQuery, *, is_certain: bool = True) -> Placement:
        """Decide. Not `is_certain`: the log may know of another session to choose."""
        known, source = self._find(asked, is_certain=is_certain)
        is_new = not known.tips and not known.is_partial
        step = self.enter(asked, known) if asked.is_trusted else None
        return Placement(known.key, step, source, is_new, is_certain)

    def enter(self, asked: LineageQuery, known: SessionNodes) -> Step:
        """Where a request stands in its session, which has it from now on."""
        base, depth = known.measure(asked.nodes), len(asked.nodes)
        step = Step(
            exchange=asked.exchange,
            relation=_relate(asked, known, base),
            is_side=_is_side(asked, known, base),
            tip=asked.tip,
            depth=depth,
            base=base,
            nodes=_list_new(asked, base),
            marks=_list_brought(asked, base),
        )
        self._remember(asked, known, step)
        return step

    def note_unanswered(self, known: SessionNodes, likeness: Likeness) -> None:
        """A first request came to nothing: the next one like it is a retry, not another conversation."""
        if known.key.family or known.tips != {likeness[1]}:
            return
        self._unanswered[likeness] = known.key.id
        if len(self._unanswered) > _MOST_REMEMBERED:
            self._unanswered.popitem(last=False)

    def _find(self, asked: LineageQuery, *, is_certain: bool) -> tuple[SessionNodes, tuple[str, bytes] | None]:
        proven, source = self._prove(asked)
        if asked.session.family or not is_certain:
            known = self._forest.open(asked.session)
            known.is_partial |= not is_certain
            return known, source
        found = proven or self._join(asked)
        if found is None and (found := self._recognise(asked)):
            source = None
        return self._forest.open(asked.session if found is None else found.key), source

    def _prove(self, asked: LineageQuery) -> tuple[SessionNodes | None, tuple[str, bytes] | None]:
        """The caller's session whose recorded answer is deepest in the chain; or another's, where there is none."""
        forest, tenant, source = self._forest, asked.session.tenant, None
        depth = len(asked.nodes)
        for node in chain(reversed(asked.nodes), (asked.root,)):
            own = forest.find_own(tenant, node)
            if own and (answered := [known for known in own if known.is_answer(node)]):
                return _choose(answered, asked, depth), None
            if source is None and depth >= _ADOPTABLE_NODES and (others := forest.find_any(node)):
                # a message without a form adds no node
                is_enough = len({asked.root, *asked.nodes[:depth]}) > _ADOPTABLE_NODES
                source = (others[-1].key.id, node) if is_enough else None
            depth -= 1
        return None, source

    def _join(self, asked: LineageQuery) -> SessionNodes | None:
        if not self._unanswered:
            return None
        known = self._forest.get(self._unanswered.pop(asked.likeness, ""))
        return known if known is not None and known.tips == {asked.tip} else None

    def _is_strange(self, asked: LineageQuery) -> bool:
        """Whether the log has said that it knows nothing of a request."""
        if self._resets != self._forest.resets:
            self._resets = self._forest.resets
            self._strangers.clear()
        return asked.session.tenant + _find_foreign(asked, 0) in self._strangers

    def _recognise(self, asked: LineageQuery) -> SessionNodes | None:
        """The one session that made the calls or gave the answers which this request shows elsewhere in its chain."""
        if self._is_strange(asked):
            return None  # some that showed the same may have been dropped
        found = self._find_witnesses(asked)
        return next(iter(found.values())) if len(found) == 1 else None

    def _find_witnesses(self, asked: LineageQuery) -> dict[str, SessionNodes]:
        """Sessions that gave, each alone, something of what a request shows."""
        found: dict[str, SessionNodes] = {}
        for item in asked.items:
            for name in _name_item(item):
                bearers = self._forest.find_by_mark(asked.session.tenant, asked.session.upstream, name)
                alike = [known for known in bearers if known.marks[name].form == item.form]
                if len(alike) == 1 and alike[0].is_answer(alike[0].marks[name].node):
                    found[alike[0].key.id] = alike[0]
        return found

    def _remember(self, asked: LineageQuery, known: SessionNodes, step: Step) -> None:
        self._forest.add(known.key.id, step.nodes, step.marks)
        known.tips.add(step.tip)
        if not step.is_side:
            known.traits = asked.traits
            known.depth = step.depth
        if step.base or not step.is_side:
            known.note_way(step.tip, asked.traits, is_side=step.is_side)


def list_telling(asked: LineageQuery) -> Sequence[bytes]:
    """The nodes by which the log may know where a request comes from: none where it shows no answer."""
    return asked.nodes if _find_foreign(asked, 0) else ()


def name_unknown(asked: LineageQuery) -> list[str]:
    """The names by which the log may know what a request shows."""
    names: list[str] = []
    for item in reversed(asked.items):
        names[:0] = _name_item(item)
        if len(names) >= MOST_MARKS:
            break
    return names[-MOST_MARKS:]


def name_answer(item: Item, own_id: str, session: SessionKey) -> Sequence[str]:
    """The names by which a message of an answer may be known again; `own_id` is what the upstream stores it under.

    Nobody asks for what was said in a session that its client names: the name tells.
    """
    names = _name_calls(item) if session.family else _name_item(item)
    return [*names, name_mark(f"item:{own_id}")] if own_id else names


def _choose(namesakes: Sequence[SessionNodes], asked: LineageQuery, depth: int) -> SessionNodes:
    """Of sessions that gave the same answers: one without a name that went the same way, else no way; the newest."""
    left = [known for known in namesakes if not known.key.family] or namesakes
    for node in reversed(asked.nodes[depth:]):
        if found := [known for known in left if known.has(node)]:
            return found[-1]
    return next((known for known in reversed(left) if known.is_leaf(asked.node_at(depth))), left[-1])


def _find_foreign(asked: LineageQuery, base: int) -> bytes:
    """The deepest node of an assistant's message behind the first `base`; it stands for all before it. Else empty."""
    for item, node in zip(reversed(asked.items), islice(reversed(asked.nodes), len(asked.nodes) - base), strict=False):
        if item.role == "assistant" and item.form:
            return node
    return b""


def _list_shown(asked: LineageQuery) -> tuple[bytes | str, ...]:
    """The nodes and names of all answers that a request shows; the root, too, may be one."""
    pairs = [(item, node) for item, node in zip(asked.items, asked.nodes, strict=True) if item.role == "assistant"]
    names = [name for item, _ in pairs for name in _name_item(item)]
    return tuple(dict.fromkeys([asked.root, *(node for _, node in pairs), *names]))


def _name_item(item: Item) -> Sequence[str]:
    if item.calls or item.weight < _TELLING_CHARACTERS or item.role != "assistant" or not item.form:
        return _name_calls(item)
    return [f"form:{item.form.hex()}"]


def _name_calls(item: Item) -> Sequence[str]:
    if not item.calls or item.role != "assistant" or not item.form:
        return ()
    return [name_mark(f"call:{call}") for call in item.calls[-_MOST_BROUGHT:] if not _COUNTED.fullmatch(call)]


def _list_new(asked: LineageQuery, base: int) -> tuple[NodeRow, ...]:
    """The nodes behind the first `base`, which a client brought."""
    parents = (asked.node_at(base), *asked.nodes[base:])
    # a message without a form adds none
    return tuple([NodeRow(node, parent, False) for parent, node in pairwise(parents) if node != parent])


def _list_brought(asked: LineageQuery, base: int) -> tuple[CallFingerprint, ...]:
    """The calls behind the first `base` that were not recorded as answers, the newest of very many."""
    marks: list[CallFingerprint] = []
    for item, node in zip(reversed(asked.items), islice(reversed(asked.nodes), len(asked.nodes) - base), strict=False):
        if item.calls and len(marks) < _MOST_BROUGHT:
            marks += [CallFingerprint(name, node, item.form) for name in reversed(_name_calls(item))]
    return tuple(reversed(marks[:_MOST_BROUGHT]))


def _relate(asked: LineageQuery, known: SessionNodes, base: int) -> Relation:
    if not known.tips:
        return "root"
    if _is_compacted(asked, known, base):
        return "compaction"
    if base == 0 and not known.has(asked.root):
        return "root"
    if base == len(asked.nodes) and asked.tip in known.tips:
        return "retry"
    return "append" if known.is_leaf(asked.node_at(base)) else "branch"


def _is_compacted(asked: LineageQuery, known: SessionNodes, base: int) -> bool:
    """A shorter history with a long new text, which shares nothing with the old one but perhaps its beginning.

    Some clients keep what the user said first (codex, cline). Then what was answered there is gone, and the user goes
    on at once; behind an edit or a rewind the answer before it is still there, for it is the user's word that changes.
    """
    if not base < len(asked.nodes) < known.depth or _is_side(asked, known, base):
        return False
    fresh = asked.items[base:]
    if base and (asked.node_at(base) not in known.tips or fresh[0].role != "user"):
        return False
    return any(item.weight >= _LONG_CHARACTERS and item.role != "tool" for item in fresh)


def _is_side(asked: LineageQuery, known: SessionNodes, base: int) -> bool:
    """PROTOCOL §2: no tools where the conversation has them, or two lesser signs, of which a tiny answer is one.

    What goes on from the conversation may lack tools (its client was told so this time); beside it is what also asks
    another model or under other orders. A session's first call is the conversation, as far as anybody can tell then,
    unless all signs that there can be say otherwise: its client names a conversation, of which this has no tools, a
    message or two, and a tiny answer. If it was a title all the same, the first call with tools takes its place. Where
    a client goes on from the answer to a call beside the conversation, that has become one.
    """
    before, now = _find_traits(asked, known, base), asked.traits
    is_tiny, is_short = 0 < asked.most_output <= _SMALL_ANSWER, len(asked.nodes) <= _FEW_MESSAGES
    if before is None:
        return is_tiny and is_short and not (base or now.has_tools) and bool(asked.session.family)
    if now.has_tools and not before.has_tools:
        return False
    lacks_tools = before.has_tools and not now.has_tools
    is_other = [now.model != before.model, now.system != before.system]
    if base:
        return lacks_tools and any(is_other)
    lesser = [*is_other, before.is_stream and not now.is_stream, is_short, is_tiny]
    return lacks_tools or sum(lesser) >= 2


def _find_traits(asked: LineageQuery, known: SessionNodes, base: int) -> Traits | None:
    """Those of the request from whose answer this one goes on; where nobody knows that, of the conversation."""
    for depth in range(base - 1, 0, -1):
        traits = known.get_way(asked.node_at(depth))
        if traits is not None and known.is_answer(asked.node_at(depth + 1)):
            return traits
    return known.traits
