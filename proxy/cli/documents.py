"""The log's rows as JSON. Rule: JSON a client or provider sent goes out as it came, not decoded and encoded."""

import base64
import json
from typing import Any, NoReturn

import msgspec

from proxy.model.exchange import Headers
from proxy.model.log import ExchangeRow, RoundRow

Document = dict[str, Any]

_PLAIN_FIELDS = ("n", "id", "session", "opened_ms", "kind", "wire", "mode", "model", "method", "target")
_ROUND_FIELDS = ("k", "upstream", "status", "completeness", "received_size", "is_capped", "error", "finish")
_LINE_BREAKS = bytes.maketrans(b"\r\n", b"  ")


def write_json(document: object) -> bytes:
    """A document as one line: JSON has line breaks only between its tokens, where a space means the same."""
    return msgspec.json.encode(document).translate(_LINE_BREAKS) + b"\n"


def describe_exchange(row: ExchangeRow) -> Document:
    """An exchange without its request's body."""
    return {name: getattr(row, name) for name in _PLAIN_FIELDS} | {
        "headers": _spell(row.headers),
        "request_size": row.request_size,
        "is_capped": row.is_capped,
        "digest": row.digest.hex(),
        "rounds": [_describe_round(round_) for round_ in row.rounds],
    }


def describe_body(content: bytes) -> Document:
    """A request's body under the key that says how it is given: as JSON, or in Base64 where it is none."""
    if not content:
        return {"request": None}
    if is_json(content):
        return {"request": msgspec.Raw(content)}
    return {"request_base64": base64.b64encode(content).decode("ascii")}


def is_json(content: bytes) -> bool:
    """Whether the content may stand inside a JSON document as it is."""
    try:
        json.loads(content.decode("utf-8"), parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return True


def _describe_round(row: RoundRow) -> Document:
    return {name: getattr(row, name) for name in _ROUND_FIELDS} | {
        "headers": _spell(row.headers),
        "timings": row.timings,
        "usage": row.usage,
        "answer": msgspec.Raw(row.answer) if row.answer else None,
    }


def _spell(headers: Headers) -> list[tuple[str, str]]:
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
