"""Searching the log for people and programs: queries as they are asked, answers as documents, entries as pages."""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Protocol, TypeVar, get_args

import msgspec
from msgspec import Meta

from proxy.context.memory.traces import fit_text
from proxy.engine.ports import Index, LogReader
from proxy.engine.recall.visibility import VisibilityReader
from proxy.engine.recorded.conversation import load_nodes
from proxy.engine.recorded.documents import describe
from proxy.engine.recorded.lookup import find_session, pick_branch
from proxy.model.errors import BadRequest, Erased, NotFound
from proxy.model.exchange import SessionKey
from proxy.model.search import EntryKind, Hit, SearchQuery, Visibility
from proxy.read.context import OriginalPage, load_page, make_page

DEFAULT_LIMIT, MOST_HITS = 20, 200
MOST_TOKENS = 100_000
KINDS: Sequence[EntryKind] = get_args(EntryKind)
ROLES = ("user", "assistant", "tool", "other")

_AGO = re.compile(r"(\d{1,6})\s*(m|min|h|d|w)")
_UNIT_MS: Mapping[str, int] = {
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}
_REFERENCE = re.compile(r"(?:ref:)?([a-z2-7]{10})")

Name = TypeVar("Name", bound=str)


class HitDocument(msgspec.Struct, frozen=True):
    """An entry that was found. `reference` names all of it; call `n` brought it, at `at_ms`.

    `visibility`: the newest call of the session has it word for word (`sent`), has another text in its place
    (`in_short`), or has nothing of it (`not_sent`); null where that call cannot be read.
    """

    reference: str
    session: str
    node: str
    exchange: str
    n: int
    role: str
    sender: str
    tool: str
    kind: EntryKind
    at_ms: int
    snippet: str
    score: float
    visibility: Visibility | None


class AnswerDocument(msgspec.Struct, frozen=True):
    """What a search found, the best first. `is_complete` is false if the time limit ended the search.

    `behind` counts the records that cannot be found yet.
    """

    hits: list[HitDocument]
    is_complete: bool
    behind: int


class SearchRequest(msgspec.Struct, frozen=True):
    """A search as it is asked for. Empty values do not restrict it.

    Of a `branch` only what its history has is found. `since` and `until` may be in ISO 8601, in UTC unless they say
    otherwise.
    """

    q: Annotated[str, Meta(description="what to look for: any text")]
    session: Annotated[str, Meta(description="the id of a session, or a prefix of it")] = ""
    branch: Annotated[str, Meta(description="the tip of a branch of it, or a prefix of that")] = ""
    kind: Annotated[str, Meta(description="kinds of entries, separated by commas")] = ""
    role: Annotated[str, Meta(description="user, assistant, tool, other; several with commas")] = ""
    sender: Annotated[str, Meta(description="names of users, separated by commas")] = ""
    tool: Annotated[str, Meta(description="names of tools, separated by commas")] = ""
    since: Annotated[str, Meta(description="a date, a time, or `3d`, `2h`, `30m` ago")] = ""
    until: Annotated[str, Meta(description="the same")] = ""
    limit: Annotated[int, Meta(ge=1, le=MOST_HITS, description="how many hits at most")] = DEFAULT_LIMIT
    tokens: Annotated[int, Meta(ge=1, le=MOST_TOKENS, description="fill the answer with so many")] | None = None


class SearchLog(LogReader, Protocol):
    """The log as searching reads it."""

    async def find_key(self, session: str) -> SessionKey:
        """Return the key of the session with this id. Raises NotFound."""
        ...


