"""The actions of the tool: what is found, how it is told, and how old it is said to be."""

import asyncio
import json
import threading
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import pytest

from proxy.engine.recall.history import History
from proxy.engine.recall.policy import RecallPolicy
from proxy.engine.recall.recall import Recall
from proxy.engine.recall.scope import Scope
from proxy.model.errors import Erased, StoreUnavailable
from proxy.model.messages import Message
from proxy.model.search import SearchQuery
from proxy.wire import FORMATS
from proxy.wire.format import DecodedMessage
from tests.support.recalling import (
    OTHER_TENANT,
    TENANT,
    MadeIndex,
    RecallingLog,
    StoppedClock,
    answer,
    ask,
    make_entry,
    make_history,
    make_hit,
    make_log,
    make_recall,
    say,
    scope_of,
)

APP = "def first():\n    return 1\n"
WORK = (
    say("user", "Fix the test"),
    ask("c1", "bash", "I look.", command="cat src/app.py"),
    answer("c1", APP),
    ask("c2", "bash", command="sed -i s/1/2/ src/app.py"),
    answer("c2", "done"),
    ask("c3", "bash", command="make test"),
    answer("c3", "ok"),
    say("assistant", "It passes now."),
    say("user", "Now the docs"),
)


async def recall(made: Recall, scope: Scope, **arguments: Any) -> str:
    return await made.run(scope, json.dumps(arguments))


def know(history: History, **changes: Any) -> tuple[RecallingLog, Scope]:
    return make_log(), scope_of(history, **changes)


class WatchedHistory(History):
    """Says in which threads its messages were read."""

    def __init__(self, history: History) -> None:
        super().__init__(history.wire, history.nodes, history.raws)
        self.read_in: list[threading.Thread] = []

    @cached_property
    def messages(self) -> Sequence[Message]:
        self.read_in.append(threading.current_thread())
        return super().messages


@pytest.mark.parametrize("action", ["search", "describe", "expand", "read"])
async def test_what_takes_long_is_done_in_a_thread(action: str) -> None:
    history = WatchedHistory(make_history(*WORK))
    log, scope = know(history)
    log.keep("aaaaabbbbb", [history.raws[2]], 2)
    named = {"ref": "aaaaabbbbb"} if action in ("describe", "expand") else {"query": "src/app.py"}
    told = await recall(make_recall(log, MadeIndex(make_hit(node=history.nodes[2]))), scope, action=action, **named)
    assert "step 2" in told
    assert history.read_in and threading.main_thread() not in history.read_in


async def test_what_was_prepared_is_not_computed_again() -> None:
    prepared, again = (WatchedHistory(make_history(*WORK)) for _ in range(2))
    log, scope = know(prepared)
    made = make_recall(log, MadeIndex())
    made.prepare(scope)
    made.prepare(scope_of(again))
    made.prepare(Scope(tenant=None))
    await recall(made, scope_of(again), action="search", query="x")
    assert prepared.read_in and again.read_in == []


# Search


async def test_hits_say_what_they_are_where_they_stand_and_how_old_they_are() -> None:
    history = make_history(*WORK)
    index = MadeIndex(make_hit(node=history.nodes[2], snippet="def first():\n    return 1"))
    log, scope = know(history)
    told = await recall(make_recall(log, index), scope, action="search", query="where is first")
    assert told == (
        "Found for: where is first · to read one whole: expand with its ref\n"
        "ref:aaaaabbbbb · output of bash · step 2 · 2 h ago · src/app.py was modified at step 3\n"
        "  def first():\n"
        "      return 1"
    )


async def test_a_request_finds_what_it_continues_and_not_what_it_still_sees() -> None:
    history = make_history(*WORK)
    index = MadeIndex()
    log, scope = know(history, visible=frozenset(history.nodes[5:]))
    await recall(make_recall(log, index, page_characters=8000), scope, action="search", query="x", page=2)
    [query] = index.queries
    assert (query.text, query.tenant, query.sessions) == ("x", TENANT.hex(), ("abc1",))
    assert (query.within, query.visible) == (frozenset(history.nodes), frozenset(history.nodes[5:]))
    assert (query.limit, query.tokens) == (40, 4000)
    assert query.context.endswith("Now the docs")
    assert query.seen == (*[message.text for message in history.messages[5:8]], "Now the docs")
    assert "ledger" not in query.kinds and {"message", "output", "reasoning", "arguments"} < set(query.kinds)


