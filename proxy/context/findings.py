"""What there is to know of one message, found once and kept: its words, what it asked, how it ended.

Rule: findings depend on the message alone, so that they can be kept for as long as anybody likes.
"""

import re
from collections.abc import Callable
from hashlib import sha256

import msgspec

from proxy.context.original import read_arguments, write_message
from proxy.context.words import list_words
from proxy.model.told import Told, ToolCall

_LONGEST_ASKED = 240
_LONGEST_OUTCOME = 100
_LOOKED_AT, _NEAR_END = 4000, 300
_SPARSE = 12

_IMPORT = re.compile(r"(?m)^[ \t]*(?:\d+[:\t ][ \t]*)?(?:from|import|#include|use|require|using)\b.{1,300}$")
_WRITES = re.compile(
    r"(?:>>?|\btee(?: -a)?|\bsed -i\b[^\n|;&]{0,400}[ \t]|\b(?:cp|mv|patch|touch|mkdir)\b[^\n|;&]{0,200}[ \t])[ \t]*"
    r"([\w./-]*[\w-]\.\w{1,8}|[\w.-]*/[\w./-]+)"
)
_WRITING_TOOL = re.compile(r"(?i)write|edit|create|replace|patch|insert|update|delete|book|cancel|send|modify|apply")
_CODE = re.compile(r"(?i)(?:return[ _-]?code|exit(?:ed)?(?: with)?(?:[ _-]?(?:code|status))?)\W{1,4}(-?\d{1,5})\b")
_BAD = ("error", "exception", "failed", "failure", "fatal", "panic", "denied", "not found", "no such")


class Findings(msgspec.Struct, frozen=True, gc=False):
    """`words` it says, those of them that it `imported`, those that its calls have `written`.

    `asked` is what each of its calls asks, in a line. `outcome` is how an output ended where that was not well, empty
    otherwise. `effects`: whether a call of its changes something. `lines` are those of its text, `characters` those of
    its original (`context/original`).
    """

    words: tuple[str, ...]
    imported: tuple[str, ...]
    written: tuple[str, ...]
    asked: tuple[str, ...]
    effects: bool
    outcome: str
    lines: int
    characters: int
    digest: bytes


Study = Callable[[Told], Findings]


def study(told: Told) -> Findings:
    """What there is to know of a message."""
    typed = ["\n".join(read_arguments(call.arguments)) for call in told.calls]
    imports = "\n".join(_IMPORT.findall(told.text)) if _is_output(told) else ""
    return msgspec.structs.replace(
        glance(told), words=list_words("\n".join((told.text, *typed))), imported=list_words(imports)
    )


def glance(told: Told) -> Findings:
    """The same without its words, which take most of the time."""
    typed = ["\n".join(read_arguments(call.arguments)) for call in told.calls]
    written = [word for text in typed for word in _find_written(text)]
    is_output = _is_output(told)
    return Findings(
        (),
        (),
        list_words("\n".join(written)),
        tuple(_tell_asked(call, text) for call, text in zip(told.calls, typed, strict=True)),
        bool(written) or any(_WRITING_TOOL.search(call.name) for call in told.calls),
        find_outcome(told.text) if is_output else "",
        told.text.count("\n") + bool(told.text),
        len(write_message(told)),
        sha256(told.text.encode("utf-8", "surrogatepass")).digest(),
    )


def _is_output(told: Told) -> bool:
    return bool(told.answers) or told.role == "tool"


def find_outcome(text: str) -> str:
    """How an output says that it ended, empty where it says nothing bad."""
    code = _CODE.search(text[:_NEAR_END]) or _CODE.search(text[-_NEAR_END:])
    if code and int(code[1]) == 0:
        return ""
    ends = text if len(text) <= 2 * _LOOKED_AT else f"{text[:_LOOKED_AT]}\n{text[-_LOOKED_AT:]}"
    errors = _find_bad(ends)
    if not code and len(errors) * _SPARSE <= ends.count("\n"):
        return ""
    said = errors[-1].strip()[:_LONGEST_OUTCOME] if errors else ""
    return " ".join(filter(None, (f"exit {code[1]}" if code else "", said)))


def _find_bad(text: str) -> list[str]:
    """Lines that speak of a failure."""
    whole = text.lower()
    said = [word for word in _BAD if word in whole]
    if not said:
        return []
    lines = zip(text.split("\n"), whole.split("\n"), strict=False)
    return [line for line, lower in lines if any(word in lower for word in said)]


def _find_written(text: str) -> list[str]:
    return _WRITES.findall(text)


def _tell_asked(call: ToolCall, text: str) -> str:
    """What a call asks: its values, without their names where one is all there is."""
    lines = text.split("\n", 1) if text.count(": ") and not call.arguments.startswith("[") else [text]
    only = re.match(r"\w{1,20}: ", lines[0]) if len(re.findall(r"(?m)^\w{1,20}: ", text)) == 1 else None
    said = text[only.end() :] if only else text
    return " ".join(said[:_LONGEST_ASKED].split())
