"""References in the model's context: the original text that each names, and the markers that replace content.

A marker states what it replaces, how that ended and how to retrieve it; it never looks like a
call. The original of given messages never changes, because references start at character offsets of it.
"""

import hmac
import re
from base64 import b32encode
from collections.abc import Iterator, Sequence

import msgspec

from proxy.context.budget import Count
from proxy.model import Value
from proxy.model.messages import RECALL_TOOL, Message
from proxy.model.parts import FileRefPart

CONTROL_CHARACTERS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+")
_BRACKETED = re.compile(r"\[(?=\s*+(?:/\s*+)?(?:FILE\b|tool\s*:))", re.IGNORECASE)
_REFERRING = re.compile(r"\bref:(?=[a-z0-9]{10})", re.IGNORECASE)


def sanitize_text(text: str, most: int) -> str:
    """Return at most `most` characters of a text in one line, without anything like a marker or a reference."""
    cut = text[: most + 1]
    # Most texts have none of what is replaced; looking for it takes less time than replacing nothing.
    line = cut if cut.isprintable() else CONTROL_CHARACTERS.sub(" ", cut)
    fit = _REFERRING.sub("ref ", _BRACKETED.sub("(", line) if "[" in line else line)
    return fit if len(cut) <= most else f"{fit[: most - 1]}…"


_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def sanitize_lines(text: str) -> str:
    """Return the lines of a text without anything like a marker or a reference; their indentation stays."""
    return _REFERRING.sub("ref ", _BRACKETED.sub("(", _UNPRINTABLE.sub(" ", text)))


# What only a marker of ours has. Other brackets stay: `[tool:pytest]` is a line of setup.cfg.
_OWN_MARKER = re.compile(
    r"\[(?=tool: [^\n]{0,400} — output pruned; completed|FILE: [^\n]{0,400}\]\nref:[a-z2-7]{10} · |/FILE\]"
    r"|palimpsest ledger )"
)
_SURROGATES = re.compile("[\ud800-\udfff]")


def sanitize_original(text: str) -> str:
    """Return a text as it is but for markers of ours that are quoted in it, and for what UTF-8 cannot hold."""
    return _SURROGATES.sub("\ufffd", _OWN_MARKER.sub("(", text))


PAGE = 12_000
"""Characters of a page. A reader of a reference always sees the first page of its original."""
PAGE_OVERLAP = 200
"""Characters that a page has in common with the one before: no line of usual length is on neither whole."""

_MOST_DEPTH = 16

_decode = msgspec.json.Decoder().decode


def render_original(messages: Sequence[Message]) -> str:
    """Render the original of messages: the text that references name."""
    return "".join(map(render_message, messages))


def render_message(message: Message) -> str:
    """Render the original of one message; it ends with an empty line."""
    answered = f" · answers {', '.join(message.results)}" if message.results else ""
    parts = [f"--- {message.role or 'unknown'}{answered}", *([message.text] if message.text else ())]
    parts += [f"({each})" for each in message.media]
    for call in message.calls:
        parts += (f"--- calls {call.name} · {call.id}", *list_argument_lines(call.arguments))
    return "\n".join((*parts, "", ""))


def list_argument_lines(arguments: str) -> list[str]:
    """Return the arguments as `name: value` entries, one for each value; what is not JSON is returned unchanged."""
    try:
        value = _decode(arguments)
    except (ValueError, RecursionError):
        return [arguments] if arguments else []
    return list(_list_values("", value, 0))


def _list_values(name: str, value: object, depth: int) -> Iterator[str]:
    if depth < _MOST_DEPTH and isinstance(value, dict):
        for key, each in value.items():
            yield from _list_values(f"{name}.{key}" if name else str(key), each, depth + 1)
    elif depth < _MOST_DEPTH and isinstance(value, list):
        for each in value:
            yield from _list_values(name, each, depth + 1)
    else:
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        yield f"{name}: {text}" if name else text


_FOLDED = re.compile(r"(?<![\w./@-])([\w./@-]{0,160}[/.])\{([\w@-]+(?:,[\w@-]+)+)\}([\w.@-]*)")
_FOLDABLE = re.compile(r"([\w.@/-]*/|(?:\w+\.)+)([\w@-]+)((?:\.[A-Za-z]\w{0,4})?)")


