"""A session with its tree, and the sessions it started. Rule: derived from the log's rows, the same for every reader.

A branch goes on from the deepest exchange that it shares with an older one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from proxy.engine.ports import LogReader
from proxy.engine.reports.finding import EVERY, pick_session
from proxy.model.log import BranchRow, ExchangeRow, SessionRow


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
    """A session, its branches in the order in which they began, all its exchanges, and its children, newest first."""

    session: SessionRow
    forks: tuple[Fork, ...]
    exchanges: Sequence[ExchangeRow]
    children: tuple[SessionRow, ...]


async def load_overview(log: LogReader, prefix: str) -> Overview:
    """The session whose id begins so. Raises NotFound."""
    sessions = await log.list_sessions(EVERY)
    session = pick_session(sessions, prefix)
    branches = await log.list_branches(session.id)
    exchanges = await log.list_exchanges(session.id)  # after the branches: of a session that grows it has all of theirs
    return Overview(
        session, find_forks(branches, exchanges), exchanges, tuple(row for row in sessions if row.parent == session.id)
    )


def find_forks(branches: Sequence[BranchRow], exchanges: Sequence[ExchangeRow]) -> tuple[Fork, ...]:
    """Where each branch stands in the tree."""
    depths = {row.n: row.depth for row in exchanges}

    def place(n: int) -> tuple[int, int]:
        return depths.get(n, 0), n

    seen: set[int] = set()
    forks = []
    for branch in branches:
        numbers = [n for n, _ in branch.exchanges]
        own = sorted((n for n in numbers if n not in seen), key=place)
        shared = [n for n in numbers if n in seen]
        forks.append(Fork(branch, tuple(own), max(shared, key=place) if shared else 0))
        seen.update(own)
    return tuple(forks)
