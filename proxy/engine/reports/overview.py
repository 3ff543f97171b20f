"""A session with its tree, and the sessions it started. Rule: derived from the log's rows, the same for every reader.

A branch goes on from the deepest exchange that it shares with an older one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from proxy.engine.ports import LogReader
from proxy.engine.reports.finding import find_session
from proxy.model.log import BranchRow, Call, Selection, SessionRow

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
