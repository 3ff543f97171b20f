"""The clients that speak Chat Completions. Rule: see `clients`; each differs in how it echoes, marks and asks."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

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
    Message,
    Play,
    Recorder,
    Request,
    Said,
)

PATH = "/v1/chat/completions"
TOOLS = [{"type": "function", "function": {"name": "read", "parameters": {"type": "object", "properties": {}}}}]
STREAM = {"stream": True, "stream_options": {"include_usage": True}}


def answer(said: Said) -> Message:
    """What the provider sends: spaces in the arguments, reasoning, and members nobody asked for."""
    message: Message = {"role": "assistant", "content": said.text or None, "refusal": None, "annotations": []}
    message["reasoning_content"] = "Let me think."
    if said.call:
        function = {"name": "read", "arguments": json.dumps(said.arguments, indent=1)}
        message["tool_calls"] = [{"id": said.call, "type": "function", "function": function}]
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if said.call else "stop"}
    return {"id": "chatcmpl-1", "object": "chat.completion", "model": "m", "choices": [choice]}


def _call(said: Said, arguments: str, **fields: object) -> list[Message]:
    return [{"id": said.call, "type": "function", "function": {"name": "read", "arguments": arguments}, **fields}]


def echo_as_javascript(said: Said) -> Message:
    """AI SDK and its kin: arguments parsed and written again, so 20.0 is 20; null is an empty string."""
    whole = {key: int(value) if isinstance(value, float) else value for key, value in said.arguments.items()}
    text = json.dumps(whole, ensure_ascii=False, separators=(",", ":"))
    return {"role": "assistant", "content": said.text, **({"tool_calls": _call(said, text)} if said.call else {})}


def echo_with_parts(said: Said) -> Message:
    """Text as parts, absent where there is none; the last fragment of the reasoning."""
    message = echo_as_javascript(said)
    message["content"] = [{"type": "text", "text": said.text}] if said.text else None
    return {**message, "reasoning_content": "think."}


def echo_as_litellm(said: Said) -> Message:
    """A dumped model: everything it has a name for."""
    text = json.dumps(said.arguments, indent=1)
    extras: Message = {"function_call": None, "provider_specific_fields": {"refusal": None}, "annotations": []}
    calls = _call(said, text, index=0) if said.call else None
    return {"content": said.text or None, "role": "assistant", "tool_calls": calls, **extras}


def echo_as_openai(said: Said) -> Message:
    """openai-python's `model_dump`: nulls for what was not said."""
    calls = _call(said, json.dumps(said.arguments, indent=1)) if said.call else None
    extras: Message = {
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
        "reasoning_content": "Let me",
    }
    return {"content": said.text or None, "role": "assistant", "tool_calls": calls, **extras}


def echo_as_node(said: Said) -> Message:
    """openai-node's stream helper: `parsed`, and the last fragment of the reasoning alone."""
    message: Message = {"role": "assistant", "content": said.text or None, "refusal": None, "parsed": None}
    message["reasoning_content"] = "think."
    if said.call:
        function = {"name": "read", "arguments": json.dumps(said.arguments, indent=1), "parsed_arguments": None}
        message["tool_calls"] = [{"index": 0, "id": said.call, "type": "function", "function": function}]
    return message


def echo_bare(said: Said) -> Message:
    """Only what there is: no null content, no extras; escapes in the arguments."""
    message: Message = {"role": "assistant"}
    if said.text:
        message["content"] = said.text
    if said.call:
        message["tool_calls"] = _call(said, json.dumps(said.arguments, sort_keys=True))
    return message


@dataclass(frozen=True)
class Style:
    """How a client writes."""

    echo: Callable[[Said], Message]
    fields: dict[str, Any] = field(default_factory=lambda: dict(STREAM))
    with_parts: bool = False
    tool_parts: bool = False
    ascii_only: bool = False
    agent: str = "client/1"

    def user(self, text: str) -> Message:
        """A turn of the user."""
        return {"role": "user", "content": [{"type": "text", "text": text}] if self.with_parts else text}

    def result(self, said: Said) -> Message:
        """What the tool said."""
        content: object = [{"type": "text", "text": FILE}] if self.tool_parts else FILE
        return {"role": "tool", "tool_call_id": said.call, "content": content}


def follow(style: Style, talk: Conversation, recorder: Recorder) -> list[Message]:
    """The agent's own calls, each with all before it."""
    history: list[Message] = [{"role": "system", "content": SYSTEM}, style.user(QUESTION)]
    for said, then in ((talk.first, None), (talk.second, None), (talk.third, FOLLOW_UP), (talk.third, AFTER)):
        recorder.send({"model": "m", "messages": history, "tools": TOOLS, **style.fields}, answer(said))
        history = [*history, style.echo(said), style.user(then) if then else style.result(said)]
    return history


def play(style: Style) -> Play:
    """A client that only ever appends, and names nothing."""

    def run(session: str) -> list[Request]:
        recorder = Recorder(PATH, {"user-agent": style.agent}, ascii_only=style.ascii_only)
        follow(style, Conversation(session), recorder)
        return recorder.requests

    return run


