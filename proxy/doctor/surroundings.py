"""What is found without calling anybody: the log and its disk, the admin token, the models, and what clients are given.

A running server serves these findings for its page, so this module imports nothing that a server does without.
"""

import asyncio
import os
import re
import shutil
import stat
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import islice
from pathlib import Path

import msgspec

from proxy.assembly import measure, open_index, open_log
from proxy.config import Settings
from proxy.context.budget import find_model_policy, make_budget
from proxy.context.model_catalog import strip_provider
from proxy.engine.background.jobs import is_local_server
from proxy.engine.lineage.misplaced_keys import MisplacedKeys
from proxy.engine.models import PriceList
from proxy.engine.policy import choose_upstream
from proxy.engine.ports import LogReader
from proxy.engine.recorded.documents import describe
from proxy.engine.request import UNREADABLE
from proxy.model.errors import ProxyError
from proxy.model.log import ExchangeRow, SessionRow
from proxy.read.findings import (
    Finding,
    StoreFacts,
    UpstreamFacts,
    UpstreamProbe,
    judge_bodies,
    judge_disk,
    judge_local,
    judge_misplaced,
    judge_mode,
    judge_preamble,
    judge_route,
    judge_store,
    judge_token,
    judge_traffic,
    judge_window,
    list_clients,
)
from proxy.read.savings import SavingsInputs
from proxy.read.window import load_window
from proxy.reading import build_tally
from proxy.running import ADDRESS_FILE, TOKEN_FILE, find_address
from proxy.store.erasing.eraser import measure_used
from proxy.upstream.model_catalog import load_model_map
from proxy.upstream.model_listing import read_listing
from proxy.upstream.policy import UpstreamPolicy

_VERIFIED_BYTES = 32_000_000
_READ_BACK = 50
_SESSIONS = 20
_MODELS = 6
_ANTHROPIC = re.compile(r"anthropic\.com|/anthropic(?:/|$)")
_PATTERN = re.compile(r"[*?]|\[[^][]*\]")
_DEFAULT_MODELS = {"openai": "gpt-5", "anthropic": "claude-sonnet-4-5"}


async def examine_surroundings(
    settings: Settings,
    inputs: SavingsInputs | None = None,
    probes: Sequence[UpstreamProbe] = (),
    *,
    is_quick: bool = False,
) -> list[Finding]:
    """Return the findings on what is here: settings, log, disk, token, traffic, models, clients.

    If `is_quick`, only the newest calls of the log are checked, however small it is. `inputs` has what is known of the
    models, else that is read from the settings and the catalog; `probes` what upstreams have answered.
    """
    inputs = inputs or await measure(settings)
    store = await inspect_store(settings, is_quick=is_quick)
    now_ms = int(time.time() * 1000)
    found = [
        judge_mode(settings.mode, settings.budget.ceiling_tokens),
        *judge_store(store),
        judge_disk(store),
        inspect_token(settings),
    ]
    models = await list_models(settings, probes)
    reached = {upstream for upstream, _ in models}
    found += judge_models(settings, inputs, models)
    found += [judge_route(each.name) for each in settings.upstream_policies() if each.name not in reached]
    found += [judge_misplaced(each) for each in MisplacedKeys(settings.engine_policy().places).found]
    found.append(judge_traffic(store, now_ms))
    if (bodies := judge_bodies(store)) is not None:
        found.append(bodies)
    if settings.mode == "manage" and store.exists and not store.problem:
        found += await _judge_newest(settings, inputs)
    apis = [find_api(policy.base_url) for policy in settings.upstream_policies()]
    return [*found, list_clients(find_address(settings), apis)]


async def _judge_newest(settings: Settings, inputs: SavingsInputs) -> list[Finding]:
    """Judge what goes before the messages of the newest session. What cannot be read of it says nothing."""
    log = open_log(settings)
    try:
        for row in await log.list_sessions(1):
            window = await load_window(log, row.id, inputs, build_tally(settings))
            card = inputs.prices.find_card(row.upstream, row.model)
            budget = make_budget(card.window, card.output, None, inputs.policy, prices=card.prices)
            tokens = sum(each.tokens for each in window.kinds if each.kind in ("system", "tools"))
            found = judge_preamble(row.id, tokens, budget)
            return [found] if found is not None else []
    except ProxyError:
        pass
    finally:
        await log.close()
    return []


