"""Chat completions as other servers than OpenAI's send them."""

import json

import pytest

from proxy.model.exchange import Answer, Usage
from proxy.wire.chat_completions import ChatCompletions
from proxy.wire.streams import read_events
from tests.wire.cases import load_cases

WIRE = ChatCompletions()


def chunk(*choices: dict[str, object], **fields: object) -> str:
    return "data: " + json.dumps({"id": "c", "choices": list(choices), **fields}) + "\n\n"


def part(delta: dict[str, object], **fields: object) -> dict[str, object]:
    return {"index": 0, "delta": delta, "finish_reason": None, **fields}


def deltas(*fragments: dict[str, object]) -> str:
    return "".join(chunk(part(fragment)) for fragment in fragments)


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


def call(arguments: str, name: str | None = None, **fields: object) -> dict[str, object]:
    function = {"arguments": arguments} if name is None else {"name": name, "arguments": arguments}
    return {"tool_calls": [{**fields, "function": function}]}


@pytest.mark.parametrize(
    ("fragments", "calls"), [pytest.param(*case, id=name) for name, *case in load_cases("tool_calls_of_servers.jsonl")]
)
def test_tool_calls_of_servers_with_ways_of_their_own(
    fragments: list[dict[str, object]], calls: list[list[str | None]]
) -> None:
    found = message(deltas(*fragments))["tool_calls"]
    assert isinstance(found, list)
    assert [(c["id"], c["function"].get("name"), c["function"]["arguments"]) for c in found] == [
        tuple(call) for call in calls
    ]


def test_a_tool_call_of_odd_types_is_taken_as_it_comes() -> None:
    odd: list[object] = [{"index": 0, "id": "b", "function": "f"}, {"index": 0, "id": {}, "function": None}, 7]
    stream = deltas(call("{}", "f", id="a", index=0), {"tool_calls": odd}, {"tool_calls": "odd"})
    assert message(stream)["tool_calls"] == [{"id": "a", "function": "f"}]


def test_deepseek_sends_reasoning_and_counts_with_its_last_choice() -> None:
    counts = {"prompt_tokens": 9, "completion_tokens": 5, "prompt_cache_hit_tokens": 8, "prompt_cache_miss_tokens": 1}
    answer = read(
        chunk(part({"role": "assistant", "content": None, "reasoning_content": ""})),
        chunk(part({"content": None, "reasoning_content": "Let me "})),
        chunk(part({"content": None, "reasoning_content": "see."})),
        chunk(part({"content": "42", "reasoning_content": None})),
        chunk(part({"content": "", "reasoning_content": None}, finish_reason="stop"), usage=counts),
        "data: [DONE]\n\n",
    )
    assert first_choice(answer)["message"] == {"role": "assistant", "content": "42", "reasoning_content": "Let me see."}
    assert (answer.usage, answer.value["usage"]) == (Usage(input=9, output=5, cached=8), counts)


def test_openrouter_reasoning_details_are_one_element_per_index_and_type() -> None:
    def detail(**fields: object) -> dict[str, object]:
        return {"reasoning_details": [{"format": "anthropic-claude-v1", "index": 0, **fields}]}

    found = message(
        deltas(
            {"role": "assistant", "content": "", "reasoning": "I ", **detail(type="reasoning.text", text="I ")},
            {"role": "assistant", "content": "", "reasoning": "think", **detail(type="reasoning.text", text="think")},
            {"role": "assistant", "content": "", **detail(type="reasoning.text", signature="c2ln")},
            {"role": "assistant", "content": "", **detail(type="reasoning.encrypted", data="eA==")},
        )
    )
    assert found["reasoning"] == "I think"
    assert found["reasoning_details"] == [
        {"format": "anthropic-claude-v1", "index": 0, "type": "reasoning.text", "text": "I think", "signature": "c2ln"},
        {"format": "anthropic-claude-v1", "index": 0, "type": "reasoning.encrypted", "data": "eA=="},
    ]


def test_mistral_turns_from_a_list_of_thinking_to_plain_text() -> None:
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    stream = deltas({"role": "assistant", "content": ""}, {"content": [thought]}, {"content": "4"}, {"content": "2"})
    assert message(stream)["content"] == [thought, {"type": "text", "text": "42"}]


