"""An index that finds what a test gives it."""

from proxy.model.search import IndexedEntry, IndexHealth, SearchAnswer, SearchQuery


class FakeIndex:
    """Answers every search with the same, and notes the queries."""

    def __init__(
        self, answer: SearchAnswer | None = None, entry: IndexedEntry | None = None, health: IndexHealth | None = None
    ) -> None:
        self.answer = answer or SearchAnswer()
        self.entry = entry
        self.health = health or IndexHealth()
        self.queries: list[SearchQuery] = []
        self.is_closed = False

    async def search(self, query: SearchQuery) -> SearchAnswer:
        self.queries.append(query)
        return self.answer

    async def find_entry(self, reference: str) -> IndexedEntry | None:
        return self.entry if self.entry is not None and self.entry.reference == reference else None

    async def look(self) -> IndexHealth:
        return self.health

    async def close(self) -> None:
        self.is_closed = True
