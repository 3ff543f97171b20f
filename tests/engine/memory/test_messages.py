"""The messages of a conversation as parts, over a session with turns, epochs and a summary."""

import json
from typing import Any

import msgspec
import pytest

from proxy.engine.compaction.job import ManualOptions
from proxy.engine.memory.messages import MessageDocument, load_messages
from proxy.engine.memory.path import load_path
from proxy.engine.recall.files import list_files
from proxy.engine.recall.history import History
from proxy.model.epoch import Epoch, Kept, Summary, Written
from proxy.read.context import make_compaction_result
from tests.support.compacting import WIRES, Workshop
from tests.support.managing import Message
from tests.support.remembering import make_memory, report_with_facts, talk

TEXTS = ("Fix the parser.", "Now the lexer.", "And the docs.")
SYSTEM: Message = {"role": "system", "content": "You are an agent."}
PATCH = "--- a/src/lexer.py\n+++ b/src/lexer.py\n@@ -1 +1 @@\n-a\n+b\n"


def call(id: str, name: str, **given: object) -> Message:
    """A message that calls a tool."""
    function = {"name": name, "arguments": json.dumps(given)}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": id, "type": "function", "function": function}]}


def result(id: str, text: str) -> Message:
    """Its result."""
    return {"role": "tool", "tool_call_id": id, "content": text}


async def load(shop: Workshop) -> list[MessageDocument]:
    """The messages of the session."""
    return await load_messages(shop.log, await load_path(shop.log, shop.session))


def show(found: list[MessageDocument]) -> Any:
    """The messages as a client gets them."""
    return msgspec.json.decode(msgspec.json.encode(found))


async def test_each_message_has_its_parts_and_results_stand_with_their_calls() -> None:
    shop = Workshop(report_with_facts, ceiling=100_000)
    await talk(shop, TEXTS, system=SYSTEM)
    found = show(await load(shop))
    assert [each["role"] for each in found if each["role"] == "tool"] == []
    first, asked = found[0], found[1]
    assert first["parts"] == [{"type": "text", "text": "Fix the parser."}]
    assert [part["type"] for part in asked["parts"]] == ["step_start", "tool", "step_finish"]
    tool = asked["parts"][1]
    assert (tool["tool_name"], tool["input"]) == ("bash", {"command": "run 1 0"})
    assert tool["output"].startswith("output 1 0 of the test run")
    status = tool["status"]
    assert (status["state"], status["compacted_at"], status["error_message"]) == ("completed", None, None)
    assert status["started_at"] <= status["completed_at"]
    steps = [part["step_index"] for each in found for part in each["parts"] if part["type"] == "step_start"]
    assert steps == list(range(1, len(steps) + 1))
    assert [each["place"] for each in found] == sorted({each["place"] for each in found})
    assert {each["n"] for each in found} <= {1, 2, 3}


async def test_reasoning_patches_failures_and_open_calls_are_parts() -> None:
    shop = Workshop(report_with_facts, ceiling=100_000)
    thinking = {**call("c1", "apply", patch=PATCH), "reasoning_content": "Hm."}
    await shop.ask(
        [
            SYSTEM,
            {"role": "user", "content": "go"},
            thinking,
            result("c1", "Error: cannot apply"),
            call("c2", "read", path="src/lexer.py"),
            result("c2", "def lex(): ..."),
            result("gone", "late"),
            {"role": "user", "content": "on"},
        ]
    )
    found = show(await load(shop))
    kinds = [[part["type"] for part in each["parts"]] for each in found]
    assert kinds[1] == ["step_start", "reasoning", "tool", "patch", "step_finish"]
    assert found[1]["parts"][3] == {"type": "patch", "unified_diff": PATCH, "files_changed": ["src/lexer.py"]}
    failed = found[1]["parts"][2]["status"]
    assert (failed["state"], bool(failed["error_message"])) == ("error", True)
    orphan = next(part for each in found for part in each["parts"] if part.get("tool_call_id") == "gone")
    assert (orphan["tool_name"], orphan["input"], orphan["output"]) == ("", None, "late")


async def test_a_patch_is_found_in_a_fence_a_list_of_words_and_a_call_that_is_no_json() -> None:
    shop = Workshop(report_with_facts, ceiling=100_000)
    free = call("c2", "apply_patch")
    free["tool_calls"][0]["function"]["arguments"] = "*** Begin Patch\n*** Update File: src/a.py\n@@\n-a\n+b\n"
    told = [
        {"role": "user", "content": f"Apply this:\n```diff\n{PATCH}```\nand not this:\n```\n{PATCH}```\n"},
        call("c1", "shell", command=["apply_patch", PATCH], timeout=10),
        result("c1", "ok"),
        free,
        result("c2", "ok"),
        call("c3", "write", content="+ no patch"),
    ]
    await shop.ask([SYSTEM, *told])
    found = show(await load(shop))
    patches = [part for each in found for part in each["parts"] if part["type"] == "patch"]
    assert [each["files_changed"] for each in patches] == [["src/lexer.py"], ["src/lexer.py"], ["src/a.py"]]
    assert patches[0]["unified_diff"] == PATCH
    assert [part["type"] for part in found[0]["parts"]] == ["text", "patch"]


