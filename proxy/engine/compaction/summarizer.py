"""Writing one summary: models are asked in order, level by level. If all fail, it is assembled without a model."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import msgspec

from proxy.context.compaction.acceptance import AcceptedSummary, RejectedSummary, SummaryTask, check_summary
from proxy.context.compaction.digest import digest_messages, digest_summaries
from proxy.context.compaction.prompts import MAX_TOKENS
from proxy.context.compaction.spans import LEAST_TARGET, WITHOUT_MODEL
from proxy.context.compaction.summary_text import SummaryFrame
from proxy.engine.compaction.credentials import CallCredential
from proxy.engine.compaction.job import SentRequest, SummaryJob, format_date
from proxy.engine.compaction.model_call import FailedCall, ModelCall, ModelCaller, ModelResponse
from proxy.engine.compaction.model_prompt import PromptBuilder, SummaryPrompt, expect_input, expect_warm_input
from proxy.engine.compaction.policy import PromptHook
from proxy.engine.compaction.provider_compaction import (
    ProviderCompaction,
    check_compaction,
    name_task,
    write_prompt,
)
from proxy.engine.compaction.scheduling import SummaryModel, list_summary_models
from proxy.engine.policy import UNKNOWN_PROVIDER
from proxy.engine.request_resolver import Route
from proxy.engine.runtime import attempt
from proxy.engine.text_jobs import TextJobs
from proxy.model.epoch import Summary, SummaryLevel
from proxy.wire.format import Format
from proxy.wire.headers import select_stored
from proxy.wire.summary_request import raise_output_limit

_MODEL_LEVELS: tuple[SummaryLevel, ...] = (1, 2)
# Statuses that the body of a request may have caused, not the state of the upstream.
_DUE_TO_REQUEST = frozenset({200, 400, 413, 422})
_NO_CREDENTIAL = "no model was asked: no call of this session was accepted in the last half hour, or since the start"

KeepsLease = Callable[[], Awaitable[bool]]
"""Renews the lease of a branch; returns whether it is still held."""

_log = logging.getLogger("palimpsest.compaction")


@dataclass(slots=True)
class SummaryAttempts:
    """The attempts at a summary: the calls, and what was wrong with each, or why none was made.

    `is_speechless`: a model twice wrote no text; a shorter form would not help. `is_lost`: the lease is lost.
    """

    calls: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    is_speechless: bool = False
    is_lost: bool = False

    @property
    def reason(self) -> str:
        """Return all problems without duplicates."""
        return "; ".join(dict.fromkeys(self.problems))


class _Attempt(msgspec.Struct, frozen=True, gc=False):
    """A summary to be asked for on one level and from one model, or its provider. `attempts` has the attempts so far.

    `keeps_lease` is called before each model call. `is_custom`: the instruction is the user's own.
    """

    job: SummaryJob
    credential: CallCredential
    target: SummaryModel
    level: SummaryLevel
    attempts: SummaryAttempts
    keeps_lease: KeepsLease
    is_custom: bool
    is_by_provider: bool = False  # the provider's own compaction is asked for

    @property
    def names(self) -> tuple[str, str]:
        """Return the upstream and the model."""
        return self.target.upstream.name, self.target.model

    @property
    def breaker_key(self) -> tuple[str, str]:
        """Return the upstream and the name under which a circuit breaker counts the failures of this kind of task.

        A model that merges badly may summarise well. Results of a user's own instruction count only for its session.
        """
        upstream, model = self.names
        if self.is_by_provider:
            return name_task(upstream, model)
        task = f"{model}, merging" if self.job.parents else model
        return upstream, f"{task}, as asked in {self.job.request.session}" if self.is_custom else task

    def add_problem(self, problem: str) -> None:
        """Record what is wrong with the model's response, or why it was not asked."""
        self.attempts.problems.append(f"{self.target.model}: {problem}")


