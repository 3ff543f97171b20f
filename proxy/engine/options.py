"""The request headers of our own: what a client asks for, by names that begin with `x-palimpsest-`."""

from collections.abc import Sequence
from typing import Literal, cast, get_args

from proxy.context.strategies.sources import BROADCAST, is_source_kind
from proxy.model.epoch import STRATEGIES, Strategy
from proxy.model.errors import BadRequest
from proxy.model.exchange import Headers, Mode, RequestOptions
from proxy.wire.headers import find_header

_MODE, _CEILING, _PIN = b"x-palimpsest-mode", b"x-palimpsest-ceiling", b"x-palimpsest-pin"
_STRATEGY, _HISTORY, _SOURCE = b"x-palimpsest-strategy", b"x-palimpsest-history", b"x-palimpsest-source"
_LONGEST_NUMBER = 9
_ALONE = "none"


def read_options(headers: Headers, mode: Mode) -> RequestOptions:
    """Return what a request asks for; without a header for it, its mode is `mode`. Raises BadRequest."""
    history = _read_word(headers, _HISTORY, ("new", "server", _ALONE))
    return RequestOptions(
        cast(Mode, _read_word(headers, _MODE, get_args(Mode))) or mode,
        read_ceiling(headers),
        find_header(headers, _PIN).strip().lower() == b"true",
        strategy=read_strategy(headers),
        history=cast(Literal["new", "server"], history) if history and history != _ALONE else None,
        source=_read_source(headers),
        is_alone=history == _ALONE,
    )


def read_strategy(headers: Headers) -> Strategy | None:
    """Return the strategy that a request asks for, or None. Raises BadRequest."""
    return cast(Strategy, _read_word(headers, _STRATEGY, STRATEGIES)) or None


def read_ceiling(headers: Headers) -> int | None:
    """Return the ceiling that a request asks for, in tokens, or None. Raises BadRequest."""
    asked = find_header(headers, _CEILING).strip()
    if not asked:
        return None
    if not asked.isdigit() or len(asked) > _LONGEST_NUMBER or not int(asked):
        raise BadRequest(f"x-palimpsest-ceiling is a number of tokens, not {asked[:40].decode('latin-1')!r}")
    return int(asked)


def _read_source(headers: Headers) -> str:
    """Return the kind of prompt source that a request says its newest message is. Raises BadRequest."""
    told, colon, sender = find_header(headers, _SOURCE).decode("utf-8", "replace").strip().partition(":")
    asked = told.lower() + colon + (sender if told.lower() == BROADCAST else sender.lower())
    if asked and not is_source_kind(asked):
        what = "direct, broadcast, broadcast:NAME, tick, tick:wait or absent"
        raise BadRequest(f"{_SOURCE.decode()} is {what}, not {asked[:40]!r}")
    return asked


def _read_word(headers: Headers, name: bytes, words: Sequence[str]) -> str:
    """Return the value of a header, one of some words, or empty without it. Raises BadRequest for any other."""
    asked = find_header(headers, name).decode("latin-1").strip().lower()
    if asked and asked not in words:
        raise BadRequest(f"{name.decode()} is {', '.join(words)} or absent, not {asked[:40]!r}")
    return asked
