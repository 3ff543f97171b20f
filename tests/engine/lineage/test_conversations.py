"""Many conversations at once, with all that clients do to them: none is ever given what is another's.

What holds after each step is in `tests/support/lineage_world`. Where equal beginnings and equal answers make two
conversations one and the same to anyone who looks at content, any of the candidates is right.
"""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, event
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from tests.support.clients import LOOK, Message, Said
from tests.support.examples import examples
from tests.support.lineage_world import Asking, Call, World
from tests.support.tongues import BLOCKS, CHAT, ITEMS, Tongue

LONG = "x" * 520
TELLING = "The function returns six, and nobody knows why it does."
OTHER = "It returns seven now, which is what was asked for here."

T = TypeVar("T", bound=Callable[..., None])
users = st.sampled_from(["hi", "go on", LONG])
tenants = st.sampled_from(["one", "one", "one", "two"])
names = st.sampled_from(["", "", "", "a", "b"])
systems = st.sampled_from(["You help.", "You help.", "You make titles."])
seeds = st.sampled_from([0, 0, 1, 2, 3])
picks = st.integers(0, 7)
ways = st.integers(0, 5)
texts = st.sampled_from(["Ok.", TELLING, OTHER]).map(Said)
calls = st.builds(
    lambda call, arguments: Said("", call, arguments),
    st.sampled_from(["call_1", "read:0", "call_Xq81shared", "call_own"]),
    st.sampled_from([{}, LOOK]),
)
saids = texts | calls | st.just(Said("I will look.", "call_own", LOOK))


def needs(choose: Callable[[Call], bool]) -> Callable[[T], T]:
    """A step that makes sense only where there is such a call."""
    return precondition(lambda machine: any(map(choose, machine.world.calls)))


def is_usable(call: Call) -> bool:
    return call.is_usable


def is_flying(call: Call) -> bool:
    return call.state == "flight"