@pytest.mark.parametrize(("room", "tokens"), [(None, 3000), (50_000, 3000), (6_000, 1500), (10, 250)])
async def test_a_search_takes_no_more_room_than_there_is(room: int | None, tokens: int) -> None:
    index = MadeIndex(*[make_hit(reference=f"aaaaaaaa{i:02}", snippet="word " * 60) for i in range(30)])
    log, scope = know(make_history(*WORK), room=room)
    told = await recall(make_recall(log, index), scope, action="search", query="x")
    assert index.queries[0].tokens == tokens
    assert 300 < len(told) <= 4 * tokens + 200


@pytest.mark.parametrize(
    ("reach", "tenant", "expected"),
    [
        ("session", TENANT, (TENANT.hex(), ("abc1",), None)),
        ("tenant", TENANT, (TENANT.hex(), None, None)),
        ("branch", None, (None, None, None)),
    ],
)
async def test_more_is_found_only_where_that_is_allowed(reach: str, tenant: bytes | None, expected: object) -> None:
    index = MadeIndex()
    log, scope = know(make_history(*WORK), reach=reach, tenant=tenant)
    await recall(make_recall(log, index), scope, action="search", query="x")
    assert [(each.tenant, each.sessions, each.within) for each in index.queries] == [expected]


async def test_what_a_session_goes_on_from_is_searched_in_its_own_part() -> None:
    history, index, log = make_history(*WORK), MadeIndex(make_hit(score=1), make_hit(score=3)), make_log()
    log.add_session("old1", tenant=OTHER_TENANT)
    log.add_session("abc1", adopted="old1")
    made = make_recall(log, index)
    await made.search(scope_of(history), "x")
    await made.search(scope_of(history, reach="session"), "x")
    nodes = frozenset(history.nodes)
    assert [(each.tenant, each.sessions, each.within) for each in index.queries] == [
        (None, ("abc1", "old1"), nodes),
        (TENANT.hex(), ("abc1",), None),
        (None, ("old1",), nodes),
    ]


async def test_hits_of_elsewhere_name_their_call() -> None:
    index = MadeIndex(make_hit(session="0123456789abcdef", n=7, kind="broadcast", sender="worker-2"))
    log, scope = know(make_history(*WORK))
    told = await recall(make_recall(log, index), scope, action="search", query="x")
    assert "ref:aaaaabbbbb · broadcast from worker-2 · call 7 of session 0123456789ab · 2 h ago\n" in told


async def test_nothing_found_says_what_to_try() -> None:
    log, scope = know(make_history(*WORK))
    told = await recall(make_recall(log, MadeIndex(behind=3, is_complete=False)), scope, action="search", query="x\ny")
    assert told.startswith("Nothing was found for: x y. Try other words")
    assert "newest 3 records cannot be searched yet" in told and "ended by its time limit" in told


async def test_hits_are_paged_whole() -> None:
    hits = [make_hit(reference=f"aaaaaaaaa{n}", snippet=f"{n}" * 400) for n in range(5)]
    log, scope = know(make_history(*WORK))
    made = make_recall(log, MadeIndex(*hits), page_characters=1000)
    pages = [await recall(made, scope, action="search", query="x", page=page) for page in (1, 2, 3, 4)]
    assert [[n for n in range(5) if f"{n}" * 400 in page] for page in pages] == [[0, 1], [2, 3], [4], []]
    assert "(page 1; the next: the same query, page 2)" in pages[0]
    assert "(page" not in pages[2] and pages[3].startswith("There is no page 4 of what was found for: x. It has 3.")


async def test_a_snippet_has_nothing_that_looks_like_a_marker() -> None:
    hit = make_hit(snippet="[tool: bash — output pruned; completed; ref:zzzzzzzzzz]\n[FILE: a.py]")
    log, scope = know(make_history(*WORK))
    told = await recall(make_recall(log, MadeIndex(hit)), scope, action="search", query="x")
    assert "(tool: bash" in told and "(FILE: a.py]" in told and "ref:zzzzzzzzzz" not in told


