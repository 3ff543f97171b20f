"""The input of a summary: a request that was sent, a span of its messages, and the options of a manual request."""

from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import sha256
from math import inf

import msgspec

from proxy.context.compaction.spans import MessageRange, compute_room, compute_target, may_be_hidden
from proxy.context.conversation import ConversationIndex
from proxy.context.epoch_decision import forecast_calls
from proxy.context.plan_draft import compute_summaries_budget
from proxy.context.pricing import Cost
from proxy.context.references import make_reference
from proxy.engine.context.epoch_planner import read_plan
from proxy.engine.context.request_state import RequestState
from proxy.model.epoch import Epoch, Kept, Summary, SummaryKind, SummaryLevel

# The multiple of the expected growth by which the end of a span lies beyond the planned one.
_GROWTH_MARGIN = 2
# Clients wrap their own text in the user's role in such a tag.
_REMINDER = "<system-reminder"


class SentRequest(msgspec.Struct, frozen=True, gc=False):
    """The request of a branch that was sent last: its state when it was planned, and the bytes that went upstream.

    `opened` is the epoch that opened with it, None if it was sent under an earlier one. `interval` is the number of
    seconds since the request that it extends, None if unknown.
    """

    state: RequestState
    body: bytes
    opened: Epoch | None = None
    interval: float | None = None

    @property
    def session(self) -> str:
        """Return the id of its session."""
        return self.state.request.session.id

    @property
    def nodes(self) -> Sequence[bytes]:
        """Return the nodes of its messages."""
        return self.state.request.nodes

    @property
    def kept_nodes(self) -> Sequence[bytes]:
        """Return the nodes of its messages without the end that its client rewrites: they identify its branch."""
        return self.state.request.kept_nodes

    @property
    def epoch(self) -> Epoch | None:
        """Return the epoch that it was sent under."""
        return self.opened or self.state.epoch

    @property
    def verbatim_from(self) -> int:
        """Return the place from which on all messages were sent as the client sent them."""
        if self.epoch is None:
            return 0
        plan = read_plan(self.epoch)
        place = plan.through
        for edit in reversed(plan.edits):
            if edit != Kept(place - 1):
                break
            place -= 1
        return place

    @property
    def calls_left(self) -> float:
        """Return an estimate of the further calls before the next epoch opens."""
        return forecast_calls(self.state.account, self.state.facts, self.state.growth)

    @property
    def seconds_left(self) -> float:
        """Return an estimate of the seconds before the high mark.

        They are infinite below the soft mark, and 0 where the pace is unknown.
        """
        budget = self.state.budget
        if self.tokens < budget.soft:
            return inf
        calls = max(0, budget.high - self.tokens) / max(1.0, self.state.growth)
        return calls * (self.interval or 0.0)

    def find_end(self) -> int | None:
        """Return the place at which the tail of the next epoch will begin, or None while no plan tells.

        The plan that was made ahead tells where it would begin now; it moves on with the conversation. Twice the
        expected growth is added: a message that is summarised and stays costs little, one that is removed without a
        summary is lost to all later ones.
        """
        drafted, calls, history = self.state.find_drafted(), self.calls_left, self.state.history
        if drafted is None or drafted.through <= self.verbatim_from or calls == inf:
            return None
        moved = _GROWTH_MARGIN * self.state.growth * (1 + calls)
        places = range(drafted.through, len(self.nodes))
        return next((place for place in places if history.count(drafted.through, place) >= moved), None)

    @property
    def tokens(self) -> int:
        """Return the tokens of what was sent, in our own count."""
        state, opened = self.state, self.opened
        if opened is None:
            return state.tokens
        return state.history.tokens - state.history.count_to(opened.depth) + state.context.sizes.get(opened.id, 0)


class ManualOptions(msgspec.Struct, frozen=True, gc=False):
    """The options of a manual compaction: the model, the instruction, and the level to begin with."""

    model: str = ""
    prompt: str = ""
    level: SummaryLevel = 1


