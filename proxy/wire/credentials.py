"""Credentials: who pays for them, and redacting them from stored responses.

Nothing is verified here: only the upstream can check a token.
"""

import base64
import binascii
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from operator import itemgetter
from urllib.parse import urlsplit

import msgspec

from proxy.model.exchange import Headers
from proxy.wire.body import decode_content, decode_pieces, encode_content
from proxy.wire.headers import find_credential, find_header, strip_scheme

_JWT_PARTS = 3
_NO_CLAIMS: Mapping[str, msgspec.Raw] = {}
# Anthropic's plans; GitHub's, of which Copilot is one, and Copilot's own.
_OF_PLANS = (b"sk-ant-oat", b"gho_", b"ghu_", b"tid=")
_OF_PLANS_FIELDS = (b"chatgpt-account-id", b"copilot-integration-id")
# Beginnings of the hosts of servers at which people sign in.
_SIGN_IN = ("accounts.", "auth.", "id.", "login.", "oauth.", "sso.")
_value_of = itemgetter(1)
_claims = msgspec.json.Decoder(dict[str, msgspec.Raw])


_HOSTS: Mapping[str, tuple[str, ...]] = {
    "OpenAI": ("openai.com", "chatgpt.com"),
    "Anthropic": ("anthropic.com",),
    "OpenRouter": ("openrouter.ai",),
    "Google": ("googleapis.com",),
    "Groq": ("groq.com",),
    "xAI": ("x.ai",),
    "GitHub": ("github.com", "githubcopilot.com", "github.ai"),
    "DeepSeek": ("deepseek.com",),
    "Mistral": ("mistral.ai",),
    "Moonshot": ("moonshot.ai", "moonshot.cn"),
    "Together": ("together.xyz", "together.ai"),
    "Fireworks": ("fireworks.ai",),
}
# Beginnings that only one provider's credentials have.
_FORMS: Mapping[bytes, str] = {
    b"sk-ant-": "Anthropic",
    b"sk-or-": "OpenRouter",
    b"sk-proj-": "OpenAI",
    b"sk-svcacct-": "OpenAI",
    b"AIza": "Google",
    b"gsk_": "Groq",
    b"xai-": "xAI",
    b"gho_": "GitHub",
    b"ghu_": "GitHub",
    b"ghp_": "GitHub",
    b"github_pat_": "GitHub",
}
_BEGINNINGS = tuple(_FORMS)


def find_owner(token: bytes) -> str:
    """Return the provider whose form a token (without its scheme) has, empty if it may be anybody's."""
    if not token.startswith(_BEGINNINGS):
        return ""
    return next(name for beginning, name in _FORMS.items() if token.startswith(beginning))


def find_provider(host: str) -> str:
    """Return the provider that a host belongs to, empty if it is none that is known here."""
    names = ((each, provider) for provider, hosts in _HOSTS.items() for each in hosts)
    return next((provider for each, provider in names if host == each or host.endswith(f".{each}")), "")


def is_jwt(token: bytes) -> bool:
    """Return whether a token looks like a JWT, whose claims say whose it is."""
    parts = token.split(b".", _JWT_PARTS)
    return len(parts) == _JWT_PARTS and parts[1].startswith(b"ey")