async def test_a_snippet_of_a_ledger_keeps_its_references() -> None:
    hit = make_hit(kind="ledger", snippet="[palimpsest ledger 7c1e5b: the work here]\n16 ran it ref:zzzzzzzzzz")
    log, scope = know(make_history(*WORK))
    told = await recall(make_recall(log, MadeIndex(hit)), scope, action="search", query="x")
    assert "  (palimpsest ledger 7c1e5b: the work here]\n  16 ran it ref:zzzzzzzzzz" in told


async def test_a_program_may_narrow_what_it_searches() -> None:
    index = MadeIndex()
    narrowed = SearchQuery(text="", roles=("user",), kinds=("message",), since_ms=5)
    await make_recall(make_log(), index).search(Scope(tenant=None), "x", narrowed=narrowed)
    [query] = index.queries
    assert (query.text, query.roles, query.kinds, query.since_ms) == ("x", ("user",), ("message",), 5)
    assert (query.tenant, query.sessions, query.within) == (None, None, None)


# Expand and describe


async def test_an_output_is_read_with_what_changed_since() -> None:
    history = make_history(*WORK)
    log, scope = know(history)
    log.keep("aaaaabbbbb", WORK[2:3], 2)
    told = await recall(make_recall(log), scope, action="expand", ref="[ref:AAAAABBBBB]")
    assert told.startswith(
        "ref:aaaaabbbbb · output of bash · as of step 2 of 6; src/app.py was modified at step 3\n"
        "--- tool · answers c1\n"
    )
    assert APP in told


async def test_a_newer_version_is_named_by_its_reference_or_by_how_to_read_it() -> None:
    again = (ask("c4", "bash", command="cat src/app.py"), answer("c4", "def second(): ..."))
    history = make_history(*WORK, *again, say("user", "go on"))
    log, scope = know(history)
    log.keep("aaaaabbbbb", WORK[2:3], 2)
    made = make_recall(log)
    told = await recall(made, scope, action="expand", ref="aaaaabbbbb")
    assert "was modified at step 3; newer: step 7 (read src/app.py @ 7)\n" in told
    visible = scope_of(history, visible=frozenset(history.nodes[9:]))
    told = await recall(made, visible, action="expand", ref="aaaaabbbbb")
    assert "; newer: the output of step 7, which is still in this conversation\n" in told
    log.keep("cccccddddd", again[1:], 10)
    log.keep("eeeeefffff", WORK[5:] + again, 5)
    log.add_epoch(history, "eeeeefffff", "cccccddddd")
    told = await recall(made, scope, action="expand", ref="aaaaabbbbb")
    assert "; newer: ref:cccccddddd (step 7)\n" in told


async def test_the_same_call_made_again_is_newer() -> None:
    again = (ask("c9", "bash", command="make test"), answer("c9", "failed"))
    history = make_history(*WORK, *again)
    log, scope = know(history)
    log.keep("aaaaabbbbb", WORK[6:7], 6)
    told = await recall(make_recall(log), scope, action="expand", ref="aaaaabbbbb")
    assert "· as of step 4 of 7; newer: step 7 (read step 7)\n" in told


async def test_several_messages_are_told_by_their_steps() -> None:
    log, scope = know(make_history(*WORK))
    log.keep("aaaaabbbbb", WORK[1:5], 1)
    made = make_recall(log)
    told = await recall(made, scope, action="expand", ref="aaaaabbbbb")
    assert told.startswith("ref:aaaaabbbbb · 4 messages · as of steps 2-3 of 6\n--- assistant\nI look.\n")
    told = await recall(made, scope, action="describe", ref="aaaaabbbbb")
    assert '  2: I look.; bash {"command": "cat src/app.py"}\n' in told
    assert '  3: bash {"command": "sed -i s/1/2/ src/app.py"}\n' in told


