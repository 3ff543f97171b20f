"""Sessions and branches as JSON documents."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import msgspec

from proxy.engine.ports import LogReader
from proxy.engine.recorded.conversation import find_format, list_raws, load_body
from proxy.engine.recorded.documents import describe
from proxy.engine.recorded.lookup import find_session
from proxy.model.errors import NotFound
from proxy.model.lineage import Relation
from proxy.model.log import BranchRow, Call, Selection, SessionRow
from proxy.model.lru import LruCache
from proxy.read.session_summary import SessionSummary, make_title

_MAX_CHILDREN = 100
_MOST_NAMED, _MOST_WORDS = 24, 1024
_NO_CALL = Call(0, "", 0)
# A history of a thousand turns that is edited as often has a million exchange numbers in its branches.
_MAX_NUMBERS = 100_000


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


class BranchDocument(msgspec.Struct, frozen=True):
    """A branch: its tip, the node where it `left` another, the calls that are its `own`, and the one it comes `after`.

    `exchanges` are all of its calls; null once the branches before it list very many. `words` are the last that the
    user says on it, empty if they were not looked for, or cannot be read.
    """

    tip: str
    depth: int
    relation: Relation
    is_side: bool
    left: str
    after: int
    own: tuple[int, ...]
    exchanges: list[int] | None
    words: str = ""


class OverviewDocument(msgspec.Struct, frozen=True):
    """A session with its branches, and the newest of the sessions that it started."""

    session: SessionSummary
    branches: list[BranchDocument]
    children: list[SessionSummary]


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


class BranchWords:
    """Reads the last words of the user on branches. Those of the newest tips stay in memory."""

    def __init__(self, log: LogReader) -> None:
        self._log = log
        self._known: LruCache[bytes, str] = LruCache(_MOST_WORDS)

    async def load(self, session: str, forks: Sequence[Fork]) -> dict[bytes, str]:
        """Return the words by the tips of branches of a session, of the newest branches only where these are many."""
        found: dict[bytes, str] = {}
        for fork in forks[-_MOST_NAMED:]:
            tip = fork.branch.tip
            words = self._known.get(tip)
            if words is None:
                words = await self._read(session, fork)
                self._known.put(tip, words)
            found[tip] = words
        return found

    def forget(self) -> None:
        """Forget all that was read."""
        self._known = LruCache(_MOST_WORDS)

    async def _read(self, session: str, fork: Fork) -> str:
        for row in await self._log.list_calls(session, fork.own[-1] - 1, 1) if fork.own else ():
            try:
                form, raws = find_format(row), list_raws(await load_body(self._log, row))
            except NotFound:
                return ""
            for raw in reversed(raws):
                message = form.parse_message(raw)
                if message.role == "user" and not message.results and (words := make_title([message.text])):
                    return words
        return ""


def _get_position(call: Call) -> tuple[int, int]:
    return call.depth, call.n


def describe_overview(
    overview: Overview, summaries: Sequence[SessionSummary], words: Mapping[bytes, str] | None = None
) -> OverviewDocument:
    """Return a session with its branches and child sessions as a document; `summaries` are those of it and of these.

    Branches list all their exchanges, until these are too many in sum; later branches then list only their own.
    """
    branches = []
    left = _MAX_NUMBERS
    for fork in overview.forks:
        numbers = [call.n for call in fork.branch.exchanges] if left > 0 else None
        left -= len(numbers or ())
        branches.append(
            describe(
                BranchDocument,
                fork.branch,
                tip=fork.branch.tip.hex(),
                left=fork.branch.left.hex(),
                after=fork.after,
                own=fork.own,
                exchanges=numbers,
                words=(words or {}).get(fork.branch.tip, ""),
            )
        )
    session, *children = summaries
    return OverviewDocument(session, branches, children)
