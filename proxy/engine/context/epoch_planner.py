"""Drafting an epoch: a plan of what replaces which messages, rendered as the bytes that will be sent."""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from itertools import pairwise

import msgspec

from proxy.context.budget import Budget
from proxy.context.builder import ContextBuilder
from proxy.context.conversation import CountedMessage, LiveSummary, MessageFeatures, PlanRequest, extract_features
from proxy.context.references import make_reference
from proxy.engine.context.history_cache import MeasuredHistory, count_shared
from proxy.engine.policy import Provider
from proxy.engine.request import ManagedRequest
from proxy.model.epoch import ContextPlan, Edit, Epoch, Kept, Original, Reference, Replaced, Written
from proxy.model.messages import Message, MessageStructure
from proxy.wire import FORMATS
from proxy.wire.rendering import reach_user, render

_ANY = Provider()
_JSON = "[This conversation asks for its answers as JSON.]"
_edits = msgspec.json.Decoder(tuple[Edit, ...])

_MESSAGE_WEIGHT = 600
_EDIT_WEIGHT = 200
_NODE_WEIGHT = 60
_WORD_WEIGHT = 60


class RenderedPlan(msgspec.Struct, frozen=True, gc=False):
    """A plan, and the raw messages that it renders to."""

    plan: ContextPlan
    rendered: tuple[bytes, ...]

    @property
    def weight(self) -> int:
        """Bytes of memory, roughly: what is written is in the plan and in what is sent."""
        return 2 * sum(map(len, self.rendered)) + _EDIT_WEIGHT * (len(self.plan.edits) + len(self.plan.references))


class EarlierPlan(msgspec.Struct, frozen=True, gc=False):
    """A plan that a later request may use, made for an earlier one of a model, with these nodes and so many tokens.

    That request itself is not kept: many sessions have such a plan, and each would hold a whole body.
    """

    model: str
    nodes: Sequence[bytes]
    drafting: "asyncio.Future[RenderedPlan]"
    tokens: int = 0

    @property
    def weight(self) -> int:
        """Bytes of memory, roughly."""
        drafting, nodes = self.drafting, _NODE_WEIGHT * len(self.nodes)
        if not drafting.done() or drafting.cancelled() or drafting.exception() is not None:
            return nodes
        return nodes + drafting.result().weight

    def serves(self, request: ManagedRequest) -> bool:
        """Return whether the plan is made, and a request has all messages that it replaces."""
        if not self.drafting.done() or self.drafting.cancelled():
            return False
        needed = 1 if self.drafting.exception() else self.drafting.result().plan.through
        return self.model == request.model and count_shared(self.nodes, request.nodes) >= needed


class PlanInputs(msgspec.Struct, frozen=True, gc=False):
    """The inputs of a draft beside the conversation: the epoch that applies, the indexes that are pinned, summaries.

    `goal`, `depth` and `must_fit` are as a plan request has them.
    """

    budget: Budget
    frozen: Epoch | None = None
    pinned: frozenset[int] = frozenset()
    reports: Sequence[LiveSummary] = ()
    goal: Budget | None = None
    depth: int = 0
    must_fit: bool = False


class PlanJob(msgspec.Struct, frozen=True, gc=False, tag="plan"):
    """All that a plan depends on, as values: it can be made in another process.

    `raws` are the client's messages behind the preamble, `nodes` their nodes, `tokens` their tokens. `session` and
    `secret` make the ids of references. `needs_json`: the upstream refuses the request without the word "JSON" in it.
    `is_minimal`: the plan is to be made in time linear in the messages' text. The rest is as in `PlanRequest`.
    """

    wire: str
    raws: list[bytes]
    nodes: list[bytes]
    tokens: list[int]
    head: int
    budget: Budget
    session: str
    secret: bytes
    provider: Provider
    pinned: frozenset[int] = frozenset()
    unkept: frozenset[int] = frozenset()
    frozen: ContextPlan | None = None
    reports: tuple[LiveSummary, ...] = ()
    goal: Budget | None = None
    sent: int | None = None
    depth: int = 0
    must_fit: bool = False
    needs_json: bool = False
    is_minimal: bool = False

    @property
    def weight(self) -> int:
        """Bytes of memory, roughly."""
        return sum(map(len, self.raws)) + _NODE_WEIGHT * len(self.raws)

    def name_reference(self, start: int, stop: int, offset: int) -> str:
        """Derive the id of a reference: the node of the last message names all before it."""
        named = b"%b%d:%d" % (self.nodes[stop - 1], stop - start, offset)
        return make_reference(self.secret, self.session, sha256(named).digest())