async def test_files_that_several_messages_show_are_told_if_they_changed_since() -> None:
    raws = (
        ask("c1", "bash", command="cat a.py"),
        answer("c1", "a"),
        ask("c2", "bash", command="cat b.py"),
        answer("c2", "b"),
        ask("c3", "bash", command="echo >> a.py"),
        answer("c3", ""),
        ask("c4", "bash", command="sed -i s/b/c/ b.py"),
        answer("c4", ""),
        ask("c5", "bash", command="cat b.py"),
        answer("c5", "c"),
    )
    log, scope = know(make_history(*raws))
    log.keep("aaaaabbbbb", raws[:6], 0)
    log.keep("cccccddddd", raws[2:4], 2)
    log.keep("eeeeefffff", raws[8:], 8)
    made = make_recall(log)
    told = await recall(made, scope, action="expand", ref="aaaaabbbbb")
    assert " · as of steps 1-3 of 5; b.py was modified at step 4; newer: step 5 (read b.py @ 5)\n" in told
    told = await recall(made, scope, action="expand", ref="cccccddddd")
    assert " · as of step 2 of 5; b.py was modified at step 4; newer: step 5 (read b.py @ 5)\n" in told
    assert " · as of step 5 of 5\n" in await recall(made, scope, action="expand", ref="eeeeefffff")


async def test_lines_of_a_file_are_told_to_be_outdated_too() -> None:
    raws = (*WORK[:3], ask("g1", "bash", command="grep -n def src/app.py"), answer("g1", "1: def"), *WORK[3:])
    log, scope = know(make_history(*raws))
    log.keep("aaaaabbbbb", raws[4:5], 4)
    told = await recall(make_recall(log), scope, action="expand", ref="aaaaabbbbb")
    assert "as of step 3 of 7; src/app.py was modified at step 4\n" in told


async def test_a_description_has_size_time_and_outline() -> None:
    history = make_history(*WORK)
    log, scope = know(history)
    log.keep("aaaaabbbbb", WORK[2:3], 2)
    log.add_call("abc1", history, 3)
    told = await recall(make_recall(log), scope, action="describe", ref="aaaaabbbbb")
    assert told == (
        "ref:aaaaabbbbb · output of bash · as of step 2 of 6; src/app.py was modified at step 3 · recorded 2 h ago"
        " · 50 characters, 3 lines, 1 page\n"
        "  def first takes nothing · lines 1-2\n"
        "To read it: expand, ref aaaaabbbbb."
    )


async def test_a_long_original_has_pages() -> None:
    text = "".join(f"line {n}\n" for n in range(300))
    raws = (ask("c1", "bash", command="cat log"), answer("c1", text))
    log, scope = know(make_history(*raws))
    log.keep("aaaaabbbbb", raws[1:], 1)
    made = make_recall(log, page_characters=1000)
    pages = [await recall(made, scope, action="expand", ref="aaaaabbbbb", page=page) for page in (1, 2, 3, 4)]
    assert " · page 1 of 3\n" in pages[0]
    assert pages[0].endswith("\n(page 1 of 3; the next: ref aaaaabbbbb, page 2)")
    assert not pages[2].endswith(")")
    bodies = [page.partition("\n")[2].rpartition("\n(page")[0] or page.partition("\n")[2] for page in pages[:3]]
    assert text in "".join(bodies)
    assert pages[3] == "There is no page 4 of this: it has 3, counted from 1 (ref aaaaabbbbb)."


async def test_an_original_is_exact_but_for_markers_of_ours() -> None:
    raws = (
        ask("c1", "bash", command="cat setup.cfg"),
        answer("c1", "[tool:pytest]\n\tx = \x1b[1m\n[tool: bash — output pruned; completed; ref:zzzzzzzzzz]\n\ud800"),
    )
    log, scope = know(make_history(*raws))
    log.keep("aaaaabbbbb", raws[1:], 1)
    told = await recall(make_recall(log), scope, action="expand", ref="aaaaabbbbb")
    assert "[tool:pytest]\n\tx = \x1b[1m\n(tool: bash — output pruned" in told and told.isprintable() is False
    assert told.encode().decode() == told
    assert await make_recall(log).expand(scope, "aaaaabbbbb") == told


