"""What calls used: as their transcript says, or as counted; and what the same calls would have used, sent otherwise.

What was sent has the size that it has by our count, in the proportion of the provider's count to ours of the client's
own request. Of the cache it reads what the provider holds of it, less what the client's own request missed of that.
"""

from proxy.context.provider_cache import CacheModel
from proxy.engine.models import Models
from proxy.model.card import UNASKED
from proxy.model.exchange import Usage
from proxy.transcripts.transcript import Transcript, TranscriptCall
from proxy.trial.prompts import Prompt, PromptCache, PromptReader, count_prompt
from proxy.trial.requests import Requests
from proxy.wire import FORMATS
from proxy.wire.body import split_body

_LEAST_FILLER = 64  # fewer tokens are not worth a text of their own


class UsageEstimator:
    """The usage of the calls of one transcript, in their order.

    `usages` are those of the client's own requests so far, `counted` how many of them are by our count. `filler` are
    the tokens that the requests of the transcript lack before their messages. `measure` must be called first.
    """

    def __init__(self, models: Models, upstream: str, transcript: Transcript) -> None:
        self._models = models
        self._upstream = upstream
        self._transcript = transcript
        self._form = FORMATS[transcript.wire]
        self._reader = PromptReader(models.counter, self._form)
        self._head: Prompt = ()
        self._prompt: Prompt = ()
        self._trails: list[Prompt] = []
        self._own, self._sent = PromptCache(), PromptCache()
        self._cache = CacheModel()
        self._tokens = self._expected = 0  # of the newest call: its own request, and what should be read of that
        # The provider's tokens for each of ours, as its usages tell: what was counted by this itself teaches nothing.
        self._ratio = models.counter.find_ratio(upstream, transcript.model)
        self.requests = Requests(transcript)
        self.usages: list[Usage] = []
        self.counted = self.filler = 0

    async def measure(self) -> None:
        """Count what the transcript has, and find what its requests lack."""
        transcript, first = self._transcript, self._transcript.calls[0]
        model = transcript.model
        self._trails = [await self._reader.count(model, trail) for trail in transcript.trails]
        self._head = await self._reader.read(model, self.requests.make_head(model))
        own = count_prompt(self._head) + count_prompt(self._trails[first.trail][: first.depth])
        if transcript.missing and first.usage is not None and first.usage.input:
            counted = self._ratio.apply(own)
            lacking = round((first.usage.input - counted) * own / max(1, counted))
            self.filler = lacking if lacking >= _LEAST_FILLER else 0
            self.requests = Requests(transcript, self.filler)
            self._head = await self._reader.read(model, self.requests.make_head(model))
        split = split_body(self.requests.make_body(first), self._form.items_key)
        terms = self._form.read_terms(split) if split is not None else UNASKED
        self._cache = self._models.prices.find_cache(self._upstream, self._models.card(self._upstream, model), terms)

    async def find_own(self, call: TranscriptCall) -> Usage:
        """Return the usage of the client's own request, the next one."""
        prompt = [*self._head, *self._trails[call.trail][: call.depth]]
        # Where the transcript tells of the cache, it tells, too, when that was cold.
        now = call.at_ms / 1000 if call.usage is None else 0.0
        self._tokens, self._expected = count_prompt(prompt), self._own.take(prompt, self._cache, now)
        usage = call.usage
        if usage is None:
            self.counted += 1
            usage = await self._count(call)
        else:
            self._ratio = self._models.counter.find_ratio(self._upstream, call.model)
        self.usages.append(usage)
        self._prompt = prompt
        return usage

    def note_unchanged(self) -> None:
        """Note that the client's own request was sent as it was."""
        self._sent.take(self._prompt, self._cache, 0.0)

    async def estimate(self, body: bytes, own: Usage) -> Usage:
        """Return the usage of what was sent in place of the newest request, whose usage is `own`."""
        prompt = await self._reader.read(self._transcript.model, body)
        expected, tokens = self._sent.take(prompt, self._cache, 0.0), count_prompt(prompt)
        if not own.input or not self._tokens or not tokens:
            return own
        scale = own.input / self._tokens
        sent = round(tokens * scale)
        if own.cached is None:
            return Usage(sent, own.output, None, own.written, own.reasoning)
        read = expected * scale
        if 2 * self._expected >= self._tokens:  # else most of the client's own was new, too
            read += own.cached - self._expected * scale
        cached = min(sent, max(0, round(read)))
        fresh = own.input - own.cached
        share = (own.written or 0) / fresh if fresh > 0 else 0.0
        written = None if own.written is None else round((sent - cached) * min(1.0, share))
        return Usage(sent, own.output, cached, written, own.reasoning)

    async def _count(self, call: TranscriptCall) -> Usage:
        """Return the usage of a call by our count: what the provider should hold of it is read."""
        ratio = self._ratio
        answer = await self._models.counter.count_messages(call.model, call.answer)
        whole, read = ratio.apply(self._tokens), ratio.apply(self._expected)
        written = whole - read if self._cache.has_breakpoints else None
        return Usage(whole, ratio.apply(sum(answer)), min(read, whole), written)
