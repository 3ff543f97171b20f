"""Selection of what a ledger of a given number of tokens tells.

Half of the room is for lines that tell steps: the user's turns, every step of the running task from the newest on, and
of finished tasks their end and what they changed. The rest is for identifiers and quotations from the removed steps, on
the lines of the steps that they stood in.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import zip_longest
from math import inf

from msgspec.structs import replace

from proxy.context.budget import MESSAGE_FRAME, Count, take_fitting
from proxy.context.conversation import AgentStep, ConversationIndex, PlanRequest, read_words
from proxy.context.ledger import (
    BRIEF,
    FULL,
    LONG,
    NEXT_HEADER,
    CarriedLedgers,
    LedgerLine,
    Page,
    StepDetail,
    StepRun,
    UnusualOutputs,
    choose_header,
    cut_pages,
    find_unusual,
    format_step,
    format_user_turn,
    has_effects,
    list_blocks,
    render_section,
)
from proxy.context.message_features import list_identifiers
from proxy.context.references import PAGE, find_fold, unfold_words
from proxy.context.user_rules import format_rules, list_unsent_rules
from proxy.context.word_ranking import (
    IdentifierIndex,
    QuotedLine,
    estimate_tokens_of_word,
    index_identifiers,
    order_identifiers,
    order_quotes,
)
from proxy.model import Value
from proxy.model.epoch import Reference, Written

# Shares of a ledger's tokens: for lines that tell steps, of these for the user's turns, and for quoted lines.
_TOLD_SHARE, _USERS_SHARE, _QUOTED_SHARE = 0.5, 0.3, 0.06
# A small ledger tells steps first: so many tokens, up to this share.
_TOLD_LEAST, _TOLD_MOST_SHARE = 1500.0, 0.8
# The share of what is left for lines that one finished task may have, the newest first, and the least in tokens.
_TASK_SHARE, _TASK_LEAST = 0.2, 300
# The shares of what is left there for what finished tasks changed, in brief, and for how they ended.
_ACTS_SHARE, _ENDS_SHARE = 0.3, 0.15
# The share of the room for words that answers to the user may have at least: what these said comes before bare names.
_ANSWERS_SHARE = 0.6
_PAGES_SHARE = 0.35
# Pages of one step that its line names.
_MOST_PAGES = 6
_REFERENCE_TOKENS = 9.0
_LINE_TOKENS, _QUOTE_TOKENS = 4.0, 2.0
_FRAME_TOKENS, _NEXT_FRAME_TOKENS, _LINE_FRAME_TOKENS = 110.0, 24.0, 14.0
# Tokens below which a ledger has one section, and of each section below which neighbours are joined, up to so many.
_SECTIONS_LEAST, _SECTION_LEAST, _JOINED_LEAST = 600.0, 40.0, 400.0
# Characters of a user's turn on a line of the ledger, as far as the budget allows.
_HEAD, _LONG_HEAD = 120, 400
_MOST_TRIED = 6000
# Tokens of identifiers per output, unless the agent has used them.
_MOST_WORDS = 400.0
# Characters that are searched for the user's rules where `has_words` is false, to save time.
MAX_RULES_SEARCHED = 40_000
_FULL = 0.97
_MOST_STRETCHED = 1.3


class LedgerScope(Value):
    """The steps that a ledger has to cover.

    `tail` is the step from which on all is sent, `staying` are the steps before it that are sent in any case, and
    `carried` has the ledgers that are kept, with the steps that they cover. `has_words`: identifiers and lines of
    outputs are kept, too, which takes most of the time. `shortened` has the texts that are sent in place of the user's
    own, by the index of the message. `pruned` are the indexes of messages that tombstones replace, `named` has those of
    which the tombstone was sent before, with its text.
    """

    tail: int
    staying: frozenset[int]
    carried: CarriedLedgers
    has_words: bool = True
    shortened: Mapping[int, str] = {}
    pruned: frozenset[int] = frozenset()
    named: Mapping[int, str] = {}


class Ledger(Value):
    """The new sections of the ledger, the references that they name, and their tokens; none where nothing is removed.

    `words` has identifiers of messages that tombstones replace, by their index.
    """

    sections: tuple[Written, ...] = ()
    references: tuple[Reference, ...] = ()
    tokens: int = 0
    words: Mapping[int, Sequence[str]] = {}


def build_ledger(request: PlanRequest, index: ConversationIndex, scope: LedgerScope, count: Count) -> Ledger:
    """Build the ledger of all steps before the tail that are not sent otherwise, with the rules that would be lost."""
    gone = frozenset(range(scope.tail)) - scope.staying - scope.carried.told
    # Rules have a budget of their own: the user's words must not be displaced by other content.
    inherited = [each.text for each in scope.carried.ledgers]
    unsent = list_unsent_rules(index, gone, scope.shortened, inherited, inf if scope.has_words else MAX_RULES_SEARCHED)
    rules = format_rules(unsent, request.budget.usable, count)
    if not gone and not rules and not scope.pruned:
        return Ledger()
    material = _collect_material(request, index, scope, gone)
    left = scope.carried.room
    made = _write(material, left, rules, count)
    room = made.tokens - (count(rules) if rules else 0)
    if gone and (room > left or room < _FULL * left):
        # The first selection estimates tokens by length; this one corrects it by its real tokens.
        made = _write(material, left * min(_MOST_STRETCHED, left / room), rules, count)
    return made


class _Material(Value):
    """The candidates for a ledger: blocks, oldest first, and words and quotes in the order of their usefulness.

    `owner` has the step of each message, `gone` are the removed steps. `acts` are the numbers of the blocks that
    changed something, `format` tells a block in one phrase; phrases are kept, as most blocks are tried several times.
    """

    request: PlanRequest
    index: ConversationIndex
    scope: LedgerScope
    blocks: Sequence[StepRun]
    identifiers: IdentifierIndex
    words: Sequence[str]
    quotes: Sequence[QuotedLine]
    owner: Sequence[int]
    gone: frozenset[int]
    acts: frozenset[int]
    format: Callable[[int, StepDetail], str]


def _collect_material(
    request: PlanRequest, index: ConversationIndex, scope: LedgerScope, gone: frozenset[int]
) -> _Material:
    owner = [i for i, step in enumerate(index.steps) for _ in step.places]
    identifiers = index_identifiers(index)
    names = {call.name for seen in index.messages for call in seen.message.calls}
    words, quotes = list[str](), list[QuotedLine]()
    if scope.has_words:
        live = {word for each in scope.carried.ledgers for word in list_identifiers(unfold_words(each.text))}
        removed = [owner[place] in gone or place in scope.pruned for place in range(len(index.messages))]
        for place, found in enumerate(index.found):
            if place in scope.pruned or place in scope.named:
                beside = read_words(index, place) if place in index.spoken else ""
                live.update(list_identifiers(unfold_words(f"{scope.named.get(place, '')} {beside}")))
            elif not removed[place] and owner[place] not in scope.carried.told:
                live.update(found.words)
        fitting = [word for word, place in identifiers.newest.items() if removed[place] and word not in live]
        words = order_identifiers(identifiers, fitting)[:_MOST_TRIED]
        quotes = order_quotes(index, gone, identifiers.ages)
    unusual = find_unusual(index)
    blocks = list(list_blocks(index, sorted(gone), unusual))
    acts = frozenset(n for n, block in enumerate(blocks) if _find_act(index, block, unusual) is not None)
    format_block = cache(lambda n, detail: _format_block(index, blocks[n], detail, unusual, has_names=len(names) > 1))
    return _Material(request, index, scope, blocks, identifiers, words, quotes, owner, gone, acts, format_block)


def _write(material: _Material, room: float, rules: str, count: Count) -> Ledger:
    """Write a ledger of about `room` tokens; the user's rules are additional."""
    is_first = not material.scope.carried.ledgers
    room -= _FRAME_TOKENS if is_first else _NEXT_FRAME_TOKENS
    texts = _choose_texts(material, room)
    lines = _compose_lines(material, texts, _PAGES_SHARE * room)
    number = _count_sections(len(_list_runs(material, [line for line in lines if line.text])), room)
    room -= _LINE_FRAME_TOKENS * max(0, number - 1)
    quotes = take_fitting(
        material.quotes, _QUOTED_SHARE * room, lambda quote: estimate_tokens_of_word(quote.line) + _QUOTE_TOKENS
    )
    room -= sum(
        estimate_tokens_of_word(line.text) + _LINE_TOKENS + _REFERENCE_TOKENS * len(line.references) for line in lines
    )
    room -= sum(estimate_tokens_of_word(quote.line) + _QUOTE_TOKENS for quote in quotes)
    lines = _add_quotes(lines, quotes)
    words, pruned = _choose_words(material, lines, room)
    lines = [replace(line, words=words.get(n, ())) for n, line in enumerate(lines)]
    lines = list(_name_ranges(material, lines))
    sections = _render_sections(material, lines, rules, is_first=is_first, most=number)
    references = tuple([each for line in lines for each in line.references])
    return Ledger(sections, references, sum(count(each.text) + MESSAGE_FRAME for each in sections), pruned)