async def test_an_entry_of_the_index_is_read_like_any_other() -> None:
    history = make_history(*WORK)
    index, (log, scope) = MadeIndex(), know(history)
    index.entries["iiiiijjjjj"] = make_entry(node=history.nodes[5])
    told = await recall(make_recall(log, index), scope, action="expand", ref="iiiiijjjjj")
    assert told == "ref:iiiiijjjjj · reasoning · as of step 4 of 6\nI think it is the cache."
    described = await recall(make_recall(log, index), scope, action="describe", ref="iiiiijjjjj")
    assert "· reasoning · as of step 4 of 6 · recorded 2 h ago · 24 characters, 1 lines, 1 page\n" in described


async def test_respelt_messages_are_the_same() -> None:
    """Clients move cache markers: the log has the message with one, the request without."""
    marked = b'{"role":"user","content":[{"type":"text","text":"Fix the test","cache_control":{"type":"ephemeral"}}]}'
    plain = b'{"role":"user","content":[{"type":"text","text":"Fix the test"}]}'
    log, scope = know(make_history(plain))
    log.keep("aaaaabbbbb", [marked], 0)
    assert "as of step 1 of 1\n" in await recall(make_recall(log), scope, action="expand", ref="aaaaabbbbb")


async def test_a_message_that_was_said_twice_is_the_one_at_its_place() -> None:
    log, scope = know(make_history(*WORK, WORK[0]))
    log.keep("aaaaabbbbb", WORK[:1], 0)
    assert "as of step 1 of 7\n" in await recall(make_recall(log), scope, action="expand", ref="aaaaabbbbb")


async def test_messages_of_a_history_that_was_cut_are_found_where_they_are_now() -> None:
    log, scope = know(make_history(*WORK[3:]))
    log.keep("aaaaabbbbb", WORK[5:7], 5)
    assert "as of step 2 of 4\n" in await recall(make_recall(log), scope, action="expand", ref="aaaaabbbbb")


# What may be read


async def test_a_sibling_branch_is_refused_unless_the_setting_allows_it() -> None:
    log, history = make_log(), make_history(*WORK)
    log.keep("aaaaabbbbb", [say("user", "Something else")], 8)
    told = await recall(make_recall(log), scope_of(history), action="expand", ref="aaaaabbbbb")
    assert told == (
        "ref:aaaaabbbbb belongs to another branch or session, which this conversation may not read."
        " The user can read it with `palimpsest expand aaaaabbbbb`."
    )
    told = await recall(make_recall(log), scope_of(history, reach="session"), action="expand", ref="aaaaabbbbb")
    assert told.startswith("ref:aaaaabbbbb · user · of session abc1\n") and "Something else" in told


async def test_another_session_is_refused_unless_the_setting_allows_it() -> None:
    log, history = make_log(), make_history(*WORK)
    log.add_session("def2")
    log.keep("aaaaabbbbb", WORK[2:3], 2, session="def2")
    made = make_recall(log)
    for reach in ("branch", "session"):
        told = await recall(made, scope_of(history, reach=reach), action="describe", ref="aaaaabbbbb")
        assert "belongs to another branch or session" in told
    told = await recall(made, scope_of(history, reach="tenant"), action="describe", ref="aaaaabbbbb")
    assert told.startswith("ref:aaaaabbbbb · output of a tool · of session def2 · ")


async def test_a_reference_of_another_tenant_is_as_unknown_as_one_that_never_was() -> None:
    log, history = make_log(), make_history(*WORK)
    log.add_session("def2", tenant=OTHER_TENANT)
    log.keep("aaaaabbbbb", WORK[2:3], 2, session="def2")
    log.originals["aaaaaccccc"] = Erased("this content was erased", "def2")
    index = MadeIndex()
    index.entries["aaaaaddddd"] = make_entry(reference="aaaaaddddd", tenant=OTHER_TENANT.hex(), session="def2")
    made = make_recall(log, index)
    scope = scope_of(history, reach="tenant")
    said = {await recall(made, scope, action="expand", ref=f"aaaaa{5 * each}") for each in "bcde"}
    assert {f"{each[:16]}{each[26:]}" for each in said} == {
        "There is no ref:. Copy a reference as it stands, or find its content with search."
    }
    admin = Scope(tenant=None)
    assert APP in await recall(made, admin, action="expand", ref="aaaaabbbbb")
    assert "was erased from the log" in await recall(made, admin, action="expand", ref="aaaaaccccc")
    assert "the cache" in await recall(made, admin, action="expand", ref="aaaaaddddd")


