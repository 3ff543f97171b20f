"""Findings, and the judgements that make them of facts. All of it is pure: who gathers the facts does the I/O.

A fault means that something has no effect, or that records may be lost. A warning leaves the proxy working.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from proxy.context.budget import Budget
from proxy.engine.lineage.misplaced_keys import MisplacedKey
from proxy.model.epoch import Strategy
from proxy.model.exchange import SUCCESS, Mode

State = Literal["ok", "warning", "fault"]
Facts = Mapping[str, str | int | float | bool | None]

_GB = 1_000_000_000
_LITTLE_SPACE = 1 * _GB
_FEW_DAYS = 14
_NEARLY_FULL = 0.9
_CLOCK_SECONDS = 30.0
_BEHIND_SECONDS = 60.0
_DAY_MS = 86_400_000
_REFUSED = (401, 403)
MISPLACED = "credential"


class Finding(msgspec.Struct, frozen=True):
    """One thing that was examined. `advice` says what to do, and is empty where nothing is; `facts` are figures."""

    name: str
    state: State
    sentence: str
    advice: str = ""
    facts: Facts = {}


class UpstreamFacts(msgspec.Struct, frozen=True, kw_only=True):
    """An upstream, by the names that the settings have for it. `has_key`: they have a key for it."""

    name: str
    kind: Literal["openai", "litellm"]
    base_url: str
    models: tuple[str, ...]
    window: int | None
    has_key: bool


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """All findings, by the version of palimpsest that made them; `state` is the worst of theirs.

    `upstreams` are those of the settings, in their order.
    """

    version: str
    state: State
    findings: tuple[Finding, ...]
    upstreams: tuple[UpstreamFacts, ...] = ()


class UpstreamProbe(msgspec.Struct, frozen=True, kw_only=True):
    """What a free call to an upstream gave. `status` is 0 where no response came, and `problem` then says why.

    `listing` is its list of models as it sent it. `skew` is how many seconds our clock is ahead of the upstream's, None
    if it does not tell its time.
    """

    name: str
    address: str
    status: int = 0
    problem: str = ""
    has_key: bool = False
    models: int = 0
    listing: bytes = b""
    seconds: float = 0.0
    skew: float | None = None


class StoreFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The log as it is on the disk. `problem` says why it cannot be written or read, empty if it can.

    `faults` were found among `checked` of its records. `behind_seconds` is how far the search index is behind it.
    `began_ms` and `last_ms` are the times of its first and last call, None without calls. `unread` are the reasons why
    some of its newest `looked_at` calls were not read, one for each. `used_bytes` are those of the
    database without its free pages, of at most `max_bytes` (0: no limit); `is_room_made`: old sessions are then erased.
    """

    path: str
    exists: bool = False
    is_served: bool = False
    problem: str = ""
    log_bytes: int = 0
    free_bytes: int = 0
    used_bytes: int = 0
    max_bytes: int = 0
    is_room_made: bool = False
    checked: int = 0
    faults: tuple[str, ...] = ()
    is_whole: bool = True
    behind_seconds: float = 0.0
    index_fault: str = ""
    began_ms: int | None = None
    last_ms: int | None = None
    looked_at: int = 0
    unread: tuple[str, ...] = ()


def conclude(version: str, findings: Iterable[Finding], upstreams: Iterable[UpstreamFacts] = ()) -> Diagnosis:
    """Return the diagnosis of these findings."""
    found = tuple(findings)
    states = {finding.state for finding in found}
    worst: State = "fault" if "fault" in states else "warning" if "warning" in states else "ok"
    return Diagnosis(version=version, state=worst, findings=found, upstreams=tuple(upstreams))


def judge_mode(mode: Mode, ceiling: int | None = None) -> Finding:
    """Judge whether the settings let anything be shortened. `ceiling` is the configured one in tokens."""
    facts: Facts = {"mode": mode, "ceiling": ceiling}
    if mode == "bypass":
        what = "The mode is bypass: nothing is recorded or shortened."
        advice = "Set mode: manage, or leave out --mode bypass."
        return Finding("mode", "fault", what, advice, facts=facts)
    if mode == "observe":
        what = "The mode is observe: calls are recorded, and none is shortened."
        return Finding("mode", "warning", what, "Set mode: manage to shorten.", facts=facts)
    what = "The mode is manage: calls are recorded, and long ones shortened."
    return Finding("mode", "ok", what, facts=facts)


