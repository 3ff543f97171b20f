"""`palimpsest doctor`: all that is examined, the upstreams, the running server and a rehearsed session included.

Nothing here spends money but `call_live`: of an upstream only its list of models is asked for. A rehearsed session has
a log of its own in a temporary directory, and calls nobody.
"""

import asyncio
import email.utils
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from proxy import __version__
from proxy.assembly import measure
from proxy.config import Settings, make_settings, read_environment
from proxy.doctor.rehearsal import Rehearsal, answer, judge_passing, judge_rehearsal, play
from proxy.doctor.surroundings import examine_surroundings, find_api, inspect_store, list_models, list_upstreams
from proxy.engine.call.response_stream import WholeResponse
from proxy.engine.policy import choose_upstream
from proxy.lab.upstream import ScriptedCall, open_engine
from proxy.model.card import LimitKey
from proxy.model.errors import ProxyError
from proxy.model.exchange import Headers, Usage
from proxy.read.findings import (
    MISPLACED,
    Diagnosis,
    Finding,
    UpstreamFacts,
    UpstreamProbe,
    conclude,
    find_facts,
    judge_clock,
    judge_key,
    judge_server,
    judge_upstream,
)
from proxy.read.savings import SavingsInputs
from proxy.running import find_server, read_admin_token
from proxy.upstream.client import fetch
from proxy.upstream.origin import make_key_header
from proxy.upstream.policy import Auth, UpstreamPolicy
from proxy.wire import FORMATS
from proxy.wire.format import Format
from proxy.wire.headers import find_header
from proxy.wire.json_values import read_object
from proxy.wire.summary_request import make_target

_LIVE_TOKENS = 16
_OK, _REFUSED = 200, (401, 403)
_MODELS = b"/v1/models"
_VERSION = [header for form in FORMATS.values() for header in form.own_headers]
# The key of a client is sent to the provider that it belongs to, and to nobody else.
_ENVIRONMENT_KEYS = {"api.openai.com": "OPENAI_API_KEY", "api.anthropic.com": "ANTHROPIC_API_KEY"}


def diagnose(settings: Settings, *, is_live: bool = False) -> Diagnosis:
    """Examine everything. With `is_live`, each upstream with a key is sent one short call, which costs money."""
    return asyncio.run(_diagnose(settings, find_server(settings), is_live=is_live))


def _take_upstreams(settings: Settings, known: Sequence[UpstreamFacts], addresses: Sequence[str]) -> Settings:
    """Return settings with the upstreams of the running server, unless they state some.

    Of a server that does not tell its own, only the first of the addresses that it has noted is known to get calls.
    """
    if "upstreams" in settings.model_fields_set or not addresses:
        return settings
    told = [msgspec.structs.asdict(each) for each in known]
    told = told or [{"name": urlsplit(addresses[0]).hostname, "base_url": addresses[0]}]
    names = {"name", "kind", "base_url", "models", "window"}
    taken = [{key: value for key, value in each.items() if key in names and value} for each in told]
    return settings.model_copy(update={"upstreams": make_settings({"upstreams": taken}).upstreams})


async def _diagnose(settings: Settings, running: Sequence[str], *, is_live: bool) -> Diagnosis:
    """Examine everything. `running` are the addresses of the running server and of its upstreams."""
    address, *addresses = running or ("",)
    told, is_refusing = await ask_server(settings, address)
    known = told.upstreams if told is not None else ()
    settings = _take_upstreams(settings, known, addresses)
    policies = [policy for policy in settings.upstream_policies() if policy.kind != "litellm"]
    keys = [find_key(policy, read_environment()) for policy in policies]
    probes = [await probe_upstream(policy, key) for policy, key in zip(policies, keys, strict=True)]
    settings = _take_ceiling(settings, find_facts(told, "mode").get("ceiling"))
    inputs = await measure(settings, {probe.name: probe.listing for probe in probes})
    found = await examine_surroundings(settings, inputs, probes)
    for policy in settings.upstream_policies():
        if policy.kind == "litellm":
            what = "litellm reaches this upstream, and no free call checks it; --live does not call it either."
            found.append(Finding(f"upstream {policy.name}", "ok", what))
    found += [finding for probe in probes for finding in (judge_upstream(probe), judge_key(probe)) if finding]
    store = await inspect_store(settings, is_quick=True)
    found.append(judge_clock(probes, store.last_ms, int(time.time() * 1000)))
    found.append(judge_server(address, told, __version__, settings.mode, is_refusing=is_refusing))
    misplaced = [each for each in told.findings if each.name.startswith(f"{MISPLACED} ")] if told is not None else []
    found += [each for each in misplaced if each not in found]
    if address:
        for probe, key in zip(probes, keys, strict=True):
            if _is_comparable(settings, known, probe):
                found.append(await compare_passing(address, probe, key))
    if settings.mode == "manage":
        found += await rehearse(settings, inputs, probes)
    if is_live:
        for policy, key in zip(policies, keys, strict=True):
            found.append(await call_live(settings, policy, key, inputs))
    return conclude(__version__, found, list_upstreams(settings))


