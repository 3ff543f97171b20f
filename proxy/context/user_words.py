"""Older words of the user: which stay, and how those that repeat themselves are said once (BEHAVIOUR B13).

Rule: nothing the user wrote is lost as long as it fits: what is left out of an older message stands word for word in a
newer one that stays, or is a large block that was pasted and has a reference; the message says so.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

import msgspec

from proxy.context.eviction import name_parts
from proxy.context.original import write_message
from proxy.context.pasted import find_pasted
from proxy.context.survey import Survey
from proxy.context.view import View
from proxy.model.plan import Reference, Replaced, Written
from proxy.model.told import Told

_LEAST_REPEATED = 400
# Tokens of a block from which on it may give way; no block has fewer characters than tokens.
_MOST_PASTED = 2000
# The part of their room that words have when some had to go: of 0.4, 0.35, 0.3 and 0.25 the cheapest where the user
# says much, and no dearer elsewhere.
_CUT = 0.25
_FRAME = 4


class Shown(msgspec.Struct, frozen=True, gc=False):
    """How older words of the user stay: as they are, or with what repeats itself left out."""

    step: int
    tokens: int
    edits: tuple[Replaced, ...] = ()
    references: tuple[Reference, ...] = ()


class Older(msgspec.Struct, frozen=True, gc=False):
    """What stays of older words. `spare`: tokens of their room that nobody has, where some had to go."""

    shown: tuple[Shown, ...] = ()
    spare: float = 0.0


def show_older(view: View, survey: Survey, least: int, room: float, count: Callable[[str], int]) -> Older:
    """Older words of the user that stay: all while they fit together, else the first and the newest.

    What has gone does not come back before all fit, and when more must go it is much at once: each that goes stood near
    the beginning, where it breaks the provider's cache for all behind it.
    """
    older = [i for i in survey.users if i < least and i not in survey.newest and i not in survey.fixed]
    newest = [survey.messages[survey.steps[i].start].told.text for i in sorted(survey.newest)]
    gone = {i for i in older if _has_gone(view, survey, i)}
    shown = tuple([_show(view, survey, i, newest, count) for i in older if i not in gone])
    together = sum(each.tokens for each in shown)
    if gone and together + sum(survey.steps[i].tokens for i in gone) <= room:
        return Older(tuple([_show(view, survey, i, newest, count) for i in older]))
    if together > room:
        shown = _let_go(shown, room)
    if len(shown) == len(older):
        return Older(shown)
    return Older(shown, room - sum(each.tokens for each in shown))


def _has_gone(view: View, survey: Survey, i: int) -> bool:
    """Whether the plan in force has left out these words."""
    start = survey.steps[i].start
    if view.frozen is None or start >= view.frozen.through:
        return False
    return not any(edit.place == start for edit in view.frozen.edits if not isinstance(edit, Written))


def _let_go(shown: Sequence[Shown], room: float) -> tuple[Shown, ...]:
    """The first if it fits, and the newest beside it in a part of the room."""
    first, *others = shown
    if first.tokens > room:
        return ()
    newest = others[::-1]
    sums = accumulate((each.tokens for each in newest), initial=first.tokens)
    next(sums)
    return (first, *[each for each, tokens in zip(newest, sums, strict=True) if tokens <= _CUT * room])


def _show(view: View, survey: Survey, i: int, newest: Sequence[str], count: Callable[[str], int]) -> Shown:
    step = survey.steps[i]
    told = survey.messages[step.start].told
    if step.stop - step.start > 1 or told.media:
        return Shown(i, step.tokens)
    text, parts = _leave_out_pasted(view, step.start, told, count)
    text = leave_out_repeated(text, newest)
    if text == told.text:
        return Shown(i, step.tokens)
    reference = Reference(view.name(step.start, step.stop, 0), step.start, step.stop)
    text = f"{text}\n[shortened by palimpsest, not by the user; the original is intact: ref:{reference.id}]"
    tokens = count(text) + _FRAME
    if tokens >= step.tokens:
        return Shown(i, step.tokens)
    return Shown(i, tokens, (Replaced(step.start, text, "shortened"),), (reference, *parts))


def _leave_out_pasted(view: View, place: int, told: Told, count: Callable[[str], int]) -> tuple[str, list[Reference]]:
    """The text without its large blocks, and the references of these."""
    texts: list[str] = []
    references: list[Reference] = []
    at = 0
    for start, stop in find_pasted(told.text, _MOST_PASTED):
        block = told.text[start:stop]
        if (tokens := count(block)) <= _MOST_PASTED:
            continue
        head = write_message(told).index(told.text)
        parts = name_parts(view, place, head + start, head + stop)
        named = " ".join(f"ref:{each.id}" for each in parts)
        lines = block.count("\n") + 1
        texts += [
            told.text[at:start],
            f"[… {lines:,} lines that the user pasted, {tokens:,} tokens, left out: {named} …]",
        ]
        references += parts
        at = stop
    return "".join((*texts, told.text[at:])), references


def leave_out_repeated(text: str, newer: Sequence[str]) -> str:
    """A text without the long passages, of whole lines, that stand in one of the newer texts too."""
    for each in newer:
        text = "\n".join(_join_unlike(text.split("\n"), each))
    return text


def _join_unlike(lines: Sequence[str], newer: str) -> Iterator[str]:
    known = set(newer.split("\n"))
    bounded = f"\n{newer}\n"
    run: list[str] = []
    for line in lines:
        if line in known and f"\n{_join([*run, line])}\n" in bounded:
            run.append(line)
            continue
        yield from _close(run)
        run = [line] if line in known else []
        if not run:
            yield line
    yield from _close(run)


def _join(lines: Sequence[str]) -> str:
    return "\n".join(lines)


def _close(run: Sequence[str]) -> Iterator[str]:
    size = sum(map(len, run))
    if size < _LEAST_REPEATED:
        yield from run
    else:
        yield f"[… {len(run)} lines left out: they stand word for word in a newer message of the user …]"
