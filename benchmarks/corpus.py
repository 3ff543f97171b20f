"""What the benchmark's agent and model say: seeded text, sessions and answers, equal in every process.

The rule: everything follows from an index, so that the mock's answer to turn n and the message the load generator
repeats in turn n + 1 are the same words; and every message carries its session's nonce, so that a store which keeps
content once cannot keep two sessions as one.
"""

import json
import random
from functools import lru_cache
from typing import Any

Message = dict[str, Any]

NONCE = b"@@@@@@######"
# Stands for the tokens of a request, which the mock upstream fills in: one that reports fewer is taken for one that
# truncates prompts.
PROMPT = b"1234567890"
"""Stands in every template where the nonce of a turn goes: six digits of the session, six of the turn."""

POOL = 1024
STREAM_POOL = 8
MODEL = "bench-model"

_STEM_TEXT = (
    "account adapter amount archive array async balance batch block branch bridge buffer build cache call channel "
    "chunk client code commit config context cursor data decode default delta digest driver edge encode engine entry "
    "error event expect export field file filter flag flush format frame group handle header history index input item "
    "journal kernel label layer ledger length level limit line list local lock logger match merge message method "
    "migrate model module name node number offset order output packet page parse patch path pending plan policy pool "
    "prefix prompt proxy query queue range reader record region render reply request result retry return route row "
    "sample schema scope segment server session shard slice socket source span stack state status step store stream "
    "string suffix summary table target task tenant thread token total trace tree tuple turn type update upstream user "
    "value vector version view wait window worker writer"
)
_PROSE_TEXT = (
    "the a of to and in is that it for with as on was be this which have from not are after before because only when "
    "still first then should could there where each every other same into between without again until fails passes "
    "returns reads writes expects looks seems means needs keeps drops breaks fixed wrong correct missing empty"
)
_STEMS = _STEM_TEXT.split()
_PROSE = _PROSE_TEXT.split()
_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "bash",
            "description": "Run a command in the project's shell and return what it prints.",
            "parameters": {
                "type": "object",
                "properties": {"command": {"type": "string", "description": "The command line to run."}},
                "required": ["command"],
            },
        },
    }
]


def encode(value: object, *, spaced: bool = False) -> bytes:
    """JSON as one of two clients would spell it: compact, or with a space after each comma and colon."""
    separators = (", ", ": ") if spaced else (",", ":")
    return json.dumps(value, separators=separators, ensure_ascii=False).encode()


def _prose(rng: random.Random, size: int) -> str:
    words: list[str] = []
    length = 0
    while length < size:
        words.append(rng.choice(_PROSE if rng.random() < 0.6 else _STEMS))
        length += len(words[-1]) + 1
    return " ".join(words)


def _code_line(rng: random.Random) -> str:
    first, second, third, fourth = rng.choices(_STEMS, k=4)
    number = rng.randrange(1, 100_000)
    shape = rng.randrange(6)
    if shape == 0:
        return f"    {first}_{second} = self.{third}.{fourth}({first}, limit={number})"
    if shape == 1:
        return f"{first}/{second}_{third}.py:{number % 900}: {fourth.title()}Error: {_prose(rng, 40)}"
    if shape == 2:
        return f"    def {first}_{second}(self, {third}: int = {number}) -> {fourth.title()}:"
    if shape == 3:
        return f"2026-03-{number % 28 + 1:02d} {number % 24:02d}:00 {first} {rng.getrandbits(48):012x} {second}"
    if shape == 4:
        return f"        if {first}.{second} is None and {third} > {number}:"
    return f"- {_prose(rng, 70)}"


def _listing(rng: random.Random, size: int) -> str:
    lines: list[str] = []
    length = 0
    while length < size:
        lines.append(_code_line(rng))
        length += len(lines[-1]) + 1
    return "\n".join(lines)


@lru_cache(maxsize=POOL)
def answer_message(index: int) -> Message:
    """The assistant's message of turn `index`: a short thought and one tool call."""
    rng = random.Random(f"answer {index % POOL}")
    command = f"grep -rn {rng.choice(_STEMS)}_{rng.choice(_STEMS)} src/ | head -{rng.randrange(90)}"
    arguments = json.dumps({"command": command})
    call = {"id": f"call_{NONCE.decode()}", "type": "function", "function": {"name": "bash", "arguments": arguments}}
    return {"role": "assistant", "content": _prose(rng, 110), "tool_calls": [call]}


