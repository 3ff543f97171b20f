"""The features of a message that plans are built from. They depend on it alone, so that they can be cached."""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from hashlib import sha256
from itertools import pairwise

from msgspec.structs import replace

from proxy.context.read_only import list_listed_commands, only_reads, read_arguments
from proxy.context.references import list_argument_lines, render_message
from proxy.model import Value
from proxy.model.messages import Message, ToolCall

_SHORTEST, _LONGEST = 4, 120
_IDENTIFIERS_SEARCHED = 200_000

# Scripts that put no spaces between words: Thai, Lao, Myanmar, Khmer, Kana, Han. What of a line is a word is not known.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_ASCII_WORD = re.compile(r"[A-Za-z0-9_#@][A-Za-z0-9_./@#-]{2,}")  # a third of the time
_WORD = re.compile(rf"(?:[^\W{_UNSPACED}]|[#@])(?:[^\W{_UNSPACED}]|[./@#-]){{2,}}")
_UNSPACED_LETTER = re.compile(f"[{_UNSPACED}]")
# A file name in such a script ends with its extension; what precedes it without a space belongs to it or not.
_UNSPACED_FILE = re.compile(
    r"(?<![\w./-])[\w/-]{1,60}(?:\.[\w/-]{1,60}){0,3}\.[A-Za-z][A-Za-z0-9]{0,7}(?![A-Za-z0-9_])"
)
_HEXES = re.compile(r"(?=[0-9a-f-]*\d)[0-9a-f]{7}[0-9a-f-]*")
_STAMP = re.compile(r"[0-9TZ:./_-]+")


def list_identifiers(text: str) -> tuple[str, ...]:
    """Return the identifiers of a text, each once, in the order of their first occurrences.

    File names in scripts without spaces come first. Of a long text only the first and the last `_IDENTIFIERS_SEARCHED`
    characters are searched.
    """
    searched = _keep_ends(text, _IDENTIFIERS_SEARCHED)
    if searched.isascii():
        found = dict.fromkeys(_ASCII_WORD.findall(searched))
    else:
        files = [file for file in _UNSPACED_FILE.findall(searched) if _UNSPACED_LETTER.search(file)]
        rest = _UNSPACED_FILE.sub(lambda file: " " if _UNSPACED_LETTER.search(file[0]) else file[0], searched)
        found = dict.fromkeys((*files, *_WORD.findall(rest)))
    named = dict.fromkeys(map(parse_identifier, found))
    named.pop("", None)
    return tuple(named)


def _keep_ends(text: str, most: int) -> str:
    """Return a text or, of a long one, the first and the last `most` characters, with a line break between them."""
    return text if len(text) <= 2 * most else f"{text[:most]}\n{text[-most:]}"


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
    return has_letters and (has_digits or "." in word or _has_inner_capital(word))


def _has_inner_capital(word: str) -> bool:
    return any(one.islower() and two.isupper() for one, two in pairwise(word))


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


_LONGEST_ASKED = 240
_LONGEST_OUTCOME = 100
_LONGEST_LINE_OUTSIDE = 200
_OUTCOME_SEARCHED, _NEAR_END = 4000, 300
_SUMMARY_LINES, _LAST_LINES = 6, 3

