"""A body under an epoch is rewritten if that has no new fault."""

import json
from typing import Any

import msgspec
import pytest

from proxy.engine.context import rewriter as module
from proxy.engine.context.history_counter import HistoryCounter
from proxy.engine.context.rewriter import Invalid, Rewriter
from proxy.engine.context.tool_offers import ToolOffers
from proxy.engine.conversations.bodies import MeasuredHistory
from proxy.engine.policy import Provider
from proxy.engine.request import ManagedRequest
from proxy.engine.token_counter import TokenCounter
from proxy.model.epoch import Edit, Epoch, HiddenRound, Kept, Recalled, Written
from tests.support.managing import Message, QuarterTokens, make_history, make_subject

HISTORY = make_history(3)
LEDGER = b'{"role":"user","content":"a ledger"}'
MARK = {"cache_control": {"type": "ephemeral"}}


async def read_state(messages: Any = HISTORY) -> tuple[ManagedRequest, MeasuredHistory]:
    subject = make_subject(messages)
    return subject, await HistoryCounter(TokenCounter(QuarterTokens())).follow(subject)


def make_epoch(subject: ManagedRequest, *edits: Edit, rendered: tuple[bytes, ...] = (LEDGER,), depth: int = 3) -> Epoch:
    """One that stands for the first messages; by default for the first step and the task."""
    return Epoch(
        *("x1", "s1", "gpt-4o", "", subject.nodes[depth - 1], depth, "hard", "x1", 1, 2, 1),
        msgspec.json.encode(edits or (Written("a ledger", 0, 3),)),
        rendered,
    )


def keep_task(subject: ManagedRequest) -> Epoch:
    raws = subject.list_raws()
    return make_epoch(subject, Written("a ledger", 0, 3), Kept(0), rendered=(LEDGER, raws[0]))


async def test_the_epochs_messages_stand_in_place_of_the_first_ones() -> None:
    subject, path = await read_state()
    body = json.loads(Rewriter({}).rewrite(subject, path, keep_task(subject)))
    assert body["messages"] == [HISTORY[0], json.loads(LEDGER), HISTORY[1], *HISTORY[4:]]


async def test_a_new_fault_is_never_sent() -> None:
    subject, path = await read_state()
    with pytest.raises(Invalid, match="protected"):
        Rewriter({}).rewrite(subject, path, make_epoch(subject))
    with pytest.raises(Invalid, match="protected"):
        Rewriter({}).rewrite(subject, path, keep_task(subject), pinned={1})
    with pytest.raises(ValueError, match="zip"):
        Rewriter({}).rewrite(subject, path, make_epoch(subject, Kept(0), Kept(1)))


async def test_an_upstream_that_wants_roles_in_turn_gets_no_two_in_a_row() -> None:
    subject, path = await read_state()
    providers = {"main": Provider(strict_alternation=True)}
    with pytest.raises(Invalid, match="alternation"):
        Rewriter(providers).rewrite(subject, path, keep_task(subject))
    parts = [{"type": "text", "text": "a ledger"}, {"type": "text", "text": HISTORY[1]["content"]}]
    joined = json.dumps({"role": "user", "content": parts}).encode()
    epoch = make_epoch(subject, Written("a ledger", 0, 3), Kept(0), rendered=(joined,))
    assert json.loads(Rewriter(providers).rewrite(subject, path, epoch))["messages"][1]["content"] == parts


async def test_the_word_that_an_output_format_wants_may_go_where_the_system_message_has_it() -> None:
    output = {**HISTORY[3], "content": "the json was read"}
    messages = [*HISTORY[1:3], output, *HISTORY[4:]]

    async def rewrite(system: str) -> bytes:
        told = [{"role": "system", "content": system}, *messages]
        subject = make_subject(told, response_format={"type": "json_object"})
        path = await HistoryCounter(TokenCounter(QuarterTokens())).follow(subject)
        return Rewriter({}).rewrite(subject, path, keep_task(subject))

    assert b"the json was read" not in await rewrite("Answer in JSON.")
    with pytest.raises(Invalid, match="json"):
        await rewrite("You are an agent.")


async def test_a_cache_marker_moves_to_the_end_of_what_stands_for_its_message() -> None:
    output = [{"type": "text", "text": "an output", **MARK}]
    subject, path = await read_state([*HISTORY[:3], {**HISTORY[3], "content": output}, *HISTORY[4:]])
    raws = subject.list_raws()
    epoch = make_epoch(subject, Kept(0), Written("a ledger", 1, 3), rendered=(raws[0], LEDGER))
    body = Rewriter({}).rewrite(subject, path, epoch)
    assert json.loads(body)["messages"][2]["content"] == [{"type": "text", "text": "a ledger", **MARK}]
    assert body.count(b"cache_control") == 1


async def test_what_an_epoch_replaces_is_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    real = module.list_splices

    def list_splices(*arguments: Any) -> Any:
        asked.append(1)
        return real(*arguments)

    monkeypatch.setattr(module, "list_splices", list_splices)
    monkeypatch.setattr(module, "_MOST_REMEMBERED", 1)
    subject, path = await read_state()
    rewriter, epoch = Rewriter({}), keep_task(subject)
    bodies = {rewriter.rewrite(subject, path, epoch) for _ in range(3)}
    assert (len(bodies), len(asked)) == (1, 1)
    rewriter.rewrite(subject, path, msgspec.structs.replace(epoch, id="x2"))
    rewriter.rewrite(subject, path, epoch)
    assert len(asked) == 3


