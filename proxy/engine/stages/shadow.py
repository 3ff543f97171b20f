"""The shadow check: a share of the calls that were sent shortened is sent again as the client made them.

It happens behind the call, with the credential of that call, and changes nothing of what the client gets. Both answers
are in the log, the second as a call of our own whose id ends in `SHADOW`; `read/shadow` compares them. Which calls are
drawn follows from their ids alone. Nothing is sent above `shadow.spend_per_day` or `compaction.spend_per_day`, to a
server that serves one request at a time, above the model's window, or where the provider itself would act a second time
(MCP). Signed reasoning that was made under an epoch may be refused, or read in another way, behind the client's own
beginning: a request that has such reasoning is sent only if `shadow.bound_reasoning` says so.
"""

import hashlib
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from proxy.context.loops.detection import name_call
from proxy.context.verbatim import may_bind_reasoning
from proxy.engine.background.jobs import BackgroundJobs
from proxy.engine.call.response_reader import ReadResponse
from proxy.engine.compaction.credentials import CallCredential, CredentialCache
from proxy.engine.compaction.model_call import MOST_BYTES, ModelCall, ModelCaller, ModelResponse
from proxy.engine.compaction.spending import SpendBudget
from proxy.engine.policy import ShadowPolicy
from proxy.engine.runtime import attempt
from proxy.model.epoch import Plan
from proxy.model.errors import NotFound, StoreUnavailable
from proxy.model.events import Event, ExchangeRecorded
from proxy.model.exchange import SUCCESS, SessionKey, Usage
from proxy.model.log import SHADOW, AuxiliaryUsage, ShadowRow
from proxy.model.lru import LruCache
from proxy.model.messages import RECALL_TOOL
from proxy.wire import FORMATS
from proxy.wire.format import Format

_JOB = "shadow"
_MOST_AT_ONCE = 4
_MOST_PLANS = 1024
_ALL = 1_000_000_000
_BITS = 64
# How an answer ends that its model, or its provider, has not brought to its end; a comma is between several choices.
_CUT = frozenset({"length", "max_tokens", "max_output_tokens", "model_context_window_exceeded", "content_filter"})
_CUT |= {"pause_turn", "refusal", "failed", "incomplete", "cancelled"}
# In JSON, and not in a string of it, where these quotation marks have a backslash.
_MCP = re.compile(rb'"mcp_servers"|"type"\s?:\s?"mcp(?:_toolset)?"')

_log = logging.getLogger("palimpsest.shadow")


Verdict = Literal["same", "arguments", "text", "other", "uncompared"]
"""How two answers compare: the same calls; the same tools with other arguments; other words, and no call in either;
other tools, or a call in one of them only. `uncompared`: one of them failed, or is not whole."""


NOT_COMPARED: Verdict = "uncompared"


class ShadowEnded(Event):
    """The client's own request was sent behind a call of a client, `exchange`, and the answers were compared."""

    exchange: str
    session: str
    upstream: str
    model: str
    verdict: Verdict