# How readers of files number lines: `cat -n` and `nl`, `grep -n`, Claude Code (an arrow), opencode (a bar).
LINE_NUMBER = r"\d{1,7}[:\-\t |\u2192]"
_WRITES = re.compile(
    r"(?:(?:>>?|\btee(?: -a)?)[ \t]*+"
    r"|\bsed -i\b(?:[^\n|;&]{400}[ \t]++|[^\n|;&]{0,400}[ \t](?![ \t]))"
    r"|\b(?:cp|mv|patch|touch|mkdir)\b(?:[^\n|;&]{200}[ \t]++|[^\n|;&]{0,200}[ \t](?![ \t])))"
    r"([\w./-]*[\w-]\.\w{1,8}|[\w.-]*/[\w./-]+)"
)
# Commands of shells that change something, at the beginning of a command.
_CHANGING_COMMAND = re.compile(
    r"(?m)(?:^(?:\w{1,20}: )?|[;&|(]\s*)(?:sudo\s+)?(?:sed\s+-\w*i"
    r"|(?:rm|rmdir|mv|cp|mkdir|touch|tee|patch|ln|chmod|chown|kill|pkill)\s"
    r"|git\s+(?:add|am|apply|checkout|cherry-pick|clean|commit|merge|mv|pull|push|rebase|reset|restore|revert|rm|stash"
    r"|switch|tag)\b"
    r"|(?:pip3?|npm|pnpm|yarn|uv|poetry|cargo|go|gem|conda|brew|apt|apt-get|dnf)\s+(?:-\S+\s+){0,4}"
    r"(?:add|get|i|install|publish|remove|sync|uninstall|update|upgrade)\b)"
)
_WRITING_TOOL = re.compile(r"(?i)write|edit|create|replace|patch|insert|update|delete|book|cancel|send|modify|apply")
_EXIT_CODE = re.compile(r"(?i)(?:return[ _-]?code|exit(?:ed)?(?: with)?(?:[ _-]?(?:code|status))?)\W{1,4}(-?\d{1,5})\b")
_ANSI_STYLE = re.compile(r"\x1b\[[\d;]*m")
_TAG_LINE = re.compile(r"</?\w{1,40}>")
# pytest; unittest; jest and vitest; cargo; mocha; go.
_FAILED_TESTS = re.compile(
    r"^(?:=+ |Tests:?\s+|test result: )?(?P<count>(?:\d+ \w+, ){0,9}\d+ (?:failed|errors?|failing)\b.{0,80}?"
    r"|FAILED \((?:failures|errors)=.{1,80}|FAILED\. .{1,80}|(?:--- )?FAIL[:\t ].{1,80})"
    r"(?: in [\d.]+ ?m?s.{0,40})?[= ]*$"
)
_TRACEBACK = "Traceback (most recent call last):"
_RAISED = re.compile(r"(?m)^[A-Za-z_][\w.]{0,200}(?::.{0,300})?$")
_STATUS_LINE = re.compile(r"\s*HTTP/[\d.]{1,4} ([45]\d\d.{0,60})")
_ERROR_OBJECT = re.compile(
    r'"(?:error|errors|exception)"\s*:\s*(?!null|false|\{\s*\}|\[\s*\]|""|0)\S.{0,200}'
    r'|"(?:is_?error)"\s*:\s*true|"(?:success|ok)"\s*:\s*false|"status(?:_?code)?"\s*:\s*[45]\d\d\b',
    re.IGNORECASE,
)
_ERROR_LABEL = re.compile(
    r"(?i)(?:\w+ )?(?:error|fatal|failure|failed|exception)\s*+(?:(?:\[\w{1,40}\]|\(\w{1,40}\))\s*+)?:"
)
# How a harness says that it did not carry out a call, and how a tool says that it did nothing.
_REFUSED = re.compile(
    r"(?i)<tool_use_error>|InputValidationError"
    r"|\b(?:exactly|only) (?:one|1|a single) (?:action|command|tool|function|call|code block)\b"
    r"|\b(?:was|were|is|are|has|have|did|could|will) ?(?:not|n['\u2019]t) (?:be(?:en)? )?"
    r"(?:executed?|carried out|approved?|authori[sz]ed|granted)\b"
    r"|\b(?:rejected|denied|declined|refused|blocked) by (?:the |a |your )?(?:user|hook|policy|sandbox|rule)"
    r"|\buser (?:has )?(?:rejected|denied|declined|refused|(?:does|did)(?: not|n['\u2019]t) (?:want|allow))\b"
    r"|\b(?:tool|function|action|permission) (?:use|call|to use [\w.-]{1,60}|for [\w.-]{1,60})\b.{0,120}"
    r"\b(?:rejected|denied|declined|refused|blocked|disallowed|interrupted)\b"
    r"|\b(?:requires?|needs?|awaiting|without) (?:\w{1,20} ){0,2}(?:approval|permission|confirmation)\b"
)
_NOTHING_DONE = re.compile(
    r"(?i)\b\d{1,4} validation errors?\b"
    r"|\b(?:was|were|is|are|has|have|did|does|could|will|can) ?(?:not|n['\u2019]t|never) (?:be(?:en)? )?"
    r"(?:run|appl(?:y|ied)|performed?|made|changed?|modified|saved?|read yet|allowed|permitted|supported|parsed?)\b"
    r"|\bno (?:\w{1,20} )?(?:replacements?|changes?|edits?|modifications?|updates?) (?:was|were|has been|have been)\b"
    r"|\b(?:string|text|snippet|block|lines?|old_str\w{0,4})\b.{0,60}"
    r"\b(?:not found|not unique|did not (?:match|appear))\b"
    r"|\b(?:matches|occurrences) of\b.{0,60}\b(?:string|text|snippet|old_str)"
    r"|\b(?:tool|function|action)\b.{0,60}\b(?:not found|does(?: not|n['\u2019]t) exist)\b"
    r"|\b(?:unknown|invalid|unrecognized|unsupported|malformed|no such) (?:tool|function|action|parameter|argument)s?\b"
    r"|\bmissing (?:required )?(?:parameter|argument|field)s?\b"
)
_NOT_DONE_SEARCHED = 240
# Tools whose calls are programs.
_PROGRAM_TOOL = re.compile(r"(?i)bash|shell|exec|terminal|cmd|command|python|pwsh|(?<![a-z])(?:run|script|cell|repl\b)")
_ERROR_LAST = re.compile(
    r"^(?:make(?:\[\d+\])?: \*\*\* |npm ERR! |E: |fatal: |error(?:\[\w{1,20}\])?: |Error: )"
    r"|: (?:command not found|No such file or directory|Permission denied|not found)$"
)


