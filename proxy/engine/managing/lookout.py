"""Finding out how a request stands: which epoch holds, what was counted, what may be sent. Rule: decides nothing."""

from proxy.context.budget import Budget, is_surely_below
from proxy.engine.managing.case import Case, find_kept
from proxy.engine.managing.contexts import Context
from proxy.engine.managing.memory import Memory
from proxy.engine.managing.paths import list_members
from proxy.engine.managing.subject import Subject
from proxy.engine.modelling import Models
from proxy.engine.ports import Clock
from proxy.model.epoch import Epoch


class Lookout:
    """Looks at requests. Tokens are as we count them, budgets too."""

    def __init__(self, memory: Memory, models: Models, clock: Clock) -> None:
        self._memory = memory
        self._models = models
        self._clock = clock

    def find_budget(self, subject: Subject, ceiling: int | None) -> Budget:
        """What may be sent of a request."""
        upstream, model = subject.session.upstream, subject.model
        budget = self._models.find_budget(upstream, model, subject.most_output or None, ceiling)
        return budget.scale(self._models.find_ratio(upstream, model).value)

    def is_below(self, subject: Subject, budget: Budget) -> bool:
        """Whether bytes prove that a request is below the soft mark, beside what of it was counted before."""
        content = subject.split.content
        known, shared = self._memory.paths.find(subject)
        if known is None or known.head.members != list_members(subject):
            return is_surely_below(budget, content)
        end = subject.split.items[subject.chain.preamble.count + shared - 1].end
        return is_surely_below(budget, content[end:], known.head.tokens + known.count_to(shared))

    async def look_at(self, subject: Subject, context: Context, epoch: Epoch | None, budget: Budget) -> Case:
        """All that is known of a request; what of it is new is counted."""
        path = await self._memory.paths.follow(subject)
        upstream, model = subject.session.upstream, subject.model
        frozen = await self._weigh(subject, context, epoch) if epoch is not None else 0
        before = context.paths.get((model, epoch.id if epoch is not None else ""))
        return Case(
            subject=subject,
            context=context,
            epoch=epoch,
            frozen=frozen,
            path=path,
            kept=find_kept(path, before, frozen, epoch.depth if epoch is not None else 0),
            budget=budget,
            tariff=self._models.find_tariff(upstream, model, path.list_markers()),
            ratio=self._models.find_ratio(upstream, model),
            protected=context.protected.get(model, 0),
            now=self._clock.monotonic(),
        )

    async def _weigh(self, subject: Subject, context: Context, epoch: Epoch) -> int:
        """The tokens of what is sent for an epoch, counted once."""
        tokens = context.sizes.get(epoch.id)
        if tokens is None:
            tokens = context.sizes[epoch.id] = await self._memory.paths.count_messages(subject, epoch.rendered)
        return tokens
