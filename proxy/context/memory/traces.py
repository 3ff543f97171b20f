"""Traces of a conversation: its turns, what was said and done in them, and calls paired with their results.

A turn is a message of the user and all up to the next one. A result that comes late keeps the turn of its call.
"""

import itertools
import re
from collections.abc import Collection, Iterator, Sequence

import msgspec

from proxy.context.conversation import CountedMessage, list_turn_starts
from proxy.context.memory.facts import format_turn
from proxy.context.message_features import find_outcome
from proxy.model import Value
from proxy.model.memory import CallStatus, RawTrace, ToolInteraction, TraceMedia, TraceType
from proxy.model.messages import ToolCall

LONGEST_RESULT = 12_000
"""The most characters of a result that `tool_result` repeats."""

_SURROGATES = re.compile("[\ud800-\udfff]")
_MEDIA = {"image": "images", "audio": "audio", "video": "video"}
_OWN_ROLES = frozenset({"user", "assistant", "tool"})


class Turn(Value):
    """The messages of a turn, from place `start` up to `stop`. Turns are numbered from 1."""

    number: int
    start: int
    stop: int

    @property
    def id(self) -> str:
        """Return its id."""
        return format_turn(self.number)


class MessageOrigin(Value):
    """Where a message comes from: its time in seconds, the exchange that first had it, and its node."""

    ts: float
    event: str
    node: bytes


def list_turns(messages: Sequence[CountedMessage]) -> tuple[Turn, ...]:
    """Return the turns of a conversation. They cover all messages."""
    starts = [*list_turn_starts(messages), len(messages)]
    return tuple(Turn(n, start, stop) for n, (start, stop) in enumerate(itertools.pairwise(starts), 1))


def read_turn_number(id: str) -> int:
    """Return the number in the id of a turn, 0 if it is no such id."""
    found = re.fullmatch(r"turn_(\d{4,9})", id)
    return int(found[1]) if found else 0


def list_covered(turns: Sequence[Turn], spans: Collection[tuple[int, int]]) -> frozenset[int]:
    """Return the numbers of the turns all of whose messages lie in spans, from one place up to another."""
    covered = {place for start, stop in spans for place in range(start, stop)}
    return frozenset(turn.number for turn in turns if covered.issuperset(range(turn.start, turn.stop)))


def list_traces(messages: Sequence[CountedMessage], origins: Sequence[MessageOrigin]) -> tuple[RawTrace, ...]:
    """Return the traces of a conversation, given where each message comes from."""
    return tuple(_Tracer(messages, origins).trace())


class _Tracer:
    """Numbers the traces of one conversation. Each number depends only on the messages up to its own."""

    def __init__(self, messages: Sequence[CountedMessage], origins: Sequence[MessageOrigin]) -> None:
        self._messages = messages
        self._origins = origins
        self._starts = frozenset(list_turn_starts(messages))
        self._count = 0
        self._turn = 0
        self._in_turn: dict[int, int] = {}
        self._calls: dict[str, tuple[ToolCall, int]] = {}  # by id: the newest call, and its turn

    def trace(self) -> Iterator[RawTrace]:
        for place, (seen, origin) in enumerate(zip(self._messages, self._origins, strict=True)):
            self._turn += place in self._starts
            if seen.message.results:
                yield from self._trace_results(seen, origin)
            else:
                yield from self._trace_words(seen, origin)
            for call in seen.message.calls:
                self._calls[call.id] = call, self._turn
                yield self._make(
                    origin,
                    "tool_call",
                    "",
                    tool_name=fit_text(call.name),
                    tool_call_id=fit_text(call.id),
                    tool_args=encode_arguments(call.arguments),
                    correlation_id=fit_text(call.id),
                )

    def _trace_words(self, seen: CountedMessage, origin: MessageOrigin) -> Iterator[RawTrace]:
        message, role = seen.message, seen.structure.role
        kind: TraceType = "assistant" if role == "assistant" else "user"
        text, media = _read_media(message.text, message.media)
        if text or media is not None or (role == "user" and not message.calls):
            yield self._make(origin, kind, text, media=media, tags=() if role in _OWN_ROLES else (fit_text(role),))

    def _trace_results(self, seen: CountedMessage, origin: MessageOrigin) -> Iterator[RawTrace]:
        message = seen.message
        outputs = message.outputs if len(message.outputs) == len(message.results) else (message.text,)
        for i, id in enumerate(message.results):
            call, turn = self._calls.get(id, (None, self._turn))
            text, media = _read_media(outputs[i] if i < len(outputs) else "", () if i else message.media)
            is_short = len(text) <= LONGEST_RESULT
            yield self._make(
                origin,
                "tool_result",
                text,
                turn,
                media=media,
                tool_name=fit_text(call.name) if call is not None else "",
                tool_call_id=fit_text(id),
                tool_result=text if is_short else None,
                tool_error=fit_text(find_outcome(text)),
                tool_result_ref="" if is_short else origin.node.hex(),
                correlation_id=fit_text(id),
                tags=("late",) if turn != self._turn else (),
            )
        if message.beside:
            yield self._make(origin, "user", fit_text("\n".join(message.beside)))

    def _make(
        self, origin: MessageOrigin, kind: TraceType, content: str, turn: int | None = None, **given: object
    ) -> RawTrace:
        number = self._turn if turn is None else turn
        self._count += 1
        self._in_turn[number] = self._in_turn.get(number, 0) + 1
        return RawTrace(
            f"rt_{self._count:04}",
            origin.ts,
            format_turn(number),
            self._in_turn[number],
            kind,
            content,
            origin.event,
            **given,  # type: ignore[arg-type]
        )


def pair_calls(traces: Sequence[RawTrace]) -> tuple[ToolInteraction, ...]:
    """Return the calls in traces with their results. Of one id, a result answers the newest call."""
    found: list[ToolInteraction] = []
    newest: dict[str, int] = {}
    for trace in traces:
        if trace.trace_type == "tool_call" and trace.tool_args is not None:
            newest[trace.tool_call_id] = len(found)
            found.append(ToolInteraction(trace.tool_call_id, trace.turn_id, trace.tool_name, trace.tool_args))
        elif trace.trace_type == "tool_result" and (at := newest.get(trace.tool_call_id)) is not None:
            status: CallStatus = "ERROR" if trace.tool_error else "SUCCESS"
            found[at] = msgspec.structs.replace(
                found[at], result=trace.content, error=trace.tool_error or None, status=status
            )
    return tuple(found)


def encode_arguments(arguments: str) -> msgspec.Raw:
    """Return the arguments of a call as JSON in one line: a JSON string if they are none."""
    try:
        msgspec.json.decode(arguments)
        return msgspec.Raw(msgspec.json.format(arguments.encode(), indent=-1))
    except (ValueError, RecursionError):
        return msgspec.Raw(msgspec.json.encode(fit_text(arguments)))


def fit_text(text: str) -> str:
    """Return a text without lone surrogates, which JSON as UTF-8 cannot hold."""
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)


def _read_media(text: str, described: Sequence[str]) -> tuple[str, TraceMedia | None]:
    """Return the text of a message with the documents in it, and its images, audio and video."""
    found: dict[str, list[str]] = {}
    parts = [text] if text else []
    for each in described:
        name = _MEDIA.get(each.partition(" ")[0].rstrip(","))
        if name is None:
            parts.append(f"({each})")
        else:
            found.setdefault(name, []).append(each)
    media = TraceMedia(**{name: tuple(each) for name, each in found.items()}) if found else None
    return fit_text("\n".join(parts)), media
