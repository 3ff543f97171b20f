"""Transcripts of codex, opencode, qwen-code, cline and aider, and recorded calls: small ones in their real shape."""

import json
from typing import Any

import pytest

from proxy.model.exchange import Usage
from proxy.transcripts.recognition import read_transcripts, recognise
from proxy.transcripts.transcript import Transcript, TranscriptFile, read_number, read_time
from proxy.trial.requests import Requests
from tests.support.transcribing import find_own_title

TIME = "2026-11-26T11:09:07.000Z"
TIME_MS = 1795691347000


def write(*lines: Any) -> str:
    return "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)


def read(path: str, *lines: Any) -> Transcript:
    [found] = read_transcripts(TranscriptFile(path, write(*lines)))
    return found


def load(transcript: Transcript, n: int) -> list[Any]:
    """The messages, or items, of the n-th request."""
    body = json.loads(Requests(transcript).make_body(transcript.calls[n]))
    messages: list[Any] = body.get("messages") or body["input"]
    return messages


def roles(transcript: Transcript, n: int) -> list[str]:
    return [message.get("role") or message["type"] for message in load(transcript, n)]


# --- codex


def codex(kind: str, **payload: Any) -> Any:
    return {"timestamp": TIME, "type": kind, "payload": payload}


def said(role: str, text: str) -> Any:
    kind = "output_text" if role == "assistant" else "input_text"
    return codex("response_item", type="message", role=role, content=[{"type": kind, "text": text}])


def counted(whole: int, cached: int) -> Any:
    usage = {"input_tokens": whole, "cached_input_tokens": cached, "output_tokens": 11, "reasoning_output_tokens": 2}
    return codex("event_msg", type="token_count", info={"last_token_usage": usage})


CODEX = (
    codex(
        "session_meta", id="c1", cli_version="0.169.0", model_provider="openai", base_instructions={"text": "You code."}
    ),
    said("developer", "Skills."),
    said("user", "<environment_context>x</environment_context>"),
    codex("turn_context", model="gpt-5.1-codex"),
    said("user", "Read the notes."),
    codex("response_item", type="reasoning", encrypted_content="e", summary=[]),
    codex(
        "response_item",
        type="function_call",
        name="exec",
        arguments="{}",
        call_id="k",
        internal_chat_message_metadata_passthrough={"turn_id": "t"},
    ),
    codex("response_item", type="function_call_output", call_id="k", output="42"),
    counted(100, 40),
    said("assistant", "Done."),
    counted(120, 100),
    counted(120, 100),
)


def test_codex_keeps_its_items_and_tells_usage_behind_each_answer() -> None:
    found = read("rollout.jsonl", *CODEX)
    assert [call.usage for call in found.calls] == [Usage(100, 11, 40, None, 2), Usage(120, 11, 100, None, 2)]
    assert roles(found, 1) == ["developer", "user", "user", "reasoning", "function_call", "function_call_output"]
    assert (found.model, find_own_title(found), found.calls[0].at_ms) == ("gpt-5.1-codex", "Read the notes.", TIME_MS)
    body = json.loads(Requests(found).make_body(found.calls[0]))
    assert body["instructions"] == "You code." and "internal_chat_message_metadata_passthrough" not in str(
        load(found, 1)
    )


def test_codex_compacts_and_rolls_back() -> None:
    summary = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "What was."}]}
    found = read(
        "rollout.jsonl",
        *CODEX,
        codex("compacted", message="What was.", replacement_history=[summary]),
        said("user", "Go on."),
        said("assistant", "Gone on."),
        codex("event_msg", type="thread_rolled_back", num_turns=1),
        said("user", "Go elsewhere."),
        said("assistant", "Gone."),
        codex("compacted", message="Both."),
        said("user", "And now?"),
        said("assistant", "Nothing."),
        "{broken\n",
        codex("hologram"),
    )
    texts = [[item["content"][0]["text"] for item in load(found, n)] for n in (2, 3, 4)]
    assert texts == [["What was.", "Go on."], ["What was.", "Go elsewhere."], ["Both.", "And now?"]]
    assert (found.broken, found.unknown) == (1, 1)


