"""A resolver over an empty index, and the messages of a made-up conversation."""

from typing import NamedTuple

from proxy.engine.lineage.resolver import LineageQuery, Placement, SessionResolver, name_answer
from proxy.engine.lineage.session_index import SessionIndex, SessionNodes, Traits
from proxy.model.exchange import SessionKey
from proxy.model.lineage import CallFingerprint, Lineage, NodeRow, compute_chain_root, extend_chain
from proxy.wire.identity import Item

ROOT = compute_chain_root("main")
ONE, TWO = b"1" * 16, b"2" * 16
MAIN = Traits("m", has_tools=True, system=b"s", is_stream=True)
STRONG = "call_Zk93fQpX"


def say(role: str, text: str, *calls: str, weight: int = 5) -> Item:
    return Item(role, f"{role}:{text}:{calls}".ljust(16)[:64].encode(), calls, (), weight)


def user(text: str, weight: int = 5) -> Item:
    return say("user", text, weight=weight)


def bot(text: str, *calls: str, weight: int = 5) -> Item:
    return say("assistant", text, *calls, weight=weight)


class Placed(NamedTuple):
    """A place with its step: what is trusted always has one."""

    session: SessionKey
    lineage: Lineage
    origin: tuple[str, bytes] | None


class Setup:
    """A resolver over an empty index."""

    def __init__(self, *, is_complete: bool = True) -> None:
        self.index = SessionIndex(10_000_000, is_complete=is_complete)
        self.resolver = SessionResolver(self.index)
        self.count = 0

    def ask(
        self,
        *items: Item,
        name: str = "",
        tenant: bytes = ONE,
        traits: Traits = MAIN,
        output: int = 0,
        root: bytes = ROOT,
    ) -> LineageQuery:
        self.count += 1
        session = SessionKey(f"{tenant.decode()}{name}" if name else f"x{self.count}", tenant, "main", name)
        nodes = extend_chain(root, [item.form for item in items])
        return LineageQuery(f"x{self.count}", session, b"k", traits, root, nodes, items, output)

    def resolve(self, asked: LineageQuery, *, is_certain: bool = True) -> Placement:
        return self.resolver.place(asked, self.resolver.prove(asked), is_certain=is_certain)

    def needs_log(self, asked: LineageQuery) -> bool:
        return self.resolver.needs_log(asked, self.resolver.prove(asked))

    def place(self, *items: Item, answer: Item | None = None, **fields: object) -> Placed:
        asked = self.ask(*items, **fields)  # type: ignore[arg-type]
        place = _read(self.resolve(asked))
        if answer is not None:
            self.answer(place, answer)
        return place

    def answer(self, place: Placed, item: Item) -> bytes:
        (node,) = extend_chain(place.lineage.tip, [item.form])
        fingerprints = [CallFingerprint(name, node, item.form) for name in name_answer(item, "", place.session)]
        self.index.add(place.session.id, [NodeRow(node, place.lineage.tip, True)], fingerprints)
        return node

    def known(self, place: Placed) -> SessionNodes:
        known = self.index.get(place.session.id)
        assert known is not None
        return known


def _read(place: Placement) -> Placed:
    assert place.lineage is not None
    return Placed(place.session, place.lineage, place.origin)


HI, THERE, MORE, SO, THEN = user("hi"), bot("there"), user("more"), bot("so"), user("then")