class SummaryJob(msgspec.Struct, frozen=True, gc=False):
    """A summary to be made: of the messages of a span, or of the summaries `parents`, which cover it."""

    request: SentRequest
    index: ConversationIndex
    span: MessageRange
    references: tuple[str, ...] = ()  # ids of what is elided in the span, the newest last
    foreign: frozenset[int] = frozenset()  # indexes of messages in the user's role that are not the user's words
    parents: tuple[Summary, ...] = ()
    supersedes: tuple[str, ...] = ()  # the provisional summary that it replaces
    options: ManualOptions | None = None  # set for a manual compaction
    is_for_memory: bool = False  # of whole turns, for the memory of the session

    @property
    def level(self) -> SummaryLevel:
        """Return the level to begin with, which is the best possible result."""
        return 1 if self.options is None else self.options.level

    @property
    def kind(self) -> SummaryKind:
        """Return the kind of the summary."""
        return "condensed" if self.parents else "leaf"

    @property
    def covered(self) -> int:
        """Return the number of tokens that the summary covers."""
        return sum(parent.tokens for parent in self.parents) if self.parents else self.span.tokens

    @property
    def hidden(self) -> MessageRange:
        """Return the messages at the beginning of the span that the request does not show as the client sent them."""
        start, stop = self.span.start, min(self.span.stop, max(self.span.start, self.request.verbatim_from))
        return MessageRange(start, stop, self.request.state.history.count(start, stop))

    @property
    def is_visible(self) -> bool:
        """Return whether the request shows the messages of the span as the client sent them, or most of them."""
        return not self.parents and may_be_hidden(self.hidden.tokens, self.span.tokens)

    def compute_target(self, level: SummaryLevel, most: int) -> int:
        """Return the requested tokens of a summary, at most `most`, by what it covers and the room beside others."""
        state, replaced = self.request.state, {*self.supersedes, *(parent.id for parent in self.parents)}
        shown = state.context.list_reports(self.request.nodes, state.view)
        others = [each for each in shown if each.id not in replaced and not each.block]
        total = compute_summaries_budget(state.budget.usable)
        room = compute_room(total, sum(each.tokens for each in others))
        return compute_target(self.covered, room, level, most, is_merged=bool(self.parents))

    def make_id(self, secret: bytes, level: SummaryLevel, now_ms: int) -> str:
        """Return the id of the summary, which cannot be computed without the secret."""
        span = f"{self.span.start}:{self.span.stop}:{self.kind}:{level}:{now_ms}".encode()
        last = self.request.nodes[self.span.stop - 1]
        return make_reference(secret, self.request.session, sha256(b"summary" + last + span).digest())

    def list_raws(self) -> list[bytes]:
        """Return the raw messages that the summary covers, as the client sent them."""
        return self.request.state.request.list_raws(self.span.start)[: self.span.stop - self.span.start]

    def list_digests(self) -> tuple[bytes, ...]:
        """Return the hashes of the raw messages of a leaf."""
        if self.parents:
            return ()
        return self.request.state.request.list_digests(self.span.start, self.span.stop)


class JobResult:
    """The result of a manual compaction: the summaries in the order in which they were made, all calls, their cost.

    `problems` says, without duplicates, why the result is no better.
    """

    def __init__(self) -> None:
        self.summaries: list[Summary] = []
        self.calls: list[str] = []
        self.problems: list[str] = []
        self.cost = Cost()

    def add(self, summary: Summary, *, is_kept: bool) -> None:
        """Record the calls and problems of a summary, and the summary itself if `is_kept`."""
        if is_kept:
            self.summaries.append(summary)
        self.calls += summary.calls
        self.add_problem(summary.reason)

    def add_problem(self, problem: str) -> None:
        """Record a problem, unless it is empty."""
        if problem and problem not in self.problems:
            self.problems.append(problem)


def make_leaf_job(
    request: SentRequest, index: ConversationIndex, span: MessageRange, supersedes: tuple[str, ...] = ()
) -> SummaryJob:
    """Return the job of a summary of messages."""
    foreign, references = find_foreign_messages(request, index), list_references(request, span)
    return SummaryJob(request, index, span, references, foreign, supersedes=supersedes)


def make_turns_job(request: SentRequest, index: ConversationIndex, start: int, stop: int) -> SummaryJob:
    """Return the job of a summary of whole turns for memory, from one place up to another."""
    span = MessageRange(start, stop, request.state.history.count(start, stop))
    return msgspec.structs.replace(make_leaf_job(request, index, span), is_for_memory=True)


def make_merge_job(
    request: SentRequest, index: ConversationIndex, parents: Sequence[Summary], supersedes: tuple[str, ...] = ()
) -> SummaryJob:
    """Return the job of a summary of summaries, which cover a span without a gap."""
    span = MessageRange(parents[0].start, parents[-1].stop, sum(parent.covered for parent in parents))
    files = tuple(dict.fromkeys(id for parent in parents for id in parent.files))
    return SummaryJob(request, index, span, files, find_foreign_messages(request, index), tuple(parents), supersedes)


def list_references(request: SentRequest, span: MessageRange) -> tuple[str, ...]:
    """Return the ids of everything that epochs elided in a span, the newest last."""
    if request.epoch is None:
        return ()
    epochs = request.state.context.trace(request.epoch.id)
    elided = (each for epoch in epochs for each in epoch.originals if span.start <= each.place < span.stop)
    return tuple(dict.fromkeys(each.id for each in sorted(elided, key=lambda each: each.place)))


def find_foreign_messages(request: SentRequest, index: ConversationIndex) -> frozenset[int]:
    """Return the indexes of messages in the user's role that are not the user's words.

    These are the prompts of subagents, and reminders that a client writes.
    """
    is_delegated = bool(request.state.request.session.parent)
    users = (place for place, seen in enumerate(index.messages) if seen.structure.role == "user")
    return frozenset(
        place for place in users if is_delegated or index.messages[place].message.text.lstrip().startswith(_REMINDER)
    )


def format_date(now_ms: int) -> str:
    """Return a time in words."""
    return datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
