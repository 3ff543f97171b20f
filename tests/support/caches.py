"""Caches of models as the bundled map describes them."""

from collections.abc import Sequence

from proxy.context.provider_cache import CacheModel, choose_cache_model
from proxy.model.card import CacheKind, CacheTerms
from proxy.upstream.model_catalog import load_model_map

MAP = load_model_map()


def choose_cache(
    kind: CacheKind | None, host: str, model: str, ttls: Sequence[str] = (), retention: float | None = None
) -> CacheModel:
    """Return the cache of a model for requests whose head has these markers and begins with a system message."""
    terms = CacheTerms(head=tuple(ttls), has_leading=True)
    return choose_cache_model(MAP.find(model).caches, kind, host, terms, retention)
