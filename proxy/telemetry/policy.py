"""How the server logs, and where it sends traces."""

from dataclasses import dataclass
from typing import Literal

Level = Literal["debug", "info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class LogPolicy:
    """What is written to standard error, and in which form."""

    level: Level = "info"
    format: Literal["text", "json"] = "text"
    access: bool = False  # one line for each request
