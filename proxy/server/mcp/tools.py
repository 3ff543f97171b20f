"""The tools of the MCP server: recall over the sessions of all agents that the requester may see.

They know nothing of the protocol. Each result is one page of plain text.
"""

import asyncio
import difflib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec

from proxy.context.references import sanitize_text
from proxy.engine.ports import Clock
from proxy.engine.recall.answers import format_age, write_page
from proxy.engine.recall.policy import RecallPolicy
from proxy.engine.recall.recall import Recall
from proxy.engine.recall.scope import RecallLog, Scope, is_conversation, load_row
from proxy.engine.recall.tool import RecallCall, find_reference
from proxy.engine.recorded.lookup import find_exchange, find_session, list_matching, read_back
from proxy.model.errors import BadRequest, NotFound, ProxyError
from proxy.model.log import ExchangeRow, Selection, SessionRow
from proxy.model.search import EntryKind, SearchQuery
from proxy.read.export import write_handoff
from proxy.read.search import KINDS, ROLES, read_since

INSTRUCTIONS = (
    "palimpsest has recorded every conversation of the agents behind it. search finds what was said, done and shown in"
    " them; expand reads a ref:ID of the results; read_file shows a file as an agent last saw it."
)
_TIME_LIMIT = 20.0
_SESSIONS, _MOST_SESSIONS = 20, 100
_MOST_SAME_PREFIX = 64
_LONGEST_NAME = 60

Page = Annotated[int, msgspec.Meta(ge=1, le=1_000_000, description="from 1")]
Session = Annotated[str, msgspec.Meta(description="id of a session, or a prefix of it; list_sessions has them")]


class SearchArguments(msgspec.Struct, frozen=True):
    """Arguments of `search`."""

    query: Annotated[str, msgspec.Meta(description="words, names or a question")]
    session: Annotated[str, msgspec.Meta(description="only in this session: its id, or a prefix of it")] = ""
    roles: Annotated[list[str], msgspec.Meta(description=f"only by these of {', '.join(ROLES)}")] = []
    tools: Annotated[list[str], msgspec.Meta(description="only outputs of these tools")] = []
    kinds: Annotated[list[EntryKind], msgspec.Meta(description=f"only these of {', '.join(KINDS)}")] = []
    since: Annotated[str, msgspec.Meta(description="only since then: 2026-01-31, with a time, or 3d for days ago")] = ""
    until: Annotated[str, msgspec.Meta(description="only before then")] = ""
    page: Page = 1


class ReferenceArguments(msgspec.Struct, frozen=True):
    """Arguments of `describe`."""

    ref: Annotated[str, msgspec.Meta(description="a reference, with or without `ref:`")]


class ExpandArguments(ReferenceArguments, frozen=True):
    """Arguments of `expand`."""

    page: Page = 1


class ReadFileArguments(msgspec.Struct, frozen=True):
    """Arguments of `read_file`."""

    session: Session
    path: Annotated[str, msgspec.Meta(description="a path, its end, `PATH @ STEP`, or `step N`")]
    call: (
        Annotated[int, msgspec.Meta(ge=1, description="as of this call of the session. Without: the newest")] | None
    ) = None
    page: Page = 1


