"""The sections of the settings on serving calls: keys with meaning, unit and default.

Defaults are those of the packages' policies, here and in `context_sections`.
"""

import base64
import re
from pathlib import Path
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_core import PydanticCustomError

from proxy.config.value_types import (
    AutoTokens,
    BaseUrl,
    HeaderName,
    HostName,
    ProxyUrl,
    Seconds,
    Secret,
    SecretFile,
    Section,
    Size,
    WebhookUrl,
    WebOrigin,
    check_proxy_url,
    find_environment_proxy,
)
from proxy.engine.events.webhooks import WebhookPolicy
from proxy.engine.policy import EnginePolicy, Provider
from proxy.model.events import WEBHOOK_EVENTS
from proxy.server.policy import ServerPolicy
from proxy.store.policy import Durability, StorePolicy
from proxy.telemetry.policy import Level, LogPolicy, TelemetryPolicy
from proxy.upstream.policy import Auth, Kind, UpstreamPolicy

_SERVER = ServerPolicy()
_ENGINE = EnginePolicy()
_STORE = StorePolicy(Path())
_PROVIDER = Provider()
_UPSTREAM = UpstreamPolicy("openai", "https://api.openai.com/v1")
_ANY = re.compile(r"[*?\[]")
# What examples have in the place of a secret, and people forget to replace.
_PLACEHOLDER = re.compile(
    r"(?i)change[-_ ]?(me|this|it)|replace[-_ ]?(me|this)"
    r"|(your|my)[-_ ](admin[-_ ]|metrics[-_ ])?(token|secret|password)|placeholder|example|<[^>]{0,40}>|x{3,}|\*{3,}"
)


def _refuse_both(given: SecretStr, from_file: SecretStr, name: str) -> None:
    if given.get_secret_value() and from_file.get_secret_value():
        raise PydanticCustomError("secret", "{name} and {name}_file are both set; keep one of them", {"name": name})


def reveal(given: SecretStr, from_file: SecretStr) -> str:
    """Return the secret that one of two settings holds, empty if neither does."""
    return from_file.get_secret_value() or given.get_secret_value()