def judge_upstream(probe: UpstreamProbe) -> Finding:
    """Judge whether an upstream responds."""
    name = f"upstream {probe.name}"
    facts: Facts = {"address": probe.address, "status": probe.status}
    if probe.problem:
        what = f"{probe.address} does not respond: {probe.problem}."
        advice = "Check the address, --upstream, and the network; behind an HTTP proxy set the upstream's `proxy`."
        return Finding(name, "fault", what, advice, facts=facts)
    if probe.status >= 500:
        what = f"{probe.address} responds with an error of its own, {probe.status}."
        return Finding(name, "warning", what, "Try again later.", facts=facts)
    what = f"{probe.address} responds, in {1000 * probe.seconds:.0f} ms."
    return Finding(name, "ok", what, facts={**facts, "seconds": round(probe.seconds, 4)})


def judge_key(probe: UpstreamProbe) -> Finding | None:
    """Judge whether an upstream accepts the key, by its list of models, which costs nothing. None without response."""
    name = f"key {probe.name}"
    facts: Facts = {"status": probe.status, "models": probe.models}
    if probe.problem or probe.status >= 500:
        return None
    if not probe.has_key:
        what = "No key is known here: each client sends its own."
        return Finding(name, "ok", what, facts=facts)
    if probe.status in _REFUSED:
        what = f"The upstream refuses the key, with {probe.status}."
        advice = "Check the key in the settings (api_key), or in the environment of this command."
        return Finding(name, "fault", what, advice, facts=facts)
    if probe.status not in SUCCESS:
        what = f"The key could not be checked: the list of models gave {probe.status}."
        return Finding(name, "warning", what, "--live checks it by a call.", facts=facts)
    return Finding(name, "ok", f"The key is accepted; {probe.models} models are listed.", facts=facts)


def judge_clock(probes: Sequence[UpstreamProbe], last_ms: int | None, now_ms: int) -> Finding:
    """Judge the clock, by the upstreams' and by the log, whose newest call must not be in the future."""
    skews = [probe.skew for probe in probes if probe.skew is not None]
    skew = min(skews, key=abs, default=None)
    facts: Facts = {"skew_seconds": skew}
    if last_ms is not None and last_ms > now_ms + 1000 * _CLOCK_SECONDS:
        what = "The newest call of the log is in the future of this clock."
        return Finding("clock", "warning", what, "Set the clock (NTP).", facts=facts)
    if skew is not None and abs(skew) > _CLOCK_SECONDS:
        ahead = "ahead of" if skew > 0 else "behind"
        what = f"The clock is {abs(skew):.0f} s {ahead} the upstream's."
        return Finding("clock", "warning", what, "Set the clock (NTP).", facts=facts)
    what = "The clock agrees with the upstream's." if skew is not None else "No upstream told its time to compare with."
    return Finding("clock", "ok", what, facts=facts)


def judge_store(store: StoreFacts) -> list[Finding]:
    """Judge the log: whether it can be written, whether its records are right, and whether search keeps up."""
    facts: Facts = {"path": store.path, "bytes": store.log_bytes}
    if store.problem:
        advice = "Choose another directory by --data, or make room and give this user the right to write there."
        return [Finding("store", "fault", f"{store.problem}.", advice, facts=facts)]
    if not store.exists:
        what = f"There is no log at {store.path} yet, and it can be made."
        return [Finding("store", "ok", what, facts=facts)]
    writer = "the running server writes it" if store.is_served else "no server writes it now"
    found = [Finding("store", "ok", f"{store.path} can be written; {writer}.", facts=facts)]
    if store.faults:
        what = f"The log has {len(store.faults)} faults: {store.faults[0]}."
        advice = "Copy the data directory away, and see docs/operations.md; `palimpsest verify` lists all faults."
        found.append(Finding("records", "fault", what, advice, facts={"checked": store.checked}))
    else:
        part = "all" if store.is_whole else "the newest"
        what = f"The log is sound: {part} {store.checked} calls that were checked, our own among them, are as recorded."
        advice = "" if store.is_whole else "`palimpsest verify` checks all of a large log."
        found.append(Finding("records", "ok", what, advice, facts={"checked": store.checked}))
    lag: Facts = {"behind_seconds": round(store.behind_seconds, 1)}
    if store.index_fault:
        what, advice = (
            f"The search index cannot be used: {store.index_fault}.",
            "`palimpsest index --rebuild` makes it anew.",
        )
        found.append(Finding("search", "warning", what, advice, facts=lag))
    elif store.is_served and store.behind_seconds > _BEHIND_SECONDS:
        what = f"The search index is {store.behind_seconds:.0f} s behind the log."
        advice = "It follows when the machine is less busy; `palimpsest index` shows how far it is."
        found.append(Finding("search", "warning", what, advice, facts=lag))
    else:
        found.append(Finding("search", "ok", "Search follows the log.", facts=lag))
    return found


