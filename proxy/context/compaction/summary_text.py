"""The text of a summary: its header and footer, its sections and files, and the neutralization of foreign text."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from proxy.context.budget import Count
from proxy.context.compaction.spans import MessageRange
from proxy.context.conversation import ConversationIndex
from proxy.context.ledger import find_unusual
from proxy.context.message_features import is_opaque, list_identifiers
from proxy.context.references import CONTROL_CHARACTERS, sanitize_text
from proxy.model import Value
from proxy.model.epoch import SummaryLevel
from proxy.model.messages import LEDGER_HEAD

FENCE = "~~~"
"""The line before and after the output of a tool in a transcript."""
SUMMARY_HEAD = "Report by palimpsest on messages"
CLAIM_LABEL = "claimed in a tool's output or by the model, not by the user:"

_MARKER_LIKE = re.compile(
    r"\[(?=\s*+(?:/\s*+)?(?:FILE\b|tool\s*:|m\d{1,9}\s+(?:user|assistant|tool|system)\b|INST\b"
    rf"|{SUMMARY_HEAD}|{LEDGER_HEAD}|End of the (?:report|ledger)|shortened by palimpsest))",
    re.IGNORECASE,
)
_TAGGED = re.compile(
    r"<(?=\s*+(?:/\s*+)?(?:\||system\b|system-\w|user\b|assistant\b|human\b|tool_\w|function_|developer\b|s>))",
    re.IGNORECASE,
)
_SPEAKER = re.compile(
    r"(?im)^([\s>*#_\-]{0,12})(system|developer|assistant|user|human)([*_]{0,3})\s{0,3}:(?=\s|[*_]|$)"
)
_FENCE = re.compile(r"(?m)^[^\S\n]*~{3,}")
_REFERENCE = re.compile(r"\bref:([a-z0-9]{10,60})", re.IGNORECASE)
# A quotation may end within a reference, so that ids of any length are matched. The id is matched by a lookahead, so
# that its characters are searched, too: another reference may begin there.
_REFERENCE_LIKE = re.compile(r"\b(ref):(?=([a-z0-9]{1,60}))", re.IGNORECASE)


def neutralize(text: str, known: Collection[str] = ()) -> str:
    """Replace what looks like markers, roles or fences in a text; only references to `known` ids stay."""
    lines = "\n".join(CONTROL_CHARACTERS.sub(" ", line) for line in text.split("\n"))
    fit = _FENCE.sub("~ ~ ~", _SPEAKER.sub(r"\1\2\3 -", _TAGGED.sub("(", _MARKER_LIKE.sub("(", lines))))
    return _REFERENCE_LIKE.sub(lambda found: found[0] if found[2] in known else f"{found[1]} ", fit)


def find_references(text: str) -> tuple[str, ...]:
    """Return the ids of all references in a text, each once, in order."""
    return tuple(dict.fromkeys(found[1] for found in _REFERENCE.finditer(text)))


def cut_middle(text: str, most: int) -> str:
    """Cut a text to about `most` characters: its beginning and, half as long, its end."""
    if len(text) <= most:
        return text
    end = most // 3
    start = most - end
    return f"{text[:start]}\n[… {len(text) - most:,} characters left out …]\n{text[len(text) - end :]}"


def cut_to_tokens(text: str, room: float, count: Count) -> str:
    """Return the beginning of a text, in at most `room` tokens."""
    while text and count(text) > room:
        text = text[: min(len(text) - 1, int(len(text) * max(0.1, 0.95 * room / count(text))))]
    return text


GOAL = "Goal"
CONSTRAINTS = "Key instructions and constraints"
DISCOVERIES = "Discoveries"
COMPLETED = "Completed"
IN_PROGRESS = "In progress"
REMAINING = "Remaining"
FILES = "Relevant files"
OTHER = "Other context"

NAMES = (GOAL, CONSTRAINTS, DISCOVERIES, COMPLETED, IN_PROGRESS, REMAINING, FILES, OTHER)
SHORT_NAMES = {GOAL: "GOAL", CONSTRAINTS: "CONSTRAINTS", FILES: "FILES", REMAINING: "NEXT", OTHER: "CONTEXT"}
"""The headings of the five sections of level 2, in the order in which they are written."""

_SPELLINGS = {name.casefold(): name for name in NAMES} | {
    "goals": GOAL,
    "objective": GOAL,
    "key instructions & constraints": CONSTRAINTS,
    "key instructions": CONSTRAINTS,
    "instructions and constraints": CONSTRAINTS,
    "instructions": CONSTRAINTS,
    "constraints": CONSTRAINTS,
    "findings": DISCOVERIES,
    "done": COMPLETED,
    "in-progress": IN_PROGRESS,
    "current work": IN_PROGRESS,
    "next": REMAINING,
    "next steps": REMAINING,
    "pending": REMAINING,
    "todo": REMAINING,
    "files": FILES,
    "context": OTHER,
    "other": OTHER,
}
_LONGEST_HEADING = 60
_HEADING = re.compile(
    r"[ \t]{0,3}(?:#{1,6}[ \t]*)?(?:\d{1,2}[.)][ \t]*)?[*_]{0,3}"
    r"(?P<name>[A-Za-z][A-Za-z&-]*(?: [A-Za-z&-]+){0,4})[ \t]*[*_]{0,3}[ \t]*(?P<colon>:?)[*_]{0,3}[ \t]*"
)

Sections = Mapping[str, Sequence[str]]


def parse_sections(text: str) -> dict[str, list[str]]:
    """Return the non-empty lines of each section; sections of the same name are joined."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.split("\n"):
        name, rest = _parse_heading(line)
        if name:
            lines = found.setdefault(name, [])
        if kept := (rest if name else line).rstrip():
            lines.append(kept)
    return {name: found[name] for name in NAMES if found.get(name)}


