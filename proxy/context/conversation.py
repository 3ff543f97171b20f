"""The index of a conversation that plans are built from: the features of its messages, its steps, and what must stay.

Features depend on one message alone, so that they can be cached without limit.
"""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from itertools import pairwise

import msgspec

from proxy.context.budget import Budget
from proxy.context.references import list_argument_lines, render_message
from proxy.context.verbatim import (
    RECENT_TURNS,
    Group,
    find_client_messages,
    find_newest_user,
    find_unanswered,
    find_verbatim,
    split_groups,
)
from proxy.model.epoch import ContextPlan
from proxy.model.messages import Message, MessageStructure, ToolCall

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
_HEXES = re.compile(r"(?=[0-9a-f-]*\d)[0-9a-f]{7,}[0-9a-f-]*")
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
    part = _keep_ends(text, _LITERALS_SEARCHED)
    found = {
        "errors": _find_errors(part),
        "paths": _choose_most_frequent(_strip(_PATH.findall(part)), MOST["paths"]),
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
_SUMMARY_LINES, _LAST_LINES = 6, 3

_IMPORT = re.compile(r"(?m)^[ \t]*(?:\d+[:\t ][ \t]*)?(?:from|import|#include|use|require|using)\b.{1,300}$")
_WRITES = re.compile(
    r"(?:>>?|\btee(?: -a)?|\bsed -i\b[^\n|;&]{0,400}[ \t]|\b(?:cp|mv|patch|touch|mkdir)\b[^\n|;&]{0,200}[ \t])[ \t]*"
    r"([\w./-]*[\w-]\.\w{1,8}|[\w.-]*/[\w./-]+)"
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
_ERROR_LABEL = re.compile(r"(?i)(?:\w+ )?(?:error|fatal|failure|failed|exception)\s*(?:\[\w{1,40}\]|\(\w{1,40}\))?\s*:")
_ERROR_LAST = re.compile(
    r"^(?:make(?:\[\d+\])?: \*\*\* |npm ERR! |E: |fatal: |error(?:\[\w{1,20}\])?: |Error: )"
    r"|: (?:command not found|No such file or directory|Permission denied|not found)$"
)


class MessageFeatures(msgspec.Struct, frozen=True, gc=False):
    """The features of a message."""

    words: tuple[str, ...]  # its identifiers
    imported: tuple[str, ...]  # identifiers in import lines of an output
    written: tuple[str, ...]  # identifiers of files that its calls write
    asked: tuple[str, ...]  # a summary of each of its calls, one line each
    effects: bool  # whether one of its calls changes something
    outcome: str  # how an output failed, empty if it did not
    lines: int  # of its text
    characters: int  # of its original (`context/references`)
    digest: bytes  # SHA-256 of its text


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
    """Return the features of a message without `words` and `imported`, which take most of the time."""
    typed = ["\n".join(list_argument_lines(call.arguments)) for call in message.calls]
    written = [word for text in typed for word in _WRITES.findall(text)]
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


def _summarize_call(call: ToolCall, text: str) -> str:
    """Return a summary of a call in one line: its arguments, without the name where there is only one."""
    lines = text.split("\n", 1) if text.count(": ") and not call.arguments.startswith("[") else [text]
    only = re.match(r"\w{1,20}: ", lines[0]) if len(re.findall(r"(?m)^\w{1,20}: ", text)) == 1 else None
    said = text[only.end() :] if only else text
    return " ".join(said[:_LONGEST_ASKED].split())


@dataclass(frozen=True, slots=True)
class BuilderPolicy:
    """The settings that decide which messages stay, and which are replaced by an outline.

    The `protect_turns` newest user turns stay verbatim. If `is_pruning`, superseded outputs are replaced by a marker:
    those that were requested again or repeated, and errors that were corrected. Exceptions are the newest
    `protect_tokens` of outputs and the outputs of `protected_tools`. At least `minimum_tokens` must be saved. Both
    numbers scale down with a small budget. Outputs above `inline_tokens` are sent whole once, then as a file block,
    with their structure if `has_outlines`.
    """

    protect_turns: int = RECENT_TURNS
    is_pruning: bool = True
    protect_tokens: int = 40_000
    minimum_tokens: int = 20_000
    protected_tools: tuple[str, ...] = ("skill",)
    inline_tokens: int = 10_000
    has_outlines: bool = True


class CountedMessage(msgspec.Struct, frozen=True, gc=False):
    """A message with its structure and its tokens."""

    message: Message
    structure: MessageStructure
    tokens: int


class LiveSummary(msgspec.Struct, frozen=True, gc=False):
    """A summary that applies to this conversation, of its messages from `start` up to `stop`. `tokens` are its own."""

    id: str
    text: str
    start: int
    stop: int
    tokens: int


class PlanRequest(msgspec.Struct, frozen=True, gc=False):
    """A request for a plan: the whole conversation as the client has it, without its preamble, and the budget.

    `name(start, stop, offset)` returns the id of a reference to the messages from `start` up to `stop`, from the
    character `offset` of their text on. Equal arguments have equal ids. `goal`, if set, is the budget by which the size
    of ledgers and the number of old steps that stay are measured; all else is measured by `budget`.
    """

    messages: Sequence[CountedMessage]
    head: int  # tokens of the preamble (system messages, tools)
    budget: Budget
    name: Callable[[int, int, int], str]
    pinned: frozenset[int] = frozenset()  # places of messages that must stay
    frozen: ContextPlan | None = None  # the plan of the active epoch
    reports: Sequence[LiveSummary] = ()  # the summaries that apply, oldest first, without overlaps
    goal: Budget | None = None
    sent: int | None = None  # messages that were sent before, None if that does not tell what a model has seen
    depth: int = 0  # pairs of epochs in a row that left too little room: a plan has to free more with each
    must_fit: bool = False  # a request above the budget would be refused
    unkept: frozenset[int] = frozenset()  # places of messages that the log does not have whole, so they must stay


_DIGITS = re.compile(r"\d+")
_MARKUP = re.compile(r"[<>\[\]{}#=|]")
# How agents without tool calls write an action: a code block, an XML element, a JSON object, a labelled line.
_ACTION = re.compile(
    r"```|<[A-Za-z_][^<>\n]*>|\{\s*\"|^\W*(?:action|command|tool)\b[^\n]*:", re.IGNORECASE | re.MULTILINE
)
# How machine output begins. People's prompts may begin alike, too ("Ticket 12:", "## Task 5"), but not with these.
_MACHINE_HEAD = re.compile(
    r"\W*(?:(?:the|tool|command|execut(?:e|ion)|bash|shell|python|ipython|function|code|action|system)[ _-]){0,2}"
    r"(?:observations?|outputs?|results?|returns?[ _-]?code|exit(?:ed)?|stdout|stderr|tools?|execution|command)"
    r"(?![a-z])",
    re.IGNORECASE,
)
_HEAD_LENGTH = 40
_MIN_ALIKE = 3
_LEAST_REMINDER = 80
_REMINDER_TAG = re.compile(r"<(?:[\w-]{0,40}reminder|environment_details|environment_context)\b", re.IGNORECASE)


class AgentStep(Group, frozen=True, gc=False):
    """A group of messages with its size. `turn` is the number of user turns so far."""

    tokens: int
    characters: int
    turn: int


class ConversationIndex(msgspec.Struct, frozen=True, gc=False):
    """An indexed conversation. Steps are given by their index in `steps`."""

    messages: Sequence[CountedMessage]
    found: Sequence[MessageFeatures]  # the features of each message
    steps: Sequence[AgentStep]
    fresh: int  # the first step with a message that no model has answered
    users: tuple[int, ...]  # the user's steps, in order
    newest: frozenset[int]  # the user's steps of the newest turns
    fixed: frozenset[int]  # steps that must stay
    bound: frozenset[int]  # places of messages that must be sent unchanged

    def find_start(self, step: int) -> int:
        """Return the place where a step begins; after the last step, the number of messages."""
        return self.steps[step].start if step < len(self.steps) else len(self.messages)


def index_conversation(view: PlanRequest, policy: BuilderPolicy, extract: FeatureExtractor) -> ConversationIndex:
    """Index a conversation; `extract` returns the features of a message."""
    messages = view.messages
    found = [extract(seen.message) for seen in messages]
    structures = [seen.structure for seen in messages]
    client = find_client_messages(
        {place: seen.message.text for place, seen in enumerate(messages) if seen.structure.role == "user"}
    )
    machine = _find_machine_messages(messages) | client.places
    steps = list(_list_steps(messages, found, split_groups(structures, machine)))
    users = tuple(i for i, step in enumerate(steps) if step.kind == "user")
    bound = view.pinned | view.unkept | frozenset(_list_protected_outputs(messages, policy.protected_tools))
    bound |= find_newest_user(structures) & machine  # what was sent is checked to have the newest message of this role
    systems = frozenset(place for place, structure in enumerate(structures) if structure.role == "system")
    unanswered = find_unanswered(structures)
    verbatim = find_verbatim(
        reversed(steps), unanswered, turns=policy.protect_turns, pinned=bound | systems | client.files
    )
    newest = _list_steps_at(steps, verbatim.turns) | {*users[-1:]}
    fixed = _list_steps_at(steps, verbatim.pinned)
    return ConversationIndex(messages, found, steps, _find_step(steps, unanswered), users, newest, fixed, bound)


def with_unsent(seen: ConversationIndex, sent: int | None) -> ConversationIndex:
    """Return an index in which messages after the first `sent` are fresh, too. For None it stays the same."""
    fresh = _find_step(seen.steps, find_unanswered([each.structure for each in seen.messages], sent))
    return seen if fresh == seen.fresh else msgspec.structs.replace(seen, fresh=fresh)


def find_tail_step(seen: ConversationIndex, groups: int) -> int:
    """Return the step at which the tail begins that has the newest `groups` with calls, and all that is fresh."""
    return _find_step(seen.steps, find_verbatim(reversed(seen.steps), seen.find_start(seen.fresh), groups, 0).tail)


def find_last_turn(index: ConversationIndex) -> set[int]:
    """Return the steps of the user's newest turn."""
    last = index.steps[index.users[-1]].turn if index.users else 0
    return {i for i in index.users if index.steps[i].turn == last}


def _find_step(steps: Sequence[AgentStep], place: int) -> int:
    """Return the step that contains the message at a place, or the number of steps if none does."""
    return bisect_right(steps, place, key=lambda step: step.stop)


def _list_steps_at(steps: Sequence[AgentStep], groups: Iterable[range]) -> frozenset[int]:
    return frozenset(_find_step(steps, places.start) for places in groups)


def _list_steps(
    messages: Sequence[CountedMessage], found: Sequence[MessageFeatures], groups: Iterable[Group]
) -> Iterator[AgentStep]:
    turn, before = 0, ""
    for group in groups:
        turn += group.kind == "user" and before != "user"
        before = group.kind
        tokens = sum(seen.tokens for seen in messages[group.start : group.stop])
        characters = sum(each.characters for each in found[group.start : group.stop])
        yield AgentStep(group.start, group.stop, group.kind, group.has_calls, tokens, characters, turn)


def _find_machine_messages(messages: Sequence[CountedMessage]) -> frozenset[int]:
    """Return the places of messages in the user's role that a machine wrote: several alike, each after an action."""
    if any(seen.message.calls or seen.message.results for seen in messages):
        return frozenset(_list_reminders(messages))
    users = [place for place, seen in enumerate(messages) if seen.structure.role == "user"]
    heads = {place: head for place in users if (head := _normalize_head(messages[place].message.text))}
    wrapped = heads.get(users[0]) if users else None
    before = {place: messages[place - 1] for place, head in heads.items() if head != wrapped}
    echoing = [
        place
        for place, seen in before.items()
        if seen.structure.role == "assistant" and _ACTION.search(seen.message.text)
    ]
    alike = Counter(heads[place] for place in echoing)
    return frozenset(place for place in echoing if alike[heads[place]] >= _MIN_ALIKE)


def _list_reminders(messages: Sequence[CountedMessage]) -> Iterator[int]:
    """Yield the places of reminders that a client adds behind results: one long text, several times.

    Numbers, and how short it is, do not matter where its tag says what it is. People say "go on" several times, too.
    """
    texts: dict[int, str] = {}
    for place in range(1, len(messages)):
        seen, before = messages[place], messages[place - 1]
        if seen.structure.role == "user" and before.structure.role == "tool" and not seen.message.media:
            text = seen.message.text.strip()
            is_tagged = _REMINDER_TAG.match(text) is not None
            if is_tagged or len(text) >= _LEAST_REMINDER:
                texts[place] = _DIGITS.sub("0", text) if is_tagged else text
    alike = Counter(texts.values())
    yield from (place for place, text in texts.items() if alike[text] >= _MIN_ALIKE)


def _normalize_head(text: str) -> str:
    """Return the beginning of a text without its numbers; empty if it begins as people write."""
    line = text.split("\n", 1)[0].rstrip()
    if not _MACHINE_HEAD.match(line):
        return ""
    is_label = line.endswith(":") and len(line) <= _HEAD_LENGTH
    return _DIGITS.sub("0", line[:_HEAD_LENGTH]) if is_label or _MARKUP.search(line[:_HEAD_LENGTH]) else ""


def _list_protected_outputs(messages: Sequence[CountedMessage], tools: Sequence[str]) -> Iterator[int]:
    """Yield the places of outputs of the given tools, whose outputs stay."""
    answered: set[str] = set()
    for place, seen in enumerate(messages):
        answered.update(call.id for call in seen.message.calls if call.name in tools)
        if not answered.isdisjoint(seen.message.results):
            yield place
