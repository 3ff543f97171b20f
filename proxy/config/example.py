"""The commented example file. Rule: written from the tree, so that it cannot say anything else than the tree."""

import json
import textwrap

from proxy.config.keys import SettingKey, list_keys

_HEAD = """\
Settings of palimpsest. Every key stands here with its default, commented out: remove the # in front of a key to set it.
Flags come before environment variables (PALIMPSEST_SECTION__KEY; lists as JSON), these before this file.
${NAME} is the value of an environment variable; ${NAME:-text} is text where it is not set.
Sizes are in bytes, or such as "64MiB". Check this file with: palimpsest config check FILE\
"""
_WIDTH = 118
_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def render_example() -> str:
    """A YAML file that sets nothing as it stands, and the defaults once every `#` before a key is removed."""
    lines = [line for paragraph in _HEAD.splitlines() for line in _comment(paragraph, "")]
    for key in list_keys():
        indent = "  " * (len(key.path) - 1)
        lines += ["", *_comment(key.description, indent)] if not indent else _comment(key.description, indent)
        lines.append(f"{indent}{_write(key)}")
    return "\n".join(lines) + "\n"


def write_default(key: SettingKey) -> str:
    """A key's default as YAML."""
    if key.path[-1].endswith("_bytes"):
        for size, unit in _UNITS:
            if key.default and key.default % size == 0:
                return f"{key.default // size}{unit}"
    return f"{key.default:g}" if isinstance(key.default, float) else json.dumps(key.default)


def _write(key: SettingKey) -> str:
    name = key.path[-1]
    if key.is_section:
        return f"{name}:"
    bullet = {"name": "- "}.get(name, "  ") if key.path[0] == "upstreams" else ""
    return f"#{bullet}{name}: {write_default(key)}"


def _comment(text: str, indent: str) -> list[str]:
    return [f"{indent}# {line}" for line in textwrap.wrap(text, _WIDTH - len(indent))]
