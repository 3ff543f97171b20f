"""A session with its tree and its children, and rows as JSON."""

import json
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.context.budget import BudgetPolicy
from proxy.engine.models import PriceList
from proxy.engine.recorded.documents import write_json
from proxy.model.card import Card
from proxy.model.errors import NotFound
from proxy.model.log import Call
from proxy.model.parts import TextPart
from proxy.read.calls import RoundDocument, describe_body, is_json
from proxy.read.context import EditDocument
from proxy.read.savings import SavingsInputs
from proxy.read.sessions import BranchWords, describe_branches, load_overview
from proxy.store.sqlite.lineage_queries import ExchangePosition, find_branches
from tests.support.compacting import Workshop
from tests.support.fake_log import BRANCHES, SESSION, FakeLog, branch, tree_log
from tests.support.managing import Message

INPUTS = SavingsInputs(PriceList(lambda upstream, model: Card()), BudgetPolicy())


def test_a_branch_goes_on_from_the_deepest_call_that_it_shares() -> None:
    assert [(each.own, each.after) for each in describe_branches(BRANCHES, {})] == [
        ((1, 2, 6, 3), 0),
        ((4, 5), 1),
        ((7,), 0),
    ]


def test_the_deepest_is_not_the_latest() -> None:
    """The client went back to the first turn before it went on from the second."""
    first = branch("c", 5, (1, 4, 2, 3), depths=(1, 1, 3, 5))
    found = describe_branches([first, branch("d", 5, (5,), depths=(5,), trunk=first, shared=3)], {})
    assert [(each.own, each.after) for each in found] == [((1, 4, 2, 3), 0), ((5,), 2)]


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 4)), max_size=20))
def test_it_goes_on_from_the_deepest_call_of_any_older_branch_on_its_way(drawn: list[tuple[int, int]]) -> None:
    names = [b"%d" % i for i in range(len(drawn))]
    parents = {name: names[at] if at < i else b"" for i, (name, (at, _)) in enumerate(zip(names, drawn, strict=True))}
    stands = [
        ExchangePosition(n, "", name, drawn[n - 1][1], "append", False) for n, name in enumerate(reversed(names), 1)
    ]
    seen: set[Call] = set()
    branches = find_branches(parents, stands)
    for row, found in zip(branches, describe_branches(branches, {}), strict=True):
        shared = [call for call in row.exchanges if call in seen]
        assert found.after == max(((call.depth, call.n) for call in shared), default=(0, 0))[1]
        own = [call for call in row.exchanges if call not in seen]
        assert found.own == tuple(call.n for call in sorted(own, key=lambda call: (call.depth, call.n)))
        seen.update(own)


async def test_children_are_the_sessions_that_name_it_as_their_parent() -> None:
    log = tree_log()
    log.sessions = [
        replace(SESSION, id=name, parent=parent) for name, parent in (("x", "abc1"), ("abc1", ""), ("y", "x"))
    ]
    overview = await load_overview(log, "ab", INPUTS)
    assert [row.id for row in overview.children] == ["x"]
    assert overview.session.id == "abc1"


async def test_a_session_that_is_not_there_is_not_found() -> None:
    with pytest.raises(NotFound):
        await load_overview(FakeLog(), "x", INPUTS)


@pytest.mark.parametrize("content", [b"{}", b' [1e400, "\\ud800"] ', b'"x"', b"12345678901234567890123"])
def test_json_goes_out_as_it_came(content: bytes) -> None:
    assert write_json(describe_body(content)) == b'{"request":' + content + b"}\n"


@pytest.mark.parametrize("content", [b"\xff\xfe", b"{", b"NaN", b"[Infinity]", b'{"a": "\xff"}', b"[" * 100_000])
def test_what_is_no_json_goes_out_in_base64(content: bytes) -> None:
    assert not is_json(content)
    assert set(describe_body(content)) == {"request_base64"}


def test_a_document_is_one_line_whatever_its_parts_look_like() -> None:
    written = write_json(describe_body(b'{\r\n"a":\n1}'))
    assert written.count(b"\n") == 1
    assert json.loads(written) == {"request": {"a": 1}}


def test_a_text_that_utf_8_cannot_hold_is_shown_without_what_it_is_not() -> None:
    row = RoundDocument(0, "u\ud800", 200, "", 0, False, "", "", None, None, None)
    written = json.loads(write_json({"a\ud83e": [row, ("\udfff", 1)], "raw": msgspec.Raw(b'"\\ud800"')}))
    assert written["a\ufffd"][0]["upstream"] == "u\ufffd"
    assert (written["a\ufffd"][1], written["raw"]) == (["\ufffd", 1], "\ud800")
    assert json.loads(write_json(TextPart("\ud800"))) == {"type": "text", "text": "\ufffd"}
    edit = EditDocument("written", text="\ud800", start=1)
    assert json.loads(write_json(edit))["text"] == "\ufffd"


def test_of_very_many_exchanges_the_later_branches_have_only_their_own() -> None:
    """Of a thousand turns with as many edits at their end, each has all that is before."""
    trunk = branch("a", 1, range(1, 1001), depths=range(1, 1001))
    edits = [branch(str(n), 1, (n,), trunk=trunk, shared=999) for n in range(1001, 2001)]
    described = [msgspec.structs.asdict(each) for each in describe_branches([trunk, *edits], {})]
    assert [each["own"] for each in described[1:]] == [(n,) for n in range(1001, 2001)]
    whole = [each["exchanges"] for each in described if each["exchanges"] is not None]
    assert (len(whole), {len(numbers) for numbers in whole}) == (100, {1000})
    assert {each["after"] for each in described[1:]} == {999}


async def test_a_branch_has_the_last_words_of_the_user() -> None:
    shop = Workshop(ceiling=100_000)
    said: list[Message] = [{"role": "user", "content": text} for text in ("Fix it.", "One way.", "Another way.")]
    call = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
    steps: list[Message] = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "done"},
    ]
    await shop.ask(said[:1])
    await shop.ask([*said[:2], *steps])
    await shop.ask([said[0], said[2]])
    words = BranchWords(shop.log)
    branches = await shop.log.list_branches(shop.session)
    found = await words.load(shop.session, branches)
    assert list(found.values()) == ["One way.", "Another way."]
    document = await load_overview(shop.log, shop.session, INPUTS, words=words)
    assert [branch.words for branch in document.branches] == ["One way.", "Another way."]
    unread = await load_overview(shop.log, shop.session, INPUTS)
    assert [branch.words for branch in unread.branches] == ["", ""]
    words.forget()
    assert await words.load(shop.session, branches) == found


async def test_a_branch_that_cannot_be_read_has_no_words() -> None:
    log = FakeLog(bodies={})
    branches = (branch("c", 1, (1,), depths=(1,)), branch("d", 1, (), depths=()))
    assert list((await BranchWords(log).load(SESSION.id, branches)).values()) == ["", ""]