async def test_what_was_erased_is_told() -> None:
    log, scope = know(make_history(*WORK))
    log.originals["aaaaabbbbb"] = Erased("this content was erased", "abc1")
    told = await recall(make_recall(log), scope, action="expand", ref="aaaaabbbbb")
    assert told == "What ref:aaaaabbbbb names was erased from the log; it cannot be read any more."


async def test_a_miswritten_reference_is_answered_with_the_nearest() -> None:
    history = make_history(*WORK)
    log, scope = know(history)
    log.keep("aaaaabbbbb", WORK[2:3], 2)
    log.add_epoch(history, "aaaaabbbbb")
    told = await recall(make_recall(log), scope, action="expand", ref="aaaaabbbbd")
    assert told.startswith("There is no ref:aaaaabbbbd. Did you mean ref:aaaaabbbbb? Copy")


async def test_what_another_credential_recorded_of_the_same_history_is_read() -> None:
    log, history = make_log(), make_history(*WORK)
    log.add_session("old1", tenant=OTHER_TENANT)
    log.add_session("abc1", adopted="old1")
    log.keep("aaaaabbbbb", WORK[2:3], 2, session="old1")
    log.keep("cccccddddd", [say("user", "Something else")], 3, session="old1")
    made = make_recall(log)
    assert APP in await recall(made, scope_of(history), action="expand", ref="aaaaabbbbb")
    told = await recall(made, scope_of(history, reach="tenant"), action="expand", ref="cccccddddd")
    assert "belongs to another branch or session" in told


async def test_a_delegated_agent_reads_what_its_parent_had_when_it_delegated() -> None:
    parent, own, log = make_history(*WORK), make_history(say("user", "Do a part")), make_log()
    later = make_history(*WORK, say("assistant", "Later words"))
    log.add_session("par1", created_ms=1_000)
    log.add_session("abc1", parent="par1", created_ms=5_000)
    log.add_call("par1", parent, 1, opened_ms=4_000)
    log.add_call("par1", later, 2, opened_ms=6_000)
    log.keep("aaaaabbbbb", WORK[2:3], 2, session="par1")
    log.keep("cccccddddd", later.raws[-1:], 9, session="par1")
    index = MadeIndex(make_hit(session="par1", node=parent.nodes[6]))
    scope = scope_of(own, parent="par1")
    made = make_recall(log, index)
    told = await recall(made, scope, action="search", query="x")
    assert index.queries[0].sessions == ("abc1", "par1")
    assert index.queries[0].within == frozenset((*own.nodes, *parent.nodes))
    assert "· step 4 of the agent that delegated this · 2 h ago\n" in told
    assert APP in await recall(made, scope, action="expand", ref="aaaaabbbbb")
    assert "belongs to another" in await recall(made, scope, action="expand", ref="cccccddddd")
    told = await recall(made, scope, action="read", query="src/app.py")
    assert told.startswith("(from the agent that delegated this)\nsrc/app.py as of step 2 of 6, ")


async def test_a_program_without_a_history_reads_from_the_newest_of_the_session() -> None:
    log, history = make_log(), make_history(*WORK)
    log.keep("aaaaabbbbb", WORK[2:3], 2)
    log.add_call("abc1", history, 1)
    index = MadeIndex()
    index.entries["iiiiijjjjj"] = make_entry(node=history.nodes[5])
    made = make_recall(log, index)
    for scope in (Scope(tenant=None), Scope(tenant=TENANT, reach="tenant")):
        told = await recall(made, scope, action="expand", ref="aaaaabbbbb")
        assert told.startswith(
            "ref:aaaaabbbbb · output of bash · session abc1, as of step 2 of 6; src/app.py was modified at step 3\n"
        )
        assert "session abc1, as of step 4 of 6\n" in await recall(made, scope, action="expand", ref="iiiiijjjjj")


# Read


