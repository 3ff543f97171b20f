"""A placing over an empty forest, and the messages of a made-up conversation."""

from typing import NamedTuple

from proxy.engine.lineage.forest import Forest
from proxy.engine.lineage.known import SessionNodes, Traits
from proxy.engine.lineage.placing import LineageQuery, Placement, Placing, name_answer
from proxy.model.exchange import SessionKey
from proxy.model.lineage import CallFingerprint, NodeRow, Step, extend_chain, root_of_chain
from proxy.wire.identity import Item

ROOT = root_of_chain("main")
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
    """A place with its step: what placing decides always has one."""

    session: SessionKey
    step: Step
    source: tuple[str, bytes] | None


class Desk:
    """A placing over an empty forest."""

    def __init__(self, *, is_complete: bool = True) -> None:
        self.forest = Forest(10_000_000, is_complete=is_complete)
        self.placing = Placing(self.forest)
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

    def place(self, *items: Item, answer: Item | None = None, **fields: object) -> Placed:
        asked = self.ask(*items, **fields)  # type: ignore[arg-type]
        place = _read(self.placing.place(asked))
        if answer is not None:
            self.answer(place, answer)
        return place

    def answer(self, place: Placed, item: Item) -> bytes:
        (node,) = extend_chain(place.step.tip, [item.form])
        marks = [CallFingerprint(name, node, item.form) for name in name_answer(item, "", place.session)]
        self.forest.add(place.session.id, [NodeRow(node, place.step.tip, True)], marks)
        return node

    def known(self, place: Placed) -> SessionNodes:
        known = self.forest.get(place.session.id)
        assert known is not None
        return known


def _read(place: Placement) -> Placed:
    assert place.step is not None
    return Placed(place.session, place.step, place.source)


HI, THERE, MORE, SO, THEN = user("hi"), bot("there"), user("more"), bot("so"), user("then")
