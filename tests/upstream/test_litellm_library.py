"""What litellm may be handed, and how it is imported."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from proxy.model.errors import BadRequest
from proxy.upstream.litellm_library import ENTRY_POINTS, tell_errors
from tests.support.scripted import LIMIT

OPTIONS = """
    api_base api_key api_version aws_access_key_id aws_role_name aws_sts_endpoint aws_web_identity_token azure_ad_token
    base_url callbacks client custom_llm_provider deployment_id extra_body extra_headers fallbacks headers logger_fn
    mock_response model_list num_retries organization prompt_id ssl_verify timeout use_litellm_proxy user_config
    vertex_ai_credentials vertex_credentials vertex_project _litellm_strip_stream_usage
"""

IMPORT = """
import sys
connected = []
network = ("socket.connect", "socket.getaddrinfo")
sys.addaudithook(lambda event, _: connected.append(event) if event in network else None)
import dotenv
loaded = []
dotenv.load_dotenv = lambda *_, **__: loaded.append(1)
from proxy.upstream.litellm_library import load_litellm
assert "litellm" not in sys.modules
library = load_litellm()
import threading
print(connected, loaded)
print(library.acompletion.__name__, threading.active_count())
"""


@pytest.mark.parametrize("wire", ENTRY_POINTS)
@pytest.mark.parametrize("name", OPTIONS.split())
def test_an_option_of_litellm_is_no_member_of_a_request(wire: str, name: str) -> None:
    with pytest.raises(BadRequest, match=f"does not take: {name}; leave it out"):
        ENTRY_POINTS[wire].read_members(json.dumps({"model": "m", name: "x"}).encode())


def test_names_in_an_error_are_few_and_short() -> None:
    body = json.dumps(dict.fromkeys([f"{i}" + "x" * 99 for i in range(99)])).encode()
    with pytest.raises(BadRequest) as caught:
        ENTRY_POINTS["responses"].read_members(body)
    assert len(str(caught.value)) < 700


def test_importing_litellm_asks_nobody_and_reads_no_settings_of_its_own(tmp_path: object) -> None:
    told = subprocess.run(
        [sys.executable, "-c", IMPORT], cwd=str(tmp_path), capture_output=True, text=True, timeout=LIMIT, check=True
    )
    assert told.stdout.split("\n")[:2] == ["[] []", "acompletion 1"]
    assert told.stderr == ""


def test_events_are_written_as_each_wire_has_them() -> None:
    value = {"type": "response.created"}
    dumped = SimpleNamespace(model_dump=lambda **_: value)
    assert ENTRY_POINTS["chat_completions"].write_event(dumped) == b'data: {"type":"response.created"}\n\n'
    assert (
        ENTRY_POINTS["responses"].write_event(dumped)
        == b'event: response.created\ndata: {"type":"response.created"}\n\n'
    )
    assert ENTRY_POINTS["anthropic_messages"].write_event({"type": "ping"}) == b'event: ping\ndata: {"type":"ping"}\n\n'
    assert ENTRY_POINTS["anthropic_messages"].write_event("event: ping\n\n") == b"event: ping\n\n"


def result(content: object, **more: object) -> dict[str, object]:
    return {"type": "tool_result", "tool_use_id": "t1", "content": content, **more}


TEXT, IMAGE = {"type": "text", "text": "no such file"}, {"type": "image", "source": {}}


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("no such file", "Error: no such file"),
        ("", "Error: "),
        (None, "Error: "),
        ([TEXT, IMAGE], [{"type": "text", "text": "Error: no such file"}, IMAGE]),
        ([IMAGE], [{"type": "text", "text": "Error:"}, IMAGE]),
        ([], [{"type": "text", "text": "Error:"}]),
        *[(said, said) for said in ("Error: x", "<tool_use_error>x</tool_use_error>", "ValueError: x", "[error] x")],
    ],
)
def test_an_error_of_a_tool_is_told_in_its_text(content: object, told: object) -> None:
    asked = {"model": "m", "messages": [{"role": "user", "content": [result("fine"), result(content, is_error=True)]}]}
    [message] = tell_errors(asked)["messages"]
    assert message["content"] == [result("fine"), result(told, is_error=True)]
    assert asked["messages"][0]["content"][1] == result(content, is_error=True)  # type: ignore[index]


@pytest.mark.parametrize("messages", ["x", [], ["x"], [{"role": "user", "content": "x"}], [{"content": ["x", {}]}]])
def test_what_has_no_error_of_a_tool_stays(messages: object) -> None:
    assert tell_errors({"messages": messages}) == {"messages": messages}
    assert tell_errors({"messages": [{"content": [result("x", is_error=False)]}]})["messages"] == [
        {"content": [result("x", is_error=False)]}
    ]
