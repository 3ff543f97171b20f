"""What a credential says of itself: whose it is, and whether it is the key of a person's plan (BEHAVIOUR B2, B31).

Rule: nothing is checked here; who vouches for a token is the upstream. What cannot be read says nothing.
"""

import base64
import binascii
from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec

from proxy.model.exchange import Headers
from proxy.wire.headers import bare_credential, find, find_credential

_JWT_PARTS = 3
_NO_CLAIMS: Mapping[str, msgspec.Raw] = {}
# Anthropic's plans; GitHub's, of which Copilot is one, and Copilot's own.
_OF_PLANS = (b"sk-ant-oat", b"gho_", b"ghu_", b"tid=")
_OF_PLANS_FIELDS = (b"chatgpt-account-id", b"copilot-integration-id")
# Beginnings of the hosts of servers at which people sign in.
_SIGN_IN = ("accounts.", "auth.", "id.", "login.", "oauth.", "sso.")
_claims = msgspec.json.Decoder(dict[str, msgspec.Raw])


def is_jwt(token: bytes) -> bool:
    """Whether a token has the form of one that says whose it is."""
    parts = token.split(b".", _JWT_PARTS)
    return len(parts) == _JWT_PARTS and parts[1].startswith(b"ey")


def read_claims(token: bytes) -> Mapping[str, msgspec.Raw]:
    """What a token (a JWT without its scheme) says of itself, in raw JSON; nothing where it is none."""
    if not is_jwt(token):
        return _NO_CLAIMS
    part = token.split(b".")[1]
    try:
        return _claims.decode(base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        return _NO_CLAIMS


def is_of_plan(headers: Headers) -> bool:
    """Whether a request is paid by a person's plan, with which nothing is asked that they did not ask.

    A token that has the form of one and cannot be read may be anybody's.
    """
    token = bare_credential(find_credential(headers))
    if token.startswith(_OF_PLANS) or any(find(headers, name) for name in _OF_PLANS_FIELDS):
        return True
    return is_jwt(token) and _is_signed_in(read_claims(token))


def _is_signed_in(claims: Mapping[str, msgspec.Raw]) -> bool:
    if not claims:
        return True
    try:
        issuer = msgspec.json.decode(claims.get("iss", b'""'), type=str)
        host = urlsplit(issuer).hostname or issuer
    except ValueError:  # no text, or an address that is none
        return True
    return host.lower().startswith(_SIGN_IN)
