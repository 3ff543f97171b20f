"""Selection of the form in which each of the user's older turns is sent.

A turn is sent whole while older turns take no more than their share of the budget, then as its first 400 characters,
then as its first 120, and at last as a line of the ledger. Blocks that a newer turn repeats, and large pasted blocks,
are left out before the user's own prose is. Whatever is left out has a reference, or stands word for word in a newer
turn that is sent.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Literal

import msgspec

from proxy.context.budget import MESSAGE_FRAME, find_cap, take_fitting
from proxy.context.conversation import (
    ConversationIndex,
    PlanRequest,
    find_last_turn,
    find_spoken,
    read_words,
)
from proxy.context.outline import OutlineParser, outline
from proxy.context.references import PAGE, FileReference, cut_to_ends, render_file, render_message
from proxy.context.tool_outputs import (
    ReplacedMessage,
    count_saved_tokens,
    find_sent_form,
    list_part_references,
    prune_output,
)
from proxy.context.user_rules import NewerLines, find_block_path, list_given
from proxy.model.epoch import Reference, Replaced, Written
from proxy.model.messages import BESIDE, Message

WHOLE_SHARE, HEADS_SHARE = 0.25, 0.15
"""Shares of the usable budget: for older turns that stay whole, and for those that are cut to their beginning."""

_HEAD_LENGTHS = (400, 120)
_MOST_PASTED, _PASTED_SHARE = 2000, 0.05
# A share that is exceeded is filled again up to this part only: shortening a turn invalidates the provider's cache for
# everything behind it, so that several turns are shortened at once.
_FILL_SHARE = 0.6
_LEDGER_LEVEL = 1 + len(_HEAD_LENGTHS)

Count = Callable[[str], int]


class UserMessageForm(msgspec.Struct, frozen=True):
    """A user turn in one of its forms, unchanged or with parts left out, and its tokens.

    `holders` has the steps of newer turns that contain a block, for each block that was left out because of them.
    `with_blocks` is the same form with these blocks.
    """

    step: int
    tokens: int
    edits: tuple[Replaced, ...] = ()
    references: tuple[Reference, ...] = ()
    holders: tuple[frozenset[int], ...] = ()
    with_blocks: "UserMessageForm | None" = None


MessageForms = Mapping[int, tuple[UserMessageForm, ...]]
"""The forms of user turns by step, the longest form first."""


class OlderMessages(msgspec.Struct, frozen=True, gc=False):
    """The older turns that are sent as messages.

    `spare` are the tokens that they leave of their shares; 0 where all older turns are sent.
    """

    shown: tuple[UserMessageForm, ...] = ()
    spare: float = 0.0


def list_older_forms(
    view: PlanRequest,
    index: ConversationIndex,
    count: Count,
    *,
    has_blocks: bool = True,
    parse: OutlineParser | None = None,
) -> MessageForms:
    """Return the forms of each user turn, except for the newest turns and those that must stay.

    Without `has_blocks`, repeated and pasted blocks are not searched for: that search takes nearly all of the time.
    """
    older = {i for i in index.users if i not in index.newest and i not in index.fixed}
    return _list_forms(view, index, older, index.users if has_blocks else None, count=count, parse=parse)


def choose_older_forms(
    view: PlanRequest, index: ConversationIndex, forms: MessageForms, least: int, share: float
) -> OlderMessages:
    """Choose the form of each turn before the step `least`; `share` is the part of their budgets that they may use.

    A turn that was shortened before does not become longer again, unless all of them fit whole. A block that was left
    out because newer turns repeat it is sent again where none of these is sent, if there is room for it.
    """
    older = {i: each for i, each in forms.items() if i < least}
    rooms = tuple(share * part * view.budget.usable for part in (WHOLE_SHARE, HEADS_SHARE))
    levels = dict(_choose_levels(older, {i: _find_sent_level(view, index, i, older[i]) for i in older}, rooms))
    own = max((i for i in index.users if not index.steps[i].has_calls), default=-1)
    if own in levels:  # newer turns stand beside outputs: what is sent is checked to have the newest of the user's role
        levels[own] = min(levels[own], len(older[own]) - 1)
    sent = {i: older[i][level] for i, level in levels.items() if level < len(older[i])}
    whole = [i for i, level in levels.items() if not level]
    room = rooms[0] - sum(sent[i].tokens for i in whole)
    shown = tuple((sent | _restore_blocks(sent, whole, {i for i in index.users if i not in older}, room)).values())
    if len(shown) == len(older):
        return OlderMessages(shown)
    return OlderMessages(shown, max(0.0, sum(rooms) - sum(each.tokens for each in shown)))


def list_newest_forms(
    view: PlanRequest,
    index: ConversationIndex,
    count: Count,
    *,
    has_blocks: bool = True,
    parse: OutlineParser | None = None,
) -> MessageForms:
    """Return the forms of the newest turns except for the last; `has_blocks` is as in `list_older_forms`."""
    newest = find_last_turn(index)
    second = index.newest - newest - index.fixed
    return _list_forms(view, index, second, newest if has_blocks else None, count=count, parse=parse)


def _restore_blocks(
    sent: Mapping[int, UserMessageForm], whole: Iterable[int], others: Collection[int], room: float
) -> dict[int, UserMessageForm]:
    """Return the whole turns that are sent with the blocks that newer turns repeat, as none of these is sent whole.

    `others` are the steps of turns that are sent unchanged. The newest turns come first, as long as there is `room`.
    """
    containing, restored = set(others), dict[int, UserMessageForm]()
    for i in sorted(whole, reverse=True):
        form = sent[i].with_blocks
        if form is None or not any(containing.isdisjoint(each) for each in sent[i].holders):
            containing.add(i)
        elif form.tokens - sent[i].tokens <= room:
            room -= form.tokens - sent[i].tokens
            restored[i] = form
            containing.add(i)
    return restored


def _list_forms(
    view: PlanRequest,
    index: ConversationIndex,
    steps: Collection[int],
    newer: Iterable[int] | None,
    *,
    count: Count,
    parse: OutlineParser | None,
) -> MessageForms:
    """Return the forms of each turn, the longest first, in the order of their steps.

    A turn of several messages has one form only. Blocks that a later one of these turns or of those at
    the steps `newer` repeats are left out, and pasted blocks; for None no blocks are.
    """
    known = NewerLines()
    forms: dict[int, tuple[UserMessageForm, ...]] = {}
    for i in sorted({*steps, *(newer or ())}, reverse=True):
        if i in steps:
            forms[i] = _make_forms(view, index, i, None if newer is None else known, count=count, parse=parse)
        if newer is not None:
            for place in index.steps[i].places:
                if place in index.spoken or index.messages[place].structure.role == "user":
                    known.add(i, read_words(index, place))
    return dict(sorted(forms.items()))


def _make_forms(
    view: PlanRequest,
    index: ConversationIndex,
    i: int,
    known: NewerLines | None,
    *,
    count: Count,
    parse: OutlineParser | None,
) -> tuple[UserMessageForm, ...]:
    """Return the forms of the turn at step `i`, without blocks that stand in `known` and without pasted ones."""
    step, spoken = index.steps[i], find_spoken(index, i)
    if step.stop - step.start > 1 and len(spoken) != 1:
        return (UserMessageForm(i, step.tokens),)
    message = index.messages[step.start].message
    own = cut = _CutText(read_words(index, spoken[0]) if spoken else message.text)
    holders: tuple[frozenset[int], ...] = ()
    if known is not None:
        own = own if spoken else _remove_pasted(view, step.start, message, count, parse)
        text, holders = known.remove_repeated(own.text, count)
        cut = _CutText(text, "", own.references) if holders else own
    heads = [_shorten(cut.text, most) for most in _HEAD_LENGTHS]
    whole, *others = [_make_form(view, index, i, cut, each, count=count) for each in (cut.text, *heads)]
    if holders and whole.edits:
        with_blocks = _make_form(view, index, i, own, own.text, count=count)
        whole = msgspec.structs.replace(whole, holders=holders, with_blocks=with_blocks)
    return (whole, *others)


def _shorten(text: str, most: int) -> str:
    """Return the first characters of a text, without an incomplete note of the proxy at their end."""
    if len(text) <= most:
        return text
    head = text[:most]
    for opening, closing in (("[… ", " …]"), ("[FILE: ", "[/FILE]")):
        note = head.rfind(opening)
        if note > head.rfind(closing):
            head = head[:note]
    return f"{head.rstrip()}…"


def _make_form(
    view: PlanRequest, index: ConversationIndex, i: int, cut: "_CutText", text: str, *, count: Count
) -> UserMessageForm:
    """Return the form of step `i` that sends `text`, or the unchanged turn where that has no more tokens.

    Media are described in words.
    """
    step = index.steps[i]
    if find_spoken(index, i):
        return _make_spoken_form(view, index, i, text, count=count)
    media = index.messages[step.start].message.media
    if text == _get_text(index, i) and not media:
        return UserMessageForm(i, step.tokens)
    if text == cut.text and cut.named and not media:
        text, references = cut.named, cut.references
    else:
        reference = Reference(view.name(step.start, step.stop, 0), step.start, step.stop)
        without = f" (without {', '.join(media)})" if media else ""
        mark = f"[shortened by palimpsest, not by the user{without}; the original is intact: ref:{reference.id}]"
        text = f"{text}\n{mark}" if text else mark
        references = (reference, *[part for part in cut.references if f"ref:{part.id}" in text])
    tokens = count(text) + MESSAGE_FRAME
    if tokens >= step.tokens:
        return UserMessageForm(i, step.tokens)
    kind: Literal["tombstone", "shortened"] = "tombstone" if media else "shortened"  # media go with the former
    return UserMessageForm(i, tokens, (Replaced(step.start, text, kind),), references)


def _make_spoken_form(
    view: PlanRequest, index: ConversationIndex, i: int, text: str, *, count: Count
) -> UserMessageForm:
    """Return the form of a turn beside outputs that sends `text`, with a tombstone in place of these outputs."""
    step, (place,) = index.steps[i], find_spoken(index, i)
    made = prune_led(view, index, place)
    references = made.references
    if text != read_words(index, place):
        own = Reference(view.name(place, place + 1, 0), place, place + 1)
        text = f"{text}\n[shortened by palimpsest, not by the user; the original is intact: ref:{own.id}]"
        references = (*references, own)
    made = _put_beside(index, made, text, references)
    tokens = step.tokens - count_saved_tokens(index, {place: made}, count)
    return UserMessageForm(i, tokens, (made.edit,), references)


def prune_led(view: PlanRequest, index: ConversationIndex, place: int) -> ReplacedMessage:
    """Return a tombstone for an output of a step that stays: the one that the active plan sends, if it sends one."""
    sent = find_sent_form(view, place, is_tombstone=True)
    if sent is None:
        return prune_output(view, index, place)
    several = index.messages[place].message.outputs
    outputs = tuple([each for each in sent.edit.arguments if several and each[0] != BESIDE])
    return msgspec.structs.replace(sent, edit=msgspec.structs.replace(sent.edit, arguments=outputs))


def name_words(
    view: PlanRequest, index: ConversationIndex, place: int, words: Sequence[str], made: ReplacedMessage | None
) -> ReplacedMessage:
    """Return a tombstone that names these words of the output, with what `made` says beside it."""
    named = prune_output(view, index, place, words)
    beside = dict(made.edit.arguments).get(BESIDE) if made is not None else None
    return named if made is None or beside is None else _put_beside(index, named, beside, made.references)


def _put_beside(
    index: ConversationIndex, made: ReplacedMessage, text: str, references: tuple[Reference, ...]
) -> ReplacedMessage:
    """Return a tombstone with `text` as the words of the user beside it."""
    edit = made.edit
    outputs = edit.arguments or ((index.messages[edit.place].message.results[0], edit.text),)
    return ReplacedMessage(Replaced(edit.place, edit.text, "tombstone", (*outputs, (BESIDE, text))), references)


def _find_sent_level(view: PlanRequest, index: ConversationIndex, i: int, forms: Sequence[UserMessageForm]) -> int:
    """Return the level of the form that the active plan sends for a turn; 0 where that plan does not cover it."""
    places = index.steps[i].places
    if view.frozen is None or places.start >= view.frozen.through:
        return 0
    edits = [each for each in view.frozen.edits if not isinstance(each, Written) and each.place in places]
    if not edits:
        return _LEDGER_LEVEL
    sent = tuple(edit for edit in edits if isinstance(edit, Replaced))
    return next((level for level, form in enumerate(forms) if form.edits == sent), 0)  # 0 with its blocks, too


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


def _render_block(path: str, block: str, parts: Sequence[Reference], tokens: int, parse: OutlineParser | None) -> str:
    """Render a pasted file as a file block with its outline (M12)."""
    content = _WRAPPING.sub("", block)
    seen = outline(content, path, parse)
    structure = seen.structure if seen.shows == "structure" else ()
    digest = sha256(content.encode("utf-8", "surrogatepass")).digest()
    file = FileReference(parts[0].id, path, seen.kind, tokens, seen.lines, digest, structure)
    more = f"\n[its parts in order: {' '.join(f'ref:{each.id}' for each in parts)}]" if len(parts) > 1 else ""
    return f"{render_file(file)}{more}"


def _remove_pasted(
    view: PlanRequest, place: int, message: Message, count: Count, parse: OutlineParser | None
) -> _CutText:
    """Return the text of a message without large pasted blocks.

    A block is large above 2,000 tokens, or above 5 % of the usable budget where that is less. Where the whole message
    is on one page of its own reference, that is all a shorter form of it needs.
    """
    most = int(min(_MOST_PASTED, _PASTED_SHARE * view.budget.usable))
    text, named, references = list[str](), list[str](), list[Reference]()
    rendered, at = render_message(message), 0
    for start, stop in list_given(message, max(1, most)):
        block = message.text[start:stop]
        if (tokens := count(block)) <= most:
            continue
        head = rendered.index(message.text)
        parts = list_part_references(view, place, head + start, head + stop)
        names = " ".join(f"ref:{each.id}" for each in parts)
        lines = block.count("\n") + 1
        note = f"{lines:,} lines that the user pasted, {tokens:,} tokens, left out"
        before = message.text[at:start]
        if path := find_block_path(message.text, start):
            file = _render_block(path, block, parts, tokens, parse)
            named += [before, file]
            text += [before, file]
        else:
            named += [before, f"[… {note} by palimpsest, intact: {names} …]"]
            text += [before, f"[… {note} …]" if len(rendered) <= PAGE else f"[… {note}: {names} …]"]
        references += parts
        at = stop
    rest = message.text[at:]
    return _CutText("".join((*text, rest)), "".join((*named, rest)) if references else "", tuple(references))


_LEAST_BLOCK = 400
_WRAPPING = re.compile(r"\A(?:[`~]{3}.*|[ \t]*<[^>\n]*>)\n|\n(?:[`~]{3,}+|</[^>\n]*>)[ \t]*+\Z")
# Tokens of the notes for a block, and the fewest that a block keeps if any of it stays.
_BLOCK_NOTE, _LEAST_EXCERPT = 24, 40
# The most tokens of a block's outline, as a share of its tokens.
_OUTLINE_SHARE = 0.3


def fit_message(
    view: PlanRequest,
    index: ConversationIndex,
    place: int,
    room: float,
    *,
    count: Count,
    parse: OutlineParser | None = None,
) -> ReplacedMessage:
    """Shorten a message of the user to about `room` tokens: pasted blocks first, the user's own prose last.

    Of a block, and of prose that is too long by itself, the beginning and the end stay, and of a block its outline.
    """
    text = index.messages[place].message.text
    references = list_part_references(view, place, 0, index.found[place].characters)
    names = " ".join(f"ref:{each.id}" for each in references)
    note = f"[shortened by palimpsest, not by the user; the original is intact: {names}]"
    room -= count(note) + MESSAGE_FRAME
    blocks = list_given(index.messages[place].message, _LEAST_BLOCK)
    sizes = [count(text[start:stop]) for start, stop in blocks]
    prose = count(text) - sum(sizes)
    most = find_cap(sizes, room - prose - _BLOCK_NOTE * len(blocks))
    if most < _LEAST_EXCERPT:
        most = 0
    kept, at = list[str](), 0
    for (start, stop), tokens in zip(blocks, sizes, strict=True):
        path = find_block_path(text, start)
        kept += [text[at:start], _cut_block(text[start:stop], path, tokens, most, count=count, parse=parse)]
        at = stop
    shorter = cut_to_ends("".join((*kept, text[at:])), room, count)
    return ReplacedMessage(Replaced(place, f"{shorter}\n{note}", "shortened"), references)


def _cut_block(block: str, path: str, tokens: int, most: int, *, count: Count, parse: OutlineParser | None) -> str:
    """Return a pasted block of at most about `most` tokens: its beginning, its outline and its end."""
    if tokens <= most:
        return block
    note = f"{block.count(chr(10)) + 1:,} lines that the user pasted, {tokens:,} tokens"
    if not most:
        return f"[… {note}, left out …]"
    seen = outline(_WRAPPING.sub("", block), path, parse)
    structure = "\n".join(f"  {line}" for line in seen.structure) if seen.shows == "structure" else ""
    listed = f"; it contains:\n{structure}\n" if structure and count(structure) <= _OUTLINE_SHARE * most else " "
    return cut_to_ends(block, most, count, f"[… the middle of {note}, is left out{listed}…]")
