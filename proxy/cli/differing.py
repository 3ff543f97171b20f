"""What was decided and sent, as text for people.

Rule: fits in 80 columns but for texts as they were sent; a number that nobody counted is no number.
"""

from collections.abc import Iterator

from proxy.cli.text import cut, make_plain
from proxy.engine.reports.differences import Change, Difference, Side
from proxy.model.plan import Plan

_WIDTH = 80
_MOST_SHOWN = 12


def tell_plan(plan: Plan) -> Iterator[str]:
    """What was decided for a round."""
    under = f", epoch {plan.epoch}" if plan.epoch else ""
    yield f"sent as   {plan.rung}{under}; pressure {plan.pressure}"
    if plan.tokens_client is not None and plan.tokens_upstream is not None:
        yield f"context   client {plan.tokens_client}, upstream {plan.tokens_upstream}, usable {plan.usable} tokens"
    if plan.saving is not None:
        yield f"saved     {write_saving(plan.saving)} (estimated when it was sent)"
    if plan.reason:
        yield f"because   {plan.reason}"


def write_saving(saving: float) -> str:
    """A saving with its sign and unit."""
    return f"{saving:+.0f} tokens of uncached input"


def tell_difference(found: Difference) -> str:
    """What was sent in place of what: `-` is the client's, `+` ours; what was sent as it came is only counted."""
    head = f"exchange {found.row.n} of session {found.row.session}, round {found.round.k}"
    if found.is_equal:
        return make_plain(f"{head}: sent as the client sent it, byte for byte\n")
    lines = [f"{head}: {found.kept} of {found.messages} messages sent as they came"]
    if found.round.plan is not None:
        lines += tell_plan(found.round.plan)
    for name, client, sent in found.members:
        lines += ("", f"@@ {name}", f"- {_shorten(client)}", f"+ {_shorten(sent)}")
    for change in found.changes:
        lines += _tell_change(change)
    return make_plain("\n".join(lines)) + "\n"


def _tell_change(change: Change) -> Iterator[str]:
    last = change.stop - 1
    where = f"messages {change.start} to {last}" if last > change.start else f"message {change.start}"
    before, after = (sum(side.tokens for side in sides) for sides in (change.client, change.sent))
    yield ""
    yield f"@@ {where if change.client else f'before message {change.start}'}: {before} -> {after} tokens"
    for place, side in list(enumerate(change.client, change.start))[:_MOST_SHOWN]:
        yield cut(f"- {place} {_name(side)}: {side.text}", _WIDTH)
    if len(change.client) > _MOST_SHOWN:
        yield f"- ... and {len(change.client) - _MOST_SHOWN} more; --json has them all"
    for side in change.sent:
        yield f"+ {_name(side)}:"
        yield from (f"+   {line}" for line in side.text.splitlines())


def _name(side: Side) -> str:
    calls = f", calls {', '.join(side.calls)}" if side.calls else ""
    return f"{side.role} ({side.tokens} tokens{calls})"


def _shorten(raw: bytes) -> str:
    return cut(raw.decode("utf-8", "replace"), _WIDTH - 2) if raw else "(absent)"
