"""Sessions and branches as JSON documents."""

from collections.abc import Mapping, Sequence
from itertools import accumulate

import msgspec

from proxy.engine.ports import LogReader
from proxy.engine.recorded.conversation import find_format, list_raws, load_body
from proxy.engine.recorded.documents import describe
from proxy.engine.recorded.lookup import find_session
from proxy.model.errors import NotFound
from proxy.model.lineage import Relation
from proxy.model.log import BranchRow, Call, Selection
from proxy.model.lru import LruCache
from proxy.read.savings import SavingsInputs
from proxy.read.session_summary import SessionSummary, TitleCache, make_title, summarize_sessions

_MAX_CHILDREN = 100
_MOST_NAMED, _MOST_WORDS = 24, 1024
_NO_CALL = Call(0, "", 0)
# A history of a thousand turns that is edited as often has a million exchange numbers in its branches.
_MAX_NUMBERS = 100_000


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


class BranchWords:
    """Reads the last words of the user on branches. Those of the newest tips stay in memory."""

    def __init__(self, log: LogReader) -> None:
        self._log = log
        self._known: LruCache[bytes, str] = LruCache(_MOST_WORDS)

    async def load(self, session: str, branches: Sequence[BranchRow]) -> dict[bytes, str]:
        """Return the words by the tips of branches of a session, of the newest branches only where these are many."""
        found: dict[bytes, str] = {}
        for branch in branches[-_MOST_NAMED:]:
            words = self._known.get(branch.tip)
            if words is None:
                words = await self._read(session, branch)
                self._known.put(branch.tip, words)
            found[branch.tip] = words
        return found

    def forget(self) -> None:
        """Forget all that was read."""
        self._known = LruCache(_MOST_WORDS)

    async def _read(self, session: str, branch: BranchRow) -> str:
        last = max(branch.own, key=_get_position, default=_NO_CALL)
        for row in await self._log.list_calls(session, last.n - 1, 1) if last.n else ():
            try:
                form, raws = find_format(row), list_raws(await load_body(self._log, row))
            except NotFound:
                return ""
            for raw in reversed(raws):
                message = form.parse_message(raw)
                if message.role == "user" and not message.results and (words := make_title([message.text])):
                    return words
        return ""


async def load_overview(
    log: LogReader,
    prefix: str,
    inputs: SavingsInputs,
    titles: TitleCache | None = None,
    words: BranchWords | None = None,
) -> OverviewDocument:
    """Load the session whose id has this prefix, with its branches and children. Raises NotFound.

    Branches have the words of the user where these are to be read, too.
    """
    session = await find_session(log, prefix)
    branches = await log.list_branches(session)
    children = await log.list_sessions(_MAX_CHILDREN, Selection(parent=session))
    # Read after the branches: a session that grows meanwhile then counts at least all exchanges that these show.
    row = await log.find_session(session)
    rows = (row, *(child for child in children if child.parent == session))
    summary, *others = await summarize_sessions(log, rows, inputs, titles)
    said = await words.load(session, branches) if words is not None else {}
    return OverviewDocument(summary, describe_branches(branches, said), others)


def describe_branches(branches: Sequence[BranchRow], words: Mapping[bytes, str]) -> list[BranchDocument]:
    """Return branches as documents, with these words by their tips. Older branches must come before younger ones.

    They list all their exchanges, until these are too many in sum; later branches then list only their own.
    """
    # By a branch's tip, the deepest exchange seen so far: before its own exchanges, and after each of them.
    deepest: dict[bytes, list[Call]] = {}
    found = []
    left = _MAX_NUMBERS
    for branch in branches:
        shared = deepest[branch.trunk.tip][branch.shared] if branch.trunk else _NO_CALL
        deepest[branch.tip] = list(accumulate(branch.own, lambda a, b: max(a, b, key=_get_position), initial=shared))
        numbers = [call.n for call in branch.exchanges] if left > 0 else None
        left -= len(numbers or ())
        found.append(
            describe(
                BranchDocument,
                branch,
                tip=branch.tip.hex(),
                left=branch.left.hex(),
                after=shared.n,
                own=tuple(call.n for call in sorted(branch.own, key=_get_position)),
                exchanges=numbers,
                words=words.get(branch.tip, ""),
            )
        )
    return found


def _get_position(call: Call) -> tuple[int, int]:
    return call.depth, call.n