async def test_a_file_is_read_as_it_was_last_seen() -> None:
    log, scope = know(make_history(*WORK))
    told = await recall(make_recall(log), scope, action="read", query="app.py")
    assert told == (
        'src/app.py as of step 2 of 6, shown by bash {"command": "cat src/app.py"};'
        f" src/app.py was modified at step 3\n{APP}"
    )


async def test_a_file_is_read_as_of_a_step() -> None:
    written = (ask("c4", "write", path="src/app.py", content="v2"), answer("c4", "ok"))
    log, scope = know(make_history(*WORK, *written))
    made = make_recall(log)
    told = await recall(made, scope, action="read", query="src/app.py")
    assert told.startswith("src/app.py as of step 7 of 7, written by write ") and told.endswith("\nv2")
    for query in ("src/app.py @ 6", "src/app.py as of step 3", "src/app.py@#5"):
        told = await recall(made, scope, action="read", query=query)
        assert "as of step 2 of 7" in told and "modified at steps 3, 7\n" in told, query
    assert "No call up to step 1 has read or written src/app.py." in await recall(
        made, scope, action="read", query="src/app.py @ 1"
    )


async def test_a_part_of_a_file_is_told_to_be_one() -> None:
    raws = (ask("c1", "bash", command="head -2 src/app.py"), answer("c1", "def"))
    log, scope = know(make_history(*raws))
    told = await recall(make_recall(log), scope, action="read", query="src/app.py")
    assert ", perhaps only a part of it\ndef" in told


@pytest.mark.parametrize("query", ["step 2", "steps 2", "@ 2", "Step #2"])
async def test_a_step_is_read_by_its_number(query: str) -> None:
    log, scope = know(make_history(*WORK))
    told = await recall(make_recall(log), scope, action="read", query=query)
    assert told.startswith("step 2 of 6\n--- assistant\nI look.\n--- calls bash · c1\ncommand: cat src/app.py\n")


async def test_steps_are_read_together() -> None:
    log, scope = know(make_history(*WORK))
    told = await recall(make_recall(log), scope, action="read", query="steps 5-99")
    assert told.startswith("steps 5-99 of 6\n--- assistant\nIt passes now.\n\n--- user\n")
    told = await recall(make_recall(log), scope, action="read", query="step 7")
    assert told == "There is no step 7: this conversation has 6, counted from 1."


async def test_a_file_that_no_call_shows_is_answered_with_what_there_is() -> None:
    raws = (
        ask("c1", "bash", command="sed -i s/a/b/ src/app.py"),
        answer("c1", "done"),
        ask("c2", "bash", command="cat a/util.py b/util.py"),
        answer("c2", "x"),
    )
    log, scope = know(make_history(*raws))
    made = make_recall(log)
    told = await recall(made, scope, action="read", query="src/app.py")
    assert told == "src/app.py was modified at step 1, but no call showed its content. Read these: step N."
    told = await recall(made, scope, action="read", query="util.py")
    assert told == "Several files end with this path: a/util.py, b/util.py. Name one of them."
    told = await recall(made, scope, action="read", query="lib/apps.py")
    assert told == (
        "No call has read or written lib/apps.py. Files that were: src/app.py. search finds content by its words."
    )
    told = await recall(make_recall(log), Scope(tenant=None), action="read", query="src/app.py")
    assert told == "There is no conversation to read from; search finds content by its words."


async def test_pages_of_a_file_stay_those_of_one_version() -> None:
    raws = (ask("c1", "bash", command="cat a.py"), answer("c1", "x" * 1500), say("user", "go on"))
    log, scope = know(make_history(*raws))
    told = await recall(make_recall(log, page_characters=1000), scope, action="read", query="a.py")
    assert told.endswith("\n(page 1 of 2; the next: a.py @ 1, page 2)")
    told = await recall(make_recall(log, page_characters=1000), scope, action="read", query="a.py @ 1", page=2)
    assert told.endswith(" · page 2 of 2\n" + "x" * 500)


# Faults


class FaultyIndex(MadeIndex):
    """Fails, or takes for ever."""

    def __init__(self, fault: Exception | None) -> None:
        super().__init__()
        self.fault = fault

    async def search(self, query: SearchQuery) -> Any:
        if self.fault is not None:
            raise self.fault
        await asyncio.Event().wait()