def _list_runs(material: _Material, lines: Sequence[LedgerLine]) -> list[list[LedgerLine]]:
    """Return the lines in runs between which a message stands that is sent, or an older ledger."""
    runs: list[list[LedgerLine]] = []
    for line in lines:
        if runs and material.gone.issuperset(range(runs[-1][-1].last + 1, line.first)):
            runs[-1].append(line)
        else:
            runs.append([line])
    return runs


def _count_sections(runs: int, room: float) -> int:
    """Return how many sections a ledger has: one for each run of steps, or fewer where headers would take too much."""
    if room < _SECTIONS_LEAST:
        return min(1, runs)
    return runs if room >= runs * _SECTION_LEAST else min(runs, max(1, int(room / _JOINED_LEAST)))


def _choose_texts(material: _Material, room: float) -> dict[int, str]:
    """Return what is told of blocks, by their number, within the share of `room` tokens that is for it.

    The user's turns come first, then what the running task changed, then of each finished task, in brief, what it
    changed and how it ended, then the other steps of the running task from the newest on, then more of the finished
    ones. So no task is left without a line where there is room for one. What the assistant answered to the user has
    more room, before words that are told for their own sake.
    """
    told = max(_TOLD_SHARE * room, min(_TOLD_MOST_SHARE * room, _TOLD_LEAST))
    texts = _choose_turns(material, _USERS_SHARE * told)
    left = told - sum(map(_estimate_line, texts.values()))
    steps = [n for n, block in enumerate(material.blocks) if not block.is_user or _is_untold_act(material, n, texts)]
    running = material.index.steps[-1].turn
    newest = [n for n in reversed(steps) if material.blocks[n].turn == running]
    left -= _tell(material, [n for n in newest if n in material.acts], left, texts)
    finished = list(_list_finished_tasks(material, steps, running))
    # What is known to have changed something goes before what may have.
    acts = [
        sorted((n for n in task if n in material.acts), key=lambda n: not _writes(material, n)) for task in finished
    ]
    ends = [task[0] for task in finished if task[0] not in texts]
    left -= _tell(material, _take_in_turn(acts), _ACTS_SHARE * left, texts, (BRIEF,))
    left -= _tell(material, [n for n in ends if n not in texts], _ENDS_SHARE * left, texts, (BRIEF,))
    left -= _tell(material, [n for n in newest if n not in texts], left, texts)
    left -= _tell(material, [n for n in _take_in_turn(acts) if n not in texts], left, texts, (BRIEF,))
    for task in finished:
        # What is told in brief is told in full where there is room.
        left -= _tell(material, task, min(left, max(_TASK_LEAST, _TASK_SHARE * left)), texts)
    for task in finished:
        left -= _tell(material, [n for n in task if n not in texts], left, texts)
    _tell_answers(material, _compute_answers_room(material, room, texts), texts)
    return texts


