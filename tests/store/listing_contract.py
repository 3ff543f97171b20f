"""What every archive does with questions of which sessions and exchanges there are. Rule: as in `contract`."""

import pytest
from msgspec.structs import replace

from proxy.engine.ports import Archive
from proxy.model.errors import NotFound
from proxy.model.log import Selection
from tests.store.samples import make_key, make_opening, make_round


class ListingContract:
    """Behaviour of the listings of `LogReader`."""

    async def test_a_listing_goes_on_where_another_ended(self, archive: Archive) -> None:
        for number, name in enumerate(("a", "b", "c", "a", "d")):
            await archive.append(make_opening(f"e{number}", key=make_key(name)))
        rows = list(await archive.list_sessions())
        assert [(row.family, row.seq) for row in rows] == [("d", 5), ("a", 4), ("c", 3), ("b", 2)]
        for i, row in enumerate(rows):
            assert list(await archive.list_sessions(2, Selection(before=row.seq))) == rows[i + 1 : i + 3]

    async def test_sessions_are_chosen_by_how_family_and_parent_begin(self, archive: Archive) -> None:
        names = (("team/a", ""), ("team/b", "p1"), ("tea%", "p2"), ("te\udcff", "p12"), ("", "p1"), ("é", "\x00"))
        for number, (family, parent) in enumerate(names):
            key = replace(make_key(family), parent=parent)
            assert await archive.append(make_opening(f"e{number}", key=key))
        for family, parent, found in (
            ("", "", [6, 5, 4, 3, 2, 1]),
            ("tea", "", [3, 2, 1]),
            ("team/", "", [2, 1]),
            ("te", "p1", [4, 2]),
            ("tea%", "", [3]),
            ("te\udcff", "", [4]),
            ("", "p1", [5, 4, 2]),
            ("é", "\x00", [6]),
            ("team/abc", "", []),
            ("*", "", []),
            ("", "' OR 1", []),
        ):
            rows = await archive.list_sessions(9, Selection(family, parent))
            assert [row.seq for row in rows] == found
            assert [row.seq for row in await archive.list_sessions(1, Selection(family, parent, 4))] == [
                seq for seq in found if seq < 4
            ][:1]

    async def test_one_session_is_found_by_its_id_as_it_is_listed(self, archive: Archive) -> None:
        for number, name in enumerate(("a", "b", "a")):
            await archive.append(make_opening(f"e{number}", key=make_key(name)))
        for row in await archive.list_sessions():
            assert await archive.find_session(row.id) == row
        for name in ("", make_key("a").id[:-1], make_key("c").id, "\0", "\udcff"):
            with pytest.raises(NotFound):
                await archive.find_session(name)

    async def test_ids_are_listed_by_how_they_begin(self, archive: Archive) -> None:
        for number, name in enumerate(("abc", "ab", "b", "abd", "a%", "é", "aé")):
            await archive.append(make_opening(f"e{number}", key=replace(make_key(name), id=name)))
        for prefix, found in (
            ("", ["a%", "ab", "abc", "abd", "aé", "b", "é"]),
            ("ab", ["ab", "abc", "abd"]),
            ("abc", ["abc"]),
            ("%", []),
            ("A", []),
            ("é", ["é"]),
            ("a\0", []),
            ("\udcff", []),
            ("x" * 10_000, []),
        ):
            assert list(await archive.list_ids(prefix, 9)) == found
            assert list(await archive.list_ids(prefix, 2)) == found[:2]

    async def test_exchanges_are_listed_page_by_page(self, archive: Archive) -> None:
        for number in range(7):
            await archive.append(make_opening(f"e{number}"), make_round(f"e{number}"), make_round(f"e{number}", 1))
            await archive.append(make_opening(f"x{number}", key=make_key("other")))
        session = make_key().id
        for after, limit, found in ((0, 3, [1, 2, 3]), (3, 3, [4, 5, 6]), (6, 3, [7]), (7, 3, []), (10**9, 1, [])):
            rows = await archive.list_exchanges(session, after, limit)
            assert [(row.n, len(row.rounds)) for row in rows] == [(n, 2) for n in found]
        with pytest.raises(NotFound):
            await archive.list_exchanges("nobody", 3, 3)
