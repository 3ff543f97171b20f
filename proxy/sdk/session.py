"""A session of a Python program: its life cycle, and the calls that it makes."""

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from proxy.config import Settings
from proxy.engine.compaction.job import ManualOptions
from proxy.engine.compaction.manual import NothingToCompact
from proxy.engine.memory.messages import MessageDocument, load_message, load_messages
from proxy.engine.memory.path import load_path
from proxy.engine.runtime import SystemIds
from proxy.engine.turns.answers import OnPart
from proxy.engine.turns.context import ContextWire, build_context
from proxy.engine.turns.conversation import MOST_TURNS, ProgramSession
from proxy.engine.turns.recording import SessionRequest, make_turn
from proxy.engine.turns.tools import ProgramTool, make_tools
from proxy.model.errors import BadRequest
from proxy.model.events import SessionClosedEvent
from proxy.model.parts import MessagePart
from proxy.model.results import (
    BuiltContext,
    CompactionResult,
    FileHandleResult,
    FinishReason,
    RecordResult,
    TokenUsage,
    TurnFigures,
    TurnResult,
)
from proxy.read.context import load_page, make_compaction_result
from proxy.sdk.engines import ENGINES, SharedEngine
from proxy.sdk.errors import (
    DuplicateIDError,
    ImmutableFieldError,
    MessageNotFoundError,
    PartNotFoundError,
    SessionClosedError,
    StoreError,
    naming_errors,
)
from proxy.sdk.events import EventBus, Handler
from proxy.sdk.memory import MemoryOfSession
from proxy.sdk.streaming import stream_parts

SYSTEM_PROMPT = "You are a helpful assistant."

Tool = ProgramTool | Callable[..., Any] | Mapping[str, Any]
"""A tool: a Python function, what `make_tool` returns, or a mapping that describes one as a provider's API does."""

AGENT_NAME = re.compile(r"[\w.:/-]{1,80}", re.ASCII)
_NAMED = "#"  # between an agent and the name of its session
_FIXED = frozenset(
    {"id", "agent", "model", "parent_id", "token_usage", "event_bus", "compaction_in_progress", "memory"}
)
_ids = SystemIds()

HANDLER_SECONDS = 5.0
"""How long handlers of events have to end when a session is closed."""


class _SessionCall:
    """A call of a session: whatever it waits for runs within it."""

    def __init__(self, session: "Session") -> None:
        self.session = session
        self.is_over = False


_AROUND: ContextVar[tuple[_SessionCall, ...]] = ContextVar("palimpsest_calls", default=())


