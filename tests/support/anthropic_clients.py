"""claude-code, which speaks Anthropic's wire. Rule: see `clients`; its markers hop, and lists of one part collapse."""

import json
from copy import deepcopy

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

PATH = "/v1/messages?beta=true"
TOOLS = [{"name": "Read", "input_schema": {"type": "object"}}]
MARK = {"type": "ephemeral"}


def answer(said: Said) -> Message:
    """What the provider sends: thinking, text, a call."""
    content: list[Message] = [{"type": "thinking", "thinking": "Let me think.", "signature": "x" * 40}]
    if said.text:
        content.append({"type": "text", "text": said.text, "citations": None})
    if said.call:
        content.append({"type": "tool_use", "id": said.call, "name": "Read", "input": dict(said.arguments)})
    return {"id": "msg_1", "type": "message", "role": "assistant", "content": content, "stop_reason": "end_turn"}


def echo(said: Said) -> Message:
    """As it came, with numbers as JavaScript writes them."""
    content: list[Message] = deepcopy(answer(said)["content"])
    for block in content:
        block.pop("citations", None)
        for key, value in block.get("input", {}).items():
            block["input"][key] = int(value) if isinstance(value, float) else value
    return {"role": "assistant", "content": content}


def user(text: str) -> Message:
    """A turn of the user."""
    return {"role": "user", "content": [{"type": "text", "text": text}]}


def result(said: Said) -> Message:
    """What the tool said."""
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": said.call, "content": FILE}]}


def mark(history: list[Message]) -> list[Message]:
    """The history as sent: the newest message marked, and older texts that stand alone as plain strings."""
    sent = deepcopy(history)
    for message in sent[:-1]:
        content = message["content"]
        if len(content) == 1 and content[0]["type"] == "text":
            message["content"] = content[0]["text"]
    sent[-1]["content"][-1]["cache_control"] = MARK
    return sent


class ClaudeCode:
    """A session and its calls."""

    def __init__(self, session: str) -> None:
        self._session = session
        fields = {
            "user-agent": "claude-cli/2.1",
            "x-claude-code-session-id": session,
            "anthropic-version": "2023-06-01",
        }
        self.recorder = Recorder(PATH, fields)

    def write(self, messages: list[Message], **fields: object) -> Message:
        """A body."""
        owner = json.dumps({"device_id": "d", "session_id": self._session})
        system = [{"type": "text", "text": SYSTEM, "cache_control": MARK}]
        body = {"model": "m", "max_tokens": 32000, "system": system, "messages": messages, "stream": True}
        return {**body, "metadata": {"user_id": owner}, **fields}


def play_claude_code(session: str) -> list[Request]:
    """A title first, then the turns with a subagent after them, and the client's own compaction."""
    code, talk = ClaudeCode(session), Conversation(session)
    code.recorder.send(code.write([user(QUESTION)], tools=[], max_tokens=64), answer(Said("Values")), "side")
    history = [user(QUESTION)]
    for said, then in ((talk.first, None), (talk.second, None), (talk.third, FOLLOW_UP), (talk.third, AFTER)):
        code.recorder.send(code.write(mark(history), tools=TOOLS), answer(said))
        history = [*history, echo(said), user(then) if then else result(said)]
        if then == FOLLOW_UP:
            history.append({"role": "system", "content": [{"type": "text", "text": "The date has changed."}]})
    task = code.write(mark([user(TASK)]), tools=TOOLS)
    code.recorder.send(task, answer(Said(REPORT)), "subagent", x_claude_code_agent_id="agent-1")
    order = [*history, user("Sum up what was done.")]
    code.recorder.send(code.write(mark(order), tools=TOOLS), answer(Said(DIGEST)), "compaction")
    code.recorder.send(code.write(mark([user(DIGEST), user(AFTER)]), tools=TOOLS), answer(Said("They pass.")))
    return code.recorder.requests


CLIENTS: dict[str, Play] = {"claude-code": play_claude_code}
