"""A conversation seen as steps and turns of its user: what may go, what has to stay, what each step says.

Rule: a step is a group (`context/turns`), never less. What follows an action of the agent, begins as a machine's words
do and as its like did before is what a machine put out, though it has the user's role (BEHAVIOUR B13). Where that is in
doubt it is the user's word: an agent that has calls acts by them, and clients that wrap every prompt wrap the first.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from proxy.context.findings import Findings, Study
from proxy.context.policy import BuilderPolicy
from proxy.context.turns import Group, split_groups
from proxy.context.view import Seen, View

Kind = Literal["user", "system", "step"]

_DIGITS = re.compile(r"\d+")
_MARKUP = re.compile(r"[<>\[\]{}#=|]")
# How agents that have no calls write an action: a block of code, an element, an object, a line that says so.
_ACTION = re.compile(
    r"```|<[A-Za-z_][^<>\n]*>|\{\s*\"|^\W*(?:action|command|tool)\b[^\n]*:", re.IGNORECASE | re.MULTILINE
)
# How what a machine put out begins: people begin their prompts alike, too ("Ticket 12:", "## Task 5"), but not so.
_OF_MACHINE = re.compile(
    r"\W*(?:(?:the|tool|command|execut(?:e|ion)|bash|shell|python|ipython|function|code|action|system)[ _-]){0,2}"
    r"(?:observations?|outputs?|results?|returns?[ _-]?code|exit(?:ed)?|stdout|stderr|tools?|execution|command)"
    r"(?![a-z])",
    re.IGNORECASE,
)
_HEAD = 40
_ALIKE = 3


class AgentStep(msgspec.Struct, frozen=True, gc=False):
    """The messages from `start` up to `stop`, and how much they hold; `turn` counts the user's turns so far."""

    start: int
    stop: int
    kind: Kind
    has_calls: bool
    tokens: int
    characters: int
    turn: int


class Survey(msgspec.Struct, frozen=True, gc=False):
    """A conversation. `fresh` is the step where what no model has seen yet begins.

    `users` are the user's steps in order, `newest` those of the newest turns. `fixed` are steps that must stay, `bound`
    the places of messages in them that must stay as they are.
    """

    messages: Sequence[Seen]
    found: Sequence[Findings]
    steps: Sequence[AgentStep]
    fresh: int
    users: tuple[int, ...]
    newest: frozenset[int]
    fixed: frozenset[int]
    bound: frozenset[int]


def survey(view: View, policy: BuilderPolicy, study: Study) -> Survey:
    """What a view holds."""
    messages = view.messages
    found = [study(seen.told) for seen in messages]
    groups = split_groups([seen.shape for seen in messages])
    echoes = _find_echoes(messages, groups)
    steps = list(_list_steps(messages, found, groups, echoes))
    users = tuple(i for i, step in enumerate(steps) if step.kind == "user")
    turns = sorted({steps[i].turn for i in users})[-policy.protect_turns :] if policy.protect_turns else []
    newest = frozenset({*(i for i in users if steps[i].turn in turns), *users[-1:]})
    bound = view.pinned | view.unkept | frozenset(_find_protected(messages, policy.protected_tools))
    fixed = frozenset(
        i
        for i, step in enumerate(steps)
        if step.kind == "system" or any(place in bound for place in range(step.start, step.stop))
    )
    return Survey(messages, found, steps, find_fresh(messages, steps), users, newest, fixed, bound)


def find_tail(seen: Survey, groups: int) -> int:
    """The step from which on everything stays: so many groups with calls, and whatever is fresh."""
    calling = [i for i, step in enumerate(seen.steps) if step.has_calls]
    return min(seen.fresh, *calling[-groups:]) if groups and calling else seen.fresh


def _list_steps(
    messages: Sequence[Seen], found: Sequence[Findings], groups: Sequence[Group], echoes: frozenset[int]
) -> Iterator[AgentStep]:
    turn, before = 0, ""
    for group in groups:
        kind = _name_kind(messages, group, echoes)
        turn += kind == "user" and before != "user"
        before = kind
        tokens = sum(seen.tokens for seen in messages[group.start : group.stop])
        characters = sum(each.characters for each in found[group.start : group.stop])
        yield AgentStep(group.start, group.stop, kind, group.has_calls, tokens, characters, turn)


def _name_kind(messages: Sequence[Seen], group: Group, echoes: frozenset[int]) -> Kind:
    """What a group is: the strictest of what its messages are."""
    roles = {messages[place].shape.role for place in range(group.start, group.stop) if place not in echoes}
    return "system" if "system" in roles else "user" if "user" in roles else "step"


def _find_echoes(messages: Sequence[Seen], groups: Sequence[Group]) -> frozenset[int]:
    """Places of the user's messages that a machine wrote: several with like heads, each behind an action."""
    if any(seen.told.calls or seen.told.answers for seen in messages):
        return frozenset()
    users = [group.start for group in groups if messages[group.start].shape.role == "user"]
    heads = {place: head for place in users if (head := _head(messages[place].told.text))}
    wrapped = heads.get(users[0]) if users else None
    echoing = [place for place, head in heads.items() if head != wrapped and _is_action(messages[place - 1])]
    alike = Counter(heads[place] for place in echoing)
    return frozenset(place for place in echoing if alike[heads[place]] >= _ALIKE)


def _is_action(seen: Seen) -> bool:
    return seen.shape.role == "assistant" and _ACTION.search(seen.told.text) is not None


def _head(text: str) -> str:
    """How a text begins, without its numbers; empty where it begins as people write."""
    line = text.split("\n", 1)[0].rstrip()
    if not _OF_MACHINE.match(line):
        return ""
    is_label = line.endswith(":") and len(line) <= _HEAD
    return _DIGITS.sub("0", line[:_HEAD]) if is_label or _MARKUP.search(line[:_HEAD]) else ""


def _find_protected(messages: Sequence[Seen], tools: Sequence[str]) -> Iterator[int]:
    """Places of outputs of tools whose outputs stay."""
    answered: set[str] = set()
    for place, seen in enumerate(messages):
        answered.update(call.id for call in seen.told.calls if call.name in tools)
        if not answered.isdisjoint(seen.told.answers):
            yield place


def find_fresh(messages: Sequence[Seen], steps: Sequence[AgentStep], sent: int | None = None) -> int:
    """The step that holds the first message behind the assistant's last, or the call that message answers.

    Before that, where it is known how many messages were `sent`, that of users and tools which was not: a client may
    bring several steps at once.
    """
    start = max((i + 1 for i, seen in enumerate(messages) if seen.shape.role == "assistant"), default=0)
    if sent is not None:
        start = next((i for i in range(sent, start) if messages[i].shape.role != "assistant"), start)
    return next((i for i, step in enumerate(steps) if step.stop > start), len(steps))
