"""A rehearsed session: a conversation of ours through the engine to a scripted upstream, and what came of it.

It goes the way of any call, with the user's settings, but over no network. The conversation is written by us, long
enough to pass the high mark of the model.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from proxy.assembly import Engine
from proxy.engine.call.response_stream import LocalClient, WholeResponse
from proxy.lab.session import ScriptedAgent, ScriptedStep
from proxy.lab.upstream import ScriptedCall, make_call
from proxy.model.exchange import Headers, Usage
from proxy.read.findings import Facts, Finding, State
from proxy.wire import FORMATS, OWN_FORMAT
from proxy.wire.body import split_body
from proxy.wire.format import Format
from proxy.wire.json_values import format_json
from proxy.wire.messages import CACHE_MARKER
from proxy.wire.rounds import OwnTool
from proxy.wire.translation.conversations import translate
from proxy.wire.translation.responses import write_response

_WORDS = "the module reads a record and checks its length before the next one is taken from the queue of open files "
_BYTES_PER_TOKEN = 4
_STEPS = 40  # in all
_GROWTH = (1, 1, 5, 5, 5, 5, 5, 5, 4, 4, 0, 0)  # the steps that each request has more than the one before
_OVER = 1.4
_HEADERS: Headers = (
    (b"user-agent", b"palimpsest-doctor"),
    (b"anthropic-beta", b"doctor-2026-01-01"),
    (b"authorization", b"Bearer palimpsest-doctor-has-no-key"),
)
_LIMITED = b'{"error":{"message":"slow down","type":"rate_limit_error"}}'
_LIMITED_NAME = "status_429"
# No settings protect the outputs of a tool of this name.
_READ = OwnTool("rehearsal_read", "Read a file.", {"type": "object", "properties": {"path": {"type": "string"}}})
_NOTED = ScriptedStep("Noted.").write("")


class Rehearsal(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a rehearsed session. `problem` says why it could not be played, and is empty otherwise.

    `client` and `sent` are the tokens of its last request.
    `is_one`: its calls were recognised as one session, another conversation as another. `is_repeated`: after it was
    shortened, each request began with the bytes of the one before, but for cache markers, which move. `is_passed`:
    headers and errors passed unchanged. `is_inferred`: its calls did not name their session.
    """

    upstream: str
    model: str
    wire: str
    strategy: str
    problem: str = ""
    client: int = 0
    sent: int = 0
    is_managed: bool = False
    is_one: bool = False
    is_repeated: bool = False
    is_passed: bool = False
    is_inferred: bool = True


