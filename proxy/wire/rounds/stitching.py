"""Responses of several rounds, stitched into one for the client: what all formats have in common.

A round is one call to the upstream. The model may call a tool that is ours in it; such a round is hidden, and another
one follows with the result. The client gets one response without our calls. All other bytes pass as they come, in whole
events; only the fragments of our calls are withheld, and the end of a round that they make a hidden one.

A stream without a call of ours is not read at all: it is searched for the tool's name. Where that begins a call, what
has passed in this round is read after all, so that the state is the same as if it had been read from the beginning.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import ClassVar, NamedTuple

import msgspec

from proxy.model.exchange import Answer, Usage
from proxy.wire.format import Format
from proxy.wire.json_values import change_members, load_lenient, read_count, read_object, read_text
from proxy.wire.rendering import drop_markers
from proxy.wire.streams import EVENT_END, ServerEvent, read_kind

_BLANK = b"\n\n"
_BLANKS = (_BLANK, b"\n\r\n", b"\r\r")
_LEAD = re.compile(rb"(?:\xef\xbb\xbf)?(?:[\r\n]+|:[^\r\n]*[\r\n])*")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
END = b"[DONE]"
"""The data of the event that ends a stream in some formats."""
_CUT_OFF = frozenset({"length", "max_tokens", "max_output_tokens", "content_filter", "refusal", "failed", "cancelled"})
_CUT_OFF |= {"model_context_window_exceeded", "pause_turn"}

# What models put between a prefix of their own and the name of a tool, and prefixes that may come in pieces.
_SEPARATORS = (".", "/", ":")
_PREFIXES = ("functions", "default_api")

MOST_READ = 8 * 1024 * 1024
"""The bytes of a first round after which nothing is read any more, so that calls of ours pass like all others."""


class OwnCall(msgspec.Struct, frozen=True, gc=False):
    """A call of our tool. `arguments` are as the model wrote them, so they may be anything."""

    id: str
    arguments: str


class OwnResult(msgspec.Struct, frozen=True, gc=False):
    """The result of a call of our tool, by the id of the call."""

    id: str
    text: str


class RoundEnd(msgspec.Struct, frozen=True):
    """What a round has come to. One that was not read, because it has no call of ours, has nothing here.

    `answer` are the raw messages, or items, by which the next request repeats what the model said, our calls and
    withheld reasoning included. `finish` and `error` are as in `Answer`. `counted` is the raw usage, `id` that of the
    response.
    """

    own: tuple[OwnCall, ...] = ()
    has_client_calls: bool = False
    answer: tuple[bytes, ...] = ()
    finish: str = ""
    usage: Usage | None = None
    error: str = ""
    is_ended: bool = True  # whether the response came to its end
    counted: Mapping[str, object] = msgspec.field(default_factory=dict)
    id: str = ""

    @property
    def can_continue(self) -> bool:
        """Whether another round can follow: the model waits for results of ours, and for nothing else."""
        is_whole = self.is_ended and not self.error and self.finish not in _CUT_OFF
        return bool(self.own) and not self.has_client_calls and is_whole


class PlayedRound(msgspec.Struct, frozen=True, gc=False):
    """A round as later requests repeat it: `RoundEnd.answer`, and our results. The last round may have none."""

    answer: tuple[bytes, ...]
    results: tuple[OwnResult, ...] = ()


class EventBlock:
    """The raw lines of one event of a stream."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw

    @cached_property
    def _fields(self) -> tuple[str, bytes]:
        name, data = "", []
        for line in self.raw.splitlines():
            field, _, value = line.partition(b":")
            if field == b"data":
                data.append(value.removeprefix(b" "))
            elif field == b"event":
                name = value.removeprefix(b" ").decode("utf-8", "replace")
        return name, b"\n".join(data)

    @property
    def data(self) -> bytes:
        """The data, in several lines if it was sent so."""
        return self._fields[1]

    @cached_property
    def value(self) -> Mapping[str, object] | None:
        """The object in the data; None if there is none."""
        return read_object(self.data.decode("utf-8", "replace"))

    @property
    def kind(self) -> str:
        """The type of an event in a format with typed events."""
        return read_kind(ServerEvent(self._fields[0], ""), self.value or {})

    def replace_data(self, data: bytes) -> bytes:
        """Return the raw lines with other data."""
        written: list[bytes] = []
        is_written = False
        for line in self.raw.splitlines(keepends=True):
            if line.partition(b":")[0].rstrip(b"\r\n") != b"data":
                written.append(line)
            elif not is_written:
                is_written, end = True, line[len(line.rstrip(b"\r\n")) :]
                written += [b"data: %b%b" % (part, end) for part in data.split(b"\n")]
        return b"".join(written)


