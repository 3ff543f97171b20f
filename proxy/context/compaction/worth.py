"""What a summary is worth: when it is asked for, of how much, and how long it may be (BEHAVIOUR B12, B27)."""

from math import inf

from proxy.context.epoch_decision import CacheCostAccount, RequestFacts, price_opening

LEAST_TARGET = 300
"""The least tokens that are asked for: fewer hold eight sections no more."""

# A summary may have a seventh of the tokens that it covers. A ledger takes about as much for the steps that it tells
# (`ledger._NEXT_RATIO`), and shrinks under a summary: up to there a summary is read at no extra price. What it costs
# is its own call, and that is bounded by `compaction.spend_fraction`.
_WORTH_SHARE = 1 / 7
# A merged summary makes room: it may have half of the tokens of those that it replaces.
_MERGED_SHARE = 0.5
# The least share of its room that a summary may have, although others fill it: merging then makes room again.
_LEAST_ROOM_SHARE = 0.25
# A span is worth a call from a tenth of the usable budget on. The call reads the whole request, at a tenth of its
# price: a shorter span would cost more to ask about than to read at full price.
_SPAN_SHARE = 0.1


# Messages that an epoch removed before they were summarised are read at full price, in a transcript beside the request.
# A span begins with them where they are a fifth of it at most, or too few for a summary of their own: so the summaries
# follow each other without a gap, and can be merged.
_MOST_HIDDEN_SHARE = 0.2


def may_be_hidden(hidden: int, tokens: int) -> bool:
    """Return whether a span of `tokens` may begin with `hidden` tokens of messages that the request does not show."""
    return hidden < tokens and hidden <= max(_MOST_HIDDEN_SHARE * tokens, LEAST_TARGET / _WORTH_SHARE)


def compute_room(total: int, shown: int) -> float:
    """Return the tokens that one summary may have: what the `shown` tokens of others leave of the room of all."""
    return max(_LEAST_ROOM_SHARE * total, total - shown)


def compute_target(covered: int, room: float, level: int, most: int, *, is_merged: bool = False) -> int:
    """Return the tokens to ask for, at most `most`, for a summary of `covered` tokens of messages or of summaries.

    The short form of level 2 gets half.
    """
    worth = covered * (_MERGED_SHARE if is_merged else _WORTH_SHARE)
    wanted = max(LEAST_TARGET, int(min(worth, room) / level))
    return max(1, min(wanted, most, covered - 1))


def compute_least_span(usable: int) -> int:
    """Return the tokens from which on a span is worth a call."""
    return int(max(LEAST_TARGET / _WORTH_SHARE, _SPAN_SHARE * usable))


# An epoch below the high mark waits for a running summary, so that this is begun at most so many calls ahead: the later
# it is asked for, the more of what the epoch takes it covers. At the high mark no epoch waits for long: twice the time
# of a summary has to be left.
_LEAD_CALLS = 2
_LEAD_TIMES = 2
_MOST_FORESEEN = 100


def forecast_calls(account: CacheCostAccount, facts: RequestFacts, growth: float) -> float:
    """Estimate after how many further calls the next one opens an epoch, if each adds `growth` tokens.

    It opens above the soft mark when the excess reads have reached its price, or at the high mark. Infinite where that
    is far.
    """
    price, target = price_opening(account, facts), account.find_target(facts.low)
    repeated, owed, tokens = facts.tariff.price_repeated(target), account.owed, float(facts.tokens)
    for calls in range(_MOST_FORESEEN):
        is_paid = owed >= price and tokens + growth >= facts.budget.soft
        if is_paid or tokens + growth >= facts.budget.high:
            return calls
        tokens += growth
        owed += max(0.0, facts.tariff.price_repeated(int(tokens)) - repeated)
    return inf


def should_start_summary(calls: float, seconds: float, takes: float) -> bool:
    """Return whether to start a summary that takes `takes` seconds.

    It is `calls` before the epoch that takes its span, and `seconds` before the high mark.
    """
    return calls <= _LEAD_CALLS or seconds < _LEAD_TIMES * takes
