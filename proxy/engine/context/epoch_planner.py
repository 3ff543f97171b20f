"""Drafting an epoch: a plan of what replaces which messages, rendered to the bytes that will be sent."""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from hashlib import sha256
from itertools import pairwise
from typing import Protocol

from msgspec.structs import replace

from proxy.context.builder import ContextBuilder
from proxy.context.conversation import CountedMessage, PlanInputs, PlanRequest
from proxy.context.message_features import MessageFeatures, extract_features
from proxy.context.references import forget_tool, make_reference
from proxy.context.verbatim import estimate_reasoning, find_tail
from proxy.engine.conversations.bodies import MeasuredHistory
from proxy.engine.policy import UNKNOWN_PROVIDER, Provider
from proxy.engine.request import ManagedRequest
from proxy.model import Value
from proxy.model.epoch import (
    Compacted,
    ContextPlan,
    Edit,
    Epoch,
    Kept,
    Original,
    ReducedForm,
    Reference,
    Replaced,
    Written,
    decode_edits,
)
from proxy.model.lineage import count_shared_nodes
from proxy.model.lru import LruCache
from proxy.model.messages import Message, MessageStructure
from proxy.wire import FORMATS
from proxy.wire.rendering import Role, detach_items, reach_user, render

_JSON = "[This conversation asks for its answers as JSON.]"
_NOTHING = ContextPlan(0, (), (), 0)

# A plan lasts until one message is new for each so many that it was made of, if it replaces anything and that pays, or
# else for each so few. Below twice as many messages each step has its own plan: which calls have one must not depend on
# how quickly plans are made.
_LASTING, _LASTING_BARE = 256, 20

# The inputs in which plans for requests of other sizes differ.
_SIZES = ("budget", "goal", "depth", "must_fit", "growth", "recalled", "tool_tokens")

_MESSAGE_WEIGHT = 600
_EDIT_WEIGHT = 200
_NODE_WEIGHT = 60
_WORD_WEIGHT = 60


class RenderedPlan(Value):
    """A plan, and the raw messages that it renders to."""

    plan: ContextPlan
    rendered: tuple[bytes, ...]

    @property
    def weight(self) -> int:
        """Bytes of memory, roughly. Written text is counted twice: in the plan and in what is rendered."""
        return 2 * sum(map(len, self.rendered)) + _EDIT_WEIGHT * (len(self.plan.edits) + len(self.plan.references))

    def exceeds(self, epoch: Epoch | None) -> bool:
        """Return whether the plan replaces more messages than an epoch, or has a summary which that does not have."""
        depth, edits = (epoch.depth, epoch.edits) if epoch is not None else (0, b"")
        reports = [edit.report for edit in self.plan.edits if isinstance(edit, Written) and edit.report]
        return self.plan.through > depth or any(report.encode() not in edits for report in reports)


class DraftedPlan(Value):
    """A plan that a later request may use, with the view, nodes and inputs of the request that it was drafted for.

    That request itself is not kept: many sessions have such a plan, and each would hold a whole body.
    """

    view: str
    nodes: Sequence[bytes]
    epoch: Epoch | None  # the one that applies to that request
    inputs: PlanInputs
    drafting: "asyncio.Future[RenderedPlan]"
    tail: int  # the place from which on it keeps all messages at the least

    @property
    def is_ready(self) -> bool:
        """Whether it is there, and no error."""
        return self.drafting.done() and not self.drafting.cancelled() and self.drafting.exception() is None

    @property
    def weight(self) -> int:
        """Bytes of memory, roughly."""
        return _NODE_WEIGHT * len(self.nodes) + (self.drafting.result().weight if self.is_ready else 0)

    @property
    def through(self) -> int:
        """The number of messages that it replaces. It must be ready."""
        return self.drafting.result().plan.through

    @property
    def tokens(self) -> int:
        """The tokens, without the preamble, that it leaves of the request that it is meant for. It must be ready."""
        return self.drafting.result().plan.tokens + self.inputs.growth

    def applies(self, inputs: PlanInputs, structures: Sequence[MessageStructure]) -> bool:
        """Return whether a plan with these inputs, for a request of these messages, would keep no more of them."""
        return self.is_like(inputs) and self.tail <= find_tail(structures)

    def is_like(self, inputs: PlanInputs) -> bool:
        """Return whether a plan with these inputs would differ by the size of its request alone."""
        sizes = {name: getattr(inputs, name) for name in _SIZES}
        return replace(self.inputs, **sizes) == inputs

    def lasts(self, request: ManagedRequest, epoch: Epoch | None, inputs: PlanInputs, is_unpaid: bool) -> bool:
        """Return whether no other plan with these inputs is to be made behind a request under `epoch`.

        It lasts until a share of its messages is new, so that all plans of a growing conversation together take time
        linear in it. Nor is one that is under way given up before: where planning takes longer than calls are apart,
        none would ever be there.
        """
        if self.view != request.view or self.epoch is not epoch or not self.is_like(inputs):
            return False
        if count_shared_nodes(self.nodes, request.nodes) < len(self.nodes):
            return False
        fresh = len(request.nodes) - len(self.nodes)
        if self.drafting.done() and not self.is_ready:
            return not fresh
        is_ready = self.is_ready and len(self.nodes) >= 2 * _LASTING
        share = _LASTING_BARE if is_ready and (is_unpaid or not self.through) else _LASTING
        return fresh * share <= len(self.nodes)

    def serves(self, request: ManagedRequest, epoch: Epoch | None) -> bool:
        """Return whether the plan is ready, and a request under `epoch` has all messages that it replaces."""
        is_same = self.is_ready and self.view == request.view and self.epoch is epoch
        return is_same and count_shared_nodes(self.nodes, request.nodes) >= self.through


