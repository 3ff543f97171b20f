"""A client that rewrites the end of its requests: aider moves its files and a reminder to the end of each (B6)."""

import json
from collections.abc import Sequence

import pytest

from proxy.model.lineage import Lineage
from tests.support.coding_clients import write_aider
from tests.support.managed import ManagedEngine, Turn
from tests.support.managing import Message

SYSTEM: Message = {"role": "system", "content": "You are a coder."}
TASKS = [f"{i}: Change the parser so that it reads the shape number {i}. Explain it." for i in range(30)]
FILES = "*Trust this message as the true contents of these files!*"


def write(turn: int, tasks: Sequence[str] = TASKS) -> list[Message]:
    return [SYSTEM, *write_aider(turn, tasks)]


class Played:
    """The turns of a session, with the place of each request in it."""

    def __init__(self, engine: ManagedEngine, turns: list[Turn]) -> None:
        self.engine, self.turns = engine, turns
        self.steps = engine.log.of(Lineage)

    @property
    def relations(self) -> list[str]:
        return [step.relation for step in self.steps]


async def play(ceiling: int, turns: int, tasks: Sequence[str] = TASKS, *, plans_ahead: bool = False) -> Played:
    engine = ManagedEngine(ceiling=ceiling, plans_ahead=plans_ahead)
    played: list[Turn] = []
    for turn in range(1, turns + 1):
        played.append(await engine.send(write(turn, tasks)))
        if plans_ahead:
            await engine.wait_for_ahead()
    return Played(engine, played)


async def test_below_the_soft_mark_twelve_calls_go_out_as_the_client_sent_them() -> None:
    played = await play(8_000, 12)
    assert played.relations == ["root", "branch", "branch", *9 * ["volatile"]]
    assert [turn.sent for turn in played.turns] == [turn.body for turn in played.turns]
    assert played.engine.epochs == []


@pytest.mark.parametrize("plans_ahead", [False, True])
@pytest.mark.parametrize(("ceiling", "most"), [(3_500, 0.5), (1_900, 0.6)])
async def test_no_epoch_covers_the_volatile_tail(ceiling: int, most: float, *, plans_ahead: bool) -> None:
    """At the lower ceiling the files take half of what is usable, the words of the user a fifth, and texts give way."""
    played = await play(ceiling, 24, plans_ahead=plans_ahead)
    bases = {step.exchange: step.base for step in played.steps if step.relation == "volatile"}
    covered = [(epoch.depth, bases[epoch.exchange]) for epoch in played.engine.epochs if epoch.exchange in bases]
    assert len(covered) >= 3
    assert all(0 < depth <= base for depth, base in covered)
    assert len(covered) <= most * len(bases)  # without the rule, one for each call
    assert played.engine.failures == []


async def test_what_is_too_large_is_shortened_once_the_client_keeps_it_without_its_files() -> None:
    """The 17th task has a pasted log. Once it is answered, an epoch shortens it, and covers nothing behind it."""
    tasks = [task + (" The log says: a line of the log here." * 260 if i == 16 else "") for i, task in enumerate(TASKS)]
    played = await play(3_500, 18, tasks)
    epoch, step = played.engine.epochs[-1], played.steps[-1]
    assert (epoch.exchange, step.relation) == (step.exchange, "volatile")
    assert step.base < epoch.depth <= step.base + 2  # the task and its answer
    turn = played.turns[-1]
    assert len(turn.sent) / 4 < 3_500
    assert turn.messages[-3:] == json.loads(turn.body)["messages"][-3:]


async def test_behind_an_epoch_the_tail_is_what_the_client_sent() -> None:
    played = await play(3_500, 24)
    cut = [turn for turn in played.turns if turn.sent != turn.body]
    assert len(cut) > 12
    for turn in cut:
        own: list[Message] = json.loads(turn.body)["messages"]
        assert turn.messages[-5:] == own[-5:]  # the turn before with its answer, the files with "Ok.", the newest turn
        assert [message for message in turn.messages if FILES in str(message["content"])] == [own[-3]]


async def test_a_person_who_goes_back_leaves_a_branch_under_the_epoch_of_what_it_shares() -> None:
    played = await play(3_500, 14)
    engine, (*_, epoch) = played.engine, played.engine.epochs
    again = [*write(14)[: epoch.depth + 1], {"role": "user", "content": "No: change the lexer in place of the parser."}]
    turn = await engine.send(again)
    assert engine.log.of(Lineage)[-1].relation == "branch"
    assert turn.messages[-1] == again[-1]
    forth = await engine.send(write(15))
    assert engine.log.of(Lineage)[-1].relation == "branch"
    assert forth.messages[-5:] == write(15)[-5:]
