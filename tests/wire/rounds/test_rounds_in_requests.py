"""Our tool in requests: what excludes it, how it is added, the next round, and what later requests repeat."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from proxy.model.exchange import Usage
from proxy.wire import FORMATS
from proxy.wire.body import SplitBody, split_body
from proxy.wire.format import Format
from proxy.wire.rounds import (
    OwnResult,
    OwnTool,
    PlayedRound,
    RoundEnd,
    add_tool,
    append_tool,
    continue_request,
    find_obstacle,
    name_calls,
    read_round,
    restore_answer,
    spell_tool,
)
from tests.support.rounds import SPEAKERS, TOOL, Call, Speaker, Text, Thought, Turn, number, play

CHAT, MESSAGES, RESPONSES = (FORMATS[name] for name in ("chat_completions", "anthropic_messages", "responses"))
ALL = pytest.mark.parametrize("form", [CHAT, MESSAGES, RESPONSES], ids=lambda form: form.name)
SPEAKING = pytest.mark.parametrize("speaker", SPEAKERS, ids=lambda speaker: speaker.form.name)
RECALL = OwnTool(TOOL, 'Reads what "was" removed.', {"type": "object", "properties": {"query": {"type": "string"}}})
END = RoundEnd(answer=(b'{"said":1}',), usage=Usage(output=30))
RESULTS = (OwnResult("a", "found: é"), OwnResult("b", "\ud800"))


def name_tool(form: Format, name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}} if form is CHAT else {"name": name}


def split(form: Format, **members: Any) -> SplitBody:
    said = [{"role": "user", "content": "hi"}]
    body = {form.items_key: said, "tools": [name_tool(form, "read")], **members}
    found = split_body(json.dumps(body).encode(), form.items_key)
    assert found is not None
    return found


@ALL
def test_a_request_with_tools_can_have_ours(form: Format) -> None:
    assert find_obstacle(form, split(form), TOOL) == ""
    assert find_obstacle(form, split(form, n=1, tool_choice=None, functions=[], audio=None), TOOL) == ""


@ALL
@pytest.mark.parametrize(
    ("tools", "why"),
    [([], "no tools"), (None, "no tools"), ("x", "no tools"), ("same", "of its own"), ("many", "128 tools")],
)
def test_the_clients_tools_may_exclude_ours(form: Format, tools: Any, why: str) -> None:
    tools = {"same": [name_tool(form, TOOL)], "many": [name_tool(form, "x")] * 128}.get(tools or "", tools)
    assert why in find_obstacle(form, split(form, tools=tools), TOOL)
    bare = split_body(b'{"%b":[]}' % form.items_key.encode(), form.items_key)
    assert bare is not None
    assert find_obstacle(form, bare, TOOL) == "the request has no tools"


def test_names_inside_other_kinds_of_tools_count() -> None:
    custom = {"type": "custom", "custom": {"name": TOOL}}
    space = {"type": "namespace", "name": "x", "tools": [{"name": TOOL}]}
    assert "of its own" in find_obstacle(CHAT, split(CHAT, tools=[custom]), TOOL)
    assert "of its own" in find_obstacle(RESPONSES, split(RESPONSES, tools=[space]), TOOL)


@pytest.mark.parametrize(
    ("form", "members"),
    [
        (CHAT, {"n": 2}),
        (CHAT, {"audio": {"voice": "x"}}),
        (CHAT, {"modalities": ["text", "audio"]}),
        (CHAT, {"functions": [{}]}),
        (CHAT, {"function_call": "auto"}),
        (RESPONSES, {"modalities": ["audio"]}),
    ],
)
def test_other_members_exclude_it(form: Format, members: Mapping[str, Any]) -> None:
    assert find_obstacle(form, split(form, **members), TOOL, is_offered=True)


@pytest.mark.parametrize(
    ("form", "choice", "is_free"),
    [
        (CHAT, "auto", True),
        (CHAT, "required", True),
        (CHAT, "none", False),
        (CHAT, {"type": "function", "function": {"name": "read"}}, False),
        (RESPONSES, "auto", True),
        (RESPONSES, {"type": "allowed_tools", "mode": "auto", "tools": []}, False),
        (MESSAGES, {"type": "auto"}, True),
        (MESSAGES, {"type": "any"}, True),
        (MESSAGES, {"type": "none"}, False),
        (MESSAGES, {"type": "tool", "name": "read"}, False),
        (MESSAGES, "odd", False),
    ],
)
def test_a_choice_among_the_tools_excludes_it_unless_it_is_offered(form: Format, choice: Any, is_free: bool) -> None:
    body = split(form, tool_choice=choice)
    assert find_obstacle(form, body, TOOL) == ("" if is_free else "the request chooses among its tools")
    assert find_obstacle(form, body, TOOL, is_offered=True) == ""


@pytest.mark.parametrize("form", [CHAT, MESSAGES])
def test_an_answer_that_the_client_begins_excludes_it(form: Format) -> None:
    begun = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "{"}]
    assert "begins the answer" in find_obstacle(form, split(form, messages=begun), TOOL)
    assert find_obstacle(form, split(form, messages=begun), TOOL, is_offered=True) == ""
    assert find_obstacle(form, split(form, messages=[]), TOOL) == ""


@ALL
def test_the_tool_comes_last_and_nothing_else_changes(form: Format) -> None:
    spelled = json.dumps({form.items_key: [], "tools": [name_tool(form, "read")], "z": 1}, indent=1).encode()
    body = split_body(spelled, form.items_key)
    assert body is not None
    added = add_tool(form, body, RECALL)
    span = body.members["tools"]
    assert added.startswith(spelled[: span.end - 1])
    assert added.endswith(spelled[span.end - 1 :])
    assert append_tool(body.member("tools"), spell_tool(form, RECALL)) in added
    [_, ours] = json.loads(added)["tools"]
    assert spell_tool(form, RECALL) + b"]" in added
    described = ours.get("function", ours)
    assert described["name"] == TOOL
    assert described["description"] == RECALL.description
    assert described.get("parameters") or described["input_schema"] == RECALL.parameters
    assert ours.get("strict") is (False if form is RESPONSES else None)
    assert find_obstacle(form, split_body(added, form.items_key) or body, TOOL)


@ALL
def test_the_next_round_is_the_request_with_more_at_its_end(form: Format) -> None:
    spelled = json.dumps(
        {form.items_key: [{"role": "user", "content": "é"}], "z": 1}, ensure_ascii=False, indent=1
    ).encode()
    body = split_body(spelled, form.items_key)
    assert body is not None
    at = body.items[0].end
    more = continue_request(form, spelled, END, RESULTS)
    assert more.startswith(spelled[:at])
    assert more.endswith(spelled[at:])
    assert json.loads(more)[form.items_key][1] == {"said": 1}
    assert json.dumps("found: é", ensure_ascii=False).encode() in more
    again = continue_request(form, more, END, RESULTS[:1])
    assert again.startswith(more[: len(more) - len(spelled) + at])


def test_results_are_spelt_as_each_format_has_them() -> None:
    result = (OwnResult("a", "x"),)
    end = RoundEnd()
    [chat] = json.loads(continue_request(CHAT, b'{"messages":[]}', end, result))["messages"]
    [message] = json.loads(continue_request(MESSAGES, b'{"messages":[]}', end, result))["messages"]
    [item] = json.loads(continue_request(RESPONSES, b'{"input":[]}', end, result))["input"]
    assert chat == {"role": "tool", "tool_call_id": "a", "content": "x"}
    assert message == {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "x"}]}
    assert item == {"type": "function_call_output", "call_id": "a", "output": "x"}
    assert json.loads(continue_request(MESSAGES, b'{"messages":[]}', end, ()))["messages"] == []


def test_a_text_as_input_becomes_a_message() -> None:
    more = continue_request(RESPONSES, b'{"input": "hi" , "z": 1}', END, ())
    assert more == b'{"input": [{"role":"user","content":"hi"},{"said":1}] , "z": 1}'


def test_a_body_that_cannot_be_continued_is_refused() -> None:
    for body in (b"x", b'{"a":1}'):
        with pytest.raises(ValueError, match="no messages"):
            continue_request(CHAT, body, END, ())


@pytest.mark.parametrize(
    ("form", "member", "asked", "left"),
    [
        (CHAT, "max_tokens", 100, 70),
        (CHAT, "max_completion_tokens", 40, 16),
        (MESSAGES, "max_tokens", 4096, 4066),
        (RESPONSES, "max_output_tokens", 20, 16),
        (RESPONSES, "max_output_tokens", None, None),
    ],
)
def test_what_is_left_of_the_output_limit_goes_with_it(form: Format, member: str, asked: Any, left: Any) -> None:
    body = split(form, **{member: asked}).content
    assert json.loads(continue_request(form, body, END, ()))[member] == left
    untold = RoundEnd(answer=END.answer)
    assert json.loads(continue_request(form, body, untold, ()))[member] == asked


def test_a_limit_stays_above_the_budget_of_thinking() -> None:
    body = split(MESSAGES, max_tokens=1040, thinking={"type": "enabled", "budget_tokens": 1024}).content
    assert json.loads(continue_request(MESSAGES, body, END, ()))["max_tokens"] == 1040


@pytest.mark.parametrize(("form", "expected"), [(CHAT, "none"), (RESPONSES, "none"), (MESSAGES, None)])
def test_the_last_round_calls_nothing_where_that_costs_no_cache(form: Format, expected: str | None) -> None:
    body = split(form).content
    assert json.loads(continue_request(form, body, END, (), is_last=True)).get("tool_choice") == expected
    assert "tool_choice" not in json.loads(continue_request(form, body, END, (), is_last=True, keeps_choice=True))
    chosen = split(form, tool_choice="auto", z=1).content
    assert json.loads(continue_request(form, chosen, END, (), is_last=True))["tool_choice"] == (expected or "auto")


# Later requests

TURNS = number(
    [Thought("hm"), Text("Wait."), Call('{"q":1}'), Call("{}")],
    [Call("{}")],
    [Thought("now"), Text("So"), Call("{}"), Call('{"p":1}', "read")],
)


def answer(end: RoundEnd) -> tuple[OwnResult, ...]:
    return tuple(OwnResult(call.id, f"result of {call.id}") for call in end.own)


@SPEAKING
@pytest.mark.parametrize("is_stream", [True, False])
def test_a_later_request_repeats_what_was_sent_and_received(speaker: Speaker, is_stream: bool) -> None:
    """What was sent in the last round is a prefix of the restored history, byte by byte."""
    form = speaker.form
    bodies = [speaker.stream(turn) if is_stream else speaker.spell_body(turn) for turn in TURNS]
    _, ends = play(form, bodies, is_stream=is_stream)
    head = b'{"%b":[{"role":"user","content":"hi"}' % form.items_key.encode()
    sent = head + b"]}"
    for end in ends[:-1]:
        sent = continue_request(form, sent, end, answer(end))
    rounds = [PlayedRound(end.answer, answer(end)) for end in ends]
    follows = {
        CHAT.name: b'{"role":"tool","tool_call_id":"x2i3","content":"theirs"}',
        MESSAGES.name: b'{"role":"user","content":[{"type":"tool_result","tool_use_id":"x2i3","content":"theirs"}]}',
        RESPONSES.name: b'{"type":"function_call_output","call_id":"x2i3","output":"theirs"}',
    }[form.name]
    restored = restore_answer(form, TOOL, rounds, (follows,))
    whole = b",".join((head, *restored)) + b"]}"
    assert whole.startswith(sent.removesuffix(b"]}"))
    structures = [form.parse_structure(raw) for raw in restored]
    made = [call for each in structures for call in each.calls]
    assert made == [call.id for turn in TURNS for call in turn.calls]
    assert sorted(result for each in structures for result in each.results) == sorted(made)
    assert restored == restore_answer(form, TOOL, [PlayedRound(each.answer, answer(each)) for each in ends], (follows,))
    for body, end in zip(bodies, ends, strict=True):
        assert read_round(form, TOOL, body, is_stream=is_stream) == end


def test_results_of_both_stand_in_one_message() -> None:
    played = [PlayedRound((b'{"role":"assistant","content":[]}',), (OwnResult("a", "x"),))]
    ours = {"type": "tool_result", "tool_use_id": "a", "content": "x"}
    theirs = {"type": "tool_result", "tool_use_id": "b", "content": "y", "cache_control": {"type": "ephemeral"}}
    for content, parts in (([theirs], [theirs]), ("words", [{"type": "text", "text": "words"}])):
        following = json.dumps({"role": "user", "content": content, "z": 1}).encode()
        [*_, last, more] = restore_answer(MESSAGES, TOOL, played, (following, b"{}"))
        assert json.loads(last) == {"role": "user", "content": [ours, *parts], "z": 1}
        assert more == b"{}"
    [*_, alone] = restore_answer(MESSAGES, TOOL, played)
    assert json.loads(alone)["content"] == [ours]
    [*_, own, other] = restore_answer(MESSAGES, TOOL, played, (b'{"role":"assistant"}',))
    assert (json.loads(own)["content"], other) == ([ours], b'{"role":"assistant"}')


@SPEAKING
def test_calls_that_were_ignored_are_left_out(speaker: Speaker) -> None:
    turns = number([Thought(), Text("So"), Call(), Call("{}", "read")], [Thought(), Call()], [Text(f"no {TOOL}")])
    ends = [read_round(speaker.form, TOOL, speaker.stream(turn), is_stream=True) for turn in turns]
    mixed, silent, words = (restore_answer(speaker.form, TOOL, [PlayedRound(end.answer)]) for end in ends)
    assert TOOL.encode() not in b"".join(mixed)
    assert b"read" in b"".join(mixed)
    assert silent == (() if speaker.form is not CHAT else silent)
    assert TOOL.encode() not in b"".join(silent)
    assert words == ends[2].answer
    assert restore_answer(speaker.form, TOOL, ()) == ()


@SPEAKING
def test_our_calls_get_ids_of_their_own_where_ids_may_stand_twice(speaker: Speaker) -> None:
    turn = Turn((Text("a", "t"), Call("{}", id="c1"), Call("{}", "read", id="c2"), Call("{}", id="c3")))
    end = read_round(speaker.form, TOOL, speaker.spell_body(turn), is_stream=False)
    key = {"chat_completions": "tool_call_id", "anthropic_messages": "tool_use_id", "responses": "call_id"}
    seen = b'{"%b":"x"}' % key[speaker.form.name].encode()
    assert name_calls(speaker.form, TOOL, end, seen) is end
    twice = Turn((Call("{}", id="c1"), Call("{}", "read", id="c1")))
    for other, sent in (
        (end, b'{"a":1}'),
        (end, seen + b'{"id":"c1"}'),
        (end, seen + b'{"id":"c2"}'),
        (read_round(speaker.form, TOOL, speaker.stream(twice), is_stream=True), seen),
    ):
        named = name_calls(speaker.form, TOOL, other, sent)
        assert named == name_calls(speaker.form, TOOL, other, sent)
        assert len({call.id for call in named.own} | {call.id for call in other.own}) == 2 * len(other.own)
        calls = [call for raw in named.answer for call in speaker.form.parse_message(raw).calls]
        assert [call.id for call in calls if call.name == TOOL] == [call.id for call in named.own]
        before = [call.id for raw in other.answer for call in speaker.form.parse_message(raw).calls]
        assert [call.id for call in calls if call.name == "read"] == [before[1]]
        assert name_calls(speaker.form, TOOL, other, sent + b" ").own[0].id != named.own[0].id


@pytest.mark.parametrize("name", [f"functions.{TOOL}", f"tools/{TOOL}"])
def test_a_client_that_has_a_tool_that_could_be_meant_gets_none_of_ours(name: str) -> None:
    for speaker in SPEAKERS:
        function = {"name": name, "function": {"name": name}}
        body = split_body(json.dumps({"messages": [], "input": [], "tools": [function]}).encode(), "messages")
        assert body is not None
        assert find_obstacle(speaker.form, body, TOOL) == f"the request has a tool {name} of its own"
        assert not find_obstacle(speaker.form, body, "my_tool")


def test_rounds_have_no_cache_markers_whoever_stored_them_and_the_clients_results_keep_theirs() -> None:
    marker = b',"cache_control":{"type":"ephemeral"}'
    call = b'{"type":"tool_use","id":"t1","name":"read","input":{"cache_control":1}%b}' % marker
    own = b'{"type":"tool_use","id":"o1","name":"%b","input":{}%b}' % (TOOL.encode(), marker)
    answer = b'{"role":"assistant","content":[%b,%b]}' % (own, call)
    following = b'{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"x"%b}]}' % marker
    said, results = restore_answer(MESSAGES, TOOL, [PlayedRound((answer,), (OwnResult("o1", "found"),))], (following,))
    assert said == answer.replace(marker, b"") and results.count(marker) == 1
    body = b'{"type":"message","role":"assistant","content":[%b],"stop_reason":"tool_use"}' % own
    (kept,) = read_round(MESSAGES, TOOL, body, is_stream=False).answer
    assert marker not in kept and b'"o1"' in kept
