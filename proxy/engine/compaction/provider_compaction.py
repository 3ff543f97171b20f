"""The provider's own compaction as a summary: whether it is asked for, with which request, and what of it is accepted.

It covers all messages up to the end of a span, so each one replaces the one before it. It is asked for where a summary
of a model would be, and within the same limits. A provider that has none, or whose compaction is of no use, leaves the
span to a model.
"""

import logging
from collections.abc import Callable, Mapping, Sequence

import msgspec

from proxy.context.compaction.acceptance import AcceptedSummary, RejectedSummary
from proxy.context.compaction.spans import MessageRange
from proxy.context.plan_draft import can_show_compaction
from proxy.engine.compaction.job import SentRequest, SummaryJob, list_references
from proxy.engine.compaction.model_call import FailedCall, ModelResponse
from proxy.engine.compaction.model_health import CircuitBreakers
from proxy.engine.compaction.model_prompt import SummaryPrompt, expect_warm_input
from proxy.engine.policy import UNKNOWN_PROVIDER, Provider
from proxy.model.epoch import Summary
from proxy.wire import FORMATS
from proxy.wire.body import split_body
from proxy.wire.summary_request import write_compaction

# After a refusal of the request itself, the provider is not asked again for this model for a day.
_REFUSED_SECONDS = 86_400.0
_REFUSALS = frozenset({400, 404, 405, 422, 501})
# The output that is expected of a call, which nobody can limit, and the most characters that it may have.
_EXPECTED_TOKENS = 1500
_MOST_CHARACTERS = 1_000_000
_TITLE = "[The provider's own compaction of the conversation up to message {}]"
_SEALED = "Only the provider can read it."

_log = logging.getLogger("palimpsest.compaction")


class ProviderCompaction:
    """Decides whether a provider is asked. The keys of `providers` are upstream names."""

    def __init__(self, providers: Mapping[str, Provider], breakers: CircuitBreakers) -> None:
        self._providers = providers
        self._breakers = breakers

    def find_job(self, job: SummaryJob) -> SummaryJob | None:
        """Return the job of a compaction up to where a summary would end, or None if none is asked for.

        Only one for the next epoch is: of what models have written, for memory, and for a person who asks, models write
        summaries.
        """
        request, managed = job.request, job.request.state.request
        names, context = (managed.session.upstream, managed.model), request.state.context
        provider, form = self._providers.get(names[0], UNKNOWN_PROVIDER), FORMATS[managed.wire]
        is_allowed = provider.has_compaction and form.has_compaction
        is_other = job.is_for_memory or job.options is not None or bool(job.parents or job.supersedes)
        if not is_allowed or is_other or names[1] in context.given_up:
            return None
        if not self._breakers.allows(*name_task(*names)):
            return None
        earlier = [each for each in context.list_summaries(request.nodes, managed.model) if each.block]
        if not all(can_show_compaction(each.tokens, request.state.budget.usable) for each in earlier):
            return None  # the next one would be no shorter
        stop = job.span.stop
        span = MessageRange(0, stop, request.state.history.count_to(stop))
        replaced, references = tuple(each.id for each in earlier), list_references(request, span)
        return msgspec.structs.replace(job, span=span, references=references, supersedes=replaced)

    def note_response(self, names: tuple[str, str], response: ModelResponse | FailedCall) -> None:
        """Record whether an upstream and model have a compaction: an error, or an answer to the user, says that not."""
        if isinstance(response, FailedCall):
            is_refused = response.status in _REFUSALS and not response.is_too_long
            why = response.reason
        else:
            is_refused = not response.block and bool(response.text or response.is_tool_call)
            why = "it answered the user"
        if is_refused:
            self._breakers.refuse(*name_task(*names), _REFUSED_SECONDS)
            _log.warning(
                "the provider gives no compaction of its own, and is not asked for one for now: %s",
                why,
                extra={"upstream": names[0], "model": names[1]},
            )


def has_unused_compaction(request: SentRequest, live: Sequence[Summary]) -> bool:
    """Return whether the next epoch will show a compaction that the active one has not: until then none is made.

    The next one would replace it, and what it does not cover is in the ledger.
    """
    shown, usable = request.epoch.edits if request.epoch is not None else b"", request.state.budget.usable
    made = [each for each in live if each.block and can_show_compaction(each.tokens, usable)]
    return any(each.id.encode() not in shown for each in made)


def name_task(upstream: str, model: str) -> tuple[str, str]:
    """Return the names under which a circuit breaker counts failures of compactions, which no summary is to suffer."""
    return upstream, f"{model}, its own compaction"


def write_prompt(job: SummaryJob, *, is_cold: bool) -> SummaryPrompt | None:
    """Return the request for a compaction: the last one, up to the end of the span. None if it cannot be cut there."""
    request, managed = job.request, job.request.state.request
    epoch, body = request.epoch, split_body(request.body, managed.items_key)
    depth, frozen = (epoch.depth, len(epoch.rendered)) if epoch is not None else (0, 0)
    before = managed.chain.preamble.count + frozen - depth
    if body is None or job.span.stop < max(1, depth) or len(body.items) != before + len(managed.nodes):
        return None
    content = write_compaction(FORMATS[managed.wire], body, before + job.span.stop)
    if content is None:
        return None
    given = expect_warm_input(request)
    expected = msgspec.structs.replace(given, output=_EXPECTED_TOKENS, cached=0 if is_cold else given.cached)
    return SummaryPrompt(content, _EXPECTED_TOKENS, _MOST_CHARACTERS, expected, is_warm=True)


def check_compaction(
    job: SummaryJob, response: ModelResponse, count: Callable[[str], int]
) -> AcceptedSummary | RejectedSummary:
    """Return the compaction in a response as a summary, with what people may read of it, or why there is none."""
    if not response.block:
        return RejectedSummary(response.refusal or f"no compaction: {response.finish or 'nothing'}")
    content = FORMATS[job.request.state.request.wire].decode_message(response.block.encode()).content
    tokens = count(content.text) + content.frame
    if tokens >= job.covered:
        return RejectedSummary("the compaction is no shorter than what it covers")
    text = f"{_TITLE.format(job.span.stop)}\n{response.text or _SEALED}"
    return AcceptedSummary(text, tokens, job.references)
