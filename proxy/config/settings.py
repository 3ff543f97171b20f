"""The settings tree. Rule: each key has a meaning, a unit and a default; defaults come from the rooms' own policies."""

from pathlib import Path
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, SettingsConfigDict

from proxy.config.budgeting import BudgetSettings, FilesSettings, PriceSettings, PruningSettings
from proxy.config.compacting import CompactionSettings
from proxy.config.kinds import (
    AutoTokens,
    BaseUrl,
    DirectoryPath,
    HeaderName,
    HostName,
    ProxyUrl,
    Seconds,
    Secret,
    SecretFile,
    Section,
    Size,
    TenantName,
    WebOrigin,
    check_proxy_url,
    find_environment_proxy,
)
from proxy.config.problems import ConfigError, Problem
from proxy.context.budget import BudgetPolicy
from proxy.context.conversation import BuilderPolicy
from proxy.engine.compaction.policy import CompactionPolicy
from proxy.engine.policy import EnginePolicy, Principal, Provider
from proxy.model.card import Offer
from proxy.model.exchange import Mode
from proxy.server.policy import ServerPolicy
from proxy.store.policy import Durability, StorePolicy
from proxy.upstream.policy import Auth, UpstreamPolicy
from proxy.wire.headers import is_loopback

_SERVER = ServerPolicy()
_ENGINE = EnginePolicy()
_STORE = StorePolicy(Path())
_PROVIDER = Provider()
_UPSTREAM = UpstreamPolicy("openai", "https://api.openai.com/v1")
_LOG_FILE = "log.db"


def _refuse_both(given: SecretStr, from_file: SecretStr, name: str) -> None:
    if given.get_secret_value() and from_file.get_secret_value():
        raise PydanticCustomError("secret", "{name} and {name}_file are both set; keep one of them", {"name": name})


def _read_principal(known_by: tuple[SecretStr, ...] | str) -> Principal:
    if isinstance(known_by, str):
        return Principal(header=known_by)
    return Principal(keys=tuple(key.get_secret_value() for key in known_by))


def _reveal(given: SecretStr, from_file: SecretStr) -> str:
    return from_file.get_secret_value() or given.get_secret_value()


class ServerSettings(Section):
    """The way in: address, caps, time limits, and who may reach the management pages."""

    host: str = Field(_SERVER.host, description="Address to listen on. 0.0.0.0: every interface, so set admin_token.")
    port: int = Field(_SERVER.port, ge=0, le=65535, description="Port to listen on. 0: any that is free.")
    allowed_hosts: tuple[HostName, ...] = Field(
        _SERVER.allowed_hosts,
        description='Names, besides loopback and host, under which a browser may reach the pages below /-/. "*": any.',
    )
    allowed_origins: tuple[WebOrigin, ...] = Field(
        _SERVER.allowed_origins,
        description=(
            "Origins, besides loopback, of web pages that may call where a key of the settings is spent or the call "
            'carries none, such as ["https://app.example"]. "*": any.'
        ),
    )
    require_tenant: bool = Field(
        default=False, description="Whether only keys that tenants lists may call; anybody else gets 401."
    )
    open_to_network: bool = Field(
        default=False,
        description="Listen beyond loopback even where whoever reaches the port spends an upstream's api_key.",
    )
    max_body_bytes: Size = Field(
        _SERVER.max_body_bytes, ge=1024, description="Largest request body on recorded paths; bytes. Others stream."
    )
    max_buffered_bytes: Size = Field(
        _SERVER.max_buffered_bytes,
        ge=1024,
        description=(
            "Memory for the request bodies of all calls under way on recorded paths; bytes. A body that finds no room "
            "waits for body_timeout, then gets 503. Bodies above 1 MiB may take three quarters of it."
        ),
    )
    max_header_bytes: Size = Field(
        _SERVER.max_header_bytes, ge=1024, description="Largest request line and header fields together; bytes."
    )
    header_timeout: Seconds = Field(
        _SERVER.header_timeout, description="How long the head of a request may take; seconds."
    )
    body_timeout: Seconds = Field(_SERVER.body_timeout, description="How long a request body may be silent; seconds.")
    body_min_rate: int = Field(
        _SERVER.body_min_rate,
        ge=0,
        description=(
            "Slowest that a request body may come, once it has taken body_timeout; bytes a second on average. "
            "0: however slow."
        ),
    )
    stall_timeout: Seconds = Field(
        _SERVER.stall_timeout, description="How long a client may take nothing of its answer; seconds."
    )
    drain_seconds: float = Field(
        _SERVER.drain_seconds,
        ge=0,
        allow_inf_nan=False,
        description="How long calls under way may go on after a stop signal; seconds.",
    )
    admin_token: Secret = Field(
        SecretStr(_SERVER.admin_token),
        description="Secret for the pages and API below /-/. Empty: one is made and kept in the data directory.",
    )
    admin_token_file: SecretFile = Field(
        SecretStr(""), description="Path of a file that holds admin_token, in its place."
    )

    @model_validator(mode="after")
    def _check_secret(self) -> Self:
        _refuse_both(self.admin_token, self.admin_token_file, "admin_token")
        return self


