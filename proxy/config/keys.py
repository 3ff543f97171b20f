"""The keys of the tree, one by one. Rule: what the example and the README say is held against this."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeGuard, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from proxy.config.kinds import AUTO
from proxy.config.settings import Settings


@dataclass(frozen=True, slots=True)
class SettingKey:
    """One key, or one section: `default` is as YAML would give it, None for a section."""

    path: tuple[str, ...]
    default: Any
    description: str
    is_section: bool


def list_keys() -> list[SettingKey]:
    """All sections and keys in order, a section before its keys; `upstreams` stands for each of its elements."""
    return list(_walk(Settings, ()))


def name_keys() -> list[str]:
    """The paths of all sections and keys, joined by dots; those of mapped sections too (`pricing.MODEL.input`)."""
    mapped = [key for name, section in _list_maps() for key in _walk(section, (name, "MODEL"))]
    return [".".join(key.path) for key in (*list_keys(), *mapped)]


def _list_maps() -> Iterator[tuple[str, type[BaseModel]]]:
    for name, field in Settings.model_fields.items():
        if get_origin(field.annotation) is dict:
            yield from ((name, kind) for kind in get_args(field.annotation) if _is_section(kind))


def _walk(model: type[BaseModel], above: tuple[str, ...]) -> Iterator[SettingKey]:
    for name, field in model.model_fields.items():
        section = _find_section(field)
        path = (*above, name)
        if section is None:
            yield SettingKey(path, _plain(field.default), field.description or "", is_section=False)
        else:
            yield SettingKey(path, None, field.description or section.__doc__ or "", is_section=True)
            yield from _walk(section, path)


def _find_section(field: FieldInfo) -> type[BaseModel] | None:
    if get_origin(field.annotation) is dict:
        return None  # its keys are the user's own
    return next((kind for kind in (field.annotation, *get_args(field.annotation)) if _is_section(kind)), None)


def _is_section(kind: object) -> TypeGuard[type[BaseModel]]:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _plain(default: Any) -> Any:
    if isinstance(default, SecretStr):
        return default.get_secret_value()
    if default is None:
        return AUTO
    if isinstance(default, tuple):
        return list(default)
    return default if isinstance(default, str | int | float | dict) else str(default)
