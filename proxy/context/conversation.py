"""The index of a conversation that plans are built from: messages with features, steps, and what must stay."""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Literal

from msgspec.structs import replace

from proxy.context.budget import Budget, take_fitting
from proxy.context.message_features import (
    FeatureExtractor,
    MessageFeatures,
    find_closed_item,
    find_created_item,
    list_open_items,
)
from proxy.context.verbatim import (
    RECENT_TURNS,
    ClientMessages,
    Group,
    find_client_messages,
    find_late,
    find_newest_user,
    find_turn_start,
    find_unanswered,
    find_verbatim,
    split_groups,
)
from proxy.model import Value
from proxy.model.epoch import ContextPlan, Epoch, Strategy
from proxy.model.messages import MOST_BESIDE, Message, MessageStructure
from proxy.model.settings import Rule, Small, Tokens


@dataclass(frozen=True, slots=True)
class PruningPolicy:
    """Replacing old tool outputs by references in what is sent; the log keeps them."""

    enabled: bool = True
    """Whether outputs among the messages that are sent may be replaced."""
    protect_tokens: Tokens = 40_000
    """The most recent tool outputs up to this many tokens are never replaced."""
    minimum_tokens: Tokens = 20_000
    """Nothing is replaced unless that saves at least this many tokens."""
    protected_tools: tuple[str, ...] = ("skill",)
    """Names of tools whose outputs are never replaced."""


@dataclass(frozen=True, slots=True)
class FilesPolicy:
    """Contents of files that are too long to be sent in full again and again."""

    inline_tokens: Tokens = 10_000
    """Contents of up to this many tokens are never shortened."""
    outline: bool = True
    """Replace long contents by their structure; source code other than Python needs the extra outlines. Off: by their
    first lines."""
    summary_model: str = ""
    """Model that adds a sentence to the outlines of long contents: of files that programs show (docs/sdk.md), of
    outputs in epochs. It is asked within the limits for summaries (compaction). Empty: none."""


@dataclass(frozen=True, slots=True)
class TurnsPolicy:
    """The strategy turns: each prompt begins a new context."""

    user_turns: Annotated[int, Rule(ge=1, le=100)] = 2
    """Turns whose words of the user are sent, the newest included."""
    scan_messages: Annotated[int, Rule(ge=1, le=10_000)] = 20
    """Newest messages in which prompt and tool loop are sought."""


@dataclass(frozen=True, slots=True)
class SnapshotPolicy:
    """The strategy snapshot: memory stands for older turns."""

    raw_tail_turns: Small = 4
    """Newest turns before the current one that stay, if they fit."""
    max_episodic_items: Small = 3
    """Reports on turns that are shown, the newest."""
    max_semantic_items: Annotated[int, Rule(ge=0, le=1000)] = 20
    """Facts that are shown, by importance, then the newest."""
    tail: Literal["messages", "text"] = "messages"
    """Whether these turns are sent as messages, or as text in the message of memory."""


@dataclass(frozen=True, slots=True)
class BuilderPolicy:
    """The settings that decide which messages stay, and which are replaced.

    Those of `pruning` scale down with a small budget. The newest `protect_turns` user turns stay verbatim.
    """

    pruning: PruningPolicy = PruningPolicy()
    files: FilesPolicy = FilesPolicy()
    turns: TurnsPolicy = TurnsPolicy()
    snapshot: SnapshotPolicy = SnapshotPolicy()
    protect_turns: int = RECENT_TURNS


class CountedMessage(Value):
    """A message with its structure and its tokens."""

    message: Message
    structure: MessageStructure
    tokens: int


class LiveSummary(Value):
    """A summary that applies to this conversation, of its messages from `start` up to `stop`.

    `tokens` are its own. `block` is the raw message that is sent for it if its provider wrote it (`epoch.Compacted`).
    """

    id: str
    text: str
    start: int
    stop: int
    tokens: int
    block: str = ""


class MemoryText(Value):
    """What a model is shown of memory, and of how many of the first messages, whole turns, memory has been made."""

    text: str
    covered: int