class PlanJob(Value, tag="plan"):
    """All that a plan depends on, as values, so that another process can make it."""

    wire: str
    raws: list[bytes]  # the client's messages after the preamble
    nodes: list[bytes]  # of these messages
    tokens: list[int]  # of each of these messages
    head: int  # tokens of the preamble
    session: str  # `session` and `secret` make the ids of references
    secret: bytes
    provider: Provider
    inputs: PlanInputs
    is_minimal: bool = False  # make the plan in time linear in the messages' text

    @property
    def weight(self) -> int:
        """Bytes of memory, roughly."""
        return sum(map(len, self.raws)) + _NODE_WEIGHT * len(self.raws)

    def name_reference(self, start: int, stop: int, offset: int) -> str:
        """Derive the id of a reference. The node of the last message identifies all messages before it."""
        named = b"%b%d:%d" % (self.nodes[stop - 1], stop - start, offset)
        return make_reference(self.secret, self.session, sha256(named).digest())


def compute_plan(job: PlanJob, builder: ContextBuilder) -> RenderedPlan:
    """Plan and render what replaces the beginning of a history. Any error of planning propagates."""
    form, raws, request = FORMATS[job.wire], job.raws, make_plan_request(job)
    structures = [each.structure for each in request.messages]
    plan = builder.minimal(request) if job.is_minimal else builder.build(request)
    is_alternating, strategy = job.provider.strict_alternation or request.is_alternating, request.strategy
    # our messages can be joined with adjacent user messages that stay, but not with the assistant's
    is_user = is_alternating or strategy == "turns" or job.provider.summary_role == "user"
    if is_alternating or (strategy == "snapshot" and not is_user):
        edits, through = reach_user(form, plan.edits, plan.through, raws)
        plan = replace(plan, edits=edits, through=through)
    if not is_user:
        edits = _lead_with_user(plan.edits, structures)
        is_user = strategy == "snapshot" and _is_at_an_end(edits, plan.through == len(structures))
        plan = plan if is_user else replace(plan, edits=edits)
    if form.is_itemised:
        edits, through = detach_items(plan.edits, plan.through, structures)
        plan = replace(plan, edits=edits, through=through)
    if request.needs_json:
        plan = replace(plan, edits=_require_json_word(plan, structures))
    role: Role = "user" if is_user else "assistant"
    return RenderedPlan(plan, tuple(render(form, plan.edits, raws, role=role, is_alternating=is_alternating)))


def make_plan_request(job: PlanJob) -> PlanRequest:
    """Return a job as input for the plan builder. Any error of decoding its messages propagates."""
    decoded, inputs = map(FORMATS[job.wire].decode_message, job.raws), job.inputs
    counted = zip(decoded, job.tokens, strict=True)
    return PlanRequest(
        **{name: getattr(inputs, name) for name in inputs.__struct_fields__},
        messages=[CountedMessage(each.message, each.structure, tokens) for each, tokens in counted],
        head=job.head,
        name=job.name_reference,
        frozen=None if inputs.epoch is None else read_plan(inputs.epoch),
    )


class PlanWorker(Protocol):
    """Makes plans, one at a time, outside this process."""

    def plan(self, job: PlanJob, is_ahead: bool = False) -> "asyncio.Future[RenderedPlan]":
        """Return a future for the plan of a job. All others precede one that is made ahead."""
        ...

    def prioritise(self, plan: "asyncio.Future[RenderedPlan]") -> None:
        """Let a plan made ahead take its turn with the others."""
        ...