def find_fold(word: str) -> tuple[str, str, str]:
    """Return the directory of a path or the first parts of a dotted name, its last part, and the ending of a path.

    Words that have these in common, but for their last parts, are folded to one. Empty texts: the word has none.
    """
    match = _FOLDABLE.fullmatch(word)
    if match is None:
        return "", "", ""
    prefix, stem, ending = match.groups()
    return (prefix, stem, ending) if "/" in prefix or not ending else (f"{prefix}{stem}.", ending[1:], "")


def fold_words(words: Sequence[str]) -> list[str]:
    """Return the words, those of one directory and ending or of one object as one: `tests/{test_a,test_b}.py`."""
    groups: dict[tuple[str, str], list[str]] = {}
    for word in words:
        prefix, stem, ending = find_fold(word)
        groups.setdefault((prefix, ending) if prefix else ("", word), []).append(stem)
    return [
        f"{prefix}{{{','.join(stems)}}}{ending}" if len(stems) > 1 and prefix else f"{prefix}{stems[0]}{ending}"
        for (prefix, ending), stems in groups.items()
    ]


def unfold_words(text: str) -> str:
    """Return a text with each folded word, as `fold_words` makes them, replaced by the words that it stands for."""
    return _FOLDED.sub(lambda found: " ".join(f"{found[1]}{stem}{found[3]}" for stem in found[2].split(",")), text)


_ID_LENGTH = 10
_LONGEST_NAME = 80
_LONGEST_LINE = 200


class FileReference(Value):
    """A marker of a large content: its id, its origin (a path or a name), its kind and its size.

    `way` states in words how to obtain it again; it is empty where only the reference retrieves it. `excerpt` has its
    first and last lines, as far as there is room for them.
    """

    reference: str
    path: str
    kind: str
    tokens: int
    lines: int
    digest: bytes
    outline: Sequence[str]
    way: str = ""
    excerpt: str = ""


class Tombstone(Value):
    """A marker of a tool's output: its id, the tool, its outcome and the number of its lines.

    `way` states in words how to obtain it again, `words` are identifiers of the output. `has_effects`: the call may
    have changed something.
    """

    reference: str
    tool: str
    outcome: str
    lines: int
    way: str
    words: Sequence[str] = ()
    has_effects: bool = False


def make_reference(secret: bytes, session: str, digest: bytes) -> str:
    """Return the id of a content in a session: ten of `[a-z2-7]`, unpredictable without the secret."""
    tag = hmac.digest(secret, b"reference\0" + session.encode("utf-8", "surrogatepass") + b"\0" + digest, "sha256")
    return b32encode(tag).decode()[:_ID_LENGTH].lower()


def render_file(file: FileReference) -> str:
    """Render the block that replaces a large content. Without a digest it says nothing of digest and lines."""
    head = f"ref:{file.reference} · {sanitize_text(file.kind, _LONGEST_NAME)} · {file.tokens:,} tokens"
    if file.digest:
        head += f" · {file.lines:,} lines · sha256 {file.digest.hex()[:12]}"
    outline = (f"  {sanitize_text(line, _LONGEST_LINE)}" for line in file.outline)
    excerpt = ("its beginning and its end:", sanitize_lines(file.excerpt)) if file.excerpt else ()
    return "\n".join(
        (
            f"[FILE: {sanitize_text(file.path, _LONGEST_LINE)}]",
            head,
            *outline,
            *excerpt,
            _render_access(file.way),
            "[/FILE]",
        )
    )


def render_file_part(part: FileRefPart) -> str:
    """Render the block for a file that a program has put into the log."""
    way = f"call {RECALL_TOOL} if there is that tool, read the file again, or ask the user for `palimpsest expand ID`"
    outline = part.exploration_summary.splitlines()
    return render_file(
        FileReference(part.content_id, part.path, part.file_type, part.token_count, 0, b"", outline, way)
    )


_CUT_SHARE = 0.95


