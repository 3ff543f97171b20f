"""What is known of a model by its name, for Python programs: offline, from the map that the package ships."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Self

from proxy.config import Settings
from proxy.context.model_catalog import identify_family
from proxy.engine.runtime import SystemClock
from proxy.model.card import LimitKey
from proxy.upstream.model_catalog import ModelCatalog, load_model_map

_PROVIDERS = {"openai": "openai", "anthropic": "anthropic", "gemini": "google"}
_load_once = lru_cache(maxsize=1)(load_model_map)


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model: its name without the provider, the provider, limits in tokens, and the encoding that text is counted in.

    An unknown limit is None, an unknown provider empty. `encoding` is OpenAI's; other vendors' tokens are those of it
    times a ratio that is learned from their reported usage.
    """

    model_id: str
    provider_id: str = ""
    context_limit: int | None = None
    max_output_tokens: int | None = None
    encoding: str = "o200k_base"

    @classmethod
    def from_model_string(
        cls,
        model: str,
        *,
        config: Settings | None = None,
        provider_id: str | None = None,
        context_limit: int | None = None,
        max_output_tokens: int | None = None,
        encoding: str | None = None,
    ) -> Self:
        """Return what is known of a model, such as `gpt-4o` or `anthropic/claude-sonnet-4-5`.

        What is given here by hand comes first, then the `models` of the settings `config`, then the map. Raises
        ValueError for an empty name.
        """
        provider, slash, bare = model.strip().partition("/")
        if not (bare if slash else provider):
            raise ValueError(f"{model!r} names no model; one is `gpt-4o` or `anthropic/claude-sonnet-4-5`")
        family = identify_family(model)
        sized = config.stated_sizes() if config is not None else {}
        catalog = ModelCatalog({}, {}, SystemClock(), _load_once, sized=sized)
        catalog.load()
        card = catalog.find(LimitKey("", model.strip()))
        known = cls(
            bare if slash else provider,
            provider if slash else _PROVIDERS.get(family.vendor, ""),
            card.window,
            card.output,
            family.encoding,
        )
        return replace(
            known,
            provider_id=known.provider_id if provider_id is None else provider_id,
            context_limit=known.context_limit if context_limit is None else context_limit,
            max_output_tokens=known.max_output_tokens if max_output_tokens is None else max_output_tokens,
            encoding=known.encoding if encoding is None else encoding,
        )
