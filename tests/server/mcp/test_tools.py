"""The tools of the MCP server: their schemas, what they return, and what they say of arguments that are wrong."""

import asyncio
import json
from typing import Any, get_args

from proxy.engine.recall.policy import RecallPolicy
from proxy.engine.recall.recall import Recall
from proxy.model.errors import NotFound
from proxy.model.search import EntryKind, SearchQuery
from proxy.server.mcp.tools import TOOLS, McpTools, Reader
from tests.support.recalling import (
    OTHER_TENANT,
    TENANT,
    MadeIndex,
    RecallingLog,
    StoppedClock,
    answer,
    ask,
    make_history,
    make_hit,
    make_log,
    say,
)

WORK = (
    say("user", "Fix the test"),
    ask("c1", "bash", command="cat src/app.py"),
    answer("c1", "def first(): ..."),
    ask("c2", "bash", command="sed -i s/1/2/ src/app.py"),
    answer("c2", "done"),
)


def make_tools(log: RecallingLog, index: MadeIndex | None = None, page_characters: int = 12_000) -> McpTools:
    policy, clock = RecallPolicy(page_characters=page_characters), StoppedClock()
    return McpTools(log, Recall(log, index or MadeIndex(), clock, policy), clock, policy)


def make_worked_log() -> RecallingLog:
    """Two sessions of ours and one of another tenant, whose ids begin alike."""
    log = make_log()
    log.add_session("abc2", seq=2, parent="abc1", branches=3)
    log.add_session("abd3", tenant=OTHER_TENANT, seq=3)
    log.add_call("abc1", make_history(*WORK[:3]), 1)
    log.add_call("abc1", make_history(*WORK), 2)
    return log


async def call(made: McpTools, name: str, tenant: bytes | None = None, **arguments: Any) -> str:
    result = await made.call(Reader(tenant), name, arguments)
    assert not result.is_error, result.text
    return result.text


async def fail(made: McpTools, name: str, tenant: bytes | None = None, **arguments: Any) -> str:
    result = await made.call(Reader(tenant), name, arguments)
    assert result.is_error
    return result.text


def test_every_tool_says_what_it_takes_in_one_object_without_references() -> None:
    for tool in TOOLS:
        schema = tool.schema
        assert schema["type"] == "object" and "$ref" not in json.dumps(schema) and "$defs" not in schema
        assert set(schema["properties"]) == set(tool.arguments.__struct_fields__)
        assert len(tool.description) < 120
    by_name = {tool.name: tool.schema for tool in TOOLS}
    assert by_name["search"]["required"] == ["query"]
    assert by_name["read_file"]["required"] == ["session", "path"]
    kinds = by_name["search"]["properties"]["kinds"]["items"]["enum"]
    assert set(kinds) == set(get_args(EntryKind))


async def test_search_passes_on_what_narrows_it() -> None:
    index = MadeIndex(make_hit())
    tools = make_tools(make_worked_log(), index)
    more = {"roles": ["tool"], "tools": ["bash"], "kinds": ["output"], "since": "1970-01-01T00:00:01Z"}
    told = await call(tools, "search", TENANT, query="first", session="abc1", until="1970-01-02", page=2, **more)
    [query] = index.queries
    assert query == SearchQuery(
        text="first",
        tenant=TENANT.hex(),
        sessions=("abc1",),
        roles=("tool",),
        tools=("bash",),
        kinds=("output",),
        since_ms=1000,
        until_ms=86_400_000,
        limit=40,
        tokens=6000,
    )
    assert told.startswith("There is no page 2 of what was found for: first.")
    assert "ref:aaaaabbbbb · output of bash · call 1 of session abc1" in await call(tools, "search", query="first")
    assert (index.queries[-1].tenant, index.queries[-1].sessions) == (None, None)


async def test_what_search_cannot_take_is_told() -> None:
    tools = make_tools(make_worked_log())
    assert "search needs a query" in await fail(tools, "search", query="  ")
    assert "or 3d, 2h or 30m, not 'soon'" in await fail(tools, "search", query="x", since="soon")
    assert "Did you mean query, not querry?" in await fail(tools, "search", querry="x")
    assert "It takes query, session, roles" in await fail(tools, "search", text="x")
    assert "kinds" in await fail(tools, "search", query="x", kinds=["everything"])
    assert "There is no tool 'find'; there are search, " in await fail(tools, "find", query="x")