class EpochPlanner:
    """Drafts epochs. `worker` makes the plans; `secret` makes references unguessable.

    `sentences` has what outputs of a session are described by, as `ContextCaches.sentences` has it.
    """

    def __init__(
        self,
        worker: PlanWorker,
        builder: ContextBuilder,
        secret: bytes,
        providers: Mapping[str, Provider],
        sentences: LruCache[str, Mapping[str, str]],
    ) -> None:
        self._worker = worker
        self._builder = builder
        self._secret = secret
        self._providers = providers
        self._sentences = sentences

    def draft(
        self, request: ManagedRequest, history: MeasuredHistory, inputs: PlanInputs, *, is_ahead: bool = False
    ) -> "asyncio.Future[RenderedPlan]":
        """Start to draft what would replace the beginning of a request's history.

        The future may hold any error of planning. If `is_ahead`, nobody waits for it yet, and other jobs precede it.
        """
        return self._worker.plan(self.make_job(request, history, inputs), is_ahead)

    def takes_compactions(self, request: ManagedRequest) -> bool:
        """Return whether the upstream of a request takes a compaction of its provider."""
        return self._providers.get(request.session.upstream, UNKNOWN_PROVIDER).has_compaction

    async def wait(self, drafting: "asyncio.Future[RenderedPlan]", seconds: float) -> None:
        """Wait for a plan, whatever it becomes, for at most so many seconds."""
        self._worker.prioritise(drafting)
        await asyncio.wait((drafting,), timeout=max(0.0, seconds))

    async def draft_minimal(
        self, request: ManagedRequest, history: MeasuredHistory, inputs: PlanInputs
    ) -> RenderedPlan:
        """Draft a minimal plan in a thread of this process, since the worker process may be what has failed."""
        job = replace(self.make_job(request, history, inputs), is_minimal=True)
        return await asyncio.to_thread(compute_plan, job, self._builder)

    def make_job(self, request: ManagedRequest, history: MeasuredHistory, inputs: PlanInputs) -> PlanJob:
        """Return the job that makes a plan for a request."""
        form = FORMATS[request.wire]
        rules = form.read_rules(request.split, request.chain.preamble.count)
        lifted = inputs.budget.lifted
        raws, tokens = request.list_raws(), [after - before for before, after in pairwise([0, *history.sums])]
        for place in history.signed if inputs.is_bound else ():
            raws[place] = form.strip_reasoning(raws[place])
            tokens[place] = max(1, tokens[place] - estimate_reasoning(history.structures[place].signed))
        for place, added in inputs.recalled.items():
            tokens[place] += added
        return PlanJob(
            request.wire,
            raws,
            list(request.nodes),
            tokens,
            history.head.tokens + inputs.tool_tokens - lifted,
            request.session.id,
            self._secret,
            self._providers.get(request.session.upstream, UNKNOWN_PROVIDER),
            replace(
                inputs,
                budget=inputs.budget.lower(lifted),
                goal=inputs.goal and inputs.goal.lower(lifted),
                reports=tuple([each for each in inputs.reports if not each.block or self.takes_compactions(request)]),
                sent=_find_sent(request),
                unkept=request.list_unkept(),
                is_volatile=request.lineage is not None and request.lineage.relation == "volatile",
                needs_thinking=rules.needs_thinking,
                needs_json=rules.needs_json,
                strategy=request.strategy,
                sentences=self._sentences.peek(request.session.id) or {},
            ),
        )


def list_originals(plan: ContextPlan, request: ManagedRequest, known: Mapping[str, Original]) -> tuple[Original, ...]:
    """Return the original messages for the references of a plan.

    `known` has the originals of earlier references by id. They stay the same even if the client now serializes these
    messages differently.
    """
    # many references may lead to parts of one long message
    runs = dict.fromkeys([(each.start, each.stop) for each in plan.references if each.id not in known])
    digests = {run: request.list_digests(*run) for run in runs}
    return tuple([known.get(each.id) or _keep_original(request, each, digests) for each in plan.references])


def _find_sent(request: ManagedRequest) -> int | None:
    """Count the messages that were sent before. Return None unless the rest was appended: then all may be old."""
    lineage = request.lineage
    return lineage.base if lineage is not None and lineage.base and lineage.relation in ("append", "volatile") else None


def read_plan(epoch: Epoch) -> ContextPlan:
    """Parse the plan of an epoch, as far as the epoch keeps it. Raises ValueError."""
    references = tuple(
        Reference(each.id, each.place, each.place + len(each.digests), each.offset) for each in epoch.originals
    )
    return ContextPlan(epoch.depth, decode_edits(epoch.edits), references, epoch.tokens_after)


