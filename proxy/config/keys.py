"""The keys of the tree, one by one. Rule: what the example and the README say is held against this."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from proxy.config.settings import Settings


@dataclass(frozen=True, slots=True)
class Key:
    """One key, or one section: `default` is as YAML would give it, None for a section."""

    path: tuple[str, ...]
    default: Any
    description: str
    is_section: bool


def list_keys() -> list[Key]:
    """All sections and keys in order, a section before its keys; `upstreams` stands for each of its elements."""
    return list(_walk(Settings, ()))


def name_keys() -> list[str]:
    """The paths of all sections and keys, joined by dots."""
    return [".".join(key.path) for key in list_keys()]


def _walk(model: type[BaseModel], above: tuple[str, ...]) -> Iterator[Key]:
    for name, field in model.model_fields.items():
        section = _find_section(field)
        path = (*above, name)
        if section is None:
            yield Key(path, _plain(field.default), field.description or "", is_section=False)
        else:
            yield Key(path, None, field.description or section.__doc__ or "", is_section=True)
            yield from _walk(section, path)


def _find_section(field: FieldInfo) -> type[BaseModel] | None:
    for kind in (field.annotation, *get_args(field.annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def _plain(default: Any) -> Any:
    if isinstance(default, SecretStr):
        return default.get_secret_value()
    if isinstance(default, tuple):
        return list(default)
    return default if isinstance(default, str | int | float | dict) else str(default)
