"""Selection of the messages to summarize, and of the summaries to merge.

It also decides how long a summary may be, and when it is asked for.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from proxy.context.conversation import ConversationIndex, find_tail_step
from proxy.context.verbatim import RECENT_GROUPS
from proxy.model import Value
from proxy.model.epoch import Summary, SummaryLevel

MIN_MESSAGES = 3
SPAN_SHARE = 0.75
# Finished turns are taken alone if they have this share of what could be taken: the rest might be cut unreported.
_MIN_TURNS_SHARE = 0.8


class MessageRange(Value):
    """The messages from place `start` up to `stop`, and their tokens."""

    start: int
    stop: int
    tokens: int


def compute_max_span(window: int, output: int) -> int:
    """Return the most tokens of a span for a model with this window, and a summary of `output` tokens."""
    return max(0, int(SPAN_SHARE * (window - output)))


def choose_span(index: ConversationIndex, begin: int, most: int, end: int | None = None) -> MessageRange | None:
    """Return the span that begins at place `begin` and has at most `most` tokens, or None if it would be too short.

    It has more tokens only if its first three messages do: a transcript shortens what is too large. It ends at place
    `end`, or before the messages that stay in any case.
    """
    first = _find_step_from(index, begin)
    limit = _find_span_end(index) if end is None else min(_find_span_end(index), _find_step_from(index, end))
    reach = _find_reach(index, first, limit, most)
    groups = _make_range(index, first, reach)
    ends = list(_list_turns(index, first, reach))
    turns = _make_range(index, first, ends[-1]) if ends else None
    if turns and _is_long_enough(turns) and turns.tokens >= _MIN_TURNS_SHARE * groups.tokens:
        return turns
    return groups if _is_long_enough(groups) else None


def _find_step_from(index: ConversationIndex, place: int) -> int:
    """Return the first step that begins at a place or after it."""
    return next((i for i, step in enumerate(index.steps) if step.start >= place), len(index.steps))


def _find_span_end(index: ConversationIndex) -> int:
    """Return the step at which spans end: at the newest turns, or later if these have calls before the tail."""
    tail = find_tail_step(index, RECENT_GROUPS)
    newest = _find_newest_turn(index)
    is_acting = any(step.has_calls for step in index.steps[newest:tail])
    return tail if is_acting else min(tail, newest)


def _find_newest_turn(index: ConversationIndex) -> int:
    return min(index.newest, default=len(index.steps))


def _find_reach(index: ConversationIndex, first: int, limit: int, most: int) -> int:
    """Return the step at which a span of at most `most` tokens ends, starting with step `first`."""
    tokens = messages = 0
    for i in range(first, limit):
        tokens += index.steps[i].tokens
        if tokens > most and messages >= MIN_MESSAGES:
            return i
        messages += index.steps[i].stop - index.steps[i].start
    return max(first, limit)


def _list_turns(index: ConversationIndex, first: int, reach: int) -> Iterator[int]:
    """Yield the steps at which a turn begins, up to the newest turns."""
    for i in range(first + 1, min(reach, _find_newest_turn(index)) + 1):
        if i < len(index.steps) and index.steps[i].turn > index.steps[i - 1].turn:
            yield i


def _make_range(index: ConversationIndex, first: int, stop: int) -> MessageRange:
    steps = index.steps[first:stop]
    if not steps:
        return MessageRange(0, 0, 0)
    return MessageRange(steps[0].start, steps[-1].stop, sum(step.tokens for step in steps))


def _is_long_enough(span: MessageRange) -> bool:
    return span.stop - span.start >= MIN_MESSAGES


LEAST_TARGET = 300
"""The least tokens that are asked for: fewer do not hold eight sections."""

# A summary may have a seventh of the tokens that it covers, about as much as a ledger takes for the steps that it tells
# (`ledger._NEXT_RATIO`). Both tell them: replaying eight sessions of `swe_day` at 32K with summaries that have a line
# for a step, 93 % of the running task's steps are told, and 72 % where the ledger leaves those under a summary to it,
# at about the same price. Summaries cost 2.8 points there, beside 28.8 without them: their calls 1.4, which
# `compaction.spend_fraction` bounds, the rest that they are read, and that epochs follow each other sooner.
_WORTH_SHARE = 1 / 7
# A merged summary makes room: it may have half of the tokens of those that it replaces.
_MERGED_SHARE = 0.5
# The least share of its room that a summary may have, although others fill it: merging then makes room again.
_LEAST_ROOM_SHARE = 0.25
# A span is worth a call from a tenth of the usable budget on. The call reads the whole request, at a tenth of its
# price: a shorter span would cost more to ask about than to read at full price.
_SPAN_SHARE = 0.1


# Messages that an epoch removed before they were summarised are read at full price, in a transcript beside the request.
# A span begins with them where they are a fifth of it at most, or too few for a summary of their own: so the summaries
# follow each other without a gap, and can be merged.
_MOST_HIDDEN_SHARE = 0.2


def may_be_hidden(hidden: int, tokens: int) -> bool:
    """Return whether a span of `tokens` may begin with `hidden` tokens of messages that the request does not show."""
    return hidden < tokens and hidden <= max(_MOST_HIDDEN_SHARE * tokens, LEAST_TARGET / _WORTH_SHARE)


def compute_room(total: int, shown: int) -> float:
    """Return the tokens that one summary may have: what the `shown` tokens of others leave of the room of all."""
    return max(_LEAST_ROOM_SHARE * total, total - shown)


def compute_target(covered: int, room: float, level: int, most: int, *, is_merged: bool = False) -> int:
    """Return the tokens to ask for, at most `most`, for a summary of `covered` tokens of messages or of summaries.

    The short form of level 2 gets half.
    """
    worth = covered * (_MERGED_SHARE if is_merged else _WORTH_SHARE)
    wanted = max(LEAST_TARGET, int(min(worth, room) / level))
    return max(1, min(wanted, most, covered - 1))


def compute_least_span(usable: int) -> int:
    """Return the tokens from which on a span is worth a call."""
    return int(max(LEAST_TARGET / _WORTH_SHARE, _SPAN_SHARE * usable))


# An epoch below the high mark waits for a running summary, so that this is begun at most so many calls ahead: the later
# it is asked for, the more of what the epoch takes it covers. At the high mark no epoch waits for long: twice the time
# of a summary has to be left.
_LEAD_CALLS = 2
_LEAD_TIMES = 2


def should_start_summary(calls: float, seconds: float, takes: float) -> bool:
    """Return whether to start a summary that takes `takes` seconds.

    It is `calls` before the epoch that takes its span, and `seconds` before the high mark.
    """
    return calls <= _LEAD_CALLS or seconds < _LEAD_TIMES * takes


WITHOUT_MODEL: SummaryLevel = 3


def list_live_summaries(summaries: Sequence[Summary]) -> list[Summary]:
    """Return the summaries that are not replaced, in the order of their spans.

    `summaries` are all that apply to a path, oldest first. Of overlapping ones the widest stays, else the newest.
    """
    replaced = {id for each in summaries for id in (*each.supersedes, *each.parents)}
    standing = [(i, each) for i, each in enumerate(summaries) if each.id not in replaced]
    by_width = sorted(standing, key=lambda found: (found[1].start - found[1].stop, -found[0]))
    live: list[Summary] = []
    for _, each in by_width:
        if all(each.stop <= other.start or other.stop <= each.start for other in live):
            live.append(each)
    return sorted(live, key=lambda each: each.start)


def is_worth_sending(summary: Summary) -> bool:
    """Return whether a summary says more than a ledger: whether a model wrote it, or it merges others."""
    return summary.level < WITHOUT_MODEL or bool(summary.parents)


def compute_ranks(summaries: Iterable[Summary]) -> dict[str, int]:
    """Return the number of levels of condensation below each summary, 0 for leaves. Parents come before children."""
    ranks: dict[str, int] = {}
    for each in summaries:
        ranks[each.id] = 1 + max((ranks.get(id, 0) for id in each.parents), default=-1)
    return ranks


FAN_IN = 4
_EXTRA_DEPTH = 2


class MergeCandidate(Value):
    """A live summary with its span, tokens, rank (0 for a leaf) and the number of leaves that it is made of."""

    id: str
    start: int
    stop: int
    tokens: int
    rank: int
    leaves: int


def list_merge_candidates(live: Sequence[Summary], known: Mapping[str, Summary]) -> list[MergeCandidate]:
    """Return the live summaries as candidates. `known` are all summaries of the session by id, oldest first."""
    ranks = compute_ranks(known.values())
    return [
        MergeCandidate(each.id, each.start, each.stop, each.tokens, ranks[each.id], _count_leaves(each, known))
        for each in live
    ]


def _count_leaves(summary: Summary, known: Mapping[str, Summary]) -> int:
    """Return the number of leaves that a summary is made of. One whose parents are unknown counts as a leaf."""
    parents = [known[id] for id in summary.parents if id in known]
    return sum(_count_leaves(parent, known) for parent in parents) or 1


def choose_merge(nodes: Sequence[MergeCandidate], room: int) -> Sequence[MergeCandidate]:
    """Return the adjacent summaries to merge next so that all fit into `room` tokens; empty if none need to, or can."""
    if sum(node.tokens for node in nodes) <= room:
        return ()
    equals = [run for run in _list_runs(nodes, FAN_IN) if len({node.rank for node in run}) == 1]
    if equals:
        return min(equals, key=lambda run: (run[0].rank, run[0].start))
    allowed = [run for size in range(FAN_IN, 1, -1) for run in _list_runs(nodes, size) if _is_shallow(run)]
    return min(allowed, key=lambda run: (_compute_rank(run), run[0].start), default=())


def _list_runs(nodes: Sequence[MergeCandidate], size: int) -> Iterator[Sequence[MergeCandidate]]:
    """Yield all runs of `size` adjacent summaries without a gap."""
    for i in range(len(nodes) - size + 1):
        run = nodes[i : i + size]
        if all(run[k].stop == run[k + 1].start for k in range(size - 1)):
            yield run


def _compute_rank(run: Sequence[MergeCandidate]) -> int:
    return 1 + max(node.rank for node in run)


def _is_shallow(run: Sequence[MergeCandidate]) -> bool:
    """Return whether the rank of the merged summary is at most log4 of its leaves, plus two."""
    least: int = FAN_IN ** max(0, _compute_rank(run) - _EXTRA_DEPTH)
    return least <= sum(node.leaves for node in run)


def is_merge_smaller(run: Sequence[MergeCandidate], tokens: int) -> bool:
    """Return whether a summary of `tokens` is smaller than the run that it would replace."""
    return tokens < sum(node.tokens for node in run)