class ServerSettings(Section):
    """The HTTP server: address, limits, and who may reach the management pages."""

    host: str = Field(
        _SERVER.host,
        description="Address to listen on. 0.0.0.0: all interfaces, so that others can make calls (docs/privacy.md).",
    )
    port: int = Field(_SERVER.port, ge=0, le=65535, description="Port to listen on. 0: any that is free.")
    allowed_hosts: tuple[HostName, ...] = Field(
        _SERVER.allowed_hosts,
        description='Host names, besides loopback and host, under which browsers may open pages below /-/. "*": any.',
    )
    allowed_origins: tuple[WebOrigin, ...] = Field(
        _SERVER.allowed_origins,
        description=(
            "Origins, besides loopback, of web pages whose requests are accepted although they use an api_key of the "
            'settings or carry no credential, such as ["https://app.example"]. "*": any.'
        ),
    )
    require_tenant: bool = Field(
        default=False, description="Accept only requests with a key that is listed in tenants; others get 401."
    )
    open_to_network: bool = Field(
        default=False,
        description=(
            "Listen beyond loopback although everybody who reaches the port can use an upstream's api_key, or the "
            "credentials of the environment (kind: litellm)."
        ),
    )
    max_body_bytes: Size = Field(
        _SERVER.max_body_bytes,
        ge=1024,
        description="Largest request body on recorded paths; bytes. On other paths bodies are streamed.",
    )
    max_buffered_bytes: Size = Field(
        _SERVER.max_buffered_bytes,
        ge=1024,
        description=(
            "Memory for the bodies of all concurrent requests on recorded paths; bytes. A request whose body does not "
            "fit waits for body_timeout, then gets 503. Bodies above 1 MiB may use three quarters of it."
        ),
    )
    max_header_bytes: Size = Field(
        _SERVER.max_header_bytes, ge=1024, description="Largest request line and headers together; bytes."
    )
    header_timeout: Seconds = Field(
        _SERVER.header_timeout, description="Longest time for receiving the request line and headers; seconds."
    )
    body_timeout: Seconds = Field(_SERVER.body_timeout, description="Longest pause inside a request body; seconds.")
    body_min_rate: int = Field(
        _SERVER.body_min_rate,
        ge=0,
        description=(
            "Lowest average rate of a request body that has taken longer than body_timeout; bytes per second. "
            "0: no limit."
        ),
    )
    stall_timeout: Seconds = Field(
        _SERVER.stall_timeout, description="Longest time that a client may read nothing of its response; seconds."
    )
    drain_seconds: float = Field(
        _SERVER.drain_seconds,
        ge=0,
        allow_inf_nan=False,
        description="Longest time that requests may go on after a stop signal; seconds.",
    )
    admin_token: Secret = Field(
        SecretStr(_SERVER.admin_token),
        description="Secret for the pages and API below /-/. Empty: one is generated and stored in the data directory.",
    )
    admin_token_file: SecretFile = Field(
        SecretStr(""), description="File with the admin_token, instead of the setting."
    )

    metrics_token: Secret = Field(
        SecretStr(_SERVER.metrics_token),
        description=(
            "Secret that opens /-/metrics alone, as `Authorization: Bearer`, under whatever name a scraper reaches the "
            "server. Empty: the admin_token does, under an allowed name."
        ),
    )
    metrics_token_file: SecretFile = Field(
        SecretStr(""), description="File with the metrics_token, instead of the setting."
    )

    @model_validator(mode="after")
    def _check_secret(self) -> Self:
        _refuse_both(self.admin_token, self.admin_token_file, "admin_token")
        _refuse_both(self.metrics_token, self.metrics_token_file, "metrics_token")
        for name in ("admin_token", "metrics_token"):
            if _PLACEHOLDER.fullmatch(reveal(getattr(self, name), getattr(self, f"{name}_file"))):
                raise PydanticCustomError(
                    "secret",
                    "{name} is the placeholder of an example; choose a secret that nobody knows",
                    {"name": name},
                )
        return self