class MessageFeatures(Value):
    """The features of a message."""

    words: tuple[str, ...]  # its identifiers
    written: tuple[str, ...]  # identifiers of files that its calls write
    said: str  # what the assistant said to the user, without code and markup, in one line
    asked: tuple[str, ...]  # a summary of each of its calls, one line each
    effects: tuple[bool, ...]  # whether each of its calls may have changed something: is not known to only read
    writes: bool  # whether one of its calls is known to change files, or something else, by its name or command
    outcome: str  # how an output failed, empty if it did not
    lines: int  # of its text, without the tags and exit code that a harness puts around an output
    characters: int  # of its original (`context/references`)
    digest: bytes  # SHA-256 of its text


FeatureExtractor = Callable[[Message], MessageFeatures]


def extract_features(message: Message) -> MessageFeatures:
    """Return the features of a message."""
    typed = ["\n".join(list_argument_lines(call.arguments)) for call in message.calls]
    return replace(
        extract_features_without_identifiers(message),
        words=list_identifiers("\n".join((message.text, *typed))),
    )


def extract_features_without_identifiers(message: Message) -> MessageFeatures:
    """Return the features of a message without `words`, which take most of the time."""
    typed = ["\n".join(list_argument_lines(call.arguments)) for call in message.calls]
    written = [word for text in typed for word in _WRITES.findall(text)]
    is_output = _is_output(message)
    return MessageFeatures(
        (),
        list_identifiers("\n".join(written)),
        summarize_saying(message.text if message.said is None else message.said) if message.role == "assistant" else "",
        tuple(_summarize_call(call, text) for call, text in zip(message.calls, typed, strict=True)),
        tuple([not only_reads(call) for call in message.calls]),
        bool(written)
        or any(_WRITING_TOOL.search(call.name) for call in message.calls)
        or any(map(_CHANGING_COMMAND.search, typed)),
        find_outcome(message.text) if is_output else "",
        count_lines(message.text) if is_output else message.text.count("\n") + bool(message.text),
        len(render_message(message)),
        sha256(message.text.encode("utf-8", "surrogatepass")).digest(),
    )


# A line that is around an output, not of it: a tag, or an exit code in one.
_WRAPPER_LINE = re.compile(r"</?[A-Za-z][\w-]{0,40}>|<([A-Za-z][\w-]{0,40})>\s*+-?\d{0,6}+\s*+</\1>")


def is_wrapper_line(line: str) -> bool:
    """Return whether a line, without the spaces around it, is put around an output by a harness."""
    return _WRAPPER_LINE.fullmatch(line) is not None


