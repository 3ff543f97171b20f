"""What every archive returns as responses that nobody has read."""

from msgspec.structs import replace

from proxy.engine.ports import Archive
from proxy.model.exchange import Outcome
from proxy.model.lineage import compute_chain_root
from proxy.model.log import UnreadRow
from tests.store.samples import (
    ANSWER,
    OTHER_TENANT,
    make_chain,
    make_key,
    make_opening,
    make_outcome,
    make_reading,
    make_reply,
    make_round,
    make_step,
    make_trailer,
)

A, B, C = make_chain("a", "!b", "c")
STREAM = ((b"content-type", b"text/event-stream"),)
JSON = ((b"content-type", b"application/json"),)
GZIP = (*JSON, (b"content-encoding", b"gzip"), (b"x-odd", b"\xe9"))


async def add_answers(archive: Archive, count: int) -> None:
    for number in range(count):
        name = f"e{number}"
        await archive.append(make_opening(name), make_round(name), make_outcome(name, received=b"%d" % number))


async def list_names(archive: Archive, *bounds: int) -> list[str]:
    return [row.exchange for row in await archive.list_unread(*bounds)]


class UnreadContract:
    """Behaviour of `Backlog`."""

    async def test_an_answer_is_unread_until_its_reading_is_there(self, archive: Archive) -> None:
        assert await list_names(archive) == []
        await archive.append(make_opening(), make_round())
        assert await list_names(archive) == []
        await archive.append(make_outcome())
        assert await list_names(archive) == ["e1"]
        await archive.append(make_reading(), make_reply())
        assert await list_names(archive) == []

    async def test_what_it_takes_to_read_an_answer_and_to_place_it_comes_with_it(self, archive: Archive) -> None:
        other = replace(make_key("", OTHER_TENANT), parent="p")
        await archive.append(make_opening(), make_step("e1", [A]), make_round())
        await archive.append(make_outcome(), make_trailer(0, b"\n"))
        await archive.append(make_opening("e2", key=other), make_round("e2"), make_round("e2", 1))
        await archive.append(make_outcome("e2", 1, received=b"half", headers=GZIP, completeness="truncated"))
        await archive.append(make_opening("e3"), make_step("e3", []), make_round("e3"))
        await archive.append(_make_capped("e3"))
        assert list(await archive.list_unread()) == [
            UnreadRow("e3", 0, "chat_completions", make_key(), compute_chain_root("openai"), STREAM, b"["),
            UnreadRow("e2", 1, "chat_completions", other, b"", GZIP, b"half"),
            UnreadRow("e1", 0, "chat_completions", make_key(), A.node, JSON, ANSWER),
        ]

    async def test_what_has_no_wire_format_or_no_bytes_is_not_to_be_read(self, archive: Archive) -> None:
        passed = replace(make_opening("e1"), kind="passthrough", wire="")
        await archive.append(passed, make_round("e1"), make_outcome("e1"))
        await archive.append(make_opening("e2"), make_round("e2"), make_outcome("e2", received=b""))
        assert await list_names(archive) == []

    async def test_the_newest_outcomes_are_looked_at_whether_read_or_not(self, archive: Archive) -> None:
        await add_answers(archive, 6)
        await archive.append(make_reading("e4"))
        assert await list_names(archive) == ["e5", "e3", "e2", "e1", "e0"]
        assert await list_names(archive, 3) == ["e5", "e3"]

    async def test_what_does_not_fit_is_left_out_for_what_does(self, archive: Archive) -> None:
        for name, size in (("a", 10), ("b", 30), ("c", 90), ("d", 60)):
            await archive.append(make_opening(name), make_round(name), make_outcome(name, received=b"x" * size))
        assert await list_names(archive, 10, 100) == ["d", "b", "a"]
        assert await list_names(archive, 10, 99) == ["d", "b"]


def _make_capped(name: str) -> Outcome:
    return make_outcome(name, received=b"[", size=100, whole=b"w" * 32, headers=STREAM, completeness="aborted")
