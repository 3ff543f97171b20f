"""An epoch holds for what goes on from the request it was opened for, and elsewhere only where enough is left."""

import msgspec
import pytest

from proxy.engine.context.epoch_scope import EpochReaches, epoch_applies, keeps_recent_turns
from proxy.engine.request import ManagedRequest
from proxy.model.epoch import Edit, Epoch, Kept, Replaced, Written
from tests.support.contexts import HISTORY, ask, make_epoch
from tests.support.managed import ManagedEngine, Turn, cut_end
from tests.support.managing import Message, make_history, make_subject

LONG = make_history(44, 1600)
TURNS: list[Message] = [
    message
    for number in range(4)
    for message in (
        {"role": "user", "content": f"Question {number}?"},
        {"role": "user", "content": "It is urgent."},
        *HISTORY[2 + 2 * number : 4 + 2 * number],
        {"role": "assistant", "content": f"Answer {number}."},
    )
]


def stand_for(depth: int, *edits: Edit) -> Epoch:
    return msgspec.structs.replace(make_epoch("e", depth), edits=msgspec.json.encode((Written("w", 0, depth), *edits)))


def repeat(subject: ManagedRequest) -> ManagedRequest:
    assert subject.lineage is not None
    return msgspec.structs.replace(subject, lineage=msgspec.structs.replace(subject.lineage, relation="retry"))


@pytest.mark.parametrize(("groups", "is_enough"), [(0, False), (1, False), (2, False), (3, True), (4, True)])
def test_three_groups_behind_it_are_enough(groups: int, *, is_enough: bool) -> None:
    epoch, items = stand_for(5, Kept(0)), ask(6 + 2 * groups).chain.items
    assert keeps_recent_turns(epoch, items) is is_enough
    assert keeps_recent_turns(epoch, items, 1, 0) is (groups > 0)


def test_a_group_that_stands_in_its_messages_is_as_good_as_one_behind_it() -> None:
    items = ask(10).chain.items  # four groups, of which two are behind it
    assert keeps_recent_turns(stand_for(5, Kept(0), Kept(3), Kept(4)), items)
    assert not keeps_recent_turns(stand_for(5, Kept(0), Kept(3), Replaced(4, "gone", "tombstone")), items)


def test_where_the_history_has_fewer_groups_none_is_missed() -> None:
    items = ask(6).chain.items  # the task and two groups
    assert keeps_recent_turns(stand_for(1, Kept(0)), items)
    assert not keeps_recent_turns(stand_for(1), items)
    talk = make_subject([{"role": role, "content": "so"} for role in ("user", "assistant") * 4][:7]).chain.items
    assert keeps_recent_turns(stand_for(4), talk)
    assert not keeps_recent_turns(stand_for(5), talk)
    assert keeps_recent_turns(stand_for(5, Kept(4)), talk)


def test_the_users_two_newest_turns_stay_whole() -> None:
    items = make_subject(TURNS).chain.items
    assert keeps_recent_turns(stand_for(7), items)
    assert not keeps_recent_turns(stand_for(12, Kept(10)), items, 1)
    assert keeps_recent_turns(stand_for(12, Kept(10), Kept(11)), items, 1)


def test_calls_that_were_made_together_are_one_group() -> None:
    """Also where each is a message of its own: three groups stay as the builder of plans counts them."""
    items = ask(10).chain.items  # the task and four groups
    together = [*items[:3], *items[3::2], *items[4::2]]  # the last three calls, then their results
    assert keeps_recent_turns(stand_for(3, Kept(0)), items)
    assert not keeps_recent_turns(stand_for(3, Kept(0)), together)
    assert keeps_recent_turns(stand_for(3, Kept(0), Kept(1), Kept(2)), together)


def test_all_that_no_model_has_answered_stays() -> None:
    talk = make_subject([{"role": role, "content": "so"} for role in ("user", "assistant", "user", "user")]).chain.items
    assert keeps_recent_turns(stand_for(2), talk, 1, 0)
    assert not keeps_recent_turns(stand_for(3), talk, 1, 0)
    begun = make_subject([{"role": role, "content": "so"} for role in ("user", "assistant") * 2]).chain.items
    assert keeps_recent_turns(stand_for(2), begun, 1, 0)
    assert not keeps_recent_turns(stand_for(3), begun, 1, 0)  # the model is to go on with the last message


