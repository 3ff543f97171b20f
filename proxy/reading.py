"""How commands read the log, beside a running server or without one, and with which prices.

It imports little of the engine and nothing of the HTTP server, so that a command starts in half the time.
"""

from collections.abc import Mapping
from types import MappingProxyType

from proxy.config import Settings
from proxy.config.functions import find_estimator
from proxy.engine.models import PriceList
from proxy.engine.runtime import SystemClock
from proxy.engine.token_counter import TokenCounter
from proxy.model.card import LimitKey
from proxy.read.diff import Tally
from proxy.read.savings import SavingsInputs
from proxy.store.sqlite.reader import SqliteReader
from proxy.store.sqlite.recovery import recover_log
from proxy.upstream.model_catalog import ModelCatalog
from proxy.upstream.tokenizer import CountingTokenizer, make_tokenizer

NO_LISTINGS: Mapping[str, bytes] = MappingProxyType({})


def build_tokenizer(settings: Settings) -> CountingTokenizer:
    """Return what counts tokens by these settings. An encoder is loaded when it is first needed. Raises ConfigError."""
    return make_tokenizer(find_estimator(settings))


def build_tally(settings: Settings) -> Tally:
    """Return the function that counts tokens for commands. Raises ConfigError."""
    tokenizer = build_tokenizer(settings)
    return TokenCounter(tokenizer, is_by_model=tokenizer.is_by_model).count_messages


async def measure(settings: Settings, listings: Mapping[str, bytes] = NO_LISTINGS) -> SavingsInputs:
    """Return the models and the budget with which `palimpsest savings` prices sessions. Reads the model catalog.

    `listings` are what upstreams answered when they were asked for their models, by their names.
    """
    catalog = ModelCatalog(
        settings.stated_windows(), settings.stated_prices(), SystemClock(), sized=settings.stated_sizes()
    )
    await catalog.open()
    for upstream, content in listings.items():
        catalog.note_listing(upstream, content)
    prices = PriceList(lambda upstream, model: catalog.find(LimitKey(upstream, model)), settings.providers())
    return SavingsInputs(prices, settings.budget)


def open_log(settings: Settings) -> SqliteReader:
    """Open the log for reading; a running server may write it at the same time.

    Recovers first what a killed server left in its journal. Of a running server, the last few milliseconds may be
    missing. Raises StoreUnavailable if the write-ahead log belongs to another file; the methods do if it is no log.
    """
    policy = settings.store_policy()
    recover_log(policy)
    return SqliteReader(policy.path)
