"""The messages of a recorded request."""

import json
from dataclasses import replace

import pytest

from proxy.engine.reports.conversation import load_history, split_whole
from proxy.model.errors import NotFound
from tests.support.fake_log import EXCHANGE, FakeLog
from tests.support.managing import make_history
from tests.support.talking import Talk


async def test_they_are_the_nodes_that_the_request_had() -> None:
    talk = Talk()
    history = await talk.grow(3)
    (row,) = await talk.log.list_exchanges(talk.session, 2, 1)
    found = await load_history(talk.log, row)
    assert found.leading == 1
    assert [json.loads(raw) for raw in found.raws] == history[1:]
    assert found.nodes[-1] == row.tip
    assert len(found.nodes) == row.depth
    await talk.close()


@pytest.mark.parametrize(
    ("changes", "body", "told"),
    [
        ({"wire": ""}, b"{}", "no known wire format"),
        ({}, json.dumps({"messages": make_history(1)}).encode(), "have no place of their own"),
        ({"tip": b"\x01" * 16}, json.dumps({"messages": make_history(1)}).encode(), "have no place of their own"),
        ({}, b"[]", "it is no JSON object"),
    ],
)
async def test_what_has_no_place_is_told(changes: dict[str, object], body: bytes, told: str) -> None:
    row = replace(EXCHANGE, **changes)  # type: ignore[arg-type]
    with pytest.raises(NotFound, match=told):
        await load_history(FakeLog(exchanges=[row], bodies={row.id: body}), row)


def test_a_body_that_cannot_be_taken_apart_is_told() -> None:
    with pytest.raises(NotFound, match="cannot be taken apart"):
        split_whole(b"{", "messages")
    assert len(split_whole(b'{"messages":[%b]}' % b",".join([b"1"] * 30_000), "messages").items) == 30_000