def _compute_answers_room(material: _Material, room: float, texts: Mapping[int, str]) -> float:
    """Return the tokens for more of the answers: a share of what is left for words, or what these leave of it."""
    rest = (1 - _QUOTED_SHARE) * room - sum(map(_estimate_line, texts.values()))
    for word in material.words:
        rest -= estimate_tokens_of_word(word)
        if rest <= 0:
            break
    left = (1 - _QUOTED_SHARE) * room - sum(map(_estimate_line, texts.values()))
    return max(0.0, rest, _ANSWERS_SHARE * left)


def _tell_answers(material: _Material, room: float, texts: dict[int, str]) -> None:
    """Tell what the assistant answered to the user in `room` tokens, the newest first: all in brief, then more."""
    blocks = material.blocks
    answers = [
        n for n in reversed(range(len(blocks))) if blocks[n].is_talk and (blocks[n].is_pair or not blocks[n].is_user)
    ]
    for detail in (BRIEF, FULL, LONG):
        for n in answers:
            text = _tell_pair(material, n, detail) if blocks[n].is_pair else material.format(n, detail)
            cost = _estimate_line(text) - (_estimate_line(texts[n]) if n in texts else 0.0)
            if 0 < cost <= room:
                texts[n], room = text, room - cost


def _tell_pair(material: _Material, n: int, detail: StepDetail) -> str:
    """Quote a turn of the user, and what the assistant answered."""
    block = material.blocks[n]
    quote = format_user_turn(
        material.index, material.index.steps[block.first], _HEAD if detail is BRIEF else _LONG_HEAD
    )
    return f"{quote}, answered: {material.format(n, detail).partition(' ')[2]}"


