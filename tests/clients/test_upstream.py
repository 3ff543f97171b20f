"""The scripted upstream: it keeps what it was sent and what it answered, and answers by the script."""

import httpx

from tests.clients.counting import Meter
from tests.clients.script import DONE, Script, Turn
from tests.clients.upstream import Trial, run_upstream

TOOL = {"name": "bash", "parameters": {"type": "object", "properties": {"command": {"type": "string"}}}}


def test_calls_are_answered_and_kept() -> None:
    with run_upstream(Script("/x")) as upstream:
        asked = {"model": "m", "messages": [], "tools": [{"type": "function", "function": TOOL}]}
        first = httpx.post(f"{upstream.origin}/v1/chat/completions?a=1", json=asked)
        second = httpx.post(f"{upstream.origin}/v1/responses", json={"model": "m", "input": "Hi", "stream": True})
        third = httpx.post(f"{upstream.origin}/v1/chat/completions", json=asked)
    made = [answer.json()["choices"][0]["message"]["tool_calls"][0] for answer in (first, third)]
    assert [call["id"] for call in made] == ["call_1_0", "call_2_0"], "a call without tools takes no number"
    assert made[0]["function"] == {"name": "bash", "arguments": '{"command": "cat notes.txt"}'}
    assert DONE in second.text
    assert second.headers["content-type"].startswith("text/event-stream")
    assert [(call.method, call.target) for call in upstream.recording] == [
        ("POST", "/v1/chat/completions?a=1"),
        ("POST", "/v1/responses"),
        ("POST", "/v1/chat/completions"),
    ]
    assert [call.answer for call in upstream.recording] == [first.content, second.content, third.content]
    assert upstream.recording[0].body == first.request.content


def test_items_of_earlier_answers_may_be_named_by_their_ids() -> None:
    with run_upstream(Script("/x")) as upstream:
        tools = [{"type": "function", **TOOL}]
        for stream in (False, True):
            asked = {"input": [{"role": "user", "content": "Hi"}], "tools": tools, "stream": stream}
            httpx.post(f"{upstream.origin}/v1/responses", json=asked)
        named = [{"type": "item_reference", "id": id} for id in upstream.items if id.startswith("fc_")]
        outputs = [{"type": "function_call_output", "call_id": "call_1_0", "output": "The log"}]
        answered = httpx.post(f"{upstream.origin}/v1/responses", json={"input": [*named, *outputs], "tools": tools})
        unknown = httpx.post(f"{upstream.origin}/v1/responses", json={"input": [{"type": "item_reference", "id": "x"}]})
    assert [each["id"] for each in named] == ["fc_1_0", "fc_2_0"]
    assert answered.status_code == 200 and upstream.recording[-2].turn is not None
    assert unknown.status_code == 404 and "Item with id 'x' not found." in unknown.text


def test_no_run_has_the_ids_of_another() -> None:
    with run_upstream(Script("/x", run=2)) as upstream:
        asked = {"messages": [], "tools": [{"type": "function", "function": TOOL}]}
        answer = httpx.post(f"{upstream.origin}/v1/chat/completions", json=asked).json()
    assert answer["choices"][0]["message"]["tool_calls"][0]["id"] == "call_2001_0"


def test_what_is_asked_beside_conversations_is_answered_too() -> None:
    with run_upstream(Script()) as upstream:
        answers = [
            httpx.request(method, upstream.origin + path)
            for method, path in (
                ("HEAD", "/"),
                ("GET", "/v1/models"),
                ("POST", "/v1/messages/count_tokens"),
                ("GET", "/x"),
            )
        ]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 404]
    assert [call.answer for call in upstream.recording] == [answer.content for answer in answers]


def test_a_trial_happens_once_before_the_answer_to_the_first_request_that_shows_its_part() -> None:
    seen: list[int] = []
    with run_upstream(Script("/x")) as upstream:
        upstream.trials[7] = Trial(lambda: seen.append(len(upstream.recording)), cuts=True)
        for n in (6, 7, 7):
            asked = {"messages": [{"role": "user", "content": f"end of part-{n:02}"}]}
            httpx.post(f"{upstream.origin}/v1/chat/completions", json=asked)
    assert seen == [2]
    assert [call.is_cut for call in upstream.recording] == [False, True, False]


def test_what_follows_a_refusal_may_be_answered_otherwise() -> None:
    with run_upstream(Script("/x"), Meter(30), lambda asked: Turn("Rescued.")) as upstream:
        texts = []
        for content in ("Hello", "word " * 100, "Hello", "Hello"):
            asked = {"messages": [{"role": "user", "content": content}]}
            texts.append(httpx.post(f"{upstream.origin}/v1/chat/completions", json=asked).text)
    assert [call.is_refused for call in upstream.recording] == [False, True, False, False]
    assert ["Rescued." in text for text in texts] == [False, False, True, False]
