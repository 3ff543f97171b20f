"""`palimpsest tail`: follow what the running server carries, one line for each call and for each mark.

It goes on across a restart of the server, and ends with Ctrl-C.
"""

import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Annotated, Any, Union

import msgspec
import typer

from proxy.cli.formatting import CAUSES, WAYS, format_count, make_plain
from proxy.cli.services import (
    ASKS,
    Invocation,
    JsonOption,
    Services,
    find_reason,
    offers,
    parse_object,
)
from proxy.config import Settings
from proxy.model.errors import NotFound, ProxyError, UpstreamUnreachable
from proxy.model.events import (
    TOLD,
    AgentNudgedEvent,
    CacheMissedEvent,
    CallCompletedEvent,
    CallStartedEvent,
    CallUnreadableEvent,
    CeilingExceededEvent,
    CompactionCompletedEvent,
    CompactionFailedEvent,
    CompactionTriggeredEvent,
    DoomLoopDetectedEvent,
    EpochOpenedEvent,
    EpochRevertedEvent,
    MessageCreatedEvent,
    PartCreatedEvent,
    PartUpdatedEvent,
    PruneCompletedEvent,
    ResetEvent,
    RungFailedEvent,
    SessionClosedEvent,
    SessionCreatedEvent,
    SessionIdleEvent,
    StreamedEvent,
    StreamEndedEvent,
    SummaryAddedEvent,
    name_type,
)
from proxy.model.exchange import CONVERSATION
from proxy.model.parts import MessagePart, ToolPart

_OK, _BUSY, _ERROR = 200, 503, 400
_PAUSE_SECONDS = 1.0
_KINDS = {"auxiliary": "our own call", "passthrough": "passed on unread", "recorded": "made elsewhere"}
_ID_DIGITS = 8
_MODEL_WIDTH = 18
_LEAST_WIDTH = 40
# What is told without --all: calls have ended then, and are those of conversations.
_DEFAULT: tuple[type[StreamedEvent], ...] = (
    SessionCreatedEvent,
    CallCompletedEvent,
    CallUnreadableEvent,
    CacheMissedEvent,
    RungFailedEvent,
    CeilingExceededEvent,
    EpochOpenedEvent,
    EpochRevertedEvent,
    CompactionTriggeredEvent,
    CompactionCompletedEvent,
    CompactionFailedEvent,
    DoomLoopDetectedEvent,
    AgentNudgedEvent,
    SessionIdleEvent,
)
# Signs as on the page: first the sign, then the word, then the colour.
_EPOCH, _MISS, _FAULT, _LOOP, _NOTE = "▲", "⚡", "✕", "↻", "·"
_COLOURS = {_EPOCH: "cyan", _MISS: "yellow", _FAULT: "red", _LOOP: "magenta", _NOTE: ""}

_decoder: msgspec.json.Decoder[StreamedEvent] = msgspec.json.Decoder(Union[TOLD])  # noqa: UP007 - there is no operator for a tuple


class EventsRefused(ProxyError):
    """The server does not let its events be followed; the message says why."""


class EventParser:
    """Reads server-sent events from pieces of a stream, and passes on the data of each. `last_id` is the newest id."""

    def __init__(self, take: Callable[[str], object]) -> None:
        self.last_id = ""
        self._take = take
        self._rest = b""

    def feed(self, piece: bytes) -> None:
        """Read a piece, which may end anywhere."""
        *blocks, self._rest = (self._rest + piece).split(b"\n\n")
        for block in blocks:
            fields = dict(line.partition(": ")[::2] for line in block.decode("utf-8", "replace").split("\n"))
            self.last_id = fields.get("id", self.last_id)
            if "data" in fields:
                self._take(fields["data"])

    def restart(self) -> None:
        """Forget what was not complete when a stream broke off."""
        self._rest = b""


@offers(*ASKS)
def tail(
    called: Invocation,
    session: Annotated[
        str, typer.Argument(metavar="[SESSION]", help="Only this session: its id, a prefix of it, or its name.")
    ] = "",
    as_json: JsonOption = False,
    is_all: Annotated[
        bool, typer.Option("--all", help="Starts of calls and messages, too, and calls that are no conversation.")
    ] = False,
    no_color: Annotated[str, typer.Option(envvar="NO_COLOR", hidden=True)] = "",
) -> None:
    """Follow calls and contexts live, until Ctrl-C."""
    query = [("session", session)] if session else []
    if not is_all:
        query.append(("type", ",".join(map(name_type, _DEFAULT))))
    write = _write_json if as_json else EventWriter(is_all=is_all, color=False if no_color else None).write
    try:
        _follow(called.services, called.load_server_settings(), query, write)
    except KeyboardInterrupt:
        raise typer.Exit from None


