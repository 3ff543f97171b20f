"""The messages of a conversation as managing has seen them: whatever is asked, it is as if counted from scratch."""

import asyncio
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from proxy.engine.conversations.bodies import MeasuredHistory
from proxy.engine.request import ManagedRequest
from proxy.engine.token_counter import Piece, TokenCounter
from proxy.model.lineage import count_shared_nodes
from proxy.wire.chat_completions import ChatCompletions
from proxy.wire.format import DecodedMessage
from tests.support.managing import SESSION, QuarterTokens, make_history, make_subject
from tests.support.measuring import MeasuredBodies

Message = dict[str, Any]
PLENTY = 1 << 30
HISTORY = [dict(message) for message in make_history(6)]
TOOLS = [{"type": "function", "function": {"name": "bash", "description": "d" * 400}}]
MARKER = {"cache_control": {"type": "ephemeral"}}


class Tokens(QuarterTokens):
    """Keeps what it counted, and in which thread."""

    def __init__(self) -> None:
        self.is_loaded = False
        self.texts: list[str] = []
        self.threads: set[int] = set()

    def is_ready(self, encoding: Any) -> bool:
        return self.is_loaded

    def count(self, text: str, encoding: Any, model: str = "") -> tuple[int, bool]:
        self.texts.append(text)
        self.threads.add(threading.get_ident())
        return super().count(text, encoding)


def ask(messages: Sequence[Mapping[str, Any]], **members: Any) -> ManagedRequest:
    """A request whose body is large enough to be cached."""
    return make_subject(messages, user="u" * 4096, **members)


def make_paths(most: int = PLENTY) -> tuple[MeasuredBodies, Tokens]:
    tokens = Tokens()
    return MeasuredBodies(TokenCounter(tokens), most), tokens


def mark(messages: Sequence[Message], *places: int) -> list[Message]:
    """The messages with cache markers at some."""
    return [{**message, **MARKER} if place in places else message for place, message in enumerate(messages)]


def name_session(name: str) -> Any:
    return msgspec.structs.replace(SESSION, id=name)


def describe(path: MeasuredHistory) -> dict[str, Any]:
    """All that is known of it, as far as it does not tell how it came to be known."""
    runs = [(run.structures, tuple(run.places), run.faults) for run in path.runs.runs]
    structures, sums = list(path.structures), list(path.sums)
    return {"nodes": list(path.nodes), "structures": structures, "sums": sums, "runs": runs, "head": path.head} | {
        "starts": path.runs.starts,
        "count": path.runs.count,
        "marked": path.marked,
    }


async def follow_anew(subject: ManagedRequest) -> dict[str, Any]:
    return describe(await make_paths()[0].follow(subject))


async def test_tokens_add_up() -> None:
    paths, _ = make_paths()
    path = await paths.follow(ask(HISTORY, tools=TOOLS))
    assert len(path.sums) == len(path.structures) == len(path.nodes) == len(HISTORY) - 1
    assert path.count(0, 3) + path.count(3, 12) == path.count(0, 12) == path.count_to(12) > 12
    assert (path.count_to(0), path.count(4, 4)) == (0, 0)
    assert path.tokens == path.head.tokens + path.sums[-1]


async def test_what_goes_before_the_messages_is_their_head() -> None:
    paths, _ = make_paths()
    bare = await paths.follow(ask(HISTORY[1:], session=name_session("bare")))
    led = await paths.follow(ask(HISTORY, session=name_session("led")))
    tooled = await paths.follow(ask(HISTORY, session=name_session("tooled"), tools=TOOLS))
    assert bare.head.tokens == 0 < led.head.tokens < tooled.head.tokens
    assert list(bare.sums) == list(led.sums) == list(tooled.sums)


async def test_only_what_is_new_is_counted() -> None:
    paths, tokens = make_paths()
    await paths.follow(ask(HISTORY[:9], tools=TOOLS))
    tokens.texts.clear()
    await paths.follow(ask(HISTORY, tools=TOOLS))
    assert len(tokens.texts) == len(HISTORY) - 9


