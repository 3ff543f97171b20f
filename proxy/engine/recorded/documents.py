"""Documents as JSON, as files and programs get them; listings that come a page at a time, and their cursors."""

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from inspect import signature
from typing import Any, Generic, TypeVar

import msgspec

from proxy.context.memory.traces import fit_text
from proxy.model.errors import BadRequest

T = TypeVar("T")

_LINE_BREAKS = bytes.maketrans(b"\r\n", b"  ")


def write_json(document: object) -> bytes:
    """Encode a document as one line: JSON has line breaks only between its tokens, where a space means the same."""
    try:
        written = msgspec.json.encode(document)
    except UnicodeEncodeError:  # a lone surrogate, which came in somebody's JSON, and which UTF-8 cannot hold
        written = msgspec.json.encode(_fit_texts(document))
    return written.translate(_LINE_BREAKS) + b"\n"


def _fit_texts(value: object) -> object:
    """Return a document whose texts have no lone surrogates."""
    if isinstance(value, str):
        return fit_text(value)
    if is_dataclass(value):
        return {
            each.name: _fit_texts(shown)
            for each in fields(value)
            if (shown := getattr(value, each.name)) is not msgspec.UNSET
        }
    if isinstance(value, msgspec.Struct):
        names = zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True)
        config = value.__struct_config__
        found: dict[str, object] = {config.tag_field: config.tag} if config.tag_field else {}
        found |= {encoded: getattr(value, name) for name, encoded in names}
        return {name: _fit_texts(each) for name, each in found.items() if each is not msgspec.UNSET}
    if isinstance(value, Mapping):
        return {_fit_texts(name): _fit_texts(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_fit_texts(each) for each in value]
    return value


def describe(kind: Callable[..., T], row: object, **own: Any) -> T:
    """Return a document of a kind. It says what a row does in the fields that both have, but for those of its own."""
    names = (name for name in _list_names(kind) if name not in own and hasattr(row, name))
    return kind(**{name: getattr(row, name) for name in names}, **own)


@cache
def _list_names(kind: Callable[..., object]) -> tuple[str, ...]:
    return tuple(signature(kind).parameters)


_LARGEST = 2**63 - 1
_LONGEST = 100


class Listing(msgspec.Struct, Generic[T], frozen=True):
    """A page of a listing. `next` is the cursor of the next page; null on the last one."""

    items: Sequence[T]
    next: str | None


def make_cursor(listing: str, place: int) -> str:
    """Return the cursor of a place in a listing, such as the number after which the next page begins.

    To clients it is opaque. It names its listing, so that one of another listing is refused.
    """
    return base64.urlsafe_b64encode(f"{listing} {place}".encode()).rstrip(b"=").decode()


def read_cursor(listing: str, cursor: str, default: int = 0) -> int:
    """Return the place of a cursor, or `default` for an empty one. Raises BadRequest for one of another listing."""
    if not cursor:
        return default
    try:
        padded = cursor[:_LONGEST].encode() + b"=" * (-len(cursor[:_LONGEST]) % 4)
        name, _, place = base64.b64decode(padded, b"-_", validate=True).decode("ascii").partition(" ")
        if name == listing and place.isdigit() and int(place) <= _LARGEST:
            return int(place)
    except (binascii.Error, UnicodeError):
        pass
    raise BadRequest(f"cursor is what `next` of the page before says, not {cursor[:40]!r}")


def cut_listing(listing: str, items: Sequence[T], cursor: str, limit: int) -> Listing[T]:
    """Return the page of a whole listing at a cursor. Such a listing only grows at its end. Raises BadRequest."""
    start = read_cursor(listing, cursor)
    stop = start + limit
    return Listing(items[start:stop], make_cursor(listing, stop) if stop < len(items) else None)
