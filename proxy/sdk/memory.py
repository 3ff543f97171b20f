"""What is remembered of a session: reports on its turns and facts, for the program that the session belongs to."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager

from proxy.assembly import Engine
from proxy.context.conversation import SnapshotPolicy
from proxy.engine.compaction.job import ManualOptions
from proxy.engine.memory.compaction import MemoryResult
from proxy.model.memory import ItemType
from proxy.read.memory import DEFAULT_LIMIT, BundleDocument, MemoryReport, load_bundle, load_report


class MemoryOfSession:
    """The memory of one session. It is made by summaries, by the strategy `snapshot`, and by `compact`.

    `using` keeps the log open for a call, and raises an error once the session was closed.
    """

    def __init__(
        self,
        engine: Engine,
        session: str,
        policy: SnapshotPolicy,
        using: Callable[[], AbstractAsyncContextManager[None]],
    ) -> None:
        self._compaction = engine.context.memory
        self._session = session
        self._policy = policy
        self._using = using

    async def items(self, *, kind: ItemType | None = None, turn: str = "", limit: int = DEFAULT_LIMIT) -> MemoryReport:
        """Return the newest items, of a kind or of a turn if these are given, and how many there are."""
        async with self._using():
            log = self._compaction.memory.archive
            return await load_report(log, self._session, kind=kind, turn=turn, limit=limit)

    async def bundle(self, max_episodic: int | None = None, max_semantic: int | None = None) -> BundleDocument:
        """Return the items that a model would be shown, and their text; by default as many as the settings say."""
        episodic = self._policy.max_episodic_items if max_episodic is None else max_episodic
        semantic = self._policy.max_semantic_items if max_semantic is None else max_semantic
        async with self._using():
            return await load_bundle(self._compaction.memory.archive, self._session, episodic, semantic)

    async def compact(self, turn_ids: Sequence[str] = ()) -> MemoryResult:
        """Make memory of these turns, or of all but the current one that there is none of.

        Raises Conflict if there is nothing to do, and BadRequest for an unknown turn.
        """
        async with self._using():
            return await self._compaction.compact(self._session, turn_ids, ManualOptions())

    async def reset(self) -> None:
        """Forget all items."""
        async with self._using():
            await self._compaction.memory.order(self._session, "reset")
