"""How exchanges are carried and recorded. Rule: values only; who fills them in is above this room."""

from dataclasses import dataclass
from typing import Literal

from proxy.model.exchange import Mode


@dataclass(frozen=True, slots=True)
class EnginePolicy:
    """Defaults of every exchange.

    `commit_wait_ms` bounds both waits for durability (BEHAVIOUR B32b). `record_cap_bytes` is what is kept of one body.
    `on_failure`: what happens to calls while the log takes no writes. `session_headers` are request headers, besides
    the known ones, that name a conversation; `cache_bytes` bounds the bodies remembered to recognise repeated
    histories.
    """

    mode: Mode = "manage"
    commit_wait_ms: int = 250
    record_cap_bytes: int = 8 * 1024 * 1024
    on_failure: Literal["forward", "refuse"] = "forward"
    session_headers: tuple[str, ...] = ()
    cache_bytes: int = 64 * 1024 * 1024