async def test_a_request_that_is_known_whole_needs_no_look() -> None:
    paths, _ = make_paths()
    first = await paths.follow(ask(HISTORY))
    assert await paths.follow(ask(HISTORY)) is first


async def test_another_head_is_counted_and_the_messages_are_not() -> None:
    paths, tokens = make_paths()
    first = await paths.follow(ask(HISTORY))
    tokens.texts.clear()
    changed = [{"role": "system", "content": "You are another agent now."}, *HISTORY[1:]]
    second = await paths.follow(ask(changed))
    assert (second.head.tokens, second.sums) == (first.head.tokens + 3, first.sums)
    assert len(tokens.texts) == 1
    assert await paths.follow(ask(changed)) is second


async def test_other_tools_and_orders_are_counted_as_what_they_are() -> None:
    paths, _ = make_paths()
    bare = await paths.follow(subject := ask(HISTORY))
    tooled = await paths.follow(with_tools := ask(HISTORY, tools=TOOLS))
    piece = Piece(b"tools", with_tools.split.member("tools"), is_tools=True)
    (tokens,) = (await TokenCounter(Tokens()).count(subject.model, [piece])).tokens
    assert tooled.head.tokens == bare.head.tokens + tokens
    preamble = msgspec.structs.replace(subject.chain.preamble, instructions=b'"Be brief and to the point."')
    chain = msgspec.structs.replace(subject.chain, preamble=preamble)
    ordered = await paths.follow(msgspec.structs.replace(subject, chain=chain))
    assert bare.head.tokens < ordered.head.tokens < tooled.head.tokens


@pytest.mark.parametrize("tools", [None, []])
async def test_no_tools_are_nothing(tools: object) -> None:
    paths, _ = make_paths()
    path = await paths.follow(ask(HISTORY, tools=tools))
    assert path.head == (await paths.follow(ask(HISTORY, session=name_session("s2")))).head


async def test_a_branch_shares_what_it_has_in_common_and_leaves_the_other_as_it_was() -> None:
    paths, tokens = make_paths()
    main = await paths.follow(ask(HISTORY))
    before = describe(main)
    tokens.texts.clear()
    branch = ask([*HISTORY[:7], {"role": "user", "content": "No, the other one."}])
    assert describe(await paths.follow(branch)) == await follow_anew(branch)
    assert len(tokens.texts) == 1
    assert describe(main) == before
    assert paths.find(ask(HISTORY)) == (main, len(HISTORY) - 1)


async def test_a_shorter_history_is_not_the_longer_one() -> None:
    paths, _ = make_paths()
    whole = await paths.follow(ask(HISTORY))
    short = ask(HISTORY[:6])
    assert describe(await paths.follow(short)) == await follow_anew(short)
    assert paths.find(ask(HISTORY)) == (whole, len(HISTORY) - 1)


async def test_a_marker_that_has_moved_on_is_not_where_it_was() -> None:
    """Clients put cache markers on the newest messages; the nodes do not tell."""
    paths, tokens = make_paths()
    await paths.follow(ask(mark(HISTORY[:8], 3, 7)))
    tokens.texts.clear()
    path = await paths.follow(moved := ask(mark(HISTORY[:10], 3, 9)))
    assert describe(path) == await follow_anew(moved)
    assert path.marked == (2, 8)
    assert path.list_markers() == ["5m", "5m"]
    assert path.list_markers(8) == ["5m"]
    assert path.list_markers(2) == []
    assert len(tokens.texts) <= 3


async def test_reasoning_that_is_no_longer_sent_is_no_longer_counted() -> None:
    paths, _ = make_paths()
    thinking = [{**each, "reasoning_content": "hm " * 90} if each["role"] == "assistant" else each for each in HISTORY]
    thought = await paths.follow(ask(thinking))
    path = await paths.follow(bare := ask(HISTORY))
    assert describe(path) == await follow_anew(bare)
    assert path.tokens < thought.tokens