class RoundReader(ABC):
    """Reads what a round has come to, from the raw bytes of its response. Each format has one."""

    form: ClassVar[Format]

    def make_end(self, answer: Answer, raws: Sequence[bytes], own: Sequence[OwnCall], others: int) -> RoundEnd:
        """Return the end of a round, given what its response says: raw messages, our calls, the number of the others.

        A response that says why the model stopped has come to its end, though its last event may be missing.
        """
        counted = answer.value.get("usage")
        return RoundEnd(
            tuple(own),
            has_client_calls=others > 0,
            answer=tuple(map(drop_markers, raws)),
            finish=answer.finish,
            usage=answer.usage,
            error=answer.error,
            is_ended=answer.is_ended or bool(answer.finish),
            counted=counted if isinstance(counted, dict) else {},
            id=read_text(answer.value.get("id")),
        )

    def read_body(self, received: bytes) -> Answer:
        """Read a body that is no stream; one that is no object has not ended."""
        value = load_lenient(received)
        return self.form.read_answer(value) if isinstance(value, dict) else Answer({}, is_ended=False)

    @abstractmethod
    def read_round(self, tool: str, received: bytes, *, is_stream: bool) -> RoundEnd:
        """Return what the response of a round says. Never raises; the same bytes give the same result."""


class RoundStitcher(ABC):
    """Stitches one response for a client from the responses of all rounds.

    Feed it a round's body, then call `end_round`; then feed it the next round's body, or call `finish`.
    `binds_reasoning`: the provider signs reasoning over all that precedes it. What a client gets no calls of then goes
    before the reasoning of later rounds, which therefore is withheld from it. `is_stored`: the provider keeps the
    response of each round, so that the client has to know that of the last one. `echo`: the client's raw tools, which
    it gets where a response has those that were sent; empty if only ours is to be left out there.
    """

    telling: ClassVar[tuple[bytes, ...]]  # in the events that have to be read before a call of ours can be
    numbered: ClassVar[bytes] = b"data"  # in the events of which the last has to be read, too
    awaited: ClassVar[bytes] = b""  # in each event that passes or not by what follows it

    def __init__(
        self,
        reader: RoundReader,
        tool: str,
        *,
        is_stream: bool,
        binds_reasoning: bool,
        is_stored: bool = False,
        echo: bytes = b"",
    ) -> None:
        self._reader = reader
        self._tool = tool
        self._name = tool.encode()
        self._is_stream = is_stream
        self._binds = binds_reasoning
        self._is_stored = is_stored
        self._echo = echo
        self._round = 0
        self._is_quiet = True  # no round before this one, and no call of ours yet
        self._is_deaf = self._is_over = False
        self._size = 0
        self._read: list[bytes] = []  # of this round, in whole events
        self._tail = bytearray()  # an event that has begun; all of the body if it is no stream
        self._waiting = b""  # events that pass or not by what follows them
        self._awaiting = EventBlock(b"")  # the first of these
        self._pending = b""  # goes out with whatever goes out next
        self._ends: list[EventBlock] = []  # how a hidden round ended
        self._earlier: list[Mapping[str, object]] = []  # usage of the rounds before this one
        self._ended = RoundEnd()
        self._bodies: list[bytes] = []
        self._is_plain = is_stream  # whether a piece without our name passes as it is
        self._begin()

    def feed(self, piece: bytes) -> bytes:
        """Take a piece of a round's body. Return the bytes that go to the client now."""
        is_plain = self._is_plain and piece.endswith(_BLANK) and self._name not in piece
        if not is_plain or (self.awaited and self.awaited in piece):
            return self._take(piece)
        self._read.append(piece)
        self._size += len(piece)
        if self._size > MOST_READ:
            self._go_deaf()
        return piece

    def end_round(self) -> RoundEnd:
        """Return what the round has come to, whose response has ended or broken off."""
        if self._is_over:  # nothing of it has come
            self._begin_next()
        end = self._end_stream() if self._is_stream else self._end_body()
        self._is_over, self._is_plain = True, False
        self._ended = end
        return end

    @property
    def next_number(self) -> int:
        """The number of the client's next event, in formats that number them."""
        return 0

    @property
    def begun_as(self) -> str:
        """The id of the response that a stream has named to the client first; empty if its end names the same one."""
        return ""

    def finish(self) -> bytes:
        """Return what is left to send: all of a body, or the end of a stream, unless its last round broke off."""
        written = self._pending + (self._close() if self._is_stream else self._write_body())
        self._pending = b""
        return written

    @property
    def is_withholding(self) -> bool:
        """Whether something is withheld until it is known whether a call of ours follows."""
        return bool(self._waiting)

    @property
    def has_call(self) -> bool:
        """Whether a call of ours has begun in this answer. In a body that is no stream, it is seen at the end."""
        return not self._is_quiet

    @property
    def _is_untouched(self) -> bool:
        """Whether there is one round, without a call of ours."""
        return not (self._round or self._ended.own)

    # What differs between formats

    @abstractmethod
    def _begin(self) -> None:
        """Prepare for a round."""

    @abstractmethod
    def _opens(self, event: EventBlock) -> bool:
        """Return whether an event begins a call of ours."""

    @abstractmethod
    def _rewrite(self, event: EventBlock) -> bytes:
        """Return what the client gets for an event. In a first round, up to a call of ours, that is what passes."""

    @abstractmethod
    def _close_event(self, event: EventBlock) -> bytes:
        """Return the event that ends a hidden round as the client gets it if no other round follows."""

    @abstractmethod
    def _write_body(self) -> bytes:
        """Return the body for the client from those of all rounds."""

    def _edit_echo(self, event: EventBlock) -> bytes:
        """Return an event without the tool's name where the provider repeats the request."""
        return event.raw

    def _must_wait(self, event: EventBlock) -> bool:
        """Return whether an event passes or not by what follows it."""
        return False

    def _decides(self, event: EventBlock) -> bool:
        """Return whether those that wait pass, given an event behind them that begins no call of ours."""
        return not self._must_wait(event)

    def _flush(self) -> bytes:
        """Return what was withheld within a round that was read, at its end."""
        return b""

    # Streams

    def _take(self, piece: bytes) -> bytes:
        if self._is_deaf:
            return piece
        if self._is_over:
            self._begin_next()
        self._size += len(piece)
        known = len(self._tail)
        self._tail += piece
        if self._size > MOST_READ and self._is_quiet:
            return self._go_deaf()
        if not self._is_stream:
            return b""
        pending, self._pending = self._pending, b""
        end = _find_last_end(self._tail, max(0, known - 3))
        written = pending + (self._pass(self._cut(end)) if end else b"")
        if not self._waiting:
            lead = _match_lead(self._tail)
            written += self._keep_lead(self._cut(lead))
        self._is_plain = self._is_quiet and not self._tail and not self._waiting
        return written

    def _cut(self, end: int) -> bytes:
        cut = bytes(self._tail[:end])
        del self._tail[:end]
        return cut

    def _keep_lead(self, lead: bytes) -> bytes:
        """Return comments and blank lines, which pass at once, because clients reckon with them while they wait."""
        if lead:
            self._read.append(lead)
        return self._drop_mark(lead)

    def _drop_mark(self, lead: bytes) -> bytes:
        return lead.removeprefix(_BYTE_ORDER_MARK) if self._round else lead

    def _pass(self, ready: bytes) -> bytes:
        is_plain = self._is_quiet and not self._waiting and self._name not in ready
        if is_plain and not (self.awaited and self.awaited in ready):
            self._read.append(ready)
            return ready
        return b"".join([self._pass_block(block) for block in cut_blocks(ready)])

    def _pass_block(self, block: bytes) -> bytes:
        if not self._is_quiet:
            self._read.append(block)
            return self._rewrite_block(block)
        has_name, event = self._name in block, EventBlock(block)
        if (has_name or self._waiting) and self._opens(event):
            self._catch_up()
            self._read.append(block)
            return self._rewrite_block(block)
        self._read.append(block)
        if self._waiting and not self._decides(event):
            self._waiting += block
            return b""
        waiting, self._waiting = self._waiting, b""
        if self._must_wait(event):
            lead = _match_lead(block)
            self._waiting, self._awaiting = block[lead:], event
            return waiting + block[:lead]
        return waiting + (self._edit_echo(event) if has_name else block)

    def _catch_up(self) -> None:
        """Read what matters of what has passed, and all that waits: now the format holds that."""
        read, waiting = b"".join(self._read), self._waiting
        self._is_quiet, self._waiting = False, b""
        passed = list(cut_blocks(read[: len(read) - len(waiting)]))
        last = max((place for place, block in enumerate(passed) if self.numbered in block), default=0)
        for place, block in enumerate(passed):
            if place in (0, last) or any([sign in block for sign in self.telling]):
                self._rewrite_block(block)
        for block in cut_blocks(waiting):
            self._rewrite_block(block)

    def _rewrite_block(self, block: bytes) -> bytes:
        lead = _match_lead(block)
        rest = block[lead:]
        return self._drop_mark(block[:lead]) + (self._rewrite(EventBlock(rest)) if rest else b"")

    def _go_deaf(self) -> bytes:
        """Pass all that is withheld, and read nothing any more."""
        self._is_deaf, self._is_plain = True, False
        withheld = self._pending + self._waiting + bytes(self._tail)
        self._read, self._waiting, self._pending = [], b"", b""
        self._tail.clear()
        return withheld

    def _begin_next(self) -> None:
        self._round += 1
        self._earlier.append(self._ended.counted)
        self._is_over = self._is_quiet = False
        self._read, self._size = [], 0
        self._ends.clear()
        self._begin()

    def _end_stream(self) -> RoundEnd:
        rest = bytes(self._tail)
        self._tail.clear()
        if self._is_deaf:
            return RoundEnd()
        if rest:
            self._pending += self._pass_rest(rest)
        self._pending += self._waiting
        self._waiting = b""
        if self._is_quiet:
            return RoundEnd()
        self._pending += self._flush()
        end = self._reader.read_round(self._tool, b"".join(self._read), is_stream=True)
        return end

    def _pass_rest(self, rest: bytes) -> bytes:
        """Return what the client gets for a last event without its blank line. Nothing is made of one that was cut."""
        event = EventBlock(rest)
        if self._is_quiet and not (self._name in rest and self._opens(event)):
            self._read.append(rest)
            waiting, self._waiting = self._waiting, b""
            return waiting + self._edit_echo(event)
        is_whole = event.value is not None or event.data.startswith(END)
        return self._pass_block(rest.rstrip(b"\r\n") + _BLANK) if is_whole else b""

    def _withhold(self, event: EventBlock) -> bytes:
        """Withhold the end of a hidden round."""
        self._ends.append(event)
        return b""

    def _close(self) -> bytes:
        ends, self._ends = self._ends, []
        return b"".join([self._close_event(event) for event in ends]) if self._ended.is_ended else b""

    # Bodies

    def _end_body(self) -> RoundEnd:
        body = bytes(self._tail)
        self._tail.clear()
        if self._is_deaf:
            return RoundEnd()
        self._bodies.append(body)
        if not self._round and self._name not in body:
            return RoundEnd()
        self._is_quiet = False
        end = self._reader.read_round(self._tool, body, is_stream=False)
        return end