async def test_a_call_without_a_result_is_pending() -> None:
    shop = Workshop(report_with_facts, ceiling=100_000)
    await shop.ask([SYSTEM, {"role": "user", "content": "go"}, call("c1", "read", path="a.py")])
    status = show(await load(shop))[1]["parts"][1]["status"]
    assert (status["state"], status["completed_at"]) == ("pending", None)


async def test_summaries_stand_behind_what_they_cover_and_compacted_results_say_since_when() -> None:
    shop = Workshop(report_with_facts, ceiling=100_000)
    await talk(shop, (*TEXTS, "Go on.", "And on."), system=SYSTEM)
    await make_memory(shop).manual.compact(shop.session, ManualOptions(level=3))
    (summary, *_) = await shop.log.list_summaries(shop.session)
    (epoch,) = await shop.log.list_epochs(shop.session)
    found = show(await load(shop))
    covering = next(each for each in found for part in each["parts"] if part["type"] == "compaction")
    assert covering["place"] == summary.stop - 1
    assert covering["parts"][-1] == {
        "type": "compaction",
        "summary_node_id": summary.id,
        "level": summary.level,
        "compacted_message_count": summary.stop - summary.start,
    }
    tools = [part for each in found for part in each["parts"] if part["type"] == "tool"]
    assert tools[0]["status"]["compacted_at"] == epoch.opened_ms
    assert tools[-1]["status"]["compacted_at"] is None


async def test_an_output_is_compacted_since_the_first_of_the_epochs_in_a_row_that_have_something_else_for_it() -> None:
    shop = Workshop(report_with_facts, ceiling=100_000)
    await talk(shop, (*TEXTS, "Go on.", "And on."), system=SYSTEM)
    await make_memory(shop).manual.compact(shop.session, ManualOptions(level=3))
    (epoch,) = await shop.log.list_epochs(shop.session)
    path = await load_path(shop.log, shop.session)
    first, second, third = [place for place, seen in enumerate(path.messages) if seen.message.results][:3]
    epochs: list[Epoch] = []

    class Log:
        async def list_epochs(self, session: str) -> list[Epoch]:
            return epochs

        async def list_summaries(self, session: str) -> list[Summary]:
            return []

    async def add(last: int, *kept: int) -> list[int | None]:
        edits = msgspec.json.encode([Written("", 0, last + 1), *map(Kept, kept)])
        changes = {"depth": last + 1, "through": path.nodes[last], "opened_ms": len(epochs) + 1, "edits": edits}
        epochs.append(msgspec.structs.replace(epoch, **changes))
        log: Any = Log()
        found = show(await load_messages(log, path))
        tools = [part for each in found for part in each["parts"] if part["type"] == "tool"]
        return [part["status"]["compacted_at"] for part in tools[:3]]

    assert await add(second, second) == [1, None, None]
    assert await add(third, first) == [None, 2, 2]
    assert await add(first) == [3, None, None]
    assert await add(third, third) == [3, 4, None]


@pytest.mark.parametrize("wire", list(WIRES))
async def test_every_wire_has_the_same_parts_and_results_of_compactions(wire: str) -> None:
    shop = Workshop(report_with_facts, ceiling=100_000, wire=wire)
    await talk(shop, (*TEXTS, "Go on.", "And on."), system=SYSTEM)
    found = show(await load(shop))
    kinds = [part["type"] for each in found for part in each["parts"]]
    assert kinds[:4] == ["text", "step_start", "tool", "step_finish"]
    assert kinds.count("step_start") == kinds.count("step_finish") > 5
    tools = [part for each in found for part in each["parts"] if part["type"] == "tool"]
    assert {(tool["tool_name"], tool["status"]["state"]) for tool in tools} == {("bash", "completed")}
    assert tools[0]["input"] == {"command": "run 1 0"}
    result = make_compaction_result(await make_memory(shop).manual.compact(shop.session, ManualOptions(level=3)))
    (summary, *_) = await shop.log.list_summaries(shop.session)
    assert (result.session_id, result.summary_message_id, result.level_used) == (shop.session, summary.id, 3)
    assert result.tokens_after < result.tokens_before
    assert (result.compacted_message_count, result.summary_token_count) == (summary.stop, summary.tokens)
    assert any(part["type"] == "compaction" for each in show(await load(shop)) for part in each["parts"])


async def test_files_are_listed_with_who_read_and_wrote_them() -> None:
    shop = Workshop(report_with_facts, ceiling=100_000)
    await shop.ask(
        [
            SYSTEM,
            {"role": "user", "content": "go"},
            call("c1", "read_file", path="src/lexer.py"),
            result("c1", "def lex(): ...\n"),
            call("c2", "write_file", path="src/parser.py", content="x = 1\n"),
            result("c2", "ok"),
            call("c3", "bash", command="sed -i 1d src/lexer.py"),
            result("c3", "done"),
        ]
    )
    path = await load_path(shop.log, shop.session)
    items, count = list_files(History(path.row.wire, path.nodes, path.raws), 0, 10)
    assert count == 2
    lexer, parser = items
    assert (lexer.path, lexer.reads, lexer.writes, lexer.changed_since) == ("src/lexer.py", 1, 1, 1)
    assert (parser.path, parser.reads, parser.writes, parser.characters) == ("src/parser.py", 0, 1, 6)
    assert lexer.first_step is not None and lexer.first_step < (lexer.last_step or 0)
    assert list_files(History(path.row.wire, path.nodes, path.raws), 1, 2)[0] == [parser]
