"""The request headers about histories that we hold, and about prompt sources."""

from typing import cast, get_args

from proxy.context.strategies.sources import BROADCAST, is_source_kind
from proxy.model.errors import BadRequest
from proxy.model.exchange import ClientRequest, Headers, HistoryMode
from proxy.wire.body import split_body
from proxy.wire.format import Format
from proxy.wire.headers import find_header

_HISTORY, _SOURCE = b"x-palimpsest-history", b"x-palimpsest-source"
_EMPTY = (b"", b"[]", b"null", b'""')


def read_history(headers: Headers) -> HistoryMode | None:
    """Return what a request asks of a history of ours, None for nothing. Raises BadRequest."""
    asked = find_header(headers, _HISTORY).decode("latin-1").strip().lower()
    if asked and asked not in get_args(HistoryMode):
        raise BadRequest(f"x-palimpsest-history is new, server or absent, not {asked[:40]!r}")
    return cast(HistoryMode, asked) if asked else None


def read_source(headers: Headers) -> str:
    """Return the kind of prompt source that a request says its newest message is. Raises BadRequest."""
    told, colon, sender = find_header(headers, _SOURCE).decode("utf-8", "replace").strip().partition(":")
    asked = told.lower() + colon + (sender if told.lower() == BROADCAST else sender.lower())
    if asked and not is_source_kind(asked):
        what = "direct, broadcast, broadcast:NAME, tick, tick:wait or absent"
        raise BadRequest(f"x-palimpsest-source is {what}, not {asked[:40]!r}")
    return asked


def expect_messages(request: ClientRequest, form: Format) -> None:
    """Raise BadRequest if a request whose history its client holds asks for a nudge: it has no message."""
    split = split_body(request.body, form.items_key)
    if split is not None and split.member(form.items_key) in _EMPTY:
        raise BadRequest("a call without messages needs a history that is held here: x-palimpsest-history: server")
