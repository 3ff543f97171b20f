"""What clients may send and should not: it is put right, or begins a session; nothing fails and nothing grows dear."""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.engine.lineage.session_index import SessionNodes
from proxy.engine.policy import EnginePolicy
from proxy.model.exchange import ClientRequest, Headers, RequestOptions
from proxy.model.lineage import Lineage, Reply
from proxy.wire.body import ByteRange
from proxy.wire.chat_completions import ChatCompletions
from proxy.wire.identity import Item
from tests.support.clients import Said
from tests.support.echoes import values
from tests.support.engine import JSON, Engine
from tests.support.examples import examples
from tests.support.lineage_world import Asking, Call, World
from tests.support.tongues import BLOCKS, CHAT, ITEMS, Tongue

Message = dict[str, Any]
PLAIN = Said("Ok.")


@pytest.fixture(autouse=True)
def is_quiet(caplog: pytest.LogCaptureFixture) -> Iterable[None]:
    """No request may be too odd to be understood."""
    yield
    assert not caplog.records


def turn(
    world: World, history: list[Message], text: str, name: str = "", said: Said = PLAIN
) -> tuple[Call, list[Message]]:
    """One turn, and the history after it."""
    messages = [*history, world.tongue.user(text)]
    call = world.send(Asking("one", name, "s", messages), 0)
    world.finish(call, (said,), "complete", 200)
    return call, [*messages, *world.tongue.echo(said, 0)]


def test_thousands_of_namesakes_stay_apart_once_they_differ() -> None:
    world = World(CHAT, 1_000_000_000)
    engine = world.engine

    async def ask(*messages: Message) -> str:
        body = json.dumps({"messages": messages}).encode()
        request = ClientRequest("POST", b"/", (), body)
        received, _ = await engine.reception.resolve(request, ChatCompletions(), RequestOptions("observe"))
        assert received.lineage is not None
        engine.lineage.note_answer(received.exchange, 0, ChatCompletions(), CHAT.answer([PLAIN]))
        return received.session.id

    beginning = (CHAT.user("hi"), *CHAT.echo(PLAIN, 0))
    for _ in range(2000):
        world.run(ask(beginning[0]))
    sessions = [world.run(ask(*beginning, CHAT.user(str(i)))) for i in range(64)]
    assert len(set(sessions)) == 64  # each goes on where nothing went on yet
    again = [world.run(ask(*beginning, CHAT.user(str(i)), *CHAT.echo(PLAIN, 0), CHAT.user("x"))) for i in range(64)]
    assert again == sessions
    world.close()


@pytest.mark.parametrize("tongue", [CHAT, ITEMS, BLOCKS])
def test_histories_that_share_all_but_one_byte_are_two(tongue: Tongue) -> None:
    world = World(tongue, 1_000_000_000)
    sessions = []
    for last in "ab":
        call, history = turn(world, [], "hi", said=Said(f"The answer to all of this is {'y' * 500}{last}"))
        assert turn(world, history, "on")[0].session == call.session
        sessions.append(call.session)
    assert sessions[0] != sessions[1]
    world.close()


@pytest.mark.parametrize("name", ["", "n"])
def test_edits_that_go_round_in_circles_add_nothing(name: str) -> None:
    world = World(CHAT, 1_000_000_000)
    first, history = turn(world, [], "hi", name)
    for i in range(30):
        call, _ = turn(world, history, "ab"[i % 2], name)
        assert call.session == first.session
    assert len(world.trees[first.session].nodes) <= 2 + 2 * 2
    world.close()


@pytest.mark.parametrize("tongue", [CHAT, ITEMS, BLOCKS])
def test_a_conversation_of_no_messages(tongue: Tongue) -> None:
    world = World(tongue, 1_000_000_000)
    for name in ("", "n"):
        for _ in range(3):
            call = world.send(Asking("one", name, "s", []), 0)
            world.finish(call, (PLAIN,), "complete", 200)
            world.read(call)
        after = world.send(Asking("one", name, "s", [*tongue.echo(PLAIN, 1), tongue.user("hi")]), 0)
        assert name == "" or after.session == call.session
    world.close()


fields = st.sampled_from(
    [
        *(b"x-session-id", b"x-parent-session-id", b"thread-id", b"x-codex-parent-thread-id", b"x-palimpsest-session"),
        *(b"authorization", b"x-claude-code-session-id", b"x-claude-code-agent-id"),
    ]
)
odd_calls = values | st.lists(st.fixed_dictionaries({"id": values, "function": values}))
roles = st.sampled_from(["user", "assistant", "tool", "system"])
odd_messages = values | st.fixed_dictionaries({"role": roles, "content": values, "tool_calls": odd_calls})


@examples(60)
@given(st.lists(st.tuples(fields, st.binary(max_size=300)), max_size=5))
def test_headers_of_any_length_and_alphabet(sent: list[tuple[bytes, bytes]]) -> None:
    assert _receive({"messages": [{"role": "user", "content": "hi"}]}, tuple(sent)) is not None


