"""Selection of the form in which each of the user's older turns is sent (BEHAVIOUR B13).

A turn is sent whole while older turns take no more than their share of the budget, then as its first 400 characters,
then as its first 120, and at last as a line of the ledger. Blocks that a newer turn repeats, and large pasted blocks,
are left out before the user's own prose is. Whatever is left out has a reference, or stands word for word in a newer
turn that is sent.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from proxy.context.budget import MESSAGE_FRAME, take_fitting
from proxy.context.conversation import ConversationIndex, PlanRequest
from proxy.context.references import PAGE, render_message
from proxy.context.tool_outputs import list_part_references
from proxy.context.user_rules import list_pasted
from proxy.model.epoch import Reference, Replaced, Written
from proxy.model.messages import Message

WHOLE_SHARE, HEADS_SHARE = 0.25, 0.15
"""Shares of the usable budget: for older turns that stay whole, and for those that are cut to their beginning."""

_HEAD_LENGTHS = (400, 120)
_LEAST_REPEATED = 100
"""Fewest tokens of a block that is left out because a newer turn repeats it."""
_MOST_COMPARED = 3
"""Number of next newer turns, beside the newest, searched for the blocks of a turn: clients repeat text in these."""
_MOST_PLACES = 8
_MOST_PASTED, _PASTED_SHARE = 2000, 0.05
# A share that is exceeded is filled again up to this part only: shortening a turn invalidates the provider's cache for
# everything behind it, so that several turns are shortened at once.
_FILL_SHARE = 0.6
_LEDGER_LEVEL = 1 + len(_HEAD_LENGTHS)

Count = Callable[[str], int]


class UserMessageForm(msgspec.Struct, frozen=True, gc=False):
    """A user turn in one of its forms, unchanged or with parts left out, and its tokens."""

    step: int
    tokens: int
    edits: tuple[Replaced, ...] = ()
    references: tuple[Reference, ...] = ()


MessageForms = Mapping[int, tuple[UserMessageForm, ...]]
"""The forms of user turns by step, the longest form first."""


class LineIndex(msgspec.Struct, frozen=True, gc=False):
    """The lines of a text, and the line numbers at which each of them occurs."""

    lines: Sequence[str]
    places: Mapping[str, Sequence[int]]


class OlderMessages(msgspec.Struct, frozen=True, gc=False):
    """The older turns that are sent as messages.

    `spare` are the tokens that they leave of their shares; 0 where all older turns are sent.
    """

    shown: tuple[UserMessageForm, ...] = ()
    spare: float = 0.0


def list_older_forms(
    view: PlanRequest, index: ConversationIndex, count: Count, *, has_blocks: bool = True
) -> MessageForms:
    """Return the forms of each user turn, except for the newest turns and those that must stay.

    Without `has_blocks`, repeated and pasted blocks are not searched for: that search takes nearly all of the time.
    """
    older = [i for i in index.users if i not in index.newest and i not in index.fixed]
    newest = [_get_text(index, i) for i in sorted(index.newest)]
    return _list_forms(view, index, older, newest if has_blocks else None, count)


def choose_older_forms(
    view: PlanRequest, index: ConversationIndex, forms: MessageForms, least: int, share: float
) -> OlderMessages:
    """Choose the form of each turn before the step `least`; `share` is the part of their budgets that they may use.

    A turn that was shortened before does not become longer again, unless all of them fit whole.
    """
    older = {i: each for i, each in forms.items() if i < least}
    rooms = tuple(share * part * view.budget.usable for part in (WHOLE_SHARE, HEADS_SHARE))
    levels = _choose_levels(older, {i: _find_sent_level(view, index, i, older[i]) for i in older}, rooms)
    shown = tuple([older[i][level] for i, level in levels.items() if level < len(older[i])])
    if len(shown) == len(older):
        return OlderMessages(shown)
    return OlderMessages(shown, max(0.0, sum(rooms) - sum(each.tokens for each in shown)))


def list_newest_forms(
    view: PlanRequest, index: ConversationIndex, count: Count, *, has_blocks: bool = True
) -> MessageForms:
    """Return the forms of the newest turns except for the last; `has_blocks` is as in `list_older_forms`."""
    last = index.steps[index.users[-1]].turn if index.users else 0
    newer = [_get_text(index, i) for i in index.users if index.steps[i].turn == last]
    second = [i for i in index.newest if index.steps[i].turn != last and i not in index.fixed]
    return _list_forms(view, index, second, newer if has_blocks else None, count)


def _list_forms(
    view: PlanRequest, index: ConversationIndex, steps: Iterable[int], newer: Iterable[str] | None, count: Count
) -> MessageForms:
    """Return the forms of each turn, the longest first, in the order of their steps.

    A turn with media, or of several messages, has one form only. `newer` are texts of further turns that may repeat
    blocks of it; for None no blocks are left out.
    """
    newest = [index_lines(text) for text in newer or () if len(text) >= _LEAST_REPEATED]
    near: list[LineIndex] = []
    forms: dict[int, tuple[UserMessageForm, ...]] = {}
    for i in sorted(steps, reverse=True):
        step, message = index.steps[i], index.messages[index.steps[i].start].message
        if step.stop - step.start > 1 or message.media:
            forms[i] = (UserMessageForm(i, step.tokens),)
            continue
        cut = _CutText(message.text)
        if newer is not None:
            cut = _remove_pasted(view, step.start, message, count)
            cut = cut.remove_repeated((*newest, *near), count)
        heads = [_shorten(cut.text, most) for most in _HEAD_LENGTHS]
        forms[i] = tuple([_make_form(view, index, i, cut, each, count=count) for each in (cut.text, *heads)])
        if newer is not None and len(message.text) >= _LEAST_REPEATED:
            near = [index_lines(message.text), *near][:_MOST_COMPARED]
    return dict(sorted(forms.items()))


def _shorten(text: str, most: int) -> str:
    """Return the first characters of a text, without an incomplete note of the proxy at their end."""
    if len(text) <= most:
        return text
    head = text[:most]
    note = head.rfind("[… ")
    return f"{head[: note if note > head.rfind(' …]') else most].rstrip()}…"


def _make_form(
    view: PlanRequest, index: ConversationIndex, i: int, cut: "_CutText", text: str, *, count: Count
) -> UserMessageForm:
    """Return the form of step `i` that sends `text`, or the unchanged turn where that has no more tokens."""
    step = index.steps[i]
    if text == _get_text(index, i):
        return UserMessageForm(i, step.tokens)
    if text == cut.text and cut.named:
        text, references = cut.named, cut.references
    else:
        reference = Reference(view.name(step.start, step.stop, 0), step.start, step.stop)
        text = f"{text}\n[shortened by palimpsest, not by the user; the original is intact: ref:{reference.id}]"
        references = (reference, *[part for part in cut.references if f"ref:{part.id}" in text])
    tokens = count(text) + MESSAGE_FRAME
    if tokens >= step.tokens:
        return UserMessageForm(i, step.tokens)
    return UserMessageForm(i, tokens, (Replaced(step.start, text, "shortened"),), references)


def _find_sent_level(view: PlanRequest, index: ConversationIndex, i: int, forms: Sequence[UserMessageForm]) -> int:
    """Return the level of the form that the active plan sends for a turn; 0 where that plan does not cover it."""
    start = index.steps[i].start
    if view.frozen is None or start >= view.frozen.through:
        return 0
    edit = next((each for each in view.frozen.edits if not isinstance(each, Written) and each.place == start), None)
    if edit is None:
        return _LEDGER_LEVEL
    sent = (edit,) if isinstance(edit, Replaced) else ()
    return next((level for level, form in enumerate(forms) if form.edits == sent), 0)


def _choose_levels(forms: MessageForms, before: Mapping[int, int], rooms: Sequence[float]) -> Mapping[int, int]:
    """Return the level of each turn: all whole if they fit, else those of `before` if they fit, else lower ones."""
    for levels in (dict.fromkeys(forms, 0), before):
        whole, heads = _count_tokens(forms, levels)
        if whole <= rooms[0] and heads <= rooms[1]:
            return levels
    return _lower_levels(forms, before, rooms)


def _count_tokens(forms: MessageForms, levels: Mapping[int, int]) -> tuple[int, int]:
    """Count the tokens of the turns that are sent whole, and of those that are shortened."""
    sizes = [(level, forms[i][level].tokens) for i, level in levels.items() if level < len(forms[i])]
    return sum(size for level, size in sizes if not level), sum(size for level, size in sizes if level)


def _lower_levels(forms: MessageForms, before: Mapping[int, int], rooms: Sequence[float]) -> dict[int, int]:
    """Shorten turns until both budgets hold.

    The first turn, unless it is too long, and the newest stay whole; of the others the newest keep the most characters.
    """
    levels = dict(before)
    if _count_tokens(forms, levels)[0] > rooms[0]:
        first, *others = [i for i in forms if not before[i]]
        room, newest = _FILL_SHARE * rooms[0], [forms[i][0] for i in reversed(others)]
        is_long = forms[first][0].tokens > rooms[0]
        whole = (
            _choose_fitting(newest, room)
            if is_long
            else {first, *_choose_fitting(newest, room - forms[first][0].tokens)}
        )
        levels = {i: level if level or i in whole else 1 for i, level in levels.items()}
    if _count_tokens(forms, levels)[1] > rooms[1]:
        room = _FILL_SHARE * rooms[1]
        heads = [i for i, level in levels.items() if level and len(forms[i]) > 1]
        kept = [i for i in reversed(heads) if levels[i] < _LEDGER_LEVEL]
        short = _choose_fitting([forms[i][-1] for i in kept], room)
        levels |= {i: len(_HEAD_LENGTHS) if i in short else _LEDGER_LEVEL for i in kept}
        room -= sum(forms[i][-1].tokens for i in short)
        for i in [i for i in kept if i in short and before[i] < len(_HEAD_LENGTHS)]:
            room -= forms[i][1].tokens - forms[i][-1].tokens
            if room < 0:
                break
            levels[i] = 1
    return levels


def _choose_fitting(shown: Sequence[UserMessageForm], room: float) -> set[int]:
    """Return the steps of the leading forms that fit into `room` tokens together."""
    return {each.step for each in take_fitting(shown, room, lambda form: form.tokens)}


def _get_text(index: ConversationIndex, i: int) -> str:
    return index.messages[index.steps[i].start].message.text


class _CutText(msgspec.Struct, frozen=True, gc=False):
    """A user's text without some blocks, and with notes in their place; `references` are those of pasted blocks.

    `named` is the same with notes that name these: it needs no other mark. Empty where something else is left out.
    """

    text: str
    named: str = ""
    references: tuple[Reference, ...] = ()

    def remove_repeated(self, newer: Sequence[LineIndex], count: Count) -> "_CutText":
        """Return the text without what one of the newer texts contains too."""
        text = remove_repeated(self.text, newer, count)
        return self if text == self.text else _CutText(text, "", self.references)


def _remove_pasted(view: PlanRequest, place: int, message: Message, count: Count) -> _CutText:
    """Return the text of a message without large pasted blocks.

    A block is large above 2,000 tokens, or above 5 % of the usable budget where that is less. Where the whole message
    is on one page of its own reference, that is all a shorter form of it needs.
    """
    most = int(min(_MOST_PASTED, _PASTED_SHARE * view.budget.usable))
    text, named, references = list[str](), list[str](), list[Reference]()
    rendered, at = render_message(message), 0
    for start, stop in list_pasted(message.text, max(1, most)):
        block = message.text[start:stop]
        if (tokens := count(block)) <= most:
            continue
        head = rendered.index(message.text)
        parts = list_part_references(view, place, head + start, head + stop)
        names = " ".join(f"ref:{each.id}" for each in parts)
        lines = block.count("\n") + 1
        note = f"{lines:,} lines that the user pasted, {tokens:,} tokens, left out"
        before = message.text[at:start]
        named += [before, f"[… {note} by palimpsest, intact: {names} …]"]
        text += [before, f"[… {note} …]" if len(rendered) <= PAGE else f"[… {note}: {names} …]"]
        references += parts
        at = stop
    rest = message.text[at:]
    return _CutText("".join((*text, rest)), "".join((*named, rest)) if references else "", tuple(references))


def index_lines(text: str) -> LineIndex:
    """Index the lines of a text by content; a line that occurs often has its first 8 line numbers only."""
    lines = text.split("\n")
    places: dict[str, list[int]] = {}
    for place, line in enumerate(lines):
        known = places.setdefault(line, [])
        if len(known) < _MOST_PLACES:
            known.append(place)
    return LineIndex(lines, places)


def remove_repeated(text: str, newer: Sequence[LineIndex], count: Count) -> str:
    """Return a text without the long passages, of whole lines, that one of the newer texts contains too."""
    for each in newer:
        text = "\n".join(_list_unrepeated_lines(text.split("\n"), each, count))
    return text


def _list_unrepeated_lines(lines: Sequence[str], newer: LineIndex, count: Count) -> Iterator[str]:
    run: list[str] = []
    behind: list[int] = []
    for line in lines:
        going_on = [place + 1 for place in behind if place < len(newer.lines) and newer.lines[place] == line]
        if going_on:
            run.append(line)
            behind = going_on
            continue
        yield from _finish_run(run, count)
        behind = [place + 1 for place in newer.places.get(line, ())]
        run = [line] if behind else []
        if not run:
            yield line
    yield from _finish_run(run, count)


def _finish_run(run: Sequence[str], count: Count) -> Iterator[str]:
    """Yield the lines of a repeated run, or one note in their place where they have enough tokens."""
    block = "\n".join(run)
    if len(block) < _LEAST_REPEATED or count(block) < _LEAST_REPEATED:
        yield from run
    else:
        yield f"[… {len(run)} lines left out: they stand word for word in a newer message of the user …]"
