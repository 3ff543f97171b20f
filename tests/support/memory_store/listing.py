"""Listings of and sums over the log in memory; our own calls are not counted among the client's."""

from collections.abc import Iterable, Sequence

from proxy.model.exchange import Usage
from proxy.model.log import AuxiliaryUsage, SessionRow
from proxy.store.constraints import fit_text, fit_usage
from proxy.store.sqlite.exchange_queries import TURNED_AWAY
from tests.support.memory_store.tables import Exchange, Tables

_COUNTS = Usage.__struct_fields__
_SUCCESS = range(200, 300)


def find_last(tables: Tables, session: str) -> Exchange:
    """The newest exchange of a session."""
    numbers = tables.sessions[session]
    return tables.exchanges[numbers[len(numbers)]]


def make_session(tables: Tables, session: str) -> SessionRow:
    """A session in a listing."""
    key, numbers, tree = tables.keys[session], tables.sessions[session], tables.trees[session]
    exchanges = [tables.exchanges[name] for name in numbers.values()]
    client = [each for each in exchanges if not _is_auxiliary(each)]
    newest = (client or exchanges)[-1].opening
    return SessionRow(
        id=session,
        family=fit_text(key.family),
        upstream=fit_text(key.upstream),
        created_ms=exchanges[0].opening.opened_ms,
        last_ms=newest.opened_ms,
        exchanges=len(client),
        model=fit_text(newest.model),
        parent=fit_text(key.parent),
        branches=len(tree.list_branches(numbers)),
        side=sum(step.is_side for step in tree.steps.values()),
        adopted=next((source for source, _ in tree.adoptions), ""),
        seq=exchanges[-1].seq,
        auxiliary=len(exchanges) - len(client),
    )


def is_called(tables: Tables, session: str) -> bool:
    """Whether an exchange of a session became a call: else it is in the log, and no session in a listing.

    Of what is passed on unread a call is what was answered well, and bears a session's name or has a body to post.
    """
    is_named = bool(tables.keys[session].family)
    for name in tables.sessions[session].values():
        opening = tables.exchanges[name].opening
        statuses = {
            tables.outcomes[name, k].status for k in tables.rounds.get(name, ()) if (name, k) in tables.outcomes
        }
        is_answered = any(status in _SUCCESS for status in statuses)
        if opening.kind != "passthrough":
            is_call = opening.kind == "auxiliary" or not statuses & TURNED_AWAY
        else:
            is_call = is_answered and is_named
        if is_call:
            return True
    return False


def sum_auxiliary(tables: Tables, since_ms: int) -> list[AuxiliaryUsage]:
    """What auxiliary calls opened since then came to, by session, upstream and model."""
    groups: dict[tuple[str, str, str], dict[str, Exchange]] = {}
    for exchange in tables.exchanges.values():
        opening = exchange.opening
        if _is_auxiliary(exchange) and opening.opened_ms >= since_ms:
            rounds = tables.rounds[opening.exchange].values()
            for upstream in {each.upstream for each in rounds} or {opening.session.upstream}:
                key = (opening.session.id, fit_text(upstream), fit_text(opening.model))
                groups.setdefault(key, {})[opening.exchange] = exchange
    return [
        AuxiliaryUsage(*key, len(group), _sum_usage(tables, group.values(), key[1]))
        for key, group in sorted(groups.items())
    ]


def _is_auxiliary(exchange: Exchange) -> bool:
    return exchange.opening.kind == "auxiliary"


def _sum_usage(tables: Tables, exchanges: Iterable[Exchange], upstream: str = "") -> Usage:
    """The tokens of their rounds, of those at one upstream if it is named; None where nothing was said."""
    keys = [
        (each.opening.exchange, k)
        for each in exchanges
        for k, round_ in tables.rounds[each.opening.exchange].items()
        if not upstream or fit_text(round_.upstream) == upstream
    ]
    usages = [fit_usage(tables.readings[key].usage) for key in keys if key in tables.readings]
    return Usage(*[_add([getattr(usage, name) for usage in usages if usage]) for name in _COUNTS])


def _add(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None