def _follow(
    services: Services, settings: Settings, query: list[tuple[str, str]], write: Callable[[str], object]
) -> None:
    """Follow until Ctrl-C. A server that was reached once is waited for. Raises ProxyError if it cannot be reached."""
    parser, was_reached, is_waiting = EventParser(write), False, False
    while True:
        try:
            status, content = services.follow_events(settings, query, parser.last_id, parser.feed)
        except (UpstreamUnreachable, NotFound):
            if not (was_reached or parser.last_id):
                raise
            status, content = _BUSY, b""
        was_reached = was_reached or bool(parser.last_id)
        if status != _OK and not (status == _BUSY and was_reached):
            raise EventsRefused(find_reason(status, parse_object(content)))
        if status == _OK:
            is_waiting = False
        elif not is_waiting:
            is_waiting = True
            typer.echo("the server is gone; waiting until it is back (Ctrl-C ends)", err=True)
        parser.restart()
        time.sleep(_PAUSE_SECONDS)


def _write_json(data: str) -> None:
    """Write an event as it came, on a line of its own."""
    sys.stdout.write(f"{data}\n")
    sys.stdout.flush()


class EventWriter:
    """Writes events as lines for people. `color` is None for colours where standard output is a terminal."""

    def __init__(self, *, is_all: bool, color: bool | None = None) -> None:
        self._is_all = is_all
        self._color = color

    def write(self, data: str) -> None:
        """Write one event; nothing of one that a newer server knows."""
        try:
            event = _decoder.decode(data)
        except msgspec.ValidationError:
            return
        for sign, text in describe_event(event, is_all=self._is_all):
            width = max(_LEAST_WIDTH, shutil.get_terminal_size().columns) if sys.stdout.isatty() else sys.maxsize
            line = _fit(f"{_format_head(event)}  {sign} {make_plain(text).replace(chr(10), ' ')}", width)
            color = _COLOURS[sign]
            typer.echo(typer.style(line, fg=color) if color else line, color=self._color)


def _fit(line: str, width: int) -> str:
    return line if len(line) <= width else f"{line[: width - 1]}…"


def _format_head(event: StreamedEvent) -> str:
    """Return the local time, the session, and the call's number."""
    at = datetime.fromtimestamp(event.at_ms / 1000).astimezone().strftime("%H:%M:%S")
    n = getattr(event, "n", None)
    return f"{at}  {make_plain(event.session)[:_ID_DIGITS]:{_ID_DIGITS}} {f'#{n}' if n else '':>5}"


def describe_event(event: StreamedEvent, *, is_all: bool = True) -> Iterator[tuple[str, str]]:
    """Yield the lines that tell of an event, each with its sign.

    Without `is_all`, calls that are no part of a conversation are told only if they fail.
    """
    if isinstance(event, CallCompletedEvent):
        is_beside = event.kind not in CONVERSATION or event.is_side
        is_failed = event.status >= _ERROR or event.completeness not in ("complete", "aborted")
        if is_all or is_failed or not is_beside:
            yield (_FAULT if is_failed else _NOTE), _describe_call(event)
        return
    describe = _DESCRIPTIONS.get(type(event))
    if describe is not None:
        sign, write = describe
        yield sign, write(event)


def _describe_call(event: CallCompletedEvent) -> str:
    """Return a call on one line: model, tokens of the client and sent, share from the cache, output, money, time."""
    model = event.model or event.upstream
    parts = [f"{model if len(model) <= _MODEL_WIDTH else model[: _MODEL_WIDTH - 1] + '…':{_MODEL_WIDTH}}"]
    if event.kind != "managed":
        parts.append(_KINDS[event.kind])
    if event.is_side:
        parts.append("side call")
    if event.client is not None or event.sent is not None:
        client, sent = _format_tokens(event.client), _format_tokens(event.sent)
        parts.append(f"{sent} tokens" if client == sent else f"{client} → {sent} tokens")
    if event.read is not None and event.input:
        parts.append(f"{100 * event.read / event.input:.0f} % from the cache")
    if event.output is not None:
        parts.append(f"{event.output:,} out")
    if event.money is not None:
        parts.append(f"${event.money:.4f}" + _format_saved(event.saved_money))
    if event.status != _OK:
        parts.append(f"status {event.status}" if event.status else "no response")
    if event.completeness != "complete":
        parts.append(event.completeness)
    parts.append(f"{event.seconds:.1f} s")
    if event.error:
        parts.append(event.error)
    return "  ".join(parts)


def _format_tokens(count: int | None) -> str:
    return "?" if count is None else f"{count:,}"


def _format_saved(money: float | None) -> str:
    if not money or abs(money) < 0.00005:
        return ""
    return f" (saved ${money:.4f})" if money > 0 else f" (lost ${-money:.4f})"


