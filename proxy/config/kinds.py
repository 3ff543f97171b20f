"""Kinds of values settings share. Rule: a refusal says what is right and never repeats the value, perhaps a secret."""

import os
import re
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, WithJsonSchema
from pydantic_core import PydanticCustomError

AUTO = "auto"

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_SIZE = re.compile(r"(\d+)\s*([A-Za-z]*)")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(?:\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::[0-9]{1,5})?")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


class Section(BaseModel):
    """A part of the tree: frozen, and a key it does not know is an error."""

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
    except RuntimeError:  # how pathlib says that nobody has this name
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
        raise PydanticCustomError("secret", "must be one word of ASCII characters; it travels in a header field")
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


def _check_origin(value: str) -> str:
    if value != "*" and not _ORIGIN.fullmatch(value.lower()):
        raise PydanticCustomError("origin", 'must be an origin such as https://app.example, without a path, or "*"')
    return value.lower()


def _check_header_name(value: str) -> str:
    if not _HEADER_NAME.fullmatch(value):
        raise PydanticCustomError("header_name", "must be the name of a request header, such as x-conversation-id")
    return value.lower()


Size = Annotated[int, BeforeValidator(_read_size), WithJsonSchema({"type": ["integer", "string"]})]
# None is written `auto`: what it comes to depends on the model.
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
Tokens = Annotated[int, Field(ge=0)]
Price = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
DirectoryPath = Annotated[Path, AfterValidator(_expand)]
Secret = Annotated[SecretStr, AfterValidator(_check_secret)]
SecretFile = Annotated[Secret, BeforeValidator(_read_secret_file), WithJsonSchema({"type": "string"})]
BaseUrl = Annotated[str, AfterValidator(_check_base_url)]
HeaderName = Annotated[str, AfterValidator(_check_header_name)]
HostName = Annotated[str, AfterValidator(str.lower)]
WebOrigin = Annotated[str, AfterValidator(_check_origin)]
TenantName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]{1,64}$")]
