"""Chat completions: what a stream adds up to is what the server would have answered without streaming."""

import json
from itertools import zip_longest
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.model.exchange import Answer, Usage
from proxy.wire.chat_completions import ChatCompletions
from proxy.wire.streams import read_events

WIRE = ChatCompletions()

HEAD: dict[str, object] = {
    "id": "chatcmpl-1",
    "object": "chat.completion.chunk",
    "created": 1741570283,
    "model": "gpt-4o",
}
USAGE = {
    "prompt_tokens": 19,
    "completion_tokens": 10,
    "total_tokens": 29,
    "prompt_tokens_details": {"cached_tokens": 4, "audio_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 3},
}


def chunk(*choices: dict[str, object], **fields: object) -> str:
    return "data: " + json.dumps({**HEAD, "choices": list(choices), **fields}, ensure_ascii=False) + "\n\n"


def part(delta: dict[str, object], index: int = 0, **fields: object) -> dict[str, object]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None, **fields}


def deltas(*fragments: dict[str, object], done: bool = True) -> str:
    return "".join(chunk(part(fragment)) for fragment in fragments) + ("data: [DONE]\n\n" if done else "")


def read(*stream: str) -> Answer:
    return WIRE.read_events(read_events("".join(stream).encode()))


def first_choice(answer: Answer) -> dict[str, object]:
    choices = answer.value["choices"]
    assert isinstance(choices, list)
    assert isinstance(choices[0], dict)
    return choices[0]


def message(*stream: str) -> dict[str, object]:
    found = first_choice(read(*stream))["message"]
    assert isinstance(found, dict)
    return found


OPENAI_TEXT = "".join(
    [
        chunk(
            part({"role": "assistant", "content": "", "refusal": None}),
            service_tier="default",
            system_fingerprint="fp_1",
            usage=None,
            obfuscation="qWEr",
        ),
        chunk(
            part({"content": "Hello"}), service_tier="default", system_fingerprint="fp_1", usage=None, obfuscation="t"
        ),
        chunk(part({"content": " wörld"}), service_tier="default", system_fingerprint="fp_1", usage=None),
        chunk(part({}, finish_reason="stop"), service_tier="default", system_fingerprint="fp_1", usage=None),
        chunk(service_tier="default", system_fingerprint="fp_1", usage=USAGE),
        "data: [DONE]\n\n",
    ]
)
OPENAI_TEXT_WHOLE = {
    **HEAD,
    "object": "chat.completion",
    "service_tier": "default",
    "system_fingerprint": "fp_1",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello wörld", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ],
    "usage": USAGE,
}


@pytest.mark.parametrize("line_end", ["\n", "\r", "\r\n"])
def test_a_text_stream_equals_the_answer_without_streaming(line_end: str) -> None:
    answer = read(OPENAI_TEXT.replace("\n", line_end))
    assert answer == WIRE.read_answer(OPENAI_TEXT_WHOLE)
    assert answer == Answer(
        value=OPENAI_TEXT_WHOLE, usage=Usage(input=19, output=10, cached=4, reasoning=3), finish="stop"
    )


def test_comments_event_names_and_data_on_several_lines_do_not_matter() -> None:
    pretty = json.dumps({**HEAD, "choices": [part({"content": "b"})]}, indent=1).replace("\n", "\ndata: ")
    stream = [": OPENROUTER PROCESSING\n\n", chunk(part({"content": "a"})), f"event: chunk\nid: 1\ndata: {pretty}\n\n"]
    assert message(*stream)["content"] == "ab"


def test_parallel_tool_calls_are_put_together_by_index() -> None:
    stream = deltas(
        {"role": "assistant", "content": None},
        {
            "tool_calls": [
                {"index": 0, "id": "call_a", "type": "function", "function": {"name": "read", "arguments": ""}}
            ]
        },
        {
            "tool_calls": [
                {"index": 1, "id": "call_b", "type": "function", "function": {"name": "grep", "arguments": ""}}
            ]
        },
        {
            "tool_calls": [
                {"index": 1, "function": {"arguments": '{"q":'}},
                {"index": 0, "function": {"arguments": '{"p":'}},
            ]
        },
        {"tool_calls": [{"index": 0, "function": {"arguments": '"a"}'}}]},
        {"tool_calls": [{"index": 1, "function": {"arguments": '"b"}'}}]},
    )
    assert message(stream) == {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "call_a", "type": "function", "function": {"name": "read", "arguments": '{"p":"a"}'}},
            {"id": "call_b", "type": "function", "function": {"name": "grep", "arguments": '{"q":"b"}'}},
        ],
    }


