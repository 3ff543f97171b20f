"""Calls as documents: without bodies in a listing, or one with all that it has.

JSON that a client or provider sent is copied into a document as it is: decoding and encoding it would lose numbers and
lone surrogates that Python's types do not hold.
"""

import base64
import json
from collections.abc import Iterable
from typing import Any, Literal, NoReturn, TypedDict

import msgspec
from msgspec import UNSET, UnsetType

from proxy.engine.ports import LogReader
from proxy.model.errors import NotFound
from proxy.model.exchange import Headers, Kind, Mode, Timings, Usage
from proxy.model.lineage import Relation
from proxy.model.log import ExchangeRow, RoundRow
from proxy.read.context import PlanDocument, describe_plan, find_bound


class TimingsDocument(msgspec.Struct, frozen=True):
    """Milliseconds from the sending of the request to the response's head, to its first body byte, and to its end.

    `overhead_ms` is how long the call waited for palimpsest before that; null for later rounds, and where unknown.
    """

    head_ms: float
    first_byte_ms: float
    total_ms: float
    overhead_ms: float | None


class RoundDocument(msgspec.Struct, frozen=True):
    """A request to an upstream and how its response ended; `completeness` is empty while it is open."""

    k: int
    upstream: str
    status: int
    completeness: str
    received_size: int
    is_capped: bool
    error: str
    finish: str
    timings: TimingsDocument | None
    usage: Usage | None
    plan: PlanDocument | None


class WholeRound(RoundDocument, frozen=True):
    """A round with the headers of its response, and what that says, assembled from a stream if it was one."""

    headers: list[tuple[str, str]]
    answer: msgspec.Raw | None


class CallFacts(msgspec.Struct, frozen=True):
    """A call of a client, the `n`-th of its session, and its place in the conversation."""

    n: int
    id: str
    session: str
    opened_ms: int
    kind: Kind
    wire: str
    mode: Mode
    model: str
    method: str
    target: str
    relation: Relation | Literal[""]
    is_side: bool
    depth: int
    base: int
    tip: str
    request_size: int
    is_capped: bool
    digest: str


class CallDocument(CallFacts, frozen=True):
    """A call in a listing."""

    rounds: list[RoundDocument]


class WholeCall(CallFacts, frozen=True):
    """A call with its request: as JSON, or in base64 where it is none; `missing` says why neither can be shown.

    `bound` is an upper bound of the request's tokens where they were not counted, else null.
    """

    rounds: list[WholeRound]
    headers: list[tuple[str, str]]
    bound: int | None
    request: msgspec.Raw | UnsetType | None = UNSET
    request_base64: str | UnsetType = UNSET
    missing: str | UnsetType = UNSET


class _Body(TypedDict, total=False):
    """The members of a document that show a request's body."""

    request: msgspec.Raw | None
    request_base64: str


def list_calls(rows: Iterable[ExchangeRow]) -> list[CallDocument]:
    """Return exchanges as documents of a listing: without headers, responses and the request's body."""
    return [
        CallDocument(**_list_facts(row), rounds=[RoundDocument(**_list_round_facts(each)) for each in row.rounds])
        for row in rows
    ]


async def describe_whole(log: LogReader, row: ExchangeRow) -> WholeCall:
    """Return an exchange with its request's body as a document; where that was erased, with the reason as `missing`."""
    rounds = [
        WholeRound(
            **_list_round_facts(each),
            headers=_decode_headers(each.headers),
            answer=msgspec.Raw(each.answer) if each.answer else None,
        )
        for each in row.rounds
    ]
    facts, headers = _list_facts(row), _decode_headers(row.headers)
    try:
        request = await log.load_request(row.id)
    except NotFound as error:
        return WholeCall(**facts, rounds=rounds, headers=headers, bound=None, request=None, missing=str(error))
    body, bound = describe_body(request), find_bound(row, request)
    return WholeCall(**facts, rounds=rounds, headers=headers, bound=bound, **body)


def describe_body(content: bytes) -> _Body:
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


def _list_facts(row: ExchangeRow) -> dict[str, Any]:
    own = {"tip": row.tip.hex(), "digest": row.digest.hex()}
    return {name: getattr(row, name) for name in CallFacts.__struct_fields__} | own


def _list_round_facts(row: RoundRow) -> dict[str, Any]:
    own = {"timings": _describe_timings(row.timings), "plan": describe_plan(row.plan)}
    return {name: getattr(row, name) for name in RoundDocument.__struct_fields__} | own


def _describe_timings(timings: Timings | None) -> TimingsDocument | None:
    if timings is None:
        return None
    return TimingsDocument(*msgspec.structs.astuple(timings))


def _decode_headers(headers: Headers) -> list[tuple[str, str]]:
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
