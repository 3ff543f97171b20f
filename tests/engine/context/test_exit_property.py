"""The exit property (BEHAVIOUR B20), and exact reproduction, for random conversations through the engine.

What a client holds is accepted without us, what is sent has no fault that the client's own had not, and every round can
be had again byte for byte from the log, also after a restart.
"""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.model.messages import MessageStructure
from proxy.wire import FORMATS
from proxy.wire.body import split_body
from proxy.wire.validity import RequestFault, Splice, find_faults, judge_history
from tests.support.examples import examples
from tests.support.managing import Message
from tests.support.talking import Talk

STEPS = st.lists(st.sampled_from(("user", "said", "one", "two", "large", "same", "empty")), min_size=4, max_size=14)
WIRE = "chat_completions"
SIZES = {"one": (400,), "two": (300, 500), "large": (6000,), "same": (350,), "empty": (0,)}


def extend(history: list[Message], number: int, step: str) -> None:
    """What an agent's client appends for a step."""
    if step in ("user", "said"):
        words = f"next {number} " * (9 if step == "user" else 1)
        history += [{"role": "assistant", "content": f"done {number}"}, {"role": "user", "content": words}]
        return
    word = "same" if step == "same" else f"file_{number}"
    function = {"name": "bash", "arguments": json.dumps({"command": f"cat {word}"})}
    texts = [f"{word} line\n" * (size // len(f"{word} line\n")) for size in SIZES[step]]
    ids = [f"call_{number:020}_{i}" for i in range(len(texts))]
    calls = [{"id": name, "type": "function", "function": function} for name in ids]
    history.append({"role": "assistant", "content": None, "tool_calls": calls})
    history += [{"role": "tool", "tool_call_id": name, "content": text} for name, text in zip(ids, texts, strict=True)]


def read_structures(content: bytes) -> list[MessageStructure]:
    """The structures of a body's messages."""
    split = split_body(content, "messages")
    assert split is not None
    return [FORMATS[WIRE].parse_structure(split.content[span.start : span.end]) for span in split.items]


def find_new_faults(client: bytes, sent: bytes) -> list[RequestFault]:
    """What is wrong with a body that is sent, and was not with the client's, where all that differs is taken as new."""
    asked, ours, theirs = split_body(client, "messages"), read_structures(sent), read_structures(client)
    assert asked is not None
    shared = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), len(ours))
    splice = Splice(shared, len(theirs), tuple(ours[shared:]))
    faults = find_faults(judge_history(theirs), (splice,), FORMATS[WIRE].read_rules(asked))
    return [fault for fault in faults if fault.kind != "protected"]  # of a place, which such a splice hides


@pytest.mark.no_cover
@examples(12)
@given(steps=STEPS, ceiling=st.sampled_from((900, 1500, 2500)), is_reopened=st.booleans())
async def test_what_is_sent_is_as_valid_as_what_the_client_holds(
    steps: list[str], ceiling: int, *, is_reopened: bool
) -> None:
    await converse(steps, ceiling, is_reopened=is_reopened)


async def test_such_conversations_are_rewritten() -> None:
    assert await converse(["one", "two", "large", "same"] * 3, 1500) > 2


async def converse(steps: list[str], ceiling: int, *, is_reopened: bool = False) -> int:
    """Carry a conversation and look at all that was sent; how many requests were rewritten."""
    talk = Talk(ceiling)
    try:
        asked = await carry(talk, steps, is_reopened=is_reopened)
        await check(talk, asked)
        await talk.reopen()
        await check(talk, asked)
    finally:
        await talk.close()
    sent = [json.loads(body)["messages"] for body in talk.upstream.bodies]
    return sum(ours != messages for ours, messages in zip(sent, asked, strict=True))


async def carry(talk: Talk, steps: list[str], *, is_reopened: bool) -> list[list[Message]]:
    """The calls of a conversation; the histories that its client held."""
    history: list[Message] = [{"role": "system", "content": "Be good."}, {"role": "user", "content": "begin"}]
    asked = []
    for number, step in enumerate(steps):
        await talk.ask(history)
        asked.append(list(history))
        extend(history, number, step)
        if is_reopened and number == len(steps) // 2:
            await talk.reopen()
    return asked


async def check(talk: Talk, asked: list[list[Message]]) -> None:
    """Each call of a conversation, as the upstream got it."""
    assert len(talk.upstream.bodies) == len(asked)
    for name, messages, sent in zip(talk.exchanges, asked, talk.upstream.bodies, strict=True):
        client = await talk.log.load_request(name)
        assert json.loads(client)["messages"] == messages
        assert await talk.log.load_sent(name, 0) == sent
        assert not any(run.faults for run in judge_history(read_structures(client)).runs)
        assert find_new_faults(client, sent) == []
        written = json.loads(sent)["messages"]
        assert written[0] == messages[0]
        assert next(m for m in reversed(messages) if m["role"] == "user") in written
        assert written[-1]["role"] == messages[-1]["role"]
        members = json.loads(client).keys() - {"messages"}
        assert all(json.loads(sent)[member] == json.loads(client)[member] for member in members)
