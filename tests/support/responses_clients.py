"""The clients that speak Responses. Rule: see `clients`; each differs in what it echoes of the output's items."""

import json
from collections.abc import Callable
from random import Random

from tests.support.clients import (
    AFTER,
    DIGEST,
    FILE,
    FOLLOW_UP,
    QUESTION,
    REPORT,
    SYSTEM,
    TASK,
    Conversation,
    Kind,
    Message,
    Play,
    Recorder,
    Request,
    Said,
    shuffle,
)

PATH = "/v1/responses"
TOOLS = [{"type": "function", "name": "read", "parameters": {"type": "object", "properties": {}}}]


def answer(said: Said) -> Message:
    """What the provider sends: reasoning, then a message, then a call, each with an id."""
    tag = said.call or "end"
    output: list[Message] = [{"type": "reasoning", "id": f"rs_{tag}", "summary": [], "encrypted_content": "x" * 40}]
    if said.text:
        part = {"type": "output_text", "text": said.text, "annotations": [], "logprobs": []}
        message: Message = {"type": "message", "id": f"msg_{tag}", "role": "assistant", "content": [part]}
        output.append({**message, "status": "completed"})
    if said.call:
        call: Message = {"type": "function_call", "id": f"fc_{tag}", "call_id": said.call, "name": "read"}
        output.append({**call, "arguments": json.dumps(said.arguments), "status": "completed"})
    return {"id": f"resp_{tag}", "object": "response", "status": "completed", "output": output}


def echo_as_codex(item: Message) -> list[Message]:
    """Without id and state, with the reasoning."""
    kept = {key: value for key, value in item.items() if key not in ("id", "status")}
    if item["type"] == "message":
        kept["content"] = [{"type": "output_text", "text": part["text"]} for part in item["content"]]
    return [{**kept, "content": None} if item["type"] == "reasoning" else kept]


def echo_as_agents(item: Message) -> list[Message]:
    """As it came, less the reasoning."""
    return [] if item["type"] == "reasoning" else [item]


def echo_dumped(item: Message) -> list[Message]:
    """A dumped model: nulls for what was not said."""
    return [{**item, "status": item.get("status"), "phase": None}]


def echo_short(item: Message) -> list[Message]:
    """Plain strings for messages, arguments written again."""
    if item["type"] == "message":
        return [{"role": "assistant", "content": item["content"][0]["text"]}]
    if item["type"] == "function_call":
        arguments = json.dumps(json.loads(item["arguments"]), ensure_ascii=False, separators=(",", ":"))
        return [{**{key: item[key] for key in ("type", "call_id", "name")}, "arguments": arguments}]
    return []


def echo_reference(item: Message) -> list[Message]:
    """The provider's state stands for the item."""
    return [{"type": "item_reference", "id": item["id"]}]


Echo = Callable[[Message], list[Message]]


def user(text: str) -> Message:
    """A turn of the user."""
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def follow(
    echo: Echo, talk: Conversation, send: Callable[[list[Message], Said], None], begun: list[Message]
) -> list[Message]:
    """The agent's own calls, each with all before it."""
    history = [*begun, user(QUESTION)]
    for said, then in ((talk.first, None), (talk.second, None), (talk.third, FOLLOW_UP), (talk.third, AFTER)):
        send(history, said)
        output = {"type": "function_call_output", "call_id": said.call, "output": FILE}
        echoed = [each for item in answer(said)["output"] for each in echo(item)]
        history = [*history, *echoed, user(then) if then else output]
    return history


def play(echo: Echo, **fields: object) -> Play:
    """A client that only ever appends, and names nothing."""

    def run(session: str) -> list[Request]:
        recorder = Recorder(PATH, {"user-agent": "client/1"})

        def send(history: list[Message], said: Said) -> None:
            recorder.send({"model": "m", "input": history, "tools": TOOLS, **fields}, answer(said))

        follow(echo, Conversation(session), send, [{"role": "system", "content": SYSTEM}])
        return recorder.requests

    return run


class Codex:
    """Ids in headers, metadata in random order, a subagent that shares the session, and a compaction without tools."""

    def __init__(self, session: str) -> None:
        self._session = session
        self._random = Random(session)
        self.recorder = Recorder(PATH, {"user-agent": "codex/0.169", "session-id": session, "originator": "codex_cli"})

    def send(self, history: list[Message], said: Said, kind: str = "turn", thread: str = "", **more: str) -> None:
        """A call of a thread."""
        metadata = {"thread_id": thread, "window": "0", "kind": kind, "cwd": "/src", "turn": str(len(history))}
        body = {
            **{"model": "m", "instructions": SYSTEM, "input": history, "tools": [] if kind == "compaction" else TOOLS},
            **{"stream": True, "store": False, "include": ["reasoning.encrypted_content"]},
            **{"prompt_cache_key": self._session, "client_metadata": shuffle(metadata, self._random)},
        }
        fields = {
            "thread_id": thread or self._session,
            "x_codex_window_id": f"{thread or self._session}:0",
            "x_codex_turn_metadata": json.dumps(shuffle({"request_kind": kind, "cwd": "/src"}, self._random)),
        }
        role: Kind = "compaction" if kind == "compaction" else "subagent" if thread else "main"
        self.recorder.send(body, answer(said), role, **fields, **more)


def play_codex(session: str) -> list[Request]:
    """Codex from the first turn over a subagent to the turn after its compaction."""
    codex = Codex(session)
    begun: list[Message] = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "cwd"}]}
    ]
    history = follow(echo_as_codex, Conversation(session), codex.send, begun)
    parent = {"x_codex_parent_thread_id": session, "x_openai_subagent": "review"}
    codex.send([*begun, user(TASK)], Said(REPORT), thread=f"{session}-sub", **parent)
    codex.send([*history, user("Sum up what was done.")], Said(DIGEST), "compaction")
    codex.send([*begun, user(QUESTION), user(DIGEST), user(AFTER)], Said("They pass."))
    return codex.recorder.requests


CLIENTS: dict[str, Play] = {
    "codex": play_codex,
    "openai-agents": play(echo_as_agents, stream=True),
    "openai-python-responses": play(echo_dumped),
    "pydantic-ai-responses": play(echo_short),
    "vercel-ai-responses": play(echo_reference, stream=True, store=True),
}
