"""The sections of a report: their names, as a model may spell them, and as we do.

Rule: total and linear; what stands before the first known heading is no part of the report. A report of either level
has the same sections inside, so that reports of different levels can be condensed together.
"""

import re
from collections.abc import Mapping, Sequence

from proxy.model.summary import Level

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
"""The five fields of level 2, in the order in which they are written."""

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


def read_sections(text: str) -> dict[str, list[str]]:
    """The lines of each section, without empty ones; sections of one name are one."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.split("\n"):
        name, rest = _read_heading(line)
        if name:
            lines = found.setdefault(name, [])
        if kept := (rest if name else line).rstrip():
            lines.append(kept)
    return {name: found[name] for name in NAMES if found.get(name)}


def _read_heading(line: str) -> tuple[str, str]:
    """The section that a line begins, and what else it says; no name for any other line."""
    heading = _HEADING.match(line[:_LONGEST_HEADING])
    name = _SPELLINGS.get(heading["name"].casefold(), "") if heading else ""
    if not heading or not name:
        return "", ""
    rest = line[heading.end() :].rstrip(" \t#*_")
    # What stands behind a heading on its line becomes an item, or it could be another heading when it is read again.
    item = f"- {rest}" if rest and not rest.startswith("- ") else rest
    return (name, item) if heading["colon"] or not rest else ("", "")


def write_sections(sections: Sections, level: Level) -> str:
    """The sections in their order, under the headings of a level; those without a field on level 2 go to its last."""
    if level == 1:
        written = {name: (f"## {name}", sections.get(name, ())) for name in NAMES}
        return "\n".join("\n".join((head, *lines)) for head, lines in written.values() if lines)
    others = [line for name in (DISCOVERIES, COMPLETED) for line in sections.get(name, ())]
    pending = [*sections.get(IN_PROGRESS, ()), *sections.get(REMAINING, ())]
    fields = {**sections, REMAINING: pending, OTHER: [*others, *sections.get(OTHER, ())]}
    return "\n".join("\n".join((f"{short}:", *fields[name])) for name, short in SHORT_NAMES.items() if fields.get(name))
