"""Sessions, branches and exchanges as JSON documents. JSON that a client or provider sent is copied, never decoded and
encoded again.
"""

import base64
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NoReturn

import msgspec

from proxy.engine.ports import LogReader
from proxy.engine.reports.context import describe_plan
from proxy.engine.reports.lookup import find_session
from proxy.model.exchange import Headers
from proxy.model.log import BranchRow, Call, ExchangeRow, RoundRow, Selection, SessionRow

_MOST_CHILDREN = 100
_NONE = Call(0, "", 0)


@dataclass(frozen=True, slots=True)
class Fork:
    """A branch in its tree.

    `own`: numbers of the exchanges that no older branch has, in the order of the conversation. `after`: number of the
    exchange that it goes on from; 0 where it shares none.
    """

    branch: BranchRow
    own: tuple[int, ...]
    after: int


@dataclass(frozen=True, slots=True)
class Overview:
    """A session, its branches in the order in which they began, and the newest of its children, newest first."""

    session: SessionRow
    forks: tuple[Fork, ...]
    children: tuple[SessionRow, ...]


async def load_overview(log: LogReader, prefix: str) -> Overview:
    """The session whose id begins so. Raises NotFound."""
    session = await find_session(log, prefix)
    forks = find_forks(await log.list_branches(session))
    children = await log.list_sessions(_MOST_CHILDREN, Selection(parent=session))
    row = await log.find_session(session)  # after the branches: of a session that grows it counts all of theirs
    return Overview(row, forks, tuple(child for child in children if child.parent == session))


def find_forks(branches: Sequence[BranchRow]) -> tuple[Fork, ...]:
    """Where each branch stands in the tree; older ones come before younger."""
    deepest: dict[bytes, list[Call]] = {}  # of a branch by its tip: before its own calls, and after each of them
    forks = []
    for branch in branches:
        shared = deepest[branch.trunk.tip][branch.shared] if branch.trunk else _NONE
        deepest[branch.tip] = list(accumulate(branch.own, _find_deeper, initial=shared))
        own = tuple(call.n for call in sorted(branch.own, key=_place))
        forks.append(Fork(branch, own, shared.n))
    return tuple(forks)


def _find_deeper(one: Call, other: Call) -> Call:
    return max(one, other, key=_place)


def _place(call: Call) -> tuple[int, int]:
    return call.depth, call.n


Document = dict[str, Any]

_PLAIN_FIELDS = ("n", "id", "session", "opened_ms", "kind", "wire", "mode", "model", "method", "target")
_PLACE_FIELDS = ("relation", "is_side", "depth", "base")
_ROUND_FIELDS = ("k", "upstream", "status", "completeness", "received_size", "is_capped", "error", "finish")
# A history of a thousand turns that is edited as often has a million of them.
_MOST_NUMBERS = 100_000
_LINE_BREAKS = bytes.maketrans(b"\r\n", b"  ")


def write_json(document: object) -> bytes:
    """A document as one line: JSON has line breaks only between its tokens, where a space means the same."""
    return msgspec.json.encode(document).translate(_LINE_BREAKS) + b"\n"


def describe_sessions(rows: Iterable[SessionRow]) -> list[Document]:
    """Sessions as in a listing."""
    return [_describe_session(row) for row in rows]


def describe_overview(overview: Overview) -> Document:
    """A session with its tree and the sessions that it started."""
    return {
        "session": _describe_session(overview.session),
        "branches": list(_describe_forks(overview.forks)),
        "children": describe_sessions(overview.children),
    }


def list_calls(rows: Iterable[ExchangeRow]) -> list[Document]:
    """Exchanges as in a listing: without headers, answers and the request's body."""
    return [_describe_call(row, [_describe_round(round_) for round_ in row.rounds]) for row in rows]


def describe_exchange(row: ExchangeRow) -> Document:
    """An exchange without its request's body."""
    rounds = [
        _describe_round(round_)
        | {"headers": _spell(round_.headers), "answer": msgspec.Raw(round_.answer) if round_.answer else None}
        for round_ in row.rounds
    ]
    return _describe_call(row, rounds) | {"headers": _spell(row.headers)}


def describe_body(content: bytes) -> Document:
    """A request's body under the key that says how it is given: as JSON, or in Base64 where it is none."""
    if not content:
        return {"request": None}
    if is_json(content):
        return {"request": msgspec.Raw(content)}
    return {"request_base64": base64.b64encode(content).decode("ascii")}


def describe_missing(reason: str) -> Document:
    """A request's body that the log does not hold (any more), and why."""
    return {"request": None, "missing": reason}


def is_json(content: bytes) -> bool:
    """Whether the content may stand inside a JSON document as it is."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return False
    try:
        msgspec.json.decode(content, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return _is_lenient_json(text)
    return True


def _is_lenient_json(text: str) -> bool:
    """The same for what msgspec refuses, such as lone surrogates; six times as slow."""
    try:
        json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return True


def _describe_session(row: SessionRow) -> Document:
    return {name: getattr(row, name) for name in SessionRow.__slots__}


def _describe_forks(forks: Iterable[Fork]) -> Iterator[Document]:
    """Branches with all their exchanges, until those are too many: then only with what is their own."""
    left = _MOST_NUMBERS
    for fork in forks:
        numbers = [call.n for call in fork.branch.exchanges] if left > 0 else None
        left -= len(numbers or ())
        yield _describe_fork(fork) | {"exchanges": numbers}


def _describe_fork(fork: Fork) -> Document:
    branch = fork.branch
    return {
        "tip": branch.tip.hex(),
        "depth": branch.depth,
        "relation": branch.relation,
        "is_side": branch.is_side,
        "left": branch.left.hex(),
        "after": fork.after,
        "own": fork.own,
    }


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


def _spell(headers: Headers) -> list[tuple[str, str]]:
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