class Conversations(RuleBasedStateMachine):
    """Clients of one proxy."""

    tongue: Tongue = CHAT

    @initialize(cache=st.sampled_from([20_000, 60_000, 1_000_000_000]))
    def begin(self, cache: int) -> None:
        self.world = World(self.tongue, cache, event, self.choose_log())
        self.number = 0

    def choose_log(self) -> Path | None:
        """Where the log is kept; in memory, if nowhere."""
        return None

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.close()

    def pick(self, back: int, choose: Callable[[Call], bool] = lambda call: True) -> Call | None:
        """A call of late."""
        found = [call for call in self.world.calls if choose(call)]
        return found[-1 - back % len(found)] if found else None

    def extend(self, call: Call, way: int, alternative: int, then: str) -> list[Message]:
        """The history after a call, as its client would send it."""
        said, tongue = call.saids[alternative % len(call.saids)], self.world.tongue
        behind = [tongue.result(said)] if said.call else [tongue.user(then)]
        return [*call.asking.messages, *tongue.echo(said, way), *behind]

    @rule(tenant=tenants, name=names, system=systems, text=users, canned=st.none() | saids, seed=seeds)
    def start(self, tenant: str, name: str, system: str, text: str, canned: Said | None, seed: int) -> None:
        """A conversation begins, perhaps with an example that others begin with, too."""
        tongue = self.world.tongue
        messages = [tongue.user(text)]
        if canned is not None:
            results = [tongue.result(canned)] if canned.call else []
            messages = [tongue.user("For example."), *tongue.echo(canned, 1), *results, *messages]
        self.world.send(Asking(tenant, name, system, messages), seed)

    @needs(is_usable)
    @rule(back=picks, way=ways, then=users, seed=seeds, alternative=st.integers(0, 1), refuses=st.integers(0, 9))
    def go_on(self, back: int, way: int, then: str, seed: int, alternative: int, refuses: int) -> None:
        """The next turn, a fork, or a rewind; perhaps while the log cannot be read."""
        if call := self.pick(back, is_usable):
            asking = Asking(*_who(call), self.extend(call, way, alternative, then))
            self.world.send(asking, seed, refuses=refuses == 0)

    @needs(bool)
    @rule(back=picks, seed=seeds)
    def retry(self, back: int, seed: int) -> None:
        """The same again, after whatever came of it; perhaps spelled anew."""
        if call := self.pick(back):
            self.world.send(call.asking, seed)

    @needs(bool)
    @rule(back=picks, at=picks, text=users, keeps=st.booleans())
    def edit(self, back: int, at: int, text: str, *, keeps: bool) -> None:
        """An earlier message becomes another; what came behind goes, or stays."""
        if call := self.pick(back):
            messages = list(call.asking.messages)
            at %= max(1, len(messages))
            behind = messages[at + 1 :] if keeps else []
            self.world.send(Asking(*_who(call), [*messages[:at], self.world.tongue.user(text), *behind]), 0)

    @needs(is_usable)
    @rule(back=picks, way=ways, kept=st.integers(0, 3), seed=seeds)
    def compact(self, back: int, way: int, kept: int, seed: int) -> None:
        """A client's own compaction: a summary, and a few messages that it keeps."""
        if call := self.pick(back, is_usable):
            messages = self.extend(call, way, 0, "and now?")
            tail = messages[len(messages) - kept :]
            self.world.send(Asking(*_who(call), [self.world.tongue.user(LONG + "!"), *tail]), seed)

    @needs(bool)
    @rule(back=picks, dropped=st.integers(1, 4))
    def truncate(self, back: int, dropped: int) -> None:
        """The oldest messages are dropped, all of them too."""
        if call := self.pick(back):
            self.world.send(Asking(*_who(call), call.asking.messages[dropped:]), 0)

    @needs(is_usable)
    @rule(back=picks, way=ways, tenant=tenants, name=names, seed=seeds)
    def move(self, back: int, way: int, tenant: str, name: str, seed: int) -> None:
        """Another credential, or another name, goes on with a history."""
        if call := self.pick(back, is_usable):
            messages = self.extend(call, way, 0, "and now?")
            self.world.send(Asking(tenant, name, call.asking.system, messages), seed)

    @needs(is_flying)
    @rule(back=picks, answers=st.lists(saids, min_size=1, max_size=2))
    def answer(self, back: int, answers: list[Said]) -> None:
        """A call in flight is answered."""
        self.finish(back, answers, "complete", 200)

    @needs(is_flying)
    @rule(back=picks, how=st.sampled_from([("complete", 429), ("aborted", 0), ("failed", 0), ("truncated", 200)]))
    def fail(self, back: int, how: tuple[Any, int]) -> None:
        """Or not, or not wholly."""
        self.finish(back, [Said("Half an")], *how)

    @needs(lambda call: call.state == "unread")
    @rule(back=picks)
    def read(self, back: int) -> None:
        """An answer is read at last."""
        if call := self.pick(back, lambda call: call.state == "unread"):
            self.world.read(call)

    @precondition(lambda self: len(self.world.calls) > 4)
    @rule(what=st.sampled_from(["restart", "lose", *[""] * 8]))
    def upset(self, what: str) -> None:
        """Memory is lost."""
        if what:
            getattr(self.world, what)()

    def finish(self, back: int, answers: list[Said], completeness: Any, status: int) -> None:
        if call := self.pick(back, is_flying):
            count = 2 if self.world.tongue is CHAT else 1
            own = tuple(self._draw_id(said) for said in answers[:count])
            self.world.finish(call, own, completeness, status)

    def _draw_id(self, said: Said) -> Said:
        """`call_own` stands for an id that no other call has."""
        self.number += 1
        return (
            Said(said.text, f"call_u{self.number}x{self.number}", said.arguments) if said.call == "call_own" else said
        )


class ItemConversations(Conversations):
    """The same on the Responses wire."""

    tongue = ITEMS


class BlockConversations(Conversations):
    """The same on Anthropic's wire."""

    tongue = BLOCKS


class KeptConversations(Conversations):
    """The same over a log in a file, which is closed and opened again at each restart."""

    def choose_log(self) -> Path:
        self.folder = TemporaryDirectory(prefix="conversations-")
        return Path(self.folder.name) / "log.db"

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "folder"):
            self.folder.cleanup()


def _who(call: Call) -> tuple[str, str, str]:
    return call.asking.tenant, call.asking.name, call.asking.system


@pytest.mark.no_cover
@pytest.mark.parametrize(
    ("machine", "count"),
    [(Conversations, 30), (ItemConversations, 15), (BlockConversations, 15), (KeptConversations, 8)],
)
def test_no_conversation_is_given_what_is_anothers(machine: type[Conversations], count: int) -> None:
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
    run_state_machine_as_test(machine, settings=examples(count, stateful_step_count=50, suppress_health_check=slow))
