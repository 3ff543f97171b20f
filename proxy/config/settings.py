"""The settings as one tree, checks that concern several sections, and what the packages are given of them.

A section is the policy of a package: a frozen dataclass, whose fields have their meaning below them (`reference`).
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, ValidationError, WrapValidator, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from proxy.config.errors import ConfigError, Problem, list_problems
from proxy.config.value_types import DirectoryPath, OptionalDirectory, find_environment_proxy
from proxy.context.budget import BudgetPolicy, ModelPolicy
from proxy.context.conversation import BuilderPolicy, FilesPolicy, PruningPolicy, SnapshotPolicy, TurnsPolicy
from proxy.engine.compaction.policy import CompactionPolicy
from proxy.engine.events.webhooks import WebhookPolicy
from proxy.engine.history.policy import NudgePolicy
from proxy.engine.policy import (
    CredentialPlace,
    DoomLoopSettings,
    EnginePolicy,
    OperatorPolicy,
    Principal,
    Provider,
    SessionsSettings,
    ShadowPolicy,
    StoreSettings,
)
from proxy.engine.recall.policy import RecallPolicy
from proxy.model.card import Offer, Prices, Rates
from proxy.model.epoch import Strategy
from proxy.model.exchange import Mode
from proxy.model.settings import HeaderName, Name, Price, Seconds, Secret, check_proxy
from proxy.server.policy import ServerPolicy, ServerSettings
from proxy.store.policy import StorePolicy
from proxy.telemetry.policy import LogPolicy, TelemetryPolicy
from proxy.upstream.policy import NO_PROXY, UpstreamPolicy
from proxy.wire.headers import is_loopback

_LOG_FILE = "log.db"
_MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class MemorySettings:
    """What is remembered of sessions: traces, reports on turns, and facts."""

    mirror: OptionalDirectory = ""
    """Directory in which the memory of each session is kept current as JSONL files. Empty: none."""


@dataclass(frozen=True, slots=True)
class EventsSettings:
    """Telling other programs what happens."""

    webhooks: tuple[WebhookPolicy, ...] = ()
    """Receivers of events (docs/events.md), a list. url: the address to which each event is posted. secret, or
    secret_file: whsec_ and 24 to 64 random bytes in base64, by which requests are signed. events: the types that it
    gets (all). timeout: longest time for its response (10 s). most_waiting: most events that wait for it (1,000);
    what comes after is dropped."""


@dataclass(frozen=True, slots=True)
class PriceSettings:
    """What the tokens of a model cost; currency units per million."""

    input: Price
    """Input that is not read from the cache."""
    output: Price | None = None
    """Output. Without: five times the input."""
    cached: Price | None = None
    """Input read from the cache. Without: a tenth of the input."""
    written: Price | None = None
    """Input written to the cache. Without: the price of input."""
    retention_seconds: Seconds | None = None
    """How long the cache keeps an entry after its last use; seconds. Without: unknown."""

    def offer(self) -> Offer:
        """Return the prices per token."""
        rates = Rates(
            input=self.input / _MILLION,
            output=(5 * self.input if self.output is None else self.output) / _MILLION,
            cached=(0.1 * self.input if self.cached is None else self.cached) / _MILLION,
            written=(self.input if self.written is None else self.written) / _MILLION,
        )
        return Offer(prices=Prices(rates), retention=self.retention_seconds)


def _resolve(upstream: UpstreamPolicy) -> UpstreamPolicy:
    """Return an upstream as it is reached now. Raises ValueError for a proxy of the environment that is none.

    It has the key of a file, and the proxy that the environment names.
    """
    proxy = upstream.proxy
    if proxy == "env":
        proxy = find_environment_proxy(upstream.base_url) or NO_PROXY
        try:
            check_proxy(proxy)
        except ValueError as error:
            what = "proxy is env, and the proxy that the environment names for this upstream cannot be used: it"
            raise ValueError(f"{what} {error}") from None
    return replace(upstream, proxy=proxy, api_key=upstream.api_key_file or upstream.api_key, api_key_file="")


def _read_upstream(stated: Any, read: Callable[[Any], UpstreamPolicy]) -> UpstreamPolicy:
    """Return an upstream, without an address where litellm is to know it. Raises ValueError."""
    is_known = isinstance(stated, dict) and stated.get("kind") == "litellm" and not stated.get("base_url")
    if is_known:
        stated = {key: value for key, value in stated.items() if key != "base_url"}
    upstream = read(stated)
    if is_known:
        upstream = replace(upstream, base_url="")
    upstream.check()
    _resolve(upstream)
    return upstream


class Settings(BaseSettings):
    """Everything that can be set. `load_settings` builds it from all sources, and names the source of each error."""

    model_config = SettingsConfigDict(
        env_prefix="PALIMPSEST_", env_nested_delimiter="__", env_ignore_empty=True, extra="forbid", frozen=True
    )

    mode: Mode = "manage"
    """manage: shorten long contexts; observe: change no request; bypass: do not even parse requests."""
    data: DirectoryPath = Field(Path("~/.palimpsest"), validate_default=True)
    """Directory of the log and the generated admin token."""
    log: LogPolicy = LogPolicy()
    telemetry: TelemetryPolicy = TelemetryPolicy()
    server: ServerSettings = ServerSettings()
    upstreams: tuple[Annotated[UpstreamPolicy, WrapValidator(_read_upstream)], ...] = (UpstreamPolicy(),)
    """Providers' servers. A request goes to the first whose models match, else to one without models."""
    sessions: SessionsSettings = SessionsSettings()
    store: StoreSettings = StoreSettings()
    strategy: Strategy = "epochs"
    """How long contexts are managed (docs/strategies.md). epochs: shortened when that pays; turns: the turn under
    way, and little of what was before it; snapshot: memory, and the newest turns, once a context has filled most of
    its budget. A request may ask for another one: x-palimpsest-strategy."""
    models: dict[str, ModelPolicy] = {}
    """What differs by model: by its name or a pattern, the first match counts. strategy; window, max_output: tokens
    of its context and of a response; compaction_ratio, safety_margin_tokens: when the strategy snapshot makes memory.
    Without: as above, and as known of each model."""
    budget: BudgetPolicy = BudgetPolicy()
    pruning: PruningPolicy = PruningPolicy()
    files: FilesPolicy = FilesPolicy()
    recall: RecallPolicy = RecallPolicy()
    turns: TurnsPolicy = TurnsPolicy()
    snapshot: SnapshotPolicy = SnapshotPolicy()
    compaction: CompactionPolicy = CompactionPolicy()
    memory: MemorySettings = MemorySettings()
    operators: OperatorPolicy = OperatorPolicy()
    nudge: NudgePolicy = NudgePolicy()
    doom_loop: DoomLoopSettings = DoomLoopSettings()
    shadow: ShadowPolicy = ShadowPolicy()
    events: EventsSettings = EventsSettings()
    pricing: dict[str, PriceSettings] = {}
    """Prices by model name or pattern; the first match counts. Currency units per million tokens, as in price lists:
    input, output, cached (input read from the cache), written (to the cache). retention_seconds: how long the cache
    keeps an entry. Without: as known of each model."""
    tenants: dict[Name, tuple[Secret, ...] | HeaderName] = Field({}, repr=False)
    """Who shares conversations, by name: a list of API keys that belong to one tenant, or the name of a request
    header each value of which is one. Without: each key or token is its own tenant."""

    if not TYPE_CHECKING:  # type checkers and editors go by the fields

        def __init__(self, **values: Any) -> None:
            """Check the values. Raises ConfigError; a loader gets ValidationError, and names the sources."""
            try:
                super().__init__(**values)
            except ValidationError as error:
                if "_build_sources" in values:
                    raise
                problems = list_problems(error, ((values, lambda _: ""),), tuple(type(self).model_fields))
                raise ConfigError(problems) from error

    @field_validator("upstreams")
    @classmethod
    def _check_upstreams(cls, upstreams: tuple[UpstreamPolicy, ...]) -> tuple[UpstreamPolicy, ...]:
        if not upstreams:
            raise ValueError("must hold at least one upstream")
        names = [upstream.name for upstream in upstreams]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f'two are named "{name}"; names are unique')
        return upstreams

    @model_validator(mode="wrap")
    @classmethod
    def _note_stated(cls, values: Any, handler: Callable[[Any], Self]) -> Self:
        """Add the keys of sections that are stated to `model_fields_set`, as `server.port`."""
        settings = handler(values)
        stated = values.items() if isinstance(values, dict) else ()  # of settings that are made these are known
        sections = ((name, tree) for name, tree in stated if isinstance(tree, dict))
        settings.model_fields_set.update(f"{name}.{key}" for name, tree in sections for key in tree)
        return settings

    @model_validator(mode="after")
    def _check_receivers(self) -> Self:
        names = {upstream.name for upstream in self.upstreams}
        for name in self.compaction.may_receive:
            if name not in names:
                raise ValueError(f'compaction.may_receive names "{name}", which is none of the upstreams')
        return self

    @field_validator("tenants")
    @classmethod
    def _check_tenants(cls, tenants: dict[str, tuple[str, ...] | str]) -> dict[str, tuple[str, ...] | str]:
        owners: dict[str, str] = {}
        for name, known_by in tenants.items():
            for key in () if isinstance(known_by, str) else known_by:
                if owners.setdefault(key, name) != name:
                    raise ValueError(f'one of the keys of "{name}" is another\'s, too')
        return tenants

    @model_validator(mode="after")
    def _check_required_tenant(self) -> Self:
        if self.server.require_tenant and not self._list_tenant_keys():
            raise ValueError("server.require_tenant lets nobody in, for tenants has no keys; list them there")
        return self

    @property
    def _has_own_key(self) -> bool:
        return any(upstream.has_own_credential for upstream in self.upstreams)

    def _list_tenant_keys(self) -> tuple[str, ...]:
        """Return the keys of all tenants. A header that identifies tenants is no key, since anybody can send it."""
        return tuple(key for keys in self.tenants.values() if not isinstance(keys, str) for key in keys)

    def check_network(self, address: str) -> None:
        """Raise ConfigError if anybody who can reach `address` could use credentials of ours."""
        server = self.server
        if not self._has_own_key or is_loopback(address) or server.require_tenant or server.open_to_network:
            return
        what = (
            f"at {address} everybody on that network could use the api_key of an upstream, or the credentials of the "
            "environment (kind: litellm). Listen on 127.0.0.1; or list the callers' keys in tenants and set "
            "server.require_tenant: true; or have each client send its own key, to upstreams of kind openai without "
            "api_key; or, where nobody else reaches the port, set server.open_to_network: true"
        )
        raise ConfigError([Problem("server.host", what)])

    def server_policy(self) -> ServerPolicy:
        """Return the policy of the server."""
        server = asdict(self.server)
        secrets = {name: server.pop(f"{name}_file") or server.pop(name) for name in ("admin_token", "metrics_token")}
        tenant_keys = self._list_tenant_keys() if self.server.require_tenant else None
        return ServerPolicy(**server | secrets, has_own_key=self._has_own_key, tenant_keys=tenant_keys)

    def engine_policy(self) -> EnginePolicy:
        """Return the policy of the engine."""
        upstreams = self.upstream_policies()
        return EnginePolicy(
            mode=self.mode,
            commit_wait_ms=self.store.commit_wait_ms,
            hard_wait_seconds=self.compaction.hard_wait_seconds,
            record_cap_bytes=self.store.record_cap_bytes,
            on_failure=self.store.on_failure,
            session_headers=self.sessions.headers,
            infer=self.sessions.infer,
            cache_bytes=self.sessions.cache_bytes,
            principals={
                name: Principal(header=known_by) if isinstance(known_by, str) else Principal(known_by)
                for name, known_by in self.tenants.items()
            },
            own_keys=tuple(each.api_key.encode("latin-1") for each in upstreams if each.api_key),
            places=tuple(
                CredentialPlace(each.name, each.provider().host, each.api_key.encode("latin-1")) for each in upstreams
            ),
            strategy=self.strategy,
            models=self.models,
        )

    def store_policy(self) -> StorePolicy:
        """Return the policy of the store."""
        return StorePolicy(
            path=self.data / _LOG_FILE,
            durability=self.store.durability,
            spool_bytes=self.store.spool_bytes,
            max_bytes=self.store.max_bytes,
            must_write=self.store.on_failure == "refuse",
        )

    def upstream_policies(self) -> tuple[UpstreamPolicy, ...]:
        """Return the policies of all upstreams, in order of preference."""
        return tuple(map(_resolve, self.upstreams))

    def providers(self) -> dict[str, Provider]:
        """Return what the engine needs to know of each upstream, by its name."""
        return {upstream.name: upstream.provider() for upstream in self.upstream_policies()}

    def builder_policy(self) -> BuilderPolicy:
        """Return what may be replaced in a context."""
        return BuilderPolicy(self.pruning, self.files, self.turns, self.snapshot)

    def stated_windows(self) -> dict[str, Offer]:
        """Return the context windows that the settings state, by the upstream's name."""
        return {upstream.name: Offer(window=upstream.window) for upstream in self.upstreams if upstream.window}

    def stated_sizes(self) -> dict[str, Offer]:
        """Return the windows and output limits that the settings state, by the model's pattern."""
        return {pattern: Offer(each.window, each.max_output) for pattern, each in self.models.items()}

    def stated_prices(self) -> dict[str, Offer]:
        """Return the prices that the settings state, by the model's pattern."""
        return {pattern: price.offer() for pattern, price in self.pricing.items()}

    def dump_judging(self) -> str:
        """Return what is set of that by which reports judge calls, as JSON. It has no secrets."""
        upstream = {"name", "kind", "base_url", "models", "auth", "window", "cache"}
        included: dict[str, Any] = dict.fromkeys(("models", "budget", "doom_loop", "pricing"), True)
        included["upstreams"] = {"__all__": upstream}
        return self.model_dump_json(include=included, exclude={"budget": {"estimator"}}, exclude_defaults=True)

    def with_idle_timeout(self, seconds: float) -> Self:
        """Return the same settings with one idle timeout for all upstreams."""
        upstreams = tuple(replace(upstream, idle_timeout=seconds) for upstream in self.upstreams)
        return self.model_copy(update={"upstreams": upstreams})