def compress(style: Style, recorder: Recorder, history: list[Message], **ask: object) -> None:
    """The client's own compaction: the history with an order to sum it up, then a much shorter history."""
    order = style.user("Sum up what was done.")
    recorder.send({"model": "m", "messages": [*history, order], **ask}, answer(Said(DIGEST)), "compaction")
    short = [history[0], style.user(DIGEST), {"role": "assistant", "content": "Understood."}, style.user(AFTER)]
    recorder.send({"model": "m", "messages": short, "tools": TOOLS, **style.fields}, answer(Said("They pass.")))


def play_opencode(session: str) -> list[Request]:
    """A title first; ids in headers, a subagent with its own and its parent's; a summariser."""
    style = Style(echo_as_javascript)
    ids = {"user-agent": "opencode/1", "x-session-id": session, "x-session-affinity": session}
    recorder = Recorder(PATH, ids)
    titled = [{"role": "system", "content": "Make a title."}, style.user(QUESTION)]
    recorder.send({"model": "small", "messages": titled, "max_tokens": 64, **STREAM}, answer(Said("Values")), "side")
    history = follow(style, Conversation(session), recorder)
    task = [{"role": "system", "content": "You search."}, style.user(TASK)]
    own = {"x_session_id": f"{session}-sub", "x_session_affinity": f"{session}-sub", "x_parent_session_id": session}
    recorder.send({"model": "m", "messages": task, "tools": TOOLS, **STREAM}, answer(Said(REPORT)), "subagent", **own)
    compress(style, recorder, history, **STREAM)
    return recorder.requests


def play_qwen(session: str) -> list[Request]:
    """Appends until it compresses, which it does without streaming."""
    style = Style(echo_with_parts, with_parts=True)
    recorder = Recorder(PATH, {"user-agent": "QwenCode/0.15"})
    compress(style, recorder, follow(style, Conversation(session), recorder), stream=False)
    return recorder.requests


def play_cline(session: str) -> list[Request]:
    """Appends until it compresses; no call of its own for that."""
    style = Style(echo_with_parts, with_parts=True, tool_parts=True, agent="Cline/3")
    recorder = Recorder(PATH, {"user-agent": style.agent})
    history = follow(style, Conversation(session), recorder)
    short = [*history[:2], style.user(DIGEST), history[-1]]
    recorder.send({"model": "m", "messages": short, "tools": TOOLS, **STREAM}, answer(Said("They pass.")))
    return recorder.requests


def play_llm(session: str) -> list[Request]:
    """Another process continues, and leaves the tools out while the history has calls."""
    style = Style(echo_bare)
    recorder = Recorder(PATH, {"user-agent": "OpenAI/Python"})
    history = follow(style, Conversation(session), recorder)
    recorder.send({"model": "m", "messages": history, **STREAM}, answer(Said("They pass.")))
    return recorder.requests


def play_aider(session: str) -> list[Request]:
    """Not append-only: the files and a reminder stand at the end, new turns go in before them."""
    recorder = Recorder(PATH, {"user-agent": "litellm/1"})
    files = [
        {"role": "user", "content": f"These are the files:\n{FILE}"},
        {"role": "assistant", "content": "Ok."},
    ]
    history: list[Message] = []
    for asked, said in ((QUESTION, "It returns six."), (FOLLOW_UP, "Changed."), (AFTER, "They pass.")):
        text = f"{said} This is what I found in the repository of {session}."  # comes back without the line's end
        turn = {"role": "user", "content": asked}
        reminder = {"role": "system", "content": "Answer with edits only."}
        system = {"role": "system", "content": SYSTEM}
        messages = [system, *history, *files, turn, reminder]
        recorder.send({"model": "m", "messages": messages, "stream": True}, answer(Said(f"{text}\n")))
        history = [*history, turn, {"role": "assistant", "content": text}]
    commit = [{"role": "system", "content": "Write a commit message."}, {"role": "user", "content": FILE}]
    recorder.send({"model": "small", "messages": commit}, answer(Said("Return seven")), "side")
    digest = [{"role": "system", "content": "Sum up."}, {"role": "user", "content": f"{QUESTION}\n{FOLLOW_UP}"}]
    recorder.send({"model": "small", "messages": digest}, answer(Said(DIGEST)), "compaction")
    return recorder.requests


CLIENTS: dict[str, Play] = {
    "opencode": play_opencode,
    "qwen-code": play_qwen,
    "cline": play_cline,
    "mini-swe-agent": play(Style(echo_as_litellm, fields={}, agent="litellm/1", ascii_only=True)),
    "aider": play_aider,
    "llm": play_llm,
    "openai-python": play(Style(echo_as_openai, fields={}, agent="OpenAI/Python 2")),
    "openai-node": play(Style(echo_as_node, agent="OpenAI/JS 6")),
    "litellm": play(Style(echo_as_litellm, fields={}, agent="litellm/1", ascii_only=True)),
    "pydantic-ai": play(Style(echo_bare, fields={}, agent="pydantic-ai/1")),
    "langchain": play(Style(echo_as_litellm, fields={"stream": True}, tool_parts=True, agent="langchain")),
    "vercel-ai": play(Style(echo_as_javascript, agent="ai-sdk/5")),
}
