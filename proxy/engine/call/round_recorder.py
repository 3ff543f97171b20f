"""The record of a round: how it ended, with what came of its response, and who is told of it."""

import asyncio
import logging
from collections.abc import Sequence

from proxy.engine.call.open_exchange import OpenExchange
from proxy.engine.call.response_reader import AnswerKind, ResponseReader, UnreadAnswer
from proxy.engine.ports import Archive, Clock, UpstreamResponse
from proxy.engine.runtime import EngineBus
from proxy.model.events import ExchangeRecorded, LimitsTold
from proxy.model.exchange import Completeness, Outcome, Timings
from proxy.model.log import Record
from proxy.model.manifest import compute_digest
from proxy.wire.credentials import redact_answer, redact_headers, redact_quickly
from proxy.wire.headers import has_rate_limits, select_stored

_ERROR, _TOO_MANY = 400, 429
_ENDINGS: dict[Completeness, str] = {"failed": "failed", "truncated": "broke off"}

_log = logging.getLogger("palimpsest")


class RoundRecorder:
    """Records how rounds ended, and announces it."""

    def __init__(self, archive: Archive, reader: ResponseReader, bus: EngineBus, clock: Clock) -> None:
        self.archive = archive
        self._reader = reader
        self._bus = bus
        self._clock = clock

    async def redact(self, exchange: OpenExchange, response: UpstreamResponse) -> bytes:
        """Return a response's bytes with credentials redacted, for the log. Search long ones in a thread."""
        content, headers, status = exchange.buffer.content, response.headers, response.status
        kept = redact_quickly(content, headers, status, exchange.secrets)
        if kept is None:
            cap = exchange.buffer.cap
            kept = await asyncio.to_thread(redact_answer, content, headers, status, exchange.secrets, cap)
        return kept

    def end_round(
        self,
        exchange: OpenExchange,
        response: UpstreamResponse | None,
        completeness: Completeness,
        problem: str = "",
        kept: bytes = b"",
        *,
        kind: AnswerKind | None = None,
        is_unreached: bool = False,
    ) -> None:
        """Record and announce the outcome of a round from which the client gets nothing more."""
        outcome, _ = self.record(exchange, response, completeness, problem, kept)
        self.announce(exchange, outcome, kind, is_unreached=is_unreached)

    def record(
        self,
        exchange: OpenExchange,
        response: UpstreamResponse | None,
        completeness: Completeness,
        problem: str = "",
        kept: bytes = b"",
        *,
        also: Sequence[Record] = (),
    ) -> tuple[Outcome, "asyncio.Future[bool]"]:
        """Queue the outcome of a round, and what is recorded `also`. The future is done when both are durable.

        `response` is None if none came.
        """
        if exchange.opening is None:
            exchange.record_opening()
        status, headers = (response.status, response.headers) if response is not None else (0, ())
        buffer, secrets = exchange.buffer, exchange.secrets
        size, digest = len(kept), b""
        if size < buffer.size and (buffer.is_capped or not kept):  # what was not searched for credentials is not kept
            size, digest = buffer.size, buffer.whole_digest or compute_digest(buffer.content)
        moments = exchange.head_at, exchange.first_at, exchange.ended_at or self._clock.monotonic()
        # milliseconds with microsecond precision; 0 if it has not happened
        head_ms, first_ms, end_ms = [int((at - exchange.began) * 1_000_000) / 1000 if at else 0.0 for at in moments]
        overhead_ms = None if exchange.k or exchange.overhead is None else round(exchange.overhead * 1000, 3)
        timings = Timings(head_ms, first_ms, end_ms, overhead_ms)
        outcome = Outcome(
            exchange.id,
            exchange.k,
            status,
            redact_headers(select_stored(headers), secrets, is_error=status >= _ERROR),
            completeness,
            kept,
            size,
            digest,
            timings,
            problem,
        )
        return outcome, self.archive.append(outcome, *also)

    def announce(
        self,
        exchange: OpenExchange,
        outcome: Outcome,
        kind: AnswerKind | None = None,
        *,
        is_unreached: bool = False,
    ) -> None:
        """Publish the end of a round, and queue its response for reading. `is_unreached`: the upstream gave none.

        `kind` is None for the last round of an answer.
        """
        if kind is None:
            kind = "stitched" if exchange.rounds is not None and exchange.rounds.is_continued else "whole"
        opening = exchange.opening
        assert opening is not None, "the opening is recorded with the outcome at the latest"
        if outcome.completeness not in ("complete", "aborted"):  # the line contains no body, query value or credential
            reason = outcome.error or "unknown reason"
            named = {"exchange": exchange.id, "session": opening.session.id, "upstream": exchange.upstream}
            _log.warning(
                "a call %s, status %d: %s", _ENDINGS[outcome.completeness], outcome.status, reason, extra=named
            )
        ended = ExchangeRecorded(
            exchange.id,
            opening.session.id,
            opening.kind,
            opening.wire,
            exchange.upstream,
            outcome.status,
            outcome.completeness,
            opening.body.size,
            outcome.size,
            outcome.timings.first_byte_ms / 1000,
            outcome.timings.total_ms / 1000,
            is_readable=exchange.format is not None and outcome.size > 0,
            is_final=kind in ("whole", "stitched"),
            model=opening.model,
            is_unreached=is_unreached,
            overhead_s=exchange.overhead,
            k=exchange.k,
            plan=exchange.plans[-1] if exchange.plans else None,
            error=outcome.error,
        )
        self._bus.publish(ended)
        if outcome.status == _TOO_MANY or has_rate_limits(outcome.headers):
            limits = (opening.session.tenant, opening.model, outcome.status, outcome.headers)
            self._bus.publish(LimitsTold(exchange.id, exchange.upstream, *limits))
        if exchange.format is None or not outcome.size:
            return
        told_by = (outcome.headers, outcome.received, ended, exchange.secrets)
        unread = UnreadAnswer(exchange.id, exchange.k, exchange.format, *told_by, kind)
        (self._reader.read_refusal if kind == "refused" else self._reader.submit)(unread)
