"""Our tool in requests: whether it can be offered, adding it, the next round, and what later requests repeat.

Bodies are spliced: no byte that the client sent, or that was sent before, is written anew. So each request begins as
the one before it, and providers find it in their caches.
"""

from collections.abc import Mapping, Sequence

import msgspec

from proxy.model.manifest import compute_digest
from proxy.wire.body import SplitBody, split_body
from proxy.wire.format import Format
from proxy.wire.json_values import encode_text, join_array, load_lenient, read_objects
from proxy.wire.rendering import OUTPUT_LIMITS, drop_markers, list_lower_limits
from proxy.wire.rounds.chat import CHAT
from proxy.wire.rounds.messages import MESSAGES
from proxy.wire.rounds.responses import RESPONSES
from proxy.wire.rounds.stitching import OwnCall, OwnResult, PlayedRound, RoundEnd, RoundStitcher, is_named
from proxy.wire.rounds.tool import OwnTool, RoundWire

_WIRES: Mapping[str, RoundWire] = {wire.form.name: wire for wire in (CHAT, RESPONSES, MESSAGES)}
_MOST_TOOLS = 128
_LEAST_OUTPUT = 16  # OpenAI refuses a lower limit


def make_stitcher(
    form: Format,
    tool: str,
    *,
    is_stream: bool,
    binds_reasoning: bool = True,
    is_stored: bool = False,
    echo: bytes = b"",
) -> RoundStitcher:
    """Return what stitches the rounds of one response. `tool` is our tool's name; `is_stream`: events, else one body.

    `binds_reasoning`: the provider signs reasoning over all that precedes it, or may do so. `is_stored`: it keeps the
    response of each round, by which the client may go on. `echo`: see `RoundStitcher`.
    """
    wire = _WIRES[form.name]
    options = {"binds_reasoning": binds_reasoning, "is_stored": is_stored}
    return wire.make_stitcher(tool, is_stream=is_stream, echo=echo, **options)


def read_round(form: Format, tool: str, received: bytes, *, is_stream: bool) -> RoundEnd:
    """Return what a round has come to, from the recorded bytes of its response, as `RoundStitcher.end_round` did."""
    return _WIRES[form.name].read_round(tool, received, is_stream=is_stream)


def find_obstacle(form: Format, body: SplitBody, tool: str, *, is_offered: bool = False) -> str:
    """Return why our tool cannot be in the tools of a request; empty if it can.

    `is_offered`: it is in those of its epoch. As these must not change, it is no obstacle then that the request has
    another choice of tools, so that the model cannot call ours, or that it ends with the beginning of the answer.
    """
    wire = _WIRES[form.name]
    tools = load_lenient(body.member("tools") or b"null")
    if not isinstance(tools, list) or not tools:
        return "the request has no tools"
    if len(tools) >= _MOST_TOOLS:
        return f"the request has {len(tools)} tools"
    names = [name for each in read_objects(tools) for name in wire.list_names(each)]
    if own := next((name for name in names if is_named(name, tool)), ""):
        return f"the request has a tool {own} of its own"
    if (obstacle := wire.find_obstacle(body)) or is_offered:
        return obstacle
    if _is_begun(form, body):
        return "the request begins the answer"
    return "" if wire.is_choice_free(body) else "the request chooses among its tools"


def spell_tool(form: Format, tool: OwnTool) -> bytes:
    """Return our tool as a raw element of `tools`."""
    return _WIRES[form.name].spell_tool(tool)


def append_tool(tools: bytes, tool: bytes) -> bytes:
    """Return a raw `tools` array, which is not empty, with a raw tool behind the others."""
    return b"%b,%b]" % (tools[: tools.rindex(b"]")], tool)


def add_tool(form: Format, body: SplitBody, tool: OwnTool) -> bytes:
    """Return the body with our tool as the last of its tools. There must be no obstacle (`find_obstacle`)."""
    span = body.members["tools"]
    extended = append_tool(body.content[span.start : span.end], spell_tool(form, tool))
    return body.content[: span.start] + extended + body.content[span.end :]


