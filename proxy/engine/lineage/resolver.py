"""How a session is recognised, and how a request extends what is known of it.

An id that the client sends names the session. Without one, a recorded answer in the request's own chain of messages
must prove where it belongs or, after a client's own compaction, an answer that it contains elsewhere. A request without
proof begins a session: splitting a conversation in two does no harm, mixing two conversations does. The same history
again, of a conversation that is under way, is no other one: its answers are siblings in the session that it began.
"""

import re
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from typing import NamedTuple

import msgspec

from proxy.engine.lineage.session_index import REWRITES, SessionIndex, SessionNodes, Traits
from proxy.engine.ports import MOST_FINGERPRINTS
from proxy.model.exchange import SessionKey
from proxy.model.lineage import (
    LONGEST_TAIL,
    CallFingerprint,
    Lineage,
    NodeRow,
    Relation,
    count_shared_nodes,
    name_fingerprint,
)
from proxy.model.lru import LruCache
from proxy.wire.identity import Item

# Call ids that some servers number instead of drawing them at random, so that any two conversations have equal ones:
# `name:0` and `functions.name:3`, also `call_1`, `read_file_2` and `12`.
_COUNTED = re.compile(r"[\w.-]*:\d+|(?:(?:[A-Za-z]+[_.-])+|call|tool)?\d{1,4}")
# An answer with this much text is evidence by itself. An answer with a tool call is evidence by the call's id.
_TELLING_CHARACTERS = 40
_LONG_CHARACTERS = 500
_SMALL_OUTPUT_TOKENS = 64
_FEW_MESSAGES = 3
_ADOPTABLE_NODES = 3
_MOST_REMEMBERED = 4096
_MOST_BROUGHT = 2048
# 2 MB: the histories of two hundred tasks of an evaluation.
_MOST_SHOWN = 16_384
# A prompt may begin with so many answers that are examples.
_MOST_EXAMPLES = 16
# So many further nodes has a session at most when an equal history joins it, since all of a session is in memory.
MOST_SIBLINGS = 2048


Likeness = tuple[bytes, bytes, bytes, str]


class LineageQuery(msgspec.Struct, frozen=True, gc=False):
    """The parts of a request from which its session is recognised.

    `nodes` and `items` have one element for each message after the preamble.
    """

    exchange: str
    session: SessionKey  # the one that its id names, or a new one if it has no id
    token: bytes  # hash of its credential
    traits: Traits
    root: bytes  # the parent of the first node
    nodes: Sequence[bytes]
    items: Sequence[Item]
    most_output: int = 0
    previous: str = ""  # id of the stored answer that it extends, known or not
    is_trusted: bool = True  # it may use what is known of the tenant
    until: float = 0.0  # the end of its waits for the log, on the monotonic clock
    is_aside: bool = False  # it says itself that it is a side call
    is_whole: bool = False  # its body was made here, with all of its history, so that it is no side call

    @property
    def likeness(self) -> Likeness:
        """Return what a request and its retry have in common. The same messages with another preamble differ."""
        tip = self.nodes[-1] if self.nodes else self.root
        return self.session.tenant, tip, self.traits.system, self.previous

    def node_at(self, depth: int) -> bytes:
        """Return the node of the message at this depth, counted from 1. Depth 0 is the root."""
        return self.nodes[depth - 1] if depth else self.root


class Proof(NamedTuple):
    """The result of a request's own chain as proof: the session that it belongs to, if known.

    Otherwise `origin` may name a session of another credential that it extends, and the last node that it shares.
    """

    known: SessionNodes | None
    origin: tuple[str, bytes] | None = None


class Placement(msgspec.Struct, frozen=True, gc=False):
    """The place of a request in its session. `known` is what memory has of the session; `origin` is as in `Proof`.

    `lineage` is None for a request that is not trusted: `record_request` makes it once the upstream has accepted it.
    `is_new`: it is the first of its session, and continues no other. `is_certain`: the log was asked about it, or need
    not be.
    """

    session: SessionKey
    known: SessionNodes
    lineage: Lineage | None
    origin: tuple[str, bytes] | None = None
    is_new: bool = False
    is_certain: bool = True


