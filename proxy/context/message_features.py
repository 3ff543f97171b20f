"""Features of one message: identifiers, summaries of its calls, outcomes of its outputs.

They depend on the message alone, so that they can be cached for any length of time.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from hashlib import sha256

import msgspec

from proxy.context.references import list_argument_lines, render_message
from proxy.model.messages import Message, ToolCall

_SHORTEST, _LONGEST = 4, 120
_IDENTIFIERS_SEARCHED = 200_000

_WORD = re.compile(r"[A-Za-z0-9_#@][A-Za-z0-9_./@#-]{2,}")
_CASES = re.compile(r"[a-z][A-Z]")
_HEXES = re.compile(r"(?=[0-9a-f-]*\d)[0-9a-f]{7,}[0-9a-f-]*")
_STAMP = re.compile(r"[0-9TZ:./_-]+")


def list_identifiers(text: str) -> tuple[str, ...]:
    """Return the identifiers of a text, each once, in the order of their first occurrences.

    Of a long text only the first and the last `_IDENTIFIERS_SEARCHED` characters are searched.
    """
    part = (
        text
        if len(text) <= 2 * _IDENTIFIERS_SEARCHED
        else f"{text[:_IDENTIFIERS_SEARCHED]}\n{text[-_IDENTIFIERS_SEARCHED:]}"
    )
    named = dict.fromkeys(map(parse_identifier, dict.fromkeys(_WORD.findall(part))))
    named.pop("", None)
    return tuple(named)


@lru_cache(maxsize=65_536)
def parse_identifier(found: str) -> str:
    """Return the identifier in a match; empty where there is none: plain language, a word that is too short or long."""
    word = found.strip("./-@")
    if not _SHORTEST <= len(word) <= _LONGEST:
        return ""
    return word if _is_identifier(word) else ""


def _is_identifier(word: str) -> bool:
    if word.isdigit() or any(sign in word for sign in "_/#@"):
        return True
    has_letters = any(map(str.isalpha, word))
    has_digits = any(map(str.isdigit, word))
    return has_letters and (has_digits or "." in word or _CASES.search(word) is not None)


def is_opaque(word: str) -> bool:
    """Return whether a word means nothing by itself: a hash, a time, a number."""
    return _HEXES.fullmatch(word) is not None or _STAMP.fullmatch(word) is not None


def is_name(word: str) -> bool:
    """Return whether a word is a name: a path, a dotted name or one in snake case."""
    return ("/" in word or "." in word or "_" in word) and not is_opaque(word)


def find_namespace(word: str) -> str:
    """Return the directory of a path or the first part of a dotted name, with its dot; empty for other words."""
    if "/" in word:
        return word.rpartition("/")[0]
    first, dot, _ = word.partition(".")
    return first + dot if dot else ""


_LITERALS_SEARCHED = 64_000
_LONGEST_ERROR = 200
MOST = {"errors": 4, "paths": 8, "names": 12, "numbers": 8}

_ERROR = re.compile(r"(?i)\b(?:error|exception|traceback|failed|failure|fatal|panic|denied|not found|no such)\b|Error:")
_PATH = re.compile(r"(?<![\w./~@:-])(?:[\w.~@-]{0,64}/){1,16}[\w.@-]{1,80}(?::\d{1,7})?")
_NAME = re.compile(r"(?<![\w./-])[A-Za-z_][\w.]{3,60}(?![\w/-])")
_COMPOUND = re.compile(r"[A-Za-z0-9][_.][A-Za-z0-9]|[a-z0-9][A-Z]")
_NUMBER = re.compile(r"(?<![\w.])\d{3,20}(?:\.\d{1,12})?(?![\w.])|(?<![\w.])\d{1,20}\.\d{1,12}(?![\w.])")


def choose_literals(text: str) -> dict[str, tuple[str, ...]]:
    """Return the literals of a text by kind, the most frequent first (errors in order); empty kinds are absent."""
    part = text if len(text) <= 2 * _LITERALS_SEARCHED else f"{text[:_LITERALS_SEARCHED]}\n{text[-_LITERALS_SEARCHED:]}"
    paths = _choose_most_frequent(_strip(_PATH.findall(part)), MOST["paths"])
    found = {
        "errors": _find_errors(part),
        "paths": paths,
        "names": _choose_most_frequent(filter(_COMPOUND.search, _strip(_NAME.findall(part))), MOST["names"]),
        "numbers": _choose_most_frequent(_NUMBER.findall(part), MOST["numbers"]),
    }
    return {kind: words for kind, words in found.items() if words}


def _strip(words: Iterable[str]) -> Iterator[str]:
    return (stripped for word in words if (stripped := word.rstrip(".")))


def _choose_most_frequent(words: Iterable[str], most: int) -> tuple[str, ...]:
    """Return the most frequent words; of equally frequent ones the earlier."""
    return tuple(word for word, _ in Counter(words).most_common(most))


def _find_errors(text: str) -> tuple[str, ...]:
    """Return the first lines that report an error, and the last one, which often states the cause."""
    lines = [line.strip()[:_LONGEST_ERROR] for line in text.splitlines() if _ERROR.search(line[:2000])]
    unlike = list(dict.fromkeys(lines))
    return tuple(unlike if len(unlike) <= MOST["errors"] else [*unlike[: MOST["errors"] - 1], unlike[-1]])


_LONGEST_ASKED = 240
_LONGEST_OUTCOME = 100
_OUTCOME_SEARCHED, _NEAR_END = 4000, 300
_LINES_PER_FAILURE = 12

_IMPORT = re.compile(r"(?m)^[ \t]*(?:\d+[:\t ][ \t]*)?(?:from|import|#include|use|require|using)\b.{1,300}$")
_WRITES = re.compile(
    r"(?:>>?|\btee(?: -a)?|\bsed -i\b[^\n|;&]{0,400}[ \t]|\b(?:cp|mv|patch|touch|mkdir)\b[^\n|;&]{0,200}[ \t])[ \t]*"
    r"([\w./-]*[\w-]\.\w{1,8}|[\w.-]*/[\w./-]+)"
)
_WRITING_TOOL = re.compile(r"(?i)write|edit|create|replace|patch|insert|update|delete|book|cancel|send|modify|apply")
_EXIT_CODE = re.compile(r"(?i)(?:return[ _-]?code|exit(?:ed)?(?: with)?(?:[ _-]?(?:code|status))?)\W{1,4}(-?\d{1,5})\b")
_FAILURES = ("error", "exception", "failed", "failure", "fatal", "panic", "denied", "not found", "no such")


class MessageFeatures(msgspec.Struct, frozen=True, gc=False):
    """The features of a message: its identifiers `words`, those it `imported`, those its calls have `written`.

    `asked` is a summary of each of its calls, one line each. `outcome` states how an output failed; it is empty where
    it did not. `effects`: whether one of its calls changes something. `lines` counts the lines of its text,
    `characters` those of its original (`context/references`). `digest` is the SHA-256 of its text.
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


