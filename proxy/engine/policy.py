"""Settings of the engine as plain values: tenants, providers, and the policy of exchanges."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from proxy.model.exchange import Mode

RECORD_CAP_BYTES = 8 * 1024 * 1024

CacheKind = Literal["prefix", "breakpoints", "units", "local"]


@dataclass(frozen=True, slots=True)
class Principal:
    """A tenant by name: a caller with one of `keys`, or, with `header`, one with the same value in that header."""

    keys: tuple[str, ...] = field(default=(), repr=False)
    header: str = ""


@dataclass(frozen=True, slots=True)
class Provider:
    """The facts about an upstream that managing needs: its host, how its cache works (None: as known of `host`).

    `summary_role` is the role of the messages that replace older ones. With `strict_alternation` two messages of one
    role never follow each other, and it is the user. `has_own_key`: requests carry a key of the settings, whoever
    calls.
    """

    host: str = ""
    cache: CacheKind | None = None
    summary_role: Literal["user", "assistant"] = "user"
    strict_alternation: bool = False
    has_own_key: bool = False


@dataclass(frozen=True, slots=True)
class EnginePolicy:
    """Defaults of every exchange.

    `commit_wait_ms` bounds both waits for durability (BEHAVIOUR B32b). `record_cap_bytes` is what one body may bring to
    the log; it decides nothing else.
    `on_failure`: what happens to calls while the log takes no writes. `session_headers` are request headers, besides
    the known ones, that name a conversation; `infer`: whether those without a name are recognised by their content.
    `cache_bytes` bounds what is remembered of conversations: half of it bodies, by which repeated histories are
    recognised, an eighth nodes, an eighth findings, a quarter all else that managing knows; what messages count takes a
    sixth of it on top, what waits for the worker process half. `principals` are tenants by name. `own_keys` are the
    upstreams' keys, which are never recorded. A call waits `hard_wait_seconds` at most for what only the log knows of
    its session, as long for its plan and a summary that is being made, and as long until its epoch is in the log.
    """

    mode: Mode = "manage"
    commit_wait_ms: int = 250
    record_cap_bytes: int = RECORD_CAP_BYTES
    on_failure: Literal["forward", "refuse"] = "forward"
    session_headers: tuple[str, ...] = ()
    infer: bool = True
    cache_bytes: int = 64 * 1024 * 1024
    principals: Mapping[str, Principal] = field(default_factory=dict)
    own_keys: tuple[bytes, ...] = field(default=(), repr=False)
    hard_wait_seconds: float = 2.0