class PlanInputs(Value):
    """What a plan depends on besides the conversation.

    `goal`, if set, is the budget by which the size of ledgers and the number of old steps that stay are measured; all
    else is measured by `budget`.
    """

    budget: Budget
    epoch: Epoch | None = None  # the active one, which the plan carries on
    pinned: frozenset[int] = frozenset()  # places of messages that must stay
    reports: Sequence[LiveSummary] = ()  # the summaries that apply, oldest first, without overlaps
    goal: Budget | None = None
    depth: int = 0  # pairs of epochs in a row that left too little room: a plan has to free more with each
    must_fit: bool = False  # a request above the budget would be refused
    is_bound: bool = False  # signed reasoning does not stay
    growth: int = 0  # tokens that the next request is expected to add if the plan is made for that one, else 0
    excluded: tuple[str, ...] = ()  # names of further tools whose outputs stay, since the client asks for it
    has_tool: bool = False  # the model will have the tool to recall
    tool_tokens: int = 0  # by which the preamble is longer, or shorter, than the client's
    is_alternating: bool = False  # as if the settings had `strict_alternation`
    recalled: Mapping[int, int] = {}  # tokens of the hidden rounds behind messages, by index
    memory: MemoryText | None = None  # of the strategy `snapshot`
    # The planner adds what the request itself says.
    sent: int | None = None  # messages that were sent before, None if that does not tell what a model has seen
    unkept: frozenset[int] = frozenset()  # places of messages that the log does not have whole, so they must stay
    is_volatile: bool = False  # the client rewrites what follows those messages in its next request, too
    needs_thinking: bool = False  # a turn under way has to begin with thinking
    needs_json: bool = False  # the upstream refuses the request without the word "JSON" in it
    strategy: Strategy = "epochs"
    sentences: Mapping[str, str] = {}  # about outputs, by the hexadecimal SHA-256 of their text


class PlanRequest(PlanInputs, kw_only=True):
    """A request for a plan: the whole conversation as the client has it, without its preamble, and the inputs.

    `name(start, stop, offset)` returns the id of a reference to the messages from `start` up to `stop`, from the
    character `offset` of their text on. Equal arguments have equal ids.
    """

    messages: Sequence[CountedMessage]
    head: int  # tokens of the preamble (system messages, tools)
    name: Callable[[int, int, int], str]
    frozen: ContextPlan | None = None  # the plan of the active epoch


_DIGITS = re.compile(r"\d+")
_MARKUP = re.compile(r"[<>\[\]{}#=|]")
# How agents without tool calls write an action: a code block, an XML element, a JSON object, a labelled line.
_ACTION = re.compile(
    r"```|<[A-Za-z_][^<>\n]*>|\{\s*\"|^[^\w\n]*+(?:action|command|tool)\b[^\n]*:", re.IGNORECASE | re.MULTILINE
)
# How machine output begins. People's prompts may begin alike, too ("Ticket 12:", "## Task 5"), but not with these.
_MACHINE_HEAD = re.compile(
    r"\W*(?:(?:the|tool|command|execut(?:e|ion)|bash|shell|python|ipython|function|code|action|system)[ _-]){0,2}"
    r"(?:observations?|outputs?|results?|returns?[ _-]?code|exit(?:ed)?|stdout|stderr|tools?|execution|command)"
    r"(?![a-z])",
    re.IGNORECASE,
)
_HEAD_LENGTH = 40
_MIN_ALIKE = 3
_LEAST_REMINDER = 80
# The share of the budget up to which what a client will rewrite is sent as it is: above it protection gives way.
_REWRITTEN_SHARE = 0.7
# The most of the budget that a list of what is to do, or what an answer refers to, may have, all these together, and
# these together with what is new.
_KEPT_SHARE, _KEPT_TOGETHER, _KEPT_BESIDE = 0.06, 0.15, 0.9
_LONGEST_ANSWER = 200
# An answer means nothing without what it answers: a choice by its number or place, an assent, a pronoun alone.
_REFERS = re.compile(
    r"(?i)\b(?:(?:the|your|that|this)\b (?:first|second|third|fourth|last|other|latter|former|same)\b"
    r"(?=\W*(?:\Z|[^\s\w]|(?:please|and|one|ones|option|variant|approach|idea|of (?:them|these|those))\b))"
    r"|(?:option|number|variant|plan|choice|no\.) ?#?(?:[a-e]|[1-9])\b"
    r"|(?:the|your|that|this)\b (?:\w{1,20} )?(?:one|ones|variant|approach|idea|suggestion|proposal)\b"
    r"|(?:both|neither|either|all|none|each)(?: of)? (?:them|these|those)\b|as you (?:said|say|suggest\w*|propos\w*)"
    r"|(?:do|use|take|try|prefer) (?:it|that|this|those|these|them|both)\b(?=\W*(?:\Z|[^\s\w]|please\b))"
    r"|(?:das|die|der|den) (?:erste|zweite|dritte|letzte|andere)n?\b|wie (?:du )?vorgeschlagen|mach das\b"
    r"|(?:le|la|les) (?:premi\w+|deuxi\w+|second\w?|troisi\w+|derni\w+|deux)\b"
    r"|(?:el|la|los|las) (?:primer\w?|segund\w|tercer\w?|últim\w|dos)\b)"
    r"|\A\W*(?:yes|yep|yeah|no|ok|okay|sure|agreed|both|neither|exactly|go ahead|sounds good|do it|ja|nein|oui|non|sí"
    r"|да|нет|好的?|是的?|可以|はい|네|[a-e]|[1-9])\W*(?:please|thanks|bitte|merci|por favor)?\W*\Z"
    r"|第[一二三四五1-5][个個种種]|[两兩]个都|[二三]番目"
)
_REMINDER_TAG = re.compile(r"<(?:[\w-]{0,40}reminder|environment_details|environment_context)\b", re.IGNORECASE)