async def test_a_plan_that_does_not_bear_leaves_its_id_to_another() -> None:
    subject, path = await read_state()
    rewriter = Rewriter({})
    with pytest.raises(Invalid):
        rewriter.rewrite(subject, path, make_epoch(subject))
    assert rewriter.rewrite(subject, path, keep_task(subject))


def list_marked(body: bytes) -> list[int]:
    return [at for at, each in enumerate(json.loads(body)["messages"]) if "cache_control" in json.dumps(each)]


async def test_markers_of_ours_only_where_the_settings_say_that_the_upstream_takes_them() -> None:
    subject, path = await read_state()
    epoch = keep_task(subject)
    for provider in (Provider(), Provider(host="api.anthropic.com"), Provider(cache="openai-breakpoints")):
        assert list_marked(Rewriter({"main": provider}).rewrite(subject, path, epoch)) == []
    body = Rewriter({"main": Provider(cache="breakpoints")}).rewrite(subject, path, epoch)
    last = len(json.loads(body)["messages"]) - 1
    assert list_marked(body) == [0, 2, last]


async def test_markers_of_the_client_count_and_the_frozen_prefix_keeps_its_bytes() -> None:
    rewriter = Rewriter({"main": Provider(cache="breakpoints")})
    marked = [{**HISTORY[0], "content": [{"type": "text", "text": "You are an agent.", **MARK}]}, *HISTORY[1:]]
    bodies = []
    for history in (marked, [*marked, {"role": "user", "content": "go on"}]):
        subject, path = await read_state(history)
        bodies.append(rewriter.rewrite(subject, path, keep_task(subject)))
    assert list_marked(bodies[0])[:2] == list_marked(bodies[1])[:2] == [0, 2]
    first, second = (json.loads(body)["messages"] for body in bodies)
    assert first[:3] == second[:3]
    assert first[0] == marked[0]


# Answers with hidden rounds: the client's last answer of `ANSWERED` was made of an own call, its result, and more.
ANSWERED: list[Message] = [*HISTORY, {"role": "assistant", "content": "Done."}, {"role": "user", "content": "Go on."}]
OWN_CALL = {"id": "own_1", "type": "function", "function": {"name": "context_recall", "arguments": "{}"}}
ROUNDS: list[dict[str, Any]] = [
    {"role": "assistant", "content": None, "tool_calls": [OWN_CALL]},
    {"role": "tool", "tool_call_id": "own_1", "content": "what was recalled"},
    {"role": "assistant", "content": "Done."},
]


async def rewrite_answered(messages: list[Message], *rounds: dict[str, Any], pinned: Any = ()) -> list[Any]:
    """What is sent of these messages where the last but one, an answer, is restored to these rounds."""
    raws = [json.dumps(each).encode() for each in rounds]
    offers = ToolOffers(is_on=True, spell=lambda _: b"{}", find_obstacle=lambda *_: "", restore=lambda *_: raws)
    rewriter, tools = Rewriter({}, offers), [{"type": "function", "function": {"name": "bash"}}]
    subject = make_subject(messages, tools=tools)
    path = await HistoryCounter(TokenCounter(QuarterTokens())).follow(subject)
    epoch = msgspec.structs.replace(keep_task(subject), tool=b"{}")
    place = len(subject.nodes) - 2
    recalled = Recalled("x1", "s1", "gpt-4o", "x1", subject.nodes[place], 1, 5, (HiddenRound(()),))
    body = rewriter.rewrite(subject, path, epoch, pinned, recalled={place: recalled})
    sent: list[Any] = json.loads(body)["messages"]
    return sent


def mark_text(message: Message) -> dict[str, Any]:
    return {**message, "content": [{"type": "text", "text": message["content"], **MARK}]}


async def test_a_restored_answer_is_sent_with_its_rounds() -> None:
    assert (await rewrite_answered(ANSWERED, *ROUNDS))[-4:] == [*ROUNDS, ANSWERED[-1]]


async def test_too_many_markers_are_mended_by_sending_ours_without_any() -> None:
    later = [mark_text({"role": "user", "content": "Go on."}), mark_text({"role": "assistant", "content": "Done."})]
    subject, path = await read_state(
        [mark_text(HISTORY[0]), *HISTORY[1:], *later, mark_text(later[0] | {"content": "And?"})]
    )
    raws = subject.list_raws()
    old = json.dumps(mark_text({"role": "user", "content": "a ledger"})).encode()
    epoch = make_epoch(subject, Written("a ledger", 0, 3), Kept(0), rendered=(old, raws[0]))
    body = Rewriter({}).rewrite(subject, path, epoch)
    assert body.count(b"cache_control") == 4 and b"a ledger" in body


async def test_a_marker_that_would_be_lost_with_the_clients_answer_stands_at_the_end_of_the_frozen_prefix() -> None:
    marked = [*ANSWERED[:-2], mark_text(ANSWERED[-2]), ANSWERED[-1]]
    sent = await rewrite_answered(marked, *ROUNDS)
    assert sent[-4:] == [*ROUNDS, ANSWERED[-1]]
    assert [at for at, each in enumerate(sent) if "cache_control" in json.dumps(each)] == [2]


async def test_an_answer_whose_rounds_would_be_refused_is_sent_as_the_client_has_it() -> None:
    sent = await rewrite_answered(ANSWERED, ROUNDS[0], ROUNDS[2])  # the call has no result
    assert sent[-2:] == ANSWERED[-2:] and "own_1" not in json.dumps(sent)


async def test_where_the_clients_own_answer_does_not_help_the_first_fault_is_told() -> None:
    with pytest.raises(Invalid, match="missing own_1"):
        await rewrite_answered(ANSWERED, ROUNDS[0], ROUNDS[2], pinned={1})
