"""What every archive does; a store subclasses `ArchiveContract` and gives it an `archive`."""

import dataclasses
import itertools

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from msgspec.structs import replace

from proxy.engine.ports import Archive
from proxy.model.errors import NotFound
from proxy.model.exchange import Headers, ReceivedRow, Usage
from proxy.model.log import ExchangeRow, Record, RoundRow, SessionRow
from proxy.model.manifest import BlobPiece, Manifest, compute_digest, encode_recipe, make_head_manifest, make_manifest
from tests.store.samples import (
    ANSWER,
    OPENED_MS,
    OTHER_TENANT,
    REQUEST_HEADERS,
    TIMINGS,
    chain_body,
    join_body,
    make_held,
    make_key,
    make_opening,
    make_outcome,
    make_reading,
    make_round,
    make_trailer,
    make_turns,
    split_bodies,
)
from tests.support.examples import examples

_names = (f"h{i}" for i in itertools.count())
# One archive takes all examples, so that they also meet each other's content; each store runs the same test.
_shared_archive = examples(
    60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors, HealthCheck.too_slow],
)

LARGE = b'{"text":"' + b"palimpsest " * 3000 + b'"}'


async def is_stored(archive: Archive, *records: Record) -> bool:
    """Append records; whether the log has them in the end.

    Their future may say that they are safe before the log refuses them: what counts is then in `health`, at the latest
    when somebody reads.
    """
    dropped = await count_dropped(archive, *records)
    assert dropped == 0 or dropped == len(records)
    return not dropped


async def count_dropped(archive: Archive, *records: Record) -> int:
    """Append records; how many of them the log has refused."""
    before = archive.health.dropped
    is_safe = await archive.append(*records)
    await archive.list_sessions(1)
    dropped = archive.health.dropped - before
    assert is_safe or dropped == len(records)
    return dropped


