"""Two runs of a client held against each other, and the proxy's log against what the upstream saw.

Rule: pure; every difference is one line that says where it is. Bytes are compared; nothing is taken out of them but
what a client's own `normal` names.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tests.clients.client import Client
from tests.clients.logs import Recorded
from tests.clients.script import CONTENT, COPY, DONE
from tests.clients.upstream import Exchange

_AROUND = 60


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a client: how its commands ended, what they wrote, what the upstream saw, which files it left. `kept`
    are all files that it left, those of its own too.
    """

    codes: tuple[int, ...]
    output: bytes
    recording: tuple[Exchange, ...]
    files: tuple[tuple[str, bytes], ...]
    kept: tuple[tuple[str, bytes], ...] = ()


def drop_listings(direct: Run, through: Run) -> Run:
    """The run without the listings of models that the proxy asked for: those of which the client asks for none."""
    if any(_is_listing(call) for call in direct.recording):
        return through
    return replace(through, recording=tuple(call for call in through.recording if not _is_listing(call)))


def _is_listing(call: Exchange) -> bool:
    return (call.method, call.target.partition("?")[0]) == ("GET", "/v1/models")


def compare_runs(client: Client, direct: Run, through: Run) -> Iterator[str]:
    """What differs through the proxy."""
    if direct.codes != through.codes:
        yield f"exit codes: direct {direct.codes}, through the proxy {through.codes}"
    if direct.output != through.output:
        yield f"output: {find_difference(direct.output, through.output)}"
    if direct.files != through.files:
        yield f"files that differ: {', '.join(sorted({name for name, _ in {*direct.files} ^ {*through.files}}))}"
    yield from compare_recordings(client, direct.recording, through.recording)


def compare_recordings(client: Client, direct: Sequence[Exchange], through: Sequence[Exchange]) -> Iterator[str]:
    """What the upstream saw otherwise through the proxy."""
    if len(direct) != len(through):
        yield f"calls: direct {len(direct)}, through the proxy {len(through)}"
        return
    pairs = zip(_shape(client, direct), _shape(client, through), strict=True)
    for n, (one, other) in enumerate(pairs, 1):
        if one != other:
            yield f"call {n}: {find_difference(one, other)}"


def check_run(client: Client, run: Run) -> Iterator[str]:
    """Whether a run was one at all: fine by its own account, with tools that really ran."""
    if any(run.codes):
        yield f"exit codes {run.codes}"
    if not client.script.prose and DONE.encode() not in run.output:
        yield f"the last answer is not in the output: {run.output[-300:]!r}"
    if client.script.prose and COPY not in dict(run.files):
        yield "the file that the answer holds was not written"
    # The part of the note that JSON writes as it is.
    if not client.script.prose and not any(CONTENT[:20].encode() in call.body for call in run.recording):
        yield "no request carries what a tool read"


def compare_log(
    recording: Sequence[Exchange], log: Sequence[Recorded], parts: Sequence[str] = ("request", "sent")
) -> Iterator[str]:
    """Whether the log holds each exchange of the upstream whole, byte for byte, and no other."""
    seen = Counter((call.method, _path(call.target), call.body, call.answer) for call in recording)
    for part in parts:
        kept = Counter((row.method, _path(row.target), getattr(row, part), row.received) for row in log)
        for method, path, *_ in (seen - kept).elements():
            yield f"{method} {path}: the upstream saw other bytes than the log has as {part} and received"
        for method, path, *_ in (kept - seen).elements():
            yield f"{method} {path}: in the log as {part} and received, but not what the upstream saw"
    for row in log:
        if row.completeness != "complete":
            yield f"{row.method} {row.target}: recorded as {row.completeness or 'open'}"


def drop_cut(recording: Sequence[Exchange], log: Sequence[Recorded]) -> tuple[list[Exchange], list[Recorded]]:
    """Both without the calls that a kill cut off. The log has of such a call what had come of it, or nothing."""
    left = list(log)
    for call in (call for call in recording if call.is_cut):
        rows = [row for row in left if row.sent == call.body and call.answer.startswith(row.received)]
        if rows:
            left.remove(min(rows, key=lambda row: len(row.received)))
    return [call for call in recording if not call.is_cut], left


def find_difference(one: bytes, other: bytes) -> str:
    """The first place where two contents differ, with what is around it."""
    pairs = enumerate(zip(one, other, strict=False))
    at = next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))
    start = max(0, at - _AROUND)
    return f"at byte {at}: {one[start : at + _AROUND]!r} is now {other[start : at + _AROUND]!r}"


def _shape(client: Client, recording: Sequence[Exchange]) -> list[bytes]:
    shapes = [f"{call.method} {call.target}\n".encode() + client.normal(call.body) for call in recording]
    return shapes if client.is_ordered else sorted(shapes)


def _path(target: str) -> str:
    """A target without the values in its query: the log keeps the names only."""
    return re.sub(r"=[^&]*", "", target)