class UpstreamSettings(Section):
    """One provider's server."""

    name: str = Field(
        _UPSTREAM.name,
        pattern=r"^[A-Za-z0-9._:-]{1,64}$",
        description="Name in the log and in metrics; letters, digits and . _ : -, unique.",
    )
    base_url: BaseUrl = Field(_UPSTREAM.base_url, description="Address as an SDK takes it, usually ending in /v1.")
    api_key: Secret = Field(
        SecretStr(_UPSTREAM.api_key),
        description="Key that takes the place of the client's own. Empty: the client's key goes on untouched.",
    )
    api_key_file: SecretFile = Field(SecretStr(""), description="Path of a file that holds api_key, in its place.")
    models: tuple[str, ...] = Field(
        _UPSTREAM.models,
        description='Names or patterns of the models that go here, such as ["gpt-*"]. Empty: any.',
    )
    auth: Auth = Field(
        _UPSTREAM.auth,
        description="Where api_key goes. bearer: the field Authorization; x-api-key: that field; none: nowhere.",
    )
    connect_timeout: Seconds = Field(_UPSTREAM.connect_timeout, description="How long a connection may take; seconds.")
    idle_timeout: Seconds = Field(
        _UPSTREAM.idle_timeout, description="How long the upstream may be silent before or inside an answer; seconds."
    )
    window: AutoTokens = Field(None, description="Tokens that its models' contexts hold. auto: as known of each model.")
    cache: Literal["auto", "prefix", "breakpoints", "units", "local"] = Field(
        "auto",
        description=(
            "How its prompt cache works. prefix: whatever begins alike; breakpoints: up to marks in the request; "
            "units: what was stored before; local: the memory of one machine. auto: as known of the provider."
        ),
    )
    proxy: ProxyUrl = Field(
        SecretStr(_UPSTREAM.proxy or "none"),
        description=(
            "HTTP proxy between here and the upstream, such as a company's. none: none; env: the one that HTTPS_PROXY, "
            "HTTP_PROXY, ALL_PROXY and NO_PROXY name; else its URL, as in http://user:password@proxy.example:3128."
        ),
    )
    summary_role: Literal["user", "assistant"] = Field(
        _PROVIDER.summary_role,
        description="Who says what stands in place of older messages; the user wherever strict_alternation is set.",
    )
    strict_alternation: bool = Field(
        _PROVIDER.strict_alternation,
        description="Whether it refuses two messages of one role in a row, as some chat templates do.",
    )

    @model_validator(mode="after")
    def _check_secret(self) -> Self:
        _refuse_both(self.api_key, self.api_key_file, "api_key")
        return self

    @model_validator(mode="after")
    def _check_environment_proxy(self) -> Self:
        try:
            check_proxy_url(self._find_proxy() or "http://none")
        except PydanticCustomError as error:
            what = "proxy is env, and the proxy that the environment names for this upstream cannot be used: it {why}"
            raise PydanticCustomError("proxy", what, {"why": error.message()}) from None
        return self

    def _find_proxy(self) -> str:
        setting = self.proxy.get_secret_value()
        return find_environment_proxy(self.base_url) if setting == "env" else "" if setting == "none" else setting

    def policy(self) -> UpstreamPolicy:
        """What the upstream room is given."""
        return UpstreamPolicy(
            name=self.name,
            base_url=self.base_url,
            api_key=_reveal(self.api_key, self.api_key_file),
            models=self.models,
            auth=self.auth,
            connect_timeout=self.connect_timeout,
            idle_timeout=self.idle_timeout,
            proxy=self._find_proxy(),
        )

    def provider(self) -> Provider:
        """What the engine is told of the upstream."""
        return Provider(
            host=urlsplit(self.base_url).hostname or "",
            cache=None if self.cache == "auto" else self.cache,
            summary_role=self.summary_role,
            strict_alternation=self.strict_alternation,
            has_own_key=bool(_reveal(self.api_key, self.api_key_file)) and self.auth != "none",
        )


class SessionsSettings(Section):
    """How calls are told apart into conversations."""

    headers: tuple[HeaderName, ...] = Field(
        _ENGINE.session_headers,
        description="Request headers, besides the known ones, whose value names the conversation.",
    )
    infer: bool = Field(
        _ENGINE.infer,
        description="Recognise conversations that no id names by their content. Off: each such call stands alone.",
    )
    cache_bytes: Size = Field(
        _ENGINE.cache_bytes,
        ge=0,
        description="Memory for what is known of the newest conversations, half of it request bodies; bytes.",
    )