def cut_to_ends(text: str, room: float, count: Count, note: str = "") -> str:
    """Return the first and the last lines of a text, and a note between them, in at most `room` tokens.

    Without a `note` it states how much is missing. Where there is no room for anything else, the note is returned.
    """
    cut, most = text, len(text)
    while (tokens := count(cut)) > room and most:
        most = int(most * max(0.0, min(_CUT_SHARE, room / tokens)))
        cut = _join_ends(text, most, note)
    return cut


def _join_ends(text: str, most: int, note: str) -> str:
    """Return about `most` characters of a text: three fifths of them from its beginning, in whole lines if possible."""
    head, tail = text[: most * 3 // 5], text[len(text) - most * 2 // 5 :]
    if (end := head.rfind("\n")) >= len(head) // 2:
        head = head[:end]
    if 0 <= (start := tail.find("\n")) <= len(tail) // 2:
        tail = tail[start + 1 :]
    missing = text[len(head) : len(text) - len(tail)]
    lines = missing.strip("\n").count("\n") + 1
    note = note or f"[… {lines:,} lines, {len(missing):,} characters left out …]"
    return "\n".join(part for part in (head, note, tail) if part)


ACCESS = "run it again if it only reads, or ask the user for `palimpsest expand ID`"
ACCESS_AFTER_EFFECTS = "ask the user for `palimpsest expand ID`"
RECALL_ACCESS = f"call {RECALL_TOOL}, or run it again if it only reads"
RECALL_ACCESS_AFTER_EFFECTS = f"call {RECALL_TOOL}"
HEADER_ACCESS = " To see one: run a command that only reads again, or ask the user for `palimpsest expand ID`."
HEADER_RECALL = f" To see one: call {RECALL_TOOL} with its reference."
CHAT_ACCESS = "; the user can read one with `palimpsest expand ID`."
CHAT_RECALL = f"; call {RECALL_TOOL} with one to read it."
NOTE_ACCESS = " The user can search them with `palimpsest search`."
NOTE_RECALL = f" Search them with {RECALL_TOOL}."
# The longer ones come first, since they contain others.
_WITHOUT_TOOL = (
    (HEADER_RECALL, HEADER_ACCESS),
    (CHAT_RECALL, CHAT_ACCESS),
    (NOTE_RECALL, NOTE_ACCESS),
    (RECALL_ACCESS, ACCESS),
    (f"to see it: {RECALL_ACCESS_AFTER_EFFECTS};", f"to see it: {ACCESS_AFTER_EFFECTS};"),
    (f"To see it again: {RECALL_ACCESS_AFTER_EFFECTS}.", f"To see it again: {ACCESS_AFTER_EFFECTS}."),
)


def find_access(*, has_tool: bool, has_effects: bool) -> str:
    """Return in words how an output can be seen again. `has_tool`: the model has the tool to recall."""
    if has_tool:
        return RECALL_ACCESS_AFTER_EFFECTS if has_effects else RECALL_ACCESS
    return ACCESS_AFTER_EFFECTS if has_effects else ACCESS


def forget_tool(content: bytes) -> bytes:
    """Return text of ours, also as a part of JSON, with what is to be done without the tool in place of its name."""
    for with_tool, without in _WITHOUT_TOOL:
        content = content.replace(with_tool.encode(), without.encode())
    return content


def render_tombstone(stone: Tombstone) -> str:
    """Render the marker that replaces a tool's output, in one line."""
    outcome = f", {sanitize_text(stone.outcome, _LONGEST_LINE)}" if stone.outcome else ""
    effects = "it may have had effects, do not repeat it; " if stone.has_effects else ""
    way = sanitize_text(stone.way, _LONGEST_LINE)
    marker = (
        f"[tool: {sanitize_text(stone.tool, _LONGEST_NAME)} — output pruned; completed{outcome}, {stone.lines:,} lines;"
        f" shown in full earlier; intact; {effects}to see it: {way}; ref:{stone.reference}]"
    )
    return marker + render_words(stone.words)


def render_words(words: Sequence[str]) -> str:
    """Render identifiers of a content for the end of the line that describes it; they are folded."""
    return f" | {' '.join(sanitize_text(word, _LONGEST_LINE) for word in fold_words(words))}" if words else ""


def _render_access(way: str) -> str:
    message = f" To see it again: {sanitize_text(way, _LONGEST_LINE)}." if way else ""
    return f"The original is intact under its reference.{message}"