async def test_references_are_described_and_read() -> None:
    log = make_worked_log()
    log.keep("aaaaabbbbb", WORK[2:3], 2)
    tools = make_tools(log)
    assert "as of step 2 of 3" in await call(tools, "describe", ref="ref:aaaaabbbbb")
    told = await call(tools, "expand", TENANT, ref="[ref:AAAAABBBBB]")
    assert "src/app.py was modified at step 3" in told and "def first(): ..." in told
    assert "There is no page 2" in await call(tools, "expand", ref="aaaaabbbbb", page=2)
    assert (await fail(tools, "expand", ref="aaaaaccccc")).startswith("There is no ref:aaaaaccccc.")
    assert "is no reference: one is" in await fail(tools, "expand", ref="the first one")
    assert (await fail(tools, "expand", OTHER_TENANT, ref="aaaaabbbbb")).startswith("There is no ref:aaaaabbbbb.")


async def test_a_file_is_read_as_of_a_call() -> None:
    tools = make_tools(make_worked_log())
    told = await call(tools, "read_file", session="abc1", path="app.py")
    assert told.startswith("session abc1, as of call 2: src/app.py as of step 2 of 3, shown by bash ")
    assert "src/app.py was modified at step 3" in told
    told = await call(tools, "read_file", session="abc1", path="app.py", call=1)
    assert told.startswith("session abc1, as of call 1: src/app.py as of step 2 of 2, ") and "modified" not in told
    assert "has no exchange 9" in await fail(tools, "read_file", session="abc1", path="app.py", call=9)
    assert "No call has read or written lib.py" in await fail(tools, "read_file", session="abc1", path="lib.py")
    assert "no call whose messages can be read" in await fail(tools, "read_file", session="abc2", path="app.py")


async def test_sessions_are_listed_a_page_at_a_time() -> None:
    tools = make_tools(make_worked_log())
    told = await call(tools, "list_sessions")
    assert "abc1 · agent-7 · gpt-5 · 1 call · 1 h ago\n" in told
    assert "abc2 · agent-7 · gpt-5 · 1 call, 3 branches · 1 h ago · delegated by abc1" in told
    assert (await call(tools, "list_sessions", limit=1)).endswith(")")
    own = await call(tools, "list_sessions", TENANT)
    assert [line.partition(" ")[0] for line in own.splitlines()] == ["abc1", "abc2"]
    assert (await call(tools, "list_sessions", OTHER_TENANT)).startswith("abd3 · ")
    assert "abd3" not in await call(tools, "list_sessions", TENANT, before=9)
    assert await call(tools, "list_sessions", before=0) == "There are no sessions before that."


async def test_sessions_of_others_are_as_unknown_as_those_that_never_were() -> None:
    tools = make_tools(make_worked_log())
    for session in ("abd3", "zzz", ""):
        told = await fail(tools, "handoff", TENANT, session=session)
        assert told == f"no session of yours begins with {session!r}; list_sessions has them"
    assert await fail(tools, "handoff", TENANT, session="ab") == "2 sessions begin with 'ab'; write more of the id"
    assert "session abc1" in await call(tools, "handoff", TENANT, session=" ABC1 ")
    assert "session abc1" in await call(tools, "handoff", TENANT, session="abc1")
    assert "abd3" in await fail(tools, "handoff", session="ab")


async def test_a_conversation_is_handed_on_in_pages() -> None:
    log = make_log()
    log.add_call("abc1", make_history(say("user", "x" * 3000)), 1)
    tools = make_tools(log, page_characters=1000)
    told = await call(tools, "handoff", session="abc1")
    assert told.startswith("session abc1 · page 1 of ") and "# Handoff of session abc1" in told
    assert "the next: session abc1, page 2)" in told


class SlowLog(RecallingLog):
    """Never answers."""

    async def list_sessions(self, *_: Any, **__: Any) -> Any:
        await asyncio.Event().wait()


async def test_a_call_takes_a_bounded_time() -> None:
    log, policy, clock = SlowLog(), RecallPolicy(), StoppedClock()
    tools = McpTools(log, Recall(log, MadeIndex(), clock, policy), clock, policy, time_limit=0.01)
    assert await fail(tools, "list_sessions") == "This took too long and was given up. Ask for less."


async def test_what_the_log_says_is_wrong_is_told() -> None:
    log = make_worked_log()
    log.originals["aaaaabbbbb"] = NotFound("there is no reference")
    assert "There is no ref:aaaaabbbbb" in await fail(make_tools(log), "describe", ref="aaaaabbbbb")