def _describe_reverted(event: EpochRevertedEvent) -> str:
    who = "the upstream refused it" if event.why == "refused" else "on request"
    sizes = ""
    if event.tokens_before is not None and event.tokens_after is not None:
        sizes = f": {event.tokens_before:,} → {event.tokens_after:,} tokens"
    return f"epoch {event.reverted} reverted, {who}{sizes}"


def _describe_miss(event: CacheMissedEvent) -> str:
    money = "" if event.money is None else f", ${event.money:.4f} more"
    return f"cache missed: {event.tokens:,} tokens were not read ({event.cause}){money}"


def _describe_pruned(event: PruneCompletedEvent) -> str:
    counts = (
        (event.tombstones, format_count(event.tombstones, "output")),
        (event.files, format_count(event.files, "file")),
        (event.shortened, f"{event.shortened} shortened"),
    )
    return f"held back: {', '.join(text for count, text in counts if count)}"


def _describe_loop(event: DoomLoopDetectedEvent) -> str:
    output = "the same output" if event.has_same_output else "other outputs"
    return f"loop: {event.tool} was called {event.count} times in a row with the same arguments, with {output}"


def _describe_compacted(event: CompactionCompletedEvent) -> str:
    reason = f"; {event.reason}" if event.reason else ""
    sizes = f"{event.tokens_before:,} → {event.tokens_after:,} tokens"
    return f"summary of {format_count(event.messages, 'message')}, level {event.level}: {sizes}{reason}"


def _describe_session(event: SessionCreatedEvent) -> str:
    named = f" {event.name!r}" if event.name else ""
    parent = f", started by {event.parent[:_ID_DIGITS]}" if event.parent else ""
    return f"new session{named}: {event.model or 'no model'} at {event.upstream}{parent}"


def _describe_reset(event: ResetEvent) -> str:
    if event.reason == "restarted":
        return "the server was restarted; `palimpsest sessions` has the calls that ended meanwhile"
    return "some events are missing here; `palimpsest sessions` has all calls"


def _name_part(part: MessagePart) -> str:
    kind = str(part.__struct_config__.tag).replace("_", " ")
    return f"{kind} {part.tool_name} {part.status.state}" if isinstance(part, ToolPart) else kind


_DESCRIPTIONS: Mapping[type[StreamedEvent], tuple[str, Callable[[Any], str]]] = {
    SessionCreatedEvent: (_NOTE, _describe_session),
    SessionClosedEvent: (_NOTE, lambda event: "closed by its program"),
    MessageCreatedEvent: (_NOTE, lambda event: f"message of {event.role or 'unknown role'}: {event.message[:12]}"),
    PartCreatedEvent: (_NOTE, lambda event: f"part of {event.message[:12]}: {_name_part(event.part)}"),
    PartUpdatedEvent: (_NOTE, lambda event: f"part of {event.message[:12]} {event.why}: {_name_part(event.part)}"),
    CallStartedEvent: (_NOTE, lambda event: f"{event.model or event.upstream}: sent"),
    CallUnreadableEvent: (_FAULT, lambda event: f"its response could not be read: {event.error}"),
    CacheMissedEvent: (_MISS, _describe_miss),
    RungFailedEvent: (
        _FAULT,
        lambda event: f"it could not be sent {WAYS[event.rung]}, another form was: {event.error}",
    ),
    CeilingExceededEvent: (
        _FAULT,
        lambda event: f"sent above its ceiling: {event.tokens:,} of {event.usable:,} tokens; {event.error}",
    ),
    EpochOpenedEvent: (
        _EPOCH,
        lambda event: f"epoch opened, {CAUSES[event.why]}: {event.tokens_before:,} → {event.tokens_after:,} tokens",
    ),
    EpochRevertedEvent: (_EPOCH, _describe_reverted),
    PruneCompletedEvent: (_EPOCH, _describe_pruned),
    CompactionTriggeredEvent: (
        _NOTE,
        lambda event: f"a summary of {format_count(event.messages, 'message')} ({event.tokens:,} tokens) is being made",
    ),
    CompactionCompletedEvent: (_EPOCH, _describe_compacted),
    CompactionFailedEvent: (_FAULT, lambda event: f"no summary came of it: {event.error}"),
    SummaryAddedEvent: (
        _NOTE,
        lambda event: f"summary {event.summary} of {event.covered:,} tokens, in {event.tokens:,}",
    ),
    DoomLoopDetectedEvent: (_LOOP, _describe_loop),
    AgentNudgedEvent: (_NOTE, lambda event: f"nudged, attempt {event.attempt}"),
    SessionIdleEvent: (_NOTE, lambda event: f"idle: {format_count(event.attempts, 'nudge')} had no effect"),
    ResetEvent: (_NOTE, _describe_reset),
    StreamEndedEvent: (
        _NOTE,
        lambda event: (
            "events came faster than they were written here; going on with the newest"
            if event.reason == "slow"
            else "the server stops"
        ),
    ),
}
