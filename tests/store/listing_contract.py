"""What every archive returns as sessions and exchanges."""

from typing import Any

import pytest
from msgspec.structs import replace

from proxy.engine.ports import Archive
from proxy.model.errors import NotFound
from proxy.model.exchange import Usage
from proxy.model.log import AuxiliaryUsage, Selection, SessionRow
from tests.store.samples import (
    OPENED_MS,
    make_chain,
    make_key,
    make_opening,
    make_outcome,
    make_reading,
    make_round,
    make_step,
)


async def add_auxiliary(archive: Archive, exchange: str, usage: Usage | None, opened_ms: int = OPENED_MS) -> None:
    """A call of our own, whose answer told this."""
    opening = make_opening(exchange, kind="auxiliary", model="mini", opened_ms=opened_ms)
    assert await archive.append(opening, make_round(exchange), make_outcome(exchange))
    assert await archive.append(make_reading(exchange, usage=usage))


def tell_calls(row: SessionRow) -> dict[str, object]:
    """What a listing says of a session's calls."""
    names = ("exchanges", "auxiliary", "recorded", "model", "last_ms", "seq")
    return {name: getattr(row, name) for name in names}


class ListingContract:
    """Behaviour of the listings of `LogReader`."""

    async def test_a_listing_goes_on_where_another_ended(self, archive: Archive) -> None:
        for number, name in enumerate(("a", "b", "c", "a", "d")):
            await archive.append(make_opening(f"e{number}", key=make_key(name)))
        rows = list(await archive.list_sessions())
        assert [(row.family, row.seq) for row in rows] == [("d", 5), ("a", 4), ("c", 3), ("b", 2)]
        for i, row in enumerate(rows):
            assert list(await archive.list_sessions(2, Selection(before=row.seq))) == rows[i + 1 : i + 3]

    async def test_what_never_became_a_call_is_in_the_log_and_no_session_in_a_listing(self, archive: Archive) -> None:
        async def add(name: str, status: int, *, family: str = "", **changes: Any) -> None:
            key = replace(make_key(name), family=family)
            opening = replace(make_opening(f"x-{name}", key=key), **changes)
            outcome = replace(make_outcome(f"x-{name}"), status=status)
            assert await archive.append(opening, make_round(f"x-{name}"), outcome)

        stray: dict[str, Any] = {"kind": "passthrough", "wire": "", "model": ""}
        await add("unauthorised", 401)
        await add("forbidden", 403)
        await add("root", 200, method="GET", target="/", **stray)
        await add("stray", 404, method="POST", target="/nowhere", **stray)
        await add("named stray", 404, method="GET", family="stray", **stray)
        await add("bad", 400)
        await add("broken", 502)
        await add("a file or a picture", 200, **stray)
        await add("named", 200, method="GET", family="named", **stray)
        await archive.append(make_opening("x-open", key=replace(make_key("under way"), family="")))
        listed = [make_key(name).id for name in ("under way", "named", "broken", "bad")]
        assert [row.id for row in await archive.list_sessions()] == listed
        assert [row.id for row in await archive.list_sessions(2)] == listed[:2]
        assert [row.id for row in await archive.list_sessions(1, Selection(family="stray"))] == [
            make_key("named stray").id
        ]
        for name in ("unauthorised", "root", "stray", "a file or a picture"):
            assert (await archive.find_session(make_key(name).id)).exchanges == 1
            assert await archive.list_ids(make_key(name).id, 1) == [make_key(name).id]
            assert [row.id for row in await archive.list_exchanges(make_key(name).id)] == [f"x-{name}"]
        again = replace(make_opening("x-2", key=replace(make_key("unauthorised"), family="")))
        assert await archive.append(again, make_round("x-2"), make_outcome("x-2"))
        assert [row.id for row in await archive.list_sessions()] == [make_key("unauthorised").id, *listed]

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

    async def test_sessions_are_chosen_by_their_tenant(self, archive: Archive) -> None:
        for number, (family, tenant) in enumerate((("a", b"1"), ("b", b"2"), ("c", b"1"))):
            assert await archive.append(make_opening(f"e{number}", key=make_key(family, tenant * 16)))
        for tenant, found in ((b"1" * 16, [3, 1]), (b"2" * 16, [2]), (b"3" * 16, []), (b"", [3, 2, 1])):
            rows = await archive.list_sessions(9, Selection(tenant=tenant))
            assert [row.seq for row in rows] == found
        assert [row.seq for row in await archive.list_sessions(9, Selection("c", before=3, tenant=b"1" * 16))] == []
        assert [row.seq for row in await archive.list_sessions(9, Selection(before=3, tenant=b"1" * 16))] == [1]

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

    async def test_calls_of_our_own_are_counted_beside_the_clients(self, archive: Archive) -> None:
        session = make_key().id
        for exchange in ("e1", "e2"):
            step = make_step(exchange, make_chain("a", "!b") if exchange == "e1" else (), base=0)
            assert await archive.append(make_opening(exchange), step, make_round(exchange), make_outcome(exchange))
            assert await archive.append(make_reading(exchange, usage=Usage(input=100, output=10)))
        before = await archive.find_session(session)
        assert (before.auxiliary, before.recorded) == (0, 2)
        await add_auxiliary(archive, "a1", Usage(input=70, output=7), OPENED_MS + 5)
        await add_auxiliary(archive, "a2", None)
        await archive.append(make_opening("a3", kind="auxiliary", model="large"))
        for row in (await archive.find_session(session), *(await archive.list_sessions())):
            assert tell_calls(row) == {
                **{"exchanges": 2, "auxiliary": 3, "recorded": 5},
                **{"model": "gpt-4o", "last_ms": OPENED_MS, "seq": 5},
            }
            assert row.branches == before.branches
        rows = await archive.list_exchanges(session)
        assert [(each.n, each.kind, each.relation, each.tip) for each in rows[2:]] == [
            (n, "auxiliary", "", b"") for n in (3, 4, 5)
        ]
        assert {call.n for branch in await archive.list_branches(session) for call in branch.exchanges} <= {1, 2}
        (stored,) = await archive.recall((), (), make_key())
        assert len(stored.nodes) == 2

    async def test_spending_is_summed_by_session_upstream_and_model(self, archive: Archive) -> None:
        assert list(await archive.sum_auxiliary(0)) == []
        await archive.append(make_opening("e1"), make_round("e1"), make_outcome("e1"))
        await archive.append(make_reading("e1", usage=Usage(input=1000, output=1000)))
        await add_auxiliary(archive, "a1", Usage(input=70, output=7, cached=60))
        await add_auxiliary(archive, "a2", Usage(input=30, output=3, reasoning=2), OPENED_MS + 10)
        await add_auxiliary(archive, "a3", None, OPENED_MS + 20)
        session, other = make_key().id, make_key("b")
        elsewhere = replace(make_round("b1"), upstream="local\ud800")
        opening = make_opening("b1", key=other, kind="auxiliary", model="m\udfff")
        await archive.append(opening, elsewhere, make_round("b1", 1), make_round("b1", 2), make_outcome("b1"))
        await archive.append(make_reading("b1", usage=Usage(input=5)), make_opening("b2", key=other, kind="auxiliary"))
        total = Usage(input=100, output=10, cached=60, reasoning=2)
        theirs = [
            AuxiliaryUsage(other.id, "local?", "m?", 1, Usage(input=5)),
            AuxiliaryUsage(other.id, "openai", "gpt-4o", 1, Usage()),
            AuxiliaryUsage(other.id, "openai", "m?", 1, Usage()),
        ]
        assert list(await archive.sum_auxiliary(0)) == [AuxiliaryUsage(session, "openai", "mini", 3, total), *theirs]
        assert list(await archive.sum_auxiliary(OPENED_MS + 10)) == [
            AuxiliaryUsage(session, "openai", "mini", 2, Usage(input=30, output=3, reasoning=2))
        ]
        assert list(await archive.sum_auxiliary(OPENED_MS + 20)) == [
            AuxiliaryUsage(session, "openai", "mini", 1, Usage())
        ]
        assert list(await archive.sum_auxiliary(OPENED_MS + 21)) == []
