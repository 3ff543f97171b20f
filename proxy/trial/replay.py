"""Replays transcripts through an engine of their own, and reads what it would have sent from its log.

The engine is the proxy's, with a clock that goes by the transcript and a provider that answers as it says. Its log is
in a directory of its own; no model is called, so that no summary is written by one.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, groupby
from pathlib import Path

import msgspec

from proxy.assembly import Engine, build_engine
from proxy.config import Settings
from proxy.config.sections import UpstreamSettings
from proxy.engine.models import PriceList
from proxy.model.epoch import Edit, Epoch, Replaced, Written
from proxy.model.events import Planned
from proxy.model.exchange import ClientRequest, Usage
from proxy.model.log import Bill, ExchangeRow
from proxy.transcripts.transcript import Transcript, TranscriptCall
from proxy.trial.estimate import Cut, EpochEstimate, SessionEstimate, sum_costs
from proxy.trial.requests import PATHS, Requests, list_pieces, make_response
from proxy.trial.upstream import ReplayClock, ReplayUpstream, SilentClient

Tell = Callable[[int, int], None]
"""Is told how many calls of how many are done."""

_IDLE_SECONDS = 5.0
_PAGE = 256
_MOST_TITLE = 200
_LEAST_FILLER = 64  # fewer tokens are not worth a text of their own
_HOSTS = {
    "anthropic": "https://api.anthropic.com/v1",
    "openai": "https://api.openai.com/v1",
    "openrouter": "https://openrouter.ai/api/v1",
    "deepseek": "https://api.deepseek.com/v1",
}
_USUAL = {"anthropic_messages": "anthropic", "chat_completions": "openai", "responses": "openai"}
_NO_USAGE = "its transcript has no usage of {0}: counted, with what the provider's cache should hold"
_MISSING = "its transcript is without {0}"
_SIZED = "{0}: their size is taken from the usage of the first call"
_edits = msgspec.json.Decoder(tuple[Edit, ...])


def group_by_upstream(transcripts: Iterable[Transcript], settings: Settings) -> dict[str, list[Transcript]]:
    """Return transcripts by the provider that they are replayed at: an empty name for the user's own upstreams.

    Where the settings name none, it is the one that the client calls.
    """
    groups: dict[str, list[Transcript]] = {}
    own = "upstreams" in settings.model_fields_set
    for transcript in transcripts:
        name = "" if own else transcript.provider if transcript.provider in _HOSTS else _USUAL[transcript.wire]
        groups.setdefault(name, []).append(transcript)
    return groups


def make_settings(settings: Settings, provider: str, folder: Path) -> Settings:
    """Return the settings of a replay: the user's, but that all is managed, and that nothing is written elsewhere."""
    compaction = settings.compaction.model_copy(update={"auto": False, "holdout_fraction": 0.0})
    changes = {"mode": "manage", "data": folder, "compaction": compaction}
    if provider:
        changes["upstreams"] = (UpstreamSettings(name=provider, base_url=_HOSTS[provider]),)
    else:
        changes["upstreams"] = tuple(each.model_copy(update={"kind": "openai"}) for each in settings.upstreams)
    changes["store"] = settings.store.model_copy(update={"on_failure": "forward", "max_bytes": None})
    changes["memory"] = settings.memory.model_copy(update={"mirror": None})
    return settings.model_copy(update=changes)


async def replay(settings: Settings, transcripts: Sequence[Transcript], tell: Tell) -> list[SessionEstimate]:
    """Return the estimates of transcripts, replayed one after another. Raises StoreUnavailable."""
    upstreams: list[ReplayUpstream] = []
    clock = ReplayClock()

    def connect(policy: object, *_: object) -> ReplayUpstream:
        upstreams.append(ReplayUpstream(getattr(policy, "name", "")))
        return upstreams[-1]

    engine = await build_engine(settings, clock=clock, connect=connect, is_indexed=False)
    try:
        engine.prepare()
        await engine.warm()
        for upstream in upstreams:
            engine.bus.subscribe(Planned, upstream.note_plan)
        done, whole = 0, sum(len(each.calls) for each in transcripts)
        found = []
        for transcript in transcripts:
            session = _Replay(engine, clock, upstreams, settings, transcript)
            found.append(await session.run(lambda n, before=done: tell(before + n, whole)))  # type: ignore[misc]
            done += len(transcript.calls)
        return found
    finally:
        await engine.close(_IDLE_SECONDS)