def is_drawn(exchange: str, fraction: float) -> bool:
    """Return whether a call is one of the `fraction` that are checked. It depends on its id only."""
    number = int.from_bytes(hashlib.sha256(f"shadow {exchange}".encode()).digest()[: _BITS // 8])
    return number < fraction * (1 << _BITS)


def is_whole(finish: str) -> bool:
    """Return whether an answer that ends so is one choice, and was brought to its end."""
    return finish not in _CUT and "," not in finish


def compare_answers(form: Format, finishes: Sequence[str], answers: Sequence[bytes]) -> Verdict:
    """Return how the answer to the client's own request differs from the one that the client got.

    Calls count with their arguments, in any spelling and order. A call of our own tool counts for nothing.
    """
    if not all(answers) or not all(map(is_whole, finishes)):
        return NOT_COMPARED
    (sent, said), (own, other) = [_read_answer(form, answer) for answer in answers]
    if not sent and not own:
        return "same" if said == other else "text"
    if sent == own:
        return "same"
    return "arguments" if [name for name, _ in sent] == [name for name, _ in own] else "other"


def _read_answer(form: Format, answer: bytes) -> tuple[list[tuple[str, str]], str]:
    """Return the calls of an answer, in an order that depends on them only, and its words."""
    messages = [form.parse_message(raw) for raw in form.list_echoes(answer)]
    calls = sorted(name_call(call) for each in messages for call in each.calls if call.name != RECALL_TOOL)
    return calls, " ".join(" ".join(each.text for each in messages).split())


def find_used(status: int, usage: Usage | None, expected: Usage) -> Usage:
    """Return what a shadow call used: what it was expected to, if the upstream took it and reported nothing."""
    if usage is not None and usage.input is not None:
        return usage
    return expected if status == 0 or status in SUCCESS else Usage(0, 0)


@dataclass(eq=False)
class ShadowCheck:
    """Sends the client's own request behind calls that are drawn. It listens to the bus, behind the trigger."""

    policy: ShadowPolicy
    caller: ModelCaller
    jobs: BackgroundJobs
    credentials: CredentialCache

    def __post_init__(self) -> None:
        caller, relay = self.caller, self.caller.relay
        self._archive, self._reader = relay.archive, relay.reader
        limits = replace(caller.limits, spend_per_day=self.policy.spend_per_day)
        self._budget = SpendBudget(limits, caller.models.prices, caller.bus, caller.clock)
        self._plans = LruCache[str, Plan](_MOST_PLANS)  # of calls that have rounds left
        self._running = 0
        caller.tasks.spawn(attempt(self._budget.load_today(self._sum_shadows), _log_unknown_spending))
        caller.bus.subscribe(ExchangeRecorded, self.note_exchange)

    async def _sum_shadows(self, since_ms: int) -> Sequence[AuxiliaryUsage]:
        rows = await self._archive.list_shadows(since_ms, _ALL)
        return [AuxiliaryUsage(each.session, each.upstream, each.model, 1, find_row_usage(each)) for each in rows]

    def note_exchange(self, event: ExchangeRecorded) -> None:
        """Check a call that has ended, if it is drawn and was sent shortened. Subscribed to the bus."""
        if event.kind != "managed" or not is_drawn(event.exchange, self.policy.fraction):
            return
        known, plan = self._plans.pop(event.exchange), event.plan
        if plan is not None and plan.tokens_client == 0:  # a round after the model has recalled
            plan = known
        if not event.is_final:
            if plan is not None:
                self._plans.put(event.exchange, plan)
            return
        if plan is None or not _is_shortened(plan) or event.status not in SUCCESS or event.completeness != "complete":
            return
        if self._running >= _MOST_AT_ONCE or self.jobs.is_local(event.upstream, event.model):
            return
        found = self.credentials.find_newest(event.session)  # the trigger has just stored that of this call
        if found is not None:
            self.jobs.start(event.session, _JOB, partial(self._check, event, plan, *found))

    async def _check(
        self, event: ExchangeRecorded, plan: Plan, session: SessionKey, credential: CallCredential
    ) -> None:
        self._running += 1
        try:
            read = await self._reader.read_now(event.exchange)
            if read is None or read.answer.error or not read.answer.is_ended or not is_whole(read.answer.finish):
                return
            usage = read.answer.usage
            expected = Usage(plan.tokens_client, usage.output if usage is not None else None)
            if (asked := await self._make_call(event, session, credential, expected)) is not None:
                await self._send(event, asked, read)
        except (NotFound, StoreUnavailable) as error:
            _log.info("a call is not checked: %s", error, extra={"exchange": event.exchange})
        finally:
            self._running -= 1

    async def _make_call(
        self, event: ExchangeRecorded, session: SessionKey, credential: CallCredential, expected: Usage
    ) -> ModelCall | None:
        """Return the call with the client's own request, None if that is not to be sent. Raises NotFound."""
        form, own = FORMATS[event.wire], event.exchange
        manifest, body = await self._archive.load_manifest(own), await self._archive.load_request(own)
        is_bound = may_bind_reasoning(event.model) and any(name in body for name in form.signed_names)
        if manifest.whole_digest or _MCP.search(body) or (is_bound and not self.policy.bound_reasoning):
            return None
        return ModelCall(
            *(session, credential, credential.upstream, form, event.model, body),
            most_characters=MOST_BYTES,
            expected=expected,
            repeats=(own + SHADOW, manifest),
        )

    async def _send(self, event: ExchangeRecorded, asked: ModelCall, read: ReadResponse) -> None:
        """Make the call if it can be afforded, and tell how both answers compare."""
        budget, verdict = self._budget, NOT_COMPARED
        expected = budget.price(*asked.names, asked.expected)
        if expected.money is None or budget.find_objection("", expected, is_manual=True):
            return
        budget.reserve("", expected)
        cost = expected  # of a call that is cancelled
        try:
            outcome = await self.caller.call(asked, is_manual=True)
            if isinstance(outcome, ModelResponse):
                finishes, answers = (read.answer.finish, outcome.finish), (read.plain, outcome.answer)
                verdict = compare_answers(FORMATS[event.wire], finishes, answers)
                used = find_used(0, outcome.usage, asked.expected)
            else:
                used = find_used(outcome.status, None, asked.expected) if outcome.exchange else Usage()
            cost = budget.price(*asked.names, used)
        finally:
            budget.settle("", event.exchange, expected, cost)
        if outcome.exchange:
            self.caller.bus.publish(ShadowEnded(event.exchange, event.session, *asked.names, verdict))


def find_row_usage(row: ShadowRow) -> Usage:
    """Return what a recorded shadow call used."""
    return find_used(row.status, row.usage, row.expected)


def _is_shortened(plan: Plan) -> bool:
    """Return whether less was sent than the client did, of what its model could have had."""
    client, sent = plan.tokens_client or 0, plan.tokens_upstream or 0
    return bool(plan.epoch) and plan.rung != "original" and 0 < sent < client and not 0 < plan.window < client


def _log_unknown_spending(error: Exception) -> None:
    _log.error("the log did not say what was spent today; no call is checked until a restart", exc_info=error)