class AgentStep(Group):
    """A group of messages with its size. `turn` is the number of user turns so far."""

    tokens: int
    characters: int
    turn: int


class ConversationIndex(Value):
    """An indexed conversation. Steps are given by their index in `steps`."""

    messages: Sequence[CountedMessage]
    found: Sequence[MessageFeatures]  # the features of each message
    steps: Sequence[AgentStep]
    fresh: int  # the first step with a message that no model has answered
    users: tuple[int, ...]  # the user's steps, in order
    newest: frozenset[int]  # the user's steps of the newest turns
    fixed: frozenset[int]  # steps that must stay
    bound: frozenset[int]  # places of messages that must be sent unchanged
    spoken: frozenset[int] = frozenset()  # places of outputs with words of the user beside them
    begun: frozenset[int] = frozenset()  # place of the message with which the turn under way has to begin
    pairs: tuple[tuple[int, int], ...] = ()  # steps that stay or go together: of a call, and of its late output
    linked: frozenset[int] = frozenset()  # steps of these pairs, of calls without output, and kept for what they state
    saved: Mapping[int, int] = {}  # tokens that what replaces a message saves, where `messages` has its tokens

    def find_start(self, step: int) -> int:
        """Return the place where a step begins; after the last step, the number of messages."""
        return self.steps[step].start if step < len(self.steps) else len(self.messages)


def index_conversation(request: PlanRequest, policy: BuilderPolicy, extract: FeatureExtractor) -> ConversationIndex:
    """Index a conversation; `extract` returns the features of a message."""
    messages = request.messages
    found = [extract(seen.message) for seen in messages]
    structures = [seen.structure for seen in messages]
    client = _find_client_messages(messages)
    reminders = _find_system_reminders(messages)
    machine = _find_machine_messages(messages) | client.places | reminders.keys()
    spoken = frozenset(_list_spoken(messages))
    steps = list(_list_steps(messages, found, split_groups(structures, machine, spoken)))
    users = tuple(i for i, step in enumerate(steps) if step.kind == "user")
    bound = (
        request.pinned
        | request.unkept
        | frozenset(_list_protected_outputs(messages, (*policy.pruning.protected_tools, *request.excluded)))
    )
    bound |= _list_rewritten(request) | frozenset(_list_staying(structures))
    bound |= find_newest_user(structures) & machine  # what was sent is checked to have the newest message of this role
    systems = frozenset(
        place
        for place, structure in enumerate(structures)
        if structure.role == "system" and reminders.get(place, place) == place
    )
    unanswered = find_unanswered(structures, request.sent if request.is_volatile else None)
    if request.growth and not request.is_volatile:
        unanswered = len(structures)  # by the next request a model has answered all of these
    begun = find_turn_start(structures) if request.needs_thinking else frozenset[int]()
    fresh = _find_step(steps, unanswered)
    new = request.head + sum(step.tokens for i, step in enumerate(steps) if i >= fresh or i in users[-1:])
    kept = _list_small(
        request, new, _find_open_list(messages), _find_open_items(messages), _find_referred(messages, steps)
    )
    pinned = bound | systems | client.files | begun | kept
    verbatim = find_verbatim(reversed(steps), unanswered, turns=policy.protect_turns, pinned=pinned)
    newest = _list_steps_at(steps, verbatim.turns) | {*users[-1:]}
    own = (_find_step(steps, place) for place in find_newest_user(structures))
    newest |= {i for i in own if steps[i].has_calls}  # it has no shorter form, and is to be sent in some form
    fixed = _list_steps_at(steps, verbatim.pinned)
    late = find_late(structures).items()
    pairs = tuple((_find_step(steps, call), _find_step(steps, output)) for output, call in late)
    waiting = frozenset(_find_step(steps, place) for place in bound if structures[place].stays == "unanswered")
    linked = waiting.union(*pairs, (_find_step(steps, place) for place in kept))
    return ConversationIndex(messages, found, steps, fresh, users, newest, fixed, bound, spoken, begun, pairs, linked)


