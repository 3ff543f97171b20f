"""A session as a client's transcript tells it: its calls, each with the request that the client would have sent.

The messages of a conversation are kept once, in the raw form of its API. A call names how many of them its request had.
Where a client shortened its own context, or went back, its next messages begin another list (a *trail*).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from proxy.model.exchange import Usage
from proxy.wire.json_values import read_text

Client = Literal["claude-code", "codex", "opencode", "qwen-code", "cline", "aider", "calls"]
Value = dict[str, Any]

_FRACTION = 1000
_LATEST_SECONDS = 1e11  # a larger number of a time is one of milliseconds

encode = msgspec.json.Encoder().encode


class TranscriptCall(msgspec.Struct, frozen=True, gc=False):
    """A call: its request has the first `depth` messages of a trail, and `answer` are the messages that came back.

    `usage` is None where the transcript has none, `at_ms` is 0 where it has no time.
    """

    trail: int
    depth: int
    answer: tuple[bytes, ...]
    model: str
    usage: Usage | None = None
    at_ms: int = 0


class Transcript(msgspec.Struct, frozen=True):
    """A session. `head` are the members of its requests beside the messages, as far as the transcript has them.

    `missing` says what of the requests the transcript does not have, in words that follow "without". `lifetime` is what
    the client's markers ask of the cache, empty if its requests have none. `broken` counts what could not be read,
    `unknown` what was not understood.
    """

    id: str
    client: Client
    wire: str
    trails: tuple[tuple[bytes, ...], ...]
    calls: tuple[TranscriptCall, ...]
    version: str = ""
    provider: str = ""
    head: Mapping[str, Any] = {}
    missing: tuple[str, ...] = ()
    lifetime: str = ""
    parent: str = ""
    source: str = ""
    broken: int = 0
    unknown: int = 0

    @property
    def model(self) -> str:
        """The model of most of its calls."""
        names = [call.model for call in self.calls]
        return max(names, key=names.count, default="")

    @property
    def began_ms(self) -> int:
        """When its first call was made; 0 if that is unknown."""
        return next((call.at_ms for call in self.calls if call.at_ms), 0)


class TranscriptFile(msgspec.Struct, frozen=True):
    """A file by its path, and what of its content a reader needs: text, or the rows of a database by table."""

    path: str
    text: str = ""
    tables: Mapping[str, Sequence[Value]] = {}


@dataclass(slots=True)
class CallHistory:
    """Collects the messages and calls of one session, in their order.

    A `frozen` trail has a call and is only extended; `truncate` begins another one.
    """

    trails: list[list[bytes]] = field(default_factory=lambda: [[]])
    calls: list[TranscriptCall] = field(default_factory=list)

    @property
    def trail(self) -> list[bytes]:
        """The messages of the conversation as it stands."""
        return self.trails[-1]

    def add(self, *raws: bytes) -> None:
        """Add messages that follow."""
        self.trail.extend(raws)

    def replace_last(self, raw: bytes) -> None:
        """Put another message in the place of the last one, which no call has had."""
        self.trail[-1] = raw

    def truncate(self, depth: int) -> None:
        """Go back to the first `depth` messages."""
        if depth < len(self.trail):
            self.trails.append(self.trail[:depth])

    def continue_from(self, depth: int, raws: Sequence[bytes]) -> None:
        """Let these messages follow the first `depth` ones. What they repeat of the conversation stays."""
        same = depth
        while same - depth < len(raws) and same < len(self.trail) and self.trail[same] == raws[same - depth]:
            same += 1
        self.truncate(same)
        self.add(*raws[same - depth :])

    def restart(self, raws: Iterable[bytes] = ()) -> None:
        """Begin a new context with these messages: the client shortened its own."""
        self.trails.append([*raws])

    def call(self, answer: Sequence[bytes], model: str, usage: Usage | None = None, at_ms: int = 0) -> None:
        """Add a call whose request has all messages so far, and its answer."""
        self.calls.append(TranscriptCall(len(self.trails) - 1, len(self.trail), tuple(answer), model, usage, at_ms))
        self.trail.extend(answer)

    def amend(self, usage: Usage | None) -> None:
        """Set the usage of the last call, which was told after its answer."""
        if self.calls and usage is not None:
            self.calls[-1] = msgspec.structs.replace(self.calls[-1], usage=usage)

    def freeze(self) -> tuple[tuple[bytes, ...], ...]:
        """Return the trails."""
        return tuple(tuple(trail) for trail in self.trails)


@dataclass(frozen=True, slots=True)
class Lines:
    """The objects of a file in JSON Lines, and how many lines were broken."""

    values: tuple[Value, ...]
    broken: int


def read_lines(text: str) -> Lines:
    """Return the objects of a text in JSON Lines. A line that holds none counts as broken."""
    values, broken = [], 0
    for line in text.split("\n"):
        if not line.strip():
            continue
        value = read_json(line)
        if isinstance(value, dict):
            values.append(value)
        else:
            broken += 1
    return Lines(tuple(values), broken)


def read_json(text: str | bytes) -> Any:
    """Return the value of a JSON text, None if it is not valid."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def read_map(value: object) -> Value:
    """Return an object, or an empty one in place of anything else."""
    return value if isinstance(value, dict) else {}


def read_list(value: object) -> list[Any]:
    """Return a list, or an empty one in place of anything else."""
    return value if isinstance(value, list) else []


def read_number(value: object) -> int | None:
    """Return a count of tokens, None for anything else."""
    is_count = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12
    return int(value) if is_count else None  # type: ignore[call-overload]


def read_time(value: object) -> int:
    """Return a time in milliseconds since 1970: from a number of seconds or milliseconds, or ISO 8601; 0 if none."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return int(value if value > _LATEST_SECONDS else value * _FRACTION) if 0 < value < 1e15 else 0
    try:
        found = datetime.fromisoformat(read_text(value))
    except ValueError:
        return 0
    return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * _FRACTION)


def read_parts(content: object) -> list[Value]:
    """Return the parts of a message's content: one of text for a string."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return [part for part in read_list(content) if isinstance(part, dict)]


def join_text(content: object) -> str:
    """Return the text of a message's content."""
    return "\n".join(read_text(part.get("text")) for part in read_parts(content) if part.get("text"))
