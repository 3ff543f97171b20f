"""Sessions, branches and exchanges as JSON documents.

JSON that a client or provider sent is copied into a document as it is: decoding and encoding it would lose numbers and
lone surrogates that Python's types do not hold.
"""

import base64
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NoReturn

import msgspec

from proxy.engine.ports import LogReader
from proxy.engine.reports.context import Document, describe_plan
from proxy.engine.reports.lookup import find_session
from proxy.engine.reports.session_summary import SessionSummary
from proxy.model.exchange import Headers
from proxy.model.log import BranchRow, Call, ExchangeRow, RoundRow, Selection, SessionRow

_MAX_CHILDREN = 100
_NO_CALL = Call(0, "", 0)
_PLAIN_FIELDS = ("n", "id", "session", "opened_ms", "kind", "wire", "mode", "model", "method", "target")
_PLACE_FIELDS = ("relation", "is_side", "depth", "base")
_ROUND_FIELDS = ("k", "upstream", "status", "completeness", "received_size", "is_capped", "error", "finish")
# A history of a thousand turns that is edited as often has a million exchange numbers in its branches.
_MAX_NUMBERS = 100_000
_LINE_BREAKS = bytes.maketrans(b"\r\n", b"  ")


@dataclass(frozen=True, slots=True)
class Fork:
    """A branch and its place in the tree of a session.

    `own` are the numbers of the exchanges that no older branch has, in the order of the conversation. `after` is the
    number of the deepest exchange that it shares with an older branch, 0 where it shares none.
    """

    branch: BranchRow
    own: tuple[int, ...]
    after: int


@dataclass(frozen=True, slots=True)
class Overview:
    """A session, its branches in the order in which they began, and the newest of its child sessions, newest first."""

    session: SessionRow
    forks: tuple[Fork, ...]
    children: tuple[SessionRow, ...]


async def load_overview(log: LogReader, prefix: str) -> Overview:
    """Load the session whose id has this prefix, with its branches and children. Raises NotFound."""
    session = await find_session(log, prefix)
    forks = find_forks(await log.list_branches(session))
    children = await log.list_sessions(_MAX_CHILDREN, Selection(parent=session))
    # Read after the branches: a session that grows meanwhile then counts at least all exchanges that these show.
    row = await log.find_session(session)
    return Overview(row, forks, tuple(child for child in children if child.parent == session))


def find_forks(branches: Sequence[BranchRow]) -> tuple[Fork, ...]:
    """Compute where each branch begins in the tree. Older branches must come before younger ones."""
    # By a branch's tip, the deepest exchange seen so far: before its own exchanges, and after each of them.
    deepest: dict[bytes, list[Call]] = {}
    forks = []
    for branch in branches:
        shared = deepest[branch.trunk.tip][branch.shared] if branch.trunk else _NO_CALL
        deepest[branch.tip] = list(accumulate(branch.own, lambda a, b: max(a, b, key=_get_position), initial=shared))
        own = tuple(call.n for call in sorted(branch.own, key=_get_position))
        forks.append(Fork(branch, own, shared.n))
    return tuple(forks)


def _get_position(call: Call) -> tuple[int, int]:
    return call.depth, call.n


def write_json(document: object) -> bytes:
    """Encode a document as one line: JSON has line breaks only between its tokens, where a space means the same."""
    return msgspec.json.encode(document).translate(_LINE_BREAKS) + b"\n"


def describe_overview(overview: Overview, summaries: Sequence[SessionSummary]) -> Document:
    """Return a session with its branches and child sessions as a document; `summaries` are those of it and of these.

    Branches list all their exchanges, until these are too many in sum; later branches then list only their own.
    """
    branches = []
    left = _MAX_NUMBERS
    for fork in overview.forks:
        numbers = [call.n for call in fork.branch.exchanges] if left > 0 else None
        left -= len(numbers or ())
        branches.append(
            {
                "tip": fork.branch.tip.hex(),
                "depth": fork.branch.depth,
                "relation": fork.branch.relation,
                "is_side": fork.branch.is_side,
                "left": fork.branch.left.hex(),
                "after": fork.after,
                "own": fork.own,
                "exchanges": numbers,
            }
        )
    session, *children = summaries
    return {"session": session, "branches": branches, "children": children}


def list_calls(rows: Iterable[ExchangeRow]) -> list[Document]:
    """Return exchanges as documents of a listing: without headers, responses and the request's body."""
    return [_describe_call(row, [_describe_round(round_) for round_ in row.rounds]) for row in rows]


def describe_exchange(row: ExchangeRow) -> Document:
    """Return an exchange as a document without its request's body."""
    rounds = [
        _describe_round(round_)
        | {"headers": _decode_headers(round_.headers), "answer": msgspec.Raw(round_.answer) if round_.answer else None}
        for round_ in row.rounds
    ]
    return _describe_call(row, rounds) | {"headers": _decode_headers(row.headers)}


def describe_body(content: bytes) -> Document:
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


def _describe_call(row: ExchangeRow, rounds: list[Document]) -> Document:
    return {name: getattr(row, name) for name in _PLAIN_FIELDS + _PLACE_FIELDS} | {
        "tip": row.tip.hex(),
        "request_size": row.request_size,
        "is_capped": row.is_capped,
        "digest": row.digest.hex(),
        "rounds": rounds,
    }


def _describe_round(row: RoundRow) -> Document:
    return {name: getattr(row, name) for name in _ROUND_FIELDS} | {
        "timings": row.timings,
        "usage": row.usage,
        "plan": describe_plan(row.plan),
    }


def _decode_headers(headers: Headers) -> list[tuple[str, str]]:
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