class StoreSettings(Section):
    """The log: how hard it holds on to things, and how large it may grow."""

    durability: Durability = Field(
        _STORE.durability,
        description="normal: survives a killed process; full: survives a power loss too, and waits for the disk.",
    )
    on_failure: Literal["forward", "refuse"] = Field(
        _ENGINE.on_failure,
        description="While the log takes no writes: forward calls and keep records in memory, or refuse them with 503.",
    )
    commit_wait_ms: int = Field(
        _ENGINE.commit_wait_ms,
        ge=0,
        description="Longest time an answer waits for its record to be durable; milliseconds.",
    )
    spool_bytes: Size = Field(
        _STORE.spool_bytes, ge=0, description="Memory for records that cannot be written yet; bytes."
    )
    record_cap_bytes: Size = Field(
        _ENGINE.record_cap_bytes,
        ge=0,
        description="How much one body may add to the log; bytes. Above it: its head and digest.",
    )
    max_bytes: Size = Field(
        _STORE.max_bytes, ge=0, description="Size of the log at which it takes no more writes; bytes. 0: no cap."
    )

    @model_validator(mode="after")
    def _check_room(self) -> Self:
        if self.spool_bytes < 2 * self.record_cap_bytes:
            what = "spool_bytes must be at least twice record_cap_bytes, or large records never fit"
            raise PydanticCustomError("room", what)
        return self