def _is_untold_act(material: _Material, n: int, texts: Mapping[int, str]) -> bool:
    """Return whether a block that ends with words of the user is told as a step, since there is no room for these."""
    return n not in texts and material.index.steps[material.blocks[n].first].has_calls


def _writes(material: _Material, n: int) -> bool:
    """Return whether a block has a call that is known to change something."""
    steps = material.index.steps[material.blocks[n].first : material.blocks[n].last + 1]
    return any(material.index.found[place].writes for step in steps for place in step.places)


def _take_in_turn(tasks: Sequence[Sequence[int]]) -> list[int]:
    """Return the first block of each task, then the second of each, and so on."""
    return [n for row in zip_longest(*tasks) for n in row if n is not None]


def _tell(
    material: _Material,
    blocks: Sequence[int],
    room: float,
    texts: dict[int, str],
    details: Sequence[StepDetail] = (FULL, BRIEF),
) -> float:
    """Add texts for blocks, in this order, to `texts` while they fit into `room` tokens; return their tokens.

    A text replaces the one that a block has.
    """
    used = 0.0
    for n in blocks:
        before = _estimate_line(texts[n]) if n in texts else 0.0
        for detail in details:
            text = material.format(n, detail)
            cost = _estimate_line(text) - before
            if used + cost <= room:
                texts[n] = text
                used += cost
                break
    return used


def _list_finished_tasks(material: _Material, steps: Sequence[int], running: int) -> Iterator[list[int]]:
    """Yield the blocks of each finished task, the newest task first: its end, then its changes."""
    tasks: dict[int, list[int]] = {}
    for n in reversed(steps):
        if material.blocks[n].turn != running:
            tasks.setdefault(material.blocks[n].turn, []).append(n)
    for end, *others in tasks.values():
        yield [end, *(n for n in others if n in material.acts)]


def _find_act(index: ConversationIndex, block: StepRun, unusual: UnusualOutputs) -> AgentStep | None:
    """Find the last step of a block that changed something."""
    steps = reversed(index.steps[block.first : block.last + 1])
    return next((step for step in steps if has_effects(index, step, unusual)), None)


def _format_block(
    index: ConversationIndex, block: StepRun, detail: StepDetail, unusual: UnusualOutputs, *, has_names: bool
) -> str:
    step = _find_act(index, block, unusual) or index.steps[block.last]
    text = format_step(index, step, detail, unusual, has_names=has_names)
    return text if block.first == block.last or block.is_pair else f"{text} ({block.last - block.first + 1} times)"


def _estimate_line(text: str) -> float:
    return estimate_tokens_of_word(text) + _LINE_TOKENS + _REFERENCE_TOKENS


def _choose_turns(material: _Material, room: float) -> dict[int, str]:
    """Return a quotation of each removed turn of the user, as far as `room` allows, the newest first."""
    turns = [n for n, block in enumerate(material.blocks) if block.is_user]
    texts: dict[int, str] = {}
    for most in (_HEAD, _LONG_HEAD):
        for n in reversed(turns):
            step = material.index.steps[material.blocks[n].first]
            quote = format_user_turn(material.index, step, most)
            if material.blocks[n].is_pair:
                text = _tell_pair(material, n, BRIEF if most == _HEAD else FULL)
            else:
                text = f"{material.format(n, BRIEF)}; then {quote}" if step.has_calls else quote
            cost = _estimate_line(text) - (_estimate_line(texts[n]) if n in texts else 0.0)
            if cost <= room:
                texts[n], room = text, room - cost
    return texts