@dataclass(eq=False)
class Summarizer:
    """Writes summaries, and never fails: responses of models are validated, and summaries can be made without a model.

    `hook` may change the instruction. `secret` makes the ids of summaries unguessable.
    """

    caller: ModelCaller
    hook: PromptHook | None
    routes: Sequence[Route]
    secret: bytes
    texts: TextJobs

    def __post_init__(self) -> None:
        caller, self.count = self.caller, self.texts.count
        self.policy, self.models, self.health, self.clock = caller.limits, caller.models, caller.health, caller.clock
        self.providers, self.prompts = self.models.providers, PromptBuilder(self.policy, self.hook, self.texts)
        self.provider_compaction = ProviderCompaction(self.providers, self.health.breakers)

    def find_route(self, upstream: str) -> Route | None:
        """Return the route of an upstream, None if the settings have it no more."""
        return next((route for route in self.routes if route.upstream.name == upstream), None)

    def may_ask(self, request: SentRequest) -> bool:
        """Return whether the session's model may be asked for the shortest summary of what a request shows.

        It must not have failed lately, and the share of the session must allow for it. If another model is asked first,
        that depends on the span.
        """
        managed = request.state.request
        target = next(list_summary_models(self.policy, managed.upstream, request.state.request.model, self.routes))
        if (target.upstream.name, target.model) != (managed.upstream.name, managed.model):
            return True
        given, names = expect_warm_input(request), (target.upstream.name, target.model)
        if not (self.policy.fallback_models or self.health.breakers.allows(*names)):
            return False
        return self.health.budget.count_affordable(request.session, *names, given, LEAST_TARGET) >= LEAST_TARGET

    async def summarize(
        self, job: SummaryJob, credential: CallCredential | None, keeps_lease: KeepsLease, *, is_needed: bool = False
    ) -> Summary | None:
        """Return the summary, or None if the lease was lost.

        Return None also if no model could be asked, unless `is_needed`: a ledger says as much meanwhile.
        """
        attempts = SummaryAttempts()
        for each in self._list_attempts(job, credential, attempts, keeps_lease):
            summary = await attempt(self._try(each), partial(_note_fault, attempts))
            if summary is not None:
                return summary
            if attempts.is_lost:
                return None
        if not await keeps_lease():
            return None
        if not (attempts.calls or is_needed):
            why = attempts.reason or "there is no model to ask"
            _log.info("no summary for now: %s", why, extra={"session": job.request.session})
            return None
        return await self.write_without_model(job, attempts)

    def _list_attempts(
        self, job: SummaryJob, credential: CallCredential | None, attempts: SummaryAttempts, keeps_lease: KeepsLease
    ) -> Iterator[_Attempt]:
        """Yield the next attempt while there is no summary.

        Without a credential, only upstreams with an API key in the settings are asked.
        """
        policy, options, request = self.policy, job.options, job.request
        levels = [level for level in _MODEL_LEVELS if level >= job.level]
        if not policy.level2:
            del levels[1:]
        is_custom = bool(policy.prompt or policy.prompt_hook or (options is not None and options.prompt))
        if options is not None and options.model:
            policy = replace(policy, model=options.model)
        used = credential or _make_bare_credential(job)
        if (job_of_provider := self.provider_compaction.find_job(job)) is not None:
            home = SummaryModel(used.upstream, request.state.request.model)
            each = _Attempt(job_of_provider, used, home, 1, attempts, keeps_lease, is_custom, is_by_provider=True)
            if credential is not None or home.upstream.name in self.health.owned:
                yield each
        for level in levels:
            if attempts.is_speechless or (level > levels[0] and not attempts.calls):
                return  # a shorter form helps only if a response was rejected, not if no call was allowed
            for target in list_summary_models(policy, used.upstream, request.state.request.model, self.routes):
                each = _Attempt(job, used, target, level, attempts, keeps_lease, is_custom)
                if credential is None and target.upstream.name not in self.health.owned:
                    attempts.problems.append(_NO_CREDENTIAL)
                elif self._is_allowed(each):
                    yield each
                else:
                    what = "merged summaries" if job.parents else "summaries by this instruction"
                    each.add_problem(f"its {what} were rejected lately; it is not asked for them for a while")

    def _is_allowed(self, each: _Attempt) -> bool:
        return each.breaker_key == each.names or self.health.breakers.allows(*each.breaker_key)

    async def _try(self, each: _Attempt) -> Summary | None:
        """Return the summary of a model, or None if its response is no summary of this level."""
        if each.is_by_provider:
            return await self._ask_provider(each)
        for is_warm in (True, False):
            if is_warm and not self._may_be_warm(each):
                continue
            most = self._find_most(each, is_warm=is_warm)
            prompt = await self._write_prompt(each, most, is_warm=is_warm)
            if prompt is None:
                continue
            response = await self._call(each, prompt)
            if isinstance(response, ModelResponse) and not (response.is_tool_call or response.has_no_room_left):
                return await self._judge(each, prompt, response)
            if response is None:
                return None
            # If the warm request was too long, or led to a tool call, a transcript may still succeed.
            is_other_way = response.is_too_long if isinstance(response, FailedCall) else response.is_tool_call
            if not (is_warm and is_other_way):
                return None
        return None

    async def _ask_provider(self, each: _Attempt) -> Summary | None:
        """Return the provider's own compaction, or None if there is none."""
        is_cold = self.health.cache_hits.is_cold(*each.names)
        prompt = await asyncio.to_thread(write_prompt, each.job, is_cold=is_cold)
        response = await self._call(each, prompt) if prompt is not None else None
        if prompt is None or response is None:
            return None
        summary = await self._judge(each, prompt, response) if isinstance(response, ModelResponse) else None
        self.provider_compaction.note_response(each.names, response)
        return summary

    def _may_be_warm(self, each: _Attempt) -> bool:
        managed = each.job.request.state.request
        is_same = each.names == (managed.session.upstream, managed.model)
        return is_same and not self.health.cache_hits.is_cold(*each.names)

    def _find_most(self, each: _Attempt, *, is_warm: bool) -> int | None:
        """Return the tokens that the summary may have by its session's share of spending; None for no limit.

        If that is less than the least useful length, that is returned: the call itself is then refused.
        """
        job, most = each.job, MAX_TOKENS[each.level]
        if job.options is not None:
            return None
        given, session = expect_input(job, is_warm=is_warm), job.request.session
        return max(LEAST_TARGET, self.health.budget.count_affordable(session, *each.names, given, most))

    async def _write_prompt(self, each: _Attempt, most: int | None, *, is_warm: bool) -> SummaryPrompt | None:
        upstream, model = each.names
        if is_warm:
            is_alternating = self.providers.get(upstream, UNKNOWN_PROVIDER).strict_alternation
            return await self.prompts.write_warm(each.job, each.level, most=most, is_alternating=is_alternating)
        window = self.models.card(upstream, model).window
        form = self._find_form(each)
        return await self.prompts.write_compact(each.job, each.level, model, window, form=form, most=most)

    def _find_form(self, each: _Attempt) -> Format:
        return self.caller.find_form(each.job.request.state.request.session, each.credential, each.target.upstream)

    async def _call(self, each: _Attempt, prompt: SummaryPrompt) -> ModelResponse | FailedCall | None:
        """Send a prompt, and again with more output tokens if reasoning used all. Return None if not allowed."""
        response = await self._send(each, prompt, prompt.body)
        if isinstance(response, ModelResponse) and response.has_no_room_left:
            larger = raise_output_limit(prompt.body)
            response = (await self._send(each, prompt, larger) if larger is not None else None) or response
        if response is not None:
            self._record_failure(each, response)
        return response

    async def _send(self, each: _Attempt, prompt: SummaryPrompt, body: bytes) -> ModelResponse | FailedCall | None:
        """Send a body once. Return None if the lease is lost, or it is not allowed."""
        if not await each.keeps_lease():
            each.attempts.is_lost = True
            return None
        asked, is_manual = _make_call(each, prompt, body, self._find_form(each)), each.job.options is not None
        response = await self.caller.call(asked, is_manual=is_manual)
        if isinstance(response, FailedCall) and not response.exchange:
            each.add_problem(response.reason)
            return None
        each.attempts.calls.append(response.exchange)
        return response

    def _record_failure(self, each: _Attempt, response: ModelResponse | FailedCall) -> None:
        """Record the failure of a call, if it failed. One that the prompt may have caused counts for this task only."""
        if isinstance(response, FailedCall):
            problem, is_due_to_prompt = response.reason, response.status in _DUE_TO_REQUEST
        elif response.is_tool_call:
            problem, is_due_to_prompt = "it called a tool", True
        elif response.has_no_room_left:
            each.attempts.is_speechless = not each.is_by_provider
            problem, is_due_to_prompt = "reasoning took all its tokens", True
        else:
            return
        each.add_problem(problem)
        is_of_task = each.is_by_provider or (is_due_to_prompt and each.is_custom)
        failed = each.breaker_key if is_of_task else each.names
        self.health.breakers.record_failure(*failed)

    async def _judge(self, each: _Attempt, prompt: SummaryPrompt, response: ModelResponse) -> Summary | None:
        """Return the summary in a response, or None if it is rejected."""
        job, level, model, breakers = each.job, each.level, each.target.model, self.health.breakers
        now_ms = self.clock.now_ms()
        id = job.make_id(self.secret, level, now_ms)
        frame = SummaryFrame(id, model, format_date(now_ms))
        parents = tuple(parent.text for parent in job.parents)
        task = SummaryTask(job.index, job.span, level, prompt.limit, job.covered, job.references, parents, job.foreign)
        found: AcceptedSummary | RejectedSummary = RejectedSummary(response.refusal)
        if each.is_by_provider:
            found = await asyncio.to_thread(check_compaction, job, response, self.count)
        elif not response.refusal:
            found = await self.texts.run(check_summary, response.text, task, frame)
        if isinstance(found, RejectedSummary):
            each.add_problem(f"level {level}: {found.reason}")
            breakers.record_failure(*each.breaker_key)
            return None
        breakers.record_success(*each.names)
        breakers.record_success(*each.breaker_key)
        if found.missed:
            each.add_problem(f"left out {found.missed}")
        return _make_summary(
            job,
            found,
            each.attempts,
            id=id,
            now_ms=now_ms,
            level=level,
            model=model,
            is_provisional=level > job.level or bool(found.missed),
            block=response.block if each.is_by_provider else "",
        )

    async def write_without_model(self, job: SummaryJob, attempts: SummaryAttempts | None = None) -> Summary:
        """Return a summary that is assembled from the messages. Never fails."""
        now_ms = self.clock.now_ms()
        id = job.make_id(self.secret, WITHOUT_MODEL, now_ms)
        frame = SummaryFrame(id, "", format_date(now_ms))
        if job.parents:
            parents = [parent.text for parent in job.parents]
            text = await self.texts.run_surely(digest_summaries, parents, job.span, frame)
        else:
            text = await self.texts.run_surely(digest_messages, job.index, job.span, frame, job.references)
        files = tuple(dict.fromkeys((*(id for parent in job.parents for id in parent.files), *job.references)))
        written = AcceptedSummary(text, self.count(text), files)
        return _make_summary(
            job,
            written,
            attempts or SummaryAttempts(),
            id=id,
            now_ms=now_ms,
            level=WITHOUT_MODEL,
            is_provisional=job.level < WITHOUT_MODEL,
        )