class UnknownHistories:
    """Histories that are not in the log, so that it need not be asked for them again.

    A history stays here until an answer that it contains is recorded. A repeated request proves nothing.
    """

    def __init__(self) -> None:
        self._shown: LruCache[bytes, tuple[bytes | str, ...]] = LruCache(
            _MOST_SHOWN, weigh=lambda _, shown: len(shown), on_evict=self._unlink
        )
        self._showing: dict[bytes | str, set[bytes]] = {}

    def __contains__(self, history: bytes) -> bool:
        return self._shown.peek(history) is not None

    def add(self, history: bytes, shown: tuple[bytes | str, ...]) -> None:
        """Record that the log has neither a history nor the answers it contains, given by their nodes and names."""
        self._remove(history)
        for each in shown:
            self._showing.setdefault(each, set()).add(history)
        self._shown.put(history, shown)

    def record_answer(self, nodes: Iterable[NodeRow], fingerprints: Iterable[CallFingerprint]) -> None:
        """Remove the histories that contain an answer which was just recorded."""
        if not self._showing:
            return
        answered: list[bytes | str] = [
            *(row.node for row in nodes),
            *(fingerprint.name for fingerprint in fingerprints),
        ]
        for each in answered:
            for history in tuple(self._showing.get(each, ())):
                self._remove(history)

    def clear(self) -> None:
        """Remove all histories."""
        self._shown.clear()
        self._showing.clear()

    def _remove(self, history: bytes) -> None:
        shown = self._shown.pop(history)
        if shown is not None:
            self._unlink(history, shown)

    def _unlink(self, history: bytes, shown: tuple[bytes | str, ...]) -> None:
        for each in shown:
            showing = self._showing.get(each, set())
            showing.discard(history)
            if not showing:
                self._showing.pop(each, None)


