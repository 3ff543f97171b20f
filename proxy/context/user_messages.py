"""Selection of the form in which each of the user's older turns is sent.

All are sent whole while they take no more than their share of the budget. Then pasted blocks give way, the large ones
first, and then prose: to 400 characters of its two ends, to 120, and at last to a line of the ledger. The forms follow
from what the turns take now, not from what was sent before. Blocks that a newer turn repeats are left out in any case.
Whatever is left out has a reference, or stands word for word in a newer turn that is sent.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from math import ceil
from types import MappingProxyType
from typing import Literal

from msgspec.structs import replace

from proxy.context.budget import MESSAGE_FRAME, Count, find_cap
from proxy.context.conversation import (
    ConversationIndex,
    PlanRequest,
    find_last_turn,
    find_spoken,
    read_words,
)
from proxy.context.outline import OutlineParser, outline
from proxy.context.references import PAGE, FileReference, cut_to_ends, render_file, render_message, sanitize_text
from proxy.context.tool_outputs import (
    ReplacedMessage,
    count_saved_tokens,
    find_sent_form,
    list_part_references,
    prune_output,
)
from proxy.context.user_rules import NewerLines, find_block_path, list_given
from proxy.model import Value
from proxy.model.epoch import Reference, Replaced
from proxy.model.messages import BESIDE, Message

WHOLE_SHARE, HEADS_SHARE = 0.25, 0.15
"""Shares of the usable budget: for turns that stay whole, the newest included, and for those that are cut to their
ends."""

_HEAD_LENGTHS = (400, 120)
# A pasted block is large above the least of these, and gives way from so many tokens on.
_MOST_PASTED, _PASTED_SHARE, _LEAST_PASTED = 2000, 0.05, 60
# The share of the room for whole turns that the prose of one may have if not all of them fit.
_LONGEST_SHARE = 0.5
# The ranks of the forms of a turn whose prose is whole: with its blocks, without large ones, without any. At the last
# of them prose that is longer than a turn may have is cut, too.
_ENTIRE, _BARE = 0, 2
_CUT_RANK, _LEDGER_RANK = _BARE + 1, _BARE + 1 + len(_HEAD_LENGTHS)
# Turns are shortened by this share of their room at once: each time invalidates the provider's cache for all behind.
_STRIDE_SHARE = 0.25


class UserMessageForm(Value):
    """A user turn in one of its forms, unchanged or with parts left out, and its tokens.

    `containers` has the steps of newer turns that contain a block, for each block that was left out because of them.
    `with_blocks` is the same form with these blocks. `is_cut`: prose is missing.
    """

    step: int
    tokens: int
    edits: tuple[Replaced, ...] = ()
    references: tuple[Reference, ...] = ()
    containers: tuple[frozenset[int], ...] = ()
    with_blocks: "UserMessageForm | None" = None
    is_cut: bool = False


MessageForms = Mapping[int, tuple[UserMessageForm, ...]]
"""The forms of user turns by step, the longest form first."""


class OlderMessages(Value):
    """The older turns that are sent as messages.

    `spare` are the tokens that they leave of their shares; 0 where all older turns are sent.
    """

    shown: tuple[UserMessageForm, ...] = ()
    spare: float = 0.0


class UserForms(Value):
    """The forms of the user's older turns, and of the second newest, and what replaces large messages, by place.

    `pasted` are the tokens of pasted blocks in the newest turns, by step.
    """

    older: MessageForms
    second: MessageForms
    pasted: Mapping[int, int] = {}
    large: Mapping[int, ReplacedMessage] = {}


def list_user_forms(
    request: PlanRequest,
    index: ConversationIndex,
    count: Count,
    *,
    has_blocks: bool = True,
    parse: OutlineParser | None = None,
) -> UserForms:
    """Return the forms of each user turn, except for the last one and those that must stay.

    Without `has_blocks`, repeated and pasted blocks are not searched for: that search takes nearly all of the time.
    """
    make, newest = partial(_list_forms, request, index, count=count, parse=parse), find_last_turn(index)
    older = make(set(index.users) - index.newest - index.fixed, index.users if has_blocks else None)
    second = make(index.newest - newest - index.fixed, newest if has_blocks else None)
    return UserForms(older, second, _count_pasted(index, index.newest, count) if has_blocks else {})


def choose_older_forms(
    request: PlanRequest,
    index: ConversationIndex,
    forms: MessageForms,
    least: int,
    *,
    share: float = 1.0,
    floor: float = WHOLE_SHARE,
    pasted: Mapping[int, int] = MappingProxyType({}),
) -> OlderMessages:
    """Choose the form of each turn before the step `least`; `share` is the part of their budgets that they may use.

    All turns of the user, the newest included, may have `floor` of the usable tokens in any case. Where all their words
    fit into that, the tokens that are `pasted` in newer turns, by step, do not count. A block that was left out because
    newer turns repeat it is sent again where none of these is sent, if there is room for it.
    """
    older, usable = {i: each for i, each in forms.items() if i < least}, request.budget.usable
    newer = {i for i in index.users if i not in older}
    left = floor * usable - sum(index.steps[i].tokens for i in newer)
    if sum(find_bare(each).tokens for each in older.values()) <= (words := left + sum(pasted.get(i, 0) for i in newer)):
        left = words
    rooms = max(share * WHOLE_SHARE * usable, left), share * HEADS_SHARE * usable
    ranks = _choose_ranks(older, rooms)
    own = max((i for i in index.users if not index.steps[i].has_calls), default=-1)
    if own in ranks:  # newer turns stand beside outputs: what is sent is checked to have the newest of the user's role
        ranks[own] = min(ranks[own], len(older[own]) - 1)
    sent = {i: older[i][rank] for i, rank in ranks.items() if rank < len(older[i])}
    whole = [i for i, rank in ranks.items() if rank <= _BARE]
    room = rooms[0] - sum(sent[i].tokens for i in whole)
    containing = newer | {i for i in whole if sent[i] == older[i][_ENTIRE]}
    shown = tuple((sent | _restore_blocks(sent, whole, containing, room)).values())
    if len(shown) == len(older):
        return OlderMessages(shown)
    return OlderMessages(shown, max(0.0, sum(rooms) - sum(each.tokens for each in shown)))


def _count_pasted(index: ConversationIndex, steps: Iterable[int], count: Count) -> dict[int, int]:
    """Return the tokens of the pasted blocks of each of these turns that has any."""
    blocks = {i: _list_blocks(index.messages[index.steps[i].start].message, count) for i in steps if i in index.users}
    return {i: sum(each.tokens for each in found) for i, found in blocks.items() if found}


def find_bare(forms: Sequence[UserMessageForm]) -> UserMessageForm:
    """Return the shortest form of a turn that has all of its prose."""
    return next(form for form in reversed(forms[:_CUT_RANK]) if not form.is_cut)


def find_shortest(forms: Sequence[UserMessageForm], room: float) -> UserMessageForm:
    """Return the shortest form of a turn, but one with all of its prose where this is not long for `room` tokens."""
    bare = find_bare(forms)
    return bare if bare.tokens <= _LONGEST_SHARE * room else forms[-1]


def list_shortened(shown: Iterable[UserMessageForm]) -> dict[int, ReplacedMessage]:
    """Return what replaces the messages of these turns, by place."""
    return {edit.place: ReplacedMessage(edit, each.references) for each in shown for edit in each.edits}


def _restore_blocks(
    sent: Mapping[int, UserMessageForm], whole: Iterable[int], containing: Collection[int], room: float
) -> dict[int, UserMessageForm]:
    """Return the whole turns that are sent with the blocks that newer turns repeat, as none of these is sent whole.

    `containing` are the steps of turns that are. The newest turns come first, as long as there is `room`.
    """
    present, restored = set(containing), dict[int, UserMessageForm]()
    for i in sorted(whole, reverse=True):
        form = sent[i].with_blocks
        if form is None or not any(present.isdisjoint(each) for each in sent[i].containers):
            continue
        if form.tokens - sent[i].tokens <= room:
            room -= form.tokens - sent[i].tokens
            restored[i] = form
            present.add(i)
    return restored


def _list_forms(
    request: PlanRequest,
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
            forms[i] = _make_forms(request, index, i, None if newer is None else known, count=count, parse=parse)
        if newer is not None:
            for place in index.steps[i].places:
                if place in index.spoken or index.messages[place].structure.role == "user":
                    known.add(i, read_words(index, place))
    return dict(sorted(forms.items()))


def _make_forms(
    request: PlanRequest,
    index: ConversationIndex,
    i: int,
    known: NewerLines | None,
    *,
    count: Count,
    parse: OutlineParser | None,
) -> tuple[UserMessageForm, ...]:
    """Return the forms of the turn at step `i`; blocks that stand in `known` are left out, for None no blocks are."""
    step, spoken = index.steps[i], find_spoken(index, i)
    if step.stop - step.start > 1 and len(spoken) != 1:
        return (UserMessageForm(i, step.tokens),) * _CUT_RANK
    message = index.messages[step.start].message
    own = _CutText(read_words(index, spoken[0]) if spoken else message.text)
    blocks = [] if known is None or spoken else _list_blocks(message, count)
    most = int(min(_MOST_PASTED, _PASTED_SHARE * request.budget.usable))
    large = [each for each in blocks if each.tokens > most]
    owns = (
        own,
        _remove_blocks(request, step.start, message, large, has_outlines=True, parse=parse) if large else own,
        _remove_blocks(request, step.start, message, blocks, has_outlines=False, parse=parse) if blocks else own,
    )
    make = partial(_make_form, request, index, i, count=count)
    whole, bare = list[UserMessageForm](), own
    for rank, each in enumerate(owns):
        if rank and each is owns[rank - 1]:
            whole.append(whole[-1])
            continue
        text, containers = known.remove_repeated(each.text, count) if known is not None else (each.text, ())
        bare = _CutText(text, "", each.references) if containers else each
        form = make(bare, bare.text)
        if containers and form.edits:
            form = replace(form, containers=containers, with_blocks=make(each, each.text))
        whole.append(form)
    longest = _LONGEST_SHARE * WHOLE_SHARE * request.budget.usable
    if whole[_BARE].tokens > longest:
        whole[_BARE] = _mark_cut(make(bare, _fit_ends(bare.text, longest, count)), whole[_BARE])
    heads = [make(bare, _cut_to_ends(bare.text, most)) for most in _HEAD_LENGTHS]
    return (*whole, *[_mark_cut(head, whole[_BARE]) for head in heads])


def _mark_cut(form: UserMessageForm, whole: UserMessageForm) -> UserMessageForm:
    """Return a form of which prose is missing if it is not the whole one."""
    return form if form.edits == whole.edits and not whole.is_cut else replace(form, is_cut=True)


_NOTES = (("[… ", " …]"), ("[FILE: ", "[/FILE]"))
# Characters in which a word may end that would be cut otherwise.
_LONGEST_WORD = 24


_GAP, _LONG_GAP = "… […] …", "\n[… the middle of what the user said is left out …]\n"


def _fit_ends(text: str, room: float, count: Count) -> str:
    """Return the beginning and the end of a text in at most `room` tokens, but no less than its shortest ends."""
    cut, most = text, len(text)
    while (tokens := count(cut)) > room and most > _HEAD_LENGTHS[-1]:
        most = max(_HEAD_LENGTHS[-1], int(most * min(0.95, room / tokens)))
        cut = _cut_to_ends(text, most, _LONG_GAP)
    return cut


def _cut_to_ends(text: str, most: int, gap: str = _GAP) -> str:
    """Return the first and the last characters of a text, without parts of words and of the proxy's notes."""
    if len(text) <= most:
        return text
    head, tail = text[: most * 3 // 5], text[len(text) - most * 2 // 5 :]
    head = head[: max(head.rfind(" "), head.rfind("\n"), len(head) - _LONGEST_WORD)]
    starts = [at for at in (tail.find(" "), tail.find("\n")) if at >= 0]
    tail = tail[min([*starts, _LONGEST_WORD]) :]
    for opening, closing in _NOTES:
        note = head.rfind(opening)
        if note > head.rfind(closing):
            head = head[:note]
        end, other = tail.find(closing), tail.find(opening)
        if end >= 0 and not 0 <= other < end:
            tail = tail[end + len(closing) :]
    return f"{head.rstrip()}{gap}{tail.strip()}"


def _make_form(
    request: PlanRequest, index: ConversationIndex, i: int, cut: "_CutText", text: str, *, count: Count
) -> UserMessageForm:
    """Return the form of step `i` that sends `text`, or the unchanged turn where that has no more tokens.

    Media are described in words.
    """
    step = index.steps[i]
    if find_spoken(index, i):
        return _make_spoken_form(request, index, i, text, count=count)
    media = index.messages[step.start].message.media
    if text == _get_text(index, i) and not media:
        return UserMessageForm(i, step.tokens)
    if text == cut.text and cut.named and not media:
        text, references = cut.named, cut.references
    else:
        reference = Reference(request.name(step.start, step.stop, 0), step.start, step.stop)
        without = f" (without {', '.join(media)})" if media else ""
        note = f"[shortened by palimpsest, not by the user{without}; the original is intact: ref:{reference.id}]"
        text = f"{text}\n{note}" if text else note
        references = (reference, *[part for part in cut.references if f"ref:{part.id}" in text])
    tokens = count(text) + MESSAGE_FRAME
    if tokens >= step.tokens:
        return UserMessageForm(i, step.tokens)
    kind: Literal["tombstone", "shortened"] = "tombstone" if media else "shortened"  # media go with the former
    return UserMessageForm(i, tokens, (Replaced(step.start, text, kind),), references)


def _make_spoken_form(
    request: PlanRequest, index: ConversationIndex, i: int, text: str, *, count: Count
) -> UserMessageForm:
    """Return the form of a turn beside outputs that sends `text`, with a tombstone in place of these outputs."""
    step, (place,) = index.steps[i], find_spoken(index, i)
    made = prune_led(request, index, place)
    references = made.references
    if text != read_words(index, place):
        own = Reference(request.name(place, place + 1, 0), place, place + 1)
        text = f"{text}\n[shortened by palimpsest, not by the user; the original is intact: ref:{own.id}]"
        references = (*references, own)
    made = _put_beside(index, made, text, references)
    tokens = step.tokens - count_saved_tokens(index, {place: made}, count)
    return UserMessageForm(i, tokens, (made.edit,), references)


def prune_led(request: PlanRequest, index: ConversationIndex, place: int) -> ReplacedMessage:
    """Return a tombstone for an output of a step that stays: the one that the active plan sends, if it sends one."""
    sent = find_sent_form(request, place, is_tombstone=True)
    if sent is None:
        return prune_output(request, index, place)
    several = index.messages[place].message.outputs
    outputs = tuple([each for each in sent.edit.arguments if several and each[0] != BESIDE])
    return replace(sent, edit=replace(sent.edit, arguments=outputs))


def name_words(
    request: PlanRequest, index: ConversationIndex, place: int, words: Sequence[str], made: ReplacedMessage | None
) -> ReplacedMessage:
    """Return a tombstone that names these words of the output, with what `made` says beside it."""
    named = prune_output(request, index, place, words)
    beside = dict(made.edit.arguments).get(BESIDE) if made is not None else None
    return named if made is None or beside is None else _put_beside(index, named, beside, made.references)


def _put_beside(
    index: ConversationIndex, made: ReplacedMessage, text: str, references: tuple[Reference, ...]
) -> ReplacedMessage:
    """Return a tombstone with `text` as the words of the user beside it."""
    edit = made.edit
    outputs = edit.arguments or ((index.messages[edit.place].message.results[0], edit.text),)
    return ReplacedMessage(Replaced(edit.place, edit.text, "tombstone", (*outputs, (BESIDE, text))), references)


def _choose_ranks(forms: MessageForms, rooms: tuple[float, float]) -> dict[int, int]:
    """Return the rank of each turn: all as whole as they fit together, else lower ones."""
    for rank in range(_CUT_RANK):
        left = rooms[0] - sum(each[rank].tokens for each in forms.values())
        if left >= 0:
            return _lengthen(forms, dict.fromkeys(forms, rank), left)
    return _lower_ranks(forms, rooms)


def _lengthen(forms: MessageForms, ranks: dict[int, int], room: float) -> dict[int, int]:
    """Return the ranks with more of the turns for which there is `room`: the first one, then the newest."""
    first, *others = [*forms] or [-1]
    for i in (first, *reversed(others)) if forms else ():
        for rank in range(ranks[i]):
            more = forms[i][rank].tokens - forms[i][ranks[i]].tokens
            if more <= room:
                ranks[i], room = rank, room - more
                break
    return ranks


def _lower_ranks(forms: MessageForms, rooms: tuple[float, float]) -> dict[int, int]:
    """Shorten turns until both budgets hold.

    The first turn, unless it is too long, and the newest stay whole; of the others the newest keep the most characters.
    """
    first, *others = forms
    left = rooms[0] - forms[first][_BARE].tokens
    whole = {first, *_keep_newest(forms, others, _BARE, left)} if left >= 0 else set[int]()
    whole = whole or _keep_newest(forms, others, _BARE, rooms[0])
    ranks = {i: _BARE if i in whole else _LEDGER_RANK for i in forms}
    shortened = [i for i in forms if i not in whole and len(forms[i]) > _CUT_RANK]
    room = rooms[1]
    for rank in range(_CUT_RANK, _LEDGER_RANK):
        total = sum(forms[i][rank].tokens for i in shortened)
        # Where not all have this form, half of the room is for it, and the rest for shorter ones.
        part = room if total <= room or rank + 1 == _LEDGER_RANK else room / 2
        chosen = _keep_newest(forms, shortened, rank, part)
        ranks |= dict.fromkeys(chosen, rank)
        room -= sum(forms[i][rank].tokens for i in chosen)
        shortened = [i for i in shortened if i not in chosen]
    return ranks


def _keep_newest(forms: MessageForms, turns: Sequence[int], rank: int, room: float) -> set[int]:
    """Return the newest of the turns that fit into `room` tokens in forms of a rank: all, or all but a multiple.

    So the same turns are left out for several epochs.
    """
    stride = _STRIDE_SHARE * room
    excess = sum(forms[i][rank].tokens for i in turns) - room
    left_out = ceil(excess / stride) * stride if excess > 0 and stride > 0 else excess
    kept = set(turns)
    for i in turns:
        if left_out <= 0:
            break
        kept.discard(i)
        left_out -= forms[i][rank].tokens
    return kept


def _get_text(index: ConversationIndex, i: int) -> str:
    return index.messages[index.steps[i].start].message.text


class _CutText(Value):
    """A user's text without some blocks, and with notes in their place; `references` are those of pasted blocks.

    `named` is the same with notes that name these: it needs no other mark. Empty where something else is left out.
    """

    text: str
    named: str = ""
    references: tuple[Reference, ...] = ()


class _PastedBlock(Value):
    """A pasted block of a user's text, and its tokens."""

    start: int
    stop: int
    tokens: int
    path: str


def _list_blocks(message: Message, count: Count) -> list[_PastedBlock]:
    """Return what stands beside the user's own words in a message, where it is worth a note."""
    text = message.text
    found = ((start, stop, count(text[start:stop])) for start, stop in list_given(message, _LEAST_PASTED))
    return [_PastedBlock(*each, find_block_path(text, each[0])) for each in found if each[2] >= _LEAST_PASTED]


_FENCE_LANGUAGE = re.compile(r"[`~]{3,8}([\w+#-]{1,20})[ \t]{0,9}\n")
_TRACEBACK = "Traceback (most recent call last)"


def _describe_block(block: str, path: str, tokens: int) -> str:
    """Say in a phrase what a pasted block was."""
    lines = block.count("\n") + 1
    fence = _FENCE_LANGUAGE.match(block)
    kind = path or ("a traceback" if _TRACEBACK in block else fence[1] if fence is not None else "")
    named = f" of {sanitize_text(kind, _LONGEST_KIND)}" if kind else ""
    return f"{lines:,} line{'' if lines == 1 else 's'}{named} that the user pasted, {tokens:,} tokens"


_LONGEST_KIND = 120


def _render_block(path: str, block: str, parts: Sequence[Reference], tokens: int, parse: OutlineParser | None) -> str:
    """Render a pasted file as a file block with its outline (M12)."""
    content = _unwrap(block)
    seen = outline(content, path, parse)
    structure = seen.structure if seen.shows == "structure" else ()
    digest = sha256(content.encode("utf-8", "surrogatepass")).digest()
    file = FileReference(parts[0].id, path, seen.kind, tokens, seen.lines, digest, structure)
    more = f"\n[its parts in order: {' '.join(f'ref:{each.id}' for each in parts)}]" if len(parts) > 1 else ""
    return f"{render_file(file)}{more}"


def _remove_blocks(
    request: PlanRequest,
    place: int,
    message: Message,
    blocks: Sequence[_PastedBlock],
    *,
    has_outlines: bool,
    parse: OutlineParser | None,
) -> _CutText:
    """Return the text of a message without these blocks: a line says what each was, and an outline what a file has.

    Where the whole message is on one page of its own reference, that is all a shorter form of it needs.
    """
    text, named, references = list[str](), list[str](), list[Reference]()
    rendered, at = render_message(message), 0
    head = rendered.index(message.text)
    for each in blocks:
        block = message.text[each.start : each.stop]
        parts = list_part_references(request, place, head + each.start, head + each.stop)
        names = " ".join(f"ref:{part.id}" for part in parts)
        note = f"{_describe_block(block, each.path, each.tokens)}, left out"
        before = message.text[at : each.start]
        if each.path and has_outlines:
            file = _render_block(each.path, block, parts, each.tokens, parse)
            named += [before, file]
            text += [before, file]
        else:
            named += [before, f"[… {note} by palimpsest, intact: {names} …]"]
            text += [before, f"[… {note} …]" if len(rendered) <= PAGE else f"[… {note}: {names} …]"]
        references += parts
        at = each.stop
    rest = message.text[at:]
    return _CutText("".join((*text, rest)), "".join((*named, rest)), tuple(references))


_LEAST_BLOCK = 400
_OPENING_LINE = re.compile(r"(?:[`~]{3}.*|[ \t]*<[^>\n]*>)\n")
_CLOSING_LINE = re.compile(r"\n(?:[`~]{3,}+|</[^>\n]*>)[ \t]*+")
# Tokens of the notes for a block, and the fewest that a block keeps if any of it stays.
_BLOCK_NOTE, _LEAST_EXCERPT = 24, 40
# The most tokens of a block's outline, as a share of its tokens.
_OUTLINE_SHARE = 0.3


def fit_message(
    request: PlanRequest,
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
    references = list_part_references(request, place, 0, index.found[place].characters)
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
    shorter = _fit_ends("".join((*kept, text[at:])), room, count)
    return ReplacedMessage(Replaced(place, f"{shorter}\n{note}", "shortened"), references)


def _cut_block(block: str, path: str, tokens: int, most: int, *, count: Count, parse: OutlineParser | None) -> str:
    """Return a pasted block of at most about `most` tokens: its beginning, its outline and its end."""
    if tokens <= most:
        return block
    note = _describe_block(block, path, tokens)
    if not most:
        return f"[… {note}, left out …]"
    seen = outline(_unwrap(block), path, parse)
    structure = "\n".join(f"  {line}" for line in seen.structure) if seen.shows == "structure" else ""
    listed = f"; it contains:\n{structure}\n" if structure and count(structure) <= _OUTLINE_SHARE * most else " "
    return cut_to_ends(block, most, count, f"[… the middle of {note}, is left out{listed}…]")


def _unwrap(block: str) -> str:
    """Return a block without the lines of marks around it. Only its ends are read."""
    opening = _OPENING_LINE.match(block)
    start = opening.end() if opening else 0
    end = block.rfind("\n", start)
    return block[start:end] if end >= 0 and _CLOSING_LINE.fullmatch(block, end) else block[start:]
