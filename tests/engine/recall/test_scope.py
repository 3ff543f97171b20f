"""Who recalls: the scope of a request, what it sees, and whose content belongs to it."""

from collections.abc import Sequence

import msgspec

from proxy.engine.recall.scope import find_relatives, find_visible, make_scope
from proxy.model.epoch import Edit, Kept, Replaced, Written
from proxy.wire import FORMATS
from tests.support.contexts import make_epoch
from tests.support.managing import make_history as make_messages
from tests.support.managing import make_subject
from tests.support.recalling import OTHER_TENANT, make_history, make_log, say, scope_of

NODES = [bytes([n]) * 16 for n in range(6)]


def see(edits: Sequence[Edit], nodes: Sequence[bytes] = NODES, depth: int = 4) -> list[int]:
    """The places that a request sees under an epoch with these edits."""
    epoch = msgspec.structs.replace(make_epoch("e1"), depth=depth, edits=msgspec.json.encode(edits))
    seen = find_visible(nodes, epoch)
    return [place for place, node in enumerate(nodes) if node in seen]


def test_without_an_epoch_everything_is_in_view() -> None:
    assert find_visible(NODES, None) == frozenset(NODES)


def test_under_an_epoch_what_is_kept_or_came_later_is_in_view() -> None:
    edits = (Written("ledger", 0, 4), Kept(1), Replaced(2, "gone", "tombstone"), Replaced(3, "", "detached"))
    assert see(edits) == [1, 3, 4, 5]


def test_what_was_shortened_is_not_in_view() -> None:
    assert see((Kept(0), Replaced(1, "half", "shortened"), Replaced(2, "block", "file"))) == [0, 4, 5]


def test_an_epoch_whose_edits_were_erased_shows_only_what_came_later() -> None:
    epoch = msgspec.structs.replace(make_epoch("e1"), depth=4, edits=b"")
    assert find_visible(NODES, epoch) == frozenset(NODES[4:])


def test_a_node_of_which_an_item_was_removed_is_not_in_view() -> None:
    assert see((Kept(1),), [NODES[0], NODES[1], NODES[1], NODES[2], NODES[3], NODES[4]]) == [4, 5]


def test_an_epoch_that_is_longer_than_the_history_is_no_fault() -> None:
    assert see((Kept(0), Kept(7)), depth=9) == [0]


def test_the_scope_of_a_request_has_its_messages_after_the_preamble() -> None:
    request = make_subject(make_messages(3))
    scope = make_scope(request, "session", None)
    assert (scope.tenant, scope.session, scope.parent) == (request.session.tenant, request.session.id, "")
    assert scope.reach == "session" and scope.visible == frozenset(request.nodes)
    assert scope.history is not None
    assert [message.role for message in scope.history.messages] == ["user", *["assistant", "tool"] * 3]
    assert len(scope.history) == len(request.nodes) and scope.history.wire in FORMATS


async def test_a_session_that_the_log_does_not_have_yet_has_only_itself() -> None:
    relatives = await find_relatives(make_log(), scope_of(make_history(), session="new1", parent="new2"))
    assert (relatives.line, relatives.parent, relatives.is_mixed) == (("new1",), None, False)


async def test_sessions_that_go_on_from_each_other_make_no_endless_line() -> None:
    log = make_log()
    log.add_session("abc1", adopted="old1")
    log.add_session("old1", adopted="abc1")
    relatives = await find_relatives(log, scope_of(make_history()))
    assert (relatives.line, relatives.is_mixed) == (("abc1", "old1"), True)


async def test_a_parent_of_another_tenant_or_without_a_readable_call_is_none() -> None:
    log, history = make_log(), make_history(say("user", "Do it"))
    log.add_session("par1", tenant=OTHER_TENANT)
    log.add_call("par1", history, 1)
    assert (await find_relatives(log, scope_of(history, parent="par1"))).parent is None
    log.add_session("par2")
    log.add_call("par2", history, 1, is_side=True)
    assert (await find_relatives(log, scope_of(history, parent="par2"))).parent is None
    log.add_session("par3")
    row = log.add_call("par3", history, 1)
    del log.bodies[row.id]
    assert (await find_relatives(log, scope_of(history, parent="par3"))).parent is None
    log.add_session("par4")
    log.add_call("par4", history, 1)
    assert (await find_relatives(log, scope_of(history, parent="par4"))).parent_session == "par4"
