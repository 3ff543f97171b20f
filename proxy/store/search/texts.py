"""The texts of a raw message that are searched: what it says, its reasoning, its calls, and the outputs it brings.

The texts of given bytes never change, and neither does their order: the index keeps no text, but the number of each.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, get_args

from proxy.context.references import list_argument_lines
from proxy.context.strategies.sources import BROADCAST, read_source_name
from proxy.model.messages import Message, ToolCall
from proxy.model.search import EntryKind
from proxy.retrieval.postings import TextRole
from proxy.wire.format import Format
from proxy.wire.json_values import JSON_ERRORS, limit_depth, load_json, read_text
from proxy.wire.messages import read_reasoning

MOST_TEXTS = 12
"""Texts of one message. The last one has all that are too many."""
LONGEST_TEXT = 400_000
"""Characters of a text that are searched. What is behind them is not found by its words."""

_ROLES: frozenset[str] = frozenset(get_args(TextRole))


class MessageText(NamedTuple):
    """One text of a message. `call` is the id of the call that it makes or answers."""

    kind: EntryKind
    role: TextRole
    text: str
    sender: str = ""
    call: str = ""
    tool: str = ""


def list_texts(form: Format, raw: bytes) -> list[MessageText]:
    """Return the texts of a raw message, or item, that are not empty. Never raises."""
    try:
        value = limit_depth(load_json(raw), raw)
    except JSON_ERRORS:
        value = None
    members = value if isinstance(value, dict) else {}
    message = form.parse_message(raw)
    texts = [each for each in _list_all(message, members) if each.text and not each.text.isspace()]
    if len(texts) > MOST_TEXTS:
        last = texts[MOST_TEXTS - 1]
        rest = "\n".join([each.text for each in texts[MOST_TEXTS - 1 :]])
        texts = [*texts[: MOST_TEXTS - 1], last._replace(text=rest)]
    return [each._replace(text=each.text[:LONGEST_TEXT]) for each in texts]


def address_text(text: MessageText, source: str) -> MessageText:
    """Return a text of the user with the kind and the sender that a prompt source of this kind gives it."""
    told, _, sender = source.partition(":")
    is_broadcast = told == BROADCAST and text.role == "user" and text.kind == "message"
    return text._replace(kind="broadcast", sender=sender) if is_broadcast else text


def describe_call(call: ToolCall) -> str:
    """Return the arguments of a call as lines of text."""
    return "\n".join(list_argument_lines(call.arguments))


def _list_all(message: Message, members: Mapping[str, object]) -> Iterator[MessageText]:
    role: TextRole = message.role if message.role in _ROLES else "other"  # type: ignore[assignment]
    sender = read_text(members.get("name")) if "role" in members else ""  # of an item that is a call it is the tool's
    yield MessageText("reasoning", role, read_reasoning(members))
    if message.results:
        yield from _list_outputs(message)
    else:
        yield address_text(MessageText("message", role, message.text, sender), read_source_name(sender))
    for call in message.calls:
        yield MessageText("arguments", role, describe_call(call), "", call.id, call.name)


def _list_outputs(message: Message) -> Iterator[MessageText]:
    """Yield what a message says that answers calls; words beside the results are the user's own."""
    outputs: Sequence[str] = message.outputs or (message.text,)
    beside = "\n".join(message.beside)
    if not message.outputs and beside and message.text.endswith(beside):
        outputs = (message.text[: -len(beside)],)
    for i, text in enumerate(outputs):
        yield MessageText("output", "tool", text, "", message.results[i] if i < len(message.results) else "")
    if beside:
        yield MessageText("message", "user", beside)