class ListSessionsArguments(msgspec.Struct, frozen=True):
    """Arguments of `list_sessions`."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=_MOST_SESSIONS)] = _SESSIONS
    before: Annotated[int, msgspec.Meta(ge=0, description="only older ones, as a result says")] | None = None


class HandoffArguments(msgspec.Struct, frozen=True):
    """Arguments of `handoff`."""

    session: Session
    page: Page = 1


class Tool(NamedTuple):
    """A tool as clients list it."""

    name: str
    title: str
    description: str
    arguments: type[msgspec.Struct]

    @property
    def schema(self) -> Mapping[str, Any]:
        """The JSON schema of its arguments, without references to definitions."""
        (found,), definitions = msgspec.json.schema_components([self.arguments], ref_template="{name}")
        schema = dict(definitions[found["$ref"]])
        schema.pop("title", None)
        return {"type": "object", "properties": {}} | schema


class Reader(NamedTuple):
    """What a requester may read: a tenant's sessions, given by its fingerprint, or for None all of them.

    With a `refusal`, which says why, it is nothing (yet).
    """

    tenant: bytes | None
    refusal: str = ""


class ToolResult(NamedTuple):
    """The text of a result, and whether it says what was wrong."""

    text: str
    is_error: bool = False


TOOLS: Sequence[Tool] = (
    Tool("search", "Search", "Find passages in what agents said, did and saw, in all sessions.", SearchArguments),
    Tool("describe", "Describe", "Say what a reference is: tool, step, age, size, outline.", ReferenceArguments),
    Tool("expand", "Expand", "Read the original that a reference names, in pages.", ExpandArguments),
    Tool("read_file", "Read file", "Read a file as an agent last saw or wrote it, up to a call.", ReadFileArguments),
    Tool("list_sessions", "List sessions", "List recorded sessions, newest activity first.", ListSessionsArguments),
    Tool("handoff", "Hand off", "Write a session's conversation for another agent to continue.", HandoffArguments),
)


class McpTools:
    """Executes the tools. A tenant of None stands for the administrator, who sees all."""

    def __init__(
        self, log: RecallLog, recall: Recall, clock: Clock, policy: RecallPolicy, time_limit: float = _TIME_LIMIT
    ) -> None:
        self._log = log
        self._recall = recall
        self._clock = clock
        self._policy = policy
        self._time_limit = time_limit
        self._actions: Mapping[str, Callable[[bytes | None, Any], Awaitable[str]]] = {
            "search": self._search,
            "describe": self._describe,
            "expand": self._expand,
            "read_file": self._read_file,
            "list_sessions": self._list_sessions,
            "handoff": self._hand_off,
        }

    async def call(self, reader: Reader, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Return the result of a call. What is wrong with it is a result, too, that says what to do."""
        if reader.refusal:
            return ToolResult(reader.refusal, True)
        tool = next((each for each in TOOLS if each.name == name), None)
        if tool is None:
            return ToolResult(
                f"There is no tool {name[:40]!r}; there are {', '.join(each.name for each in TOOLS)}.", True
            )
        try:
            asked = msgspec.convert(arguments, tool.arguments, strict=False)
        except msgspec.ValidationError as error:
            return ToolResult(f"The arguments of {name} are not valid: {error}.{_name_unknown(tool, arguments)}", True)
        try:
            async with asyncio.timeout(self._time_limit):
                return ToolResult(await self._actions[name](reader.tenant, asked))
        except TimeoutError:
            return ToolResult("This took too long and was given up. Ask for less.", True)
        except ProxyError as error:
            return ToolResult(str(error), True)

    async def _search(self, tenant: bytes | None, asked: SearchArguments) -> str:
        if not asked.query.strip():
            raise BadRequest("search needs a query: the words, names or question to look for")
        narrowed = SearchQuery(
            text="",
            sessions=(await self._find_session(tenant, asked.session),) if asked.session else None,
            roles=tuple(asked.roles),
            tools=tuple(asked.tools),
            kinds=tuple(asked.kinds),
            since_ms=read_since(asked.since, self._clock.now_ms()) if asked.since else 0,
            until_ms=read_since(asked.until, self._clock.now_ms()) if asked.until else None,
        )
        return await self._recall.search(_scope(tenant), asked.query, asked.page, narrowed)

    async def _describe(self, tenant: bytes | None, asked: ReferenceArguments) -> str:
        return await self._recall.describe(_scope(tenant), _read_reference(asked.ref))

    async def _expand(self, tenant: bytes | None, asked: ExpandArguments) -> str:
        return await self._recall.expand(_scope(tenant), _read_reference(asked.ref), asked.page)

    async def _read_file(self, tenant: bytes | None, asked: ReadFileArguments) -> str:
        session = await self._find_session(tenant, asked.session)
        row = await self._find_call(session, asked.call)
        history = await load_row(self._log, row)
        scope = Scope(tenant=tenant, session=session, history=history, reach="tenant")
        text = await self._recall.read(scope, asked.path, asked.page)
        return f"session {session}, as of call {row.n}: {text}"

    async def _list_sessions(self, tenant: bytes | None, asked: ListSessionsArguments) -> str:
        selection = Selection(tenant=tenant or b"")
        if asked.before is not None:
            selection = Selection(tenant=tenant or b"", before=asked.before)
        rows = await list_matching(self._log, asked.limit, selection)
        if not rows:
            whose = "" if tenant is None else " of this credential"
            return f"There are no sessions{whose}{' before that' if asked.before is not None else ' yet'}."
        lines = [self._write_session(row) for row in rows]
        if len(rows) == asked.limit:
            lines.append(f"(older ones: before {rows[-1].seq})")
        return "\n".join(lines)

    async def _hand_off(self, tenant: bytes | None, asked: HandoffArguments) -> str:
        session = await self._find_session(tenant, asked.session)
        text = await write_handoff(self._log, session)
        call = RecallCall("read", f"session {session}", page=asked.page)
        return write_page(f"session {session}", text, call, self._policy.page_characters)

    def _write_session(self, row: SessionRow) -> str:
        name = f" · {sanitize_text(row.family, _LONGEST_NAME)}" if row.family else ""
        branches = f", {row.branches} branches" if row.branches > 1 else ""
        parent = f" · delegated by {row.parent}" if row.parent else ""
        model, age = sanitize_text(row.model, _LONGEST_NAME), format_age(self._clock.now_ms() - row.last_ms)
        return f"{row.id}{name} · {model} · {row.exchanges} call{'s' * (row.exchanges != 1)}{branches} · {age}{parent}"

    async def _find_session(self, tenant: bytes | None, prefix: str) -> str:
        """Return the one session of a tenant with this prefix. Raises NotFound, which names no others' sessions."""
        prefix = prefix.strip().lower()
        if tenant is None:
            return await find_session(self._log, prefix)
        ids = await self._log.list_ids(prefix, _MOST_SAME_PREFIX) if prefix else ()
        own = [id for id in ids if (await self._log.find_key(id)).tenant == tenant]
        if prefix in own or len(own) == 1:
            return prefix if prefix in own else own[0]
        if own:
            raise NotFound(f"{len(own)} sessions begin with {prefix[:40]!r}; write more of the id")
        raise NotFound(f"no session of yours begins with {prefix[:40]!r}; list_sessions has them")

    async def _find_call(self, session: str, n: int | None) -> ExchangeRow:
        if n is not None:
            return await find_exchange(self._log, session, n)
        async for row in read_back(self._log, session):
            if is_conversation(row):
                return row
        raise NotFound("this session has no call whose messages can be read")


def _scope(tenant: bytes | None) -> Scope:
    return Scope(tenant=tenant, reach="tenant")


def _read_reference(text: str) -> str:
    """Return the id in a reference. Raises BadRequest."""
    if found := find_reference(text):
        return found
    raise BadRequest(f"{text[:40]!r} is no reference: one is `ref:` and ten letters and digits, as search returns them")


def _name_unknown(tool: Tool, arguments: Mapping[str, Any]) -> str:
    """Return what an argument was probably meant to be, if its name is not known."""
    known = tool.arguments.__struct_fields__
    for name in arguments:
        if name not in known and (near := difflib.get_close_matches(name, known, 1)):
            return f" Did you mean {near[0]}, not {name[:40]}?"
    return f" It takes {', '.join(known)}."