def judge_disk(store: StoreFacts) -> Finding:
    """Judge the free space, by how much the log grows in a day, and by what it may have."""
    days = max(1.0, ((store.last_ms or 0) - (store.began_ms or 0)) / _DAY_MS)
    growth = store.log_bytes / days
    facts: Facts = {
        "free_bytes": store.free_bytes,
        "bytes": store.log_bytes,
        "growth_bytes_per_day": round(growth),
        "used_bytes": store.used_bytes,
        "max_bytes": store.max_bytes,
    }
    left = store.free_bytes / growth if growth else None
    size = f"{store.free_bytes / _GB:.1f} GB are free"
    if left is not None and store.log_bytes:
        size += f"; the log has {store.log_bytes / 1e6:.0f} MB and grows by {growth / 1e6:.1f} MB a day"
    if store.free_bytes < _LITTLE_SPACE or (left is not None and left < _FEW_DAYS):
        advice = "Make room, move the data directory, or set store.max_bytes or store.retention_days."
        return Finding("disk", "warning", f"Only {size}.", advice, facts=facts)
    if store.max_bytes and store.used_bytes > _NEARLY_FULL * store.max_bytes and not store.is_room_made:
        used = f"{store.used_bytes / 1e6:.0f} of the {store.max_bytes / 1e6:.0f} MB of store.max_bytes"
        what = f"The log has {used}; once they are full calls go on, but are not recorded."
        advice = (
            "Set a larger store.max_bytes, or store.retention_days or store.when_full: erase, which erase sessions."
        )
        return Finding("disk", "warning", what, advice, facts=facts)
    return Finding("disk", "ok", f"{size}.", facts=facts)


def judge_token(mode: int | None, path: str, *, is_set: bool) -> Finding:
    """Judge who can read the admin token. `mode` are the permission bits of its file, None if there is none."""
    if is_set:
        return Finding("token", "ok", "The admin token is that of the settings.")
    if mode is None:
        return Finding("token", "ok", "The admin token is made when the server starts first.")
    facts: Facts = {"mode": f"{mode:04o}"}
    if mode & 0o077:
        what = f"Others can read the admin token, for its file has the mode {mode:04o}."
        advice = f"chmod 600 {path}; then delete it and restart, so that a new one is made."
        return Finding("token", "fault", what, advice, facts=facts)
    return Finding("token", "ok", "Only you can read the admin token.", facts=facts)


_BEGINNINGS: Mapping[Strategy, str] = {
    "epochs": "shortened from {soft:,} tokens on where it pays, from {high:,} on always",
    "turns": "shortened with each prompt of the user, to {high:,} tokens at most",
    "snapshot": "memory is made from {soft:,} tokens on, and always shortened from {high:,} on",
}


def judge_window(upstream: str, model: str, budget: Budget, strategy: Strategy) -> Finding:
    """Say which strategy applies to a model, its window, and from how many tokens on its requests are shortened."""
    facts: Facts = {
        "model": model,
        "upstream": upstream,
        "strategy": strategy,
        "window": budget.window,
        "soft_mark": budget.soft,
        "high_mark": budget.high,
    }
    window = f"{budget.window:,} tokens" if budget.window else "not known"
    marks = _BEGINNINGS[strategy].format(soft=budget.soft, high=budget.high)
    if not budget.usable:
        what = f"{model} at {upstream}: window {window}, which leaves no room for input, so it is never shortened."
        advice = "Set models.PATTERN.window, or lower budget.output_reserve."
        return Finding(f"model {model}", "fault", what, advice, facts=facts)
    advice = "" if budget.window else "Set models.PATTERN.window, or the upstream's window, if it has less."
    what = f"{model} at {upstream}: window {window}, strategy {strategy}, {marks}."
    return Finding(f"model {model}", "ok" if budget.window else "warning", what, advice, facts=facts)


def judge_route(upstream: str) -> Finding:
    """Say that calls of all models go to other upstreams."""
    what = f"No call goes to {upstream}: other upstreams get the calls of all models."
    advice = (
        "List its models in its settings; an upstream without `models` gets a call only if it is the first of these."
    )
    return Finding(f"route {upstream}", "warning", what, advice)


def judge_misplaced(found: MisplacedKey) -> Finding:
    """Say that a credential goes to a provider whose it is not, who then has it."""
    what = f"A credential in the form of {found.owner} goes to {found.upstream}, which is {found.receiver}'s."
    advice = (
        f"Give {found.owner} an upstream of its own with `models`, or that upstream the right api_key; if it is a key "
        "that matters, replace it."
    )
    facts: Facts = {"upstream": found.upstream, "owner": found.owner, "receiver": found.receiver}
    name = f"{MISPLACED} {found.upstream}"
    return Finding(name, "warning", what, advice, facts=facts)


