"""The strategy `turns`: the turn under way, and little of what was before it. It needs no model.

A turn begins with a prompt: words of the user. Each new prompt opens an epoch, so that the context never grows beyond
one turn. Before the turn stand the user's words of the turns before it (`TurnsPolicy.user_turns`), and the newest
complete tool loop: the assistant's calls with all their results. Only at the high mark the oldest loops of the turn
leave, too. What is not sent is found by searching the log, so it has no references: these would grow with the session.
"""

from collections.abc import Iterator, Sequence

from proxy.context.budget import MESSAGE_FRAME, Count
from proxy.context.conversation import (
    ConversationIndex,
    CountedMessage,
    PlanRequest,
    TurnsPolicy,
    add_paired,
    list_groups,
)
from proxy.context.ledger import render_note
from proxy.context.ledger_builder import Ledger
from proxy.context.plan_draft import PlanDraft, list_edits
from proxy.model import Value
from proxy.model.epoch import ContextPlan, Written


def find_prompt(messages: Sequence[CountedMessage]) -> int | None:
    """Return the place where the newest prompt begins; None: there is none. Adjacent words of the user are one."""
    start = None
    for group in reversed(list_groups(messages)):
        if group.kind == "user":
            start = group.start
        elif start is not None:
            break
    return start


class _KeptSteps(Value):
    """The steps that are sent: all from `tail` on, and `earlier` ones."""

    tail: int
    earlier: frozenset[int]

    def count(self, index: ConversationIndex) -> int:
        """Count their tokens."""
        return sum(step.tokens for i, step in enumerate(index.steps) if i >= self.tail or i in self.earlier)


def plan_turns(request: PlanRequest, index: ConversationIndex, policy: TurnsPolicy, count: Count) -> ContextPlan | None:
    """Return the plan of an epoch, or None without any prompt, or if what has to stay is above the high mark."""
    if not index.users:
        return None
    prompt = _find_prompt_steps(index)
    words = index.fixed | _list_earlier_words(index, prompt.start, policy.user_turns - 1)
    least = _keep(index, max(prompt.stop, index.fresh), words | {*prompt}).count(index)
    kept = _keep(index, prompt.start, words | _find_loop(index, prompt.start, policy.scan_messages))
    if request.head + kept.count(index) > request.budget.high:
        kept = _keep(index, prompt.start, words)
        over = request.head + kept.count(index) - request.budget.compute_low_mark(request.head + least)
        kept = _leave_loops(index, kept, prompt, over)
    notes = tuple(_write_notes(request, index, kept, prompt))
    tokens = kept.count(index) + sum(count(note.text) + MESSAGE_FRAME for note in notes)
    if request.head + tokens > request.budget.high:
        return None
    edits = list_edits(index, PlanDraft(kept.tail, kept.earlier, Ledger(notes), {}), kept.tail)
    return ContextPlan(index.find_start(kept.tail), tuple(edits), (), tokens, least)


def _find_prompt_steps(index: ConversationIndex) -> range:
    """Return the steps of the newest prompt."""
    start = stop = index.users[-1]
    while start and index.steps[start - 1].kind == "user":
        start -= 1
    return range(start, stop + 1)


def _list_earlier_words(index: ConversationIndex, start: int, turns: int) -> frozenset[int]:
    """Return the user's steps of the newest turns before a step."""
    earlier = [i for i in index.users if i < start]
    numbers = sorted({index.steps[i].turn for i in earlier})
    newest = set(numbers[max(0, len(numbers) - turns) :])
    return frozenset(i for i in earlier if index.steps[i].turn in newest)


def _find_loop(index: ConversationIndex, start: int, scan: int) -> frozenset[int]:
    """Return the newest step before another one that has calls with all their results, none if it is too far back."""
    first = len(index.messages) - scan
    for i in range(start - 1, -1, -1):
        if index.steps[i].start < first:
            break
        structures = [index.messages[place].structure for place in index.steps[i].places]
        called = {id for each in structures for id in each.calls}
        if called and called == {id for each in structures for id in each.results}:
            return frozenset([i])
    return frozenset()


def _keep(index: ConversationIndex, tail: int, steps: frozenset[int]) -> _KeptSteps:
    return _KeptSteps(tail, add_paired(index, tail, frozenset(i for i in steps if i < tail)))


def _leave_loops(index: ConversationIndex, kept: _KeptSteps, prompt: range, over: float) -> _KeptSteps:
    """Return what stays when the oldest loops of the turn leave, until there are `over` tokens less.

    The prompt stays, and what no model has answered.
    """
    stop = prompt.stop
    while over > 0 and stop < index.fresh:
        over -= 0 if stop in index.fixed else index.steps[stop].tokens
        stop += 1
    return kept if stop == prompt.stop else _keep(index, stop, kept.earlier | {*prompt} | index.fixed)


def _write_notes(request: PlanRequest, index: ConversationIndex, kept: _KeptSteps, prompt: range) -> Iterator[Written]:
    """Yield a note where a message of the assistant would be the first, and where loops of the turn are left out."""
    first = index.steps[min(kept.earlier, default=kept.tail)].start
    if first and index.messages[first].structure.role != "user":
        yield Written(render_note(first, has_tool=request.has_tool), 0, first)
    start, stop = index.find_start(prompt.stop), index.find_start(kept.tail)
    if stop > start:
        yield Written(render_note(stop - start, has_tool=request.has_tool), start, stop)