class SessionResolver:
    """Decides from what is in memory. `needs_log` tells whether the log must be asked first."""

    def __init__(self, index: SessionIndex) -> None:
        self._index = index
        self._unanswered = LruCache[Likeness, str](_MOST_REMEMBERED)
        self._begun = LruCache[tuple[Likeness, Traits], str](_MOST_REMEMBERED)
        self._recalled = LruCache[bytes, bool](_MOST_REMEMBERED)
        self._unknown = UnknownHistories()
        self._losses = self._resets = 0

    def prove(self, query: LineageQuery) -> Proof:
        """Return the caller's session whose recorded answer is deepest in the chain, or another caller's session."""
        index, nodes = self._index, query.nodes
        sessions, depth = index.find_answered(query.session.tenant, nodes, query.root)
        if sessions:
            return Proof(sessions[0] if len(sessions) == 1 else _choose_namesake(sessions, query, depth))
        shared = index.find_shared(nodes, _ADOPTABLE_NODES)
        if shared is None:
            return _NO_PROOF
        known, depth = shared
        # A message without a form adds no node.
        is_enough = len({query.root, *nodes[:depth]}) > _ADOPTABLE_NODES
        return Proof(None, (known.key.id, query.node_at(depth)) if is_enough else None)

    def needs_log(self, query: LineageQuery, proof: Proof) -> bool:
        """Return whether memory lacks the named session, or the origin of an assistant's message.

        The log is asked for a named session at its first request, together with what it may extend.
        """
        index, tenant = self._index, query.session.tenant
        if index.is_complete:
            return False
        if query.session.family:
            named = index.get(query.session.id)
            return named is None or named.is_partial
        last = _find_last_assistant(query, 0)
        if not last or self._is_unknown(tenant + last):
            return False
        # A request that extends a named session may also extend an unnamed one, which takes precedence.
        if proof.known is not None and not proof.known.key.family:
            last = _find_last_assistant(query, proof.known.measure(query.nodes))
            if not last:
                return False
        return tenant + last not in self._recalled or self._losses != index.losses

    def is_unproven(self, query: LineageQuery) -> bool:
        """Return whether the request contains answers, but none in its own chain is known."""
        is_shown = not query.session.family and bool(_find_last_assistant(query, 0))
        return is_shown and self.prove(query).known is None

    def list_undecided(self, query: LineageQuery) -> Sequence[bytes]:
        """Return the nodes after which another answer might decide where the request belongs, the deepest first.

        These are the nodes after its deepest known answer, and the node to which that was given, since another session
        may have the same answer.
        """
        found: list[bytes] = []
        find_own, is_answered = self._index.find_own, False
        for node in chain(islice(reversed(query.nodes), 1, None), (query.root,)):
            found.append(node)
            own = find_own(query.session.tenant, node)
            is_answer = bool(own) and any(known.is_answer(node) for known in own)
            if is_answered and not is_answer:
                break
            is_answered = is_answer
        return found

    def record_recall(self, query: LineageQuery) -> None:
        """Record that the log has returned all that it has for this query."""
        if self._losses != self._index.losses:  # what was recalled before may have been dropped since
            self._losses = self._index.losses
            self._recalled.clear()
        if named := self._index.get(query.session.id):
            named.is_partial = False
        if last := _find_last_assistant(query, 0):
            history = query.session.tenant + last  # the log's result depends on the tenant
            self._recalled.put(history, True)
            if self.prove(query) == _NO_PROOF and not self._find_witnesses(query):
                self._unknown.add(history, _list_shown(query))

    def record_answer(self, nodes: Iterable[NodeRow], fingerprints: Iterable[CallFingerprint]) -> None:
        """Record that an answer is in the log, which later requests may contain."""
        self._unknown.record_answer(nodes, fingerprints)

    def place(self, query: LineageQuery, proof: Proof, *, is_certain: bool = True) -> Placement:
        """Decide where a request belongs. Without `is_certain` the log may have another session for it."""
        index, session, origin = self._index, query.session, proof.origin
        if session.family or not is_certain:
            known = index.open(session)
            known.is_partial |= not is_certain
        elif found := proof.known or self._join(query):
            known = index.open(found.key)
        elif found := self._recognise(query):
            known, origin = index.open(found.key), None
        else:
            known = index.open(session)
        is_new = not known.tips and not known.is_partial
        if is_new and not session.family and is_under_way(query.items):
            self._begun.put((query.likeness, query.traits), known.key.id)
        lineage = self.record_request(query, known) if query.is_trusted else None
        return Placement(known.key, known, lineage, origin, is_new and origin is None, is_certain)

    def record_request(self, query: LineageQuery, known: SessionNodes) -> Lineage:
        """Add a request to its session. Return how it extends that."""
        nodes, base = query.nodes, known.measure(query.nodes)
        depth = len(nodes)
        is_side = _is_side(query, known, base)
        tip = parent = query.node_at(base)
        rows: list[NodeRow] = []
        if base < depth:
            for node in nodes[base:]:
                if node != parent:  # a message without a form adds none
                    rows.append(NodeRow(node, parent, False))
                    parent = node
            tip = parent
        relation = _relate(query, known, base, is_side=is_side)
        if not is_side and nodes[-1:] != known.newest[-1:]:
            known.rewrites = _count_rewrites(query, known, base)
            known.newest = nodes
            if base and known.rewrites >= REWRITES:
                relation = "volatile"
        lineage = Lineage(query.exchange, relation, is_side, tip, depth, base, tuple(rows), _list_brought(query, base))
        self._index.add(known.key.id, lineage.nodes, lineage.fingerprints)
        known.tips.add(tip)
        if not is_side:
            known.traits = query.traits
            known.depth = depth
        if base or not is_side:
            known.record_traits(tip, query.traits, is_side=is_side)
        return lineage

    def record_unanswered(self, known: SessionNodes, likeness: Likeness) -> None:
        """Record that a first request got no answer, so that the next one like it is a retry, no new conversation."""
        if not known.key.family and known.tips == {likeness[1]}:
            self._unanswered.put(likeness, known.key.id)

    def _join(self, query: LineageQuery) -> SessionNodes | None:
        """Return the session that the same history began, if that was under way or its request was not answered."""
        likeness = query.likeness
        tip = likeness[1]
        known = self._index.get(self._begun.get((likeness, query.traits)) or "")
        if known is not None and tip in known.tips and len(known.standings) <= len(query.nodes) + MOST_SIBLINGS:
            return known
        known = self._index.get(self._unanswered.pop(likeness) or "")
        return known if known is not None and known.tips == {tip} else None

    def _is_unknown(self, history: bytes) -> bool:
        """Return whether a history is known not to be in the log."""
        if self._resets != self._index.resets:
            self._resets = self._index.resets
            self._unknown.clear()
        return history in self._unknown

    def _recognise(self, query: LineageQuery) -> SessionNodes | None:
        """Return the one session that gave the answers or tool calls which this request contains, outside its chain."""
        last = _find_last_assistant(query, 0)
        if not last or self._is_unknown(query.session.tenant + last):
            return None  # other sessions with the same answer may have been dropped from memory
        found = self._find_witnesses(query)
        return next(iter(found.values())) if len(found) == 1 else None

    def _find_witnesses(self, query: LineageQuery) -> dict[str, SessionNodes]:
        """Return, by id, the sessions that are the only origin of an answer which a request contains."""
        found: dict[str, SessionNodes] = {}
        session = query.session
        for item in query.items:
            for name in _name_item(item):
                bearers = self._index.find_by_fingerprint(session.tenant, session.upstream, name)
                alike = [known for known in bearers if known.fingerprints[name].form == item.form]
                if len(alike) == 1 and alike[0].is_answer(alike[0].fingerprints[name].node):
                    found[alike[0].key.id] = alike[0]
        return found


