"""The texts that recall answers with: hits, pages, and what is said of how old a content is.

They are plain text without anything like a call or a marker of ours, which models would imitate.
"""

from collections.abc import Iterable, Sequence

import msgspec

from proxy.context.references import sanitize_lines, sanitize_original, sanitize_text
from proxy.engine.recall.history import AnsweredCall, History
from proxy.engine.recall.tool import RecallCall
from proxy.engine.recall.versions import FileVersions, Version, find_versions, list_changes_after, list_paths
from proxy.engine.recorded.conversation import cut_page
from proxy.model.search import EntryKind, Hit, SearchAnswer

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
_LONGEST_NAME, _LONGEST_PATH, _LONGEST_QUERY = 60, 200, 120
_LONGEST_SAID, _LONGEST_LINE, _MOST_LINES = 160, 240, 60
_MOST_STEPS, _MOST_FILES = 12, 3
_OWN_KINDS: frozenset[EntryKind] = frozenset({"ledger", "summary", "outline"})
_KINDS: dict[EntryKind, str] = {
    "reasoning": "reasoning",
    "ledger": "ledger",
    "summary": "summary",
    "outline": "outline",
    "broadcast": "broadcast",
}


def format_age(ms: int) -> str:
    """Format how long ago something was, in its largest unit."""
    seconds = max(0, ms // 1000)
    for size, name in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min")):
        if seconds >= size:
            return f"{seconds // size} {name} ago"
    return f"{seconds} s ago"


def name_entry(kind: EntryKind, role: str, tool: str, sender: str = "") -> str:
    """Name an entry by its tool, or by who said it."""
    by = f" from {sanitize_text(sender, _LONGEST_NAME)}" if sender else ""
    if kind in ("output", "arguments"):
        return f"{'output' if kind == 'output' else 'call'} of {sanitize_text(tool, _LONGEST_NAME) or 'a tool'}{by}"
    return f"{_KINDS.get(kind) or sanitize_text(role, _LONGEST_NAME) or 'message'}{by}"


def list_steps(steps: Iterable[int]) -> str:
    """Name steps by their numbers, the newest `_MOST_STEPS` of them."""
    numbers = sorted(set(steps))
    shown = ", ".join(map(str, numbers[-_MOST_STEPS:]))
    if len(numbers) > _MOST_STEPS:
        shown = f"…, {shown}"
    return f"step{'s' if len(numbers) > 1 else ''} {shown}"


def name_span(history: History, places: range) -> str:
    """Name the steps of messages."""
    first, last = history.find_step(places.start), history.find_step(max(places.start, places.stop - 1))
    return f"step {first}" if first == last else f"steps {first}-{last}"


def tell_changes(history: History, found: FileVersions, version: Version) -> str:
    """Tell at which steps a file was modified after a version of it; empty if it was not, as far as is known."""
    changes = list_changes_after(found, version)
    if not changes:
        return ""
    return f"{sanitize_text(found.path, _LONGEST_PATH)} was modified at {_name_steps(history, changes)}"


def _name_steps(history: History, changes: Iterable[AnsweredCall]) -> str:
    return list_steps(history.find_step(change.place) for change in changes)


def write_page(head: str, text: str, call: RecallCall, characters: int) -> str:
    """Write a page of a text behind a line that says what it is; `call` gets it, and its successor the next page."""
    part, count = cut_page(text, call.page, characters)
    what = f"ref {call.reference}" if call.reference else sanitize_text(call.query, _LONGEST_QUERY)
    if call.page > count:
        return f"There is no page {call.page} of this: it has {count}, counted from 1 ({what})."
    at = f" · page {call.page} of {count}" if count > 1 else ""
    more = f"\n(page {call.page} of {count}; the next: {what}, page {call.page + 1})"
    return f"{head}{at}\n{sanitize_original(part)}{more if call.page < count else ''}"


def write_hits(answer: SearchAnswer, places: Sequence[str], query: str, call: RecallCall, characters: int) -> str:
    """Write a page of hits; `places` says of each where it stands and how old it is."""
    about = sanitize_text(query, _LONGEST_QUERY)
    if not answer.hits:
        return (
            f"Nothing was found for: {about}. Try other words of it: a name, a path, an error message, or what was said"
            f" about it.{_tell_limits(answer)}"
        )
    pages = _fill_pages([_write_hit(hit, place) for hit, place in zip(answer.hits, places, strict=True)], characters)
    if call.page > len(pages):
        return f"There is no page {call.page} of what was found for: {about}. It has {len(pages)}."
    head = f"Found for: {about} · to read one whole: expand with its ref"
    more = f"\n(page {call.page}; the next: the same query, page {call.page + 1})" if call.page < len(pages) else ""
    return f"{head}{_tell_limits(answer)}\n{pages[call.page - 1]}{more}"


def _write_hit(hit: Hit, place: str) -> str:
    named = name_entry(hit.kind, hit.role, hit.tool, hit.sender)
    # What the proxy wrote has references of its own, and texts in it were made fit when it was written.
    fit = hit.snippet if hit.kind in _OWN_KINDS else sanitize_lines(hit.snippet)
    lines = sanitize_original(fit).strip("\n").split("\n")
    return "\n".join((f"ref:{hit.reference} · {named} · {place}", *(f"  {line}" for line in lines)))


def _fill_pages(texts: Sequence[str], characters: int) -> list[str]:
    """Divide texts among pages of at most so many characters; one that is longer alone has a page of its own."""
    pages: list[str] = []
    for text in texts:
        cut = text[:characters]
        if pages and len(pages[-1]) + 1 + len(cut) <= characters:
            pages[-1] = f"{pages[-1]}\n{cut}"
        else:
            pages.append(cut)
    return pages


def _tell_limits(answer: SearchAnswer) -> str:
    late = f" The newest {answer.behind} records cannot be searched yet." if answer.behind else ""
    return f"{late}{'' if answer.is_complete else ' The search was ended by its time limit; fewer words take less.'}"


class VersionNote(msgspec.Struct, frozen=True, gc=False):
    """As of when a content is, what changed since, and the place of what is newer, if anything is, with its path."""

    text: str
    newer: int | None = None
    path: str = ""


def tell_version(history: History, places: range) -> VersionNote:
    """Tell as of which steps messages are, which files that they show have changed since, and what is newer."""
    as_of = f"as of {name_span(history, places)} of {history.steps}"
    acts = [act for act in history.calls if act.answered in places]
    changed: dict[str, str] = {}
    newer: dict[str, int] = {}
    for act in acts:
        for path in list_paths(act.call):
            found = find_versions(history, path)
            own = next((each for each in found.shown if each.act is act and not each.is_written), None)
            if own is None:
                continue
            since = [change for change in list_changes_after(found, own) if change.place >= places.stop]
            later = [each for each in found.versions if each.place >= places.stop and (own.is_part or not each.is_part)]
            changed.pop(path, None)
            newer.pop(path, None)
            if since:
                changed[path] = f"{sanitize_text(path, _LONGEST_PATH)} was modified at {_name_steps(history, since)}"
            if later and (since or later[-1].is_written):
                newer[path] = later[-1].place
    told = "; ".join((as_of, *list(changed.values())[:_MOST_FILES]))
    if len(acts) == 1 and not newer:
        again = [each for each in history.calls if each.answered >= places.stop and _is_same_call(each, acts[0])]
        return VersionNote(told, again[-1].answered if again else None)
    path, place = next(iter(newer.items()), ("", None))
    return VersionNote(told, place if len(newer) == 1 else None, path)


def tell_file_changes(history: History, place: int) -> str:
    """Tell at which steps a file was modified after the output at a place that shows it; else return nothing."""
    act = history.find_call(place)
    for path in list_paths(act.call) if act is not None else ():
        found = find_versions(history, path)
        for version in found.shown:
            if version.act is act and not version.is_written:
                return tell_changes(history, found, version)
    return ""


def list_span(history: History, places: range) -> list[str]:
    """Return a line for each step of messages: who said what, or which calls were made."""
    lines: dict[int, list[str]] = {}
    for place in places:
        message = history.messages[place]
        said = " ".join(message.text[:_LONGEST_SAID].split()) if message.role in ("user", "assistant") else ""
        calls = [f"{call.name} {' '.join(call.arguments.split())}"[:_LONGEST_SAID] for call in message.calls]
        lines.setdefault(history.find_step(place), []).extend(filter(None, (said, *calls)))
    told = [f"  {step}: {sanitize_text('; '.join(said), _LONGEST_LINE)}" for step, said in lines.items() if said]
    return told if len(told) <= _MOST_LINES else [*told[:_MOST_LINES], f"  … {len(told) - _MOST_LINES} more steps"]


def _is_same_call(one: AnsweredCall, other: AnsweredCall) -> bool:
    return one.call.name == other.call.name and one.call.arguments == other.call.arguments
