"""The newest complete path of a session, and the whole request that a client's few messages become behind it.

The body that is made begins with its messages, so that each one begins with the bytes of the one before it: what
compares, splits and stores bodies (`engine/conversations/bodies`) then looks at nothing but what is new.
"""

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import NamedTuple

import msgspec

from proxy.engine.conversations.bodies import CachedBody
from proxy.model.errors import BadRequest
from proxy.model.exchange import ClientRequest
from proxy.wire.body import SplitBody, split_body
from proxy.wire.format import Format
from proxy.wire.identity import Item, count_preamble
from proxy.wire.json_values import change_members, encode_text, join_array, list_elements
from proxy.wire.messages import CACHE_MARKER

_NO_MEMBER = (b"", b"null", b"false", b'""')
# What lets the provider hold the history, or answer later, cannot be joined with a history of ours.
_EXCLUDED = ("previous_response_id", "conversation", "background")
_NO_MESSAGES = (b"", b"[]", b"null", b'""')
_MOST_NAMED = 8


class Brought(NamedTuple):
    """What a client's request brings: raw messages, split into its system messages at the beginning and the rest.

    `items` are those of the rest. `told` is what was told of a turn that was made elsewhere.
    """

    split: SplitBody
    leading: tuple[bytes, ...]
    raws: tuple[bytes, ...]
    items: tuple[Item, ...]
    told: bytes = b""

    @property
    def digest(self) -> bytes:
        """The SHA-256 of all its messages; of a turn that was made elsewhere, that of all that was told of it."""
        return sha256(self.told or b"\n".join((*self.leading, *self.raws))).digest()


class TailMessage(NamedTuple):
    """A message near the end of a path, and the kind of source that its request told of it, if any."""

    raw: bytes
    kind: str = ""


class HeldPath(msgspec.Struct, frozen=True, eq=False):
    """A path: the body of its last call, in `content`, and the messages of the answer to that.

    The messages of the body begin at its beginning. The first one after the preamble begins at `first`, and the last
    one ends at `end`. `instructions` is the raw member with the system prompt, `waiting` are the ids of the calls
    without results, and `tail` are the newest messages of the body. `key` and `digest` are as in `ReceivedCall`.
    """

    wire: str
    exchange: str
    content: bytes
    first: int
    end: int
    answer: tuple[bytes, ...] = ()
    instructions: bytes = b""
    waiting: tuple[str, ...] = ()
    tail: tuple[TailMessage, ...] = ()
    key: str = ""
    digest: bytes = b""
    ended_ms: int = 0
    own: CachedBody | None = None  # what the client sent for its last call
    generation: int = 0  # of the log, when it took that

    @property
    def weight(self) -> int:
        """Bytes of memory, roughly."""
        own = len(self.own.split.content) if self.own is not None else 0
        return 1000 + len(self.content) + own + sum(map(len, self.answer)) + sum([len(each.raw) for each in self.tail])


class WholeBody(NamedTuple):
    """A body with its history. `first` and `end` are as in `HeldPath`; the new messages begin at `start`."""

    content: bytes
    first: int
    start: int
    end: int


def read_brought(form: Format, split: SplitBody, told: bytes = b"") -> Brought:
    """Return what a request brings. Raises BadRequest for one that cannot have a history of ours."""
    for name in _EXCLUDED:
        if split.member(name) not in _NO_MEMBER:
            raise BadRequest(f"{name} and x-palimpsest-history exclude each other")
    member = split.member(form.items_key)
    if form.read_input(member):  # Responses: `input` may be a string, which is one message of the user
        raws: tuple[bytes, ...] = (form.write_message("user", member),) if member != b'""' else ()
    else:
        raws = tuple([split.content[span.start : span.end] for span in split.items])
    if not raws and member not in (*_NO_MEMBER, b"[]"):
        raise BadRequest(f"{form.items_key} cannot be read message by message, so it has no place in a history")
    items = tuple(map(form.reader.read_item, raws))
    leading = count_preamble(items)
    if form.is_aside(split):
        raise BadRequest("a request for a compaction is no part of a history")
    return Brought(split, raws[:leading], raws[leading:], items[leading:], told)


