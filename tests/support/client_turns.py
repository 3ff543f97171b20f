"""Every client by name. Rule: one table; which of them only append is a fact of PROTOCOL §1, stated here once."""

from tests.support import anthropic_clients, chat_clients, responses_clients
from tests.support.clients import Play, Request

CLIENTS: dict[str, Play] = {**chat_clients.CLIENTS, **responses_clients.CLIENTS, **anthropic_clients.CLIENTS}

# Clients whose main requests do not begin with the one before and its answer, read as forms.
REWRITING = {"aider": "the files are put at the end again", "vercel-ai-responses": "ids stand for items"}
# Clients that compact by themselves at the end: their last main request begins anew.
COMPACTING = ("opencode", "qwen-code", "cline", "codex", "claude-code")


def turns(client: str, session: str = "s1") -> list[Request]:
    """A client's calls in a small conversation, in order; another session's first bodies are the same."""
    return CLIENTS[client](session)