def test_what_goes_on_from_its_request_goes_on_under_it() -> None:
    """Also where three groups did not fit."""
    epoch = stand_for(7, Kept(0))
    assert epoch_applies(epoch, 9, ask(10))
    assert epoch_applies(epoch, 9, repeat(ask(10)))
    assert epoch_applies(epoch, 7, ask(8))
    assert not epoch_applies(epoch, 9, ask(8))


def test_what_goes_back_behind_it_holds_as_far_as_enough_is_left() -> None:
    epoch = stand_for(3, Kept(0))
    assert epoch_applies(epoch, 11, ask(10))
    assert not epoch_applies(epoch, 11, repeat(ask(10)))
    assert not epoch_applies(epoch, 11, ask(8))


def test_where_nobody_knows_how_far_its_request_went_one_group_is_enough() -> None:
    epoch = stand_for(3)
    assert [epoch_applies(epoch, None, ask(count)) for count in (4, 5, 6)] == [False, True, True]


def test_one_that_stands_for_nothing_holds_for_anything() -> None:
    assert epoch_applies(make_epoch("r", 0, why="revert"), 9, make_subject([]))


def test_of_those_that_hold_it_is_the_newest() -> None:
    reaches, first, second = EpochReaches(), make_epoch("a", 2), make_epoch("b", 6)
    reaches.note("a", 4)
    reaches.note("b", 9)
    chosen = [reaches.choose((first, second), (first, second), ask(count)) for count in (11, 10, 9, 8, 5, 4)]
    assert chosen == [second, second, first, first, first, None]
    reaches.forget("a")
    reaches.note("a", None)
    assert reaches.choose((first,), (first,), ask(5)) is first


def test_a_revert_holds_where_that_does_which_it_goes_back_to() -> None:
    """And what it has taken back does not return where it holds no more."""
    first, second = stand_for(4), msgspec.structs.replace(stand_for(6), id="b", parent="e")
    revert = msgspec.structs.replace(first, id="r", why="revert", parent="b")
    all_, reaches = (first, second, revert), EpochReaches()
    reaches.note("e", 8)
    assert reaches.choose(all_, all_, ask(9)) is revert
    reaches.note("b", 5)
    assert reaches.choose((second, revert), all_, ask(8)) is None


def until(steps: int) -> list[Message]:
    return LONG[: 2 + 2 * steps]


def is_tail_kept(turn: Turn, steps: int) -> bool:
    """Whether the task and the three newest groups went out as the client sent them."""
    sent = turn.messages
    return LONG[1] in sent and sent[-2 * min(3, steps) :] == until(steps)[2:][-6:]


async def play(engine: ManagedEngine, first: int, last: int) -> dict[int, Turn]:
    return {steps: await engine.send(until(steps)) for steps in range(first, last)}


async def test_every_prefix_of_a_managed_history_keeps_a_tail() -> None:
    engine = ManagedEngine()
    turns = await play(engine, 1, 42)
    assert len(engine.epochs) > 1
    assert all(is_tail_kept(turn, steps) for steps, turn in turns.items())
    for steps, turn in turns.items():
        assert (await engine.send(until(steps))).sent == turn.sent
        asked = [*until(steps), {"role": "assistant", "content": "hm"}, {"role": "user", "content": "What was that?"}]
        sent = (await engine.send(asked)).messages
        assert sent[-2:] == asked[-2:]
        assert sent[-2 - 2 * min(3, steps) : -2] == until(steps)[2:][-6:]


async def test_every_prefix_keeps_a_tail_after_a_restart_too() -> None:
    engine = ManagedEngine()
    await play(engine, 1, 42)
    again = ManagedEngine(after=engine)
    for steps in (5, 41, *range(40, 0, -1)):
        assert is_tail_kept(await again.send(until(steps)), steps)
    assert again.failures == []


@pytest.mark.parametrize("ceiling", [8_000, 2_500])
async def test_an_epoch_goes_on_after_a_restart(ceiling: int) -> None:
    """With a low ceiling it leaves one group, for three do not fit."""
    engine, steps = ManagedEngine(ceiling=ceiling), 1
    while not engine.epochs:
        opened = await engine.send(until(steps))
        steps += 1
    again = ManagedEngine(after=engine, ceiling=ceiling)
    assert (await again.send(until(steps - 1))).sent == opened.sent
    turn = await ManagedEngine(after=again, ceiling=ceiling).send([*until(steps - 1), LONG[2 * steps]])
    assert turn.sent.startswith(cut_end(opened.sent))
    assert len(engine.epochs) == 1