def _is_comparable(settings: Settings, known: Sequence[UpstreamFacts], probe: UpstreamProbe) -> bool:
    """Return whether the running server passes a call that names no model on to an upstream, with the key used here.

    One that does not respond is not compared: that is told once. A key for another upstream must not be sent there, and
    callers of one that asks for keys of its own have others.
    """
    policies = settings.upstream_policies()
    first = policies[choose_upstream([each.models for each in policies], "")]
    has_another_key = any(each.name == probe.name and each.has_key for each in known) and not first.api_key
    return (
        bool(probe.status) and first.name == probe.name and not settings.server.require_tenant and not has_another_key
    )


def find_key(policy: UpstreamPolicy, environment: Mapping[str, str]) -> Headers:
    """Return the header with the key that calls to an upstream have, empty if only the clients have one.

    It is the one of the settings, else that of the environment if the upstream is the provider that it belongs to.
    """
    if (made := make_key_header(policy)) is not None:
        return (made,)
    host = urlsplit(policy.base_url).hostname or ""
    key = environment.get(_ENVIRONMENT_KEYS.get(host, ""), "")
    auth: Auth = "x-api-key" if host == "api.anthropic.com" else "bearer"
    made = make_key_header(replace(policy, api_key=key, auth="none" if policy.auth == "none" else auth))
    return (made,) if made is not None else ()


async def probe_upstream(policy: UpstreamPolicy, key: Headers) -> UpstreamProbe:
    """Ask an upstream for its list of models."""
    probe = UpstreamProbe(name=policy.name, address=policy.base_url, has_key=bool(key))
    began = time.monotonic()
    try:
        response = await fetch(policy, "GET", _MODELS, (*key, *_VERSION))
    except ProxyError as error:
        return msgspec.structs.replace(probe, problem=str(error))
    return msgspec.structs.replace(
        probe,
        status=response.status,
        models=_count_models(response.content),
        listing=response.content,
        seconds=time.monotonic() - began,
        skew=_find_skew(find_header(response.headers, b"date").decode("latin-1")),
    )


def _count_models(content: bytes) -> int:
    try:
        listed = msgspec.json.decode(content)
    except msgspec.DecodeError:
        return 0
    data = listed.get("data") if isinstance(listed, dict) else None
    return len(data) if isinstance(data, list) else 0


def _find_skew(date: str) -> float | None:
    """Return how many seconds this clock is ahead of a Date header."""
    try:
        return round(time.time() - email.utils.parsedate_to_datetime(date).timestamp(), 1)
    except (TypeError, ValueError):
        return None


def _take_ceiling(settings: Settings, ceiling: object) -> Settings:
    """Return settings with the ceiling that the running server tells, unless they state one."""
    if not isinstance(ceiling, int) or "budget.ceiling_tokens" in settings.model_fields_set:
        return settings
    budget = replace(settings.budget, ceiling_tokens=ceiling)
    return settings.model_copy(update={"budget": budget})


async def ask_server(settings: Settings, address: str) -> tuple[Diagnosis | None, bool]:
    """Return what the running server finds, None if it does not tell that, and whether it refuses our admin token."""
    if not address:
        return None, False
    server = UpstreamPolicy("server", base_url=address, api_key=read_admin_token(settings))
    try:
        response = await fetch(server, "GET", b"/-/api/doctor", ())
        if response.status == _OK:
            return msgspec.json.decode(response.content, type=Diagnosis), False
    except (ProxyError, msgspec.DecodeError):
        return None, False
    return None, response.status in _REFUSED


