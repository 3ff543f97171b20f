"""Selection of the messages that are sent verbatim, and of the reasoning that stays.

The messages are the newest groups with calls, what no model has answered, the newest user turns, and pinned messages.
The builder of plans, the budget's estimate of protected tokens, and the check whether an epoch applies to a request all
use `find_verbatim`. A group is messages that can only be removed together: a call with all its results, the calls made
beside it, and the reasoning that led to them.

Some providers sign a block of reasoning over the whole request that it answered. Behind any other beginning they refuse
or drop the block. A *rendering* is a form in which a history is sent: an epoch's, or the client's own. A request has
exactly the blocks that were made under its rendering; all others are removed whole, and by the same rule every time. So
what precedes a block is the same whenever the block is sent, and there is never a gap before another. This holds for
all wire formats: a format only says where such blocks stand (`MessageStructure.signed`) and how a message looks without
them (`Format.strip_reasoning`). Signatures of calls (`thought_signature`) and unsigned reasoning are not bound. Of
OpenAI's encrypted reasoning no source says that it is: it stays, and goes, with the step that it led to, and a refusal
of it is answered as any other.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, islice
from typing import Literal

from proxy.context.model_catalog import list_names, strip_cloud
from proxy.model import Value
from proxy.model.messages import LinkedMessage, MessageStructure, joins_run, list_run_starts

RECENT_GROUPS, MIN_GROUPS = 3, 1
"""The number of newest groups with calls that stay if they fit, and if they do not."""
RECENT_TURNS = 2
"""The number of newest user turns that stay."""

# How messages begin that clients write in the user's role: aider, qwen-code and gemini-cli, opencode, cline.
_CLIENT_TEXT = re.compile(
    r"\s*(?:I have \*added these files to the chat\*|Here are summaries of some files present in my (?:git )?repo"
    r"|Here are some READ ONLY files|I am not sharing (?:any|the full contents of any) files"
    r"|I switched to a new code base"
    r"|(?:This is|We are setting up) (?:the )?(?:Qwen Code|Gemini CLI|context for our chat)"
    r"|Called the \w{1,40} tool with the following input:|\[ERROR\] You did not use a tool in your previous response)"
)
_EXAMPLES_END = re.compile(r"\s*I switched to a new code base\b")
_FILES = re.compile(r"\s*(I have \*added these files|Here are some READ ONLY files)")


class ClientMessages(Value):
    """The places of messages in the user's role that a client wrote.

    `files` are those of the newest ones that stand for the current content of files.
    """

    places: frozenset[int] = frozenset()
    files: frozenset[int] = frozenset()


def find_client_messages(texts: Mapping[int, str]) -> ClientMessages:
    """Return which of these texts in the user's role, by place, a client wrote, examples for the model included."""
    ends = [place for place, text in texts.items() if _EXAMPLES_END.match(text)]
    places = {place for place, text in texts.items() if place <= max(ends, default=-1) or _CLIENT_TEXT.match(text)}
    files = {found[1]: place for place in sorted(places) if (found := _FILES.match(texts[place])) is not None}
    return ClientMessages(frozenset(places), frozenset(files.values()))


GroupKind = Literal["user", "system", "step"]


class Group(Value):
    """The messages from `start` up to `stop`. `has_calls`: there is a call or a result among them."""

    start: int
    stop: int
    kind: GroupKind
    has_calls: bool

    @property
    def places(self) -> range:
        """Return the places of its messages."""
        return range(self.start, self.stop)


class Verbatim(Value):
    """The messages that stay: all from place `tail` on, and groups, newest first, which may lie in the tail."""

    tail: int
    turns: tuple[range, ...]  # the groups of the newest user turns
    pinned: tuple[range, ...]  # the groups with a pinned message

    def list_earlier(self) -> list[range]:
        """Return the groups that stay before the tail, each once."""
        return [places for places in dict.fromkeys((*self.turns, *self.pinned)) if places.start < self.tail]