_NO_PROOF = Proof(None)


def is_under_way(items: Sequence[Item]) -> bool:
    """Return whether a history is that of a conversation that has gone on: it is no first prompt with its examples."""
    answers = 0
    for item in reversed(items):
        answers += item.role == "assistant"
        if answers > _MOST_EXAMPLES or any(not _COUNTED.fullmatch(call) for call in item.results):
            return True
    return False


def list_proving_nodes(query: LineageQuery) -> Sequence[bytes]:
    """Return the nodes by which the log may recognise a request, or none if it contains no answer."""
    return query.nodes if _find_last_assistant(query, 0) else ()


def list_shown_fingerprints(query: LineageQuery) -> list[str]:
    """Return the fingerprint names by which the log may recognise the answers in a request, the newest last."""
    names: list[str] = []
    for item in reversed(query.items):
        names[:0] = _name_item(item)
        if len(names) >= MOST_FINGERPRINTS:
            break
    return names[-MOST_FINGERPRINTS:]


def name_answer(item: Item, own_id: str, session: SessionKey) -> Sequence[str]:
    """Return the names by which a message of an answer may be recognised. The upstream stores it under `own_id`.

    In a session that its client names, answers are recognised by their calls only, never by text.
    """
    names = _name_calls(item) if session.family else _name_item(item)
    return [*names, name_fingerprint(f"item:{own_id}")] if own_id else names


def _choose_namesake(namesakes: Sequence[SessionNodes], query: LineageQuery, depth: int) -> SessionNodes:
    """Return the session that a request extends, of several that gave the same answer.

    Unnamed sessions take precedence. Prefer the newest with the same continuation, then the newest with none yet.
    """
    left = [known for known in namesakes if not known.key.family] or namesakes
    for node in reversed(query.nodes[depth:]):
        if found := [known for known in left if node in known.standings]:
            return found[-1]
    node = query.node_at(depth)
    return next((known for known in reversed(left) if known.is_leaf(node)), left[-1])


def _find_last_assistant(query: LineageQuery, base: int) -> bytes:
    """Return the deepest node of an assistant's message after the first `base` messages, or b"" if there is none."""
    for item, node in zip(reversed(query.items), islice(reversed(query.nodes), len(query.nodes) - base), strict=False):
        if item.role == "assistant" and item.form:
            return node
    return b""


def _list_shown(query: LineageQuery) -> tuple[bytes | str, ...]:
    """Return the nodes and names of all answers that a request contains, and the root, which may be one."""
    pairs = [(item, node) for item, node in zip(query.items, query.nodes, strict=True) if item.role == "assistant"]
    names = [name for item, _ in pairs for name in _name_item(item)]
    return tuple(dict.fromkeys([query.root, *(node for _, node in pairs), *names]))


def _name_item(item: Item) -> Sequence[str]:
    """Return the names of an assistant's message: of its calls, or of its text if that is long enough."""
    if item.calls or item.weight < _TELLING_CHARACTERS or item.role != "assistant" or not item.form:
        return _name_calls(item)
    return [f"form:{item.form.hex()}"]


