"""Titles of sessions, from the first words of the user's own, and the names of clients."""

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence

from proxy.context.user_rules import list_sentences
from proxy.context.verbatim import find_client_messages
from proxy.engine.ports import LogReader
from proxy.engine.reports.conversation import list_raws, read_request, split_whole
from proxy.model.errors import ProxyError
from proxy.model.exchange import Headers
from proxy.model.figures import SessionHead
from proxy.wire import FORMATS
from proxy.wire.format import Format
from proxy.wire.headers import find_header

MOST_CHARACTERS = 80

_MOST_LOOKED_AT = 16  # messages of the user's role
_SEARCHED = 4000  # characters of a message
# How texts begin that clients put before the user's words, or in a message of their own.
_OF_CLIENT = re.compile(
    r"\s*(?:<(?:user_instructions|environment_context|permissions|session_context|INSTRUCTIONS|workspace_info)\b"
    r"|# (?:AGENTS\.md|CLAUDE\.md|Context from my IDE)|Caveat: The messages below were generated)"
)
# Tags around the user's words: alone on their lines, or around all of the text. Reminders of clients are none.
_TAG_LINE = re.compile(r"</?[A-Za-z_][\w-]{0,40}>")
_WRAPPED = re.compile(
    r"\s*<(?!system-|environment_|ide_|local-|command-|bash-|task-n)([A-Za-z_][\w-]{0,40})(?:\s[^<>]{0,200})?>(.*)</\1>\s*",
    re.DOTALL,
)
_JOINERS = {"\u200c", "\u200d"}  # within words of some scripts, and between parts of an emoji
_PRODUCT = re.compile(r"([A-Za-z][\w.@+-]*(?:/(?!v?\d)[A-Za-z][\w.-]*)?)(?:[/ ]v?(\d+(?:\.\d+)?))?")
_CLIENTS: Mapping[str, str] = {
    "claude-cli": "claude-code",
    "codex_cli_rs": "codex",
    "codex_exec": "codex",
    "codex-tui": "codex",
    "qwencode": "qwen-code",
    "geminicli": "gemini-cli",
    "openai/python": "openai-python",
    "openai/js": "openai-js",
    "asyncopenai/python": "openai-python",
    "anthropic/python": "anthropic-python",
    "asyncanthropic/python": "anthropic-python",
    "anthropic/js": "anthropic-js",
}


def make_title(texts: Sequence[str]) -> str:
    """Return the first words that are the user's own in texts of the user's role, on one line; empty if there are none.

    What clients put into that role, and what is pasted, is skipped, unless nothing else is left.
    """
    foreign = find_client_messages(dict(enumerate(texts))).places
    own = [text[:_SEARCHED] for i, text in enumerate(texts) if i not in foreign and not _OF_CLIENT.match(text)]
    texts = [wrapped[2] if (wrapped := _WRAPPED.fullmatch(text)) else text for text in own]
    for text in texts:
        said = [each.text for each in list_sentences(text)]
        if words := shorten_title(" ".join(each for each in said if not _TAG_LINE.fullmatch(each))):
            return words
    return next((words for text in texts if (words := shorten_title(text)) and not words.startswith("<")), "")


def shorten_title(text: str) -> str:
    """Return a text on one line of at most `MOST_CHARACTERS`, without signs that cannot be seen, or turn the line."""
    line = " ".join("".join(map(_show, text)).split())
    if len(line) <= MOST_CHARACTERS:
        return line
    cut = line[: MOST_CHARACTERS - 1]
    whole = cut.rsplit(" ", 1)[0]
    return f"{whole if len(whole) > MOST_CHARACTERS // 2 else cut}…"


def _show(character: str) -> str:
    if character in _JOINERS:
        return character
    kind = unicodedata.category(character)
    if kind == "Cf":
        return ""
    return " " if kind == "Cc" else "\N{REPLACEMENT CHARACTER}" if kind in ("Cs", "Co", "Cn") else character


def name_client(headers: Headers) -> str:
    """Return the client's name and version from a request's headers, such as `claude-code 2.1`; empty if unknown."""
    found = _PRODUCT.match(find_header(headers, b"user-agent").decode("latin-1").strip())
    if found is None:
        return ""
    name = found[1].lower()
    return shorten_title(f"{_CLIENTS.get(name, name)} {found[2] or ''}")


async def load_title(log: LogReader, head: SessionHead) -> str:
    """Return the title of a session that begins with this call; empty if its request was erased, or cannot be read."""
    if head.wire not in FORMATS:
        return ""
    form = FORMATS[head.wire]
    try:
        body = read_request(head, await log.load_request(head.exchange))
        split = split_whole(body, form.items_key)
    except ProxyError:
        return ""
    raws = list_raws(split)
    if not raws and (whole := split.member(form.items_key))[:1] == b'"':
        raws = [b'{"role":"user","content":%b}' % whole]
    return find_title(form, raws)


def find_title(form: Format, raws: Iterable[bytes]) -> str:
    """Return the title of a session that begins with these messages; empty if the user says nothing in them."""
    texts: list[str] = []
    for raw in raws:
        message = form.parse_message(raw)
        if message.role == "user":
            texts.append(message.text)
        if len(texts) == _MOST_LOOKED_AT:
            break
    return make_title(texts)