def continue_request(
    form: Format,
    sent: bytes,
    end: RoundEnd,
    results: Sequence[OwnResult],
    *,
    is_last: bool = False,
    keeps_choice: bool = False,
) -> bytes:
    """Return the body of the next round: the one that was sent, with the model's answer and our results behind it.

    What is left of the output limit goes with it. `is_last`: the model is to call no tools any more, which is told by
    `tool_choice`; not on Messages, nor if `keeps_choice`, where another choice breaks the cache of the messages. Raises
    ValueError if the body cannot be split.
    """
    wire = _WIRES[form.name]
    body = split_body(sent, form.items_key)
    if body is None or form.items_key not in body.members:
        raise ValueError(f"the request has no {form.items_key}")
    changes = [_append(form, body, (*end.answer, *wire.spell_results(results))), *_list_limits(body, end)]
    if is_last and not keeps_choice and (choice := wire.forbid_calls()):
        changes.append(_set_choice(body, choice))
    pieces, at = list[bytes](), 0
    for start, stop, raw in sorted(changes):
        pieces += (sent[at:start], raw)
        at = stop
    return b"".join((*pieces, sent[at:]))


def name_calls(form: Format, tool: str, end: RoundEnd, sent: bytes) -> RoundEnd:
    """Return the end of a round with other ids for our calls if theirs may stand twice in a request.

    That is so if the provider counts ids anew in each answer: an id of this one is in the request that was sent, or
    twice in the answer. Where the request has no call, nothing tells, and ours get ids of their own, too.
    """
    wire = _WIRES[form.name]
    ids = [call.id for raw in end.answer for call in form.parse_message(raw).calls]
    is_unique = len(set(ids)) == len(ids) and not any([encode_text(each) in sent for each in ids])
    if is_unique and wire.result_key in sent:
        return end
    said = b"".join(end.answer)
    digests = [compute_digest(b"%d %d %b" % (place, len(sent), said)) for place, _ in enumerate(end.own)]
    own = tuple([OwnCall(digest.hex()[:9], call.arguments) for digest, call in zip(digests, end.own, strict=True)])
    answer = wire.rename_calls(end.answer, tool, iter([call.id for call in own]))
    return msgspec.structs.replace(end, own=own, answer=answer)


def restore_answer(
    form: Format, tool: str, rounds: Sequence[PlayedRound], following: Sequence[bytes] = ()
) -> tuple[bytes, ...]:
    """Return what is sent in place of a client's answer: all rounds that it was made of, as they were.

    `following` are the client's elements behind that answer, of which those are returned, too, that have to be sent
    otherwise: results of the client's own calls stand beside ours of the same round. Calls of the last round that were
    ignored, because they have no result, are left out. Rounds have no cache markers, since clients move theirs.
    """
    wire = _WIRES[form.name]
    restored: list[bytes] = []
    for place, played in enumerate(rounds):
        answer = tuple(map(drop_markers, played.answer))
        restored += wire.drop_calls(answer, tool, frozenset(result.id for result in played.results))
        if place < len(rounds) - 1:
            restored += wire.spell_results(played.results)
    last = rounds[-1].results if rounds else ()
    return (*restored, *wire.join_results(last, following))


def _is_begun(form: Format, body: SplitBody) -> bool:
    """Return whether a request ends with words that the model is to go on from, in formats that have this."""
    if form.is_itemised or not body.items:
        return False
    span = body.items[-1]
    return form.parse_structure(body.content[span.start : span.end]).role == "assistant"


def _append(form: Format, body: SplitBody, added: Sequence[bytes]) -> tuple[int, int, bytes]:
    """Return the change that adds elements behind the conversation."""
    if body.items:
        at = body.items[-1].end
        return at, at, b"".join([b"," + each for each in added])
    span, member = body.members[form.items_key], body.member(form.items_key)
    said = [b'{"role":"user","content":%b}' % member] if member[:1] == b'"' else []
    return span.start, span.end, join_array([*said, *added])


def _list_limits(body: SplitBody, end: RoundEnd) -> list[tuple[int, int, bytes]]:
    """Return the changes that leave what a round has not used of the output limit."""
    spent = end.usage.output if end.usage is not None else None
    limits = [int(raw) for name in OUTPUT_LIMITS if (raw := body.member(name)).isdigit()]
    return list_lower_limits(body, max(_LEAST_OUTPUT, min(limits) - spent)) if spent and limits else []


def _set_choice(body: SplitBody, choice: bytes) -> tuple[int, int, bytes]:
    """Return the change that sets the choice of tools."""
    span = body.members.get("tool_choice")
    if span is not None:
        return span.start, span.end, choice
    at = body.content.rindex(b"}")
    return at, at, b',"tool_choice":%b' % choice
