"""The settings of one upstream: how it is reached, and what the engine needs to know of it."""

import re
from dataclasses import dataclass, field
from typing import ClassVar, Literal
from urllib.parse import urlsplit

from proxy.engine.policy import Provider, SecretFile, refuse_both
from proxy.model.card import CacheKind
from proxy.model.settings import AutoTokens, BaseUrl, Name, ProxyUrl, Seconds, Secret

Auth = Literal["bearer", "x-api-key", "none"]
Kind = Literal["openai", "litellm"]
NO_PROXY = "none"
_ANY = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class UpstreamPolicy:
    """One provider's server."""

    name: Name = "openai"
    """Unique name, used in the log and in metrics; letters, digits and . _ : -."""
    kind: Kind = "openai"
    """openai: a server that is asked over HTTP; litellm: providers that litellm calls, for which base_url is needed
    only where litellm does not know it (docs/providers.md)."""
    base_url: BaseUrl = "https://api.openai.com/v1"
    """Base URL as an SDK takes it, usually ending in /v1."""
    api_key: Secret = field(default="", repr=False)
    """API key sent instead of the client's own. Empty: the client's key is forwarded unchanged."""
    api_key_file: SecretFile = field(default="", repr=False)
    """File with the api_key, instead of the setting."""
    models: tuple[str, ...] = ()
    """Names or patterns of the models that are sent here, such as ["gpt-*"]. Empty: any."""
    auth: Auth = "bearer"
    """Header that carries api_key. bearer: Authorization; x-api-key: that header; none: it is not sent, and litellm
    takes credentials from the environment."""
    connect_timeout: Seconds = 10.0
    """Longest time for connecting; seconds."""
    idle_timeout: Seconds = 600.0
    """Longest time that the upstream may send nothing before or inside a response; seconds."""
    window: AutoTokens = None
    """Context window of its models; tokens. auto: as known of each model."""
    cache: Literal["auto", CacheKind] = "auto"
    """How its prompt cache works. prefix: the longest common prefix; breakpoints: up to cache_control markers, which
    this upstream takes, so that shortened requests get some of ours; openai-breakpoints: exactly up to the
    breakpoints of gpt-5.6 and later; units: blocks of a request stored before; local: one machine's memory. auto: as
    known of the provider and the model; of ours only a marker without which a client's finds nothing."""
    context_editing: Literal["auto", "upstream", "proxy"] = "auto"
    """Who clears what a context_management asks for: upstream, or proxy: palimpsest, by its epochs
    (docs/providers.md). auto: proxy where kind is litellm."""
    proxy: ProxyUrl = field(default=NO_PROXY, repr=False)
    """HTTP proxy through which the upstream is reached. none: directly; env: as HTTPS_PROXY, HTTP_PROXY, ALL_PROXY
    and NO_PROXY say; else its URL, as in http://user:password@proxy.example:3128."""
    summary_role: Literal["user", "assistant"] = "user"
    """Role of the messages with ledgers and summaries; always user where strict_alternation is set."""
    strict_alternation: bool = False
    """Whether it rejects consecutive messages of the same role, as some chat templates do; a refusal teaches it for a
    day."""
    compaction: bool = False
    """Whether its provider's own compaction is asked for before a model's summary, and then sent: that of
    /v1/messages on demand (compact-2026-09-04), of /v1/responses by a compaction_trigger. compaction.prompt is not
    for it."""

    is_deferred: ClassVar = False
    """Whether litellm is imported with the first call, not before."""

    def check(self) -> None:
        """Raise ValueError for what excludes each other."""
        refuse_both(self, "api_key")
        if self.kind == "litellm":
            self._check_litellm()
        if self.compaction and (self.kind == "litellm" or self.strict_alternation):
            raise ValueError("neither litellm nor strict_alternation lets a compaction through")

    def _check_litellm(self) -> None:
        """Refuse what litellm does by itself, and an api_key that it could send to several providers."""
        if self.proxy != NO_PROXY:
            raise ValueError("litellm takes its proxy from HTTPS_PROXY and NO_PROXY; leave out proxy")
        has_key = bool(self.api_key or self.api_key_file)
        if has_key and self.auth == "none":
            raise ValueError("auth is none, so api_key would not be used; leave one of them out")
        if self.auth == "x-api-key":
            raise ValueError("litellm knows the header of each provider; set auth to bearer or none")
        providers = {provider for model in self.models for provider, slash, _ in [model.partition("/")] if slash}
        is_one = len(providers) == 1 and all("/" in model for model in self.models)
        if has_key and (not is_one or _ANY.search(providers.pop())):
            raise ValueError(
                "api_key is one provider's: list models, and let all begin with that provider, as azure/* does"
            )

    @property
    def address(self) -> str:
        """Return where it is: its base URL, or its name behind `litellm:`."""
        return f"litellm:{self.name}" if self.kind == "litellm" else self.base_url

    @property
    def has_own_credential(self) -> bool:
        """Whether calls may use a credential of this server. litellm finds some in the environment by itself."""
        return self.kind == "litellm" or self.provider().has_own_key

    def provider(self) -> Provider:
        """Return what the engine needs to know of the upstream."""
        return Provider(
            host=urlsplit(self.base_url).hostname or "",
            cache=None if self.cache == "auto" else self.cache,
            summary_role=self.summary_role,
            strict_alternation=self.strict_alternation,
            has_compaction=self.compaction,
            has_own_key=self.auth != "none"
            if self.api_key or self.api_key_file
            else (self.kind, self.auth) == ("litellm", "none"),
            edits_context=self.context_editing == "upstream" or (self.context_editing, self.kind) == ("auto", "openai"),
        )