@dataclass(slots=True)
class _Baseline:
    """What the calls of a transcript used, and the tokens that its requests lack before their messages."""

    usages: list[Usage] = field(default_factory=list)
    counted: int = 0
    filler: int = 0


class _Replay:
    """One transcript at an engine."""

    def __init__(
        self,
        engine: Engine,
        clock: ReplayClock,
        upstreams: Sequence[ReplayUpstream],
        settings: Settings,
        transcript: Transcript,
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._upstreams = upstreams
        self._transcript = transcript
        self._upstream = next(iter(upstreams)).name
        self._prices = PriceList(engine.models.card, settings.providers())
        self._errors = 0
        self._sessions: dict[str, None] = {}  # where the log has its calls, in their order

    async def run(self, tell: Callable[[int], None]) -> SessionEstimate:
        """Replay all calls, and return the estimate."""
        transcript = self._transcript
        baseline = await self._measure()
        requests = Requests(transcript, baseline.filler)
        self._clock.begin(transcript.began_ms)
        for number, (call, usage) in enumerate(zip(transcript.calls, baseline.usages, strict=True)):
            await self._make_call(requests, number, call, usage)
            tell(number + 1)
        await self._settle()
        return await self._estimate(baseline)

    async def _make_call(self, requests: Requests, number: int, call: TranscriptCall, usage: Usage) -> None:
        await self._settle()
        self._clock.wait_until(call.at_ms)
        answer = partial(_answer, self._transcript, call)
        for upstream in self._upstreams:
            upstream.expect(number, usage, answer)
        body, client = requests.make_body(call), SilentClient()
        request = ClientRequest("POST", PATHS[self._transcript.wire], requests.make_headers(number), body)
        await self._engine.exchanges.carry(request, self._transcript.wire, client)
        self._errors += bool(client.error)
        self._sessions[client.session] = None

    async def _settle(self) -> None:
        """Wait until what the engine does behind a call is done, as it would be when the next one comes."""
        own = asyncio.current_task()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_IDLE_SECONDS):
                while waiting := [task for task in self._engine.tasks.held if task is not own]:
                    await asyncio.wait(waiting)

    async def _measure(self) -> _Baseline:
        """Return what each call used: as the transcript says, else as counted, with what its cache should hold."""
        transcript, found = self._transcript, _Baseline()
        model = transcript.model
        ratio = self._engine.models.counter.find_ratio(self._upstream, model)
        sizes = [await self._count(model, trail) for trail in transcript.trails]
        head = sum(await self._count_head(model))
        first = transcript.calls[0]
        if transcript.missing and first.usage is not None and first.usage.input:
            own = ratio.apply(head + sizes[first.trail][first.depth])
            lacking = round((first.usage.input - own) * (head + sizes[first.trail][first.depth]) / max(1, own))
            found.filler = lacking if lacking >= _LEAST_FILLER else 0
        before: TranscriptCall | None = None
        for call in transcript.calls:
            usage = call.usage
            if usage is None:
                found.counted += 1
                known = head + found.filler
                whole = ratio.apply(known + sizes[call.trail][call.depth])
                matching = 0 if before is None else self._find_shared(before, call)
                usage = await self._count_usage(call, before, whole, ratio.apply(known + sizes[call.trail][matching]))
            found.usages.append(usage)
            before = call
        return found

    async def _count(self, model: str, trail: Sequence[bytes]) -> Sequence[int]:
        tokens = await self._engine.models.counter.count_messages(model, trail)
        return [0, *accumulate(tokens)]

    async def _count_head(self, model: str) -> Sequence[int]:
        pieces = list_pieces(self._transcript.head)
        return await self._engine.models.counter.count_messages(model, [raw for raw, _ in pieces])

    def _find_shared(self, before: TranscriptCall, call: TranscriptCall) -> int:
        """Return how many messages of a request the one before it had, too."""
        if before.trail == call.trail:
            return min(before.depth, call.depth)
        one, other = (self._transcript.trails[each.trail][: each.depth] for each in (before, call))
        return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))

    async def _count_usage(
        self, call: TranscriptCall, before: TranscriptCall | None, whole: int, matching: int
    ) -> Usage:
        """Return the usage of a call by our count: what its last request had is read, if the cache still holds it."""
        counts = await self._engine.models.counter.count_messages(call.model, call.answer)
        card = self._engine.models.card(self._upstream, call.model)
        cache = self._prices.find_cache(self._upstream, card)
        idle = (call.at_ms - before.at_ms) / 1000 if before is not None and call.at_ms and before.at_ms else None
        read = 0 if before is None or cache.is_cold(idle) else min(whole, cache.find_read(matching))
        written = whole - read if cache.has_breakpoints else None
        return Usage(whole, sum(counts), read, written)

    async def _estimate(self, baseline: _Baseline) -> SessionEstimate:
        transcript, client = self._transcript, [usage.input or 0 for usage in baseline.usages]
        exchanges = [each for session in self._sessions for each in await self._list_bills(session)]
        sent = [rounds[-1].usage.input or 0 for rounds in exchanges]
        upstream = exchanges[0][0].upstream if exchanges else self._upstream
        bills = [bill for rounds in exchanges for bill in rounds if bill.usage.input is not None]
        calls = zip(transcript.calls, baseline.usages, strict=True)
        epochs, cut = await self._list_epochs()
        return SessionEstimate(
            transcript.id,
            transcript.client,
            transcript.version,
            transcript.model,
            upstream,
            " ".join(transcript.title.split())[:_MOST_TITLE],
            transcript.source,
            transcript.began_ms,
            sum_costs([self._prices.price(upstream, call.model, usage) for call, usage in calls]),
            sum_costs([self._prices.price(bill.upstream, bill.model, bill.usage) for bill in bills]),
            tuple(client),
            tuple(sent + client[len(sent) :]),
            sum(usage.output or 0 for usage in baseline.usages),
            epochs,
            cut,
            self._errors,
            tuple(_list_reasons(transcript, baseline)),
        )

    async def _list_bills(self, session: str) -> list[list[Bill]]:
        """Return the rounds of each exchange of a session."""
        archive, found = self._engine.archive, list[list[Bill]]()
        page = await archive.list_bills(0, _PAGE, session)
        while page:
            found += [list(rounds) for _, rounds in groupby(page, key=lambda bill: bill.seq)]
            page = await archive.list_bills(page[-1].seq, _PAGE, session)
        return found

    async def _list_epochs(self) -> tuple[tuple[EpochEstimate, ...], Cut]:
        """Return the epochs that were opened, and what the last one of each session shortens."""
        archive, found, cut = self._engine.archive, list[EpochEstimate](), Cut()
        for session in self._sessions:
            numbers = {row.id: row.n for row in await self._list_calls(session)}
            epochs = await archive.list_epochs(session)
            for epoch in epochs:
                named = epoch.why, epoch.tokens_before, epoch.tokens_after
                found.append(EpochEstimate(len(found) + 1, numbers.get(epoch.exchange, 0), *named))
            if epochs:
                cut += count_cut(await archive.load_epoch(session, len(epochs)))
        return tuple(found), cut

    async def _list_calls(self, session: str) -> list[ExchangeRow]:
        archive, found = self._engine.archive, list[ExchangeRow]()
        while page := await archive.list_calls(session, found[-1].n if found else 0, _PAGE):
            found += page
        return found


def _answer(transcript: Transcript, call: TranscriptCall, number: int, usage: Usage) -> bytes:
    return make_response(transcript.wire, call, number, usage)


def count_cut(epoch: Epoch) -> Cut:
    """Return what an epoch shortens."""
    edits = _edits.decode(epoch.edits) if epoch.edits else ()
    kinds = [edit.kind for edit in edits if isinstance(edit, Replaced)]
    told = {place for edit in edits if isinstance(edit, Written) for place in range(edit.start, edit.stop)}
    return Cut(kinds.count("tombstone"), kinds.count("file"), kinds.count("shortened"), len(told))


def _list_reasons(transcript: Transcript, baseline: _Baseline) -> Iterator[str]:
    """Yield why the estimate for a session is only one."""
    if transcript.missing:
        *others, last = transcript.missing
        what = f"{', '.join(others)} and {last}" if others else last
        yield (_SIZED if baseline.filler else _MISSING).format(_MISSING.format(what) if baseline.filler else what)
    if baseline.counted:
        whole = len(transcript.calls)
        yield _NO_USAGE.format("any call" if baseline.counted == whole else f"{baseline.counted} of {whole} calls")
