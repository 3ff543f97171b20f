"""What shadow checks found: how often the client's own request had the same answer as the shorter one that was sent.

Shares have their 95 % interval by Wilson's score. A model that is asked twice seldom says the same twice: agreement has
to be judged against that of two equal requests, which nothing here measures.
"""

import math
from collections.abc import Callable, Iterable, Sequence

import msgspec

from proxy.context.pricing import Cost
from proxy.context.verbatim import may_bind_reasoning
from proxy.engine.models import PriceList
from proxy.engine.ports import MOST_SHADOWS, LogReader
from proxy.engine.stages.shadow import Verdict, compare_answers, find_row_usage
from proxy.model.log import ShadowRow
from proxy.wire import FORMATS

_Z = 1.959964  # of an interval of 95 %
_AGES = (10, 30, 100)
_Judged = tuple[ShadowRow, Verdict]


class Share(msgspec.Struct, frozen=True):
    """A share of the calls that were compared, and the bounds of its 95 % confidence interval."""

    share: float
    low: float
    high: float


class Agreement(msgspec.Struct, frozen=True):
    """How the answers to clients' own requests compare with those that clients got: of some calls, named by `name`.

    `same` made the same calls, or said the same; `arguments` called the same tools with other arguments; `text` said
    something else, without a call in either; `other` called another tool, or one of the two called none. `uncompared`
    are those of which one answer failed, was cut off, had several choices or was erased. `agreement` is the share of
    `same`, `same_tool` that of all but `other`; null where nothing was compared. `tokens` and `money` are what sending
    the own requests cost.
    """

    name: str
    same: int
    arguments: int
    text: int
    other: int
    uncompared: int
    agreement: Share | None
    same_tool: Share | None
    tokens: float
    money: float | None


class ShadowReport(msgspec.Struct, frozen=True):
    """What the newest shadow checks found, `most` of them at most: in all, by session, model and age of what was cut.

    The age counts the messages of a request behind what the epoch replaces. Requests with signed reasoning to `bound`
    models, which may bind it to their prompt, are checked only with `shadow.bound_reasoning`.
    """

    total: Agreement
    sessions: list[Agreement]
    models: list[Agreement]
    ages: list[Agreement]
    bound: list[str]
    most: int = MOST_SHADOWS


async def load_shadow(log: LogReader, prices: PriceList, models: Iterable[str]) -> ShadowReport | None:
    """Load what shadow checks found, None without any. `models` are the managed ones. Raises StoreUnavailable."""
    judged = [(row, _judge(row)) for row in await log.list_shadows(0)]
    if not judged:
        return None
    return ShadowReport(
        total=_sum_up("", judged, prices),
        sessions=_group(judged, lambda row: row.session, prices),
        models=_group(judged, lambda row: f"{row.model} at {row.upstream}", prices),
        ages=_group(sorted(judged, key=_rank_age), _name_age, prices),
        bound=sorted(filter(may_bind_reasoning, {*models, *(row.model for row, _ in judged)})),
    )


def compute_share(count: int, whole: int) -> Share | None:
    """Return a share with its interval by Wilson's score; None of nothing."""
    if not whole:
        return None
    share, square = count / whole, _Z**2 / whole
    middle = (share + square / 2) / (1 + square)
    reach = math.sqrt(square * share * (1 - share) + square**2 / 4) / (1 + square)
    return Share(share, max(0.0, middle - reach), min(1.0, middle + reach))


def _judge(row: ShadowRow) -> Verdict:
    form = FORMATS.get(row.wire)
    return compare_answers(form, row.finishes, row.answers) if form is not None else "uncompared"


def _rank_age(judged: _Judged) -> tuple[bool, int]:
    return judged[0].age is None, judged[0].age or 0


def _name_age(row: ShadowRow) -> str:
    """Return the band of an age."""
    if row.age is None:
        return "unknown"
    lower = [0, *(most + 1 for most in _AGES)]
    band = next((i for i, most in enumerate(_AGES) if row.age <= most), len(_AGES))
    return f"{lower[band]} to {_AGES[band]} messages" if band < len(_AGES) else f"{lower[band]} messages or more"


def _group(judged: Sequence[_Judged], name: Callable[[ShadowRow], str], prices: PriceList) -> list[Agreement]:
    """Sum up what has the same name, in the order in which the names come."""
    groups: dict[str, list[_Judged]] = {}
    for each in judged:
        groups.setdefault(name(each[0]), []).append(each)
    return [_sum_up(name, group, prices) for name, group in groups.items()]


def _sum_up(name: str, judged: Sequence[_Judged], prices: PriceList) -> Agreement:
    verdicts = [verdict for _, verdict in judged]
    counts = {kind: verdicts.count(kind) for kind in ("same", "arguments", "text", "other", "uncompared")}
    whole = len(judged) - counts["uncompared"]
    cost = sum((prices.price(row.upstream, row.model, find_row_usage(row)) for row, _ in judged), Cost())
    return Agreement(
        name,
        **counts,
        agreement=compute_share(counts["same"], whole),
        same_tool=compute_share(whole - counts["other"], whole),
        tokens=cost.tokens,
        money=cost.money,
    )
