"""The ledger: one message, written by the proxy, that replaces many steps of a conversation (BEHAVIOUR B14, B15).

Its steps are divided into pages, each of which has a reference to the original. The text can be understood by itself,
is written in the third person and asks for nothing; no line of it looks like a tool call.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import log, log2

import msgspec

from proxy.context.budget import MESSAGE_FRAME
from proxy.context.conversation import AgentStep, ConversationIndex
from proxy.context.references import PAGE, list_argument_lines, sanitize_text
from proxy.model.epoch import ContextPlan, Reference, Written
from proxy.model.messages import LEDGER_HEAD

_OVERLAP = 200
_SMALL = 1000


class Page(msgspec.Struct, frozen=True, gc=False):
    """A range of steps, `first` and `last` included, that one reference refers to.

    `start` and `stop` delimit its messages, `stop` excluded; `offset` is the character of their text at which the page
    begins.
    """

    first: int
    last: int
    start: int
    stop: int
    offset: int = 0


def cut_pages(
    steps: Sequence[AgentStep], is_archived: Callable[[int], bool], stop: int, most: int = PAGE
) -> list[Page]:
    """Divide the archived steps among the first `stop` steps into pages of at most about `most` characters."""
    stretches = _list_page_steps(steps, is_archived, stop, most)
    return [page for first, last in stretches for page in _list_pages(steps, first, last)]


def _list_page_steps(
    steps: Sequence[AgentStep], is_archived: Callable[[int], bool], stop: int, most: int
) -> Iterator[tuple[int, int]]:
    """Yield the first and the last step of each page.

    Kept steps of at most 1,000 characters may stand between them.
    """
    first = last = -1
    size = 0
    for i in range(stop):
        if first >= 0 and (size + steps[i].characters > most or (not is_archived(i) and steps[i].characters > _SMALL)):
            yield first, last
            first = -1
        if is_archived(i):
            first, size = (first, size) if first >= 0 else (i, 0)
            last = i
        size += steps[i].characters
    if first >= 0:
        yield first, last


def _list_pages(steps: Sequence[AgentStep], first: int, last: int) -> Iterator[Page]:
    """Yield the page of a range of steps and, where their text is longer than a page, one for each further part.

    Consecutive parts overlap by 200 characters.
    """
    start, stop = steps[first].start, steps[last].stop
    size = sum(step.characters for step in steps[first : last + 1])
    yield Page(first, last, start, stop)
    for offset in range(PAGE - _OVERLAP, size - _OVERLAP, PAGE - _OVERLAP):
        yield Page(first, last, start, stop, offset)


def merge_oldest(pages: Sequence[Page], most: int) -> list[Page]:
    """Return at most `most` pages; the oldest become one, which its reader has to read page by page."""
    surplus = len(pages) - max(most, 1)
    if surplus <= 0:
        return list(pages)
    old = pages[: surplus + 1]
    return [Page(old[0].first, old[-1].last, old[0].start, old[-1].stop), *pages[surplus + 1 :]]


_SHORTEST, _LONGEST = 20, 120
_LOOKED_AT = 64_000
_YOUNG = 8_000

_NUMBERED = re.compile(r"\d+[:\-\t ]\s*")
_IMPORT = re.compile(r"(?:from|import|#include|use|require|using)\b")
_IN_LETTERS = re.compile(r"[A-Za-z]{3}")

_LINE_TYPED, _LINE_AGAIN, _LINE_IMPORTED, _LINE_SAME_TURN, _LINE_AGE, _LINE_LENGTH = 1.0, 0.8, 1.0, 1.0, -0.15, 0.8


class QuotedLine(msgspec.Struct, frozen=True, gc=False):
    """A line and the newest step that contains it."""

    line: str
    step: int


def order_quotes(index: ConversationIndex, gone: Iterable[int], ages: Sequence[int]) -> list[QuotedLine]:
    """Return the lines of archived steps that are worth quoting, the most useful for their length first.

    `gone` are the archived steps. `ages` are the tokens after each message up to the end of the conversation.
    """
    newest: dict[str, int] = {}
    seen: Counter[str] = Counter()
    typed: set[str] = set()
    for i in sorted(gone):
        for place in index.steps[i].places:
            message = index.messages[place].message
            lines = list_lines(message.text) if index.messages[place].structure.role != "assistant" else {}
            own = list_lines("\n".join(line for call in message.calls for line in list_argument_lines(call.arguments)))
            seen.update(lines.keys())
            seen.update(own.keys())
            typed.update(own)
            newest.update(dict.fromkeys((*lines, *own), i))
    current = index.steps[-1].turn
    worth: dict[str, float] = {}
    for line, i in newest.items():
        z = (_LINE_TYPED if line in typed else 0.0) + (_LINE_IMPORTED if _IMPORT.match(line) else 0.0)
        z += _LINE_AGAIN * log(seen[line]) + (_LINE_SAME_TURN if index.steps[i].turn == current else 0.0)
        if z and _IN_LETTERS.search(line):
            age = max(ages[index.steps[i].start], 1)
            worth[line] = z + _LINE_AGE * log2(age / _YOUNG) - _LINE_LENGTH * log(4 + len(line) / 4)
    return [QuotedLine(line, newest[line]) for line in sorted(worth, key=lambda line: (-worth[line], line))]


def list_lines(text: str) -> dict[str, None]:
    """Return the lines of a text that are 20 to 120 characters long, without line numbers, each once, in order."""
    found: dict[str, None] = {}
    for line in text[:_LOOKED_AT].split("\n"):
        bare = line.strip()
        if bare[:1].isdigit():
            bare = _NUMBERED.sub("", bare, count=1)
        if _SHORTEST <= len(bare) <= _LONGEST:
            found[bare] = None
    return found


_LONGEST_TOOL = 40

FIRST_HEADER = (
    f"[{LEDGER_HEAD}: earlier work in this conversation, written by a proxy; not the words of the user.]\n"
    "The steps listed here are completed and were shown in full earlier; what they changed stays changed. Each line is"
    " a stretch of steps, oldest first: their numbers, the reference of their original, what was asked and how it"
    " ended, then words that stand in it. `!` marks what changed something: it is done, and not to be repeated."
    " Originals are intact under their references. To see one again: run a command that only reads once more, or ask"
    " the user for `palimpsest expand ID`."
)
NEXT_HEADER = f"[{LEDGER_HEAD}: earlier work, continued; written by a proxy, not the words of the user.]"
QUOTES_HEADER = "Lines that stood in these steps, word for word, each behind the number of its step:"
LEDGER_END = "[End of the ledger]"


class LedgerEntry(msgspec.Struct, frozen=True, gc=False):
    """A line of the ledger: a page, its reference, phrases that describe its steps, and identifiers in them."""

    page: Page
    reference: str
    told: Sequence[str] = ()
    words: Sequence[str] = ()


def render_ledger(
    entries: Sequence[LedgerEntry], quotes: Sequence[QuotedLine] = (), rules: str = "", *, is_first: bool = True
) -> str:
    """Render the text of the ledger; the user's rules, where there are any, follow its header."""
    lines: list[str] = []
    bare: list[LedgerEntry] = []
    for entry in entries:
        if entry.told or entry.words:
            lines += _render_bare_pages(bare)
            bare = []
            lines.append(_render_entry(entry))
        else:
            bare.append(entry)
    quoted = [
        f"{quote.step + 1}: {sanitize_text(quote.line, 200)}" for quote in sorted(quotes, key=lambda each: each.step)
    ]
    head = [FIRST_HEADER if is_first else NEXT_HEADER, *([rules] if rules else ())]
    return "\n".join(
        (*head, *lines, *_render_bare_pages(bare), *([QUOTES_HEADER, *quoted] if quoted else ()), LEDGER_END)
    )