def _make_bare_credential(job: SummaryJob) -> CallCredential:
    """Return a session's upstream and target without a credential, for upstreams with a key in the settings."""
    managed = job.request.state.request
    return CallCredential(managed.upstream, managed.target, select_stored(managed.headers))


def _make_call(each: _Attempt, prompt: SummaryPrompt, body: bytes, form: Format) -> ModelCall:
    managed = each.job.request.state.request
    return ModelCall(
        session=managed.session,
        credential=each.credential,
        upstream=each.target.upstream,
        form=form,
        model=each.target.model,
        body=body,
        most_characters=prompt.most_characters,
        expected=prompt.expected,
        extends=managed if prompt.is_warm else None,
        is_whole=not each.is_by_provider,
    )


def _make_summary(
    job: SummaryJob,
    written: AcceptedSummary,
    attempts: SummaryAttempts,
    *,
    id: str,
    now_ms: int,
    level: SummaryLevel,
    is_provisional: bool,
    model: str = "",
    block: str = "",
) -> Summary:
    managed = job.request.state.request
    return Summary(
        id=id,
        session=managed.session.id,
        wire=managed.wire,
        start=job.span.start,
        stop=job.span.stop,
        last=managed.nodes[job.span.stop - 1],
        kind=job.kind,
        level=level,
        is_provisional=is_provisional,
        text=written.text,
        tokens=written.tokens,
        covered=job.covered,
        made_ms=now_ms,
        exchange=managed.exchange,
        model=model,
        reason=attempts.reason,
        calls=tuple(attempts.calls),
        parents=tuple(parent.id for parent in job.parents),
        supersedes=job.supersedes,
        files=written.files,
        digests=job.list_digests(),
        block=block,
        facts=written.facts,
    )


def _note_fault(attempts: SummaryAttempts, error: Exception) -> None:
    _log.error("an attempt at a summary failed inside the proxy; the next model is asked", exc_info=error)
    attempts.problems.append(f"{type(error).__name__}: {error}")