def test_alternatives_come_interleaved_and_are_sorted_by_index() -> None:
    answer = read(
        chunk(part({"role": "assistant", "content": "B"}, 1)),
        chunk(part({"role": "assistant", "content": "A"}, 0)),
        chunk(part({"content": "b"}, 1), part({"content": "a"}, 0)),
        chunk(part({}, 1, finish_reason="length")),
        chunk(part({}, 0, finish_reason="stop")),
        "data: [DONE]\n\n",
    )
    choices = answer.value["choices"]
    assert isinstance(choices, list)
    assert [(c["index"], c["message"]["content"]) for c in choices] == [(0, "Aa"), (1, "Bb")]
    assert answer.finish == "stop,length"


def test_logprobs_are_lists_that_go_on() -> None:
    tokens = [{"token": t, "logprob": -0.5, "bytes": [97], "top_logprobs": []} for t in "abc"]
    answer = read(
        chunk(part({"content": ""})),
        chunk(part({"content": "a"}, logprobs={"content": tokens[:1], "refusal": None})),
        chunk(part({"content": "bc"}, logprobs={"content": tokens[1:], "refusal": None})),
        chunk(part({}, finish_reason="stop")),
    )
    assert first_choice(answer)["logprobs"] == {"content": tokens, "refusal": None}


def test_the_role_is_the_one_that_was_sent_if_any() -> None:
    assert message(deltas({"role": "critic"}, {"role": "critic"}))["role"] == "critic"
    assert message(deltas({"content": "a"}, {"role": None}))["role"] == "assistant"


def test_usage_that_was_null_to_the_end_is_absent() -> None:
    assert "usage" not in read(chunk(part({"content": "a"}), usage=None)).value


def test_a_refusal_is_put_together_like_content() -> None:
    found = message(
        deltas({"role": "assistant", "content": None, "refusal": ""}, {"refusal": "I can"}, {"refusal": "not"})
    )
    assert found == {"role": "assistant", "content": None, "refusal": "I cannot"}


def test_audio_grows_by_data_and_transcript_and_keeps_its_id() -> None:
    stream = deltas(
        {"role": "assistant", "audio": {"id": "audio_1", "transcript": "Hel"}},
        {"audio": {"id": "audio_1", "data": "AAAA", "transcript": "lo"}},
        {"audio": {"data": "BBBB"}},
        {"audio": {"expires_at": 1741570999}},
    )
    assert message(stream)["audio"] == {
        "id": "audio_1",
        "transcript": "Hello",
        "data": "AAAABBBB",
        "expires_at": 1741570999,
    }


def test_a_legacy_function_call_is_put_together() -> None:
    fragments: list[object] = [{"name": "f", "arguments": ""}, {"arguments": '{"a"'}, {"arguments": ":1}"}]
    stream = deltas({"role": "assistant", "content": None}, *[{"function_call": each} for each in fragments])
    assert message(stream)["function_call"] == {"name": "f", "arguments": '{"a":1}'}


def test_annotations_and_unknown_members_of_a_delta_are_kept() -> None:
    citation = {"type": "url_citation", "url_citation": {"url": "https://a"}}
    stream = deltas(
        {"annotations": [citation], "mood": "calm", "score": 1, "seen": False},
        {"annotations": [citation], "mood": "er", "score": 2, "seen": True},
    )
    assert message(stream) == {
        "role": "assistant",
        "content": None,
        "annotations": [citation, citation],
        "mood": "calmer",
        "score": 2,
        "seen": True,
    }


def test_a_cut_stream_is_what_had_come() -> None:
    cut = OPENAI_TEXT.encode().index("ö".encode()) + 1
    answer = WIRE.read_events(read_events(OPENAI_TEXT.encode()[:cut]))
    assert first_choice(answer)["message"] == {"role": "assistant", "content": "Hello", "refusal": None}
    assert (answer.is_ended, answer.finish, answer.usage, answer.error) == (False, "", None, "")


def test_a_stream_without_done_has_not_ended_whatever_its_finish_reason() -> None:
    answer = read(chunk(part({"content": "a"}, finish_reason="stop")))
    assert (answer.finish, answer.is_ended) == ("stop", False)


def test_an_error_inside_the_stream_is_kept_beside_what_had_come() -> None:
    error = {"code": 502, "message": "Provider disconnected"}
    answer = read(
        chunk(part({"content": "half"})),
        chunk(part({"content": ""}, finish_reason="error"), error=error),
        "data: [DONE]\n\n",
    )
    assert (answer.error, answer.finish, answer.value["error"]) == ("Provider disconnected", "error", error)
    assert message(chunk(part({"content": "half"})), "data: [DONE]\n\n")["content"] == "half"