FeatureExtractor = Callable[[Message], MessageFeatures]


def extract_features(message: Message) -> MessageFeatures:
    """Return the features of a message."""
    typed = ["\n".join(list_argument_lines(call.arguments)) for call in message.calls]
    imports = "\n".join(_IMPORT.findall(message.text)) if _is_output(message) else ""
    return msgspec.structs.replace(
        extract_features_without_identifiers(message),
        words=list_identifiers("\n".join((message.text, *typed))),
        imported=list_identifiers(imports),
    )


def extract_features_without_identifiers(message: Message) -> MessageFeatures:
    """Return the features of a message but for `words` and `imported`, which take most of the time."""
    typed = ["\n".join(list_argument_lines(call.arguments)) for call in message.calls]
    written = [word for text in typed for word in _list_written_files(text)]
    is_output = _is_output(message)
    return MessageFeatures(
        (),
        (),
        list_identifiers("\n".join(written)),
        tuple(_summarize_call(call, text) for call, text in zip(message.calls, typed, strict=True)),
        bool(written) or any(_WRITING_TOOL.search(call.name) for call in message.calls),
        find_outcome(message.text) if is_output else "",
        message.text.count("\n") + bool(message.text),
        len(render_message(message)),
        sha256(message.text.encode("utf-8", "surrogatepass")).digest(),
    )


def _is_output(message: Message) -> bool:
    return bool(message.results) or message.role == "tool"


def find_outcome(text: str) -> str:
    """Return the exit code and the last error of an output; empty where it reports no failure."""
    code = _EXIT_CODE.search(text[:_NEAR_END]) or _EXIT_CODE.search(text[-_NEAR_END:])
    if code and int(code[1]) == 0:
        return ""
    ends = text if len(text) <= 2 * _OUTCOME_SEARCHED else f"{text[:_OUTCOME_SEARCHED]}\n{text[-_OUTCOME_SEARCHED:]}"
    errors = _list_failure_lines(ends)
    if not code and len(errors) * _LINES_PER_FAILURE <= ends.count("\n"):
        return ""
    said = errors[-1].strip()[:_LONGEST_OUTCOME] if errors else ""
    return " ".join(filter(None, (f"exit {code[1]}" if code else "", said)))


def _list_failure_lines(text: str) -> list[str]:
    """Return the lines that report a failure."""
    whole = text.lower()
    said = [word for word in _FAILURES if word in whole]
    if not said:
        return []
    lines = zip(text.split("\n"), whole.split("\n"), strict=False)
    return [line for line, lower in lines if any(word in lower for word in said)]


def _list_written_files(text: str) -> list[str]:
    return _WRITES.findall(text)


def _summarize_call(call: ToolCall, text: str) -> str:
    """Return a summary of a call in one line: its arguments, without the name where there is only one."""
    lines = text.split("\n", 1) if text.count(": ") and not call.arguments.startswith("[") else [text]
    only = re.match(r"\w{1,20}: ", lines[0]) if len(re.findall(r"(?m)^\w{1,20}: ", text)) == 1 else None
    said = text[only.end() :] if only else text
    return " ".join(said[:_LONGEST_ASKED].split())
