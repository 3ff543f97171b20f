"""The settings as one tree, checks that concern several sections, and the policies of the packages."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, SettingsConfigDict

from proxy.config.context_sections import (
    BudgetSettings,
    CompactionSettings,
    DoomLoopSettings,
    FilesSettings,
    MemorySettings,
    ModelSettings,
    NudgeSettings,
    OperatorSettings,
    PriceSettings,
    PruningSettings,
    RecallSettings,
    SnapshotSettings,
    TurnsSettings,
)
from proxy.config.errors import ConfigError, Problem, list_problems
from proxy.config.sections import (
    EventsSettings,
    LogSettings,
    ServerSettings,
    SessionsSettings,
    StoreSettings,
    TelemetrySettings,
    UpstreamSettings,
    reveal,
)
from proxy.config.value_types import DirectoryPath, HeaderName, Secret, TenantName
from proxy.context.budget import BudgetPolicy, MemoryMark
from proxy.context.conversation import BuilderPolicy
from proxy.engine.compaction.policy import CompactionPolicy
from proxy.engine.erasing.policy import RetentionPolicy
from proxy.engine.events.webhooks import WebhookPolicy
from proxy.engine.history.policy import NudgePolicy
from proxy.engine.policy import CredentialPlace, EnginePolicy, FilePolicy, Principal, Provider, SnapshotPolicy
from proxy.engine.recall.policy import RecallPolicy
from proxy.model.card import Offer
from proxy.model.epoch import Strategy
from proxy.model.exchange import Mode
from proxy.server.policy import ServerPolicy
from proxy.store.policy import StorePolicy
from proxy.telemetry.policy import LogPolicy
from proxy.upstream.policy import UpstreamPolicy
from proxy.wire.headers import is_loopback

_LOG_FILE = "log.db"


def _read_principal(known_by: tuple[SecretStr, ...] | str) -> Principal:
    if isinstance(known_by, str):
        return Principal(header=known_by)
    return Principal(keys=tuple(key.get_secret_value() for key in known_by))


_SERVER_SECRETS = frozenset({"admin_token", "admin_token_file", "metrics_token", "metrics_token_file"})


class Settings(BaseSettings):
    """Everything that can be set. `load_settings` builds it from all sources, and names the source of each error."""

    model_config = SettingsConfigDict(
        env_prefix="PALIMPSEST_", env_nested_delimiter="__", env_ignore_empty=True, extra="forbid", frozen=True
    )

    mode: Mode = Field(
        EnginePolicy().mode,
        description="manage: shorten long contexts; observe: change no request; bypass: do not even parse requests.",
    )
    data: DirectoryPath = Field(
        Path("~/.palimpsest"), validate_default=True, description="Directory of the log and the generated admin token."
    )
    log: LogSettings = LogSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    server: ServerSettings = ServerSettings()
    upstreams: tuple[UpstreamSettings, ...] = Field(
        (UpstreamSettings(),),
        description="Providers' servers. A request goes to the first whose models match, else to one without models.",
    )
    sessions: SessionsSettings = SessionsSettings()
    store: StoreSettings = StoreSettings()
    strategy: Strategy = Field(
        EnginePolicy().strategy,
        description=(
            "How long contexts are managed (docs/strategies.md). epochs: shortened when that pays; turns: the turn "
            "under way, and little of what was before it; snapshot: memory, and the newest turns, once a context has "
            "filled most of its budget. A request may ask for another one: x-palimpsest-strategy."
        ),
    )
    models: dict[str, ModelSettings] = Field(
        {},
        description=(
            "What differs by model: by its name or a pattern, the first match counts. strategy; window, max_output: "
            "tokens of its context and of a response; compaction_ratio, safety_margin_tokens: when the strategy "
            "snapshot makes memory. Without: as above, and as known of each model."
        ),
    )
    budget: BudgetSettings = BudgetSettings()
    pruning: PruningSettings = PruningSettings()
    files: FilesSettings = FilesSettings()
    recall: RecallSettings = RecallSettings()
    turns: TurnsSettings = TurnsSettings()
    snapshot: SnapshotSettings = SnapshotSettings()
    compaction: CompactionSettings = CompactionSettings()
    memory: MemorySettings = MemorySettings()
    operators: OperatorSettings = OperatorSettings()
    nudge: NudgeSettings = NudgeSettings()
    doom_loop: DoomLoopSettings = DoomLoopSettings()
    events: EventsSettings = EventsSettings()
    pricing: dict[str, PriceSettings] = Field(
        {},
        description=(
            "Prices by model name or pattern; the first match counts. Currency units per million tokens, as in price "
            "lists: input, output, cached (input read from the cache), written (to the cache). retention_seconds: how "
            "long the cache keeps an entry. Without: as known of each model."
        ),
    )
    tenants: dict[TenantName, tuple[Secret, ...] | HeaderName] = Field(
        {},
        description=(
            "Who shares conversations, by name: a list of API keys that belong to one tenant, or the name of a request "
            "header each value of which is one. Without: each key or token is its own tenant."
        ),
    )

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
        return any(upstream.has_own_credential for upstream in self.upstreams)

    def _list_tenant_keys(self) -> tuple[str, ...]:
        """Return the keys of all tenants. A header that identifies tenants is no key, since anybody can send it."""
        named = (known_by for known_by in self.tenants.values() if not isinstance(known_by, str))
        return tuple(key.get_secret_value() for keys in named for key in keys)

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
        server = self.server
        return ServerPolicy(
            **server.model_dump(exclude={"require_tenant", "open_to_network", *_SERVER_SECRETS}),
            admin_token=reveal(server.admin_token, server.admin_token_file),
            metrics_token=reveal(server.metrics_token, server.metrics_token_file),
            has_own_key=self._has_own_key,
            tenant_keys=self._list_tenant_keys() if server.require_tenant else None,
        )

    def log_policy(self) -> LogPolicy:
        """Return what is logged, and how."""
        return LogPolicy(**self.log.model_dump())

    def engine_policy(self) -> EnginePolicy:
        """Return the policy of the engine."""
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
            own_keys=tuple(each.api_key.encode("latin-1") for each in self.upstream_policies() if each.api_key),
            places=tuple(
                CredentialPlace(each.name, self.providers()[each.name].host, each.api_key.encode("latin-1"))
                for each in self.upstream_policies()
            ),
            loop_threshold=self.doom_loop.threshold,
            loop_action=self.doom_loop.action,
            strategy=self.strategy,
            strategies=tuple((name, each.strategy) for name, each in self.models.items() if each.strategy),
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

    def retention_policy(self) -> RetentionPolicy:
        """Return what is erased from the log without being asked."""
        most = self.store.max_bytes if self.store.when_full == "erase" else 0
        return RetentionPolicy(self.store.retention_days, most)

    def upstream_policies(self) -> tuple[UpstreamPolicy, ...]:
        """Return the policies of all upstreams, in order of preference."""
        return tuple(upstream.policy() for upstream in self.upstreams)

    def providers(self) -> dict[str, Provider]:
        """Return what the engine needs to know of each upstream, by its name."""
        return {upstream.name: upstream.provider() for upstream in self.upstreams}

    def budget_policy(self) -> BudgetPolicy:
        """Return how much may be sent."""
        marks = {
            name: MemoryMark(each.compaction_ratio, each.safety_margin_tokens) for name, each in self.models.items()
        }
        return BudgetPolicy(**self.budget.model_dump(exclude={"estimator"}), memory_marks=tuple(marks.items()))

    def file_policy(self) -> FilePolicy:
        """Return how files are sent that programs show."""
        files = self.files
        return FilePolicy(files.inline_tokens, files.outline, files.summary_model, self.store.record_cap_bytes)

    def builder_policy(self) -> BuilderPolicy:
        """Return what may be replaced in a context."""
        return BuilderPolicy(
            is_pruning=self.pruning.enabled,
            protect_tokens=self.pruning.protect_tokens,
            minimum_tokens=self.pruning.minimum_tokens,
            protected_tools=self.pruning.protected_tools,
            inline_tokens=self.files.inline_tokens,
            has_outlines=self.files.outline,
            user_turns=self.turns.user_turns,
            scan_messages=self.turns.scan_messages,
            raw_tail_turns=self.snapshot.raw_tail_turns,
            is_tail_text=self.snapshot.tail == "text",
        )

    def snapshot_policy(self) -> SnapshotPolicy:
        """Return what the strategy snapshot shows."""
        return SnapshotPolicy(**self.snapshot.model_dump())

    def recall_policy(self) -> RecallPolicy:
        """Return whether models may recall, what, and how much at once."""
        return RecallPolicy(**self.recall.model_dump())

    def nudge_policy(self) -> NudgePolicy:
        """Return whether, how often and in which words agents are nudged that nobody prompts."""
        alternating = frozenset(upstream.name for upstream in self.upstreams if upstream.strict_alternation)
        return NudgePolicy(**self.nudge.model_dump(), alternating=alternating, scan_messages=self.turns.scan_messages)

    def compaction_policy(self) -> CompactionPolicy:
        """Return who makes summaries, of what, and at what cost."""
        return CompactionPolicy(**self.compaction.model_dump())

    def webhook_policies(self) -> tuple[WebhookPolicy, ...]:
        """Return who is sent events."""
        return tuple(webhook.policy() for webhook in self.events.webhooks)

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
        return self.model_dump_json(include=included, exclude={"budget": {"estimator"}}, exclude_unset=True)

    def with_idle_timeout(self, seconds: float) -> Self:
        """Return the same settings with one idle timeout for all upstreams."""
        upstreams = tuple(upstream.model_copy(update={"idle_timeout": seconds}) for upstream in self.upstreams)
        return self.model_copy(update={"upstreams": upstreams})