async def compare_passing(address: str, probe: UpstreamProbe, key: Headers) -> Finding:
    """Compare a call that is not managed, through the running server and directly: clients rely on such calls."""
    name = f"gateway {probe.name}"
    try:
        response = await fetch(UpstreamPolicy("server", base_url=address), "GET", _MODELS, (*key, *_VERSION))
    except ProxyError as error:
        what = f"The running server did not pass a call on: {error}."
        return Finding(name, "fault", what, "See the log of the server.")
    facts = {"through": response.status, "direct": probe.status}
    if response.status == probe.status:
        what = f"GET /v1/models gives {probe.status} through the running server, as it does directly."
        return Finding(name, "ok", what, facts=facts)
    what = f"GET /v1/models gives {response.status} through the running server, and {probe.status} directly."
    advice = "Restart the server with these settings."
    return Finding(name, "warning", what, advice, facts=facts)


async def rehearse(settings: Settings, inputs: SavingsInputs, probes: Sequence[UpstreamProbe] = ()) -> list[Finding]:
    """Play a session of a model of each upstream, on each wire of its API, through an engine with these settings.

    What came of it is judged.
    """
    played: list[Rehearsal] = []
    names = dict(reversed(await list_models(settings, probes)))
    windows = {name: inputs.prices.find_card(name, model).window for name, model in names.items()}
    sized = [replace(each, window=windows.get(each.name)) for each in settings.upstreams]
    own = settings.model_copy(update={"upstreams": tuple(sized)})
    asked: dict[str, list[ScriptedCall]] = {policy.name: [] for policy in settings.upstream_policies()}

    async def answer_noted(call: ScriptedCall) -> WholeResponse:
        asked[call.upstream].append(call)
        return await answer(call)

    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="palimpsest-doctor-")))
        try:
            engine = await stack.enter_async_context(open_engine(own, folder, answer_noted))
        except ProxyError as error:
            what = f"No session could be rehearsed: {error}."
            return [Finding("rehearsal", "fault", what, "Make room for temporary files.")]
        for policy in settings.upstream_policies():
            if (model := names.get(policy.name)) is None:
                continue  # no call goes there
            strategy = settings.engine_policy().find_strategy(model)
            budget = engine.models.budget(LimitKey(policy.name, model), strategy=strategy)
            # One whose budget is not usable has a finding that says so.
            for form in _list_forms(policy) if budget.usable else ():
                told = Rehearsal(
                    upstream=policy.name,
                    model=model,
                    wire=form.name,
                    strategy=strategy,
                    is_inferred=settings.sessions.infer,
                )
                played.append(await play(engine, asked, told, budget.high))
    found = [finding for each in played for finding in judge_rehearsal(each)]
    passing = {finding.sentence: finding for finding in map(judge_passing, played) if finding}  # each once
    return [*found, *passing.values()]


def _list_forms(policy: UpstreamPolicy) -> list[Format]:
    api = find_api(policy.base_url)
    return [form for form in FORMATS.values() if form.api == api]


async def call_live(settings: Settings, policy: UpstreamPolicy, key: Headers, inputs: SavingsInputs) -> Finding:
    """Send an upstream one short call with the key, and say what it cost."""
    name, model = f"live {policy.name}", dict(reversed(await list_models(settings))).get(policy.name)
    if not key or model is None:
        what = "No key is known here, or no call goes there, so no call was made."
        return Finding(name, "warning", what, "Set api_key, or the variable of the provider.")
    form = _list_forms(policy)[0]
    body = {"model": model, "messages": [{"role": "user", "content": "Say ok."}], form.limit_keys[0]: _LIVE_TOKENS}
    headers = ((b"content-type", b"application/json"), *key, *_VERSION)
    try:
        response = await fetch(policy, "POST", make_target(form), headers, msgspec.json.encode(body))
    except ProxyError as error:
        what = f"A short call failed: {error}."
        return Finding(name, "fault", what, "Check the upstream.")
    if response.status != _OK:
        what = f"A short call of {model} gave {response.status}."
        return Finding(name, "fault", what, "Check the model's name, the key and its quota.")
    answer = form.read_answer(read_object(response.content.decode("utf-8", "replace")) or {})
    money = inputs.prices.price(policy.name, model, answer.usage or Usage()).money
    price = "no price of it is known" if money is None else f"it cost ${money:.6f}"
    what = f"A short call of {model} was answered; {price}."
    return Finding(name, "ok", what, facts={"model": model, "money": money})