def write_requests(form: Format, model: str, name: str, size: int) -> Iterator[bytes]:
    """Yield the requests of a growing conversation: tools return `size` characters each, and the model notes them."""
    words = (_WORDS * (size // len(_WORDS) + 1))[:size]
    agent = ScriptedAgent(form, model, lambda _, arguments: f"{arguments['path']} of {name}\n{words}")
    agent.ask(f"Read the files of {name} and say what they do.")
    number = 0
    for steps in _GROWTH:
        for _ in range(steps):
            number += 1
            path = f"src/part_{number}.py"
            step = ScriptedStep(f"I read {path}.", _READ.name, {"path": path})
            agent.take(step.write(f"call_{name}_{number:03d}"))
        yield agent.write([_READ])
        agent.take(_NOTED)
        agent.ask(f"Go on after part {number}.")


async def answer(call: ScriptedCall) -> WholeResponse:
    """Answer a call with a word, in its format."""
    if _LIMITED_NAME.encode() in call.body:
        return WholeResponse(429, ((b"retry-after", b"7"),), _LIMITED)
    usage, noted = Usage(len(call.body) // _BYTES_PER_TOKEN, 2), [format_json(_NOTED).encode()]
    items = translate(OWN_FORMAT, call.form, noted).items[-1:]
    return WholeResponse(200, (), write_response(call.form, items, number="1", model="m", usage=usage))


async def play(engine: Engine, asked: Mapping[str, Sequence[ScriptedCall]], told: Rehearsal, high: int) -> Rehearsal:
    """Play the session of a model past a high mark of so many tokens. `asked` are the calls that each upstream got."""
    form, got = FORMATS[told.wire], asked[told.upstream]
    size = int(_OVER * high * _BYTES_PER_TOKEN / _STEPS)

    async def call(body: bytes, name: str) -> LocalClient:
        key = (b"x-palimpsest-session", f"palimpsest-doctor-{name}".encode())
        return await make_call(engine, form, body, _HEADERS if told.is_inferred else (*_HEADERS, key))

    clients, sent, body = [], [], b""
    for body in write_requests(form, told.model, "alpha", size):
        client = await call(body, "alpha")
        if problem := _find_problem(client):
            return msgspec.structs.replace(told, problem=problem)
        if not got:
            return msgspec.structs.replace(told, problem="its calls went to another upstream")
        clients.append(client)
        sent.append(got[-1].body)
    other, limited = [
        await call(next(write_requests(form, told.model, name, 0)), name) for name in ("beta", _LIMITED_NAME)
    ]
    labels = dict(clients[-1].labels)
    sizes = _read_sizes(labels.get(b"x-palimpsest-tokens", b"").decode())
    names = {client.session for client in clients}
    return msgspec.structs.replace(
        told,
        client=sizes.get("client", len(body) // _BYTES_PER_TOKEN),
        sent=sizes.get("upstream", len(sent[-1]) // _BYTES_PER_TOKEN),
        is_managed=b"x-palimpsest-epoch" in labels or sent[-1] != body,
        is_one=len(names) == 1 and other.session not in ("", *names),
        is_repeated=_is_repeated(form, sent[-2], sent[-1]),
        is_passed=_is_passed(limited, got[-1].headers),
    )


def _is_passed(limited: LocalClient, headers: Headers) -> bool:
    """Return whether a refusal came back as it was, and the client's headers had arrived."""
    is_answered = limited.status == 429 and limited.content == _LIMITED
    is_kept = (b"retry-after", b"7") in limited.headers
    return is_answered and is_kept and {name for name, _ in _HEADERS} <= {name for name, _ in headers}


def _find_problem(client: LocalClient) -> str:
    """Return why a call has no answer, empty if it has one."""
    if client.error is not None:
        return str(client.error)
    if not client.is_whole:
        return "the response broke off"
    return "" if client.status == 200 else f"a call ended with status {client.status}"


def _is_repeated(form: Format, before: bytes, after: bytes) -> bool:
    """Return whether a request begins with the one before. Cache markers do not count, for they are no part of it."""
    if after.startswith(before[: -len(b"]}")]):
        return True
    parts = [split_body(body, form.items_key) for body in (before, after)]
    if CACHE_MARKER not in after or not all(part is not None and part.items for part in parts):
        return False
    heads = [part.content[: part.items[0].start] for part in parts if part is not None]
    items = [form.read_items(part.content, part.items) for part in parts if part is not None]
    return heads[0] == heads[1] and items[0] == items[1][: len(items[0])]


def _read_sizes(label: str) -> dict[str, int]:
    """Read `client=N, upstream=M`."""
    pairs = [part.strip().partition("=") for part in label.split(",") if part]
    return {name: int(count) for name, _, count in pairs}


def judge_rehearsal(played: Rehearsal) -> list[Finding]:
    """Judge a rehearsed session: recognised, shortened, repeated byte for byte, and otherwise passed unchanged."""
    name = f"{played.model} at {played.upstream} over {FORMATS[played.wire].title}"
    facts: Facts = {
        "model": played.model,
        "upstream": played.upstream,
        "strategy": played.strategy,
        "wire": played.wire,
    }
    if played.problem:
        what = f"A rehearsed session of {name} could not be played: {played.problem}."
        advice = "See the log of this command; if the settings are right, please report it."
        return [Finding("rehearsal", "fault", what, advice, facts=facts)]
    found = []
    if played.is_one and not played.is_inferred:
        what = f"Calls that name their session are recognised by that, and no others: sessions.infer is off ({name})."
        advice = "Have each client send x-palimpsest-session, or set sessions.infer: true."
        found.append(Finding("session", "warning", what, advice, facts=facts))
    elif played.is_one:
        what = f"Calls of one conversation are one session, and those of another are another ({name})."
        found.append(Finding("session", "ok", what, facts=facts))
    else:
        what = f"Calls of one conversation were not recognised as one session ({name})."
        advice = "Set sessions.infer: true, or have the client send x-palimpsest-session."
        found.append(Finding("session", "fault", what, advice, facts=facts))
    sizes: Facts = {**facts, "client_tokens": played.client, "sent_tokens": played.sent}
    if not played.is_managed or played.sent >= played.client:
        found.append(_judge_unshortened(played, name, sizes))
        return found
    share = 100 * (1 - played.sent / played.client)
    what = (
        f"A rehearsed long session of {name} shrinks from {played.client:,} to {played.sent:,} tokens ({share:.0f} %)."
    )
    found.append(Finding("shortening", "ok", what, facts=sizes))
    if played.is_repeated:
        what = f"After it each request begins with the bytes of the one before, so that the cache stays warm ({name})."
        found.append(Finding("cache", "ok", what, facts=facts))
    else:
        what = f"After it requests do not begin with the bytes of the one before ({name}); the cache would miss."
        state: State = "warning" if played.strategy == "turns" else "fault"
        advice = "The strategy turns changes with each prompt; epochs does not." if state == "warning" else "Report it."
        found.append(Finding("cache", state, what, advice, facts=facts))
    return found


def judge_passing(played: Rehearsal) -> Finding | None:
    """Judge whether what clients expect of a gateway is kept; None if nothing was played."""
    if played.problem:
        return None
    if played.is_passed:
        what = "Headers of clients, and refusals of the upstream with their headers, pass unchanged."
        return Finding("gateway", "ok", what)
    what = "A refusal of the upstream, or a header of the client, did not pass unchanged."
    return Finding("gateway", "fault", what, "Please report it.")


def _judge_unshortened(played: Rehearsal, name: str, facts: Facts) -> Finding:
    if played.strategy == "snapshot":
        what = f"A rehearsed session of {name} has no memory yet: the strategy snapshot has a model make it."
        advice = "Watch the first long session by `palimpsest show`."
        return Finding("shortening", "warning", what, advice, facts=facts)
    what = f"A rehearsed long session of {name} was not shortened: {played.client:,} tokens were sent."
    advice = "Check mode, budget and pruning in the settings; `palimpsest config check` names what is wrong."
    return Finding("shortening", "fault", what, advice, facts=facts)