# --- qwen-code


def qwen(kind: str, *parts: Any, **more: Any) -> Any:
    role = "model" if kind == "assistant" else "user"
    line = {"uuid": "u", "sessionId": "q1", "timestamp": TIME, "type": kind, "version": "0.24.4"}
    return line | {"message": {"role": role, "parts": [*parts]}} | more


def test_qwen_code_has_parts_and_the_history_that_it_compressed() -> None:
    usage = {"promptTokenCount": 70, "candidatesTokenCount": 9, "thoughtsTokenCount": 2, "cachedContentTokenCount": 30}
    call = {"functionCall": {"id": "k", "name": "read_file", "args": {"path": "a"}}}
    result = {"functionResponse": {"id": "k", "name": "read_file", "response": {"output": "42"}}}
    found = read(
        "chat.jsonl",
        qwen("user", {"text": "Read."}),
        {"uuid": "s", "sessionId": "q1", "type": "system", "subtype": "ui_telemetry", "systemPayload": {}},
        qwen(
            "assistant", {"text": "hm", "thought": True}, {"text": "I look."}, call, model="qwen3", usageMetadata=usage
        ),
        qwen("tool_result", result),
        qwen("assistant", {"text": "Done."}, model="qwen3"),
        qwen(
            "system",
            subtype="chat_compression",
            systemPayload={"compressedHistory": [{"role": "user", "parts": [{"text": "What was."}]}]},
        ),
        qwen("user", {"text": "Go on."}),
        qwen("assistant", {"text": "Gone."}, model="qwen3"),
    )
    assert [found.calls[0].usage, found.calls[1].usage] == [Usage(70, 11, 30, None, 2), None]
    assert load(found, 1)[1:] == [
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [
                {"id": "k", "type": "function", "function": {"name": "read_file", "arguments": '{"path":"a"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "k", "content": "42"},
    ]
    assert [message["content"] for message in load(found, 2)] == ["What was.", "Go on."]
    assert (found.client, found.version, find_own_title(found)) == ("qwen-code", "0.24.4", "Read.")


# --- opencode


def row(id: str, **data: Any) -> Any:
    return {"id": id, "data": json.dumps(data)}


def opencode(*messages: tuple[Any, list[Any]]) -> list[Transcript]:
    tables: dict[str, list[Any]] = {
        "session": [{"id": "o1", "version": "1.18", "parent_id": "o0"}],
        "message": [],
        "part": [],
    }
    for n, (message, parts) in enumerate(messages):
        tables["message"].append(row(f"m{n}", **message) | {"session_id": "o1"})
        tables["part"] += [row(f"p{n}{k}", **part) | {"message_id": f"m{n}"} for k, part in enumerate(parts)]
    return read_transcripts(TranscriptFile("opencode.db", tables=tables))


def spoke(**more: Any) -> Any:
    tokens = {"input": 7, "output": 5, "reasoning": 2, "cache": {"read": 50, "write": 3}}
    named = {
        "role": "assistant",
        "modelID": "gpt-5",
        "providerID": "openai",
        "tokens": tokens,
        "time": {"created": TIME_MS},
    }
    return named | more


def test_opencode_has_messages_with_parts() -> None:
    tool = {
        "type": "tool",
        "tool": "read",
        "callID": "k",
        "state": {"status": "completed", "input": {"a": 1}, "output": "42"},
    }
    broken = {"type": "tool", "tool": "read", "callID": "j", "state": {"status": "error", "error": "no file"}}
    running = {"type": "tool", "tool": "read", "callID": "i", "state": {"status": "running"}}
    [found] = opencode(
        ({"role": "user"}, [{"type": "text", "text": "Read."}, {"type": "text", "text": "(added)", "synthetic": True}]),
        (
            spoke(),
            [{"type": "step-start"}, {"type": "text", "text": "I look."}, tool, broken, running, {"type": "hologram"}],
        ),
        (spoke(error={"name": "Aborted"}), []),
        (spoke(), [{"type": "text", "text": "Done."}]),
        ({"role": "user"}, [{"type": "compaction"}]),
        (spoke(summary=True), [{"type": "text", "text": "What was."}]),
        ({"role": "user"}, [{"type": "text", "text": "Go on."}]),
        (spoke(), [{"type": "text", "text": "Gone."}]),
    )
    assert [call.usage for call in found.calls] == [Usage(60, 7, 50, 3, 2)] * 4
    assert [message.get("content") for message in load(found, 1)][2:] == [
        "42",
        "no file",
        "[Tool execution was interrupted]",
    ]
    assert [message["content"] for message in load(found, 3)] == ["What was.", "Go on."]
    assert (found.provider, found.parent, found.unknown, find_own_title(found)) == ("openai", "o0", 1, "Read. (added)")


def test_opencode_tells_what_of_it_is_broken() -> None:
    tables: dict[str, list[Any]] = {
        "session": [{"id": "o1"}],
        "message": [{"id": "m", "session_id": "o1", "data": "{"}],
        "part": [{}],
    }
    assert read_transcripts(TranscriptFile("opencode.db", tables=tables)) == []
    assert recognise(TranscriptFile("other.db", tables={"session": []})) is None


# --- cline


def cline(provider: str) -> Transcript:
    info = {"modelInfo": {"id": "m1", "provider": provider}, "ts": TIME_MS}
    use = {"type": "tool_use", "id": "k", "name": "read_files", "input": {"a": 1}}
    results = [
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": content}]}
        for id, content in (
            ("k", [{"query": "a", "result": "42"}]),
            ("j", "43"),
            ("i", [{"type": "text", "text": "44"}]),
        )
    ]
    metrics = {"inputTokens": 60, "outputTokens": 5, "cacheReadTokens": 50, "cacheWriteTokens": 3}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": '<user_input mode="act">Read.</user_input>'}]},
        {"role": "assistant", "content": [{"type": "text", "text": "I look."}, use], "metrics": metrics, **info},
        *results,
        {"role": "assistant", "content": [{"type": "text", "text": "Done."}], **info},
        "nothing",
    ]
    whole = {"sessionId": "l1", "origin": {"version": "3.0.65", "parentThreadId": "l0"}, "messages": messages}
    [found] = read_transcripts(TranscriptFile("l1/l1.messages.json", json.dumps(whole)))
    return found


def test_cline_calls_chat_completions_and_messages() -> None:
    found = cline("openai-compatible")
    assert roles(found, 1) == ["user", "assistant", "tool", "tool", "tool"]
    assert [message["content"] for message in load(found, 1)[2:]] == ['[{"query":"a","result":"42"}]', "43", "44"]
    assert (found.calls[0].usage, found.calls[1].usage) == (Usage(60, 5, 50, 3), None)
    assert find_own_title(found) == "Read."
    assert (found.id, found.parent, found.version, found.broken) == ("l1", "l0", "3.0.65", 1)
    found = cline("anthropic")
    assert roles(found, 1) == ["user", "assistant", "user"] and len(load(found, 1)[2]["content"]) == 3
    assert load(found, 1)[2]["content"][-1]["cache_control"] == {"type": "ephemeral"}


def test_older_clines_keep_a_list_of_messages() -> None:
    messages = [{"role": "user", "content": "<task>Read.</task>"}, {"role": "assistant", "content": "Done."}]
    [found] = read_transcripts(TranscriptFile("tasks/123/api_conversation_history.json", json.dumps(messages)))
    assert (found.id, find_own_title(found), len(found.calls)) == ("123", "Read.", 1)
    assert recognise(TranscriptFile("a.json", '[{"role": "assistant"}]')) is None


# --- aider

AIDER_REQUESTS = """TO LLM 2026-11-26T11:09:07
-------
SYSTEM You edit.
SYSTEM
SYSTEM Be brief.
-------
USER Fix a.
-------
LLM RESPONSE 2026-11-26T11:09:09
ASSISTANT I fix a.
ASSISTANT Done.
TO LLM 2026-11-26T11:09:20
-------
SYSTEM You edit.
SYSTEM
SYSTEM Be brief.
-------
USER Fix a.
-------
ASSISTANT I fix a.
ASSISTANT Done.
-------
USER Fix b.
LLM RESPONSE 2026-11-26T11:09:22
ASSISTANT Done.
TO LLM 2026-11-26T11:10:00
-------
USER Lost.
"""

AIDER_CHAT = """
# aider chat started at 2026-11-26 11:09:07

> Aider v0.86.2
> Main model: gpt-5 with diff edit format

#### Fix a.
#### And b.

I fix them.

> Tokens: 1.2k sent, 300 cache write, 1k cache hit, 30 received. Cost: $0.01 message, $0.02 session.
> Applied edit to a

# aider chat started at 2026-11-26 12:00:00

> Aider v0.86.2
"""


def test_aider_keeps_whole_requests() -> None:
    found = read(".aider.llm.history", AIDER_REQUESTS)
    assert [message["content"] for message in load(found, 0)] == ["You edit.\n\nBe brief.", "Fix a."]
    assert [message["content"] for message in load(found, 1)][2:] == ["I fix a.\nDone.", "Fix b."]
    assert (len(found.calls), len(found.trails), found.broken, find_own_title(found)) == (2, 1, 1, "Fix a.")


def test_aider_keeps_a_chat_with_rounded_tokens() -> None:
    found = read(".aider.chat.history.md", AIDER_CHAT)
    assert load(found, 0) == [{"role": "user", "content": "Fix a.\nAnd b."}]
    assert (found.calls[0].usage, found.model, found.version) == (Usage(1200, 30, 1000, 300), "gpt-5", "0.86.2")
    assert recognise(TranscriptFile("README.md", "# Notes\n")) is None


# --- recorded calls


def test_recorded_calls_have_whole_requests_of_any_api() -> None:
    first = {
        "model": "gpt-5",
        "messages": [{"role": "user", "content": "Read."}],
        "tools": [{"type": "function"}],
        "stream": True,
    }
    answer = {"role": "assistant", "content": "Done."}
    usage = {"prompt_tokens": 50, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 20}}
    response = {"choices": [{"message": answer, "finish_reason": "stop"}], "usage": usage}
    second = first | {"messages": [*first["messages"], answer, {"role": "user", "content": "Again."}]}  # type: ignore[misc]
    calls = [
        {"request": request, "response": response, "time": TIME_MS, "session": "r1"} for request in (first, second)
    ]
    found = read("calls.jsonl", *calls, {"other": 1})
    assert (found.missing, found.id, len(found.trails), found.unknown) == ((), "r1", 1, 1)
    assert found.calls[0].usage == Usage(50, 5, 20, None, None) and found.head == {"tools": [{"type": "function"}]}
    messages = {
        "request": {"system": "x", "messages": [{"role": "user", "content": "Read."}]},
        "response": {"content": [{"type": "text", "text": "Done."}]},
    }
    assert read("calls.jsonl", messages).wire == "anthropic_messages"
    items = {
        "request": {"input": [{"type": "message", "role": "user", "content": "Read."}]},
        "response": {"output": []},
    }
    assert read("calls.jsonl", items).wire == "responses"


@pytest.mark.parametrize(
    ("given", "time"),
    [
        (TIME, TIME_MS),
        (TIME_MS, TIME_MS),
        (1795691347, TIME_MS),
        ("2026-11-26T11:09:07", TIME_MS),
        ("soon", 0),
        (None, 0),
        (True, 0),
    ],
)
def test_times_are_read_in_each_form(given: object, time: int) -> None:
    assert read_time(given) == time


def test_counts_are_not_negative() -> None:
    assert [read_number(value) for value in (3, 3.0, -1, True, "3", None)] == [3, 3, None, None, None, None]