def compute_plan(job: PlanJob, builder: ContextBuilder) -> RenderedPlan:
    """Plan and render what is sent in place of the beginning of a history. Raises any error of planning."""
    form, raws, provider = FORMATS[job.wire], job.raws, job.provider
    request = make_plan_request(job)
    structures = [each.structure for each in request.messages]
    plan = builder.minimal(request) if job.is_minimal else builder.build(request)
    if provider.strict_alternation:
        edits, through = reach_user(form, plan.edits, plan.through, raws)
        plan = msgspec.structs.replace(plan, edits=edits, through=through)
    elif provider.summary_role == "assistant":
        plan = msgspec.structs.replace(plan, edits=_lead_with_user(plan.edits, structures))
    if job.needs_json:
        plan = msgspec.structs.replace(plan, edits=_require_json_word(plan, structures))
    is_alternating = provider.strict_alternation
    # the words of users that stay can be joined with ours beside them, those of the assistant's own cannot
    role = "user" if is_alternating else provider.summary_role
    return RenderedPlan(plan, tuple(render(form, plan.edits, raws, role=role, is_alternating=is_alternating)))


def make_plan_request(job: PlanJob) -> PlanRequest:
    """Return the conversation of a job as the plan builder takes it. Raises any error of reading it."""
    decoded = map(FORMATS[job.wire].decode_message, job.raws)
    return PlanRequest(
        [
            CountedMessage(each.message, each.structure, tokens)
            for each, tokens in zip(decoded, job.tokens, strict=True)
        ],
        job.head,
        job.budget,
        job.name_reference,
        pinned=job.pinned,
        frozen=job.frozen,
        reports=job.reports,
        goal=job.goal,
        sent=job.sent,
        depth=job.depth,
        must_fit=job.must_fit,
        unkept=job.unkept,
    )


class EpochPlanner:
    """Drafts epochs. `compute` makes a plan, in the worker process; `secret` makes references unguessable."""

    def __init__(
        self,
        compute: Callable[[PlanJob, bool], "asyncio.Future[RenderedPlan]"],
        builder: ContextBuilder,
        secret: bytes,
        providers: Mapping[str, Provider],
    ) -> None:
        self._compute = compute
        self._builder = builder
        self._secret = secret
        self._providers = providers

    def draft(
        self, request: ManagedRequest, history: MeasuredHistory, inputs: PlanInputs, *, is_ahead: bool = False
    ) -> "asyncio.Future[RenderedPlan]":
        """Draft what would be sent in place of the beginning of a request's history.

        The future may have any error of planning. `is_ahead`: nobody waits for it, so that other work goes first.
        """
        return self._compute(self.make_job(request, history, inputs), is_ahead)

    async def draft_minimal(
        self, request: ManagedRequest, history: MeasuredHistory, inputs: PlanInputs
    ) -> RenderedPlan:
        """Draft the least that can be sent, in a thread of this process: that the worker process failed may be why."""
        job = msgspec.structs.replace(self.make_job(request, history, inputs), is_minimal=True)
        return await asyncio.to_thread(compute_plan, job, self._builder)

    def make_job(self, request: ManagedRequest, history: MeasuredHistory, inputs: PlanInputs) -> PlanJob:
        """Return the job of a plan for a request."""
        rules = FORMATS[request.wire].read_rules(request.split, request.chain.preamble.count)
        return PlanJob(
            request.wire,
            request.list_raws(),
            list(request.nodes),
            [after - before for before, after in pairwise([0, *history.sums])],
            history.head.tokens,
            inputs.budget,
            request.session.id,
            self._secret,
            self._providers.get(request.session.upstream, _ANY),
            pinned=inputs.pinned,
            unkept=request.list_unkept(),
            frozen=None if inputs.frozen is None else read_plan(inputs.frozen),
            reports=tuple(inputs.reports),
            goal=inputs.goal,
            sent=_find_sent(request),
            depth=inputs.depth,
            must_fit=inputs.must_fit,
            needs_json=rules.needs_json,
        )