def _render_bare_pages(bare: Sequence[LedgerEntry]) -> Iterable[str]:
    """Yield one line for pages of which only the references are listed, none for no pages."""
    if bare:
        names = " ".join(f"ref:{each.reference}" for each in bare)
        yield f"{_format_steps(bare[0].page.first, bare[-1].page.last)} {names}"


def _render_entry(entry: LedgerEntry) -> str:
    phrases = f": {' · '.join(entry.told)}" if entry.told else ""
    words = f" | {' '.join(sanitize_text(word, 200) for word in entry.words)}" if entry.words else ""
    return f"{_format_steps(entry.page.first, entry.page.last)} ref:{entry.reference}{phrases}{words}"


def _format_steps(first: int, last: int) -> str:
    return f"{first + 1}" if first == last else f"{first + 1}-{last + 1}"


def format_user_turns(index: ConversationIndex, steps: Sequence[int], most: int) -> str:
    """Describe turns of the user.

    All are quoted where they have `most` characters together, otherwise the first and the last, each cut to `most`
    characters. For a `most` of 0, only their number is given.
    """
    if not most:
        return f"{len(steps)} messages of the user" if len(steps) > 1 else "the user said something"
    texts = [sanitize_text(index.messages[index.steps[i].start].message.text, most) for i in steps]
    if sum(map(len, texts)) <= most or len(texts) == 1:
        return f"the user said: {' / '.join(texts)}"
    return f"{len(steps)} messages of the user, from: {texts[0]} to: {texts[-1]}"


def format_step(index: ConversationIndex, step: AgentStep, most: int) -> str:
    """Describe a step in one phrase: its calls, a failure if there was one, and the number of lines of its output.

    `most` limits the characters for the arguments of each call. A step without calls is quoted.
    """
    places = step.places
    found = [index.found[place] for place in places]
    asked = [
        f"{sanitize_text(call.name, _LONGEST_TOOL)} {sanitize_text(words, most)}"
        for place, each in zip(places, found, strict=True)
        for call, words in zip(index.messages[place].message.calls, each.asked, strict=True)
    ]
    if not asked:
        text = next((index.messages[place].message.text for place in places if index.messages[place].message.text), "")
        return f"said: {sanitize_text(text, 2 * most)}"
    mark = "! " if any(each.effects for each in found) else ""
    return f"{mark}{', '.join(asked)}{_format_outcome(index, places)}"