def find_api(base_url: str) -> str:
    """Return the API that clients of an upstream speak, as far as its address tells."""
    return "anthropic" if _ANTHROPIC.search(base_url) else "openai"


def list_upstreams(settings: Settings) -> list[UpstreamFacts]:
    """Return the facts of the upstreams of the settings."""
    windows = settings.stated_windows()
    return [
        describe(
            UpstreamFacts,
            each,
            window=windows[each.name].window if each.name in windows else None,
            has_key=bool(each.api_key),
        )
        for each in settings.upstream_policies()
    ]


async def inspect_store(settings: Settings, *, is_quick: bool = False) -> StoreFacts:
    """Return the facts of the log: whether it can be written, its size, times, and whether its records are right."""
    policy = settings.store_policy()
    folder = settings.data
    files = [path for path in (policy.path, *_list_beside(policy.path)) if path.exists()]
    size = sum(path.stat().st_size for path in files)
    near = next((path for path in (folder, *folder.parents) if path.exists()), folder)
    facts = StoreFacts(
        path=str(policy.path),
        exists=policy.path.exists(),
        is_served=(settings.data / ADDRESS_FILE).exists(),
        problem=_find_write_problem(near, policy.path),
        log_bytes=size,
        free_bytes=shutil.disk_usage(near).free,
        max_bytes=policy.max_bytes,
        is_room_made=settings.store.erased_above > 0,
    )
    if facts.problem or not facts.exists:
        return facts
    index = open_index(settings)
    try:
        found, lag = await _read_log(settings, facts, is_quick=is_quick), await index.look()
        used = await asyncio.to_thread(measure_used, policy.path)
        return msgspec.structs.replace(found, behind_seconds=lag.behind_seconds, index_fault=lag.fault, used_bytes=used)
    except ProxyError as error:
        return msgspec.structs.replace(facts, problem=str(error))
    finally:
        await index.close()


def _list_beside(path: Path) -> Iterator[Path]:
    for end in ("-wal", ".journal"):
        yield path.with_name(path.name + end)
    yield path.with_name("index.db")


def _find_write_problem(near: Path, path: Path) -> str:
    """Return why the log cannot be written, empty if nothing is known that prevents it."""
    if not os.access(near, os.W_OK | os.X_OK):
        return f"{near} cannot be written by this user"
    if path.exists() and not os.access(path, os.R_OK | os.W_OK):
        return f"{path} cannot be read and written by this user"
    return ""


async def _read_log(settings: Settings, facts: StoreFacts, *, is_quick: bool) -> StoreFacts:
    log = open_log(settings)
    try:
        rows = await log.list_sessions(_SESSIONS)
        is_small = not is_quick and settings.store_policy().path.stat().st_size <= _VERIFIED_BYTES
        if is_small:
            verification = await log.verify()
            checked, faults = verification.exchanges, [f"{each.where} {each.what}" for each in verification.faults]
        else:
            checked, faults = await _read_back(log, rows)
        times = [row.last_ms for row in rows]
        newest = [call async for call in _list_newest(log, rows)]
        return msgspec.structs.replace(
            facts,
            checked=checked,
            faults=tuple(faults),
            is_whole=is_small,
            began_ms=await _find_beginning(log),
            last_ms=max(times, default=None),
            looked_at=len(newest),
            unread=tuple([reason for call in newest if (reason := _find_unread(call))]),
        )
    finally:
        await log.close()


async def _find_beginning(log: LogReader) -> int | None:
    """Return when a session of the first day in the log began."""
    first = min(await log.load_tallies(), key=lambda tally: tally.day, default=None)
    return (await log.find_session(first.session)).created_ms if first is not None else None


async def _read_back(log: LogReader, rows: Sequence[SessionRow]) -> tuple[int, list[str]]:
    """Read the newest calls of a log back, whose digests are compared; return how many, and what was wrong."""
    checked, faults = 0, list[str]()
    async for call in _list_newest(log, rows):
        checked += 1
        try:
            await log.load_request(call.id)
        except ProxyError as error:
            faults.append(f"call {call.n} of session {call.session[:12]}: {error}")
    return checked, faults


