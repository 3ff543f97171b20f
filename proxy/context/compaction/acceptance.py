"""Checks of the summary that a model returns, and its final text.

No answer is trusted: it must have the requested form, fit its budget and be smaller than what it replaces. Then each
constraint becomes a quotation of the user or is marked as a claim, and what every summary must contain is added where
it is missing. Nothing here raises, whatever the text is; the time depends on the requested size, not on the size of
the answer.
"""

import re
from collections import Counter
from collections.abc import Sequence

from proxy.context.budget import Count, take_fitting
from proxy.context.compaction.citations import Citation, UserWords, cite_constraints, label_claims, list_citations
from proxy.context.compaction.spans import MessageRange
from proxy.context.compaction.summary_text import (
    CONSTRAINTS,
    FILES,
    GOAL,
    IN_PROGRESS,
    OTHER,
    REMAINING,
    SHORT_NAMES,
    Sections,
    SummaryFrame,
    find_references,
    list_touched_files,
    neutralize,
    parse_sections,
    render_footer,
    render_header,
    render_sections,
    render_summary,
    split_facts,
    strip_frame,
)
from proxy.context.conversation import ConversationIndex
from proxy.context.user_rules import list_rules
from proxy.model import Value
from proxy.model.epoch import SummaryLevel
from proxy.model.memory import MAX_FACTS

_MOST_CHARACTERS = 40
_SHORT = 600
_LEAST_SECTIONS = {1: 3, 2: 2}
_FOOT_TOKENS, _FOOT_SHARE = 300, 0.15
_RULES_TOKENS, _RULES_SHARE = 1500, 0.25
_FILES_TOKENS, _FILES_SHARE = 300, 0.1
_REPEATED_LINES = 20
_LONGEST_FACT = 500
_SCRIPT_LOOKED_AT = 100_000

_REFUSING = re.compile(
    r"(?i)\b(?:i\s+(?:can(?:no|['\u2019])t|cannot|won['\u2019]t|will not|must decline|am (?:not able|unable|sorry))"
    r"|i['\u2019]m (?:not able|unable|sorry)|as an ai\b|sorry)"
)
_WRAPPED = re.compile(r"\A\s*```[\w-]{0,20}[ \t]*\n(.*?)\n?```\s*\Z", re.DOTALL)
_THOUGHT = re.compile(r"\A\s*<think(?:ing)?>.*?</think(?:ing)?>", re.DOTALL)
_OTHER_SCRIPT = re.compile("[\u0370-\u1dff\u2c00-\uabff\uac00-\ud7ff\uf900-\ufaff]")


class SummaryTask(Value):
    """The parameters of a requested summary.

    It covers a span; `covered` are the tokens of the span's messages or, where summaries are condensed, of these
    summaries, whose texts are `parents`. The answer may have `most` tokens. `references` are the ids of all references
    and files of the span, the newest last. `foreign` are the places of messages in the user's role that are known to
    be by somebody else.
    """

    index: ConversationIndex
    span: MessageRange
    level: SummaryLevel
    most: int
    covered: int
    references: tuple[str, ...] = ()
    parents: tuple[str, ...] = ()
    foreign: frozenset[int] = frozenset()


class AcceptedSummary(Value, tag=True):
    """A summary in its final form, and its tokens.

    `files` are the ids of all references that it covers. `missed` names what the model left out, empty for nothing:
    a summary with omissions is better requested again. `facts` are the lines of facts that the model stated beside it.
    """

    text: str
    tokens: int
    files: tuple[str, ...]
    missed: str = ""
    facts: tuple[str, ...] = ()


class RejectedSummary(Value, tag=True):
    """The reason why an answer is not accepted as a summary."""

    reason: str


def check_summary(
    answer: str, task: SummaryTask, frame: SummaryFrame, count: Count
) -> AcceptedSummary | RejectedSummary:
    """Return the summary that an answer contains, or the reason why it is rejected."""
    text, facts = split_facts(_strip_wrapping(answer[: _MOST_CHARACTERS * task.most + 1]))
    files = _list_reference_ids(task)
    sections = parse_sections(neutralize(text, files))
    if fault := _find_fault(text, sections, task, count):
        return RejectedSummary(fault)
    parents = [parse_sections(strip_frame(parent)) for parent in task.parents]
    final, missed = _complete_sections(sections, parents, task, count)
    paths = [each.path for each in list_touched_files(task.index, task.span)]
    foot = render_footer(reversed(files), paths, min(_FOOT_TOKENS, int(_FOOT_SHARE * task.most)), count, frame.id)
    whole = render_summary(render_header(frame, task.span), render_sections(final, task.level), foot)
    tokens = count(whole)
    if tokens >= task.covered:
        return RejectedSummary("no smaller than what it stands for")
    stated = facts if task.level == 1 and not task.parents else ()
    shortened = (neutralize(line[:_LONGEST_FACT]) for line in stated[:MAX_FACTS])
    return AcceptedSummary(whole, tokens, files, missed, tuple(shortened))


def _strip_wrapping(text: str) -> str:
    """Return the text without a code fence around it and without a `<think>` block before it."""
    said = _THOUGHT.sub("", text, count=1)
    wrapped = _WRAPPED.match(said)
    return (wrapped[1] if wrapped else said).strip()


