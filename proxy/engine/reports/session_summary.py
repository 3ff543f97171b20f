"""Sessions as people list them: what each is, who runs it, what it came to, and what managing it saved or lost.

Sums come from the log, money from the prices that are known now: an estimate changes if the prices do.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from proxy.context.pricing import Cost
from proxy.engine.ports import LogReader
from proxy.engine.reports.charges import SessionCost, load_costs
from proxy.engine.reports.savings import SavingsInputs
from proxy.engine.reports.titles import load_title, name_client, shorten_title
from proxy.model.epoch import Strategy, read_view
from proxy.model.figures import SessionFigures, SessionHead
from proxy.model.log import SessionRow
from proxy.model.lru import LruCache

SessionStatus = Literal["live", "idle"]

_LATELY_MS = 5 * 60 * 1000
_LONGEST_MS = 60 * 60 * 1000  # an open call that began earlier was cut off by a crash
_MOST_TITLES = 4096
_NAMING_CLIENTS = frozenset(("codex", "claude-code"))
_PREFIXES = _NAMING_CLIENTS | {
    *("x-session-id", "x-dynamo-session-id", "helicone-session-id", "x-litellm-session-id"),
    *("litellm_session_id", "session_id", "conversation"),
}


class Amount(msgspec.Struct, frozen=True):
    """What something costs: in tokens of uncached input, and in the currency of the price map; null without a price."""

    tokens: float
    money: float | None


class Saving(msgspec.Struct, frozen=True):
    """What managing a session saved, our own calls taken off; negative for a loss, whose `reason` is given.

    `share` is that of what sending everything would have cost.
    """

    tokens: float
    money: float | None
    share: float | None
    is_loss: bool
    reason: str


class AuxiliaryTotal(msgspec.Struct, frozen=True):
    """Our own calls for a session, and what they cost."""

    calls: int
    input: int
    output: int
    cost_tokens: float
    money: float | None


class WindowTokens(msgspec.Struct, frozen=True):
    """The size of the newest call of the conversation: of the client's own request, and of what was sent."""

    client: int | None
    sent: int | None


class SessionSummary(msgspec.Struct, frozen=True):
    """A session in a listing. Times are in milliseconds since 1970. Tokens are as the provider counted them.

    `client_tokens`, `sent_tokens` and `output_tokens` are sums over its calls whose size is known. `spent` includes
    our own calls for it. `saved` is null where nothing was managed, or nothing is known of it.
    """

    id: str
    title: str
    name: str
    client: str
    model: str
    upstream: str
    strategy: Strategy | None
    mode: str
    status: SessionStatus
    family: str
    parent: str
    adopted: str
    seq: int
    created_ms: int
    last_ms: int
    calls: int
    turns: int
    side: int
    branches: int
    epochs: int
    summaries: int
    errors: int
    client_tokens: int | None
    sent_tokens: int | None
    output_tokens: int | None
    window_tokens: WindowTokens
    cache_read_share: float | None
    spent: Amount
    saved: Saving | None
    auxiliary: AuxiliaryTotal


@dataclass(slots=True)
class TitleCache:
    """Titles that were read before. One that is empty is read again, since more may be in the log by then."""

    titles: LruCache[str, str] = field(default_factory=lambda: LruCache(_MOST_TITLES))

    async def find(self, log: LogReader, heads: Iterable[SessionHead]) -> dict[str, str]:
        """Return the titles of sessions, by their ids."""
        found: dict[str, str] = {}
        for head in heads:
            title = self.titles.get(head.session)
            if not title:
                title = await load_title(log, head)
                self.titles.put(head.session, title)
            found[head.session] = title
        return found

    def forget(self, session: str) -> None:
        """Forget the title of a session, which was erased."""
        self.titles.pop(session)


