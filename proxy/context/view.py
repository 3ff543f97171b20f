"""A request as a plan sees it. Rule: values; whatever is expensive to find out about a message was found out before."""

from collections.abc import Callable, Sequence

import msgspec

from proxy.context.budget import Budget
from proxy.model.plan import ContextPlan
from proxy.model.shapes import Shape
from proxy.model.told import Told


class Seen(msgspec.Struct, frozen=True, gc=False):
    """A message: what it says, how it hangs together with its neighbours, and how many tokens it has."""

    told: Told
    shape: Shape
    tokens: int


class LiveSummary(msgspec.Struct, frozen=True, gc=False):
    """A summary that holds for this conversation: of its messages from `start` up to `stop`, in so many tokens."""

    id: str
    text: str
    start: int
    stop: int
    tokens: int


class View(msgspec.Struct, frozen=True, gc=False):
    """The whole conversation as the client holds it, behind its preamble.

    `head` are the tokens of what goes before (system messages, tools). `name` gives the id of a reference to the
    messages from one place up to another, from a character of their text on; equal arguments have equal ids. `pinned`
    are places that must stay, as must those of messages that the log has not whole, the `unkept`, even in the least
    that can be sent. `frozen` is the plan of the epoch that holds now, None where there is none. `reports` are the
    summaries that hold, oldest first, none over another. `goal`, where there is one, is the budget that what is
    told of old steps, and how many of them stay, is measured by; all else is measured by `budget`. `sent` is how
    many of the messages went out before, None where that tells nothing of what a model has seen. `depth` counts pairs
    of epochs in a row that left too little room: the more, the more a plan has to free. `must_fit`: more than the
    budget has room for would be refused.
    """

    messages: Sequence[Seen]
    head: int
    budget: Budget
    name: Callable[[int, int, int], str]
    pinned: frozenset[int] = frozenset()
    frozen: ContextPlan | None = None
    reports: Sequence[LiveSummary] = ()
    goal: Budget | None = None
    sent: int | None = None
    depth: int = 0
    must_fit: bool = False
    unkept: frozenset[int] = frozenset()