def _list_reference_ids(task: SummaryTask) -> tuple[str, ...]:
    """Return the ids of all references that the parents name, then of those of the span."""
    named = [id for parent in task.parents for id in find_references(parent)]
    return tuple(dict.fromkeys((*named, *task.references)))


def _find_fault(text: str, sections: Sections, task: SummaryTask, count: Count) -> str:
    """Return the reason why a text is not an acceptable summary, or empty if it is."""
    if not text:
        return "empty"
    if len(text) >= _MOST_CHARACTERS * task.most:
        return "above its budget"
    if not sections:
        return "a refusal" if len(text) < _SHORT and _REFUSING.search(text) else "no section that was asked for"
    # A long text without headings still says much: it is accepted, and named in `missed`.
    if len(text) < _SHORT and _lacks_headings(sections, task):
        return "not in the form that was asked for"
    if _is_repetitive(text):
        return "says the same again and again"
    if _is_in_another_script(text, task):
        return "in another script than the conversation"
    tokens = count(text)
    if tokens > task.most:
        return "above its budget"
    return "no smaller than what it stands for" if tokens >= task.covered else ""


def _lacks_headings(sections: Sections, task: SummaryTask) -> bool:
    """Return whether a text has fewer than 3 of the requested headings, or fewer than 2 on level 2."""
    known = sections.keys() & SHORT_NAMES.keys() if task.level == 2 else sections.keys()
    return len(known) < _LEAST_SECTIONS[task.level]


def _is_repetitive(text: str) -> bool:
    """Return whether its three most frequent lines make up more than half of a text of at least 20 lines."""
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    return len(lines) >= _REPEATED_LINES and sum(n for _, n in Counter(lines).most_common(3)) > len(lines) / 2


def _is_in_another_script(text: str, task: SummaryTask) -> bool:
    """Return whether most letters of a text belong to other scripts, none of which the summarized material contains."""
    if 2 * len(_OTHER_SCRIPT.findall(text)) <= sum(map(str.isalpha, text)):
        return False
    said, left = 0, _SCRIPT_LOOKED_AT
    sources = [*task.parents, *(seen.message.text for seen in task.index.messages[: task.span.stop])]
    for each in sources:
        said += len(_OTHER_SCRIPT.findall(each[: max(left, 0)]))
        left -= len(each)
    return said == 0


def _complete_sections(
    sections: Sections, parents: Sequence[Sections], task: SummaryTask, count: Count
) -> tuple[dict[str, list[str]], str]:
    """Return the sections in their final form, and a list, as text, of what was missing in them."""
    users = UserWords(task.index, task.span.stop, task.foreign)
    cited, claims = cite_constraints(sections.get(CONSTRAINTS, ()), users)
    final = {name: label_claims(lines, users) for name, lines in sections.items() if name != CONSTRAINTS}
    missed = _keep_open_tasks(final, parents)
    inherited = [line for parent in parents for line in list_citations(parent.get(CONSTRAINTS, ()))]
    final[CONSTRAINTS] = list(dict.fromkeys((*_keep_rules(cited, inherited, task, count), *cited)))
    final[OTHER] = [*final.get(OTHER, ()), *claims]
    final[FILES] = [*final.get(FILES, ()), *_add_files(final.get(FILES, ()), task, count)]
    if GOAL not in final:
        missed.append("its goal")
    if _lacks_headings(sections, task):
        missed.append("most of its headings")
    return final, ", ".join(missed)


def _keep_open_tasks(final: dict[str, list[str]], parents: Sequence[Sections]) -> list[str]:
    """Add the open tasks of the newest parent to sections that have none; return the name of what was missing."""
    newest = parents[-1] if parents else {}
    open_tasks = [*newest.get(IN_PROGRESS, ()), *newest.get(REMAINING, ())]
    if not open_tasks or final.get(IN_PROGRESS) or final.get(REMAINING):
        return []
    final[REMAINING] = open_tasks
    return ["open tasks"]


def _keep_rules(cited: Sequence[str], inherited: Sequence[str], task: SummaryTask, count: Count) -> list[str]:
    """Return the user's rules in a span, or in its parents, that are not cited yet: the newest that fit, in order."""
    rules = [
        Citation(rule.place, rule.text).line
        for rule in list_rules(task.index, range(task.span.start, task.span.stop))
        if rule.place not in task.foreign
    ]
    said = "\n".join(cited)
    newest = reversed(list(dict.fromkeys((*inherited, *rules))))
    missing = (line for line in newest if line.partition('"')[2].rstrip('"') not in said)
    return take_fitting(missing, min(_RULES_TOKENS, _RULES_SHARE * task.most), lambda line: count(line) + 1)[::-1]


def _add_files(lines: Sequence[str], task: SummaryTask, count: Count) -> list[str]:
    """Return lines for the files of a span that a summary leaves out, the newest that fit."""
    said = "\n".join(lines)
    missing = (each.line for each in list_touched_files(task.index, task.span) if each.path not in said)
    return take_fitting(missing, min(_FILES_TOKENS, _FILES_SHARE * task.most), lambda line: count(line) + 1)
