"""A session written out."""

import json
from typing import Any

import pytest

from proxy.engine.reports.export import Form, describe_whole, open_export
from proxy.model.errors import NotFound
from tests.support.fake_log import ANSWER, REQUEST, TREE, FakeLog, tree_log


async def write(log: FakeLog, form: Form, tip: str = "") -> bytes:
    return b"".join([piece async for piece in (await open_export(log, "abc", form, tip)).pieces])


async def test_a_document_has_all_exchanges_or_those_of_a_branch() -> None:
    whole = json.loads(await write(tree_log(), "json"))
    assert (whole["session"], [row["n"] for row in whole["exchanges"]]) == ("abc1", list(range(1, 9)))
    one = json.loads(await write(tree_log(), "json", b"five".hex()))
    assert [row["n"] for row in one["exchanges"]] == [1, 4, 5]
    assert [row["request"]["messages"][0]["content"] for row in one["exchanges"]] == ["1", "4", "5"]


async def test_lines_have_an_exchange_each() -> None:
    lines = (await write(tree_log(), "jsonl", b"five".hex())).splitlines()
    assert [json.loads(line)["n"] for line in lines] == [1, 4, 5]


async def test_a_conversation_is_that_of_the_branch() -> None:
    async def read(tip: str) -> Any:
        return json.loads(await write(tree_log(), "openai", tip))[0]["content"]

    assert [await read(tip) for tip in ("", b"five".hex(), b"three".hex(), b"seven".hex())] == ["6", "5", "3", "7"]


async def test_a_session_without_exchanges_is_still_a_document() -> None:
    assert json.loads(await write(FakeLog(exchanges=()), "json")) == {"session": "abc1", "exchanges": []}
    assert await write(FakeLog(exchanges=()), "jsonl") == b""


@pytest.mark.parametrize(("form", "tip"), [("json", "ff"), ("jsonl", "ff"), ("openai", "ff")])
async def test_what_is_not_there_is_told_before_the_first_piece(form: Form, tip: str) -> None:
    with pytest.raises(NotFound, match="the tips are"):
        await open_export(tree_log(), "abc", form, tip)
    with pytest.raises(NotFound, match="no session"):
        await open_export(tree_log(), "x", form)


async def test_pieces_are_loaded_as_they_are_asked_for() -> None:
    log = tree_log()
    pieces = (await open_export(log, "abc", "jsonl")).pieces
    assert json.loads(await anext(pieces))["request"]["messages"]
    log.bodies.clear()
    assert json.loads(await anext(pieces))["missing"] == "this content was erased"


async def test_an_exchange_whose_request_was_erased_is_described_with_the_reason() -> None:
    described = await describe_whole(FakeLog(bodies={}), TREE[0])
    assert (described["request"], described["missing"]) == (None, "this content was erased")
    whole = await describe_whole(FakeLog(bodies={"x1": REQUEST}), TREE[0])
    assert (bytes(whole["request"]), bytes(whole["rounds"][0]["answer"])) == (REQUEST, ANSWER)