async def _list_newest(log: LogReader, rows: Sequence[SessionRow]) -> AsyncIterator[ExchangeRow]:
    """Yield the newest calls of these sessions, whose newest is first, up to a limit."""
    left = _READ_BACK
    for row in rows:
        for call in await log.list_calls(row.id, max(0, row.exchanges - left), left):
            left -= 1
            yield call
        if not left:
            return


def _find_unread(call: ExchangeRow) -> str:
    """Return why a call was not read, empty if it was."""
    plans = [each.plan for each in call.rounds if each.plan is not None]
    return plans[0].reason if plans and plans[0].reason.startswith(UNREADABLE) else ""


def inspect_token(settings: Settings) -> Finding:
    """Judge who can read the admin token."""
    path = settings.data / TOKEN_FILE
    is_set = bool(settings.server_policy().admin_token)
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else None
    return judge_token(mode, str(path), is_set=is_set)


async def list_models(settings: Settings, probes: Sequence[UpstreamProbe] = ()) -> list[tuple[str, str]]:
    """Return upstreams and models whose calls go there: those of the newest calls of the log, then one for each other.

    That is one of its settings, else a usual one, unless it lists its models and that is not among them. An upstream
    that gets the calls of no model has none.
    """
    policies = settings.upstream_policies()
    known = [each for each in await _list_called(settings) if _goes_to(policies, *each)][:_MODELS]
    have = {upstream for upstream, _ in known}
    listed = {probe.name: list(read_listing(probe.listing)) for probe in probes}
    for policy in policies:
        if policy.name not in have:
            for model in await asyncio.to_thread(_find_model, policies, policy, listed.get(policy.name, [])):
                known.append((policy.name, model))
    return known


async def _list_called(settings: Settings) -> list[tuple[str, str]]:
    """Return the upstreams and models of the newest calls of the log. What cannot be read has none."""
    found: dict[tuple[str, str], None] = {}
    if settings.store_policy().path.exists():
        log = open_log(settings)
        try:
            for row in await log.list_sessions(_SESSIONS):
                if row.model and row.upstream:
                    found[(row.upstream, row.model)] = None
        except ProxyError:
            found = {}  # the finding on the store says why it cannot be read
        finally:
            await log.close()
    return list(found)


def _goes_to(policies: Sequence[UpstreamPolicy], upstream: str, model: str) -> bool:
    """Return whether calls of a model go to an upstream."""
    return policies[choose_upstream([each.models for each in policies], model)].name == upstream


def _find_model(policies: Sequence[UpstreamPolicy], policy: UpstreamPolicy, offered: Sequence[str]) -> list[str]:
    """Return a model whose calls go to an upstream, or none. Blocks for some 10 ms if only the map knows one."""
    named = _name_models(policy, offered)
    return list(islice((model for model in named if _goes_to(policies, policy.name, model)), 1))


def _name_models(policy: UpstreamPolicy, offered: Sequence[str]) -> Iterator[str]:
    """Yield models that an upstream may have, the likeliest first. What its patterns say comes before what is usual."""
    usual = _DEFAULT_MODELS[find_api(policy.base_url)]
    yield from (model for model in policy.models if not _PATTERN.search(model))
    yield from (() if usual in offered else offered)
    yield usual
    yield from _DEFAULT_MODELS.values() if policy.models else ()
    if policy.models:
        names = {each for name in load_model_map().entries for each in (name, strip_provider(name))}
        yield from sorted((name for name in names if not _PATTERN.search(name)), key=lambda name: (len(name), name))
    for pattern in policy.models or ("other-*",):
        yield _PATTERN.sub("model", pattern)


def judge_models(settings: Settings, inputs: SavingsInputs, models: Sequence[tuple[str, str]]) -> list[Finding]:
    """Say for each known model which strategy applies, and where shortening starts; and which engines are local."""
    prices: PriceList = inputs.prices
    engine, providers = settings.engine_policy(), settings.providers()
    found = dict[str, Finding]()
    for upstream, model in models:
        card = prices.find_card(upstream, model)
        strategy = engine.find_strategy(model)
        memory = find_model_policy(settings.models, model) if strategy == "snapshot" else None
        budget = make_budget(card.window, card.output, None, inputs.policy, prices=card.prices, memory=memory)
        found[f"{upstream} {model}"] = judge_window(upstream, model, budget, strategy)
        if is_local_server(providers[upstream], card):
            found[upstream] = judge_local(upstream, summary_model=settings.compaction.model or "")
    return list(found.values())
