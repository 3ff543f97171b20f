"""Sessions as people list them: what each is, who runs it, what it came to, and what managing it saved or lost.

Sums come from the log, money from the prices that are known now: an estimate changes if the prices do.
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from proxy.context.pricing import Cost
from proxy.context.user_rules import list_sentences
from proxy.context.verbatim import find_client_messages
from proxy.engine.ports import LogReader
from proxy.engine.recorded.conversation import find_format, list_inputs, read_body
from proxy.engine.recorded.documents import describe
from proxy.model.epoch import Strategy, read_view
from proxy.model.errors import ProxyError
from proxy.model.exchange import Headers
from proxy.model.figures import Newest, SessionHead
from proxy.model.log import SessionRow
from proxy.model.lru import LruCache
from proxy.read.savings import SavedTotal, Saving, SavingsInputs, describe_saving, load_totals
from proxy.wire.format import Format
from proxy.wire.headers import find_header

SessionStatus = Literal["live", "idle"]

_LATELY_MS = 5 * 60 * 1000
_LONGEST_MS = 60 * 60 * 1000  # an open call that began earlier was cut off by a crash
_MOST_TITLES = 4096
_NAMING_CLIENTS = frozenset(("codex", "claude-code"))
_PREFIXES = _NAMING_CLIENTS | {
    *("x-session-id", "x-dynamo-session-id", "helicone-session-id", "x-litellm-session-id"),
    *("litellm_session_id", "session_id", "conversation"),
}


class AuxiliaryTotal(msgspec.Struct, frozen=True):
    """Our own calls for a session, and what they cost."""

    calls: int
    input: int
    output: int
    cost_tokens: float
    money: float | None


class WindowTokens(msgspec.Struct, frozen=True):
    """The size of the newest call of the conversation: of the client's own request, and of what was sent."""

    client: int | None
    sent: int | None


class SessionSummary(msgspec.Struct, frozen=True):
    """A session in a listing. Times are in milliseconds since 1970. Tokens are as the provider counted them.

    `client_tokens`, `sent_tokens` and `output_tokens` are sums over its calls whose size is known. `spent` includes
    our own calls for it. `saved` is null where nothing was managed, or nothing is known of it. `erased_ms` is when all
    of it was erased, null unless it was.
    """

    id: str
    title: str
    name: str
    client: str
    model: str
    upstream: str
    strategy: Strategy | None
    mode: str
    status: SessionStatus
    family: str
    parent: str
    adopted: str
    seq: int
    created_ms: int
    last_ms: int
    calls: int
    turns: int
    side: int
    branches: int
    epochs: int
    summaries: int
    errors: int
    client_tokens: int | None
    sent_tokens: int | None
    output_tokens: int | None
    window_tokens: WindowTokens
    cache_read_share: float | None
    spent: Cost
    saved: Saving | None
    auxiliary: AuxiliaryTotal
    erased_ms: int | None


class TitleCache(LruCache[str, str]):
    """Titles that were read before, by their sessions. One that is empty is read again: more may be in the log then."""

    def __init__(self) -> None:
        super().__init__(_MOST_TITLES)


async def summarize_sessions(
    log: LogReader,
    rows: Sequence[SessionRow],
    inputs: SavingsInputs,
    titles: TitleCache | None = None,
) -> list[SessionSummary]:
    """Return sessions with what they came to, in their order. Raises StoreUnavailable."""
    ids, now_ms = [row.id for row in rows], inputs.now_ms()
    newest = {each.session: each for each in await log.load_newest(ids)}
    totals = await load_totals(log, ids, inputs)
    heads = {each.session: each for each in await log.load_heads(ids)}
    titles = titles if titles is not None else TitleCache()
    summaries = []
    for row in rows:
        total, head = totals.get(row.id) or SavedTotal(), heads.get(row.id)
        client = name_client(head.headers) if head is not None else ""
        title = (titles.get(row.id) if head is not None else None) or ""
        if head is not None and not title:
            title = await load_title(log, head)
            titles.put(row.id, title)
        saved = await describe_saving(log, row.id, total)
        found = newest.get(row.id) or Newest(row.id)
        client = client or name_sender(row.family)
        summaries.append(_summarize(row, total, found, now_ms, client=client, title=title, saved=saved))
    return summaries


def _summarize(
    row: SessionRow, total: SavedTotal, newest: Newest, now_ms: int, *, client: str, title: str, saved: Saving | None
) -> SessionSummary:
    name = shorten_title(name_session(row.family))
    spent, is_counted = total.spent if total.is_charged else Cost(0.0, None), bool(total.counted)
    return describe(
        SessionSummary,
        row,
        title=title or name,
        name=name,
        client=client,
        strategy=read_view(newest.view)[1] if newest.view else None,
        mode=newest.mode,
        status="live" if _is_live(total, newest, now_ms) else "idle",
        calls=row.exchanges,
        turns=total.ends + (not newest.is_ended),
        epochs=newest.epochs,
        summaries=newest.summaries,
        errors=total.errors,
        client_tokens=total.client if is_counted else None,
        sent_tokens=total.sent if is_counted else None,
        output_tokens=total.output if is_counted else None,
        window_tokens=WindowTokens(newest.client, newest.sent),
        cache_read_share=total.read / total.told if total.told else None,
        spent=spent,
        saved=saved,
        auxiliary=AuxiliaryTotal(
            row.auxiliary,
            total.auxiliary_input,
            total.auxiliary_output,
            total.auxiliary.tokens,
            total.auxiliary.money,
        ),
    )


def name_session(family: str) -> str:
    """Return what the client called a session: without the header or client that said so, empty for a mere digest."""
    if family.startswith("sha256:"):
        return ""
    prefix, _, rest = family.partition(":")
    return rest if rest and prefix in _PREFIXES else family


def name_sender(family: str) -> str:
    """Return the client that is known by how it names its sessions, empty if it is not known by that."""
    prefix = family.partition(":")[0]
    return prefix if prefix in _NAMING_CLIENTS else ""


def _is_live(total: SavedTotal, newest: Newest, now_ms: int) -> bool:
    if newest.opened_ms is not None and now_ms - newest.opened_ms < _LONGEST_MS:
        return True
    return now_ms - total.ended_ms < _LATELY_MS


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
    try:
        form = find_format(head)
        body = read_body(head, await log.load_request(head.exchange))
    except ProxyError:
        return ""
    return find_title(form, list_inputs(body, form))


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
