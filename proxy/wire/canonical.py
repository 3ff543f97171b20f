"""JSON values as canonical bytes: equal for what says the same, different for anything else.

Rule: what a parse and a re-serialisation may change does not count (key order, spaces, escapes, `1.0` for `1`), and
nothing more: integers keep all their digits, numbers no float can hold and lone surrogates stay what they are. Whoever
calls takes REFUSED for "not JSON, or too deep".
"""

import json
from collections.abc import Mapping
from typing import NoReturn

import msgspec

from proxy.wire.evidence import MAX_DEPTH, is_shallow

REFUSED = (ValueError, RecursionError)

# What marks parts for a cache and is moved about between requests.
_MARKER = "cache_control"
# Members whose inside is a tool's own: a marker or a null there is data.
_OPAQUE = frozenset({"input", "arguments"})

_encode = msgspec.json.Encoder(order="deterministic").encode


def settle_number(literal: str) -> int | float | msgspec.Raw:
    """The value of a number with a fraction or an exponent; an integer if it is one, for JavaScript writes 1.0 as 1."""
    value = float(literal)
    if value.is_integer():
        return int(value)
    return value if value - value == 0 else msgspec.Raw(literal.encode())


_decode = msgspec.json.Decoder(float_hook=settle_number).decode


def load(text: str | bytes) -> object:
    """The value of a JSON text. Raises REFUSED where there is none."""
    try:
        return _decode(text)
    except ValueError:
        # The standard library takes what msgspec refuses: lone surrogates, integers of any length, NaN.
        text = text.decode() if isinstance(text, bytes) else text
        return json.loads(text, parse_float=settle_number, parse_constant=lambda name: msgspec.Raw(name.encode()))


def canonical(value: object) -> bytes:
    """The one spelling of a value that `load` gave, or a decoder with `settle_number`. Raises REFUSED."""
    try:
        encoded = _encode(value)
    except UnicodeEncodeError:
        # Has a lone surrogate, which only this spelling can have; so the two never give the same bytes.
        encoded = json.dumps(value, sort_keys=True, separators=(",", ":"), default=_refuse).encode()
    # A limit of our own, since the stack's depends on who calls. Brackets in strings count too, so few are walked.
    if encoded.count(b"{") + encoded.count(b"[") > MAX_DEPTH and not is_shallow(value):
        raise ValueError("too deep")
    return encoded


def settle_arguments(arguments: object) -> bytes | str:
    """A tool call's arguments: canonical bytes, or the string itself where it is not JSON. Nothing is `{}`."""
    if arguments is None or arguments == "":
        return b"{}"
    if not isinstance(arguments, str):
        return canonical(arguments)
    try:
        return canonical(load(arguments))
    except REFUSED:
        return arguments


def prune(value: object, depth: int = MAX_DEPTH) -> object:
    """The value without cache markers and null members at any level, except inside a tool's input. Raises REFUSED."""
    if not depth:
        raise ValueError("too deep")
    if isinstance(value, Mapping):
        return {
            key: member if key in _OPAQUE else prune(member, depth - 1)
            for key, member in value.items()
            if member is not None and key != _MARKER
        }
    return [prune(element, depth - 1) for element in value] if isinstance(value, list) else value


def settle_object(value: object, *dropped: str) -> bytes:
    """The canonical bytes of a part or item as a whole, less the `dropped` members of its own."""
    pruned = prune(value)
    if isinstance(pruned, dict):
        for name in dropped:
            pruned.pop(name, None)
    return canonical(pruned)


def _refuse(value: object) -> NoReturn:
    """A number no float can hold beside a lone surrogate: no encoder here can write both."""
    raise ValueError(f"no spelling for {value!r}")