def read_claims(token: bytes) -> Mapping[str, msgspec.Raw]:
    """Return the claims of a JWT (without its scheme) as raw JSON; empty if it cannot be read."""
    if not is_jwt(token):
        return _NO_CLAIMS
    part = token.split(b".")[1]
    try:
        return _claims.decode(base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        return _NO_CLAIMS


def is_subscription(headers: Headers) -> bool:
    """Return whether a request is paid by a person's subscription, with which we make no calls of our own.

    A JWT that cannot be read is assumed to be one.
    """
    token = strip_scheme(find_credential(headers))
    if token.startswith(_OF_PLANS) or any(find_header(headers, name) for name in _OF_PLANS_FIELDS):
        return True
    return is_jwt(token) and _is_signed_in(read_claims(token))


def _is_signed_in(claims: Mapping[str, msgspec.Raw]) -> bool:
    if not claims:
        return True
    try:
        issuer = msgspec.json.decode(claims.get("iss", b'""'), type=str)
        host = urlsplit(issuer).hostname or issuer
    except ValueError:  # not a string, or an invalid URL
        return True
    return host.lower().startswith(_SIGN_IN)


# Short dummy keys ("lm-studio") are words that responses may well contain, so only error texts are searched for those.
_SHORTEST = 20
_SHORTEST_IN_ERRORS = 8
# Limits in bytes for the search at the end of a response, before the client gets its last byte. At the limit it takes
# 2 ms for plain content, 5 ms if strings must be joined, 6 ms for content that must be decoded.
_MOST_AT_ONCE = 256 * 1024
_MOST_SPELT_AT_ONCE = 64 * 1024
_MOST_DECODED_AT_ONCE = 1024 * 1024
# Takes a quarter of a second. A response that decodes to more is a decompression bomb.
_MOST_DECODED = 64 * 1024 * 1024
_REFUSALS = (401, 403)
_ERROR = 400

_LINE = re.compile(rb"[^\r\n]+")
# A JSON string, which may be cut off at the end. If a colon follows, it is the name of a member.
_STRING = re.compile(rb'"((?:[^"\\]|\\.)*+)(?:"(\s*:)?|\Z)')
_INDEX = re.compile(rb'"(?:index|output_index|content_index|item_id)"\s*:\s*("[^"]*"|\d+)')


def redact(content: bytes, secrets: Iterable[bytes], *, is_error: bool) -> bytes:
    """Return plain content with every credential overwritten, also where its slashes are escaped as in JSON."""
    return _replace(content, _list_spellings(secrets, is_error=is_error))


def redact_headers(headers: Headers, secrets: Iterable[bytes], *, is_error: bool) -> Headers:
    """Return headers with every credential in their values overwritten."""
    spellings = _list_spellings(secrets, is_error=is_error)
    values = b"\n".join(map(_value_of, headers))
    if _replace(values, spellings) is values:
        return headers
    return tuple([(name, _replace(value, spellings)) for name, value in headers])


def redact_quickly(content: bytes, headers: Headers, status: int, secrets: Sequence[bytes]) -> bytes | None:
    """Return what `redact_answer` returns, or None if that would block other requests for too long."""
    spellings = _list_spellings(secrets, is_error=status >= _ERROR)
    encoding = find_header(headers, b"content-encoding").decode("latin-1")
    if not spellings or not content:
        return content
    if encoding.strip().lower() in ("", "identity"):
        size = len(content)
        if size > _MOST_AT_ONCE or (size > _MOST_SPELT_AT_ONCE and _may_spell(content, spellings)):
            return None
        return _overwrite(content, spellings)
    try:
        if len(decode_content(content, encoding, _MOST_DECODED_AT_ONCE)) == _MOST_DECODED_AT_ONCE:
            return None
    except ValueError:
        pass  # content that cannot be decoded takes no time
    return redact_answer(content, headers, status, secrets, _MOST_DECODED_AT_ONCE)


def redact_answer(content: bytes, headers: Headers, status: int, secrets: Sequence[bytes], cap: int) -> bytes:
    """Return the body of a response with every credential overwritten. Without an encoding its length does not change.

    Encoded content with a credential is encoded again, from at most `cap` decoded bytes. The result is empty if the
    decoded content is too long, or if it cannot be decoded and the status is 401 or 403.
    """
    spellings = _list_spellings(secrets, is_error=status >= _ERROR)
    encoding = find_header(headers, b"content-encoding").decode("latin-1")
    if not spellings:
        return content
    if encoding.strip().lower() in ("", "identity"):
        return _overwrite(content, spellings)
    try:
        is_found = _contains(decode_pieces(content, encoding), spellings)
        whole = decode_content(content, encoding, cap)
    except _Endless:
        return b""
    except ValueError:
        return b"" if status in _REFUSALS else _overwrite(content, spellings)
    kept = _overwrite(whole, spellings)
    return encode_content(kept, encoding) if is_found or kept != whole else content


class _Endless(Exception):
    """The decoded content is too long to search."""


def _list_spellings(secrets: Iterable[bytes], *, is_error: bool) -> list[bytes]:
    """Return the strings to search for: credentials that are long enough, also with slashes escaped as in JSON."""
    shortest = _SHORTEST_IN_ERRORS if is_error else _SHORTEST
    long, escaped = [], []
    for secret in secrets:
        if len(secret) >= shortest:
            long.append(secret)
            if b"/" in secret:
                escaped.append(secret.replace(b"/", b"\\/"))
    return long + escaped


def _contains(pieces: Iterator[bytes], spellings: Sequence[bytes]) -> bool:
    """Return whether one of the spellings is in the pieces, or across two of them. Reads all pieces."""
    reach, is_found, size, tail = max(map(len, spellings)) - 1, False, 0, b""
    for piece in pieces:
        size += len(piece)
        if size > _MOST_DECODED:
            raise _Endless
        window = tail + piece
        is_found = is_found or any(spelling in window for spelling in spellings)
        tail = window[-reach:]
    return is_found


def _replace(content: bytes, spellings: Sequence[bytes]) -> bytes:
    """Return the content with the spellings overwritten, or the same object if it has none."""
    for spelling in spellings:
        if spelling in content:
            content = content.replace(spelling, b"*" * len(spelling))
    return content


def _overwrite(content: bytes, spellings: Sequence[bytes]) -> bytes:
    content = _replace(content, spellings)
    return _overwrite_pieces(content, spellings) if _may_spell(content, spellings) else content


def _may_spell(content: bytes, spellings: Sequence[bytes]) -> bool:
    """Return whether several JSON strings together may spell a credential. Mostly quick."""
    return any(_has_pieces(content, spelling) for spelling in spellings)


def _has_pieces(content: bytes, spelling: bytes) -> bool:
    """Return whether strings exist that end with a credential's first piece, are its middle ones, begin with its last.

    The search starts at the credential's end, which is random even if keys begin alike. Most responses lack one of its
    characters.
    """
    if not all(char in content for char in set(spelling)):
        return False
    cuts: list[int] = []
    for i in range(len(spelling) - 1, 0, -1):
        if b'"' + spelling[i:] in content:
            cuts.append(i)
        elif spelling[i:] not in content:
            break
    for cut in cuts:
        if spelling[:cut] + b'"' in content:
            return True
        for i in range(cut - 1, 0, -1):
            piece = spelling[i:cut] + b'"'
            if piece not in content:
                break
            if i not in cuts and b'"' + piece in content:
                cuts.append(i)
    return False


def _overwrite_pieces(content: bytes, spellings: Sequence[bytes]) -> bytes:
    """Overwrite credentials that string members of one name spell together, in lines of one index or in any lines."""
    runs: defaultdict[tuple[bytes, ...], list[tuple[int, int]]] = defaultdict(list)
    for line in _LINE.finditer(content):
        name, indexes = b"", tuple(_INDEX.findall(line[0]))
        for string in _STRING.finditer(content, *line.span()):
            if string[2] is not None:
                name = string[1]
            elif string[1]:
                runs[(name,)].append(string.span(1))
                if indexes:
                    runs[(name, *indexes)].append(string.span(1))
    kept = bytearray(content)
    for spans in runs.values():
        _overwrite_run(kept, content, spans, spellings)
    return bytes(kept)


def _overwrite_run(
    kept: bytearray, content: bytes, spans: Sequence[tuple[int, int]], spellings: Sequence[bytes]
) -> None:
    text = b"".join([content[start:end] for start, end in spans])
    begins = [0, *accumulate(end - start for start, end in spans)]
    for spelling in spellings:
        at = text.find(spelling)
        while at >= 0:
            stop = at + len(spelling)
            for i in range(bisect_right(begins, at) - 1, len(spans)):
                start, first, last = spans[i][0], max(at, begins[i]), min(stop, begins[i + 1])
                if first >= stop:
                    break
                kept[start + first - begins[i] : start + last - begins[i]] = b"*" * (last - first)
            at = text.find(spelling, stop)
