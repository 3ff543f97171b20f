"""The ledger: one message of ours in place of many of theirs (BEHAVIOUR B14, B15, B22).

Rule: it can be understood by itself: what it is, that the originals are intact, how to get one back. It reports in
the third person and asks for nothing. Foreign words in it stand on the line of a reference whose first page has them,
and cannot pass for markers of ours; no line looks like a call.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from proxy.context.pages import Page
from proxy.context.plain import clean
from proxy.context.quotes import QuotedLine
from proxy.context.survey import AgentStep, Survey
from proxy.model.marker import LEDGER_HEAD

_LONGEST_TOOL = 40

HEAD = (
    f"[{LEDGER_HEAD}: earlier work in this conversation, written by a proxy; not the words of the user.]\n"
    "The steps listed here are completed and were shown in full earlier; what they changed stays changed. Each line is"
    " a stretch of steps, oldest first: their numbers, the reference of their original, what was asked and how it"
    " ended, then words that stand in it. `!` marks what changed something: it is done, and not to be repeated."
    " Originals are intact under their references. To see one again: run a command that only reads once more, or ask"
    " the user for `palimpsest expand ID`."
)
NEXT = f"[{LEDGER_HEAD}: earlier work, continued; written by a proxy, not the words of the user.]"
QUOTED = "Lines that stood in these steps, word for word, each behind the number of its step:"
END = "[End of the ledger]"


class LedgerEntry(msgspec.Struct, frozen=True, gc=False):
    """A line of the ledger: a page under its reference, what is told of its steps, and words that it has."""

    page: Page
    reference: str
    told: Sequence[str] = ()
    words: Sequence[str] = ()


def write_ledger(
    entries: Sequence[LedgerEntry], quotes: Sequence[QuotedLine] = (), rules: str = "", *, is_first: bool = True
) -> str:
    """The text of the ledger; the user's rules, where there are any, come first."""
    lines: list[str] = []
    bare: list[LedgerEntry] = []
    for entry in entries:
        if entry.told or entry.words:
            lines += _flush(bare)
            bare = []
            lines.append(_write_line(entry))
        else:
            bare.append(entry)
    quoted = [f"{quote.step + 1}: {clean(quote.line, 200)}" for quote in sorted(quotes, key=lambda each: each.step)]
    head = [HEAD if is_first else NEXT, *([rules] if rules else ())]
    return "\n".join((*head, *lines, *_flush(bare), *([QUOTED, *quoted] if quoted else ()), END))


def _flush(bare: Sequence[LedgerEntry]) -> Iterable[str]:
    """Pages of which nothing is told, on one line."""
    if bare:
        yield f"{_number(bare[0].page.first, bare[-1].page.last)} {' '.join(f'ref:{each.reference}' for each in bare)}"


def _write_line(entry: LedgerEntry) -> str:
    told = f": {' · '.join(entry.told)}" if entry.told else ""
    words = f" | {' '.join(clean(word, 200) for word in entry.words)}" if entry.words else ""
    return f"{_number(entry.page.first, entry.page.last)} ref:{entry.reference}{told}{words}"


def _number(first: int, last: int) -> str:
    return f"{first + 1}" if first == last else f"{first + 1}-{last + 1}"


def tell_turns(survey: Survey, steps: Sequence[int], most: int) -> str:
    """Turns of the user in so many characters of each, or of the first and the last; how many there are, for none."""
    if not most:
        return f"{len(steps)} messages of the user" if len(steps) > 1 else "the user said something"
    texts = [clean(survey.messages[survey.steps[i].start].told.text, most) for i in steps]
    if sum(map(len, texts)) <= most or len(texts) == 1:
        return f"the user said: {' / '.join(texts)}"
    return f"{len(steps)} messages of the user, from: {texts[0]} to: {texts[-1]}"


def tell_step(survey: Survey, step: AgentStep, most: int) -> str:
    """A step in a few words: what was asked, how it ended, how much there was to see."""
    places = range(step.start, step.stop)
    found = [survey.found[place] for place in places]
    asked = [
        f"{clean(call.name, _LONGEST_TOOL)} {clean(words, most)}"
        for place, each in zip(places, found, strict=True)
        for call, words in zip(survey.messages[place].told.calls, each.asked, strict=True)
    ]
    if not asked:
        text = next((survey.messages[place].told.text for place in places if survey.messages[place].told.text), "")
        return f"said: {clean(text, 2 * most)}"
    mark = "! " if any(each.effects for each in found) else ""
    return f"{mark}{', '.join(asked)}{_tell_end(survey, places)}"


def _tell_end(survey: Survey, places: Iterable[int]) -> str:
    outputs = [survey.found[place] for place in places if survey.messages[place].shape.role == "tool"]
    if not outputs:
        return ""
    bad = next((each.outcome for each in outputs if each.outcome), "")
    lines = sum(each.lines for each in outputs)
    return f" → {clean(bad, 60)}, {lines} lines" if bad else f" → {lines} lines"


def group_words(words: Iterable[str], where: Mapping[str, int]) -> dict[int, list[str]]:
    """Words by the entry they stand in."""
    grouped: dict[int, list[str]] = {}
    for word in words:
        grouped.setdefault(where[word], []).append(word)
    return grouped