def _compose_lines(material: _Material, texts: Mapping[int, str], room: float) -> list[LedgerLine]:
    """Return the lines of all blocks in order. Neighbours that are not told share lines, one for each page.

    The references of these pages may take `room` tokens, or the pages become larger. `_name_ranges` adds those of what
    was only said.
    """
    steps, blocks = material.index.steps, material.blocks
    stretches = list(_list_stretches(blocks, texts))
    talks = [all(block.is_talk for block in blocks[first : last + 1]) for first, last in stretches]
    most, total = PAGE, sum(step.characters for step in steps)
    while True:
        pages = [
            cut_pages(steps, blocks[first].first, blocks[last].last, PAGE if first in texts else most)
            for first, last in stretches
        ]
        named = sum(len(each) for each, talk in zip(pages, talks, strict=True) if not talk)
        if named * _REFERENCE_TOKENS <= room or most > total:
            break
        most *= 2
    lines: list[LedgerLine] = []
    for (first, last), each, is_talk in zip(stretches, pages, talks, strict=True):
        if first in texts or is_talk:
            references = () if is_talk else _name(material, each)
            lines.append(LedgerLine(blocks[first].first, blocks[last].last, references, texts.get(first, "")))
        else:
            lines += [LedgerLine(p.first, p.last, _name(material, [p]), _count_turns(material, [p])) for p in each]
    return lines


def _name_ranges(material: _Material, lines: Iterable[LedgerLine]) -> Iterator[LedgerLine]:
    """Yield the lines, and of what was only said a reference for each page: it stands on the page's first line.

    A line without words is left out if another one can have its reference.
    """
    steps = material.index.steps
    talk: list[LedgerLine] = []
    for line in lines:
        is_talk = not any(steps[i].has_calls for i in range(line.first, line.last + 1))
        if talk and not (is_talk and _are_on_one_page(steps, talk[0].first, line.last)):
            yield from _name_range(material, talk)
            talk = []
        if is_talk:
            talk.append(line)
        elif not line.is_bare or line.references:
            yield line
    yield from _name_range(material, talk) if talk else ()


def _are_on_one_page(steps: Sequence[AgentStep], first: int, last: int) -> bool:
    """Return whether these steps, both included, made no calls and are together on one page."""
    run = steps[first : last + 1]
    return not any(step.has_calls for step in run) and sum(step.characters for step in run) <= PAGE


def _name_range(material: _Material, talk: Sequence[LedgerLine]) -> Iterator[LedgerLine]:
    """Yield the lines of a page on which nothing was done."""
    steps, (first, last) = material.index.steps, (talk[0].first, talk[-1].last)
    named = _name(material, cut_pages(steps, first, last))
    told = [line for line in talk if not line.is_bare]
    counted = _count_turns(material, [line for line in talk if not (told and line is told[0] and line.text)])
    head = told[0] if told else LedgerLine(first, last, (), counted)
    note = f"· {first + 1}-{last + 1}" if named and (first, last) != (head.first, head.last) else ""
    if told and counted and (named or len(told) < len(talk)):
        note = f"· {first + 1}-{last + 1} with {counted}"
    head = replace(head, references=named, range=note)
    if named or not head.is_bare:
        yield head
    yield from told[1:]


def _count_turns(material: _Material, pages: Iterable[Page | LedgerLine]) -> str:
    """Say how many removed turns of the user are on these pages, none of which is quoted."""
    places = (i for page in pages for i in range(page.first, page.last + 1))
    turns = sum(material.index.steps[i].kind == "user" for i in places if i in material.gone)
    return "" if not turns else f"{turns} messages of the user" if turns > 1 else "a message of the user"