def _list_small(request: PlanRequest, new: int, *candidates: Iterable[int]) -> frozenset[int]:
    """Return those of the places, in the order of their worth, whose messages are small beside the budget together.

    The `new` tokens, of what is new and before all messages, come first: there has to be room for them beside these.
    """
    places = list(chain.from_iterable(candidates))
    most, together, room = (share * request.budget.usable for share in (_KEPT_SHARE, _KEPT_TOGETHER, _KEPT_BESIDE))
    room = min(together, room - new)
    fitting = (place for place in places if request.messages[place].tokens <= most)
    return frozenset(take_fitting(fitting, room, lambda place: request.messages[place].tokens))


def _find_open_list(messages: Sequence[CountedMessage]) -> Iterator[int]:
    """Yield the place of the newest call that states what is to do, if any of that is open."""
    for place in reversed(range(len(messages))):
        stated = [
            open_items for call in messages[place].message.calls if (open_items := list_open_items(call)) is not None
        ]
        if stated:
            yield from (place,) if any(stated) else ()
            return


def _find_open_items(messages: Sequence[CountedMessage]) -> Iterator[int]:
    """Yield the places of calls that added an item of its own to what is to do, while it is open, the newest first."""
    asked, added = dict[str, int](), dict[str, int]()
    for place, seen in enumerate(messages):
        for call in seen.message.calls:
            asked[call.id] = place
            if added:
                added.pop(find_closed_item(call), None)
        results = seen.message.results
        for id, output in zip(results, seen.message.outputs or (seen.message.text,), strict=False):
            if id in asked and (item := find_created_item(output)):
                added[item] = asked[id]
    yield from sorted(set(added.values()), reverse=True)


def _find_referred(messages: Sequence[CountedMessage], steps: Sequence[AgentStep]) -> Iterator[int]:
    """Yield the places of what the assistant said before an answer of the user that refers to it, the newest first."""
    for step in reversed(steps):
        if step.kind != "user" or not step.start or step.has_calls:
            continue
        before = messages[step.start - 1]
        if before.structure.role == "assistant" and before.message.text and not before.message.calls:
            text = messages[step.start].message.text
            if len(text) <= _LONGEST_ANSWER and _REFERS.search(text):
                yield step.start - 1


def list_groups(messages: Sequence[CountedMessage]) -> list[Group]:
    """Return the groups of a conversation, which are its steps: a step's number is the place of its group, from 1."""
    machine = _find_machine_messages(messages) | _find_client_messages(messages).places
    machine |= _find_system_reminders(messages).keys()
    return split_groups([seen.structure for seen in messages], machine, frozenset(_list_spoken(messages)))


def list_turn_starts(messages: Sequence[CountedMessage]) -> list[int]:
    """Return the places at which turns begin: at the first message, and at the user's messages after an answer.

    What precedes a message decides whether it begins one, so that turns keep their numbers while a conversation grows.
    """
    starts = [0] if messages else []
    repeated: set[str] = set()
    is_waiting = bool(messages) and messages[0].structure.role == "user"
    for place in range(1, len(messages)):
        role, text = messages[place].structure.role, messages[place].message.text
        if role in ("assistant", "tool"):
            is_waiting = False
        elif role == "user" and not _is_of_client(messages[place - 1], text, repeated):
            starts += [] if is_waiting else [place]
            is_waiting = True
    return starts


