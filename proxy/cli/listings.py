"""The log's rows as text for people. Rule: one line per row; what only a program needs is in the JSON form."""

from collections.abc import Iterator, Sequence

from proxy.cli.text import cut, lay_out, make_plain, write_time
from proxy.model.exchange import Usage
from proxy.model.log import ExchangeRow, RoundRow, SessionRow

_SESSION_HEADINGS = ("SESSION", "LAST CALL", "CALLS", "MODEL", "INPUT", "OUTPUT", "UPSTREAM", "CLIENT'S NAME")
_EXCHANGE_HEADINGS = ("N", "TIME", "CALL", "MODEL", "STATUS", "END", "INPUT", "OUTPUT", "SECONDS")
_WIDTH = 40
_OPEN = "open, or cut by a crash"
_NO_USAGE = Usage()


def list_sessions(rows: Sequence[SessionRow]) -> str:
    """A table of sessions."""
    if not rows:
        return "The log holds no sessions yet; start `palimpsest serve` and point a client at it."
    return lay_out(_SESSION_HEADINGS, [_place_session(row) for row in rows])


def list_exchanges(rows: Sequence[ExchangeRow]) -> str:
    """A session's timeline."""
    return lay_out(_EXCHANGE_HEADINGS, [_place_exchange(row) for row in rows])


def tell_exchange(row: ExchangeRow) -> str:
    """One exchange: what was asked, how each round ended, the answer."""
    lines = [
        f"exchange  {row.id}, number {row.n} of session {row.session}",
        f"time      {write_time(row.opened_ms)}",
        f"call      {row.method} {row.target} ({row.wire or 'no known wire format'}; {row.kind}, mode {row.mode})",
        f"model     {row.model or '-'}",
        f"request   {row.request_size} bytes{', kept to the cap only' if row.is_capped else ''}",
    ]
    for round_ in row.rounds:
        lines += _tell_round(round_)
    return make_plain("\n".join(lines)) + "\n"


def _place_session(row: SessionRow) -> tuple[object, ...]:
    tokens = (row.input_tokens, row.output_tokens)
    return row.id, write_time(row.last_ms), row.exchanges, row.model, *tokens, row.upstream, cut(row.family, _WIDTH)


def _place_exchange(row: ExchangeRow) -> tuple[object, ...]:
    call = row.wire or cut(f"{row.method} {row.target}", _WIDTH)
    start = (row.n, write_time(row.opened_ms), call, row.model)
    if not row.rounds:
        return *start, "", _OPEN, "", "", ""
    last = row.rounds[-1]
    usage = last.usage or _NO_USAGE
    seconds = f"{last.timings.total_ms / 1000:.1f}" if last.timings else ""
    tokens = (_write_count(usage.input), _write_count(usage.output))
    return *start, last.status or "", last.completeness or _OPEN, *tokens, seconds


def _tell_round(row: RoundRow) -> Iterator[str]:
    size = f"{row.received_size} bytes{', kept to the cap only' if row.is_capped else ''}"
    yield f"round {row.k}   {row.upstream}: status {row.status or '-'}, {row.completeness or _OPEN}, {size}"
    if row.timings:
        yield f"timing    first byte {row.timings.first_byte_ms:.0f} ms, end {row.timings.total_ms:.0f} ms"
    if row.usage:
        counts = [(name, getattr(row.usage, name)) for name in Usage.__slots__]
        yield "tokens    " + ", ".join(f"{name} {count}" for name, count in counts if count is not None)
    if row.finish:
        yield f"finish    {row.finish}"
    if row.error:
        yield f"error     {row.error}"
    if row.answer:
        yield f"answer    {row.answer.decode(errors='replace')}"


def _write_count(count: int | None) -> str:
    return "" if count is None else str(count)