def find_content(text: str) -> tuple[int, int]:
    """Return start and end of what of an output is not wrapper lines or empty lines before or behind it."""
    start, stop = 0, len(text)
    while start < stop:
        end = text.find("\n", start, stop)
        end = stop if end < 0 else end
        if not _is_outside(text, start, end):
            break
        start = min(end + 1, stop)
    while start < stop:
        begin = text.rfind("\n", start, stop) + 1 or start
        if not _is_outside(text, begin, stop):
            break
        stop = max(begin - 1, start)
    return start, stop


def _is_outside(text: str, start: int, stop: int) -> bool:
    line = text[start:stop].strip() if stop - start <= _LONGEST_LINE_OUTSIDE else "a line of content"
    return not line or is_wrapper_line(line)


def count_lines(text: str) -> int:
    """Return the number of lines of an output, without its wrapper."""
    start, stop = find_content(text)
    return text.count("\n", start, stop) + (start < stop)


_FENCE = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
_TAG = re.compile(r"</?[A-Za-z][^<>\n]{0,80}>")
_LABEL = re.compile(r"\A\W*[A-Za-z]{2,12}:\s")
_LONGEST_SAID, _SAID_SEARCHED = 600, 2000


def summarize_saying(text: str) -> str:
    """Return the beginning of what an assistant said in one line, without code blocks, tags and a leading label."""
    said = _TAG.sub(" ", _FENCE.sub(" ", text[:_SAID_SEARCHED]))
    return " ".join(_LABEL.sub("", said, count=1)[: 2 * _LONGEST_SAID].split())[:_LONGEST_SAID] if said.strip() else ""


def _is_output(message: Message) -> bool:
    return bool(message.results) or message.role == "tool"


def find_outcome(text: str) -> str:
    """Return how an output says that its call failed; empty where it does not say so.

    Exit codes, counts of failing tests, uncaught exceptions, error objects, and messages that are the whole output or
    its end say so. A line of a file or a listing that mentions an error does not.
    """
    code = _EXIT_CODE.search(text[:_NEAR_END]) or _EXIT_CODE.search(text[-_NEAR_END:])
    if code and int(code[1]) == 0:
        return ""
    ends = _ANSI_STYLE.sub("", _keep_ends(text, _OUTCOME_SEARCHED))
    lines = [line for line in map(str.strip, ends.split("\n")) if line and not _TAG_LINE.fullmatch(line)]
    said = _find_failed_tests(lines) or _find_exception(ends) or _find_error_object(ends) or _find_error_message(lines)
    return " ".join(filter(None, (f"exit {code[1]}" if code else "", said[:_LONGEST_OUTCOME])))


def is_not_done(tool: str, output: str) -> bool:
    """Return whether an output says that its call, of a tool with this name, was not carried out.

    An exit code says that it was. What a program says of an error does not say that it did nothing before.
    """
    if _EXIT_CODE.search(output[:_NEAR_END]) or _EXIT_CODE.search(output[-_NEAR_END:]):
        return False
    start, stop = find_content(output)
    head = output[start : min(stop, start + _NOT_DONE_SEARCHED)]
    if _REFUSED.search(head) is not None:
        return True
    is_error = _ERROR_LABEL.match(head) or _NOTHING_DONE.search(head) or _find_error_object(head)
    return bool(is_error) and _PROGRAM_TOOL.search(tool) is None


def _find_failed_tests(lines: Sequence[str]) -> str:
    """Return what a test runner says at the end of its output, if it counts failures."""
    found = (_FAILED_TESTS.search(line) for line in reversed(lines[-_SUMMARY_LINES:]))
    return next((match["count"].strip(" =") for match in found if match), "")


def _find_exception(text: str) -> str:
    """Return the exception after the last traceback, if hardly anything follows it: the program has ended by it."""
    _, mark, traceback = text.rpartition(_TRACEBACK)
    raised = _RAISED.finditer(traceback) if mark else ()
    return next((each[0] for each in raised if traceback.count("\n", each.end()) <= _SUMMARY_LINES), "")