def _is_of_client(before: CountedMessage, text: str, repeated: set[str]) -> bool:
    """Return whether a text in the user's role is one of a client's, given the message before it.

    `repeated` has the long texts behind results so far; this one is added.
    """
    if find_client_messages({0: text}).places:
        return True
    if before.structure.role == "tool":
        bare = text.strip()
        is_known = bare in repeated
        if len(bare) >= _LEAST_REMINDER:
            repeated.add(bare)
        return is_known or _REMINDER_TAG.match(bare) is not None
    is_action = before.structure.role == "assistant" and not before.message.calls
    return is_action and bool(_normalize_head(text)) and _ACTION.search(before.message.text) is not None


def _find_client_messages(messages: Sequence[CountedMessage]) -> ClientMessages:
    return find_client_messages(
        {place: seen.message.text for place, seen in enumerate(messages) if seen.structure.role == "user"}
    )


def with_unsent(seen: ConversationIndex, sent: int | None) -> ConversationIndex:
    """Return an index in which messages after the first `sent` are fresh, too. For None it stays the same."""
    fresh = _find_step(seen.steps, find_unanswered([each.structure for each in seen.messages], sent))
    return seen if fresh == seen.fresh else replace(seen, fresh=fresh)


def add_paired(index: ConversationIndex, least: int, staying: frozenset[int]) -> frozenset[int]:
    """Return the steps before `least` that stay, with those that have the call, or late output, of one that stays."""
    while needed := {
        i
        for pair in index.pairs
        if any(i >= least or i in staying for i in pair)
        for i in pair
        if i < least and i not in staying
    }:
        staying |= needed
    return staying


def find_tail_step(seen: ConversationIndex, groups: int) -> int:
    """Return the step at which the tail begins that has the newest `groups` with calls, and all that is fresh."""
    return _find_step(seen.steps, find_verbatim(reversed(seen.steps), seen.find_start(seen.fresh), groups, 0).tail)


def find_last_turn(index: ConversationIndex) -> set[int]:
    """Return the steps of the user's newest turn."""
    last = index.steps[index.users[-1]].turn if index.users else 0
    return {i for i in index.users if index.steps[i].turn == last}


def read_words(index: ConversationIndex, place: int) -> str:
    """Return what a message of the user says: its text, or what stands beside its outputs."""
    message = index.messages[place].message
    return "\n".join(message.beside) if place in index.spoken else message.text


def find_spoken(index: ConversationIndex, step: int) -> list[int]:
    """Return the places in a step of outputs with words of the user beside them."""
    return [place for place in index.steps[step].places if place in index.spoken]


def can_be_pruned(index: ConversationIndex, place: int) -> bool:
    """Return whether an output may give way without words of the user beside it."""
    is_long = place in index.spoken and any(len(text) > MOST_BESIDE for text in index.messages[place].message.beside)
    return place not in index.bound and not is_long


def _find_step(steps: Sequence[AgentStep], place: int) -> int:
    """Return the step that contains the message at a place, or the number of steps if none does."""
    return bisect_right(steps, place, key=lambda step: step.stop)


def _list_steps_at(steps: Sequence[AgentStep], groups: Iterable[range]) -> frozenset[int]:
    return frozenset(_find_step(steps, places.start) for places in groups)


def _list_staying(structures: Sequence[MessageStructure]) -> Iterator[int]:
    """Yield the places of items that their format keeps: of unknown kinds, and calls whose output may still come."""
    staying = [(place, structure) for place, structure in enumerate(structures) if structure.stays]
    answered = {id for structure in structures for id in structure.results} if staying else set()
    for place, structure in staying:
        if structure.stays == "always" or not answered.issuperset(structure.calls):
            yield place


def _list_rewritten(request: PlanRequest) -> frozenset[int]:
    """Return the places of what the client will rewrite in its next request, none where that does not fit.

    An epoch that replaced any of it would hold for this request alone, and each later one would need its own. What the
    client keeps comes first: its last turn, up to the model's answer.
    """
    if not request.is_volatile or request.sent is None:
        return frozenset()
    stop = len(request.messages)
    answers = (place for place in range(request.sent, stop) if request.messages[place].structure.role == "assistant")
    places = range(next(answers, request.sent - 1) + 1, stop)
    tokens = request.head + sum(request.messages[place].tokens for place in places)
    return frozenset(places) if tokens <= _REWRITTEN_SHARE * request.budget.usable else frozenset()