class LogSearch:
    """Searches the log, and says of each hit whether the model sees it."""

    def __init__(self, log: SearchLog, index: Index) -> None:
        self._log = log
        self._index = index
        self._visibility = VisibilityReader(log, index)

    async def search(self, request: SearchRequest, now_ms: int, tenant: str | None = None) -> AnswerDocument:
        """Search as asked, in the sessions of one tenant, or with None in all. Raises BadRequest and NotFound."""
        sessions = within = None
        if request.session:
            sessions = (await find_own_session(self._log, request.session, tenant),)
        if request.branch and sessions is None:
            raise BadRequest("a branch is one of a session: name that, too")
        if request.branch and sessions is not None:
            branch = pick_branch(await self._log.list_branches(sessions[0]), request.branch)
            within = frozenset(await load_nodes(self._log, sessions[0], branch))
        found = await self._index.search(
            SearchQuery(
                text=request.q,
                tenant=tenant,
                sessions=sessions,
                within=within,
                senders=_split(request.sender),
                roles=_read_names(request.role, "role", ROLES),
                tools=_split(request.tool),
                kinds=_read_names(request.kind, "kind", KINDS),
                since_ms=read_since(request.since, now_ms) if request.since else 0,
                until_ms=read_since(request.until, now_ms) if request.until else None,
                limit=request.limit,
                tokens=request.tokens,
            )
        )
        visible = await self._visibility.judge(found.hits)
        hits = [_describe_hit(hit, each) for hit, each in zip(found.hits, visible, strict=True)]
        return AnswerDocument(hits, found.is_complete, found.behind)


async def find_own_session(log: SearchLog, prefix: str, tenant: str | None) -> str:
    """Return the id of the session with this prefix. Raises NotFound, also for one of another tenant.

    A caller that may only see its own sessions has to give the whole id: it is told nothing of others.
    """
    if tenant is None:
        return await find_session(log, prefix)
    key = await log.find_key(prefix)
    if key.tenant.hex() != tenant:
        raise NotFound(f"there is no session {prefix}")
    return key.id


async def load_found_page(
    log: SearchLog, index: Index, reference: str, number: int | None, tenant: str | None = None
) -> OriginalPage:
    """Load a page of what a reference of the log, or of a hit, names; None: all of it. Raises NotFound.

    With a `tenant`, only of its own sessions.
    """
    try:
        page = await load_page(log, reference, number)
    except Erased as error:
        if tenant is None or (await log.find_key(error.session)).tenant.hex() == tenant:
            raise
        raise NotFound(f"no session of yours has the reference {reference[:40]!r}") from None
    except NotFound as error:
        # a caller that may see its own sessions only is not told what others have
        unknown = error if tenant is None else NotFound(f"no session of yours has the reference {reference[:40]!r}")
        return await _load_indexed_page(index, reference, number, tenant, unknown)
    if tenant is not None and (await log.find_key(page.session)).tenant.hex() != tenant:
        raise NotFound(f"no session of yours has the reference {reference[:40]!r}")
    return page


def _split(names: str) -> tuple[str, ...]:
    return tuple(filter(None, map(str.strip, names.split(","))))


def read_since(text: str, now_ms: int) -> int:
    """Return a date, a time or a duration before now as milliseconds since the Unix epoch. Raises BadRequest."""
    if ago := _AGO.fullmatch(text.strip().lower()):
        return max(0, now_ms - int(ago[1]) * _UNIT_MS[ago[2]])
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError as error:
        what = (
            f"since is a date such as 2026-11-26, a time such as 2026-11-26T08:00, or 3d, 2h or 30m, not {text[:40]!r}"
        )
        raise BadRequest(what) from error
    return max(0, int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000))


def _read_names(text: str, name: str, known: Sequence[Name]) -> tuple[Name, ...]:
    found = []
    for each in filter(None, map(str.strip, text.split(","))):
        if each not in known:
            raise BadRequest(f"{name} is one of {', '.join(known)}, not {each[:40]!r}")
        found.append(known[known.index(each)])
    return tuple(found)


async def _load_indexed_page(
    index: Index, reference: str, number: int | None, tenant: str | None, unknown: NotFound
) -> OriginalPage:
    found = _REFERENCE.fullmatch(reference.strip().lower())
    entry = await index.find_entry(found[1]) if found else None
    if entry is None or (tenant is not None and entry.tenant != tenant):
        raise unknown
    return make_page(entry.reference, entry.session, entry.text, number)


def _describe_hit(hit: Hit, visibility: Visibility | None) -> HitDocument:
    texts = {name: fit_text(getattr(hit, name)) for name in ("role", "sender", "tool", "snippet")}
    return describe(HitDocument, hit, node=hit.node.hex(), score=round(hit.score, 3), visibility=visibility, **texts)