def _name_calls(item: Item) -> Sequence[str]:
    if not item.calls or item.role != "assistant" or not item.form:
        return ()
    return [name_fingerprint(f"call:{call}") for call in item.calls[-_MOST_BROUGHT:] if not _COUNTED.fullmatch(call)]


def _list_brought(query: LineageQuery, base: int) -> tuple[CallFingerprint, ...]:
    """Return the calls after the first `base` messages, which the client brought; the newest if there are very many."""
    fingerprints: list[CallFingerprint] = []
    fresh = islice(reversed(query.nodes), len(query.nodes) - base)
    for item, node in zip(reversed(query.items), fresh, strict=False):
        if item.calls and len(fingerprints) < _MOST_BROUGHT:
            fingerprints += [CallFingerprint(name, node, item.form) for name in reversed(_name_calls(item))]
    return tuple(fingerprints[:_MOST_BROUGHT][::-1])


def _relate(query: LineageQuery, known: SessionNodes, base: int, *, is_side: bool) -> Relation:
    if not known.tips:
        return "root"
    depth = len(query.nodes)
    if base < depth < known.depth and not is_side and _is_compacted(query, known, base):
        return "compaction"
    last = query.node_at(base)
    if base == 0 and last not in known.standings:
        return "root"
    if base == depth and last in known.tips:
        return "retry"
    return "append" if known.is_leaf(last) else "branch"


def _count_rewrites(query: LineageQuery, known: SessionNodes, base: int) -> int:
    """Return how many requests in a row, up to this one, are longer than the one before, but replace its last messages.

    One that replaces no fewer than it adds does not count: that is how a person edits or rewinds. Nor does one that
    extends another request than the newest.
    """
    newest, nodes = known.newest, query.nodes
    is_rewritten = 0 < len(newest) - base <= LONGEST_TAIL and len(nodes) > len(newest)
    return known.rewrites + 1 if is_rewritten and count_shared_nodes(newest, nodes) == base else 0


def _is_compacted(query: LineageQuery, known: SessionNodes, base: int) -> bool:
    """Return whether a shorter history is a client's own compaction.

    A compaction has a long new text, and shares at most the beginning of the old history: some clients (codex, cline)
    keep the user's first messages. The answer to these is then missing, and a user message follows directly. After an
    edit or a rewind the answer before the changed user message is still there.
    """
    fresh = query.items[base:]
    if base and (query.node_at(base) not in known.tips or fresh[0].role != "user"):
        return False
    return any(item.weight >= _LONG_CHARACTERS and item.role != "tool" for item in fresh)


def _is_side(query: LineageQuery, known: SessionNodes, base: int) -> bool:
    """Return whether a call is a side call of its conversation (a title, a summary, a commit message).

    A side call lacks the tools of the conversation, or has two lesser signs: another model or preamble, no stream,
    few messages, a small output limit. A call that extends the conversation may lack tools for once: it is a side call
    only if it also has another model or preamble. The first call of a session is a side call only if all possible signs
    agree: its client names a conversation, and it has no tools, few messages and a small output limit. If a first call
    was a side call all the same, the first call with tools takes its place. If a client continues from the answer to a
    side call, that has become a conversation.
    """
    if query.is_whole:
        return False
    if query.is_aside:
        return True
    before, now = known.traits, query.traits
    # Compare with the request whose answer this one continues, if it is in memory, or else with the conversation.
    for depth in range(base - 1, 0, -1):
        traits = known.tip_traits.get(query.nodes[depth - 1])
        if traits is not None and known.is_answer(query.nodes[depth]):
            before = traits
            break
    is_tiny, is_short = 0 < query.most_output <= _SMALL_OUTPUT_TOKENS, len(query.nodes) <= _FEW_MESSAGES
    if before is None:
        return is_tiny and is_short and not (base or now.has_tools) and bool(query.session.family)
    if now.has_tools and not before.has_tools:
        return False
    lacks_tools = before.has_tools and not now.has_tools
    is_other = (now.model != before.model) + (now.system != before.system)
    if base:
        return lacks_tools and is_other > 0
    lesser = is_other + (before.is_stream and not now.is_stream) + is_short + is_tiny
    return lacks_tools or lesser >= 2
