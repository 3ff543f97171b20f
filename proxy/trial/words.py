"""What a trial tells in words and figures, on the command line and on the page."""

from collections.abc import Iterator

from proxy.context.pricing import MINUS, Cost, format_money
from proxy.trial.estimate import SessionEstimate, Trial, compute_share, sum_costs

_MILLION, _THOUSAND = 1e6, 1e4
_LEAST_SHARE = 0.0005  # less is written as no difference


def format_short(tokens: float) -> str:
    """Format a number of tokens in short."""
    if tokens >= _MILLION:
        return f"{tokens / _MILLION:.1f} M"
    return f"{tokens / 1000:.0f} k" if tokens >= _THOUSAND else f"{tokens:,.0f}"


def format_amount(cost: Cost) -> str:
    """Format a cost in money, or where no price is known in tokens of uncached input."""
    return f"{format_short(cost.tokens)} tok" if cost.money is None else format_money(cost.money)


def format_share(share: float | None) -> str:
    """Format a share that is saved, with a minus for a loss."""
    if share is None:
        return "-"
    return "0 %" if abs(share) < _LEAST_SHARE else f"{MINUS if share < 0 else ''}{abs(share):.1%}".replace("%", " %")


def tell_trial(trial: Trial) -> str:
    """Return the result of a trial in a sentence."""
    sessions = trial.priced or trial.sessions
    before, after = (sum_costs([getattr(each, name) for each in sessions]) for name in ("before", "after"))
    share = compute_share(before, after)
    one = len(sessions) == 1
    which = "This session" if one else f"These {len(sessions)} sessions"
    was = f"{which} cost {format_amount(before)}"
    if share is None or abs(share) < _LEAST_SHARE:
        return f"{was}; managed, {'it' if one else 'they'} would have cost the same."
    word = "less" if share > 0 else "more"
    amount = format_share(abs(share))
    return f"{was}; managed, {'it' if one else 'they'} would have cost {format_amount(after)}, {amount} {word}."


def list_remarks(trial: Trial) -> Iterator[str]:
    """Yield what is to be known of the figures: losses, missing prices, what would have been cut, errors, notes."""
    sessions = trial.sessions
    if losing := [each for each in sessions if each.saved.tokens < 0]:
        lost = sum_costs([each.after - each.before for each in losing])
        yield f"{_count(len(losing), 'session')} would have cost more, {format_amount(lost)} together."
    epochs = sum(len(each.epochs) for each in sessions)
    told = sum(each.cut.told for each in sessions)
    outputs = sum(each.cut.outputs + each.cut.files + each.cut.shortened for each in sessions)
    yield (
        f"{_count(epochs, 'epoch')}: in the end the ledger would tell of {_count(told, 'message')}, and "
        f"{_count(outputs, 'text')} would be shortened. All would be in the log."
        if epochs
        else "No session is so long that anything would have been shortened."
    )
    if 0 < len(trial.priced) < len(sessions):
        yield f"Of {_count(len(sessions) - len(trial.priced), 'session')} no price is known; the totals are without."
    elif not trial.priced and sessions:
        yield "No price of these models is known: costs are in tokens of uncached input (`pricing` in the settings)."
    if errors := sum(each.errors for each in sessions):
        yield f"{_count(errors, 'call')} could not be replayed; the figures are without."
    if trial.broken or trial.unknown:
        yield f"{_count(trial.broken, 'line')} could not be read, {trial.unknown} were not understood."
    yield from trial.notes


def tell_session(session: SessionEstimate) -> str:
    """Return what happened to a session in a sentence."""
    share = compute_share(session.before, session.after)
    if not session.epochs:
        return "Never long enough to be shortened: every call would have been sent as it was."
    first = session.epochs[0]
    cost = "the same"
    if share is not None and abs(share) >= _LEAST_SHARE:
        cost = f"{format_share(abs(share))} {'less' if share > 0 else 'more'}"
    return (
        f"{_count(len(session.epochs), 'epoch')}, the first at call {first.call} of {session.calls}; "
        f"{format_amount(session.after)} in place of {format_amount(session.before)}, {cost}."
    )


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