class OutputNames(NamedTuple):
    """The members of a usage object that count the output, and what is counted in all."""

    output: str
    details: str
    total: str = ""


def add_earlier(raw: bytes, earlier: Sequence[Mapping[str, object]], names: OutputNames) -> bytes:
    """Return a raw usage object with the output of earlier rounds added; its input is that of its own round."""
    spent = sum(read_count(usage.get(names.output)) or 0 for usage in earlier)

    def change(name: str, value: bytes) -> bytes | None:
        if name in (names.output, names.total):
            return _add(value, spent)
        return change_members(value, add_detail) if name == names.details else value

    def add_detail(name: str, value: bytes) -> bytes | None:
        details = [usage.get(names.details) for usage in earlier]
        return _add(value, sum(read_count(each.get(name)) or 0 for each in details if isinstance(each, dict)))

    return change_members(raw, change)


def _add(raw: bytes, count: int) -> bytes:
    return b"%d" % (int(raw) + count) if raw.isdigit() else raw


def spell_arguments(arguments: str) -> str:
    """Return arguments that can be sent back: `{}` for what is no JSON object, because many servers refuse that."""
    return arguments if isinstance(load_lenient(arguments.encode("utf-8", "surrogatepass")), dict) else "{}"


def is_named(name: str, tool: str) -> bool:
    """Return whether a model means a tool by a name: models put `functions.`, `default_api.` and the like before it."""
    return name == tool or (name.endswith(tool) and name[: -len(tool)].endswith(_SEPARATORS))


