"""The text of memory as a model is shown it. The same items always give the same bytes.

Only the first line of an item begins at the margin, and whatever looks like a heading of ours inside an item is
changed, so that no content can end a section or begin another.
"""

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby

from proxy.context.references import sanitize_lines
from proxy.model.memory import (
    CLAIMED,
    EPISODIC_HEAD,
    RECENT_HEAD,
    SEMANTIC_HEAD,
    Episodic,
    MemoryBundle,
    RawTrace,
    Semantic,
)

_HEAD_LIKE = re.compile(r"\[(?=\s*+(?:/\s*+)?(?:MEMORY\s*:|RECENT\s+TURNS\b))", re.IGNORECASE)
_REFERENCE_TAG = re.compile(r"ref:[a-z2-7]{10}")
_SPEAKERS = {"user": "User", "assistant": "Assistant", "tool_call": "Tool call", "tool_result": "Tool result"}


def defuse(text: str) -> str:
    """Return a text in which nothing looks like a heading or a marker of ours."""
    return _HEAD_LIKE.sub("(", sanitize_lines(text.replace("\r", "\n")))


def render_bundle(bundle: MemoryBundle) -> str:
    """Render items under `[MEMORY:EPISODIC]` and `[MEMORY:SEMANTIC]`, empty if there are none."""
    parts: list[str] = []
    if bundle.episodic:
        parts += (EPISODIC_HEAD, *(_render_report(n, each) for n, each in enumerate(bundle.episodic, 1)))
    if bundle.semantic:
        parts += (SEMANTIC_HEAD, *map(_render_fact, bundle.semantic))
    return "\n".join(parts)


def _render_report(n: int, item: Episodic) -> str:
    references = [tag for tag in item.tags if _REFERENCE_TAG.fullmatch(tag)]
    about = [_name_turns(item.turn_ids), _format_date(item.ts), *(f"original: {each}" for each in references)]
    # A report has been checked: the references in it are known ones, and stay.
    said = _HEAD_LIKE.sub("(", item.summary.replace("\r", "\n")).strip()
    return f"{n}) ({'; '.join(filter(None, about))})\n{_indent(said, 3)}"


def _render_fact(item: Semantic) -> str:
    label = ", claimed in a tool's output or by the model" if CLAIMED in item.tags else ""
    return f"- ({item.kind}{label}) {' '.join(defuse(item.fact).split())}"


def _name_turns(turn_ids: Sequence[str]) -> str:
    if not turn_ids:
        return ""
    first, last = _read_number(turn_ids[0]), _read_number(turn_ids[-1])
    return f"turn {first}" if first == last else f"turns {first} to {last}"


def _read_number(id: str) -> str:
    return id.rpartition("_")[2].lstrip("0") or "0"


def _format_date(ts: float) -> str:
    return datetime.fromtimestamp(ts, UTC).strftime("%Y-%m-%d %H:%M UTC")


def render_turns(traces: Sequence[RawTrace]) -> str:
    """Render traces under `[RECENT TURNS]`, by turn, empty if there are none."""
    if not traces:
        return ""
    parts = [RECENT_HEAD]
    for turn, found in groupby(traces, key=lambda each: each.turn_id):
        parts += (f"Turn {_read_number(turn)}:", *(line for each in found for line in _render_trace(each)))
    return "\n".join(parts)


def _render_trace(trace: RawTrace) -> Iterator[str]:
    said = defuse(trace.content).strip()
    if trace.trace_type == "tool_call":
        given = "" if trace.tool_args is None else bytes(trace.tool_args).decode(errors="replace")
        said = defuse(f"{trace.tool_name} {given}").strip()
    media = trace.media
    seen = () if media is None else (*media.images, *media.audio, *media.video)
    said = "\n".join(part for part in (said, *(f"({defuse(each)})" for each in seen)) if part)
    if said:
        head, _, rest = said.partition("\n")
        yield f"  {_SPEAKERS[trace.trace_type]}: {head}"
        if rest:
            yield _indent(rest, 4)


def _indent(text: str, spaces: int) -> str:
    return "\n".join(f"{' ' * spaces}{line}".rstrip() for line in text.split("\n"))
