"""A conversation as steps and user turns: what may be removed, and what has to stay.

A call goes with all its results, with the calls made beside it and with the reasoning that led to them; such groups
stay or go whole.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import msgspec

from proxy.context.budget import Budget
from proxy.context.message_features import FeatureExtractor, MessageFeatures
from proxy.model.epoch import ContextPlan
from proxy.model.messages import Message, MessageStructure, list_run_starts

# So many of the newest groups of calls and results stay real where they fit (BEHAVIOUR B14).
REAL_GROUPS = 3


@dataclass(frozen=True, slots=True)
class BuilderPolicy:
    """Which messages stay, and which are shown by an outline.

    `protect_turns`: so many of the user's newest turns stay word for word. Where `is_pruning`, outputs that
    would stay but were asked for again, repeated, or errors that were mended, are replaced by a marker, unless they are
    among the newest `protect_tokens` of outputs or of one of the `protected_tools`, and if at least `minimum_tokens`
    go; both scale down with a small budget. Outputs above
    `inline_tokens` are shown whole once, then as a block, with their structure where `has_outlines`.
    """

    protect_turns: int = 2
    is_pruning: bool = True
    protect_tokens: int = 40_000
    minimum_tokens: int = 20_000
    protected_tools: tuple[str, ...] = ("skill",)
    inline_tokens: int = 10_000
    has_outlines: bool = True


class CountedMessage(msgspec.Struct, frozen=True, gc=False):
    """A message: what it says, how it hangs together with its neighbours, and how many tokens it has."""

    message: Message
    structure: MessageStructure
    tokens: int


class LiveSummary(msgspec.Struct, frozen=True, gc=False):
    """A summary that holds for this conversation: of its messages from `start` up to `stop`, in so many tokens."""

    id: str
    text: str
    start: int
    stop: int
    tokens: int


class PlanRequest(msgspec.Struct, frozen=True, gc=False):
    """The whole conversation as the client holds it, behind its preamble.

    `head` are the tokens of what goes before (system messages, tools). `name` gives the id of a reference to the
    messages from one place up to another, from a character of their text on; equal arguments have equal ids. `pinned`
    are places that must stay, as must those of messages that the log has not whole, the `unkept`, even in the least
    that can be sent. `frozen` is the plan of the epoch that holds now, None where there is none. `reports` are the
    summaries that hold, oldest first, none over another. `goal`, where there is one, is the budget that what is
    told of old steps, and how many of them stay, is measured by; all else is measured by `budget`. `sent` is how
    many of the messages went out before, None where that tells nothing of what a model has seen. `depth` counts pairs
    of epochs in a row that left too little room: the more, the more a plan has to free. `must_fit`: more than the
    budget has room for would be refused.
    """

    messages: Sequence[CountedMessage]
    head: int
    budget: Budget
    name: Callable[[int, int, int], str]
    pinned: frozenset[int] = frozenset()
    frozen: ContextPlan | None = None
    reports: Sequence[LiveSummary] = ()
    goal: Budget | None = None
    sent: int | None = None
    depth: int = 0
    must_fit: bool = False
    unkept: frozenset[int] = frozenset()


class Group(msgspec.Struct, frozen=True, gc=False):
    """The messages from `start` up to `stop`, and whether there is a call among them."""

    start: int
    stop: int
    has_calls: bool


def split_groups(structures: Sequence[MessageStructure]) -> list[Group]:
    """Split a history into groups, in order and without gaps."""
    reach = _find_last_results(structures)
    kept: list[int] = []
    held = at = 0
    for start in list_run_starts(structures):
        held = max([held, *(reach.get(place, 0) for place in range(at, start))])
        at = start
        if not start or start > held:
            kept.append(start)
    return [
        Group(start, stop, any(structure.calls or structure.results for structure in structures[start:stop]))
        for start, stop in pairwise([*kept, len(structures)])
    ]


def _find_last_results(structures: Sequence[MessageStructure]) -> dict[int, int]:
    """Return the place of the last result by its call's. A result is of the newest call before it that has its id."""
    made: dict[str, int] = {}
    found: dict[int, int] = {}
    for place, structure in enumerate(structures):
        made.update(dict.fromkeys(structure.calls, place))
        found.update((made[result], place) for result in structure.results if result in made)
    return found


Kind = Literal["user", "system", "step"]

_DIGITS = re.compile(r"\d+")
_MARKUP = re.compile(r"[<>\[\]{}#=|]")
# How agents that have no calls write an action: a block of code, an element, an object, a line that says so.
_ACTION = re.compile(
    r"```|<[A-Za-z_][^<>\n]*>|\{\s*\"|^\W*(?:action|command|tool)\b[^\n]*:", re.IGNORECASE | re.MULTILINE
)
# How what a machine put out begins: people begin their prompts alike, too ("Ticket 12:", "## Task 5"), but not so.
_MACHINE_HEAD = re.compile(
    r"\W*(?:(?:the|tool|command|execut(?:e|ion)|bash|shell|python|ipython|function|code|action|system)[ _-]){0,2}"
    r"(?:observations?|outputs?|results?|returns?[ _-]?code|exit(?:ed)?|stdout|stderr|tools?|execution|command)"
    r"(?![a-z])",
    re.IGNORECASE,
)
_HEAD_LENGTH = 40
_MIN_ALIKE = 3


