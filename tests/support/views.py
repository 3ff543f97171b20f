"""Views of Chat Completions histories, and what a plan makes of them."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import msgspec

from proxy.context.budget import BudgetPolicy, make_budget
from proxy.context.conversation import CountedMessage, PlanRequest
from proxy.model.epoch import ContextPlan, Kept, Replaced, Written
from proxy.model.messages import Message, MessageStructure, ToolCall
from proxy.wire import FORMATS
from proxy.wire.validity import Splice

RawMessage = dict[str, Any]
WINDOW = 1_000_000
FRAME = 4


def count(text: str) -> int:
    """Tokens, near enough: one for each four characters begun."""
    return -(-len(text) // 4)


def tell(message: RawMessage) -> Message:
    calls = tuple(
        ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls", ())
    )
    answers = (message["tool_call_id"],) if "tool_call_id" in message else ()
    return Message(message["role"], message["content"] or "", calls, answers)


def see(message: RawMessage) -> CountedMessage:
    told = tell(message)
    structure = FORMATS["chat_completions"].parse_structure(json.dumps(message).encode())
    return CountedMessage(told, structure, weigh(told))


def weigh(told: Message) -> int:
    """Tokens of a message."""
    return FRAME + count(told.text) + sum(count(call.name + call.arguments) for call in told.calls)


def user(text: str) -> RawMessage:
    return {"role": "user", "content": text}


def said(text: str) -> RawMessage:
    return {"role": "assistant", "content": text}


def call(id: str, command: str, name: str = "shell") -> RawMessage:
    function = {"name": name, "arguments": json.dumps({"command": command})}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": id, "type": "function", "function": function}]}


def result(id: str, text: str) -> RawMessage:
    return {"role": "tool", "tool_call_id": id, "content": text}


def act(id: str, command: str, output: str, name: str = "shell") -> list[RawMessage]:
    """A call and its result."""
    return [call(id, command, name), result(id, output)]


def name_reference(start: int, stop: int, offset: int) -> str:
    return hashlib.sha256(f"{start} {stop} {offset}".encode()).hexdigest()[:10]


def view(messages: Sequence[RawMessage], ceiling: int, head: int = 0, pinned: Sequence[int] = ()) -> PlanRequest:
    return view_seen([see(message) for message in messages], ceiling, head, pinned)


def view_seen(seen: Sequence[CountedMessage], ceiling: int, head: int = 0, pinned: Sequence[int] = ()) -> PlanRequest:
    budget = make_budget(WINDOW, None, None, BudgetPolicy(ceiling_tokens=ceiling))
    return PlanRequest(budget, None, frozenset(pinned), messages=seen, head=head, name=name_reference, has_tool=True)


def render(messages: Sequence[RawMessage], plan: ContextPlan) -> list[RawMessage]:
    """What is sent in place of messages."""
    sent: list[RawMessage] = []
    for edit in plan.edits:
        if isinstance(edit, Written):
            sent.append(user(edit.text))
        else:
            message = messages[edit.place]
            sent.append(message if isinstance(edit, Kept) else _change(message, edit))
    return [*sent, *messages[plan.through :]]


def _change(message: RawMessage, edit: Replaced) -> RawMessage:
    calls = [dict(each) for each in message.get("tool_calls", ())]
    for each in calls:
        new = dict(edit.arguments).get(each["id"], each["function"]["arguments"])
        each["function"] = {**each["function"], "arguments": new}
    changed = {**message, "tool_calls": calls} if calls else message
    return {**changed, "content": edit.text} if edit.text else changed


def splice(plan: ContextPlan, seen: PlanRequest) -> list[Splice]:
    """The plan as the guard takes it: what is kept stands between the splices."""
    splices: list[Splice] = []
    ours: tuple[MessageStructure, ...] = ()
    at = 0
    for edit in plan.edits:
        if isinstance(edit, Written):
            ours = (*ours, MessageStructure("user"))
            continue
        splices += [Splice(at, edit.place, ours)] if ours or at < edit.place else []
        splices += [] if isinstance(edit, Kept) else [Splice(edit.place, edit.place + 1, (_replace(edit, seen),))]
        ours, at = (), edit.place + 1
    return [*splices, Splice(at, plan.through, ours)] if ours or at < plan.through else splices


def _replace(edit: Replaced, seen: PlanRequest) -> MessageStructure:
    return msgspec.structs.replace(seen.messages[edit.place].structure, says_json=False, flaws=())


def list_texts(plan: ContextPlan) -> list[str]:
    """The words of ours."""
    return [edit.text for edit in plan.edits if not isinstance(edit, Kept)]