class UpstreamSettings(Section):
    """One provider's server."""

    name: str = Field(
        _UPSTREAM.name,
        pattern=r"^[A-Za-z0-9._:-]{1,64}$",
        description="Unique name, used in the log and in metrics; letters, digits and . _ : -.",
    )
    kind: Kind = Field(
        _UPSTREAM.kind,
        description=(
            "openai: a server that is asked over HTTP; litellm: providers that litellm calls, for which base_url is "
            "needed only where litellm does not know it (docs/providers.md)."
        ),
    )
    base_url: BaseUrl = Field(_UPSTREAM.base_url, description="Base URL as an SDK takes it, usually ending in /v1.")
    api_key: Secret = Field(
        SecretStr(_UPSTREAM.api_key),
        description="API key sent instead of the client's own. Empty: the client's key is forwarded unchanged.",
    )
    api_key_file: SecretFile = Field(SecretStr(""), description="File with the api_key, instead of the setting.")
    models: tuple[str, ...] = Field(
        _UPSTREAM.models,
        description='Names or patterns of the models that are sent here, such as ["gpt-*"]. Empty: any.',
    )
    auth: Auth = Field(
        _UPSTREAM.auth,
        description=(
            "Header that carries api_key. bearer: Authorization; x-api-key: that header; none: it is not sent, and "
            "litellm takes credentials from the environment."
        ),
    )
    connect_timeout: Seconds = Field(_UPSTREAM.connect_timeout, description="Longest time for connecting; seconds.")
    idle_timeout: Seconds = Field(
        _UPSTREAM.idle_timeout,
        description="Longest time that the upstream may send nothing before or inside a response; seconds.",
    )
    window: AutoTokens = Field(None, description="Context window of its models; tokens. auto: as known of each model.")
    cache: Literal["auto", "prefix", "breakpoints", "openai-breakpoints", "units", "local"] = Field(
        "auto",
        description=(
            "How its prompt cache works. prefix: the longest common prefix; breakpoints: up to cache_control markers, "
            "which this upstream takes, so that shortened requests get some of ours; openai-breakpoints: exactly up to "
            "the breakpoints of gpt-5.6 and later; units: blocks of a request stored before; local: one machine's "
            "memory. auto: as known of the provider and the model; of ours only a marker without which a client's "
            "finds nothing."
        ),
    )
    context_editing: Literal["auto", "upstream", "proxy"] = Field(
        "auto",
        description=(
            "Who clears what a context_management asks for: upstream, or proxy: palimpsest, by its epochs "
            "(docs/providers.md). auto: proxy where kind is litellm."
        ),
    )
    proxy: ProxyUrl = Field(
        SecretStr(_UPSTREAM.proxy or "none"),
        description=(
            "HTTP proxy through which the upstream is reached. none: directly; env: as HTTPS_PROXY, HTTP_PROXY, "
            "ALL_PROXY and NO_PROXY say; else its URL, as in http://user:password@proxy.example:3128."
        ),
    )
    summary_role: Literal["user", "assistant"] = Field(
        _PROVIDER.summary_role,
        description="Role of the messages with ledgers and summaries; always user where strict_alternation is set.",
    )
    strict_alternation: bool = Field(
        _PROVIDER.strict_alternation,
        description="Whether it rejects consecutive messages of the same role, as some chat templates do; a refusal "
        "teaches it for a day.",
    )
    compaction: bool = Field(
        _PROVIDER.has_compaction,
        description="Whether its provider's own compaction is asked for before a model's summary, and then sent: that "
        "of /v1/messages on demand (compact-2026-09-04), of /v1/responses by a compaction_trigger. compaction.prompt"
        " is not for it.",
    )

    @model_validator(mode="after")
    def _check_secret(self) -> Self:
        _refuse_both(self.api_key, self.api_key_file, "api_key")
        return self

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        if self.kind == "litellm":
            _check_litellm(self)
        if self.compaction and (self.kind == "litellm" or self.strict_alternation):
            raise PydanticCustomError("compaction", "neither litellm nor strict_alternation lets a compaction through")
        return self

    @model_validator(mode="after")
    def _check_environment_proxy(self) -> Self:
        try:
            check_proxy_url(self._find_proxy() or "http://none")
        except PydanticCustomError as error:
            what = "proxy is env, and the proxy that the environment names for this upstream cannot be used: it {why}"
            raise PydanticCustomError("proxy", what, {"why": error.message()}) from None
        return self

    @property
    def _is_of_environment(self) -> bool:
        return self.kind == "litellm" and self.auth == "none"

    @property
    def has_own_credential(self) -> bool:
        """Whether calls may use a credential of this server. litellm finds some in the environment by itself."""
        return self.kind == "litellm" or self.provider().has_own_key

    def _find_base_url(self) -> str:
        """Return the base URL, empty where litellm is to know it."""
        return "" if self.kind == "litellm" and "base_url" not in self.model_fields_set else self.base_url

    def _find_proxy(self) -> str:
        setting = self.proxy.get_secret_value()
        return find_environment_proxy(self.base_url) if setting == "env" else "" if setting == "none" else setting

    def policy(self) -> UpstreamPolicy:
        """Return how the upstream is reached."""
        return UpstreamPolicy(
            name=self.name,
            base_url=self._find_base_url(),
            api_key=reveal(self.api_key, self.api_key_file),
            models=self.models,
            auth=self.auth,
            connect_timeout=self.connect_timeout,
            idle_timeout=self.idle_timeout,
            proxy=self._find_proxy(),
            kind=self.kind,
        )

    def provider(self) -> Provider:
        """Return what the engine needs to know of the upstream."""
        return Provider(
            host=urlsplit(self._find_base_url()).hostname or "",
            cache=None if self.cache == "auto" else self.cache,
            summary_role=self.summary_role,
            strict_alternation=self.strict_alternation,
            has_compaction=self.compaction,
            has_own_key=self.auth != "none" if reveal(self.api_key, self.api_key_file) else self._is_of_environment,
            edits_context=self.context_editing == "upstream" or (self.context_editing, self.kind) == ("auto", "openai"),
        )


