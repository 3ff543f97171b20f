"""A request with all that is known of how it stands when it is decided what to send. Rule: values only."""

from collections.abc import Sequence

import msgspec

from proxy.context.account import Account
from proxy.context.budget import Budget
from proxy.context.economics import Facts
from proxy.context.estimate import Ratio
from proxy.context.model_names import may_bind_reasoning
from proxy.context.tariff import Tariff
from proxy.engine.context.context import Context, Standing
from proxy.engine.context.paths import Path, count_shared
from proxy.engine.context.subject import Subject
from proxy.model.epoch import Epoch, Why

# BEHAVIOUR B13 and B14
_GROUPS, _USERS = 3, 2
# Epochs that open though there is signed reasoning: a person, or the window, asks for them.
_OVER_SIGNED: tuple[Why, ...] = ("overflow", "manual")


class Case(msgspec.Struct, frozen=True, gc=False):
    """Tokens are as we count them, the budget's too; `ratio` gives the model's.

    `epoch` is the one that holds, None where none does, and `standing` how the view stands under it; `frozen` are the
    tokens of what is sent for it. `kept` are the
    tokens at the request's beginning that were sent before, None where it goes on from the last request. `protected`
    are those that no epoch may take, as far as the last one told. `now` is in monotonic seconds.
    """

    subject: Subject
    context: Context
    epoch: Epoch | None
    standing: Standing
    frozen: int
    path: Path
    kept: int | None
    budget: Budget
    tariff: Tariff
    ratio: Ratio
    protected: int
    now: float

    @property
    def view(self) -> str:
        """The model asked for."""
        return self.subject.model

    @property
    def client_tokens(self) -> int:
        """Tokens of the client's own request."""
        return self.path.tokens

    @property
    def tokens(self) -> int:
        """Tokens of what is sent if no epoch opens."""
        depth = self.epoch.depth if self.epoch is not None else 0
        return self.path.tokens - self.path.count_to(depth) + self.frozen

    @property
    def account(self) -> Account:
        """What sending more than an epoch would has cost so far, under the epoch that holds."""
        return self.standing.account

    @property
    def facts(self) -> Facts:
        """The case as far as an epoch depends on it."""
        return Facts(
            self.tokens,
            self.budget,
            self.tariff,
            self.protected,
            self.kept,
            stable=self.path.head.tokens,
            idle=self.account.find_idle(self.now),
            is_side=self.subject.is_side,
            is_bound=self.is_bound,
        )

    def is_unsigned(self, epoch: Epoch) -> bool:
        """Whether signed reasoning is taken out of what is sent under an epoch (B37).

        It was made behind the client's own beginning, or the upstream has refused it behind ours.
        """
        if self.view in self.context.unsigned:
            return bool(self.path.signed)
        return epoch.why in _OVER_SIGNED and self.is_bound

    @property
    def is_bound(self) -> bool:
        """Whether its messages have signed reasoning that holds only behind the beginning it was made behind."""
        return bool(self.path.signed) and may_bind_reasoning(self.view)

    def find_standing(self, epoch: Epoch | None) -> Standing:
        """How the view stands under an epoch, or under none."""
        if epoch is self.epoch:
            return self.standing
        return self.context.get_standing(self.view, epoch.id if epoch is not None else "", self.budget)

    def stand_under(self, epoch: Epoch, frozen: int) -> "Case":
        """The same request under another epoch, for which so many tokens are sent."""
        return msgspec.structs.replace(self, epoch=epoch, standing=self.find_standing(epoch), frozen=frozen)

    def tell(self, tokens: int) -> int:
        """Our tokens as the model counts them."""
        return self.ratio.apply(tokens)


def find_kept(path: Path, before: Sequence[bytes] | None, frozen: int, depth: int) -> int | None:
    """The tokens at a request's beginning that were sent before; None where all of the last request is there.

    `before` are the nodes of the last request under the same epoch, which stands for the first `depth` messages: these
    are in both.
    """
    if before is None:
        return None
    shared = count_shared(before, path.nodes)
    if shared == len(before):
        return None
    return path.head.tokens + frozen + path.count(depth, shared)


def estimate_protected(path: Path) -> int:
    """About the tokens that no epoch may take: the newest groups with calls, and all that is newer; the newest users.

    As `context/builder` tells them of a plan, which is known for the request only that it was made for.
    """
    first, groups, users, apart = len(path.shapes), 0, 0, 0
    for place in range(len(path.shapes) - 1, -1, -1):
        shape = path.shapes[place]
        if groups < _GROUPS:
            first = place
            groups += bool(shape.calls)
            users += shape.role == "user"
        elif users < _USERS and shape.role == "user":
            users += 1
            apart += path.count(place, place + 1)
        if groups >= _GROUPS and users >= _USERS:
            break
    return path.head.tokens + path.count(first, len(path.shapes)) + apart