class Session:
    """A conversation with a model, kept in the log and managed as any other.

    `Session.create` begins one, and `Session.load` goes on with one of the log. It is to be used in one event loop, and
    closed at the end: `async with await Session.create(model=...) as session`.
    """

    def __init__(self, shared: SharedEngine, own: ProgramSession) -> None:
        self._shared = shared
        self._own = own
        self._bus = EventBus()
        self._bus.follow(shared.engine.events, own.key.id)
        self._is_closed = self._is_closing = False
        self._has_closed = asyncio.Event()
        self._calls = 0  # under way
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        shared.closers.add(self.close)

    @classmethod
    async def create(
        cls,
        *,
        model: str,
        agent: str = "default",
        parent_id: str | None = None,
        config: Settings | None = None,
        system_prompt: str = SYSTEM_PROMPT,
        db_path: str | Path | None = None,
    ) -> Self:
        """Begin a session, which is in the log then.

        `parent_id` is the session whose agent starts this one. Without `config` the settings are those of the
        environment and of the file that PALIMPSEST_CONFIG names. `db_path` is the directory of the log. Raises
        ConfigError, also if a key is missing, and StoreError, of which DuplicateIDError: its name is taken.
        """
        _check_texts(model=model, agent=agent, system_prompt=system_prompt)
        if not AGENT_NAME.fullmatch(agent):
            raise BadRequest(f"agent is a name of letters, digits and . _ : / -, not {agent!r:.100}")
        shared = await ENGINES.acquire(config, db_path)
        try:
            shared.check_model(model)
            wanted = SessionRequest(model, f"{agent}-{_ids.next_exchange()}", "", system_prompt, parent_id or "")
            with naming_errors(taken=DuplicateIDError):
                own = await shared.engine.conversations.create(wanted)
            return cls(shared, own)
        except BaseException:
            await ENGINES.release(shared)
            raise

    @classmethod
    async def open(
        cls,
        name: str,
        *,
        model: str,
        agent: str = "default",
        config: Settings | None = None,
        system_prompt: str = SYSTEM_PROMPT,
        db_path: str | Path | None = None,
    ) -> Self:
        """Go on with the session of this name and agent, or begin it: the same call before and after a restart.

        `model` and `system_prompt` are those of a new one; a name belongs to the upstream of the model. Raises as
        `create` and `load` do.
        """
        _check_texts(name=name, model=model, agent=agent, system_prompt=system_prompt)
        for what, given in (("name", name), ("agent", agent)):
            if not AGENT_NAME.fullmatch(given):
                raise BadRequest(f"{what} is a name of letters, digits and . _ : / -, not {given!r:.100}")
        shared = await ENGINES.acquire(config, db_path)
        try:
            shared.check_model(model)
            conversations, known = shared.engine.conversations, f"{agent}{_NAMED}{name}"
            with naming_errors(taken=DuplicateIDError):
                own = await conversations.open_named(SessionRequest(model, known, "", system_prompt))
            return cls(shared, own)
        except BaseException:
            await ENGINES.release(shared)
            raise

    @classmethod
    async def load(cls, session_id: str, config: Settings | None = None, db_path: str | Path | None = None) -> Self:
        """Go on with a session of the log, whoever began it. Raises SessionNotFoundError, and as `create` does."""
        shared = await ENGINES.acquire(config, db_path)
        try:
            with naming_errors():
                own = await shared.engine.conversations.load(session_id)
            shared.check_model(own.model, own.key.upstream)
            return cls(shared, own)
        except BaseException:
            await ENGINES.release(shared)
            raise

    def __setattr__(self, name: str, value: object) -> None:
        if name in _FIXED:
            raise ImmutableFieldError(f"{name} of a session never changes")
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        return f"Session(id={self.id!r}, model={self.model!r})"

    @property
    def id(self) -> str:
        """The id of the session in the log."""
        return self._own.key.id

    @property
    def model(self) -> str:
        """The name of its model."""
        return self._own.model

    @property
    def agent(self) -> str:
        """The name of its agent."""
        family = self._own.key.family
        return (family.partition(_NAMED)[0] if _NAMED in family else family.rpartition("-")[0]) or "default"

    @property
    def parent_id(self) -> str | None:
        """The session whose agent has started this one."""
        return self._own.key.parent or None

    @property
    def token_usage(self) -> TokenUsage:
        """The tokens of all calls of the session so far."""
        return self._own.usage

    @property
    def event_bus(self) -> EventBus:
        """What happens in the session, for handlers."""
        return self._bus

    @property
    def compaction_in_progress(self) -> bool:
        """Whether a summary of the session is being made."""
        return self._own.is_compacting

    @property
    def memory(self) -> MemoryOfSession:
        """What is remembered of the session."""
        shared = self._shared
        return MemoryOfSession(shared.engine, self.id, shared.settings.snapshot, self._using)

    def subscribe(self, event: str, handler: Handler) -> None:
        """Call `handler(event, payload)` with every event of this name. Raises ValueError if there is none."""
        self._bus.subscribe(event, handler)

    async def send(
        self,
        message: str | Sequence[MessagePart],
        *,
        tools: Sequence[Tool] | None = None,
        on_part: OnPart | None = None,
        system_prompt: str | None = None,
    ) -> TurnResult:
        """Send a message of the user, or results of tools as tool parts, and return the answer.

        `tools` are offered to the model, not executed; `run_tools` does that. `on_part`, sync or async, is called with
        each part of the answer as it comes, and waited for. `system_prompt` is that of this call alone. Raises
        UpstreamRefused, UpstreamUnreachable, BadRequest, StoreError and SessionClosedError.
        """
        offered = make_tools(tools)
        _check_call(on_part, system_prompt)
        async with self._using():
            turn = await self._own.send(message, tools=offered, on_part=on_part, system_prompt=system_prompt)
        return turn.result

    def stream(
        self,
        message: str | Sequence[MessagePart],
        *,
        tools: Sequence[Tool] | None = None,
        system_prompt: str | None = None,
    ) -> AsyncGenerator[MessagePart]:
        """Send a message, and return the parts of the answer as they come, for `async for`. Otherwise as `send`.

        Nothing is sent before the first part is asked for. What goes wrong is raised by the loop; leaving the loop ends
        the call once the iterator is closed.
        """
        return stream_parts(partial(self.send, message, tools=tools, system_prompt=system_prompt))

    async def run_tools(
        self,
        message: str | Sequence[MessagePart] | None,
        tools: Sequence[Tool],
        *,
        max_turns: int = MOST_TURNS,
        on_part: OnPart | None = None,
        system_prompt: str | None = None,
    ) -> TurnResult:
        """Send a message, execute the calls of the answer, send their results, until an answer calls nothing.

        `tools` are Python functions, sync or async; sync ones run in threads. Calls of one answer run at the same time.
        What a tool raises is the result of its call. After `max_turns` answers the `finish_reason` is `tool_use`, and
        the calls of the last one wait: `run_tools(None, tools)` goes on with them. Tokens and cost are those of all.
        """
        offered = make_tools(tools)
        _check_call(on_part, system_prompt)
        async with self._using():
            turn = await self._own.run_tools(
                message, offered, max_turns=max_turns, on_part=on_part, system_prompt=system_prompt
            )
        return turn.result

    async def record(
        self,
        user_message: str | Sequence[Mapping[str, Any]] | Sequence[MessagePart],
        assistant_response: str | Mapping[str, Any] | Sequence[Mapping[str, Any]] | Sequence[MessagePart],
        *,
        tokens: TokenUsage | None = None,
        finish_reason: FinishReason = "stop",
    ) -> RecordResult:
        """Record a turn that was made elsewhere; no call is made.

        Both are texts, lists of parts, or messages as the API of chat completions has them: what was sent, which may be
        results of tools, and what came back, the last of which is the answer. A call among the parts of an answer that
        has an output was executed before what was said next. Without `tokens` these are estimated. Raises BadRequest
        for a turn that does not continue the conversation, Conflict, StoreError and SessionClosedError.
        """
        async with self._using():
            turn = make_turn(user_message, assistant_response, tokens=tokens, finish_reason=finish_reason)
            return await self._own.record(turn)

    async def context(self, wire: ContextWire = "chat") -> BuiltContext:
        """Return what a call that is made elsewhere is to begin with, before its new message: what `send` would send.

        `wire` is chat, messages (Anthropic's, whose system prompt is in `system`) or responses. Nothing is opened.
        """
        engine = self._shared.engine
        async with self._using():
            own, cap = self._own, engine.conversations.cap
            return await build_context(
                engine.conversations.recorder,
                engine.context.memory.manual,
                own.key,
                wire,
                system=own.system_prompt,
                cap=cap,
            )

    async def messages(self) -> list[MessageDocument]:
        """Return the messages of the conversation with their parts, oldest first, summaries behind what they cover."""
        log = self._shared.engine.archive
        async with self._using():
            if not self._own.steps:
                return []
            return await load_messages(log, await load_path(log, self.id))

    async def message(self, message_id: str) -> MessageDocument:
        """Return a message of the conversation with its parts, whole, whatever of it is still sent.

        The id is that of a result, an event or `messages`. A message of nothing but results has them as parts, with
        their calls. Raises MessageNotFoundError.
        """
        log = self._shared.engine.archive
        async with self._using():
            with naming_errors(MessageNotFoundError):
                return await load_message(log, await load_path(log, self.id), message_id)

    async def original(self, ref: str) -> str:
        """Return the text that a reference names, such as `ref:abcdefghij`, of any session of the log.

        That of a summary is what it covers. Raises PartNotFoundError.
        """
        log = self._shared.engine.archive
        async with self._using():
            with naming_errors(PartNotFoundError):
                return (await load_page(log, ref, None)).text

    async def compact(self) -> CompactionResult:
        """Summarise the conversation now, and send it in short from the next call on.

        Where there is nothing to compact, the result covers no message. Raises Conflict if the session is not managed,
        and StoreError.
        """
        async with self._using():
            if not self._own.steps:
                return self._tell_uncompacted(0)
            try:
                found = await self._shared.engine.context.memory.manual.compact(self.id, ManualOptions())
            except NothingToCompact as short:
                return self._tell_uncompacted(short.tokens)
        return make_compaction_result(found)

    def _tell_uncompacted(self, tokens: int) -> CompactionResult:
        return CompactionResult(
            session_id=self.id,
            summary_message_id=None,
            level_used=3,
            compacted_message_count=0,
            summary_token_count=0,
            tokens_before=tokens,
            tokens_after=tokens,
            elapsed_ms=0,
        )

    async def history(self) -> list[TurnFigures]:
        """Return what each answered call of the conversation has taken, oldest first."""
        async with self._using():
            return await self._own.load_history()

    async def handle_file(self, path: str | Path, content: str) -> FileHandleResult:
        """Return how a file is to be sent (`LargeFileHandler`): whole, or a reference to what the log has of it now.

        Raises StoreError, and TooLarge for more than the log keeps whole.
        """
        async with self._using():
            return await self._shared.engine.files.handle(self._own.key, self.model, str(path), content)

    async def close(self) -> None:
        """Wait for calls under way and a summary that is being made, and give the log back. It may be called twice.

        Within a call, such as from `on_part` or a tool, it returns at once: the session is closed when the call has
        ended, before that returns. Handlers of events have five seconds to end.
        """
        self._expect_loop()
        self._is_closed = True
        if not any(call.session is self and not call.is_over for call in _AROUND.get()):
            await self._close()

    async def _close(self) -> None:
        if self._is_closing:
            await self._has_closed.wait()
            return
        self._is_closing = True
        try:
            await self._is_idle.wait()
            await self._own.wait_for_compaction()
            self._shared.engine.bus.publish(SessionClosedEvent(session=self.id))
            await self._bus.end(HANDLER_SECONDS)
        finally:
            self._bus.leave()
            self._shared.closers.discard(self.close)
            try:
                await ENGINES.release(self._shared)
            finally:
                self._has_closed.set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @contextlib.asynccontextmanager
    async def _using(self) -> AsyncIterator[None]:
        """Keep the log open for a call, and name its errors as programs know them."""
        self._expect_open()
        call = _SessionCall(self)
        around = _AROUND.set((*_AROUND.get(), call))
        self._calls += 1
        self._is_idle.clear()
        try:
            with naming_errors():
                yield
        finally:
            _AROUND.reset(around)
            call.is_over = True
            self._calls -= 1
            if not self._calls:
                self._is_idle.set()
                if self._is_closed and not self._is_closing:  # from within a call
                    await self._close()

    def _expect_loop(self) -> None:
        if asyncio.get_running_loop() is not self._shared.loop:
            raise StoreError(f"the session {self.id} is open in another event loop; use it there, or load it anew")

    def _expect_open(self) -> None:
        self._expect_loop()
        if self._is_closed or self._shared.is_closed:
            raise SessionClosedError(f"the session {self.id} was closed; Session.load({self.id!r}) opens it again")


def _check_call(on_part: OnPart | None, system_prompt: str | None) -> None:
    """Raise for what a call cannot have, before it is made."""
    if on_part is not None and not callable(on_part):
        raise TypeError(f"on_part is a function of a part, not {on_part!r:.100}")
    if system_prompt is not None:
        _check_texts(system_prompt=system_prompt)


def _check_texts(**given: object) -> None:
    for name, value in given.items():
        if not isinstance(value, str):
            raise BadRequest(f"{name} is a text, not {value!r:.100}")
