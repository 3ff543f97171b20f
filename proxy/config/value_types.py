"""Types of values. Their errors say what is right and never repeat the value, which may be a secret."""

import os
import re
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass_environment  # type: ignore[attr-defined]

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, WithJsonSchema
from pydantic_core import PydanticCustomError

from proxy.wire.headers import is_loopback

AUTO = "auto"

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_SIZE = re.compile(r"(\d+)\s*([A-Za-z]*)")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(?:\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::[0-9]{1,5})?")
_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


class Section(BaseModel):
    """A section of the settings: frozen, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _read_size(value: object) -> object:
    if not isinstance(value, str):
        return value
    found = _SIZE.fullmatch(value.strip())
    if not found or found[2].upper() not in _UNITS:
        raise PydanticCustomError("size", 'must be a number of bytes, such as 1048576 or "64MiB"')
    return int(found[1]) * _UNITS[found[2].upper()]


def _read_auto(value: object) -> object:
    return None if value == AUTO else value


def _expand(value: Path) -> Path:
    try:
        path = value.expanduser()
        is_path = b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        is_path = False
    except RuntimeError:  # pathlib does not know the user of `~name`
        raise PydanticCustomError("path", "begins with the name of a user who is not known; write it out") from None
    if not is_path:
        raise PydanticCustomError("path", "must be a path; no path can have such a character")
    return path


def _read_secret_file(value: object) -> object:
    if value == "":
        return value
    if not isinstance(value, str | Path):
        raise PydanticCustomError("secret_file", "must be the path of a file that holds the secret")
    try:
        content = _expand(Path(value)).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise PydanticCustomError("secret_file", "names a file that cannot be read: {why}", {"why": reason}) from None
    if not content:
        raise PydanticCustomError("secret_file", "names an empty file; write the secret into it")
    return content


def _check_secret(value: SecretStr) -> SecretStr:
    secret = value.get_secret_value()
    if not secret.isascii() or not secret.isprintable() or " " in secret:
        raise PydanticCustomError("secret", "must be one word of ASCII characters; it is sent in a header")
    return value


def _check_base_url(value: str) -> str:
    try:
        parts = urlsplit(value)
        is_whole = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, a broken IPv6 address
        is_whole = False
    if not is_whole or not value.isascii() or not value.isprintable() or " " in value:
        raise PydanticCustomError("base_url", "must be an address such as https://api.openai.com/v1")
    if parts.username is not None or parts.password is not None:
        raise PydanticCustomError("base_url", "must not hold a user or password; set api_key instead")
    if "?" in value or "#" in value:
        raise PydanticCustomError("base_url", "must not have a query or fragment; paths are appended to it")
    return value.rstrip("/")


def _check_webhook_url(value: str) -> str:
    try:
        parts = urlsplit(value)
        is_whole = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_whole = False
    if not is_whole or not value.isascii() or not value.isprintable() or " " in value or "#" in value:
        raise PydanticCustomError("webhook_url", "must be an address such as https://hooks.example/palimpsest")
    if parts.username is not None or parts.password is not None:
        raise PydanticCustomError("webhook_url", "must not hold a user or password; requests are signed by the secret")
    return value


def _check_proxy(value: SecretStr) -> SecretStr:
    if value.get_secret_value() not in ("none", "env"):
        check_proxy_url(value.get_secret_value())
    return value


def check_proxy_url(url: str) -> None:
    """Raise PydanticCustomError unless a URL names an HTTP proxy."""
    try:
        parts = urlsplit(url)
        is_whole = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_whole = False
    if not is_whole or not url.isascii() or not url.isprintable() or " " in url:
        what = (
            "must be none, env, or the URL of an HTTP proxy such as http://proxy.example:3128; SOCKS is not supported"
        )
        raise PydanticCustomError("proxy", what)
    if parts.path.strip("/") or "?" in url or "#" in url:
        raise PydanticCustomError(
            "proxy", "must end after the proxy's host and port, as http://proxy.example:3128 does"
        )


def find_environment_proxy(base_url: str) -> str:
    """Return the URL of the proxy that the environment names for an address, or an empty string.

    The rules are curl's: HTTPS_PROXY or HTTP_PROXY by the scheme, else ALL_PROXY, lower case first; none for hosts in
    NO_PROXY. Loopback addresses never use a proxy, since there they would mean the proxy's own machine.
    """
    parts, proxies = urlsplit(base_url), getproxies_environment()
    if is_loopback(parts.hostname or "") or proxy_bypass_environment(parts.netloc, proxies):
        return ""
    found = proxies.get(parts.scheme) or proxies.get("all", "")
    return f"http://{found}" if found and "://" not in found else found


def _check_origin(value: str) -> str:
    if value != "*" and not _ORIGIN.fullmatch(value.lower()):
        raise PydanticCustomError("origin", 'must be an origin such as https://app.example, without a path, or "*"')
    return value.lower()


def _check_header_name(value: str) -> str:
    if not _HEADER_NAME.fullmatch(value):
        raise PydanticCustomError("header_name", "must be the name of a request header, such as x-conversation-id")
    return value.lower()


def _check_dotted(value: str) -> str:
    if value and not _DOTTED.fullmatch(value):
        raise PydanticCustomError("dotted", "must be the dotted path of a function, such as my_package.prompts.adapt")
    return value


Size = Annotated[int, BeforeValidator(_read_size), WithJsonSchema({"type": ["integer", "string"]})]
# None is written `auto`: the value depends on the model.
AutoTokens = Annotated[
    int | None,
    Field(ge=1000),
    BeforeValidator(_read_auto),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1000}, {"const": AUTO}]}),
]
AutoFraction = Annotated[
    float | None,
    Field(gt=0, le=1),
    BeforeValidator(_read_auto),
    WithJsonSchema({"anyOf": [{"type": "number", "exclusiveMinimum": 0, "maximum": 1}, {"const": AUTO}]}),
]
AutoMargin = Annotated[
    int | None,
    Field(ge=0),
    BeforeValidator(_read_auto),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"const": AUTO}]}),
]
Tokens = Annotated[int, Field(ge=0)]
Price = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
DirectoryPath = Annotated[Path, AfterValidator(_expand)]
OptionalDirectory = Annotated[str, AfterValidator(lambda value: str(_expand(Path(value))) if value else "")]
"""A path as a text, empty for none."""
Secret = Annotated[SecretStr, AfterValidator(_check_secret)]
SecretFile = Annotated[Secret, BeforeValidator(_read_secret_file), WithJsonSchema({"type": "string"})]
BaseUrl = Annotated[str, AfterValidator(_check_base_url)]
WebhookUrl = Annotated[str, AfterValidator(_check_webhook_url)]
ProxyUrl = Annotated[SecretStr, AfterValidator(_check_proxy)]
HeaderName = Annotated[str, AfterValidator(_check_header_name)]
HostName = Annotated[str, AfterValidator(str.lower)]
WebOrigin = Annotated[str, AfterValidator(_check_origin)]
TenantName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]{1,64}$")]
Fraction = Annotated[float, Field(ge=0, le=1)]
PositiveFraction = Annotated[float, Field(gt=0, le=1)]
DottedPath = Annotated[str, AfterValidator(_check_dotted)]