def pair_results(waiting: Iterable[str], items: Iterable[Item]) -> tuple[str, ...]:
    """Return the ids of the calls that have no results after these messages, if `waiting` had none before.

    Raises BadRequest for results of other calls, and for words while results are missing.
    """
    left = list(waiting)
    for item in items:
        for id in item.results:
            if id not in left:
                raise BadRequest(f"there is a result of {id[:100]!r}, which is no call that waits for one")
            left.remove(id)
        if not item.results and not item.calls and item.role in ("user", "system"):
            _expect_none(left)
        left += item.calls
    return tuple(left)


def expect_results(waiting: Sequence[str], items: Sequence[Item]) -> None:
    """Raise BadRequest unless these messages bring the results of all calls that wait, and no others."""
    _expect_none(pair_results(waiting, items))


def list_waiting(items: Iterable[Item], before: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the ids of the calls without results, whatever else there is."""
    left = list(before)
    for item in items:
        left = [id for id in left if id not in item.results]
        left += [id for id in item.calls if id not in left]
    return tuple(left)


def _expect_none(waiting: Sequence[str]) -> None:
    if waiting:
        named = ", ".join([repr(id[:100]) for id in waiting[:_MOST_NAMED]])
        more = f" and {len(waiting) - _MOST_NAMED} more" if len(waiting) > _MOST_NAMED else ""
        raise BadRequest(f"the history waits for the results of the calls {named}{more}: they come first")


def make_whole(form: Format, path: HeldPath | None, brought: Brought, *, is_repeated: bool = False) -> WholeBody:
    """Return the body of a request with all its history. If it `is_repeated`, nothing is appended."""
    head = begin_body(form)
    if path is None:
        body = head + b"".join([raw + b"," for raw in brought.leading])
        first = start = len(body)
        body += b",".join(brought.raws)
    else:
        body, first = path.content[: path.end], path.first
        beginning = head + b"".join([raw + b"," for raw in brought.leading])
        if brought.leading and not body.startswith(beginning, 0, first):
            body, first = beginning + body[first:], len(beginning)
        start = len(body) + 1
        added = () if is_repeated else (*path.answer, *brought.raws)
        body = b",".join((body, *added))
    return WholeBody(body + b"]" + _list_members(form, path, brought.split), first, start, len(body))


def begin_body(form: Format) -> bytes:
    """Return the bytes with which a body begins, up to its first message."""
    return b'{"%b":[' % form.items_key.encode()


def list_members(form: Format, split: SplitBody, *dropped: str) -> list[bytes]:
    """Return the members of a body as they stand behind its messages, without those that are dropped."""
    return [
        b",%b:%b" % (encode_text(name), split.content[span.start : span.end])
        for name, span in split.members.items()
        if name not in (form.items_key, *dropped)
    ]


def _list_members(form: Format, path: HeldPath | None, split: SplitBody) -> bytes:
    """Return the members of the request behind its messages, and the end of the body."""
    members = list_members(form, split)
    key = form.instructions_key
    if path is not None and path.instructions and key and key not in split.members:
        members.append(b",%b:%b" % (encode_text(key), path.instructions))
    return b"".join((*members, b"}"))


def find_instructions(form: Format, path: HeldPath | None, split: SplitBody) -> bytes:
    """Return the raw member with the system prompt that holds from a request on."""
    key = form.instructions_key
    if not key:
        return b""
    return split.member(key) if key in split.members else path.instructions if path is not None else b""


def strip_markers(form: Format, content: bytes, start: int, end: int) -> tuple[bytes, int]:
    """Return a body's messages without the cache markers of those from `start` to `end`, and the new end.

    A marker belongs to the request that has it. If all stayed, there would soon be more than a provider takes.
    """
    if CACHE_MARKER not in content[start:end]:
        return content, end
    kept = content[:start] + b",".join(map(_strip_marker, list_elements(b"[%b]" % content[start:end])))
    return kept, len(kept)


def _strip_marker(raw: bytes) -> bytes:
    def change(name: str, value: bytes) -> bytes | None:
        if name == "cache_control":
            return None
        is_list = name == "content" and value[:1] == b"["
        return join_array(map(_strip_marker, list_elements(value))) if is_list else value

    return change_members(raw, change) if CACHE_MARKER in raw else raw


def expect_messages(request: ClientRequest, form: Format) -> None:
    """Raise BadRequest if a request whose history its client holds asks for a nudge: it has no message."""
    split = split_body(request.body, form.items_key)
    if split is not None and split.member(form.items_key) in _NO_MESSAGES:
        raise BadRequest("a call without messages needs a history that is held here: x-palimpsest-history: server")