def reduce_epoch(
    request: ManagedRequest, epoch: Epoch | None, form: ReducedForm, signed: Sequence[int]
) -> RenderedPlan | None:
    """Return the plan of an epoch, or of none, in a reduced form; None if it has nothing that this form lacks.

    `alternating`: our messages are joined to adjacent messages of the user. `uncompacted`: without the provider's own
    compaction. `untooled`: with words that say how originals can be read without the tool. `unsigned`: it reaches to
    the last message with signed reasoning, which `signed` are the indexes of; what is rendered still has it.
    """
    wire, raws = FORMATS[request.wire], request.list_raws()
    has_edits = epoch is not None and epoch.depth > 0
    plan, rendered = (read_plan(epoch), epoch.rendered) if epoch is not None and has_edits else (_NOTHING, ())
    if form == "unsigned":
        kept = tuple(map(Kept, range(plan.through, max(signed, default=-1) + 1)))
        edits, through = (*plan.edits, *kept), plan.through + len(kept)
        return RenderedPlan(replace(plan, edits=edits, through=through), (*rendered, *render(wire, kept, raws)))
    if epoch is None:
        return None
    if form == "alternating":
        if not has_edits or epoch.is_compacted:
            return None
        edits, through = reach_user(wire, plan.edits, plan.through, raws)
        rendered = tuple(render(wire, edits, raws, is_alternating=True))
        return (
            RenderedPlan(replace(plan, edits=edits, through=through), rendered) if rendered != epoch.rendered else None
        )
    if form == "uncompacted":
        return RenderedPlan(replace(plan, edits=plan.edits[1:]), rendered[1:]) if epoch.is_compacted else None
    plan = read_plan(replace(epoch, edits=forget_tool(epoch.edits)))
    return RenderedPlan(plan, tuple(map(forget_tool, rendered))) if epoch.tool else None


def _lead_with_user(edits: tuple[Edit, ...], structures: Sequence[MessageStructure]) -> tuple[Edit, ...]:
    """Move the user's first message before our assistant message, since no list of messages may begin with one.

    Behind a provider's own compaction one may come.
    """
    if edits and isinstance(edits[0], Compacted):
        return edits
    at = next((i for i, edit in enumerate(edits) if not isinstance(edit, Written)), 0)
    match edits[at : at + 1]:
        case (Kept() | Replaced() as first,) if structures[first.place].role == "user":
            return (first, *edits[:at], *edits[at + 1 :])
    return edits


def _is_at_an_end(edits: Sequence[Edit], is_all: bool) -> bool:
    """Return whether our message would be the first of all or, where the edits are all that is sent, the last."""
    ends = (*edits[:1], *(edits[-1:] if is_all else ()))
    return any(isinstance(edit, Written) for edit in ends)


def _require_json_word(plan: ContextPlan, structures: Sequence[MessageStructure]) -> tuple[Edit, ...]:
    """Add the word "JSON" to the last ledger if all client messages that had it are replaced.

    Providers refuse a JSON output format without the word. It is not added if the client never had it.
    """
    ours = [(i, edit) for i, edit in enumerate(plan.edits) if isinstance(edit, Written) and not edit.report]
    if not ours or _has_json_word(plan, structures) or not any(structure.says_json for structure in structures):
        return plan.edits
    at, last = ours[-1]
    return (*plan.edits[:at], Written(f"{last.text}\n{_JSON}", last.start, last.stop), *plan.edits[at + 1 :])


def _has_json_word(plan: ContextPlan, structures: Sequence[MessageStructure]) -> bool:
    """Return whether anything that is sent under a plan has the word "JSON"."""
    kept = [structures[edit.place] for edit in plan.edits if isinstance(edit, Kept)]
    if any(structure.says_json for structure in (*kept, *structures[plan.through :])):
        return True
    return any("json" in edit.text.lower() for edit in plan.edits if not isinstance(edit, Kept))


def _keep_original(
    request: ManagedRequest, reference: Reference, digests: Mapping[tuple[int, int], tuple[bytes, ...]]
) -> Original:
    start = reference.start
    return Original(reference.id, digests[start, reference.stop], request.wire, start, reference.offset)


class FeatureCache:
    """The features of the messages analysed last, up to `most_bytes` in total."""

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

    def clear(self) -> None:
        """Forget everything."""
        with self._changing:
            self._known.clear()
            self.weight = 0

    def _shrink(self) -> None:
        while self.weight > self._most and self._known:
            self.weight -= _weigh(*self._known.popitem(last=False))


def _weigh(message: Message, findings: MessageFeatures) -> int:
    """Estimate the bytes of memory of a message and the words that were found in it."""
    said = len(message.text) + sum(map(len, message.outputs)) + sum(len(call.arguments) for call in message.calls)
    words = sum(len(word) + _WORD_WEIGHT for word in findings.words)
    return _MESSAGE_WEIGHT + said + words