class AgentStep(msgspec.Struct, frozen=True, gc=False):
    """The messages from `start` up to `stop`, and how much they hold; `turn` counts the user's turns so far."""

    start: int
    stop: int
    kind: Kind
    has_calls: bool
    tokens: int
    characters: int
    turn: int


class ConversationIndex(msgspec.Struct, frozen=True, gc=False):
    """A conversation. `fresh` is the step where what no model has seen yet begins.

    `users` are the user's steps in order, `newest` those of the newest turns. `fixed` are steps that must stay, `bound`
    the places of messages in them that must stay as they are.
    """

    messages: Sequence[CountedMessage]
    found: Sequence[MessageFeatures]
    steps: Sequence[AgentStep]
    fresh: int
    users: tuple[int, ...]
    newest: frozenset[int]
    fixed: frozenset[int]
    bound: frozenset[int]


def index_conversation(view: PlanRequest, policy: BuilderPolicy, study: FeatureExtractor) -> ConversationIndex:
    """Index a conversation: its steps, the user's turns, what is fresh."""
    messages = view.messages
    found = [study(seen.message) for seen in messages]
    groups = split_groups([seen.structure for seen in messages])
    echoes = _find_machine_messages(messages, groups)
    steps = list(_list_steps(messages, found, groups, echoes))
    users = tuple(i for i, step in enumerate(steps) if step.kind == "user")
    turns = sorted({steps[i].turn for i in users})[-policy.protect_turns :] if policy.protect_turns else []
    newest = frozenset({*(i for i in users if steps[i].turn in turns), *users[-1:]})
    bound = view.pinned | view.unkept | frozenset(_list_protected_outputs(messages, policy.protected_tools))
    fixed = frozenset(
        i
        for i, step in enumerate(steps)
        if step.kind == "system" or any(place in bound for place in range(step.start, step.stop))
    )
    return ConversationIndex(messages, found, steps, find_fresh_step(messages, steps), users, newest, fixed, bound)


def find_tail_step(seen: ConversationIndex, groups: int) -> int:
    """Return the step from which on everything stays: so many groups with calls, and whatever is fresh."""
    calling = [i for i, step in enumerate(seen.steps) if step.has_calls]
    return min(seen.fresh, *calling[-groups:]) if groups and calling else seen.fresh


def _list_steps(
    messages: Sequence[CountedMessage],
    found: Sequence[MessageFeatures],
    groups: Sequence[Group],
    echoes: frozenset[int],
) -> Iterator[AgentStep]:
    turn, before = 0, ""
    for group in groups:
        kind = _choose_kind(messages, group, echoes)
        turn += kind == "user" and before != "user"
        before = kind
        tokens = sum(seen.tokens for seen in messages[group.start : group.stop])
        characters = sum(each.characters for each in found[group.start : group.stop])
        yield AgentStep(group.start, group.stop, kind, group.has_calls, tokens, characters, turn)


def _choose_kind(messages: Sequence[CountedMessage], group: Group, echoes: frozenset[int]) -> Kind:
    """Return the kind of a group: the strictest of its messages' kinds."""
    roles = {messages[place].structure.role for place in range(group.start, group.stop) if place not in echoes}
    return "system" if "system" in roles else "user" if "user" in roles else "step"


def _find_machine_messages(messages: Sequence[CountedMessage], groups: Sequence[Group]) -> frozenset[int]:
    """Places of the user's messages that a machine wrote: several with like heads, each behind an action."""
    if any(seen.message.calls or seen.message.results for seen in messages):
        return frozenset()
    users = [group.start for group in groups if messages[group.start].structure.role == "user"]
    heads = {place: head for place in users if (head := _normalize_head(messages[place].message.text))}
    wrapped = heads.get(users[0]) if users else None
    echoing = [place for place, head in heads.items() if head != wrapped and _is_action(messages[place - 1])]
    alike = Counter(heads[place] for place in echoing)
    return frozenset(place for place in echoing if alike[heads[place]] >= _MIN_ALIKE)


def _is_action(seen: CountedMessage) -> bool:
    return seen.structure.role == "assistant" and _ACTION.search(seen.message.text) is not None


def _normalize_head(text: str) -> str:
    """Return how a text begins, without its numbers; empty where it begins as people write."""
    line = text.split("\n", 1)[0].rstrip()
    if not _MACHINE_HEAD.match(line):
        return ""
    is_label = line.endswith(":") and len(line) <= _HEAD_LENGTH
    return _DIGITS.sub("0", line[:_HEAD_LENGTH]) if is_label or _MARKUP.search(line[:_HEAD_LENGTH]) else ""


def _list_protected_outputs(messages: Sequence[CountedMessage], tools: Sequence[str]) -> Iterator[int]:
    """Places of outputs of tools whose outputs stay."""
    answered: set[str] = set()
    for place, seen in enumerate(messages):
        answered.update(call.id for call in seen.message.calls if call.name in tools)
        if not answered.isdisjoint(seen.message.results):
            yield place


def find_fresh_step(messages: Sequence[CountedMessage], steps: Sequence[AgentStep], sent: int | None = None) -> int:
    """Return the step that holds the first message behind the assistant's last, or the call that message answers.

    Before that, where it is known how many messages were `sent`, that of users and tools which was not: a client may
    bring several steps at once.
    """
    start = max((i + 1 for i, seen in enumerate(messages) if seen.structure.role == "assistant"), default=0)
    if sent is not None:
        start = next((i for i in range(sent, start) if messages[i].structure.role != "assistant"), start)
    return next((i for i, step in enumerate(steps) if step.stop > start), len(steps))