def _list_steps(
    messages: Sequence[CountedMessage], found: Sequence[MessageFeatures], groups: Iterable[Group]
) -> Iterator[AgentStep]:
    turn, before = 0, ""
    for group in groups:
        turn += group.kind == "user" and (before != "user" or group.has_calls)
        before = group.kind
        tokens = sum(seen.tokens for seen in messages[group.start : group.stop])
        characters = sum(each.characters for each in found[group.start : group.stop])
        yield AgentStep(group.start, group.stop, group.kind, group.has_calls, tokens, characters, turn)


def _find_machine_messages(messages: Sequence[CountedMessage]) -> frozenset[int]:
    """Return the places of messages in the user's role that a machine wrote: several alike, each after an action."""
    if any(seen.message.calls or seen.message.results for seen in messages):
        return frozenset(_list_reminders(messages))
    users = [place for place, seen in enumerate(messages) if seen.structure.role == "user"]
    heads = {place: head for place in users if (head := _normalize_head(messages[place].message.text))}
    wrapped = heads.get(users[0]) if users else None
    before = {place: messages[place - 1] for place, head in heads.items() if head != wrapped}
    echoing = [
        place
        for place, seen in before.items()
        if seen.structure.role == "assistant" and _ACTION.search(seen.message.text)
    ]
    alike = Counter(heads[place] for place in echoing)
    return frozenset(place for place in echoing if alike[heads[place]] >= _MIN_ALIKE)


def _list_reminders(messages: Sequence[CountedMessage]) -> Iterator[int]:
    """Yield the places of reminders that a client adds behind results: one long text, several times.

    Numbers, and how short it is, do not matter where its tag says what it is. People say "go on" several times, too.
    """
    texts: dict[int, str] = {}
    for place in range(1, len(messages)):
        seen, before = messages[place], messages[place - 1]
        if seen.structure.role == "user" and before.structure.role == "tool" and not seen.message.media:
            text = seen.message.text.strip()
            is_tagged = _REMINDER_TAG.match(text) is not None
            if is_tagged or len(text) >= _LEAST_REMINDER:
                texts[place] = _DIGITS.sub("0", text) if is_tagged else text
    alike = Counter(texts.values())
    yield from (place for place, text in texts.items() if alike[text] >= _MIN_ALIKE)


def _find_system_reminders(messages: Sequence[CountedMessage]) -> dict[int, int]:
    """Return the places of messages of the system that a client sends again and again, each with that of its newest."""
    kinds: dict[bytes, list[int]] = {}
    for place, seen in enumerate(messages):
        if seen.structure.reminder:
            kinds.setdefault(seen.structure.reminder, []).append(place)
    return {place: places[-1] for places in kinds.values() if len(places) >= _MIN_ALIKE for place in places}


def _list_spoken(messages: Sequence[CountedMessage]) -> Iterator[int]:
    """Yield the places of outputs with words of the user beside them: not tagged, and not the same several times."""
    texts = {place: seen.message.beside for place, seen in enumerate(messages) if seen.message.beside}
    alike = Counter(_DIGITS.sub("0", text) for beside in texts.values() for text in beside)
    for place, beside in texts.items():
        if any(
            not _REMINDER_TAG.match(text.lstrip()) and alike[_DIGITS.sub("0", text)] < _MIN_ALIKE for text in beside
        ):
            yield place


def _normalize_head(text: str) -> str:
    """Return the beginning of a text without its numbers; empty if it begins as people write."""
    line = text.split("\n", 1)[0].rstrip()
    if not _MACHINE_HEAD.match(line):
        return ""
    is_label = line.endswith(":") and len(line) <= _HEAD_LENGTH
    return _DIGITS.sub("0", line[:_HEAD_LENGTH]) if is_label or _MARKUP.search(line[:_HEAD_LENGTH]) else ""


def _list_protected_outputs(messages: Sequence[CountedMessage], tools: Sequence[str]) -> Iterator[int]:
    """Yield the places of outputs of the given tools, whose outputs stay."""
    answered: set[str] = set()
    for place, seen in enumerate(messages):
        answered.update(call.id for call in seen.message.calls if call.name in tools)
        if not answered.isdisjoint(seen.message.results):
            yield place
