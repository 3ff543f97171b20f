"""Values that grow by fragments.

Rule: a fragment is decoded JSON and ours alone, so it may be kept and changed. Strings are gathered and joined once at
the end (`settle`), because adding them one by one copies a long answer for every token.
"""

from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter
from typing import Generic, Protocol, TypeVar

from msgspec.structs import replace

from proxy.model.exchange import Answer
from proxy.wire.sse import ServerEvent

# Identifying members come whole, and from some servers again with each fragment: the first that says anything stays.
_FIXED = frozenset({"id", "type", "role", "name", "format"})

T = TypeVar("T")


class Assembler(Protocol):
    """What has come of an answer so far. A wire has its own, made anew for each stream."""

    is_ended: bool
    error: str

    def take(self, event: ServerEvent) -> None:
        """Add an event."""
        ...

    def settle(self) -> dict[str, object]:
        """The object so far, in the shape of a non-streamed answer."""
        ...


def assemble(
    begun: Assembler, events: Iterable[ServerEvent], read_answer: Callable[[Mapping[str, object]], Answer]
) -> Answer:
    """The answer that events add up to, read like a non-streamed one."""
    for event in events:
        begun.take(event)
    answer = read_answer(begun.settle())
    return replace(answer, is_ended=begun.is_ended, error=begun.error or answer.error)


class Text:
    """A string that grows."""

    __slots__ = ("fragments",)

    def __init__(self, *fragments: str) -> None:
        self.fragments = list(fragments)


class Elements:
    """A list that grows; elements of the same `index` and type are one element."""

    __slots__ = ("_placed", "items")

    def __init__(self, fragments: list[object]) -> None:
        self.items: list[object] = []
        self._placed: dict[int, dict[str, object]] = {}
        self.extend(fragments)

    def extend(self, fragments: list[object]) -> None:
        """Take the elements of a fragment."""
        for fragment in fragments:
            index = fragment.get("index") if isinstance(fragment, dict) else None
            if isinstance(fragment, dict) and type(index) is int:
                merge(self._find(index, fragment.get("type")), fragment)
            else:
                self.items.append(fragment)

    def add_text(self, text: str) -> None:
        """Take a string where there was a list: content parts became plain text, as Mistral's do after its thinking."""
        last = self.items[-1] if self.items else None
        if isinstance(last, dict) and last.get("type") == "text":
            merge(last, {"text": text})
        else:
            self.items.append({"type": "text", "text": text})

    def _find(self, index: int, kind: object) -> dict[str, object]:
        held = self._placed.get(index)
        if held is not None:
            held_kind = held.get("type")
            if held_kind == kind or not (isinstance(held_kind, str) and isinstance(kind, str)):
                return held
        begun = self._placed[index] = {}
        self.items.append(begun)
        return begun


class Places(Generic[T]):
    """Things by index. A second thing put at an index stands behind the first and gets whatever comes next."""

    def __init__(self) -> None:
        self._all: list[tuple[int, T]] = []
        self._newest: dict[int, T] = {}
        self._last = 0

    def locate(self, index: object) -> int:
        """The index meant; one that is missing is the last one again."""
        if type(index) is int:
            self._last = index
        return self._last

    def get(self, index: int) -> T | None:
        """What stands at an index."""
        return self._newest.get(index)

    def put(self, index: int, thing: T) -> T:
        """Place a thing, and return it."""
        self._all.append((index, thing))
        self._newest[index] = thing
        return thing

    def ordered(self) -> list[T]:
        """All things, by index."""
        return [thing for _, thing in sorted(self._all, key=itemgetter(0))]


def keep(held: dict[str, object], fields: Mapping[str, object]) -> None:
    """Take members of which the last counts, unless it says nothing (null, or empty) after one that did."""
    for key, value in fields.items():
        if value or key not in held or isinstance(value, int | float):
            held[key] = value


def merge(held: dict[str, object], fragment: Mapping[str, object]) -> None:
    """Add a fragment: strings are continued, lists extended, objects merged; of anything else the last counts."""
    for key, value in fragment.items():
        was = held.get(key)
        if was is None:
            held[key] = _begin(value)
        elif type(was) is Text and type(value) is str:  # before the rest, for speed: nearly always so
            was.fragments.append(value)
        elif value is not None and not (was and key in _FIXED):
            held[key] = value if key in _FIXED else _continue(was, value)


def settle(value: object) -> object:
    """The value as plain JSON, all fragments joined."""
    if isinstance(value, Text):
        return "".join(value.fragments)
    if isinstance(value, Elements):
        return [settle(item) for item in value.items]
    if isinstance(value, dict):
        return {key: settle(inner) for key, inner in value.items()}
    return value


def settle_object(held: Mapping[str, object]) -> dict[str, object]:
    """The same for an object."""
    return {key: settle(value) for key, value in held.items()}


def _begin(value: object) -> object:
    # Merged into nothing rather than kept, since one fragment may hold several of the same index.
    if isinstance(value, dict):
        begun: dict[str, object] = {}
        merge(begun, value)
        return begun
    return _lengthen([], value) if isinstance(value, list) else value


def _continue(was: object, value: object) -> object:
    match was, value:
        case str(), str():
            return Text(was, value)
        case dict(), dict():
            merge(was, value)
            return was
        case list() | Elements(), list() | str():
            return _lengthen(was, value)
        case str() | Text(), list():
            return _lengthen(_lengthen([], settle(was)), value)
    return _begin(value)


def _lengthen(was: Elements | list[object], value: object) -> Elements:
    elements = was if isinstance(was, Elements) else Elements(was)
    if isinstance(value, list):
        elements.extend(value)
    elif isinstance(value, str) and value:
        elements.add_text(value)
    return elements