def _find_error_object(text: str) -> str:
    """Return the error that a JSON object, or the status line of an HTTP response, consists of."""
    if (status := _STATUS_LINE.match(text)) is not None:
        return status[1].strip()
    found = _ERROR_OBJECT.search(text[:_NEAR_END]) if text.lstrip().startswith("{") else None
    return " ".join(found[0].split()) if found is not None else ""


def _find_error_message(lines: Sequence[str]) -> str:
    """Return the message that an output begins or ends with, with its second line where the first has but a label."""
    if not lines:
        return ""
    if _ERROR_LABEL.match(lines[0]) is not None:
        return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    return next((line for line in lines[: -_LAST_LINES - 1 : -1] if _ERROR_LAST.search(line) is not None), "")


_STATES = ("status", "state", "done", "completed", "is_done", "checked")
_CLOSED = frozenset(
    {"completed", "complete", "done", "finished", "closed", "cancelled", "canceled", "skipped", "deleted"}
)
_ITEM_IDS = ("taskId", "task_id", "todo_id", "item_id", "id")
_CREATED = re.compile(r"(?i)(?:task|todo|item) #?([\w.-]{1,40}) (?:was )?(?:created|added)\b")
_ITEM_TEXTS = ("content", "step", "title", "task", "text", "description", "subject", "name", "todo", "item")
_CHECK_ITEM = re.compile(r"\s*+(?:[-*+]\s*+|\d{1,3}[.)]\s*+)?\[(?P<mark>[ xX~/-])\]\s*+(?P<text>\S.*)")
_CHECKED_SHARE = 0.8


def list_open_items(call: ToolCall) -> list[str] | None:
    """Return the open items of the list of what is to do that a call states; None if it states no such list.

    A list is one of objects with a text and a state, or lines with check boxes, whatever its tool is called.
    """
    given = read_arguments(call.arguments)
    for value in given.values():
        listed = _decode_list(value) if isinstance(value, str) else value
        items = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
        states = [next((each[name] for name in _STATES if name in each), None) for each in items]
        texts = [next((text for name in _ITEM_TEXTS if isinstance(text := each.get(name), str)), "") for each in items]
        if items and None not in states and all(texts):
            return [text for text, state in zip(texts, states, strict=True) if not _is_closed(state)]
        lines = [line for line in value.split("\n") if line.strip()] if isinstance(value, str) else []
        boxes = [found for line in lines if (found := _CHECK_ITEM.fullmatch(line))]
        if len(boxes) > 1 and len(boxes) >= _CHECKED_SHARE * len(lines):
            return [found["text"] for found in boxes if found["mark"] not in "xX"]
    return None


def find_created_item(output: str) -> str:
    """Return the id of the item that a call has added to the list of what is to do, by its output; empty if none."""
    found = _CREATED.match(output)
    return found[1] if found is not None else ""


def find_closed_item(call: ToolCall) -> str:
    """Return the id of the item of the list of what is to do that a call closes; empty if it closes none."""
    given = read_arguments(call.arguments)
    if not any(_is_closed(given[name]) for name in _STATES if name in given):
        return ""
    return next((str(given[name]) for name in _ITEM_IDS if isinstance(given.get(name), str | int)), "")


def _is_closed(state: object) -> bool:
    return state is True or str(state).lower() in _CLOSED


def _decode_list(text: str) -> object:
    """Return a list that is spelt as JSON within arguments; anything else as it is."""
    return read_arguments(f'{{"list":{text}}}').get("list") if text.lstrip()[:1] == "[" else text


def _summarize_call(call: ToolCall, text: str) -> str:
    """Return a summary of a call in one line: its command, or its arguments, without the name of the only one."""
    if commands := list_listed_commands(call):
        return " ".join("; ".join(commands)[:_LONGEST_ASKED].split())
    lines = text.split("\n", 1) if text.count(": ") and not call.arguments.startswith("[") else [text]
    only = re.match(r"\w{1,20}: ", lines[0]) if len(re.findall(r"(?m)^\w{1,20}: ", text)) == 1 else None
    said = text[only.end() :] if only else text
    return " ".join(said[:_LONGEST_ASKED].split())