def _check_litellm(upstream: UpstreamSettings) -> None:
    """Refuse what litellm does by itself, and an api_key that it could send to several providers."""
    if upstream.proxy.get_secret_value() != "none":
        raise PydanticCustomError("proxy", "litellm takes its proxy from HTTPS_PROXY and NO_PROXY; leave out proxy")
    has_key = bool(reveal(upstream.api_key, upstream.api_key_file))
    if has_key and upstream.auth == "none":
        raise PydanticCustomError("auth", "auth is none, so api_key would not be used; leave one of them out")
    if upstream.auth == "x-api-key":
        raise PydanticCustomError("auth", "litellm knows the header of each provider; set auth to bearer or none")
    providers = {provider for model in upstream.models for provider, slash, _ in [model.partition("/")] if slash}
    is_one = len(providers) == 1 and all("/" in model for model in upstream.models)
    if has_key and (not is_one or _ANY.search(providers.pop())):
        what = "api_key is one provider's: list models, and let all begin with that provider, as azure/* does"
        raise PydanticCustomError("api_key", what)


class SessionsSettings(Section):
    """How requests are assigned to conversations."""

    headers: tuple[HeaderName, ...] = Field(
        _ENGINE.session_headers,
        description="Request headers, besides the known ones, whose value identifies the conversation.",
    )
    infer: bool = Field(
        _ENGINE.infer,
        description="Recognise conversations without an id by their content. Off: each such request is its own.",
    )
    cache_bytes: Size = Field(
        _ENGINE.cache_bytes,
        ge=0,
        description=(
            "Memory for the most recent conversations, half of it for request bodies; bytes. What waits for the worker "
            "process may take half as much beside it."
        ),
    )


class StoreSettings(Section):
    """The log: durability, behaviour on failure, and size."""

    durability: Durability = Field(
        _STORE.durability,
        description="normal: survives a killed process; full: survives a power failure, too, and waits for the disk.",
    )
    on_failure: Literal["forward", "refuse"] = Field(
        _ENGINE.on_failure,
        description="While the log cannot be written: forward requests and keep records in memory, or refuse with 503.",
    )
    commit_wait_ms: int = Field(
        _ENGINE.commit_wait_ms,
        ge=0,
        description="Longest time that a response waits for its record to be durable; milliseconds.",
    )
    spool_bytes: Size = Field(
        _STORE.spool_bytes, ge=0, description="Memory for records that cannot be written yet; bytes."
    )
    record_cap_bytes: Size = Field(
        _ENGINE.record_cap_bytes,
        ge=0,
        description="Most bytes of one body that are recorded; of longer ones the beginning and a digest.",
    )
    max_bytes: Size = Field(
        _STORE.max_bytes,
        ge=0,
        description=(
            "Most bytes of the log: at the limit no more is recorded, and calls go on. Nothing is erased for it, unless"
            " when_full says so. 0: no limit."
        ),
    )
    when_full: Literal["stop", "erase"] = Field(
        "stop",
        description=(
            "As the log nears max_bytes: stop recording there, or, from nine tenths on, erase the content of the"
            " longest idle sessions, never of one that was called within the hour."
        ),
    )
    retention_days: int = Field(
        0,
        ge=0,
        le=36_500,
        description="Days after its newest call when the content of a session is erased. 0: never.",
    )

    @model_validator(mode="after")
    def _check_room(self) -> Self:
        if self.spool_bytes < 2 * self.record_cap_bytes:
            what = "spool_bytes must be at least twice record_cap_bytes, or large records never fit"
            raise PydanticCustomError("room", what)
        return self


_LOG = LogPolicy()