async def summarize_sessions(
    log: LogReader,
    rows: Sequence[SessionRow],
    inputs: SavingsInputs,
    titles: TitleCache | None = None,
) -> list[SessionSummary]:
    """Return sessions with what they came to, in their order. Raises StoreUnavailable."""
    ids, now_ms = [row.id for row in rows], inputs.now_ms()
    figures = {each.session: each for each in await log.load_figures(ids)}
    costs = await load_costs(log, ids, inputs)
    heads = {each.session: each for each in await log.load_heads(ids)}
    named = await (titles or TitleCache()).find(log, heads.values())
    return [
        _summarize(
            row,
            figures.get(row.id) or SessionFigures(row.id),
            costs.get(row.id) or SessionCost(),
            (name_client(heads[row.id].headers) if row.id in heads else "", named.get(row.id, "")),
            now_ms,
        )
        for row in rows
    ]


def _summarize(
    row: SessionRow, found: SessionFigures, cost: SessionCost, names: tuple[str, str], now_ms: int
) -> SessionSummary:
    client, title = names
    name = shorten_title(name_session(row.family))
    spent = cost.spent if found.sent or cost.auxiliary.tokens else Cost(0.0, None)
    return SessionSummary(
        id=row.id,
        title=title or name,
        name=name,
        client=client or name_sender(row.family),
        model=row.model,
        upstream=row.upstream,
        strategy=read_view(found.view)[1] if found.view else None,
        mode=found.mode,
        status="live" if _is_live(found, now_ms) else "idle",
        family=row.family,
        parent=row.parent,
        adopted=row.adopted,
        seq=row.seq,
        created_ms=row.created_ms,
        last_ms=row.last_ms,
        calls=row.exchanges,
        turns=found.ends + (not found.is_ended),
        side=row.side,
        branches=row.branches,
        epochs=found.epochs,
        summaries=found.summaries,
        errors=found.errors,
        client_tokens=found.client,
        sent_tokens=found.sent,
        output_tokens=found.output,
        window_tokens=WindowTokens(found.window_client, found.window_sent),
        cache_read_share=found.read / found.told if found.told else None,
        spent=describe_amount(spent),
        saved=describe_saving(cost, found),
        auxiliary=AuxiliaryTotal(
            row.auxiliary, row.auxiliary_input, row.auxiliary_output, cost.auxiliary.tokens, cost.auxiliary.money
        ),
    )


def name_session(family: str) -> str:
    """Return what the client called a session: without the header or client that said so, empty for a mere digest."""
    if family.startswith("sha256:"):
        return ""
    prefix, _, rest = family.partition(":")
    return rest if rest and prefix in _PREFIXES else family


def name_sender(family: str) -> str:
    """Return the client that is known by how it names its sessions, empty if it is not known by that."""
    prefix = family.partition(":")[0]
    return prefix if prefix in _NAMING_CLIENTS else ""


def _is_live(found: SessionFigures, now_ms: int) -> bool:
    if found.opened_ms is not None and now_ms - found.opened_ms < _LONGEST_MS:
        return True
    return found.ended_ms is not None and now_ms - found.ended_ms < _LATELY_MS


def describe_amount(cost: Cost) -> Amount:
    """Return a cost as it is shown."""
    return Amount(cost.tokens, cost.money)


async def load_saving(log: LogReader, session: str, inputs: SavingsInputs) -> Saving | None:
    """Return what managing a session saved, None if nothing is known of it. Raises StoreUnavailable."""
    costs = await load_costs(log, (session,), inputs)
    (found,) = await log.load_figures((session,)) or (SessionFigures(session),)
    return describe_saving(costs.get(session) or SessionCost(), found)


def describe_saving(cost: SessionCost, found: SessionFigures) -> Saving | None:
    """Return what managing a session saved, None if nothing is known of it."""
    if cost.saved is None:
        return None
    net = cost.net
    return Saving(net.tokens, net.money, cost.share, net.tokens < 0, explain_loss(cost, found.plans, found.later))


def explain_loss(cost: SessionCost, plans: int, later: int) -> str:
    """Return why managing a session cost more than it saved, empty if it did not."""
    if cost.saved is None or cost.net.tokens >= 0:
        return ""
    if cost.saved.tokens >= 0:
        return "its summaries cost more than was saved"
    if plans:
        count = {0: "no call", 1: "1 call"}.get(later, f"{later} calls")
        return f"{count} came after its last epoch, too few to pay for writing the cache anew"
    return "what was sent had to be written to the cache anew, and the calls since have not paid for it"
