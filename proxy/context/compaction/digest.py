"""The summary of level 3, which is assembled without a model.

It never fails, whatever its material is, and never exceeds its budget: the most important lines are added first, and
those that do not fit are left out. The user's words are quoted, everything else is counted or named.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice

from proxy.context.budget import Count
from proxy.context.compaction.citations import Citation, list_citations
from proxy.context.compaction.spans import MessageRange
from proxy.context.compaction.summary_text import (
    COMPLETED,
    CONSTRAINTS,
    DISCOVERIES,
    FILES,
    GOAL,
    IN_PROGRESS,
    OTHER,
    REMAINING,
    SUMMARY_END,
    Sections,
    SummaryFrame,
    cut_to_tokens,
    find_references,
    list_touched_files,
    parse_sections,
    render_footer,
    render_header,
    render_sections,
    render_summary,
    strip_frame,
)
from proxy.context.conversation import ConversationIndex
from proxy.context.references import sanitize_text
from proxy.context.user_rules import list_rules, list_sentences, list_user_places

MAX_DIGEST_TOKENS = 512
"""Tokens of such a summary."""

_FOOT_SHARE = 0.3
_MOST_TOOLS, _MOST_FILES, _MOST_ENDS, _MOST_SENTENCES = 8, 12, 3, 8
_LONGEST_LINE = 200
_HEADING_TOKENS = 8

_Line = tuple[str, str]


def digest_messages(
    index: ConversationIndex,
    span: MessageRange,
    frame: SummaryFrame,
    references: Sequence[str],
    count: Count,
    *,
    most: int = MAX_DIGEST_TOKENS,
) -> str:
    """Summarize a span in at most `most` tokens; `references` are the ids of those of the span, the newest last."""
    candidates = chain(
        _quote_user(index, span),
        ((CONSTRAINTS, line) for line in _list_rules(index, span)),
        _count_calls(index, span),
        ((FILES, line) for line in _list_files(index, span)),
        ((COMPLETED, line) for line in _list_failures(index, span)),
    )
    return _render_fitting(frame, span, candidates, tuple(reversed(references)), count=count, most=most)


def digest_summaries(
    texts: Sequence[str],
    span: MessageRange,
    frame: SummaryFrame,
    count: Count,
    most: int = MAX_DIGEST_TOKENS,
) -> str:
    """Merge several summaries into one of at most `most` tokens."""
    reports = [parse_sections(strip_frame(text)) for text in texts]
    references = dict.fromkeys(id for text in reversed(texts) for id in find_references(text))
    return _render_fitting(frame, span, _list_merged_lines(reports), tuple(references), count=count, most=most)


def _quote_user(index: ConversationIndex, span: MessageRange) -> Iterator[_Line]:
    """Yield quotations of the first and of the newest message of the user, without pasted text."""
    places = [place for place in list_user_places(index) if span.start <= place < span.stop]
    for place in dict.fromkeys((*places[:1], *places[-1:])):
        sentences = islice(list_sentences(index.messages[place].message.text), _MOST_SENTENCES)
        if said := " ".join(sentence.said for sentence in sentences):
            yield GOAL, Citation(place, said).line


def _list_rules(index: ConversationIndex, span: MessageRange) -> list[str]:
    """Return quotations of the rules that the user stated, the newest first."""
    rules = list_rules(index, range(span.start, span.stop))
    return [Citation(rule.place, rule.text).line for rule in reversed(rules)]


def _count_calls(index: ConversationIndex, span: MessageRange) -> Iterator[_Line]:
    messages = index.messages[span.start : span.stop]
    calls = Counter(call.name for seen in messages for call in seen.message.calls)
    if calls:
        counted = ", ".join(f"{sanitize_text(name, 60)} {times}" for name, times in calls.most_common(_MOST_TOOLS))
        yield COMPLETED, f"- {sum(calls.values())} calls: {counted}"


def _list_files(index: ConversationIndex, span: MessageRange) -> list[str]:
    touched = sorted(list_touched_files(index, span), key=lambda each: not each.is_edited)
    return [each.line for each in touched[:_MOST_FILES]]


def _list_failures(index: ConversationIndex, span: MessageRange) -> list[str]:
    """Return lines for the newest outputs that ended with a failure, each kind once."""
    ends = [index.found[place].outcome for place in range(span.stop - 1, span.start - 1, -1)]
    unlike = list(dict.fromkeys(filter(None, ends)))[:_MOST_ENDS]
    return [f"- an output ended with: {sanitize_text(end, _LONGEST_LINE)}" for end in unlike]


def _list_merged_lines(reports: Sequence[Sections]) -> Iterator[_Line]:
    """Yield the lines of several summaries, the most important sections first, and within these the newest summary.

    Open tasks are taken from the newest summary only.
    """
    newest_first = reports[::-1]
    for report in [*reports[:1], *newest_first]:
        yield from ((GOAL, line) for line in report.get(GOAL, ())[:2])
    for report in newest_first:
        yield from ((CONSTRAINTS, line) for line in reversed(list_citations(report.get(CONSTRAINTS, ()))))
    for name in (IN_PROGRESS, REMAINING):
        for report in newest_first[:1]:
            yield from ((name, line) for line in report.get(name, ()))
    for name in (FILES, COMPLETED, DISCOVERIES, OTHER):
        for report in newest_first:
            yield from ((name, line) for line in report.get(name, ()))


def _render_fitting(
    frame: SummaryFrame,
    span: MessageRange,
    candidates: Iterable[_Line],
    references: Sequence[str],
    *,
    count: Count,
    most: int,
) -> str:
    """Render a summary of as many candidate lines as fit into `most` tokens."""
    head = render_header(frame, span)
    if count(render_summary(head, "", "")) > most:
        return cut_to_tokens(head, most, count)
    left = most - count(head) - count(SUMMARY_END) - 2
    foot = render_footer(references, (), int(_FOOT_SHARE * left), count, frame.id)
    left -= count(foot) + 1
    chosen: dict[str, list[str]] = {}
    for name, line in dict.fromkeys(candidates):
        cost = count(line) + 1 + (0 if name in chosen else _HEADING_TOKENS)
        if cost > left:
            continue
        left -= cost
        chosen.setdefault(name, []).append(line)
    whole = render_summary(head, render_sections(chosen, 1), foot)
    return whole if count(whole) <= most else cut_to_tokens(render_summary(head, "", ""), most, count)
