"""Records to store: what a test is about is an argument, the rest is a plausible call."""

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from proxy.model.epoch import Epoch, HiddenRound, Original, Pin, Plan, Recalled, Rung, SourceNote, Summary, SummaryLevel
from proxy.model.exchange import (
    Completeness,
    Headers,
    HistoryMode,
    Kind,
    Opening,
    Outcome,
    Reading,
    ReceivedCall,
    Round,
    SessionKey,
    Timings,
    Trailer,
    Usage,
)
from proxy.model.lineage import (
    CallFingerprint,
    Lineage,
    NodeRow,
    Relation,
    Reply,
    compute_chain_root,
    extend_chain,
)
from proxy.model.manifest import (
    Blob,
    BlobPiece,
    ChainPiece,
    Manifest,
    Piece,
    chain_slices,
    compute_digest,
    compute_root_link,
    encode_recipe,
    make_manifest,
)
from proxy.model.memory import LearnedFact, MemoryOrder, OrderKind, Remembered

TENANT = b"\x01" * 16
OTHER_TENANT = b"\x02" * 16
OPENED_MS = 1_760_000_000_000
TIMINGS = Timings(120.25, 130.5, 900.125)
REQUEST_HEADERS: Headers = ((b"content-type", b"application/json"), (b"user-agent", b"OpenAI/Python 1.51.0"))
ANSWER = b'{"id":"chatcmpl-1","choices":[{"index":0,"message":{"role":"assistant","content":"hi"}}]}'

Elements = Sequence[tuple[bytes, bytes]]


def chain_body(
    elements: Elements,
    *,
    tenant: bytes = TENANT,
    before: bytes = b'{"messages":[',
    after: bytes = b"]}",
    known: int = 0,
) -> Manifest:
    """The manifest of a body with a chain, without the first `known` slices, which the log is believed to have."""
    slices = tuple(chain_slices(compute_root_link(tenant), elements))
    link = slices[-1].link if slices else compute_root_link(tenant)
    size = len(join_body(elements, before, after))
    return Manifest(encode_recipe((before, ChainPiece(link), after)), slices[known:], (), size)


def join_body(elements: Elements, before: bytes = b'{"messages":[', after: bytes = b"]}") -> bytes:
    """The body that `chain_body` describes."""
    return before + b"".join(gap + content for gap, content in elements) + after


def make_turns(count: int, size: int = 40) -> Elements:
    """Elements of a history, each different."""
    return [(b"," if i else b"", b'{"role":"user","content":"%0*d"}' % (size, i)) for i in range(count)]


def make_key(name: str = "agent-7", tenant: bytes = TENANT) -> SessionKey:
    """A session; its id follows from name and tenant."""
    return SessionKey(f"s-{name}-{tenant[:1].hex()}", tenant, "openai", name)


def make_opening(
    exchange: str = "e1",
    body: Manifest | None = None,
    *,
    key: SessionKey | None = None,
    model: str = "gpt-4o",
    headers: Headers = REQUEST_HEADERS,
    opened_ms: int = OPENED_MS,
    kind: Kind = "managed",
) -> Opening:
    """A client's request."""
    return Opening(
        exchange=exchange,
        session=key or make_key(),
        kind=kind,
        wire="chat_completions",
        mode="manage",
        model=model,
        method="POST",
        target="/v1/chat/completions",
        headers=headers,
        body=make_manifest(b"{}") if body is None else body,
        opened_ms=opened_ms,
    )


def make_round(exchange: str = "e1", k: int = 0, body: Manifest | None = None) -> Round:
    """An upstream call."""
    return Round(exchange, k, "openai", body)


def make_outcome(
    exchange: str = "e1",
    k: int = 0,
    *,
    received: bytes = ANSWER,
    size: int | None = None,
    whole: bytes = b"",
    headers: Headers = ((b"content-type", b"application/json"),),
    completeness: Completeness = "complete",
    error: str = "",
) -> Outcome:
    """How it ended."""
    size = len(received) if size is None else size
    return Outcome(exchange, k, 200, headers, completeness, received, size, whole, TIMINGS, error)


def make_trailer(i: int, received: bytes, exchange: str = "e1", k: int = 0) -> Trailer:
    """Bytes after the end."""
    return Trailer(exchange, k, i, received)


