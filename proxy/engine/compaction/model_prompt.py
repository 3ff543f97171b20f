"""The bodies of calls for summaries: the last request with an instruction appended, or a transcript."""

import asyncio

import msgspec

from proxy.context.compaction.prompts import (
    MAX_MESSAGE_CHARACTERS,
    MAX_SUMMARY_CHARACTERS,
    MAX_TOKENS,
    SummaryOrder,
    describe_span,
    divide_answer,
    render_instruction,
    render_request,
    render_summaries,
    render_transcript,
    render_wording,
)
from proxy.context.compaction.spans import LEAST_TARGET, MIN_MESSAGES, compute_max_span
from proxy.engine.compaction.job import SentRequest, SummaryJob
from proxy.engine.compaction.policy import CompactionPolicy, PromptHook
from proxy.engine.text_jobs import TextJobs
from proxy.model.epoch import SummaryLevel
from proxy.model.exchange import Usage
from proxy.wire import FORMATS
from proxy.wire.body import split_body
from proxy.wire.format import Format
from proxy.wire.summary_request import OutputLimit, write_compact, write_warm

_ASSUMED_WINDOW = 32_768  # of a model whose window is unknown
_SLACK = 1.5  # a response is cut off above this multiple of its allowed characters
_CHARACTERS_PER_TOKEN = 6
_FRAME_TOKENS = 600
_WHOLE = 10**9  # room for a transcript that is not shortened
# A summary is accepted up to this multiple of its requested length.
_TOLERANCE = 2


class SummaryPrompt(msgspec.Struct, frozen=True, gc=False):
    """The body of a call, the tokens and characters that its response may have, and its expected usage.

    A warm one repeats the request that was sent last, and so reads its prefix from the provider's cache.
    """

    body: bytes
    limit: int
    most_characters: int
    expected: Usage
    is_warm: bool


class PromptBuilder:
    """Writes the bodies of calls for summaries: transcripts by `texts`, what is around them in a thread.

    `hook` may change the instruction.
    """

    def __init__(self, policy: CompactionPolicy, hook: PromptHook | None, texts: TextJobs) -> None:
        self._policy = policy
        self._texts = texts
        self._count = texts.count
        self._hook = hook

    async def write_warm(
        self, job: SummaryJob, level: SummaryLevel, *, most: int | None = None, is_alternating: bool
    ) -> SummaryPrompt | None:
        """Return the last request with an instruction appended, for a summary of at most `most` tokens.

        A transcript in the instruction has what it does not show. Return None if that is too much, or if the request
        cannot be extended.
        """
        split = await asyncio.to_thread(split_body, job.request.body, job.request.state.request.items_key)
        if not job.is_visible or split is None:
            return None
        order = await asyncio.to_thread(self._make_order, job, level, most)
        hidden, transcript = job.hidden, ""
        if hidden.tokens:
            transcript = await self._texts.run(render_transcript, job.index, hidden, _WHOLE, None)
        stretch = describe_span(job.index, job.span, hidden.stop - hidden.start, transcript)
        limit = self._limit_output(order)
        form, told = FORMATS[job.request.state.request.wire], render_instruction(order, stretch)
        body = await asyncio.to_thread(write_warm, form, split, told, limit, is_alternating=is_alternating)
        if body is None:
            return None
        return _make_prompt(body, order, expect_input(job, is_warm=True), is_warm=True)

    async def write_compact(
        self,
        job: SummaryJob,
        level: SummaryLevel,
        model: str,
        window: int | None,
        *,
        form: Format,
        most: int | None = None,
    ) -> SummaryPrompt | None:
        """Return a separate request with a transcript, or None if the model's window is too small for one."""
        order = await asyncio.to_thread(self._make_order, job, level, most)
        room = self.compute_room(window, order.most)
        if room < MIN_MESSAGES:
            return None
        if job.parents:
            texts, longest = [parent.text for parent in job.parents], MAX_SUMMARY_CHARACTERS if level > 1 else None
            material = await self._texts.run(render_summaries, texts, room, longest)
        else:
            longest = MAX_MESSAGE_CHARACTERS if level > 1 else None
            material = await self._texts.run(render_transcript, job.index, job.span, room, longest)
        return await asyncio.to_thread(self._finish_compact, order, material, model, form)

    def _finish_compact(self, order: SummaryOrder, material: str, model: str, form: Format) -> SummaryPrompt:
        orders, text = render_request(order, material)
        body = write_compact(form, model, orders, text, self._limit_output(order))
        return _make_prompt(body, order, Usage(self._count(orders) + self._count(text)), is_warm=False)

    def compute_room(self, window: int | None, most: int) -> int:
        """Return the tokens that a transcript may have for a model with this window and `most` output tokens."""
        known = _ASSUMED_WINDOW if window is None else window
        scaled = known * self._policy.input_fraction / 0.75
        return min(compute_max_span(int(scaled), most), known - most - _FRAME_TOKENS)

    def _limit_output(self, order: SummaryOrder) -> OutputLimit:
        return OutputLimit(min(MAX_TOKENS[order.level], order.output), self._policy.reasoning_tokens)

    def _make_order(self, job: SummaryJob, level: SummaryLevel, most: int | None) -> SummaryOrder:
        custom = (job.options.prompt if job.options is not None else "") or self._policy.prompt
        if self._hook is not None:
            custom = self._hook(custom or render_wording(level), level, job.list_raws())
        allowed = MAX_TOKENS[level] if most is None else min(most, MAX_TOKENS[level])
        target, facts = job.compute_target(level, allowed), 0
        if level == 1 and not job.parents:
            target, facts = divide_answer(target, allowed, min(target, LEAST_TARGET))
        return SummaryOrder(job.kind, level, target, custom, facts)


def compute_limit(order: SummaryOrder) -> int:
    """Return the tokens above which a summary is rejected."""
    return min(MAX_TOKENS[order.level], _TOLERANCE * order.most)


def expect_input(job: SummaryJob, *, is_warm: bool) -> Usage:
    """Return the expected input of a call: the last request from the cache, or a transcript of what is covered."""
    if is_warm:
        return expect_warm_input(job.request, job.hidden.tokens)
    return Usage(job.request.state.to_model_tokens(job.covered) + _FRAME_TOKENS)


def expect_warm_input(request: SentRequest, hidden: int = 0) -> Usage:
    """Return the expected input of a call that repeats a request, with a transcript of `hidden` tokens."""
    sent = request.state.to_model_tokens(request.tokens)
    return Usage(sent + request.state.to_model_tokens(hidden) + _FRAME_TOKENS, cached=sent)


def _make_prompt(body: bytes, order: SummaryOrder, given: Usage, *, is_warm: bool) -> SummaryPrompt:
    expected, limit = msgspec.structs.replace(given, output=order.output), compute_limit(order)
    characters = int(_SLACK * _CHARACTERS_PER_TOKEN * (limit + order.output - order.most))
    return SummaryPrompt(body, limit, characters, expected, is_warm)
