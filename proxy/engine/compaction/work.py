"""What a report is to be made of. Rule: values, and what follows from them; whoever holds one need look nothing up."""

from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import sha256

import msgspec

from proxy.context.compaction.spans import MessageRange
from proxy.context.conversation import Survey
from proxy.context.pricing import Cost
from proxy.context.references import make_reference
from proxy.engine.context.request_state import RequestState
from proxy.model.epoch import Epoch
from proxy.model.summary import Kind, Level, Summary

_SHARE = 0.02
# By how much a report may be longer than it was asked to be.
_TOLERANCE = 2
_LEAST_TOKENS = 300
# Clients wrap in such what they say themselves in the user's role.
_REMINDER = "<system-reminder"


class Latest(msgspec.Struct, frozen=True, gc=False):
    """The request of a branch that was sent last: how it stood, and the bytes that went upstream.

    `opened` is the epoch it was sent under where that is another than the one that held before, None where it is not.
    `interval` are the seconds since the request that it goes on from, None where that is not known.
    """

    case: RequestState
    body: bytes
    opened: Epoch | None = None
    interval: float | None = None

    @property
    def session(self) -> str:
        """The id of its session."""
        return self.case.subject.session.id

    @property
    def nodes(self) -> Sequence[bytes]:
        """The nodes of its messages."""
        return self.case.subject.nodes

    @property
    def epoch(self) -> Epoch | None:
        """The epoch that it was sent under."""
        return self.opened or self.case.epoch

    @property
    def tokens(self) -> int:
        """The tokens of what was sent, as we count them."""
        case, opened = self.case, self.opened
        if opened is None:
            return case.tokens
        return case.path.tokens - case.path.count_to(opened.depth) + case.context.sizes.get(opened.id, 0)


class Wish(msgspec.Struct, frozen=True, gc=False):
    """What a person who asks for reports may say of them: the model, the instruction, and the level to begin with."""

    model: str = ""
    prompt: str = ""
    level: Level = 1


class Work(msgspec.Struct, frozen=True, gc=False):
    """A report that is wanted: of the messages of a span, or of the `parents`, which cover it; `wish` if by a person.

    `supersedes` is the provisional one that it is made in place of. `references` are the ids of what is elided in the
    span, the newest last; `foreign` the places of what is in the user's role and not the user's.
    """

    latest: Latest
    survey: Survey
    span: MessageRange
    references: tuple[str, ...] = ()
    foreign: frozenset[int] = frozenset()
    parents: tuple[Summary, ...] = ()
    supersedes: tuple[str, ...] = ()
    wish: Wish | None = None

    @property
    def level(self) -> Level:
        """The best that is wanted of it."""
        return 1 if self.wish is None else self.wish.level

    @property
    def kind(self) -> Kind:
        """What comes of it."""
        return "condensed" if self.parents else "leaf"

    @property
    def covered(self) -> int:
        """The tokens that it stands for."""
        return sum(parent.tokens for parent in self.parents) if self.parents else self.span.tokens

    def find_most(self, level: Level, most: int) -> int:
        """The most tokens of a report of this level, a model's own limit being `most`: in proportion to the budget."""
        share = int(_SHARE * self.latest.case.budget.usable) // level
        return max(1, min(most, max(_LEAST_TOKENS, share), self.covered - 1))

    def find_limit(self, level: Level, most: int) -> int:
        """The most tokens of a report that is taken; `most` as for `find_most`."""
        return min(most, _TOLERANCE * self.find_most(level, most))

    def name(self, secret: bytes, level: Level, now_ms: int) -> str:
        """The id of what comes of it."""
        span = f"{self.span.start}:{self.span.stop}:{self.kind}:{level}:{now_ms}".encode()
        last = self.latest.nodes[self.span.stop - 1]
        return make_reference(secret, self.latest.session, sha256(b"summary" + last + span).digest())

    def list_digests(self) -> tuple[bytes, ...]:
        """The hashes of the raw messages that a leaf is of."""
        if self.parents:
            return ()
        return self.latest.case.subject.list_digests(self.span.start, self.span.stop)


class Made:
    """What came of a person's wish: the summaries in the order in which they were made, all calls, what they cost.

    `problems` say why it is no better than it is; each once. `is_refused`: somebody else is making them.
    """

    def __init__(self) -> None:
        self.summaries: list[Summary] = []
        self.calls: list[str] = []
        self.problems: list[str] = []
        self.is_refused = False
        self.cost = Cost()

    def note(self, drafted: Summary, *, is_kept: bool) -> None:
        """A report was made, and what that took; whether it is one that stands from now on."""
        self.summaries += [drafted] if is_kept else []
        self.calls += drafted.calls
        self.say(drafted.reason)

    def say(self, problem: str) -> None:
        """Something is not as good as it could be; nothing where there are no words for it."""
        if problem and problem not in self.problems:
            self.problems.append(problem)


def find_references(latest: Latest, span: MessageRange) -> tuple[str, ...]:
    """The ids of all that epochs elided of a span, the newest last."""
    if latest.epoch is None:
        return ()
    epochs = latest.case.context.trace(latest.epoch.id)
    named = (each for epoch in epochs for each in epoch.originals if span.start <= each.place < span.stop)
    return tuple(dict.fromkeys(each.id for each in sorted(named, key=lambda each: each.place)))


def find_foreign(latest: Latest, survey: Survey) -> frozenset[int]:
    """What has the user's role and is not the user's (BEHAVIOUR B32): prompts of subagents, reminders of clients."""
    is_delegated = bool(latest.case.subject.session.parent)
    users = (place for place, seen in enumerate(survey.messages) if seen.shape.role == "user")
    return frozenset(
        place for place in users if is_delegated or survey.messages[place].told.text.lstrip().startswith(_REMINDER)
    )


def count_hidden(work: Work) -> int:
    """The messages at the beginning of a span that the last request has in a ledger only, if at all."""
    epoch = work.latest.epoch
    return 0 if epoch is None else max(0, min(epoch.depth, work.span.stop) - work.span.start)


def tell_date(now_ms: int) -> str:
    """A time in words."""
    return datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