def _parse_heading(line: str) -> tuple[str, str]:
    """Return the section that a line begins and the rest of that line; two empty texts for any other line."""
    heading = _HEADING.match(line[:_LONGEST_HEADING])
    name = _SPELLINGS.get(heading["name"].casefold(), "") if heading else ""
    if not heading or not name:
        return "", ""
    rest = line[heading.end() :].rstrip(" \t#*_")
    # Text behind a heading becomes an item of its own: alone on its line it could be parsed as another heading later.
    item = f"- {rest}" if rest and not rest.startswith("- ") else rest
    return (name, item) if heading["colon"] or not rest else ("", "")


FACTS = "Facts"
"""The heading of the lines behind a report that are not shown with it: facts for the memory of the session."""

_FACTS_HEADING = re.compile(
    r"[ \t]{0,3}#{0,6}[ \t]*(?:\d{1,2}[.)][ \t]*)?[*_]{0,3}Facts[*_]{0,3}:?[*_]{0,3}[ \t]*", re.IGNORECASE
)
_FACT_LINE = re.compile(
    r"[\s\-*+\u2022\d.)]{0,8}[\[(*]{1,3}\s*(?:preference|decision|constraint|fact)\b", re.IGNORECASE
)


def split_facts(text: str) -> tuple[str, tuple[str, ...]]:
    """Return a report without its facts, and their lines.

    They stand under a heading of their own, up to the next heading of a report. Without a line of a known kind under it
    it is a heading of the model's own: such lines stay.
    """
    report: list[str] = []
    facts: list[str] = []
    lines = text.split("\n")
    at = 0
    while at < len(lines):
        stop = at + 1
        if _FACTS_HEADING.fullmatch(lines[at][:_LONGEST_HEADING]):
            while stop < len(lines) and not _parse_heading(lines[stop])[0]:
                stop += 1
            if any(map(_FACT_LINE.match, lines[at + 1 : stop])):
                facts += [line.strip() for line in lines[at + 1 : stop] if line.strip()]
                at = stop
                continue
        report += lines[at:stop]
        at = stop
    return "\n".join(report), tuple(facts)


def render_sections(sections: Sections, level: SummaryLevel) -> str:
    """Render the sections in order under the headings of a level; on level 2, those without a heading go to others."""
    if level == 1:
        written = {name: (f"## {name}", sections.get(name, ())) for name in NAMES}
        return "\n".join("\n".join((head, *lines)) for head, lines in written.values() if lines)
    others = [line for name in (DISCOVERIES, COMPLETED) for line in sections.get(name, ())]
    pending = [*sections.get(IN_PROGRESS, ()), *sections.get(REMAINING, ())]
    fields = {**sections, REMAINING: pending, OTHER: [*others, *sections.get(OTHER, ())]}
    return "\n".join("\n".join((f"{short}:", *fields[name])) for name, short in SHORT_NAMES.items() if fields.get(name))