class LogSettings(Section):
    """What the server writes to standard error."""

    level: Level = Field(_LOG.level, description="debug, info, warning or error: the least that is written.")
    format: Literal["text", "json"] = Field(
        _LOG.format, description="text, or json: one object a line, with the field names of OpenTelemetry's logs."
    )
    access: bool = Field(
        _LOG.access,
        description="Write a line for each request: method, path, status, seconds, session, tokens; never its content.",
    )


_TELEMETRY = TelemetryPolicy()


class TelemetrySettings(Section):
    """Traces by OpenTelemetry (docs/operations.md); needs the extra telemetry."""

    endpoint: BaseUrl | Literal[""] = Field(
        _TELEMETRY.endpoint,
        description="Base URL of a collector that takes OTLP over HTTP, such as http://localhost:4318. Without: none.",
    )
    headers: dict[HeaderName, Secret] = Field({}, description="Headers for it, such as its API key.")
    service_name: str = Field(
        _TELEMETRY.service_name, min_length=1, description="The name under which it shows this server (service.name)."
    )

    capture_content: bool = Field(
        _TELEMETRY.capture_content,
        description="Whether spans have the messages of requests and responses: these then leave this machine.",
    )

    def policy(self) -> TelemetryPolicy:
        """Return where spans go."""
        headers = {name: value.get_secret_value() for name, value in self.headers.items()}
        return TelemetryPolicy(self.endpoint, headers, self.service_name, self.capture_content)


_WEBHOOK = WebhookPolicy("", b"")
_SECRET_PREFIX = "whsec_"
_SECRET_BYTES = range(24, 65)


class WebhookSettings(Section):
    """A receiver of events."""

    url: WebhookUrl = Field(description="Address to which each event is posted.")
    secret: Secret = Field(
        SecretStr(""),
        description="Secret by which requests are signed: whsec_ and 24 to 64 random bytes in base64 (docs/events.md).",
    )
    secret_file: SecretFile = Field(SecretStr(""), description="File with the secret, instead of the setting.")
    events: tuple[str, ...] = Field(_WEBHOOK.events, description="Types of the events that it gets. Empty: all.")
    timeout: Seconds = Field(_WEBHOOK.timeout, description="Longest time for its response; seconds.")
    most_waiting: int = Field(
        _WEBHOOK.most_waiting, ge=1, description="Most events that wait for it; what comes after is dropped."
    )

    @field_validator("events")
    @classmethod
    def _check_events(cls, events: tuple[str, ...]) -> tuple[str, ...]:
        for name in events:
            if name not in WEBHOOK_EVENTS:
                what = '"{name}" is no event; there are {names}'
                raise PydanticCustomError("events", what, {"name": name, "names": ", ".join(WEBHOOK_EVENTS)})
        return events

    @model_validator(mode="after")
    def _check_signing(self) -> Self:
        _refuse_both(self.secret, self.secret_file, "secret")
        self._decode_secret()
        return self

    def _decode_secret(self) -> bytes:
        prefix, text = (given := reveal(self.secret, self.secret_file))[:6], given[6:]
        try:
            secret = base64.b64decode(text, validate=True)
        except ValueError:
            secret = b""
        if prefix != _SECRET_PREFIX or len(secret) not in _SECRET_BYTES:
            what = "needs a secret, or secret_file: whsec_ and 24 to 64 random bytes in base64 (docs/events.md)"
            raise PydanticCustomError("secret", what)
        return secret

    def policy(self) -> WebhookPolicy:
        """Return where events go, and which."""
        return WebhookPolicy(self.url, self._decode_secret(), self.events, self.timeout, self.most_waiting)


class EventsSettings(Section):
    """Telling other programs what happens."""

    webhooks: tuple[WebhookSettings, ...] = Field(
        (),
        description=(
            "Receivers of events (docs/events.md), a list. url: the address to which each event is posted. secret, or "
            "secret_file: whsec_ and 24 to 64 random bytes in base64, by which requests are signed. events: the types "
            "that it gets (all). timeout: longest time for its response (10 s). most_waiting: most events that wait "
            "for it (1,000); what comes after is dropped."
        ),
    )