def test_an_error_event_may_look_like_a_chunk() -> None:
    assert read("event: error\n" + chunk(message="odd", usage=None)).error == "odd"


def test_an_error_of_one_choice_is_the_answers() -> None:
    answer = read(chunk(part({}, error={"message": "filtered"}), detail="x"))
    assert answer.error == "filtered"
    assert (
        WIRE.read_answer({"choices": [{"error": {"message": "filtered"}}, {"detail": "no error"}]}).error == "filtered"
    )
    assert WIRE.read_answer({"choices": [{"detail": "no error"}]}).error == ""


def test_lines_that_are_no_chunks_are_passed_over() -> None:
    stream = [
        "data: {broken\n\n",
        "data: 7\n\n",
        'data: {"choices": 7}\n\n',
        'data: {"choices": [7, {"delta": 7}]}\n\n',
    ]
    assert message(chunk(part({"content": "a"})), *stream, chunk(part({"content": "b"})))["content"] == "ab"


@pytest.mark.parametrize(
    "value", [{"choices": None}, {"choices": [None, {"finish_reason": 7}]}, {"usage": [], "choices": {}}]
)
def test_a_body_of_odd_types_is_read_as_far_as_it_goes(value: dict[str, object]) -> None:
    assert WIRE.read_answer(value) == Answer(value=value)


FRAGMENTS = st.lists(st.text(max_size=9), min_size=1, max_size=4)
CHOICES = st.fixed_dictionaries(
    {"finish_reason": st.sampled_from(["stop", "length"])},
    optional={
        "content": FRAGMENTS,
        "reasoning_content": FRAGMENTS,
        "refusal": FRAGMENTS,
        "tool_calls": st.lists(FRAGMENTS, min_size=1, max_size=3),
    },
)


def take_apart(choice: dict[str, Any]) -> list[dict[str, object]]:
    """The deltas of a choice, its tool calls' arguments interleaved."""
    apart: list[dict[str, object]] = [{"role": "assistant"}]
    for key in ("reasoning_content", "refusal", "content"):
        apart += [{key: fragment} for fragment in choice.get(key, [])]
    for index in range(len(choice.get("tool_calls", []))):
        begun = {"id": f"call_{index}", "type": "function", "function": {"name": f"f{index}", "arguments": ""}}
        apart.append({"tool_calls": [{"index": index, **begun}]})
    for turn in zip_longest(*choice.get("tool_calls", [])):
        fragments = [(index, fragment) for index, fragment in enumerate(turn) if fragment is not None]
        apart.append({"tool_calls": [{"index": i, "function": {"arguments": fragment}} for i, fragment in fragments]})
    return apart


def put_together(index: int, choice: dict[str, Any]) -> dict[str, object]:
    """The choice as it would have come without streaming."""
    said: dict[str, object] = {"role": "assistant", "content": None}
    said |= {key: "".join(choice[key]) for key in ("reasoning_content", "refusal", "content") if key in choice}
    if "tool_calls" in choice:
        said["tool_calls"] = [
            {"id": f"call_{i}", "type": "function", "function": {"name": f"f{i}", "arguments": "".join(fragments)}}
            for i, fragments in enumerate(choice["tool_calls"])
        ]
    return {"index": index, "message": said, "finish_reason": choice["finish_reason"]}


@given(st.lists(CHOICES, min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_any_answer_taken_apart_and_interleaved_is_put_together_again(
    choices: list[dict[str, Any]], random: Random
) -> None:
    queues = [[(index, delta) for delta in take_apart(choice)] for index, choice in enumerate(choices)]
    chunks: list[dict[str, object]] = []
    while any(queues):
        index, delta = random.choice([queue for queue in queues if queue]).pop(0)
        chunks.append({"choices": [{"index": index, "delta": delta, "finish_reason": None}]})
    ends = [{"index": i, "delta": {}, "finish_reason": choice["finish_reason"]} for i, choice in enumerate(choices)]
    chunks.append({"choices": ends, "usage": USAGE})
    events = read_events("".join(f"data: {data}\n\n" for data in [*map(json.dumps, chunks), "[DONE]"]).encode())
    whole = {"object": "chat.completion", "choices": [put_together(i, each) for i, each in enumerate(choices)]}
    assert WIRE.read_events(events) == WIRE.read_answer({**whole, "usage": USAGE})