def list_originals(plan: ContextPlan, request: ManagedRequest, known: Mapping[str, Original]) -> tuple[Original, ...]:
    """Return what the references of a plan stand for.

    `known` are references that have their originals, by id: what one stands for stays the same though the client may
    spell its messages otherwise by now.
    """
    return tuple([known.get(each.id) or _keep_original(request, each) for each in plan.references])


def _find_sent(request: ManagedRequest) -> int | None:
    """Count the messages that were sent before; None unless the rest was appended to them: elsewhere all may be old."""
    step = request.step
    return step.base if step is not None and step.base and step.relation == "append" else None


def read_plan(epoch: Epoch) -> ContextPlan:
    """Parse the plan that an epoch was made of, as far as it is kept. Raises ValueError."""
    references = tuple(
        Reference(each.id, each.place, each.place + len(each.digests), each.offset) for each in epoch.originals
    )
    return ContextPlan(epoch.depth, _edits.decode(epoch.edits), references, epoch.tokens_after)


def _lead_with_user(edits: tuple[Edit, ...], structures: Sequence[MessageStructure]) -> tuple[Edit, ...]:
    """Put the user's first message before an assistant message of ours, which no list may begin with."""
    at = next((i for i, edit in enumerate(edits) if not isinstance(edit, Written)), 0)
    match edits[at : at + 1]:
        case (Kept() | Replaced() as first,) if structures[first.place].role == "user":
            return (first, *edits[:at], *edits[at + 1 :])
    return edits


def _require_json_word(plan: ContextPlan, structures: Sequence[MessageStructure]) -> tuple[Edit, ...]:
    """Add the word "JSON" to the last ledger, if all messages of the client's that had it are replaced.

    Providers refuse a JSON output format without the word. Where the client did not have it, it is not added.
    """
    ours = [(i, edit) for i, edit in enumerate(plan.edits) if isinstance(edit, Written) and not edit.report]
    if not ours or _has_json_word(plan, structures) or not any(structure.says_json for structure in structures):
        return plan.edits
    at, last = ours[-1]
    return (*plan.edits[:at], Written(f"{last.text}\n{_JSON}", last.start, last.stop), *plan.edits[at + 1 :])


def _has_json_word(plan: ContextPlan, structures: Sequence[MessageStructure]) -> bool:
    """Return whether anything that is sent under a plan has the word."""
    kept = [structures[edit.place] for edit in plan.edits if isinstance(edit, Kept)]
    if any(structure.says_json for structure in (*kept, *structures[plan.through :])):
        return True
    return any("json" in edit.text.lower() for edit in plan.edits if not isinstance(edit, Kept))


def _keep_original(request: ManagedRequest, reference: Reference) -> Original:
    digests = request.list_digests(reference.start, reference.stop)
    return Original(reference.id, digests, request.wire, reference.start, reference.offset)


class FeatureCache:
    """The features of the messages analysed last, of `most_bytes` together."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._known: OrderedDict[Message, MessageFeatures] = OrderedDict()
        self._changing = threading.Lock()
        self.weight = 0

    def find(self, message: Message) -> MessageFeatures:
        """Return the features of a message, extracted if they are not cached."""
        with self._changing:
            known = self._known.get(message)
            if known is not None:
                self._known.move_to_end(message)
                return known
        found = extract_features(message)
        with self._changing:
            if message not in self._known:
                self._known[message] = found
                self.weight += _weigh(message, found)
                self._shrink()
        return found

    def _shrink(self) -> None:
        while self.weight > self._most and self._known:
            self.weight -= _weigh(*self._known.popitem(last=False))


def _weigh(message: Message, findings: MessageFeatures) -> int:
    """Estimate bytes of memory: the message, and the words that were found in it."""
    said = len(message.text) + sum(len(call.arguments) for call in message.calls)
    words = sum(len(word) + _WORD_WEIGHT for word in findings.words)
    return _MESSAGE_WEIGHT + said + words