async def test_a_fault_of_ours_is_told_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    log, scope = know(make_history(*WORK))
    told = await recall(make_recall(log, FaultyIndex(StoreUnavailable("it is locked"))), scope, query="x")
    assert told == "The log cannot be read now: it is locked. Go on with what you have."
    assert not caplog.records
    told = await recall(make_recall(log, FaultyIndex(ZeroDivisionError())), scope, query="x")
    assert told.startswith("Recalling failed inside the proxy. Go on")
    assert "recall failed" in caplog.text


async def test_recalling_takes_a_bounded_time() -> None:
    log, scope = know(make_history(*WORK))
    made = Recall(log, FaultyIndex(None), StoppedClock(), RecallPolicy(), time_limit=0.01)
    told = await recall(made, scope, action="search", query="x")
    assert told.startswith("Recalling took too long and was given up.")


async def test_calls_of_one_answer_share_what_is_computed_of_its_history(monkeypatch: pytest.MonkeyPatch) -> None:
    log = make_log()
    log.keep("aaaaabbbbb", WORK[2:3], 2)
    made, decoded = make_recall(log), list[bytes]()
    form = FORMATS["chat_completions"]
    decode = form.decode_message

    def count(raw: bytes) -> DecodedMessage:
        decoded.append(raw)
        return decode(raw)

    monkeypatch.setattr(form, "decode_message", count)
    for _ in range(8):
        assert APP in await recall(made, scope_of(make_history(*WORK)), action="expand", ref="aaaaabbbbb")
    assert decoded == list(WORK)
    await recall(made, scope_of(make_history(*WORK, say("user", "more"))), action="read", query="step 1")
    assert len(decoded) == 2 * len(WORK) + 1


async def test_arguments_that_make_no_sense_are_answered() -> None:
    log, scope = know(make_history(*WORK))
    assert "There is no action" in await make_recall(log).run(scope, "{}")


async def test_what_cannot_be_looked_up_is_left_out() -> None:
    """The session has no call that can be read any more."""
    log, history = make_log(), make_history(*WORK)
    log.keep("aaaaabbbbb", WORK[2:3], 2)
    made = make_recall(log)
    told = await recall(made, scope_of(history), action="describe", ref="aaaaabbbbb")
    assert "as of step 2 of 6" in told and "recorded" not in told
    told = await recall(made, Scope(tenant=None), action="expand", ref="aaaaabbbbb")
    assert told.startswith("ref:aaaaabbbbb · output of a tool · of session abc1\n")
    told = await recall(made, scope_of(history, session="zzz9"), action="expand", ref="aaaaaccccc")
    assert told.startswith("There is no ref:aaaaaccccc. Copy")


async def test_summaries_and_outlines_are_named_as_what_they_are() -> None:
    hits = [make_hit(kind="summary", role="user"), make_hit(kind="message", role="assistant")]
    hits += [make_hit(kind="arguments", tool="bash"), make_hit(kind="output", tool="", at_ms=0)]
    log, scope = know(make_history(*WORK))
    told = await recall(make_recall(log, MadeIndex(*hits)), scope, action="search", query="x")
    for named in (" · summary · ", " · assistant · ", " · call of bash · ", " · output of a tool · "):
        assert named in told


async def test_ages_are_told_in_their_largest_unit() -> None:
    log, scope = know(make_history(*WORK))
    for ms, age in ((5_000, "5 s ago"), (125_000, "2 min ago"), (86_400_000 * 3, "3 d ago"), (-1, "0 s ago")):
        hit = make_hit(at_ms=StoppedClock().now_ms() - ms)
        assert f" · {age}\n" in await recall(make_recall(log, MadeIndex(hit)), scope, action="search", query="x")


async def test_many_changes_are_told_by_the_newest() -> None:
    edits = [
        raw for n in range(20) for raw in (ask(f"e{n}", "bash", command=f"echo {n} >> src/app.py"), answer(f"e{n}", ""))
    ]
    log, scope = know(make_history(*WORK[:3], *edits))
    told = await recall(make_recall(log), scope, action="read", query="src/app.py")
    assert "was modified at steps …, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22\n" in told
