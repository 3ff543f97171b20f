"""What `verify` finds of calls whose responses came whole, and whose records were lost in part."""

import pytest
from msgspec.structs import replace

from proxy.model.exchange import Outcome, Timings
from proxy.model.log import Record
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.verify import verify_log
from tests.store.samples import (
    OPENED_MS,
    make_chain,
    make_epoch,
    make_opening,
    make_outcome,
    make_plan,
    make_reading,
    make_recalled,
    make_reply,
    make_round,
    make_step,
)
from tests.store.sqlite.conftest import Opener

SAID = b'{"choices":[{"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}]}'
STREAM = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":"hi"}}]}\n\ndata: [DONE]\n\n'
SILENT = b'{"choices":[]}'
REQUEST, ANSWER = make_chain("a", "!b")
LATER_MS = OPENED_MS + 120_000
EVENTS = ((b"content-type", b"text/event-stream"),)


def end(exchange: str = "e1", k: int = 0, content: bytes = SAID, overhead: float | None = 1.0) -> Outcome:
    """The end of a call of this version."""
    headers = EVENTS if content.startswith(b"data") else ((b"content-type", b"application/json"),)
    outcome = make_outcome(exchange, k, received=content, headers=headers)
    return replace(outcome, timings=Timings(1.0, 2.0, 3.0, overhead))


BEGUN = (make_opening(), make_round())
STEP, REPLY, READING = make_step(nodes=[REQUEST]), make_reply(nodes=[ANSWER]), make_reading(answer=SAID)
PLAN = make_plan()
RECALLED = make_recalled(node=ANSWER.node)
NEXT = (make_round("e1", 1), replace(make_plan("e1", 1, epoch="p1"), reason="the model recalled; above"))
LATER = (
    make_opening("e2", opened_ms=LATER_MS),
    make_round("e2"),
    make_step("e2", make_chain("c"), base=0),
    end("e2"),
    make_reading("e2", answer=SAID),
    make_reply("e2", make_chain("!d", parent=make_chain("c")[0].node)),
)
_PLACE = ["exchange 1: its place in its session is missing: a record was lost"]
_REPLY = ["exchange 1: its answer is missing in its session: a record was lost"]
_ROUNDS = ["exchange 1: what the model recalled in its answer is missing: a record was lost"]
_UNREAD = ["exchange 1: its response was not read, though later ones were: a record was lost"]


@pytest.mark.parametrize(
    ("records", "found"),
    [
        pytest.param((*BEGUN, STEP, PLAN, end(), READING, REPLY), [], id="whole"),
        pytest.param((*BEGUN, PLAN, end(), READING), _PLACE, id="no step"),
        pytest.param((make_opening(), make_round(body=make_opening().body), end(), READING), _PLACE, id="rewritten"),
        pytest.param((*BEGUN, end(), READING), [], id="never placed"),
        pytest.param((*BEGUN, PLAN, end(overhead=None), READING), [], id="of an earlier version"),
        pytest.param((*BEGUN, STEP, PLAN, end(), READING), _REPLY, id="no reply"),
        pytest.param((*BEGUN, STEP, PLAN, end(content=STREAM), READING), _REPLY, id="no reply to a stream"),
        pytest.param((*BEGUN, STEP, end(content=SILENT), make_reading(answer=SILENT)), [], id="nothing said"),
        pytest.param((*BEGUN, STEP, end(), make_reading(answer=SAID, error="no")), [], id="an error"),
        pytest.param((*BEGUN, STEP, replace(end(), completeness="aborted"), READING), [], id="aborted"),
        pytest.param((*BEGUN, STEP, replace(end(), status=404), READING), [], id="refused"),
        pytest.param((*BEGUN, STEP, PLAN, end()), [], id="not read yet"),
        pytest.param((*BEGUN, STEP, PLAN, end(), *LATER), _UNREAD, id="passed over"),
        pytest.param((*BEGUN, STEP, PLAN, end(content=STREAM), *LATER), _UNREAD, id="a stream passed over"),
        pytest.param((*BEGUN, STEP, PLAN, end(content=b"data: x"), *LATER), [], id="unreadable"),
        pytest.param((*BEGUN, STEP, PLAN, end(content=b"<html>"), *LATER), [], id="no answer"),
        pytest.param(
            (*BEGUN, STEP, make_epoch(), end(), *NEXT, end(k=1), make_reading(k=1, answer=SAID), REPLY, RECALLED),
            [],
            id="recalled",
        ),
        pytest.param(
            (*BEGUN, STEP, make_epoch(), end(), *NEXT, end(k=1), make_reading(k=1, answer=SAID), REPLY),
            _ROUNDS,
            id="rounds lost",
        ),
        pytest.param((*BEGUN, STEP, make_epoch(), end(), READING, *NEXT), [], id="ended between two rounds"),
    ],
)
async def test_a_whole_response_has_its_place_its_reading_and_its_answer(
    open_archive: Opener, policy: StorePolicy, records: tuple[Record, ...], found: list[str]
) -> None:
    archive = open_archive()
    for record in records:
        assert await archive.append(record), type(record)
    await archive.close()
    assert [f"{fault.where}: {fault.what}" for fault in verify_log(policy.path).faults] == found