def make_reading(
    exchange: str = "e1",
    k: int = 0,
    *,
    answer: bytes = ANSWER,
    usage: Usage | None = None,
    finish: str = "stop",
    error: str = "",
) -> Reading:
    """What the answer says."""
    return Reading(exchange, k, answer, usage, finish, error)


def make_node(text: str, parent: bytes | None = None, *, is_answer: bool = False) -> NodeRow:
    """A message with this text behind the node, or at the root."""
    parent = compute_chain_root("openai") if parent is None else parent
    return NodeRow(extend_chain(parent, [text.encode()])[0], parent, is_answer)


def make_chain(*texts: str, parent: bytes | None = None) -> tuple[NodeRow, ...]:
    """Messages one behind the other; what begins with an exclamation fingerprint is an answer."""
    rows: list[NodeRow] = []
    for text in texts:
        rows.append(make_node(text, rows[-1].node if rows else parent, is_answer=text.startswith("!")))
    return tuple(rows)


def make_fingerprint(name: str, row: NodeRow, form: bytes = b"f" * 16) -> CallFingerprint:
    """A fingerprint of a node."""
    return CallFingerprint(name, row.node, form)


def make_step(
    exchange: str = "e1",
    nodes: Sequence[NodeRow] = (),
    *,
    tip: bytes | None = None,
    depth: int | None = None,
    base: int = 0,
    relation: Relation = "append",
    is_side: bool = False,
    fingerprints: Sequence[CallFingerprint] = (),
) -> Lineage:
    """Where a request stands: at the last of its nodes, unless `tip` says otherwise."""
    if tip is None:
        tip = nodes[-1].node if nodes else compute_chain_root("openai")
    depth = base + len(nodes) if depth is None else depth
    return Lineage(exchange, relation, is_side, tip, depth, base, tuple(nodes), tuple(fingerprints))


def make_reply(
    exchange: str = "e1", nodes: Sequence[NodeRow] = (), fingerprints: Sequence[CallFingerprint] = (), k: int = 0
) -> Reply:
    """Where an answer stands."""
    return Reply(exchange, k, tuple(nodes), tuple(fingerprints))


def make_epoch(
    name: str = "p1",
    rendered: Sequence[bytes] = (b'{"role":"user","content":"[a ledger]"}',),
    originals: Sequence[Original] = (),
    *,
    session: str = "",
    view: str = "gpt-4o",
    parent: str = "",
    exchange: str = "",
    edits: bytes = b'[["Kept",0]]',
) -> Epoch:
    """What stands for the beginning of a session."""
    return Epoch(
        id=name,
        session=session or make_key().id,
        view=view,
        parent=parent,
        through=b"n" * 16,
        depth=4,
        why="hard",
        exchange=exchange,
        opened_ms=OPENED_MS,
        tokens_before=90_000,
        tokens_after=30_000,
        edits=edits,
        rendered=tuple(rendered),
        originals=tuple(originals),
    )


def make_recalled(
    exchange: str = "e1", epoch: str = "p1", *, session: str = "", node: bytes = b"a" * 16, view: str = "gpt-4o"
) -> Recalled:
    """An answer in which a model recalled once."""
    rounds = HiddenRound((b'{"role":"assistant"}', b"\xff\x00"), (("call_1", "a page"),)), HiddenRound((b"the answer",))
    return Recalled(exchange, session or make_key().id, view, epoch, node, 1, 120, rounds)


def make_held(
    exchange: str = "e1", body: Manifest | None = None, key: str = "", history: HistoryMode = "server"
) -> ReceivedCall:
    """What a client sent of a request whose history we hold."""
    return ReceivedCall(exchange, history, key, b"d" * 32, body or make_manifest(b"{}"))


def make_source(exchange: str = "e1", kind: str = "tick", *, session: str = "", node: bytes = b"a" * 16) -> SourceNote:
    """What a request told of its newest message."""
    return SourceNote(session or make_key().id, exchange, node, kind)


def make_remembered(
    number: int = 1, stop: int = 4, last: bytes = b"n" * 16, *facts: LearnedFact, session: str = "", **given: Any
) -> Remembered:
    """A report on the first turns of a session, with the facts that it taught."""
    learned = facts or (LearnedFact("constraint", "Never push to main.", ("git",), (b"n" * 16,), 1.0, 0.9),)
    about = {"summary": f"report {number}", "made_ms": OPENED_MS, **given}
    return Remembered(session or make_key().id, 0, stop, last, 1, 2, number, number, facts=learned, **about)


