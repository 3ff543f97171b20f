"""What a setting may hold: the annotations by which `config` reads, checks and describes the fields of policies.

A section of the settings is the policy of a package: a frozen dataclass, whose fields have their limits here and their
meaning in the text below them. The errors say what is right and never repeat the value, which may be a secret.
"""

import re
from collections.abc import Callable
from typing import Annotated, Any
from urllib.parse import SplitResult, urlsplit

AUTO = "auto"

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_SIZE = re.compile(r"(\d+)\s*([A-Za-z]*)")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(?:\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::[0-9]{1,5})?")
_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


class Rule:
    """A rule in the annotation of a setting: limits of its value, named as JSON Schema's short forms are (`ge`, `gt`).

    `read` is given what a source states, `check` a value of the right type; both return the value, or raise ValueError.
    `show` changes the JSON Schema. The two methods are those by which pydantic asks an annotation: only `config` does.
    """

    def __init__(
        self,
        *,
        read: Callable[[Any], Any] | None = None,
        check: Callable[[Any], Any] | None = None,
        show: Callable[[Any], Any] = lambda schema: schema,
        **limits: object,
    ) -> None:
        self._functions = {"function-before": read, "function-after": check}
        self._show, self._limits = show, limits

    def __get_pydantic_core_schema__(self, kind: object, handler: Callable[[Any], Any]) -> Any:
        """Return how a value is validated."""
        schema = inner = handler(kind)
        while "schema" in inner:  # what an inner rule reads or checks
            inner = inner["schema"]
        inner |= self._limits
        for name, function in self._functions.items():
            if function:
                schema = {"type": name, "function": {"type": "no-info", "function": function}, "schema": schema}
        return schema

    def __get_pydantic_json_schema__(self, schema: object, handler: Callable[[Any], Any]) -> Any:
        """Return how a value is described."""
        return self._show(handler(schema))


def _read_size(value: object) -> object:
    if not isinstance(value, str):
        return value
    found = _SIZE.fullmatch(value.strip())
    if not found or found[2].upper() not in _UNITS:
        raise ValueError('must be a number of bytes, such as 1048576 or "64MiB"')
    return int(found[1]) * _UNITS[found[2].upper()]


def check_secret(value: str) -> str:
    """Return a secret. Raises ValueError unless a header can hold it."""
    if not value.isascii() or not value.isprintable() or " " in value:
        raise ValueError("must be one word of ASCII characters; it is sent in a header")
    return value


def _split_address(url: str, what: str) -> SplitResult:
    """Return the parts of an HTTP address. Raises ValueError with `what` it must be."""
    try:
        parts = urlsplit(url)
        is_whole = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, a broken IPv6 address
        is_whole = False
    if not is_whole or not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError(what)
    return parts


def _check_base_url(value: str) -> str:
    parts = _split_address(value, "must be an address such as https://api.openai.com/v1")
    if parts.username is not None or parts.password is not None:
        raise ValueError("must not hold a user or password; set api_key instead")
    if "?" in value or "#" in value:
        raise ValueError("must not have a query or fragment; paths are appended to it")
    return value.rstrip("/")


def _check_webhook_url(value: str) -> str:
    what = "must be an address such as https://hooks.example/palimpsest"
    parts = _split_address(value, what)
    if "#" in value:
        raise ValueError(what)
    if parts.username is not None or parts.password is not None:
        raise ValueError("must not hold a user or password; requests are signed by the secret")
    return value


def check_proxy(value: str) -> str:
    """Return the address of an HTTP proxy, or `none` or `env`. Raises ValueError for anything else."""
    if value in {"none", "env"}:
        return value
    what = "must be none, env, or the URL of an HTTP proxy such as http://proxy.example:3128; SOCKS is not supported"
    if _split_address(value, what).path.strip("/") or "?" in value or "#" in value:
        raise ValueError("must end after the proxy's host and port, as http://proxy.example:3128 does")
    return value


def _check_origin(value: str) -> str:
    if value != "*" and not _ORIGIN.fullmatch(value.lower()):
        raise ValueError('must be an origin such as https://app.example, without a path, or "*"')
    return value.lower()


def _check_header_name(value: str) -> str:
    if not _HEADER_NAME.fullmatch(value):
        raise ValueError("must be the name of a request header, such as x-conversation-id")
    return value.lower()


def _check_dotted(value: str) -> str:
    if value and not _DOTTED.fullmatch(value):
        raise ValueError("must be the dotted path of a function, such as my_package.prompts.adapt")
    return value


# None is written `auto`: the value depends on the model.
_AUTO = Rule(
    read=lambda value: None if value == AUTO else value,
    show=lambda schema: {"anyOf": [schema["anyOf"][0], {"const": AUTO}]},
)
_UNTOLD = {"type": "function-plain", "function": lambda value: value and "**********", "when_used": "json"}
UNTOLD = Rule(serialization=_UNTOLD)
"""For what is a secret: it stands in no settings that are written as JSON."""
_HIDDEN = Rule(show=lambda schema: schema | {"format": "password", "writeOnly": True}, serialization=_UNTOLD)

Tokens = Annotated[int, Rule(ge=0)]
Small = Annotated[int, Rule(ge=0, le=100)]
AutoTokens = Annotated[Annotated[int, Rule(ge=1000)] | None, _AUTO]
AutoMargin = Annotated[Tokens | None, _AUTO]
Fraction = Annotated[float, Rule(ge=0, le=1)]
PositiveFraction = Annotated[float, Rule(gt=0, le=1)]
AutoFraction = Annotated[PositiveFraction | None, _AUTO]
Price = Annotated[float, Rule(ge=0, allow_inf_nan=False)]
Pause = Price
"""Seconds, perhaps none."""
Seconds = Annotated[float, Rule(gt=0, allow_inf_nan=False)]
Size = Annotated[int, Rule(ge=0), Rule(read=_read_size, show=lambda _: {"type": ["integer", "string"]})]
"""Bytes, as a number or with a unit."""
Secret = Annotated[str, Rule(check=check_secret), _HIDDEN]
BaseUrl = Annotated[str, Rule(check=_check_base_url)]
WebhookUrl = Annotated[str, Rule(check=_check_webhook_url)]
ProxyUrl = Annotated[str, Rule(check=check_proxy), _HIDDEN]
HeaderName = Annotated[str, Rule(check=_check_header_name)]
HostName = Annotated[str, Rule(check=str.lower)]
WebOrigin = Annotated[str, Rule(check=_check_origin)]
Name = Annotated[str, Rule(pattern=r"^[A-Za-z0-9._:-]{1,64}$")]
DottedPath = Annotated[str, Rule(check=_check_dotted)]
