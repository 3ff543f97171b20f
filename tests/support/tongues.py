"""A conversation's messages in each wire's words. Rule: what clients do to an echo is taken from their shapes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from proxy.wire.anthropic_messages import AnthropicMessages
from proxy.wire.chat_completions import ChatCompletions
from proxy.wire.format import Format
from proxy.wire.responses import Responses
from tests.support import anthropic_clients, chat_clients, responses_clients
from tests.support.clients import Message, Said

TOOLS = [{"type": "function", "function": {"name": "read", "description": "d" * 5000}}]
ECHOES: tuple[Callable[[Said], Message], ...] = (
    chat_clients.echo_as_javascript,
    chat_clients.echo_with_parts,
    chat_clients.echo_as_litellm,
    chat_clients.echo_as_openai,
    chat_clients.echo_as_node,
    chat_clients.echo_bare,
)
ITEM_ECHOES: tuple[responses_clients.Echo, ...] = (
    responses_clients.echo_as_codex,
    responses_clients.echo_as_agents,
    responses_clients.echo_dumped,
    responses_clients.echo_short,
)


@dataclass(frozen=True)
class Tongue:
    """How a wire says things. `echo` takes a number that chooses one of the ways in which clients echo."""

    form: Format
    user: Callable[[str], Message]
    result: Callable[[Said], Message]
    answer: Callable[[Sequence[Said]], Message]
    echo: Callable[[Said, int], list[Message]]
    system: Callable[[str], list[Message]] = lambda text: [{"role": "system", "content": text}]

    def body(self, system: str, messages: list[Message], **fields: object) -> dict[str, Any]:
        """A request."""
        whole = [*self.system(system), *messages]
        return {"model": "m", self.form.items_key: whole, "tools": TOOLS, "stream": True, **fields}


def _answer_chat(saids: Sequence[Said]) -> Message:
    answers = [chat_clients.answer(said) for said in saids]
    choices = [{**answer["choices"][0], "index": i} for i, answer in enumerate(answers)]
    return {**answers[0], "choices": choices}


def _echo_items(said: Said, way: int) -> list[Message]:
    echo = ITEM_ECHOES[way % len(ITEM_ECHOES)]
    return [each for item in responses_clients.answer(said)["output"] for each in echo(item)]


CHAT = Tongue(
    ChatCompletions(),
    lambda text: {"role": "user", "content": text},
    lambda said: {"role": "tool", "tool_call_id": said.call, "content": "done"},
    _answer_chat,
    lambda said, way: [ECHOES[way % len(ECHOES)](said)],
)
ITEMS = Tongue(
    Responses(),
    responses_clients.user,
    lambda said: {"type": "function_call_output", "call_id": said.call, "output": "done"},
    lambda saids: responses_clients.answer(saids[0]),
    _echo_items,
)
BLOCKS = Tongue(
    AnthropicMessages(),
    anthropic_clients.user,
    anthropic_clients.result,
    lambda saids: anthropic_clients.answer(saids[0]),
    lambda said, way: [anthropic_clients.echo(said)],
    lambda text: [],
)