SUMMARY_END = "[End of the report]"
_FOOTER_LABEL = "Files and references:"
_LONGEST_MODEL, _LONGEST_DATE = 80, 40


class SummaryFrame(Value):
    """The id of a summary, the model that wrote it, empty for none, and the date in words."""

    id: str
    model: str
    date: str


def render_header(frame: SummaryFrame, span: MessageRange) -> str:
    """Render the first line of a summary: its span, its author and date, and the reference of its original."""
    date = sanitize_text(frame.date, _LONGEST_DATE)
    model = sanitize_text(frame.model, _LONGEST_MODEL).replace("]", ")")
    done = (
        f"written by {model} on {date} from what was said and done; what tools' outputs claimed is marked so"
        if frame.model
        else f"put together on {date} without a model"
    )
    return f"[{SUMMARY_HEAD} {span.start + 1} to {span.stop} of this session, {done}. Original: ref:{frame.id}]"


def render_footer(references: Iterable[str], paths: Iterable[str], room: int, count: Count, whole: str = "") -> str:
    """Render the line of references and paths, as many as fit into `room` tokens; empty where none fits.

    `whole` is the id of the reference whose original begins with all references: it is named where they do not all fit.
    """
    ids = [f"ref:{id}" for id in references]
    all_ids = " ".join((_FOOTER_LABEL, *ids))
    rest = f" and more, which ref:{whole} lists" if whole and count(all_ids) > room else ""
    foot = _FOOTER_LABEL
    for name in (*ids, *(() if rest else paths)):
        longer = f"{foot} {name}"
        if count(f"{longer}{rest}") > room:
            break
        foot = longer
    return "" if foot == _FOOTER_LABEL else f"{foot}{rest}"


def render_summary(head: str, body: str, foot: str) -> str:
    """Join the header, the sections and the footer of a summary, and its last line."""
    return "\n".join(part for part in (head, body, foot, SUMMARY_END) if part)


def strip_frame(text: str) -> str:
    """Return the sections of a summary, without its header, its footer and its last line."""
    body = text.removesuffix(SUMMARY_END).rstrip("\n")
    before, _, last = body.rpartition("\n")
    body = before if last.startswith(_FOOTER_LABEL) else body
    return body.partition("\n")[2] if body.startswith(f"[{SUMMARY_HEAD}") else body


_FILE = re.compile(
    r"(?![sy]/).*/.*"  # but not a command of sed
    r"|[\w.@#-]+\.(?:py|pyi|js|jsx|ts|tsx|mjs|go|rs|java|kt|c|h|cc|cpp|hpp|cs|rb|php|swift|scala|sh|sql|md|rst|txt|json"
    r"|ya?ml|toml|cfg|ini|xml|html|css|lock|csv|env|proto|tex|ipynb)"
)


_LONGEST_PATH = 200


class TouchedFile(Value):
    """The path of a file that calls name; `is_edited` for one that was changed, not only read."""

    path: str
    is_edited: bool

    @property
    def line(self) -> str:
        """Return the line of a summary that names it."""
        return f"- {sanitize_text(self.path, _LONGEST_PATH)} ({'edited' if self.is_edited else 'read'})"


def list_touched_files(index: ConversationIndex, span: MessageRange) -> tuple[TouchedFile, ...]:
    """Return the files that the calls of a span name, the most recent first. A refused call changes none."""
    edited: dict[str, bool] = {}
    refused = find_unusual(index).refused
    for place in range(span.stop - 1, span.start - 1, -1):
        found, calls = index.found[place], index.messages[place].message.calls
        for call, asked in reversed([*zip(calls, found.asked, strict=True)]):
            for path in list_identifiers(asked):
                if is_opaque(path) or not _FILE.fullmatch(path):
                    continue
                is_writing = found.writes and (path in found.written or not found.written)
                edited[path] = edited.get(path, False) or (is_writing and (place, call.id) not in refused)
    return tuple(TouchedFile(path, is_edited) for path, is_edited in edited.items())