@lru_cache(maxsize=POOL)
def tool_message(index: int) -> Message:
    """The tool's result that answers `answer_message(index)`: about 1.9 KB of listing."""
    rng = random.Random(f"tool {index % POOL}")
    text = f"[{NONCE.decode()}]\n{_listing(rng, rng.randrange(1_300, 2_300))}"
    return {"role": "tool", "tool_call_id": f"call_{NONCE.decode()}", "content": text}


@lru_cache(maxsize=POOL)
def user_message(index: int) -> Message:
    """What a person says after a streamed answer: about 1.2 KB."""
    rng = random.Random(f"user {index % POOL}")
    return {"role": "user", "content": f"[{NONCE.decode()}] {_prose(rng, 400)}\n{_listing(rng, 700)}"}


def _deltas(index: int, chunks: int) -> list[str]:
    rng = random.Random(f"stream {index % STREAM_POOL}")
    return [f"[{NONCE.decode()}]", *(" " + rng.choice(_PROSE + _STEMS) for _ in range(chunks - 1))][:chunks]


def stream_message(index: int, chunks: int) -> Message:
    """The assistant's message that `stream_events(index, chunks)` spells out piece by piece."""
    return {"role": "assistant", "content": "".join(_deltas(index, chunks))}


def turn_messages(index: int, chunks: int) -> tuple[Message, Message]:
    """The two messages a session grows by: the model's answer to turn `index`, and what the client says to it."""
    if chunks:
        return stream_message(index, chunks), user_message(index)
    return answer_message(index), tool_message(index)


@lru_cache(maxsize=POOL)
def answer_body(index: int) -> bytes:
    """A `chat.completion` of about 600 bytes; its nonce is still the placeholder."""
    message = {**answer_message(index), "refusal": None}
    usage = {"prompt_tokens": int(PROMPT), "completion_tokens": 48, "total_tokens": int(PROMPT)}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "tool_calls"}
    return encode(
        {
            "id": f"chatcmpl-{NONCE.decode()}",
            "object": "chat.completion",
            "created": 1_760_000_000,
            "model": MODEL,
            "choices": [choice],
            "usage": usage,
        }
    )


@lru_cache(maxsize=64)
def stream_events(index: int, chunks: int) -> tuple[bytes, ...]:
    """The events of a streamed answer: role, `chunks` pieces of content, finish, usage, `[DONE]`."""
    common = {
        "id": f"chatcmpl-{NONCE.decode()}",
        "object": "chat.completion.chunk",
        "created": 1_760_000_000,
        "model": MODEL,
    }

    def event(delta: Message, finish: str | None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return b"data: " + encode({**common, "choices": [choice]}) + b"\n\n"

    usage = {"prompt_tokens": int(PROMPT), "completion_tokens": chunks, "total_tokens": int(PROMPT)}
    return (
        event({"role": "assistant", "content": ""}, None),
        *(event({"content": piece}, None) for piece in _deltas(index, chunks)),
        event({}, "stop"),
        b"data: " + encode({**common, "choices": [], "usage": usage}) + b"\n\n",
        b"data: [DONE]\n\n",
    )


def opening_messages(is_short: bool) -> list[Message]:
    """System prompt and first user turn: a body of 1 KB, or 4 KB where a long history follows."""
    rng = random.Random("opening")
    system, task = (390, 500) if is_short else (2_500, 1_300)
    return [
        {"role": "system", "content": _prose(rng, system)},
        {"role": "user", "content": f"[{NONCE.decode()}] {_prose(rng, task)}"},
    ]


def suffix(chunks: int, *, is_short: bool, spaced: bool = False) -> bytes:
    """What follows the messages in a body, in the order of the official SDK: model, stream, tools."""
    rest: dict[str, Any] = {"model": MODEL}
    if chunks:
        rest |= {"stream": True, "stream_options": {"include_usage": True}}
    if not is_short:
        rest["tools"] = _TOOLS
    return b"]" + (b", " if spaced else b",") + encode(rest, spaced=spaced)[1:]
