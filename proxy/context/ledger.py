"""The ledger: messages, written by the proxy, that tell what removed steps did.

Each stretch of removed steps between two messages that stay has a section of the ledger in its place, behind the user's
message whose work it tells. A line tells one step, or lists the calls of several, and names the reference of their
original. The text can be understood by itself, is written in the third person and asks for nothing; no line of it looks
like a tool call.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from proxy.context.budget import MESSAGE_FRAME, Count
from proxy.context.conversation import AgentStep, ConversationIndex, read_words
from proxy.context.message_features import find_content, is_not_done
from proxy.context.references import (
    CHAT_RECALL,
    HEADER_RECALL,
    NOTE_ACCESS,
    NOTE_RECALL,
    PAGE,
    PAGE_OVERLAP,
    render_words,
    sanitize_text,
)
from proxy.model import Value
from proxy.model.epoch import Compacted, ContextPlan, Reference, Written
from proxy.model.messages import LEDGER_HEAD, ToolCall


class Page(Value):
    """A range of steps, `first` and `last` included, that one reference refers to.

    `start` and `stop` delimit its messages, `stop` excluded; `offset` is the character of their text at which the page
    begins.
    """

    first: int
    last: int
    start: int
    stop: int
    offset: int = 0


def cut_pages(steps: Sequence[AgentStep], first: int, last: int, most: int = PAGE) -> list[Page]:
    """Divide the steps `first` to `last`, both included, into pages of at most about `most` characters.

    Only pages of at most `PAGE` characters have their further parts listed: a reader of larger ones goes on from
    part to part by itself.
    """
    stretches = _list_page_steps(steps, first, last, most)
    if most > PAGE:
        return [Page(begin, end, steps[begin].start, steps[end].stop) for begin, end in stretches]
    return [page for begin, end in stretches for page in _list_pages(steps, begin, end)]


def _list_page_steps(steps: Sequence[AgentStep], first: int, last: int, most: int) -> Iterator[tuple[int, int]]:
    """Yield the first and the last step of each page."""
    begin, size = first, 0
    for i in range(first, last + 1):
        if i > begin and size + steps[i].characters > most:
            yield begin, i - 1
            begin, size = i, 0
        size += steps[i].characters
    yield begin, last


def _list_pages(steps: Sequence[AgentStep], first: int, last: int) -> Iterator[Page]:
    """Yield the page of a range of steps and, where their text is longer than a page, one for each further part.

    Consecutive parts overlap by 200 characters.
    """
    start, stop = steps[first].start, steps[last].stop
    size = sum(step.characters for step in steps[first : last + 1])
    yield Page(first, last, start, stop)
    for offset in range(PAGE - PAGE_OVERLAP, size - PAGE_OVERLAP, PAGE - PAGE_OVERLAP):
        yield Page(first, last, start, stop, offset)


_STORY = (
    f"[{LEDGER_HEAD}: earlier work, told by a proxy; not the words of the user.]\n"
    "Completed steps that stood here, in order: what the assistant said and did, and how it ended. `!` changed"
    " something: it is done, not to be repeated. Behind | are words of a step, indented below it lines of it."
)
_CHAT = (
    f"[{LEDGER_HEAD}: earlier messages, told by a proxy; not the words of the user.]\n"
    "They stood here, in this order, and are told by their beginnings."
)
_NAMED = " Originals are intact under their references, that of a range of steps is named once"
FIRST_HEADER = (
    f"{_STORY} Originals are stored, but not shown: run a command that only reads again, or ask the user for"
    " `palimpsest search`."
)
FIRST_CHAT_HEADER = f"{_CHAT} Originals are stored, but not shown: ask the user for `palimpsest search`."
NEXT_HEADER = f"[{LEDGER_HEAD}: the work here]"
LEDGER_END = "[End of the ledger]"


def render_note(left: int, *, has_tool: bool) -> str:
    """Render the note that so many messages are left out. `has_tool`: the model has the tool to recall."""
    what = f"the context is limited; {left} messages that stood here are stored, but not shown."
    return f"[{LEDGER_HEAD}: {what}{NOTE_RECALL if has_tool else NOTE_ACCESS}]"


def choose_header(*, has_calls: bool, has_tool: bool) -> str:
    """Return the header of the first ledger. `has_tool`: the model has the tool to recall, so lines name references."""
    if not has_tool:
        return FIRST_HEADER if has_calls else FIRST_CHAT_HEADER
    return f"{_STORY}{_NAMED}.{HEADER_RECALL}" if has_calls else f"{_CHAT}{_NAMED}{CHAT_RECALL}"


_LONGEST_QUOTE, _LONGEST_TOOL, _LONGEST_SAID, _LONGEST_OUTCOME = 200, 40, 600, 60


class LedgerLine(Value):
    """A line of the ledger: what it tells of the steps `first` to `last`, both included.

    `references` are those of the pages of their original, or of a `range` of steps of which this is the first line.
    `words` and `quotes` stood in the steps.
    """

    first: int
    last: int
    references: Sequence[Reference]
    text: str = ""
    words: Sequence[str] = ()
    quotes: Sequence[str] = ()
    range: str = ""

    @property
    def is_bare(self) -> bool:
        """Whether it tells nothing."""
        return not (self.text or self.words or self.quotes)


def render_section(lines: Sequence[LedgerLine], header: str, rules: str = "") -> str:
    """Render a section of the ledger; the user's rules, where there are any, follow its header.

    A single line that needs no other header has none around it.
    """
    told = [part for line in _join_bare(lines) for part in _render_line(line)]
    if header == NEXT_HEADER and len(told) == 1 and not rules:
        return f"[{LEDGER_HEAD}: {told[0]}]"
    return "\n".join((header, *([rules] if rules else ()), *told, LEDGER_END))


def _join_bare(lines: Sequence[LedgerLine]) -> Iterator[LedgerLine]:
    """Yield the lines, neighbours of which only the references are listed as one."""
    bare: LedgerLine | None = None
    for line in lines:
        if not line.is_bare or line.range:
            yield from () if bare is None else (bare,)
            bare = None
            yield line
        elif bare is None:
            bare = line
        else:
            bare = LedgerLine(bare.first, line.last, (*bare.references, *line.references))
    yield from () if bare is None else (bare,)


def _render_line(line: LedgerLine) -> Iterator[str]:
    steps = f"{line.first + 1}" if line.first == line.last else f"{line.first + 1}-{line.last + 1}"
    names = " ".join(f"ref:{each.id}" for each in line.references)
    yield " ".join(filter(None, (steps, line.text, line.range, names))) + render_words(line.words)
    yield from (f"    {sanitize_text(quote, _LONGEST_QUOTE)}" for quote in line.quotes)


_LONGEST_PATH = 400
_CHANGE_DIRECTORY = re.compile(r"cd [\w./~-]+ && ")


class StepDetail(Value):
    """How much of a step its line tells: words that the assistant said, and characters of a call's arguments.

    `effects` are the characters where the call changed something, `answer` the words where there is no call.
    """

    said: int
    asked: int
    effects: int
    answer: int


FULL, BRIEF, LONG = StepDetail(14, 48, 110, 42), StepDetail(7, 28, 60, 21), StepDetail(14, 48, 110, 90)

# An output is unusual where at least so many, and such a share of all, begin with another line of at most so many
# characters; so many are alike; and so many characters of it are told.
_LEAST_OUTPUTS, _USUAL_SHARE, _LEAST_ALIKE, _LONGEST_WRAPPER, _HEAD = 8, 0.8, 3, 60, 160
_DIGITS = re.compile(r"\d+")


class UnusualOutputs(Value):
    """Outputs that say by themselves how a call ended: `shown` has the first line of each, by place.

    `refused` has the calls that were not carried out, by their place and id.
    """

    shown: Mapping[int, str] = {}
    refused: frozenset[tuple[int, str]] = frozenset()


_ALL_USUAL = UnusualOutputs()


def has_effects(index: ConversationIndex, step: AgentStep, unusual: UnusualOutputs = _ALL_USUAL) -> bool:
    """Return whether a step did more than read: it made such a call, which was not refused."""
    return any(
        effect and (place, call.id) not in unusual.refused
        for place in step.places
        for call, effect in zip(index.messages[place].message.calls, index.found[place].effects, strict=True)
    )


def format_step(
    index: ConversationIndex,
    step: AgentStep,
    detail: StepDetail,
    unusual: UnusualOutputs = _ALL_USUAL,
    *,
    has_names: bool = True,
) -> str:
    """Tell a step in one phrase: what the assistant said, its calls, and how they ended; `!` if it changed something.

    `has_names` adds the names of the called tools.
    """
    found = [index.found[place] for place in step.places]
    is_act = has_effects(index, step, unusual)
    said = sanitize_text(next((each.said for each in found if each.said), ""), _LONGEST_SAID)
    asked = _list_asked(index, step, detail.effects if is_act else detail.asked, has_names=has_names)
    if not asked:
        return f'said: "{cut_words(said, detail.answer)}"' if said else ""
    sign = "! " if is_act else ""
    intent = f'"{cut_words(said, detail.said)}" · ' if said else ""
    return f"{sign}{intent}{'; '.join(asked)}{_format_outcome(index, step.places, unusual)}"


def _list_asked(index: ConversationIndex, step: AgentStep, most: int, *, has_names: bool) -> list[str]:
    """Return a phrase for each call of a step: at most `most` characters of its arguments, behind its name."""
    return [
        " ".join(
            (
                *([sanitize_text(call.name, _LONGEST_TOOL)] if has_names else ()),
                cut_at_word(_CHANGE_DIRECTORY.sub("", asked, count=1), most),
            )
        )
        for place in step.places
        for call, asked in zip(index.messages[place].message.calls, index.found[place].asked, strict=True)
    ]


def cut_at_word(text: str, most: int) -> str:
    """Return about `most` characters of a text in one line, up to a quarter more or less, so that no word is cut.

    A word that is longer than that is cut: a path to its end, which says more than its beginning.
    """
    end = text.find(" ", most, most + most // 4 + 1)
    if end < 0:
        end = len(text) if len(text) <= most + most // 4 else text.rfind(" ", most - most // 4, most)
    if end < 0:
        return _cut_path(text, most) or sanitize_text(text, most)
    return sanitize_text(text[:end], end) + ("…" if end < len(text) else "")


def _cut_path(text: str, most: int) -> str:
    """Return about `most` characters up to the end of the path that stands there; empty where none does."""
    start = text.rfind(" ", 0, most) + 1
    word = text[start : start + _LONGEST_PATH].partition(" ")[0]
    end = word.find("/", max(1, len(word) - (most + most // 4 - start)))
    if end < 0:
        return ""
    rest = "…" if start + len(word) < len(text) else ""
    return sanitize_text(f"{text[:start]}…{word[end:]}", 2 * most) + rest


def cut_words(text: str, most: int) -> str:
    """Return the first `most` words of a text."""
    words = text.split()
    return " ".join(words) if len(words) <= most else f"{' '.join(words[:most])}…"


def _format_outcome(index: ConversationIndex, places: range, unusual: UnusualOutputs) -> str:
    """Say how calls ended: a failure, the line of an unusual output, or the number of their lines."""
    outputs = [index.found[place] for place in places if index.messages[place].structure.role == "tool"]
    if not outputs:
        return ""
    bad = next((each.outcome for each in outputs if each.outcome), "")
    shown = bad or next((unusual.shown[place] for place in places if place in unusual.shown), "")
    lines = sum(each.lines for each in outputs)
    count = f"{lines} line{'' if lines == 1 else 's'}" if lines else "no output"
    return f" → {cut_at_word(shown, _LONGEST_OUTCOME) if shown else count}"


class StepRun(Value):
    """Removed steps that have one line: a single step, a run of equal ones, or a turn of the user and its answer.

    `is_talk`: no calls are made in them.
    """

    first: int
    last: int
    is_user: bool
    turn: int
    is_talk: bool

    @property
    def is_pair(self) -> bool:
        """Whether it is a turn and its answer."""
        return self.is_user and self.first != self.last


def list_blocks(index: ConversationIndex, gone: Sequence[int], unusual: UnusualOutputs) -> Iterator[StepRun]:
    """Yield the blocks of removed steps; neighbours with the same calls that ended alike are one."""
    first = last = -1
    for i in gone:
        if first >= 0:
            is_answer = i == last + 1 and first == last and _is_pair(index, first)
            if is_answer or (i == last + 1 and _are_equal(index, first, i, unusual)):
                last = i
                continue
            yield _make_block(index, first, last)
        first = last = i
    if first >= 0:
        yield _make_block(index, first, last)


def _make_block(index: ConversationIndex, first: int, last: int) -> StepRun:
    step = index.steps[first]
    return StepRun(first, last, step.kind == "user", step.turn, not step.has_calls)


def _is_pair(index: ConversationIndex, first: int) -> bool:
    """Return whether a step is a turn of the user, and the next one its answer, which stay or go together."""
    turn, answer = index.steps[first : first + 2]
    return (turn.kind, answer.kind) == ("user", "step") and not (turn.has_calls or answer.has_calls)


def _are_equal(index: ConversationIndex, one: int, other: int, unusual: UnusualOutputs) -> bool:
    """Return whether two steps made the same calls with the same outcome, and the user says nothing in them."""
    steps = index.steps[one], index.steps[other]
    asked = [[index.found[place].asked for place in step.places] for step in steps]
    if not any(asked[0]) or asked[0] != asked[1] or "user" in (steps[0].kind, steps[1].kind):
        return False
    ends = [(has_effects(index, step, unusual), _format_outcome(index, step.places, unusual)) for step in steps]
    return ends[0] == ends[1]


def format_user_turn(index: ConversationIndex, step: AgentStep, most: int) -> str:
    """Quote at most `most` characters of a turn of the user."""
    place = next((place for place in step.places if place in index.spoken), step.start)
    return f'the user said: "{sanitize_text(" ".join(read_words(index, place)[: 4 * most].split()), most)}"'


_FIRST_SHARE = 0.7
_NEXT_SHARE, _NEXT_RATIO = 0.2, 0.143
# The least tokens of a first ledger, as far as there is room, and of one behind others: below, headers take too much.
_FIRST_LEAST, _NEXT_LEAST = 4000, 400
_REFERENCE = re.compile(r"\bref:([a-z0-9]{10})\b")


class CarriedLedgers(Value):
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
    index: ConversationIndex, frozen: ContextPlan | None, tail: int, room: float, count: Count
) -> CarriedLedgers:
    """Return the ledgers and summaries of the active plan that the next plan keeps.

    The ledgers of the next plan may have `room` tokens together. The share of a ledger behind others depends on the
    tokens of the steps that it covers, so that ledgers do not grow where epochs follow each other soon. Summaries have
    a room of their own. Nothing is kept, and one new ledger is to be written, where the kept ledgers and a new one
    would exceed `room`, or where a ledger covers messages of the tail.
    """
    edits = frozen.edits if frozen else ()
    written = tuple(edit for edit in edits if isinstance(edit, Written) and not isinstance(edit, Compacted))
    ledgers = [each for each in written if not each.report]
    stop = max((each.stop for each in ledgers), default=0)
    tokens = sum(count(each.text) + MESSAGE_FRAME for each in ledgers)
    end = index.find_start(tail)
    fresh = sum(step.tokens for step in index.steps[:tail] if step.stop > stop and step.kind == "step")
    next_room = min(_NEXT_SHARE * room, _NEXT_RATIO * fresh)
    reported = sum(count(each.text) + MESSAGE_FRAME for each in written if each.report)
    is_full = next_room < _NEXT_LEAST or tokens + next_room > room
    if frozen is None or not ledgers or stop > end or is_full:
        return CarriedLedgers((), 0, (), frozenset(), min(room, max(_FIRST_LEAST, _FIRST_SHARE * room)))
    named = {id for each in ledgers for id in _REFERENCE.findall(each.text)}
    references = tuple(each for each in frozen.references if each.id in named)
    return CarriedLedgers(
        written, tokens + reported, references, _find_covered_steps(index, frozen, stop), next_room, reported
    )


def _find_covered_steps(index: ConversationIndex, frozen: ContextPlan, stop: int) -> frozenset[int]:
    """Return the steps before message `stop` that the ledgers cover: all that were not kept beside them."""
    kept = {edit.place for edit in frozen.edits if not isinstance(edit, Written)}
    return frozenset(i for i, step in enumerate(index.steps) if step.stop <= stop and kept.isdisjoint(step.places))


class _ToldAnswer(Value):
    """An output, and the place and the index of its call in that message; a message may have several outputs."""

    place: int
    text: str
    asked_at: int
    call: ToolCall
    asked: str

    @property
    def key(self) -> tuple[int, str]:
        return self.asked_at, self.call.id


def find_unusual(index: ConversationIndex) -> UnusualOutputs:
    """Find the outputs that say themselves how their calls ended, and the calls that were refused.

    The former are equal to at least two others, lack the line that nearly all others begin with, or refuse. Of those
    without that line a refusal is one that says so, or is like another, or whose call is made again at once. That an
    output is repeated proves nothing alone: "done" is, too. No harness is known by name; what is usual is taken from
    the conversation itself.
    """
    answers = list(_list_answers(index))
    begins = [_DIGITS.sub("0", each.text[: _LONGEST_WRAPPER + 1].partition("\n")[0]) for each in answers]
    usual, times = Counter(begins).most_common(1)[0] if answers else ("", 0)
    has_usual = 0 < len(usual) <= _LONGEST_WRAPPER and times >= max(_LEAST_OUTPUTS, _USUAL_SHARE * len(answers))
    bare = {n: _DIGITS.sub("0", each.text[:_HEAD]) for n, each in enumerate(answers)
            if has_usual and begins[n] != usual and each.text.strip()}  # fmt: skip
    alike, same = Counter(bare.values()), Counter(index.found[each.place].digest for each in answers)
    again = {n for n in bare if n + 1 < len(answers) and answers[n].asked == answers[n + 1].asked}
    refused = {n for n, head in bare.items() if alike[head] > 1} | again
    refused |= {n for n, each in enumerate(answers) if is_not_done(each.call.name, each.text)}
    repeated = {n for n, each in enumerate(answers) if same[index.found[each.place].digest] >= _LEAST_ALIKE}
    shown = {answers[n].place: _find_first_line(answers[n].text) for n in sorted({*bare, *repeated, *refused})}
    return UnusualOutputs(
        {place: line for place, line in shown.items() if line}, frozenset(answers[n].key for n in refused)
    )


def _list_answers(index: ConversationIndex) -> Iterator[_ToldAnswer]:
    """Yield the outputs of calls that the conversation has."""
    calls: dict[str, tuple[int, ToolCall, str]] = {}
    for place, seen in enumerate(index.messages):
        asked = index.found[place].asked
        calls |= {call.id: (place, call, text) for call, text in zip(seen.message.calls, asked, strict=True)}
        results = seen.message.results if seen.structure.role == "tool" else ()
        for id, text in zip(results, seen.message.outputs or (seen.message.text,) * len(results), strict=True):
            if id in calls:
                yield _ToldAnswer(place, text, *calls[id])


def _find_first_line(text: str) -> str:
    start, stop = find_content(text)
    return text[start : min(stop, start + _HEAD)].partition("\n")[0].strip()