def find_verbatim(
    groups: Iterable[Group],
    unanswered: int,
    recent: int = RECENT_GROUPS,
    turns: int = RECENT_TURNS,
    pinned: frozenset[int] = frozenset(),
    *,
    first_acting: int = 0,
) -> Verbatim:
    """Return what stays of a conversation whose `groups` are given from the newest to the oldest.

    The tail has the `recent` newest groups with calls, and all messages from place `unanswered` on. Adjacent groups of
    the user count as one of the `turns`, unless the assistant acts in the later one. `pinned` are the places of
    messages that must stay for another reason, and no message before place `first_acting` has a call or a result. The
    groups are read only as far back as needed: of a long chat without calls, no further than its newest turns.
    """
    tail, later, first_pinned = unanswered, "", min(pinned, default=unanswered)
    of_turns, of_pinned = list[range](), list[range]()
    for group in groups:
        if group.stop > unanswered or (recent > 0 and group.has_calls):
            tail = group.start
        recent -= group.has_calls
        if group.kind == "user":
            turns -= later != "user"
            if turns >= 0:
                of_turns.append(group.places)
        later = "" if group.has_calls else group.kind
        if pinned and not pinned.isdisjoint(group.places):
            of_pinned.append(group.places)
        has_turns = turns < 0 or (not turns and later != "user")
        if has_turns and (recent <= 0 or group.start <= first_acting) and group.start <= min(unanswered, first_pinned):
            break
    return Verbatim(tail, tuple(of_turns), tuple(of_pinned))


def find_tail(messages: Sequence[LinkedMessage], unanswered: int | None = None, groups: int = RECENT_GROUPS) -> int:
    """Return the place from which on all messages stay: of the newest `groups` with calls, and from `unanswered` on."""
    unanswered = find_unanswered(messages) if unanswered is None else unanswered
    return find_verbatim(iterate_groups(messages), unanswered, groups, 0).tail


def find_unanswered(messages: Sequence[LinkedMessage], sent: int | None = None) -> int:
    """Return the place of the first message that no model has answered.

    It follows the assistant's last message. Assistant messages without calls at the very end are ignored: they begin a
    response that the model is to continue. If the number of messages `sent` before is known, the first later one that
    is not the assistant's counts, if that is earlier: a client may add several steps at once.
    """
    place = len(messages)
    while place and messages[place - 1].role == "assistant" and not messages[place - 1].calls:
        place -= 1
    while place and messages[place - 1].role != "assistant":
        place -= 1
    if sent is not None:
        place = next((i for i in range(sent, place) if messages[i].role != "assistant"), place)
    return place


def find_newest_user(structures: Sequence[LinkedMessage]) -> frozenset[int]:
    """Return the place of the newest message in the user's role."""
    places = (place for place in reversed(range(len(structures))) if structures[place].role == "user")
    return frozenset(islice(places, 1))


def find_turn_start(structures: Sequence[LinkedMessage]) -> frozenset[int]:
    """Return the place of the first message of the turn under way, if that is the assistant's.

    Where thinking has a budget, its provider refuses a turn of calls and results that does not begin with thinking.
    Without interleaved thinking only that message has some.
    """
    start = max(find_newest_user(structures), default=-1) + 1
    is_begun = 0 < start < len(structures) and structures[start].role == "assistant"
    return frozenset([start]) if is_begun else frozenset()


def iterate_groups(
    messages: Sequence[LinkedMessage],
    machine: frozenset[int] = frozenset(),
    leading: frozenset[int] = frozenset(),
    spoken: frozenset[int] = frozenset(),
    late: Container[int] = frozenset(),
) -> Iterator[Group]:
    """Yield the groups of a conversation from the newest to the oldest, without gaps.

    A result and its call are in one group with everything between them. A result answers the newest call before it that
    has its id. `machine` are the places of messages in the user's role that a machine wrote, and of reminders in that
    of the system, which are in one group with what is before them, `leading` of those that are in one group with the
    assistant's message behind them (`MessageStructure.is_leading`), `spoken` of outputs with words of the user beside
    them, `late` of results in another group than their calls (`find_late`).
    """
    stop, has_calls = len(messages), False
    roles = set[str]()
    missing = set[str]()  # the ids of results from here on whose calls stand before here
    first_calls: dict[str, int] | None = None
    places, befores = reversed(range(stop)), chain(islice(reversed(messages), 1, None), (None,))
    for i, message, before in zip(places, reversed(messages), befores, strict=False):
        if message.calls or message.results:
            has_calls = True
            missing.update(() if i in late else message.results)
            missing.difference_update(message.calls)
        if i not in machine:
            roles.add("user" if i in spoken else message.role)
        is_reminder = i in machine and message.role == "system" and i not in leading
        joins = is_reminder or (i - 1 in leading and message.role == "assistant")
        if before is not None and (joins or joins_run(before, message)):
            continue
        if missing:
            if first_calls is None:
                first_calls = {id: i for i in range(len(messages) - 1, -1, -1) for id in messages[i].calls}
            # A result without a call extends no group.
            missing = {id for id in missing if first_calls.get(id, i) < i}
            if missing:
                continue
        kind: GroupKind = "system" if "system" in roles else "user" if "user" in roles else "step"
        yield Group(i, stop, kind, has_calls)
        stop, has_calls = i, False
        roles.clear()