def _list_stretches(blocks: Sequence[StepRun], texts: Mapping[int, str]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last number of blocks that share lines: a told one, or untold neighbours.

    Where nothing was done in these, each has its own line: `_name_ranges` joins it with what is told beside it.
    """
    first = 0
    for n in range(1, len(blocks) + 1):
        if n == len(blocks) or n in texts or n - 1 in texts or blocks[n].first != blocks[n - 1].last + 1:
            is_talk = all(block.is_talk for block in blocks[first:n])
            yield from ((each, each) for each in range(first, n)) if is_talk else ((first, n - 1),)
            first = n


def _name(material: _Material, pages: Sequence[Page]) -> tuple[Reference, ...]:
    """Return references to pages; of a long original only the first `_MOST_PAGES` are named.

    A model that has no way to read them is shown none.
    """
    if not material.request.has_tool:
        return ()
    return tuple(
        [
            Reference(material.request.name(page.start, page.stop, page.offset), page.start, page.stop, page.offset)
            for page in pages[:_MOST_PAGES]
        ]
    )


def _choose_words(
    material: _Material, lines: Sequence[LedgerLine], room: float
) -> tuple[dict[int, list[str]], dict[int, list[str]]]:
    """Choose identifiers within `room` tokens, by the number of their line, and by message for pruned outputs."""
    line_of = {i: n for n, line in enumerate(lines) for i in range(line.first, line.last + 1)}
    said = {word for line in lines for text in (line.text, *line.quotes) for word in list_identifiers(text)}
    on_lines, on_pruned = dict[int, list[str]](), dict[int, list[str]]()
    used: dict[tuple[bool, int], float] = {}
    folds = set[tuple[bool, int, str, str]]()
    for word in material.words:
        if word in said:
            continue
        place = material.identifiers.newest[word]
        is_pruned = place in material.scope.pruned
        at = place if is_pruned else line_of[material.owner[place]]
        prefix, stem, ending = find_fold(word)
        fold = is_pruned, at, prefix, ending
        cost = estimate_tokens_of_word(stem if prefix and fold in folds else word)
        if cost > room:
            if room < 2:
                break
            continue
        taken = used.get((is_pruned, at), 0.0)
        if not material.identifiers.uses[word] and taken + cost > _MOST_WORDS:
            continue
        used[is_pruned, at] = taken + cost
        folds.add(fold)
        room -= cost
        (on_pruned if is_pruned else on_lines).setdefault(at, []).append(word)
    return on_lines, on_pruned


def _add_quotes(lines: Sequence[LedgerLine], quotes: Iterable[QuotedLine]) -> list[LedgerLine]:
    """Return the lines with quotations below the lines of their steps."""
    said: dict[int, list[str]] = {}
    for quote in quotes:
        said.setdefault(quote.step, []).append(quote.line)
    return [
        replace(line, quotes=[each for i in range(line.first, line.last + 1) for each in said.get(i, ())])
        for line in lines
    ]


def _list_groups(runs: Iterable[list[LedgerLine]]) -> Iterator[list[list[LedgerLine]]]:
    """Yield the runs of lines that share a section: one, and those before it that tell nothing."""
    group: list[list[LedgerLine]] = []
    for run in runs:
        group.append(run)
        if not all(line.is_bare for line in run):
            yield group
            group = []
    if group:
        yield group


def _render_sections(
    material: _Material, lines: Sequence[LedgerLine], rules: str, *, is_first: bool, most: int
) -> tuple[Written, ...]:
    """Render a section for each stretch of removed steps; the first one has the header, and the user's rules.

    Of more than `most` stretches neighbours share a section, which stands in the place of the last one: behind the
    messages of the user whose work it tells.
    """
    index = material.index
    if not lines and material.gone:
        first, last = min(material.gone), max(material.gone)
        lines = [LedgerLine(first, last, (), f"{len(material.gone)} steps are not told")]
    groups = list(_list_groups(_list_runs(material, lines)))
    most = min(max(1, most), len(groups))
    slices = [groups[len(groups) * n // most : len(groups) * (n + 1) // most] for n in range(most)]
    joined = [[run for group in each for run in group] for each in slices]
    # A history must not begin with the assistant: only a message of the user may stay before the first section.
    begins = index.steps[min(material.scope.staying, default=0)]
    begins_with_user = not is_first or (begins.kind == "user" and not begins.has_calls)
    has_calls = any(step.has_calls for step in index.steps)
    opening = choose_header(has_calls=has_calls, has_tool=material.request.has_tool)
    sections = [
        Written(
            render_section(
                [line for run in group for line in run],
                NEXT_HEADER if n or not is_first else opening,
                "" if n else rules,
            ),
            index.steps[group[-1 if n or begins_with_user else 0][0].first].start,
            index.steps[group[-1][-1].last].stop,
        )
        for n, group in enumerate(joined)
    ]
    if sections or not rules:
        return tuple(sections)
    start = max((each.stop for each in material.scope.carried.ledgers), default=0)
    stop = max(start, index.find_start(material.scope.tail))
    return (Written(render_section((), opening if is_first else NEXT_HEADER, rules), start, stop),)