def _format_outcome(index: ConversationIndex, places: Iterable[int]) -> str:
    outputs = [index.found[place] for place in places if index.messages[place].structure.role == "tool"]
    if not outputs:
        return ""
    bad = next((each.outcome for each in outputs if each.outcome), "")
    lines = sum(each.lines for each in outputs)
    return f" → {sanitize_text(bad, 60)}, {lines} lines" if bad else f" → {lines} lines"


def group_words(words: Iterable[str], where: Mapping[str, int]) -> dict[int, list[str]]:
    """Group words by the number of the entry that contains them; `where` has that number for each word."""
    grouped: dict[int, list[str]] = {}
    for word in words:
        grouped.setdefault(where[word], []).append(word)
    return grouped


MAX_LEDGERS = 4
_FIRST_SHARE = 0.55
_NEXT_SHARE, _NEXT_RATIO = 0.2, 0.143
# The part of a summary's tokens by which a first ledger beside it shrinks: it need not describe what the summary
# describes. The part is below 1, because the identifiers and quotations that later steps need are in the ledger alone.
_LEFT_TO_REPORTS = 0.5
_REFERENCE = re.compile(r"\bref:([a-z0-9]{10})\b")


class CarriedLedgers(msgspec.Struct, frozen=True, gc=False):
    """The ledgers and summaries of the active plan that the next plan keeps, with their tokens and references.

    `told` are the steps that they cover, `room` are the tokens for a new ledger behind them, and `reported` are the
    tokens of the summaries among them.
    """

    written: tuple[Written, ...]
    tokens: int
    references: tuple[Reference, ...]
    told: frozenset[int]
    room: float
    reported: int = 0

    @property
    def ledgers(self) -> tuple[Written, ...]:
        """Return the ledgers among them, without the summaries."""
        return tuple(each for each in self.written if not each.report)


NO_LEDGERS = CarriedLedgers((), 0, (), frozenset(), 0.0)


def carry_ledgers(
    index: ConversationIndex, frozen: ContextPlan | None, tail: int, room: float, count: Callable[[str], int]
) -> CarriedLedgers:
    """Return the ledgers and summaries of the active plan that the next plan keeps.

    The ledgers of the next plan may have `room` tokens together. The share of a ledger behind others depends on the
    tokens of the steps that it covers, so that ledgers do not grow where epochs follow each other soon. Summaries
    count against `room` like ledgers, because they describe the same steps. Nothing is kept, and one new ledger is to
    be written, where there are `MAX_LEDGERS` already, where the kept text and a new ledger would exceed `room`, or
    where a ledger covers messages of the tail.
    """
    written = tuple(edit for edit in (frozen.edits if frozen else ()) if isinstance(edit, Written))
    ledgers = [each for each in written if not each.report]
    stop = max((each.stop for each in ledgers), default=0)
    tokens = sum(count(each.text) + MESSAGE_FRAME for each in ledgers)
    end = index.find_start(tail)
    fresh = sum(step.tokens for step in index.steps[:tail] if step.stop > stop and step.kind == "step")
    next_room = min(_NEXT_SHARE * room, _NEXT_RATIO * fresh)
    reported = sum(count(each.text) + MESSAGE_FRAME for each in written if each.report)
    if frozen is None or not 0 < len(ledgers) < MAX_LEDGERS or stop > end or tokens + reported + next_room > room:
        return CarriedLedgers((), 0, (), frozenset(), _FIRST_SHARE * room)
    named = {id for each in ledgers for id in _REFERENCE.findall(each.text)}
    references = tuple(each for each in frozen.references if each.id in named)
    return CarriedLedgers(
        written, tokens + reported, references, _find_covered_steps(index, frozen, stop), next_room, reported
    )


def reduce_room(carried: CarriedLedgers, reported: int) -> CarriedLedgers:
    """Reduce the tokens for a first ledger by half of `reported`, the tokens of new summaries beside it."""
    if carried.ledgers:
        return carried
    return msgspec.structs.replace(carried, room=max(0.0, carried.room - _LEFT_TO_REPORTS * reported))


def _find_covered_steps(index: ConversationIndex, frozen: ContextPlan, stop: int) -> frozenset[int]:
    """Return the steps before message `stop` that the ledgers cover: all that were not kept beside them."""
    kept = {edit.place for edit in frozen.edits if not isinstance(edit, Written)}
    return frozenset(i for i, step in enumerate(index.steps) if step.stop <= stop and kept.isdisjoint(step.places))