class Settings(BaseSettings):
    """Everything that can be set. Build it with `load_settings`, which reads all sources and names each error's."""

    model_config = SettingsConfigDict(
        env_prefix="PALIMPSEST_", env_nested_delimiter="__", env_ignore_empty=True, extra="forbid", frozen=True
    )

    mode: Mode = Field(
        _ENGINE.mode,
        description="manage: calls stay below the ceiling; observe: none is changed; bypass: no body is read either.",
    )
    data: DirectoryPath = Field(
        Path("~/.palimpsest"),
        validate_default=True,
        description="Directory of the log and of the generated admin token.",
    )
    server: ServerSettings = ServerSettings()
    upstreams: tuple[UpstreamSettings, ...] = Field(
        (UpstreamSettings(),),
        description="Providers' servers. A call goes to the first whose models match, else the first without models.",
    )
    sessions: SessionsSettings = SessionsSettings()
    store: StoreSettings = StoreSettings()
    budget: BudgetSettings = BudgetSettings()
    pruning: PruningSettings = PruningSettings()
    files: FilesSettings = FilesSettings()
    compaction: CompactionSettings = CompactionSettings()
    pricing: dict[str, PriceSettings] = Field(
        {},
        description=(
            "What models cost, by their name or a pattern; the first that matches counts. Money per million tokens, as "
            "price lists have it: input, output, cached (input read from the cache), written (to the cache). "
            "retention_seconds: how long the cache keeps what it has. Without: as known of each model."
        ),
    )
    tenants: dict[TenantName, tuple[Secret, ...] | HeaderName] = Field(
        {},
        description=(
            "Who shares conversations, by name: a list of API keys that are one tenant, or the name of a request "
            "header of which each value is one. Without: everybody by their own key or token."
        ),
    )

    @field_validator("upstreams")
    @classmethod
    def _check_upstreams(cls, upstreams: tuple[UpstreamSettings, ...]) -> tuple[UpstreamSettings, ...]:
        if not upstreams:
            raise PydanticCustomError("upstreams", "must hold at least one upstream")
        names = [upstream.name for upstream in upstreams]
        for name in names:
            if names.count(name) > 1:
                raise PydanticCustomError("name", 'two are named "{name}"; names are unique', {"name": name})
        return upstreams

    @model_validator(mode="after")
    def _check_receivers(self) -> Self:
        names = {upstream.name for upstream in self.upstreams}
        for name in self.compaction.may_receive:
            if name not in names:
                what = 'compaction.may_receive names "{name}", which is none of the upstreams'
                raise PydanticCustomError("may_receive", what, {"name": name})
        return self

    @field_validator("tenants")
    @classmethod
    def _check_tenants(cls, tenants: dict[str, tuple[SecretStr, ...] | str]) -> dict[str, tuple[SecretStr, ...] | str]:
        owners: dict[str, str] = {}
        for name, known_by in tenants.items():
            for key in () if isinstance(known_by, str) else known_by:
                if owners.setdefault(key.get_secret_value(), name) != name:
                    raise PydanticCustomError(
                        "tenants", 'one of the keys of "{name}" is another\'s, too', {"name": name}
                    )
        return tenants

    @model_validator(mode="after")
    def _check_required_tenant(self) -> Self:
        if self.server.require_tenant and not self._list_tenant_keys():
            what = "server.require_tenant lets nobody in, for tenants has no keys; list them there"
            raise PydanticCustomError("require_tenant", what)
        return self

    @property
    def _has_own_key(self) -> bool:
        return any(provider.has_own_key for provider in self.providers().values())

    def _list_tenant_keys(self) -> tuple[str, ...]:
        """The keys of all tenants; a header by which some are told apart is no key, for anybody can send it."""
        named = (known_by for known_by in self.tenants.values() if not isinstance(known_by, str))
        return tuple(key.get_secret_value() for keys in named for key in keys)

    def check_network(self, address: str) -> None:
        """Raises ConfigError where serving at an address would give whoever reaches it an upstream's key to spend."""
        server = self.server
        if not self._has_own_key or is_loopback(address) or server.require_tenant or server.open_to_network:
            return
        what = (
            f"at {address} everybody on that network could spend the api_key of an upstream. Listen on 127.0.0.1; "
            "or list the callers' keys in tenants and set server.require_tenant: true; or set no api_key and have each "
            "client send its own; or, where nobody else reaches the port, set server.open_to_network: true"
        )
        raise ConfigError([Problem("server.host", what)])

    def server_policy(self) -> ServerPolicy:
        """What the server room is given."""
        server = self.server
        return ServerPolicy(
            host=server.host,
            port=server.port,
            admin_token=_reveal(server.admin_token, server.admin_token_file),
            allowed_hosts=server.allowed_hosts,
            max_body_bytes=server.max_body_bytes,
            max_buffered_bytes=server.max_buffered_bytes,
            max_header_bytes=server.max_header_bytes,
            header_timeout=server.header_timeout,
            body_timeout=server.body_timeout,
            body_min_rate=server.body_min_rate,
            stall_timeout=server.stall_timeout,
            drain_seconds=server.drain_seconds,
            allowed_origins=server.allowed_origins,
            has_own_key=self._has_own_key,
            tenant_keys=self._list_tenant_keys() if server.require_tenant else None,
        )

    def engine_policy(self) -> EnginePolicy:
        """What the engine is given."""
        return EnginePolicy(
            mode=self.mode,
            commit_wait_ms=self.store.commit_wait_ms,
            hard_wait_seconds=self.compaction.hard_wait_seconds,
            record_cap_bytes=self.store.record_cap_bytes,
            on_failure=self.store.on_failure,
            session_headers=self.sessions.headers,
            infer=self.sessions.infer,
            cache_bytes=self.sessions.cache_bytes,
            principals={name: _read_principal(known_by) for name, known_by in self.tenants.items()},
        )

    def store_policy(self) -> StorePolicy:
        """What the store is given."""
        return StorePolicy(
            path=self.data / _LOG_FILE,
            durability=self.store.durability,
            spool_bytes=self.store.spool_bytes,
            max_bytes=self.store.max_bytes,
            must_write=self.store.on_failure == "refuse",
        )

    def upstream_policies(self) -> tuple[UpstreamPolicy, ...]:
        """What the upstream room is given, in order of preference."""
        return tuple(upstream.policy() for upstream in self.upstreams)

    def providers(self) -> dict[str, Provider]:
        """What the engine is told of each upstream, by its name."""
        return {upstream.name: upstream.provider() for upstream in self.upstreams}

    def budget_policy(self) -> BudgetPolicy:
        """How much may be sent."""
        return BudgetPolicy(**self.budget.model_dump())

    def builder_policy(self) -> BuilderPolicy:
        """What may be taken out of a context."""
        return BuilderPolicy(
            is_pruning=self.pruning.enabled,
            protect_tokens=self.pruning.protect_tokens,
            minimum_tokens=self.pruning.minimum_tokens,
            protected_tools=self.pruning.protected_tools,
            inline_tokens=self.files.inline_tokens,
            has_outlines=self.files.outline,
        )

    def compaction_policy(self) -> CompactionPolicy:
        """Who makes summaries, of what, and at what cost."""
        return CompactionPolicy(**self.compaction.model_dump())

    def stated_windows(self) -> dict[str, Offer]:
        """What is stated of upstreams' models, by the upstream's name."""
        return {upstream.name: Offer(window=upstream.window) for upstream in self.upstreams if upstream.window}

    def stated_prices(self) -> dict[str, Offer]:
        """What is stated of models, by their pattern."""
        return {pattern: price.offer() for pattern, price in self.pricing.items()}

    def with_idle_timeout(self, seconds: float) -> Self:
        """The same settings with one idle time for every upstream."""
        upstreams = tuple(upstream.model_copy(update={"idle_timeout": seconds}) for upstream in self.upstreams)
        return self.model_copy(update={"upstreams": upstreams})
