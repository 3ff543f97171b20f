"""Calls as documents: without bodies in a listing, or one with all that it has.

JSON that a client or provider sent is copied into a document as it is: decoding and encoding it would lose numbers and
lone surrogates that Python's types do not hold.
"""

import base64
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from proxy.engine.ports import LogReader
from proxy.engine.recorded.documents import describe
from proxy.model.errors import NotFound
from proxy.model.exchange import Headers, Timings, Usage
from proxy.model.log import CallFacts, ExchangeRow, RoundFacts, RoundRow
from proxy.read.context import PlanDocument, describe_plan, find_bound


class TimingsDocument(Timings, frozen=True, array_like=False):
    """Milliseconds from the sending of the request to the response's head, to its first body byte, and to its end.

    `overhead_ms` is how long the call waited for palimpsest before that; null for later rounds, and where unknown.
    """

    overhead_ms: float | None


@dataclass(frozen=True, slots=True)
class RoundDocument(RoundFacts):
    """A request to an upstream and how its response ended; `completeness` is empty while it is open."""

    timings: TimingsDocument | None
    usage: Usage | None
    plan: PlanDocument | None


@dataclass(frozen=True, slots=True)
class WholeRound(RoundDocument):
    """A round with the headers of its response, and what that says, assembled from a stream if it was one."""

    headers: list[tuple[str, str]]
    answer: msgspec.Raw | None


@dataclass(frozen=True, slots=True)
class CallDocument(CallFacts):
    """A call in a listing."""

    tip: str
    request_size: int
    is_capped: bool
    digest: str
    rounds: Sequence[RoundDocument]


@dataclass(frozen=True, slots=True)
class WholeCall(CallDocument):
    """A call with its request: as JSON, or in base64 where it is none; `missing` says why neither can be shown.

    `bound` is an upper bound of the request's tokens where they were not counted, else null.
    """

    rounds: Sequence[WholeRound]
    headers: list[tuple[str, str]]
    bound: int | None
    request: msgspec.Raw | UnsetType | None = UNSET
    request_base64: str | UnsetType = UNSET
    missing: str | UnsetType = UNSET


Call = TypeVar("Call", CallDocument, WholeCall)
ShownRound = TypeVar("ShownRound", RoundDocument, WholeRound)


def list_calls(rows: Iterable[ExchangeRow]) -> list[CallDocument]:
    """Return exchanges as documents of a listing: without headers, responses and the request's body."""
    return [
        _describe(CallDocument, row, rounds=[_describe_round(RoundDocument, each) for each in row.rounds])
        for row in rows
    ]


async def describe_whole(log: LogReader, row: ExchangeRow) -> WholeCall:
    """Return an exchange with its request's body as a document; where that was erased, with the reason as `missing`."""
    rounds = [
        _describe_round(
            WholeRound,
            each,
            headers=_decode_headers(each.headers),
            answer=msgspec.Raw(each.answer) if each.answer else None,
        )
        for each in row.rounds
    ]
    found: dict[str, Any]
    try:
        request = await log.load_request(row.id)
        found = {"bound": find_bound(row, request), **describe_body(request)}
    except NotFound as error:
        found = {"bound": None, "request": None, "missing": str(error)}
    return _describe(WholeCall, row, rounds=rounds, headers=_decode_headers(row.headers), **found)


def describe_body(content: bytes) -> dict[str, object]:
    """Return a request's body under the key that names its form: `request` for JSON, else `request_base64`."""
    if not content:
        return {"request": None}
    if is_json(content):
        return {"request": msgspec.Raw(content)}
    return {"request_base64": base64.b64encode(content).decode("ascii")}


def is_json(content: bytes) -> bool:
    """Return whether the content may be copied into a JSON document."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return False
    try:
        msgspec.json.decode(content, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        # msgspec refuses valid JSON too, such as lone surrogates. This takes six times as long.
        try:
            json.loads(text, parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            return False
    return True


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _describe(kind: type[Call], row: ExchangeRow, **own: Any) -> Call:
    return describe(kind, row, tip=row.tip.hex(), digest=row.digest.hex(), **own)


def _describe_round(kind: type[ShownRound], row: RoundRow, **own: Any) -> ShownRound:
    timings = row.timings and describe(TimingsDocument, row.timings)
    return describe(kind, row, timings=timings, plan=describe_plan(row.plan), **own)


def _decode_headers(headers: Headers) -> list[tuple[str, str]]:
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