def test_unknown_members_of_chunks_and_choices_are_kept_the_last_one_that_says_something() -> None:
    azure = {"id": "", "model": "", "created": 0, "prompt_filter_results": [{"prompt_index": 0}]}
    answer = read(
        chunk(**azure),
        chunk(
            part({"content": "a"}, content_filter_results={"hate": {"filtered": False}}, token_ids=[1]), citations=["u"]
        ),
        chunk(
            part({"content": "b"}, content_filter_results={}, token_ids=[2, 3], stop_reason=None), citations=["u", "v"]
        ),
        chunk(part({}, finish_reason="stop", stop_reason=7), system_fingerprint=None),
    )
    assert {key: value for key, value in answer.value.items() if key != "choices"} == {
        "id": "c",
        "model": "",
        "created": 0,
        "object": "chat.completion",
        "prompt_filter_results": [{"prompt_index": 0}],
        "citations": ["u", "v"],
        "system_fingerprint": None,
    }
    assert first_choice(answer) == {
        "index": 0,
        "message": {"role": "assistant", "content": "ab"},
        "finish_reason": "stop",
        "stop_reason": 7,
        "content_filter_results": {"hate": {"filtered": False}},
        "token_ids": [1, 2, 3],
    }


def test_a_whole_message_in_place_of_a_delta_is_the_message() -> None:
    whole = {"role": "assistant", "content": "all of it", "tool_calls": [{"id": "a", "function": {"name": "f"}}]}
    answer = read(
        deltas({"content": "all"}, call("{", "f", id="a", index=0)),
        chunk({"index": 0, "delta": {}, "message": whole, "finish_reason": "stop"}),
    )
    assert first_choice(answer)["message"] == whole
    assert answer.finish == "stop"


def test_what_follows_a_whole_message_goes_on_from_it() -> None:
    whole = {"role": None, "content": "a", "parts": [{"index": 0, "t": "x"}]}
    found = message(
        chunk({"message": whole}), chunk({"delta": {"content": "b", "parts": [{"index": 0, "t": "y"}]}, "message": {}})
    )
    assert found == {"role": "assistant", "content": "ab", "parts": [{"index": 0, "t": "xy"}]}


def test_a_null_delta_and_a_choice_without_index_are_taken_as_far_as_they_go() -> None:
    answer = read(chunk({"delta": None, "finish_reason": "stop"}), chunk({"index": "x", "delta": {"content": "a"}}))
    assert first_choice(answer) == {
        "index": 0,
        "message": {"role": "assistant", "content": "a"},
        "finish_reason": "stop",
    }


@pytest.mark.parametrize(
    ("stream", "usage"),
    [
        (chunk(x_groq={"id": "r", "usage": {"prompt_tokens": 1, "completion_tokens": 2}}), Usage(input=1, output=2)),
        (chunk(part({}, usage={"prompt_tokens": 3, "cached_tokens": 2})), Usage(input=3, cached=2)),
        (chunk(usage={"prompt_tokens": 1}) + chunk(usage={"prompt_tokens": 4}), Usage(input=4)),
        (chunk(usage={"prompt_tokens": 4}) + chunk(usage=None) + chunk(usage={}), Usage(input=4)),
        (
            chunk(usage={"prompt_tokens": 8, "prompt_tokens_details": {"cache_write_tokens": 6}}),
            Usage(input=8, written=6),
        ),
        (chunk(usage={"prompt_tokens_details": {"cache_creation_tokens": 6}}), Usage(written=6)),
        (chunk(usage={"cache_creation_input_tokens": 5, "cache_read_input_tokens": 9}), Usage(cached=9, written=5)),
        (chunk(usage={"reasoning_tokens": 5}), Usage(reasoning=5)),
        (chunk(usage={"prompt_tokens": 8.0, "completion_tokens": 0}), Usage(input=8, output=0)),
        (chunk(usage={"completion_tokens": 7, "prompt_tokens_details": None}), Usage(output=7)),
        (chunk(usage={"prompt_tokens": -1, "completion_tokens": 2**63}), None),
        (chunk(usage={"prompt_tokens": True, "completion_tokens": "9"}), None),
        (chunk(usage="9") + chunk(x_groq="odd") + chunk(x_groq={"usage": 7}), None),
        (chunk(usage=None), None),
    ],
)
def test_usage_is_read_where_servers_put_it(stream: str, usage: Usage | None) -> None:
    assert read(stream).usage == usage