def judge_preamble(session: str, tokens: int, budget: Budget) -> Finding | None:
    """Say that the system prompt and the tools of a session leave its messages too little room below the ceiling."""
    lifted = budget.lift(tokens)
    if not lifted.lifted:
        return None
    facts: Facts = {"session": session, "preamble": tokens, "usable": budget.usable, "high_mark": lifted.high}
    what = (
        f"The system prompt and the tools of session {session[:12]} alone have {tokens:,} tokens of the"
        f" {budget.usable:,} below the ceiling. Its messages keep {lifted.high - tokens:,} beside them, so that its"
        f" requests are shortened from {lifted.high:,} on."
    )
    advice = "Raise budget.ceiling_tokens, or offer fewer tools (MCP servers)."
    return Finding("preamble", "warning", what, advice, facts=facts)


def judge_local(upstream: str, *, summary_model: str) -> Finding:
    """Say how calls of ours keep out of the way of the clients' at an engine that serves one request at a time."""
    what = f"{upstream} is taken for an engine that serves one request at a time: it is asked for nothing of ours"
    if summary_model:
        what += f" but summaries by {summary_model}, in idle moments, which end when a call arrives."
    else:
        what += ", and summaries are made without a model."
    advice = "See docs/local-models.md; if it serves many at once, declare upstreams[].cache: prefix."
    return Finding(f"local {upstream}", "ok", what, advice)


def find_facts(told: Diagnosis | None, name: str) -> Facts:
    """Return the facts of the finding of this name; none without one."""
    return next((each.facts for each in told.findings if each.name == name), {}) if told is not None else {}


def judge_server(
    address: str, told: Diagnosis | None, version: str, settings_mode: Mode, *, is_refusing: bool = False
) -> Finding:
    """Judge the server that runs on the data directory, by what it tells of itself; without an address none runs.

    `is_refusing`: it does not take our admin token.
    """
    theirs, mode = told.version if told is not None else "", find_facts(told, "mode").get("mode", "")
    facts: Facts = {"address": address, "version": theirs, "mode": mode}
    if not address:
        what = "No server runs on this data directory."
        advice = "`palimpsest run -- CLIENT` starts one with its client, `palimpsest serve` one that stays."
        return Finding("server", "warning", what, advice, facts=facts)
    if is_refusing:
        what = f"The server at {address} does not take this command's admin token, so it tells nothing of itself."
        advice = "Say --admin-token, as the server was told it."
        return Finding("server", "warning", what, advice, facts=facts)
    if not theirs:
        what = f"The server at {address} does not tell its version: it is older than this command."
        return Finding("server", "warning", what, "Restart it.", facts=facts)
    if theirs != version:
        what = f"The server at {address} is version {theirs}, this command {version}."
        return Finding("server", "warning", what, "Restart the server.", facts=facts)
    if mode and mode != settings_mode:
        what = f"The server at {address} runs in mode {mode}, these settings say {settings_mode}."
        state: State = "fault" if mode == "bypass" else "warning"
        return Finding("server", state, what, "Restart it with these settings.", facts=facts)
    what = f"A server of this version runs at {address}."
    return Finding("server", "ok", what, facts=facts)


def judge_traffic(store: StoreFacts, now_ms: int) -> Finding:
    """Say whether calls have arrived at all: a client that was not redirected gives no error anywhere."""
    if store.last_ms is None:
        what = "No call has been recorded yet."
        advice = "Set the client's base URL as said here, or start it by `palimpsest run`; then call again."
        return Finding("traffic", "warning", what, advice)
    age = max(0, now_ms - store.last_ms) / 1000
    for size, unit in ((86_400, "days"), (3600, "hours"), (60, "minutes"), (1, "seconds")):
        if age >= 2 * size or size == 1:
            what = f"The newest call was recorded {age / size:.0f} {unit} ago."
            break
    return Finding("traffic", "ok", what, facts={"age_seconds": round(age)})


def judge_bodies(store: StoreFacts) -> Finding | None:
    """Tell of calls that were sent as they came because their bodies could not be read. None if there was none."""
    if not store.unread:
        return None
    what = f"{len(store.unread)} of the newest {store.looked_at} calls were not managed: {store.unread[0]}."
    advice = "See docs/troubleshooting.md for what is read; `palimpsest show SESSION N` says it of a call."
    return Finding("bodies", "warning", what, advice, facts={"unread": len(store.unread)})


def list_clients(address: str, apis: Iterable[str]) -> Finding:
    """Say what clients are to be given as base URL, by the API that the upstreams speak."""
    told = {
        "openai": f"{address}/v1 as OPENAI_BASE_URL (SDKs, aider, qwen, llm), as openai_base_url for codex",
        "anthropic": f"{address} as ANTHROPIC_BASE_URL for claude",
    }
    chosen = [told[api] for api in dict.fromkeys(apis)]
    what = f"Clients are given {'; '.join(chosen)}."
    advice = "`palimpsest run -- CLIENT` does this by itself; docs/clients.md has each client."
    return Finding("clients", "ok", what, advice, facts={"address": address})