def may_begin(name: str, tool: str) -> bool:
    """Return whether the beginning of a name may become one by which a model means a tool."""
    last = name[max([name.rfind(each) for each in _SEPARATORS]) + 1 :]
    return (last != tool and tool.startswith(last)) or any([prefix.startswith(name) for prefix in _PREFIXES])


def read_name(value: object) -> str:
    """Return the `name` of an object; empty if it has none."""
    return read_text(value.get("name")) if isinstance(value, Mapping) else ""


def cut_blocks(stream: bytes) -> Iterator[bytes]:
    """Yield the events of a stream with the blank line behind each; the last may be without."""
    at = 0
    for found in EVENT_END.finditer(stream):
        yield stream[at : found.end()]
        at = found.end()
    if at < len(stream):
        yield stream[at:]


def _find_last_end(stream: bytearray, start: int) -> int:
    """Return where the last whole event ends; 0 if there is none behind `start`."""
    if stream.endswith(_BLANK):
        return len(stream)
    found = [at + len(blank) for blank in _BLANKS if (at := stream.rfind(blank, start)) >= 0]
    return max(found, default=0)


def _match_lead(stream: bytes | bytearray) -> int:
    """Return the length of the comments and blank lines at the beginning."""
    found = _LEAD.match(stream)
    return found.end() if found else 0
