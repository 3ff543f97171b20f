"""Conversations of one format as those of another."""

import json
from typing import Any

import pytest

from proxy.wire import FORMATS
from proxy.wire.translation.conversations import Utterance, read_instructions, translate

CHAT, RESPONSES, MESSAGES = (FORMATS[name] for name in ("chat_completions", "responses", "anthropic_messages"))
PIXEL = "iVBORw0KGgo="


def raws(*values: Any) -> list[bytes]:
    return [json.dumps(value).encode() for value in values]


def turn(source: Any, target: Any, *values: Any, **options: Any) -> list[Any]:
    made = translate(source, target, raws(*values), **options)
    return [json.loads(raw) for raw in made.items]


def ask_chat(id: str, arguments: str = '{"path":"a"}', text: str | None = None) -> Any:
    function = {"name": "read", "arguments": arguments}
    return {"role": "assistant", "content": text, "tool_calls": [{"id": id, "type": "function", "function": function}]}


def tell_chat(id: str, text: str) -> Any:
    return {"role": "tool", "tool_call_id": id, "content": text}


TALK = (
    {"role": "user", "content": "go"},
    ask_chat("call_1", text="I look."),
    tell_chat("call_1", "x = 1"),
    {"role": "assistant", "content": "done"},
)
TALK_AS_ITEMS = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go"}]},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
    {"type": "function_call", "call_id": "call_1", "name": "read", "arguments": '{"path":"a"}'},
    {"type": "function_call_output", "call_id": "call_1", "output": "x = 1"},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "done"}]},
]
TALK_AS_BLOCKS = [
    {"role": "user", "content": [{"type": "text", "text": "go"}]},
    {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "call_1", "name": "read", "input": {"path": "a"}},
        ],
    },
    {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": [{"type": "text", "text": "x = 1"}]}],
    },
    {"role": "assistant", "content": [{"type": "text", "text": "done"}]},
]
FORMS = {"chat": (CHAT, list(TALK)), "responses": (RESPONSES, TALK_AS_ITEMS), "messages": (MESSAGES, TALK_AS_BLOCKS)}


@pytest.mark.parametrize("target", FORMS)
@pytest.mark.parametrize("source", FORMS)
def test_a_conversation_is_the_same_in_every_format(source: str, target: str) -> None:
    assert turn(FORMS[source][0], FORMS[target][0], *FORMS[source][1]) == FORMS[target][1]


def test_the_system_prompt_goes_where_the_format_has_it() -> None:
    system = {"role": "system", "content": "be brief"}
    made = translate(CHAT, MESSAGES, raws(TALK[0]), raws(system), "")
    assert made.instructions == "be brief" and len(made.items) == 1
    back = turn(
        MESSAGES, CHAT, TALK_AS_BLOCKS[0], instructions=read_instructions(MESSAGES, b'[{"type":"text","text":"a"}]')
    )
    assert back == [{"role": "system", "content": "a"}, TALK[0]]
    assert turn(MESSAGES, CHAT, TALK_AS_BLOCKS[0]) == [TALK[0]]
    assert read_instructions(CHAT, b"") == ""


def test_reasoning_and_cache_markers_are_left_out() -> None:
    thinking = {"type": "thinking", "thinking": "secret plan", "signature": "sig"}
    text = {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}
    assert turn(MESSAGES, CHAT, {"role": "assistant", "content": [thinking, text]}) == [
        {"role": "assistant", "content": "hi"}
    ]
    reasoning = {"type": "reasoning", "id": "rs_1", "encrypted_content": "gAAA", "summary": []}
    assert turn(RESPONSES, CHAT, TALK_AS_ITEMS[0], reasoning, *TALK_AS_ITEMS[1:]) == list(TALK)


def test_results_stand_behind_their_calls_also_those_that_come_late_or_never() -> None:
    values = (
        TALK[0], ask_chat("a"), ask_chat("b"), {"role": "user", "content": "meanwhile"}, tell_chat("b", "late"),
        tell_chat("z", "orphan"), {"role": "assistant", "content": "ok"},
    )  # fmt: skip
    found = turn(CHAT, MESSAGES, *values)
    assert [each["role"] for each in found] == ["user", "assistant", "user", "assistant"]
    results, words = found[2]["content"][:2], found[2]["content"][2]
    assert [(each["tool_use_id"], each["content"][0]["text"]) for each in results] == [
        ("a", "(no result)"),
        ("b", "late"),
    ]
    assert words["text"] == "meanwhile"


def test_calls_at_the_end_may_be_without_results() -> None:
    assert turn(CHAT, RESPONSES, TALK[0], ask_chat("a")) == [
        TALK_AS_ITEMS[0], {"type": "function_call", "call_id": "a", "name": "read", "arguments": '{"path":"a"}'},
    ]  # fmt: skip
    both = {**ask_chat("a"), "tool_calls": [*ask_chat("a")["tool_calls"], *ask_chat("b")["tool_calls"]]}
    found = turn(CHAT, CHAT, TALK[0], both, tell_chat("b", "x"))
    assert [each.get("content") for each in found[2:]] == ["(no result)", "x"]


def test_arguments_that_are_no_object_are_one_in_a_format_that_wants_one() -> None:
    (_, first), (_, second) = (
        turn(CHAT, MESSAGES, TALK[0], ask_chat("a", arguments)) for arguments in ("*** Patch", " ")
    )
    assert first["content"][0]["input"] == {"input": "*** Patch"} and second["content"][0]["input"] == {}