def make_memory_order(kind: OrderKind = "pin", item: str = "sem_0001", *, session: str = "") -> MemoryOrder:
    """An order about memory."""
    return MemoryOrder(session or make_key().id, kind, item, OPENED_MS)


def make_original(name: str, *messages: bytes, place: int = 1, offset: int = 0) -> Original:
    """What a reference stands for."""
    return Original(name, tuple(map(compute_digest, messages)), "chat_completions", place, offset)


def make_plan(exchange: str = "e1", k: int = 0, *, view: str = "gpt-4o", epoch: str = "", owed: float = 0.0) -> Plan:
    """What was decided for a round."""
    rung: Rung = "plan" if epoch else "original"
    return Plan(exchange, k, view, rung, epoch, "soft", "below the fingerprint", 900, 300, 1000, owed, -2.5)


def make_pin(node: bytes, *, session: str = "", is_on: bool = True, at_ms: int = OPENED_MS) -> Pin:
    """A message that must stay, or need not any more."""
    return Pin(session or make_key().id, node, is_on, at_ms)


def make_leaf(
    name: str = "a000000001",
    messages: Sequence[bytes] = (),
    start: int = 0,
    *,
    session: str = "",
    level: SummaryLevel = 1,
    text: str = "what was done",
    supersedes: Sequence[str] = (),
) -> Summary:
    """A summary of messages; all of one history."""
    return Summary(
        id=name,
        session=session or make_key().id,
        wire="chat_completions",
        start=start,
        stop=start + len(messages),
        last=(start + len(messages)).to_bytes(16),
        kind="leaf",
        level=level,
        is_provisional=level > 1,
        text=text,
        tokens=3,
        covered=900,
        made_ms=OPENED_MS,
        supersedes=tuple(supersedes),
        digests=tuple(map(compute_digest, messages)),
    )


def make_condensed(name: str, parents: Sequence[Summary], *, supersedes: Sequence[str] = ()) -> Summary:
    """A summary of summaries."""
    return Summary(
        id=name,
        session=parents[-1].session,
        wire=parents[0].wire,
        start=parents[0].start,
        stop=parents[-1].stop,
        last=parents[-1].last,
        kind="condensed",
        level=1,
        is_provisional=False,
        text="what was done, in short",
        tokens=5,
        covered=sum(each.covered for each in parents),
        made_ms=OPENED_MS,
        parents=tuple(each.id for each in parents),
        supersedes=tuple(supersedes),
    )


@st.composite
def split_bodies(draw: st.DrawFn) -> tuple[bytes, Manifest]:
    """A body, and a manifest of it that was split anywhere: literals, blobs and at most one chain, in any order."""
    content = draw(st.binary(max_size=400))
    count = draw(st.integers(0, 6))
    cuts = sorted(draw(st.lists(st.integers(0, len(content)), min_size=count, max_size=count)))
    parts = [content[a:b] for a, b in zip([0, *cuts], [*cuts, len(content)], strict=True)]
    chain_at = draw(st.integers(-1, len(parts) - 1))
    pieces: list[Piece] = []
    blobs: list[Blob] = []
    manifest = Manifest(b"", (), (), 0)
    for at, part in enumerate(parts):
        if at == chain_at:
            manifest = chain_body(draw(_split_elements(part)))
            pieces.append(ChainPiece(manifest.slices[-1].link if manifest.slices else compute_root_link(TENANT)))
        elif draw(st.booleans()):
            blobs.append(Blob(compute_digest(part), part))
            pieces.append(BlobPiece(compute_digest(part)))
        else:
            pieces.append(part)
    return content, Manifest(encode_recipe(pieces), manifest.slices, tuple(blobs), len(content))


@st.composite
def _split_elements(draw: st.DrawFn, part: bytes) -> Elements:
    cuts = sorted(draw(st.lists(st.integers(0, len(part)), max_size=7)))
    spans = [part[a:b] for a, b in zip([0, *cuts], [*cuts, len(part)], strict=True)]
    if len(spans) % 2:
        spans.append(b"")
    return list(zip(spans[::2], spans[1::2], strict=True)) if part else []