@pytest.mark.no_cover
@examples(60)
@given(st.lists(odd_messages, max_size=4))
def test_messages_of_any_shape(messages: list[object]) -> None:
    assert _receive({"messages": messages}) is not None
    assert _receive({"messages": messages, "model": messages, "tools": messages, "max_tokens": messages}) is not None


@pytest.mark.no_cover
@examples(60)
@given(st.sampled_from([CHAT, ITEMS, BLOCKS]), values)
def test_answers_of_any_shape(tongue: Tongue, value: object) -> None:
    world = World(tongue, 1_000_000_000)
    odd = (
        *({"choices": each} for each in (value, [value], [{"message": value}], [{"message": {"tool_calls": value}}])),
        *({"output": each, "id": value} for each in (value, [value])),
        *({"content": each, "id": value} for each in (value, [value])),
    )
    for answer in odd:
        call = world.send(Asking("one", "", "s", [tongue.user("hi")]), 0)
        reply = world.engine.lineage.note_answer(call.exchange, 0, tongue.form, answer)
        assert isinstance(reply, Reply)
        call.state = "none"
    world.close()


@pytest.mark.parametrize("call", ["read:0", "functions.read:3", "call_1", "x" * 10_000, "\ud800", "\0", "é" * 300])
def test_ids_of_calls_of_any_kind(call: str) -> None:
    world = World(CHAT, 1_000_000_000)
    said = Said("", call, {})
    sessions = []
    for text in ("hi", "ho"):
        first, history = turn(world, [], text, said=said)
        second, history = turn(world, [*history, CHAT.result(said)], "on", said=said)
        assert first.session == second.session
        sessions.append(first.session)
    assert sessions[0] != sessions[1]
    kept = world.send(Asking("one", "", "s", [CHAT.user("sum"), *CHAT.echo(said, 0), CHAT.result(said)]), 0)
    assert kept.session not in sessions  # two made this call
    world.close()


class Counting(ChatCompletions):
    """Counts the messages that are read."""

    def __init__(self) -> None:
        self.count = 0

    def read_items(self, content: bytes, spans: Sequence[ByteRange]) -> list[Item]:
        self.count += len(spans)
        return super().read_items(content, spans)


@pytest.mark.parametrize("size", [10, 1000, 5000])
def test_a_turn_costs_what_is_new_in_it(size: int) -> None:
    """However long the history: two messages are read, and two or three look-ups tell where it belongs."""
    engine, form, asked = Engine(policy=EnginePolicy()), Counting(), Looks()
    index = engine.lineage.index
    index.find_own = asked.watch(index.find_own)  # type: ignore[method-assign]
    index.find_answered = asked.watch_nodes(index.find_answered)  # type: ignore[method-assign]
    history: list[Message] = [CHAT.user("hi" * 10) for _ in range(size)]
    for i in range(4):
        form.count = asked.count = 0
        step = _run_turn(engine, form, history)
        history = [*history, *CHAT.echo(PLAIN, 0), CHAT.user(f"and {i}?" + "x" * 4000)]
    assert step.relation == "append"
    assert (form.count, len(step.nodes)) == (2, 1)
    assert asked.count <= 3


class Looks:
    """Counts calls."""

    def __init__(self) -> None:
        self.count = 0

    def watch(self, find: Any) -> Any:
        def find_and_count(*args: object) -> Sequence[SessionNodes]:
            self.count += 1
            return find(*args)  # type: ignore[no-any-return]

        return find_and_count

    def watch_nodes(self, find: Any) -> Any:
        def find_and_count(tenant: bytes, nodes: Sequence[bytes], root: bytes) -> object:
            return find(tenant, WatchedNodes(nodes, self), root)

        return find_and_count


class WatchedNodes(Sequence[bytes]):
    """Nodes of which each counts that is looked at from the end."""

    def __init__(self, nodes: Sequence[bytes], looks: Looks) -> None:
        self._nodes = nodes
        self._looks = looks

    def __len__(self) -> int:
        return len(self._nodes)

    def __getitem__(self, at: Any) -> Any:
        return self._nodes[at]

    def __reversed__(self) -> Iterator[bytes]:
        for node in reversed(self._nodes):
            self._looks.count += 1
            yield node


def _run_turn(engine: Engine, form: ChatCompletions, messages: list[Message]) -> Lineage:
    received = _go(engine, {"messages": messages}, (), form)
    engine.lineage.note_answer(received.exchange, 0, form, CHAT.answer([PLAIN]))
    step: Lineage = received.lineage
    return step


def _receive(body: object, headers: Headers = JSON) -> Lineage | None:
    step: Lineage | None = _go(Engine(), body, headers, ChatCompletions()).lineage
    return step


def _go(engine: Engine, body: object, headers: Headers, form: ChatCompletions) -> Any:
    """Drive a reception that waits for nothing."""
    request = ClientRequest("POST", b"/v1", headers, json.dumps(body).encode())
    try:
        engine.reception.resolve(request, form, RequestOptions("observe")).send(None)
    except StopIteration as done:
        engine.reception.make_opening(*done.value)
        return done.value[0]
    raise AssertionError("it waits")