async def test_messages_at_other_places_of_a_body_are_the_same() -> None:
    paths, tokens = make_paths()
    await paths.follow(ask(HISTORY))
    tokens.texts.clear()
    moved = ask([{"role": "system", "content": "More."}, *HISTORY])
    assert describe(await paths.follow(moved)) == await follow_anew(moved)
    assert tokens.texts == [text for text in tokens.texts if "More" in text]


async def test_sessions_and_models_know_nothing_of_each_other() -> None:
    paths, _ = make_paths()
    await paths.follow(ask(HISTORY))
    assert paths.find(ask(HISTORY, session=name_session("s2"))) == (None, 0)
    assert paths.find(msgspec.structs.replace(ask(HISTORY), model="other")) == (None, 0)


async def test_of_many_branches_those_seen_last_are_known() -> None:
    paths, _ = make_paths()
    asked = [ask([*HISTORY[:6], {"role": "user", "content": f"Way {number}."}]) for number in range(6)]
    for subject in asked:
        await paths.follow(subject)
    assert [paths.find(subject)[1] for subject in asked] == [5, 5, 6, 6, 6, 6]


async def test_two_requests_at_once_are_measured_alike() -> None:
    paths, _ = make_paths()
    await paths.follow(ask(HISTORY[:6]))
    found = await asyncio.gather(*(paths.follow(ask(HISTORY)) for _ in range(2)))
    assert found[0] is not found[1]
    assert describe(found[0]) == describe(found[1]) == await follow_anew(ask(HISTORY))


async def test_what_was_measured_goes_with_its_body() -> None:
    """Room for some two bodies with what was measured of them, which is as heavy as they are."""
    paths, _ = make_paths(60_000)
    asked = [ask(HISTORY, session=name_session(f"s{number}")) for number in range(3)]
    for subject in (asked[0], asked[1], asked[0], asked[2]):
        await paths.follow(subject)
    assert [paths.find(subject)[0] is not None for subject in asked] == [True, False, True]
    paths.bodies.clear()
    assert [paths.find(subject)[0] for subject in asked] == [None] * 3


async def test_what_is_too_large_is_not_remembered() -> None:
    paths, _ = make_paths(5_000)
    subject = ask(HISTORY)
    assert describe(await paths.follow(subject)) == await follow_anew(subject)
    assert paths.find(subject) == (None, 0)


async def test_of_many_models_the_last_two_are_known() -> None:
    paths, _ = make_paths()
    asked = [msgspec.structs.replace(ask(HISTORY), model=model) for model in ("a", "b", "a", "c")]
    for subject in asked:
        await paths.follow(subject)
    assert [paths.find(subject)[1] > 0 for subject in asked] == [True, False, True, True]


async def test_a_side_call_of_another_model_goes_on_from_the_one_before_it() -> None:
    paths, _ = make_paths()
    aside = [{"role": "system", "content": "Find a title."}, *HISTORY[1:7]]
    await paths.follow(msgspec.structs.replace(ask(aside), model="small"))
    await paths.follow(ask(HISTORY))
    later = msgspec.structs.replace(ask([*HISTORY[:7], {"role": "user", "content": "And now?"}]), model="small")
    assert paths.find(later)[1] == 6


async def test_calls_that_go_on_from_one_body_measure_their_own() -> None:
    paths, tokens = make_paths()
    await paths.follow(ask(HISTORY[:6]))
    ways = [ask([*HISTORY[:6], {"role": "user", "content": f"Way {number}."}]) for number in range(2)]
    for subject in ways:
        await paths.follow(subject)
    tokens.texts.clear()
    for subject in ways:
        assert describe(await paths.follow(subject)) == await follow_anew(subject)
    assert tokens.texts == []