def test_ids_fit_every_format_and_stay_unique() -> None:
    long = "functions.read:0" + "x" * 60
    values = (
        TALK[0],
        ask_chat("a:1"),
        tell_chat("a:1", "x"),
        ask_chat("a.1"),
        tell_chat("a.1", "y"),
        ask_chat(long),
        tell_chat(long, "z"),
        ask_chat(""),
    )
    found = turn(CHAT, MESSAGES, *values)
    ids = [block["id"] for each in found if each["role"] == "assistant" for block in each["content"]]
    assert ids == ["a_1", "call_2", "functions_read_0" + "x" * 24, "call_4"]
    answered = [block["tool_use_id"] for each in found[2:] if each["role"] == "user" for block in each["content"]]
    assert answered == ids[:3]


IMAGE: Any = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}
LINKED: Any = {"type": "image_url", "image_url": {"url": "https://x/y.png"}}
PDF: Any = {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBE"}}
SOUND: Any = {"type": "input_audio", "input_audio": {"data": "UklG", "format": "mp3"}}
SPOKEN: Any = {"role": "user", "content": [{"type": "text", "text": "look"}, IMAGE, LINKED, PDF, SOUND]}


def test_media_are_kept_where_the_format_allows() -> None:
    assert turn(CHAT, CHAT, SPOKEN) == [SPOKEN]
    (blocks,) = turn(CHAT, MESSAGES, SPOKEN)
    assert blocks["content"][1:] == [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}},
        {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}},
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBE"}},
        {"type": "text", "text": "(audio audio/mp3)"},
    ]
    (item,) = turn(CHAT, RESPONSES, SPOKEN)
    assert item["content"][1:] == [
        {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}"},
        {"type": "input_image", "image_url": "https://x/y.png"},
        {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBE"},
        {"type": "input_text", "text": "(audio audio/mp3)"},
    ]
    assert turn(RESPONSES, CHAT, item)[0]["content"][1:4] == [IMAGE, LINKED, PDF]
    again = turn(MESSAGES, CHAT, blocks)[0]["content"]
    assert again[1:4] == [
        IMAGE,
        LINKED,
        {"type": "file", "file": {"filename": "document", "file_data": PDF["file"]["file_data"]}},
    ]


def test_documents_at_an_address_and_media_alone_are_kept() -> None:
    source = {"type": "document", "source": {"type": "url", "url": "https://x/y.pdf"}}
    said = {"role": "user", "content": [source]}
    assert turn(MESSAGES, RESPONSES, said)[0]["content"] == [
        {"type": "input_text", "text": ""}, {"type": "input_file", "file_url": "https://x/y.pdf"},
    ]  # fmt: skip
    assert turn(MESSAGES, CHAT, said)[0]["content"] == [{"type": "text", "text": "(document https://x/y.pdf)"}]
    assert turn(MESSAGES, MESSAGES, said) == [said]


def test_media_that_only_a_provider_has_are_left_out() -> None:
    stored = [{"type": "file", "file": {"file_id": "file-1"}}, {"type": "input_audio", "input_audio": {}}]
    assert turn(CHAT, CHAT, {"role": "user", "content": [{"type": "text", "text": "look"}, *stored]}) == [
        {"role": "user", "content": "look"}
    ]


def test_media_in_results_stay_with_them_or_follow_as_the_user_s() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
    use = {"role": "assistant", "content": [{"type": "tool_use", "id": id, "name": "see", "input": {}} for id in "ab"]}
    results: list[Any] = [
        {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "one"}, image]},
        {"type": "tool_result", "tool_use_id": "b", "content": "two"},
        {"type": "text", "text": "and stop"},
    ]
    values = (TALK_AS_BLOCKS[0], use, {"role": "user", "content": results})
    assert turn(MESSAGES, MESSAGES, *values)[2]["content"] == [
        results[0], {**results[1], "content": [{"type": "text", "text": "two"}]}, results[2],
    ]  # fmt: skip
    chat = turn(MESSAGES, CHAT, *values)
    assert chat[2:] == [
        tell_chat("a", "one"),
        tell_chat("b", "two"),
        {"role": "user", "content": [IMAGE]},
        {"role": "user", "content": "and stop"},
    ]
    items = turn(MESSAGES, RESPONSES, *values)
    assert items[3]["output"] == [
        {"type": "input_text", "text": "one"},
        {"type": "input_image", "image_url": IMAGE["image_url"]["url"]},
    ]
    assert turn(RESPONSES, MESSAGES, *items)[2]["content"] == turn(MESSAGES, MESSAGES, *values)[2]["content"]


def test_what_begins_with_an_answer_begins_with_a_word_of_the_user_where_it_has_to() -> None:
    found = turn(CHAT, MESSAGES, {"role": "assistant", "content": "hi"}, {"role": "assistant", "content": " "})
    assert [each["role"] for each in found] == ["user", "assistant"]
    assert turn(CHAT, MESSAGES) == turn(CHAT, MESSAGES, {"role": "user", "content": ""}) == []


def test_other_roles_are_the_user_s_or_the_system_s() -> None:
    found = turn(CHAT, CHAT, {"role": "critic", "content": "hm"}, {"role": "developer", "content": "be brief"})
    assert [each["role"] for each in found] == ["user", "system"]
    assert turn(CHAT, MESSAGES, {"role": "developer", "content": "be brief"})[0]["role"] == "user"


@pytest.mark.parametrize("raw", [b"1", b'"x"', b"[]", b"{", b'{"role":"user","content":"\\ud800"}', b'{"role":5}'])
def test_odd_messages_do_no_harm(raw: bytes) -> None:
    for target in FORMATS.values():
        for source in FORMATS.values():
            made = translate(source, target, [raw])
            assert all(isinstance(json.loads(each), dict) for each in made.items)
    assert Utterance("user", "x").attachments == ()