class ArchiveContract:
    """Behaviour of the `Archive` port."""

    @_shared_archive
    @given(split_bodies())
    async def test_a_body_comes_back_byte_for_byte_however_it_was_split(
        self, archive: Archive, body: tuple[bytes, Manifest]
    ) -> None:
        content, manifest = body
        exchange = next(_names)
        assert await archive.append(make_opening(exchange, manifest), make_round(exchange, 0, manifest))
        assert await archive.load_request(exchange) == content
        assert await archive.load_sent(exchange, 0) == content

    @_shared_archive
    @given(st.lists(st.tuples(st.binary(max_size=9), st.binary(max_size=60)), max_size=5))
    async def test_any_answer_and_headers_come_back_byte_for_byte(
        self, archive: Archive, headers: list[tuple[bytes, bytes]]
    ) -> None:
        exchange, received = next(_names), b"".join(value for _, value in headers)
        fields: Headers = tuple(headers)
        key = make_key(exchange)
        outcome = make_outcome(exchange, received=received, headers=fields)
        assert await archive.append(make_opening(exchange, key=key, headers=fields), make_round(exchange), outcome)
        (row,) = await archive.list_exchanges(key.id)
        assert (row.headers, row.rounds[0].headers) == (fields, fields)
        assert await archive.load_received(exchange, 0) == received

    async def test_a_capped_body_is_kept_to_its_head_and_says_so(self, archive: Archive) -> None:
        assert await archive.append(
            make_opening(body=make_head_manifest(LARGE[:100], len(LARGE), compute_digest(LARGE)))
        )
        assert await archive.load_request("e1") == LARGE[:100]
        (row,) = await archive.list_exchanges(make_key().id)
        assert (row.request_size, row.is_capped) == (len(LARGE), True)

    async def test_a_history_that_grows_is_stored_from_its_new_slices_alone(self, archive: Archive) -> None:
        turns = make_turns(30)
        for count in range(1, 31):
            body = chain_body(turns[:count], known=count - 1)
            assert len(body.slices) == 1
            assert await archive.append(make_opening(f"e{count}", body))
        for count in (1, 17, 30):
            assert await archive.load_request(f"e{count}") == join_body(turns[:count])

    async def test_how_much_of_a_chain_is_there_is_told_by_its_links(self, archive: Archive) -> None:
        turns = make_turns(9)
        links = [each.link for each in chain_body(turns).slices]
        assert await archive.count_links(links) == 0
        await archive.append(make_opening("e1", chain_body(turns[:5])))
        assert [await archive.count_links(links[:count]) for count in (0, 3, 5, 9)] == [0, 3, 5, 5]
        theirs = [each.link for each in chain_body(turns, tenant=OTHER_TENANT).slices]
        assert await archive.count_links(theirs) == 0

    async def test_a_chain_may_lean_on_content_that_came_with_another(self, archive: Archive) -> None:
        turns = make_turns(6)
        assert await archive.append(make_opening("e1", chain_body(turns)))
        own = (b"", b'"in place of others"')
        sent = chain_body([own, *turns[3:]])
        lent = replace(sent, slices=(sent.slices[0], *[replace(each, content=None) for each in sent.slices[1:]]))
        assert await archive.append(make_round("e1", 0, lent))
        assert await archive.load_sent("e1", 0) == join_body([own, *turns[3:]])
        assert (await archive.verify()).faults == ()
        lost = replace(sent, slices=tuple([replace(each, content=None) for each in chain_body(make_turns(9)).slices]))
        assert not await is_stored(archive, make_opening("e2", lost))

    async def test_a_round_without_a_body_sent_the_clients_own_bytes(self, archive: Archive) -> None:
        rewritten = make_manifest(b'{"messages":[]}')
        assert await archive.append(
            make_opening(body=make_manifest(b"{ }")), make_round(k=0), make_round(k=1, body=rewritten)
        )
        assert await archive.load_sent("e1", 0) == b"{ }"
        assert await archive.load_sent("e1", 1) == b'{"messages":[]}'

    async def test_what_a_client_sent_to_a_history_of_ours_is_kept_beside_what_it_became(
        self, archive: Archive
    ) -> None:
        turns = make_turns(4)
        assert await archive.append(make_opening("e1", chain_body(turns[:2])), make_held("e1", history="new"))
        own = chain_body(turns[2:], after=b'],"n":1}')
        held = make_held("e2", own, "again \ud800")
        assert await is_stored(archive, make_opening("e2", chain_body(turns, known=2)), held)
        assert await archive.load_request("e2") == join_body(turns)
        assert await archive.load_held("e2") == join_body(turns[2:], after=b'],"n":1}')
        rows = [ReceivedRow("e2", "server", "again ?", held.digest), ReceivedRow("e1", "new", "", held.digest)]
        assert await archive.list_held(make_key().id) == rows
        assert await archive.list_held("nobody") == []
        with pytest.raises(NotFound):
            await archive.load_held("e3")
        for refused in (held, make_held("e3"), make_held("e1", chain_body(turns, known=4, before=b"x"))):
            assert not await is_stored(archive, refused)
        assert (await archive.verify()).faults == ()

    async def test_bytes_after_the_end_belong_to_what_was_received(self, archive: Archive) -> None:
        await archive.append(make_opening(), make_round(), make_outcome(received=b"data: [DONE]\n\n"))
        assert await archive.append(make_trailer(0, b"\n"), make_trailer(1, b": bye\n"))
        assert await archive.load_received("e1", 0) == b"data: [DONE]\n\n\n: bye\n"
        (row,) = await archive.list_exchanges(make_key().id)
        assert row.rounds[0].received_size == 21

    async def test_nothing_is_joined_to_an_answer_that_was_capped(self, archive: Archive) -> None:
        outcome = make_outcome(received=b"head", size=900, whole=compute_digest(b"all of it"))
        await archive.append(make_opening(), make_round(), outcome, make_trailer(0, b"tail"))
        assert await archive.load_received("e1", 0) == b"head"
        (row,) = await archive.list_exchanges(make_key().id)
        assert (row.rounds[0].received_size, row.rounds[0].is_capped) == (904, True)

    async def test_an_exchange_is_listed_with_all_that_is_known_of_it(self, archive: Archive) -> None:
        body = chain_body(make_turns(2))
        headers: Headers = ((b"date", b"Mon, 13 Oct 2025 09:00:00 GMT"), (b"x-request-id", b"req_1"))
        usage = Usage(input=1200, output=80, cached=1024, written=0, reasoning=None)
        await archive.append(make_opening(body=body), make_round(), make_outcome(headers=headers))
        await archive.append(make_reading(usage=usage, answer=b'{"choices":[]}'))
        round_row = RoundRow(
            k=0,
            upstream="openai",
            status=200,
            headers=headers,
            completeness="complete",
            received_size=len(ANSWER),
            is_capped=False,
            timings=TIMINGS,
            error="",
            answer=b'{"choices":[]}',
            usage=usage,
            finish="stop",
        )
        row = ExchangeRow(
            seq=1,
            id="e1",
            session=make_key().id,
            n=1,
            kind="managed",
            wire="chat_completions",
            mode="manage",
            model="gpt-4o",
            method="POST",
            target="/v1/chat/completions",
            headers=REQUEST_HEADERS,
            request_size=body.size,
            is_capped=False,
            digest=compute_digest(body.recipe),
            opened_ms=OPENED_MS,
            rounds=(round_row,),
        )
        assert list(await archive.list_exchanges(make_key().id)) == [row]

    async def test_a_call_that_is_open_is_listed_without_its_end(self, archive: Archive) -> None:
        await archive.append(make_opening("e1"))
        await archive.append(make_opening("e2"), make_round("e2"))
        first, second = await archive.list_exchanges(make_key().id)
        assert first.rounds == ()
        (open_round,) = second.rounds
        assert (open_round.status, open_round.completeness, open_round.timings) == (0, "", None)
        assert (open_round.headers, open_round.received_size, open_round.answer) == ((), 0, b"")
        assert (open_round.usage, open_round.finish, open_round.error) == (None, "", "")

    async def test_calls_are_exchanges_without_what_was_answered(self, archive: Archive) -> None:
        await archive.append(make_opening(), make_round(), make_outcome(), make_reading(answer=ANSWER))
        await archive.append(make_opening("e2"))
        first, second = await archive.list_exchanges(make_key().id)
        bare = dataclasses.replace(first, rounds=(dataclasses.replace(first.rounds[0], answer=b""),))
        assert list(await archive.list_calls(make_key().id)) == [bare, second]
        assert list(await archive.list_calls(make_key().id, 1, 1)) == [second]
        with pytest.raises(NotFound):
            await archive.list_calls("nobody")

    @pytest.mark.parametrize(
        ("ours", "theirs", "seen"), [("cut off", "", "cut off"), ("", "overloaded", "overloaded"), ("a", "b", "a")]
    )
    async def test_an_error_is_ours_or_else_the_providers(
        self, archive: Archive, ours: str, theirs: str, seen: str
    ) -> None:
        outcome = make_outcome(completeness="truncated", error=ours)
        await archive.append(make_opening(), make_round(), outcome, make_reading(error=theirs))
        (row,) = await archive.list_exchanges(make_key().id)
        assert (row.rounds[0].error, row.rounds[0].completeness) == (seen, "truncated")

    async def test_values_no_column_takes_are_fitted_and_the_record_is_kept(self, archive: Archive) -> None:
        reading = make_reading(usage=Usage(input=10**30), finish="st\ud800op", error="na\ud800ïve")
        await archive.append(make_opening(model="m\ud800é"), make_round(), make_outcome(error="\udfff"))
        assert await archive.append(reading)
        (row,) = await archive.list_exchanges(make_key().id)
        assert (row.model, row.rounds[0].error, row.rounds[0].finish) == ("m?é", "?", "st?op")
        assert row.rounds[0].usage == Usage(input=2**63 - 1)

    async def test_exchanges_are_numbered_from_one_in_each_session(self, archive: Archive) -> None:
        for number, name in enumerate(("a", "b", "a", "a", "b")):
            await archive.append(make_opening(f"e{number}", key=make_key(name)))
        rows = [*await archive.list_exchanges(make_key("a").id), *await archive.list_exchanges(make_key("b").id)]
        assert [(row.id, row.n) for row in rows] == [("e0", 1), ("e2", 2), ("e3", 3), ("e1", 1), ("e4", 2)]
        assert sorted(row.seq for row in rows) == [1, 2, 3, 4, 5]

    async def test_sessions_are_listed_by_latest_activity_even_if_the_clock_jumps(self, archive: Archive) -> None:
        for number, name in enumerate(("a", "b", "c", "a")):
            await archive.append(make_opening(f"e{number}", key=make_key(name), opened_ms=OPENED_MS - number))
        assert [row.family for row in await archive.list_sessions()] == ["a", "c", "b"]
        assert [row.family for row in await archive.list_sessions(limit=2)] == ["a", "c"]

    async def test_a_session_sums_up_its_exchanges(self, archive: Archive) -> None:
        for number, model in enumerate(("old", "new")):
            exchange = f"e{number}"
            await archive.append(
                make_opening(exchange, model=model, opened_ms=OPENED_MS + number), make_round(exchange)
            )
            await archive.append(make_outcome(exchange), make_reading(exchange, usage=Usage(input=100, output=7)))
        await archive.append(make_opening("e9", key=make_key("other")))
        assert list(await archive.list_sessions())[1] == SessionRow(
            id=make_key().id,
            family="agent-7",
            upstream="openai",
            created_ms=OPENED_MS,
            last_ms=OPENED_MS + 1,
            exchanges=2,
            model="new",
            seq=2,
        )

    async def test_what_is_not_there_is_not_found(self, archive: Archive) -> None:
        await archive.append(make_opening(), make_round())
        for question in (
            archive.list_exchanges("nobody"),
            archive.load_request("e2"),
            archive.load_sent("e2", 0),
            archive.load_sent("e1", 1),
            archive.load_received("e1", 0),
            archive.load_received("e2", 0),
        ):
            with pytest.raises(NotFound):
                await question

    @pytest.mark.parametrize(
        "again",
        [make_opening(), make_round(), make_outcome(), make_trailer(0, b"x"), make_reading()],
        ids=lambda record: type(record).__name__,
    )
    async def test_a_record_that_comes_twice_is_refused_and_counted(self, archive: Archive, again: Record) -> None:
        await archive.append(make_opening(), make_round(), make_outcome(), make_trailer(0, b"x"), make_reading())
        before = archive.health
        assert not await is_stored(archive, again)
        assert archive.health.dropped == before.dropped + 1
        assert archive.health.generation != before.generation
        (row,) = await archive.list_exchanges(make_key().id)
        assert (row.n, len(row.rounds)) == (1, 1)
        assert await archive.append(make_opening("e2"))

    @pytest.mark.parametrize(
        "orphan",
        [make_round("e7"), make_outcome("e7"), make_outcome(k=3), make_trailer(0, b"x", k=3), make_reading(k=3)],
        ids=["round", "outcome", "outcome of no round", "trailer", "reading"],
    )
    async def test_a_record_that_refers_to_nothing_is_refused_and_counted(
        self, archive: Archive, orphan: Record
    ) -> None:
        await archive.append(make_opening(), make_round())
        assert not await is_stored(archive, orphan)
        assert archive.health.dropped == 1
        assert await archive.append(make_outcome())
        assert (await archive.verify()).faults == ()

    async def test_a_body_whose_history_was_lost_is_refused_until_it_is_sent_in_full(self, archive: Archive) -> None:
        turns = make_turns(3)
        lost = encode_recipe((BlobPiece(compute_digest(b"never sent")),))
        assert not await is_stored(archive, make_opening("e1", chain_body(turns, known=2)))
        assert not await is_stored(archive, make_opening("e2", chain_body(turns, known=3)))
        assert not await is_stored(archive, make_opening("e3", Manifest(lost, (), (), 10)))
        assert not await is_stored(archive, make_opening("e4", Manifest(b"\x09garbage", (), (), 8)))
        assert (archive.health.dropped, archive.health.generation) == (4, 4)
        assert await archive.append(make_opening("e5", chain_body(turns)))
        assert await archive.load_request("e5") == join_body(turns)
        assert (await archive.verify()).faults == ()

    async def test_records_of_one_append_are_stored_together_or_not_at_all(self, archive: Archive) -> None:
        body = chain_body(make_turns(2))
        assert not await is_stored(archive, make_opening("e1", body), make_round("e1"), make_outcome("e1", k=5))
        assert archive.health.dropped == 3
        with pytest.raises(NotFound):
            await archive.load_request("e1")
        assert list(await archive.list_sessions()) == []
        # neither did its slices get in: a body that leans on them is refused
        assert not await is_stored(archive, make_opening("e2", chain_body(make_turns(2), known=2)))
        assert await archive.append(make_opening("e1", body))
        assert (await archive.list_exchanges(make_key().id))[0].n == 1

    async def test_content_of_one_tenant_is_no_content_of_another(self, archive: Archive) -> None:
        secret = make_manifest(b"the launch code is 0000")
        assert await archive.append(make_opening("e1", secret))
        probe = replace(secret, blobs=())
        assert not await is_stored(archive, make_opening("e2", probe, key=make_key("spy", OTHER_TENANT)))
        assert await archive.append(make_opening("e3", secret, key=make_key("spy", OTHER_TENANT)))
        assert await archive.load_request("e3") == b"the launch code is 0000"

    async def test_records_that_are_not_urgent_are_stored_with_the_next_that_are(self, archive: Archive) -> None:
        await archive.append(make_opening(), make_round(), make_outcome())
        reading = archive.append(make_reading(), is_urgent=False)
        assert await archive.append(make_opening("e2"))
        assert reading.done() and reading.result()
        assert (await archive.list_exchanges(make_key().id))[0].rounds[0].finish == "stop"

    async def test_records_that_are_not_urgent_wait_for_flush_at_most(self, archive: Archive) -> None:
        opening = archive.append(make_opening(), is_urgent=False)
        archive.flush()
        assert await opening
        assert await archive.load_request("e1") == b"{}"

    async def test_a_sound_log_has_no_faults_and_counts_what_was_looked_at(self, archive: Archive) -> None:
        await archive.append(make_opening("e1", chain_body(make_turns(4))), make_round("e1"), make_outcome("e1"))
        await archive.append(make_opening("e2"), make_round("e2", 0, make_manifest(b"x")), make_round("e2", 1))
        found = await archive.verify()
        assert (found.exchanges, found.rounds, found.slices, found.faults) == (2, 3, 4, ())
        assert found.blobs >= 6

    async def test_after_close_records_are_refused_and_nothing_raises(self, archive: Archive) -> None:
        await archive.append(make_opening())
        await archive.close()
        assert not await archive.append(make_opening("e2"))
        assert archive.health.dropped == 1
        await archive.close()