async def test_much_is_read_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[bool] = []

    class NotingFormat(ChatCompletions):
        def decode_message(self, raw: bytes) -> DecodedMessage:
            threads.append(threading.current_thread() is threading.main_thread())
            return super().decode_message(raw)

    monkeypatch.setattr("proxy.engine.context.history_counter.FORMATS", {"chat_completions": NotingFormat()})
    monkeypatch.setattr("proxy.engine.token_counter.FORMATS", {"chat_completions": NotingFormat()})
    paths, _ = make_paths()
    await paths.follow(ask(make_history(1)))
    assert all(threads)
    threads.clear()
    await paths.follow(ask(make_history(8, 10_000)))
    assert threads
    assert not any(threads)


@pytest.mark.parametrize("count", [6, 8, len(HISTORY)])
async def test_few_new_messages_are_counted_without_waiting(count: int) -> None:
    paths, tokens = make_paths()
    tokens.is_loaded = True
    await paths.follow(ask(HISTORY[:6]))
    subject = ask(HISTORY[:count])
    history = paths.follow_now(subject)
    assert history is not None
    assert describe(history) == await follow_anew(subject)
    assert paths.find(subject) == (history, count - 1)


IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://x"}}]}


@pytest.mark.parametrize(
    ("known", "is_loaded", "head", "more"),
    [
        (0, True, HISTORY[0], []),
        (6, False, HISTORY[0], []),
        (6, True, {"role": "system", "content": "Another."}, []),
        (6, True, HISTORY[0], [{"role": "user", "content": "w " * 4200}]),
        (6, True, HISTORY[0], [IMAGE]),
    ],
    ids=["unknown", "no ranks", "another head", "long", "without a bound"],
)
async def test_what_has_to_be_waited_for(known: int, is_loaded: bool, head: Message, more: list[Message]) -> None:
    paths, tokens = make_paths()
    tokens.is_loaded = is_loaded
    if known:
        await paths.follow(ask(HISTORY[:known]))
    assert paths.follow_now(ask([head, *HISTORY[1:7], *more])) is None


async def test_messages_of_ours_are_counted_as_the_clients_are() -> None:
    paths, _ = make_paths()
    subject = ask(HISTORY)
    path = await paths.follow(subject)
    assert await paths.counter.count_messages(subject, subject.list_raws()) == path.sums[-1]
    assert await paths.counter.count_messages(subject, []) == 0


@pytest.mark.parametrize(
    ("known", "nodes", "shared"),
    [
        ("", "", 0),
        ("abc", "", 0),
        ("abc", "abc", 3),
        ("abc", "ab", 2),
        ("ab", "abc", 2),
        ("abcd", "abxy", 2),
        ("a", "x", 0),
    ],
)
def test_chains_part_once(known: str, nodes: str, shared: int) -> None:
    assert count_shared_nodes([each.encode() for each in known], [each.encode() for each in nodes]) == shared


async def test_a_history_is_counted_anew_when_the_size_of_a_file_in_it_was_learned() -> None:
    counter = TokenCounter(Tokens())
    paths = MeasuredBodies(counter)
    part = {"type": "file", "file": {"file_id": "file-1"}}
    messages = [*HISTORY[:2], {"role": "user", "content": [part]}, *HISTORY[2:]]
    request = ask(messages)
    first = await paths.follow(request)
    ((place, medium),) = first.guessed
    assert (place, medium.reference) == (1, "file-1") and paths.find(request)[0] is first
    counter.learn_sizes(request.session.upstream, request.model, [medium], first.tokens, first.tokens + 7_000)
    assert paths.find(request) == (None, 0)
    again = await paths.follow(request)
    assert (again.tokens, again.guessed) == (first.tokens + 7_000, ())
    later = await paths.follow(ask([*messages, {"role": "user", "content": "Go on."}]))
    assert later.guessed == () and later.count_to(2) == again.count_to(2)
    assert await paths.counter.count_messages(request, request.list_raws(1)[:1]) == again.count(1, 2)
