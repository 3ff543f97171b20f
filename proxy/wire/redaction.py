"""What an answer may say at rest: an upstream may echo the credential it was asked with.

Rule: every credential is overwritten by as many asterisks, in plain and in encoded content; what refuses a credential
in an encoding that is not read here is not kept at all.
"""

import gzip
import zlib
from collections.abc import Iterable, Sequence

from proxy.model.exchange import Headers
from proxy.wire.encoding import decode_content
from proxy.wire.headers import find

# Short dummy keys ("lm-studio") are words that answers may well contain, so only error texts are searched for those.
_SHORTEST = 20
_SHORTEST_IN_ERRORS = 8
# Decoded where the answer ends, before the client has its last byte: 4 ms for so much.
_MOST_SEARCHED = 1024 * 1024
_REFUSALS = (401, 403)


def redact(content: bytes, secrets: Iterable[bytes], *, is_error: bool) -> bytes:
    """Plain content with every credential overwritten, also where JSON has its slashes escaped."""
    shortest = _SHORTEST_IN_ERRORS if is_error else _SHORTEST
    for secret in secrets:
        if len(secret) < shortest:
            continue
        for spelt in (secret, secret.replace(b"/", b"\\/")) if b"/" in secret else (secret,):
            if spelt in content:
                content = content.replace(spelt, b"*" * len(spelt))
    return content


def redact_answer(content: bytes, headers: Headers, status: int, secrets: Sequence[bytes], cap: int) -> bytes:
    """The body of an answer with every credential overwritten; as many bytes as before where it is not encoded.

    Encoded content is searched in its first MiB. Where there is one it is encoded anew, of at most `cap` bytes; empty
    where it cannot be read and the answer refuses a credential.
    """
    is_error = status >= 400
    encoding = find(headers, b"content-encoding").decode("latin-1").strip().lower()
    if encoding in ("", "identity") or not secrets:
        return redact(content, secrets, is_error=is_error)
    try:
        plain = decode_content(content, encoding, _MOST_SEARCHED)
    except ValueError:
        return b"" if status in _REFUSALS else content
    if redact(plain, secrets, is_error=is_error) == plain:
        return content
    whole = redact(decode_content(content, encoding, cap), secrets, is_error=is_error)
    return zlib.compress(whole) if encoding == "deflate" else gzip.compress(whole, mtime=0)