def split_groups(
    messages: Sequence[MessageStructure],
    machine: frozenset[int] = frozenset(),
    spoken: frozenset[int] = frozenset(),
) -> list[Group]:
    """Return the groups of a conversation, oldest first."""
    leading = frozenset(place for place, message in enumerate(messages) if message.is_leading)
    return list(iterate_groups(messages, machine, leading, spoken, find_late(messages)))[::-1]


def find_late(messages: Sequence[MessageStructure]) -> dict[int, int]:
    """Return the places of results that came after others had spoken, each with the place of its call.

    Such a result is in another group than its call, if the format lets it come so late (`MessageStructure.stays`). Both
    groups stay, or both go.
    """
    called: dict[str, int] = {}
    late: dict[int, int] = {}
    starts = list_run_starts(messages)
    for place, message in enumerate(messages):
        called.update((id, place) for id in message.calls if message.stays == "unanswered")
        asked = max([called[id] for id in message.results if id in called], default=place)
        if asked < place and bisect_right(starts, asked) != bisect_right(starts, place):
            late[place] = asked
    return late


OWN = ""
"""The rendering of the client's own messages. Any other one is named by the id of its epoch."""

# Models whose providers are not known to refuse reasoning behind a different prefix: all that are not
# Anthropic's, and Anthropic's up to Opus 5, Sonnet 5, Fable 5 and Haiku 4.5.
_UNBOUND = re.compile(
    r"gemini|gemma|(?:chat)?gpt|o\d|codex|grok|deepseek|qwen|kimi|glm|minimax|mistral|magistral|devstral|llama"
    r"|claude-(?:instant|[1-4](?![\d])|v\d|(?:opus|sonnet|fable|haiku)-(?:[1-4](?!\d)|5(?![-.]?\d)))"
)
# Of text in languages with Latin letters. Text of other scripts has more tokens than this says.
_CHARACTERS_OF_A_TOKEN = 4


@lru_cache(maxsize=1024)
def may_bind_reasoning(model: str) -> bool:
    """Return whether signed reasoning of this model may be refused behind a different beginning; unknown: True."""
    return not any(_UNBOUND.match(name) for name in (strip_cloud(model), *list_names(model)))


def list_foreign(
    messages: Sequence[LinkedMessage], start: int, rendering: str, find_origin: Callable[[int], str]
) -> Iterator[int]:
    """Yield the places from `start` on of the assistant's messages that were made under another rendering.

    `find_origin` returns the rendering of the request that had the first messages only, given their number. Consecutive
    messages of the assistant are one answer.
    """
    at = start
    while 0 < at < len(messages) and _is_assistant(messages[at]) and _is_assistant(messages[at - 1]):
        at -= 1
    is_foreign = False
    for place in range(at, len(messages)):
        if not _is_assistant(messages[place]):
            continue
        if place == at or not _is_assistant(messages[place - 1]):
            is_foreign = find_origin(place) != rendering
        if is_foreign and place >= start:
            yield place


def _is_assistant(message: LinkedMessage) -> bool:
    return message.role == "assistant"


def estimate_reasoning(characters: int) -> int:
    """Estimate the tokens of so many characters of reasoning."""
    return characters // _CHARACTERS_OF_A_TOKEN
