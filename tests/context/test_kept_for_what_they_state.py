"""What stays in view for what it states: open items of the newest list, what an answer refers to, the newest reminder.

What is attached to the words of a user gives way before them; what the provider's own tools return is nobody's words.
"""

import json
import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from proxy.context.builder import ContextBuilder
from proxy.context.conversation import BuilderPolicy, CountedMessage, index_conversation, list_groups
from proxy.context.ledger import FULL, format_step
from proxy.context.message_features import extract_features, find_closed_item, find_created_item, list_open_items
from proxy.model.epoch import ContextPlan, Kept, Replaced, Written
from proxy.model.messages import ToolCall
from proxy.wire import FORMATS
from tests.support.views import RawMessage, act, call, count, result, said, see, user, view_seen

ANTHROPIC, RESPONSES = FORMATS["anthropic_messages"], FORMATS["responses"]


def build(seen: Sequence[CountedMessage], ceiling: int) -> ContextPlan:
    return ContextBuilder(BuilderPolicy(), count).build(view_seen(list(seen), ceiling))


def work(first: int, steps: int, size: int = 80) -> list[RawMessage]:
    return [
        m for i in range(first, first + steps) for m in act(f"w{i}", f"cat part_{i}.py", f"line {i} of it\n" * size)
    ]


def is_kept(made: ContextPlan, place: int) -> bool:
    return place >= made.through or any(isinstance(edit, Kept) and edit.place == place for edit in made.edits)


LISTS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (
        "TodoWrite",
        {"todos": [{"content": "a", "status": "completed"}, {"content": "b", "status": "pending"}]},
        {"todos": [{"content": "b", "status": "completed"}]},
    ),
    (
        "update_plan",
        {"plan": [{"step": "b", "status": "in_progress"}]},
        {"plan": [{"step": "b", "status": "completed"}]},
    ),
    (
        "todo_write",
        {"merge": True, "items": [{"title": "b", "done": False}]},
        {"items": [{"title": "b", "done": True}]},
    ),
    ("frob", {"x": json.dumps([{"task": "b", "state": "open"}])}, {"x": json.dumps([{"task": "b", "state": "done"}])}),
    ("update_todo_list", {"todos": "[x] a\n[-] b"}, {"todos": "[x] a\n[x] b"}),
    ("progress", {"task_progress": "- [x] a\n- [ ] b"}, {"task_progress": "- [x] a\n- [X] b"}),
]


@pytest.mark.parametrize(("name", "opened", "closed"), LISTS)
def test_open_items_are_read_by_their_shape(name: str, opened: dict[str, Any], closed: dict[str, Any]) -> None:
    assert list_open_items(ToolCall("c", name, json.dumps(opened))) == ["b"]
    assert list_open_items(ToolCall("c", name, json.dumps(closed))) == []


@pytest.mark.parametrize(
    "given",
    [
        "{}",
        "no json",
        '{"todos": []}',
        '{"todos": [1, 2]}',
        '{"todos": [{"content": "a"}]}',
        '{"todos": [{"status": "open"}]}',
        '{"text": "- [ ] a"}',
        '{"text": "words\\nmore words\\n- [ ] a\\n- [ ] b"}',
        '{"text": "[not json"}',
    ],
)
def test_anything_else_states_no_list(given: str) -> None:
    assert list_open_items(ToolCall("c", "todo", given)) is None


@pytest.mark.parametrize(("name", "opened", "closed"), LISTS)
@pytest.mark.parametrize("ceiling", [6_000, 12_000])
def test_the_newest_list_with_open_items_stays(
    name: str, opened: dict[str, Any], closed: dict[str, Any], ceiling: int
) -> None:
    def state(id: str, given: dict[str, Any]) -> list[RawMessage]:
        asked = call(id, "x")
        asked["tool_calls"][0]["function"] = {"name": name, "arguments": json.dumps(given)}
        return [asked, result(id, "noted")]

    for newest, stays in ((opened, True), (closed, False)):
        history = [user("go"), *state("p1", opened), *work(0, 15), *state("p2", newest), *work(20, 25)]
        made = build([see(each) for each in history], ceiling)
        assert not is_kept(made, 1) and is_kept(made, 33) == stays


def test_a_list_that_would_take_too_much_room_does_not_stay() -> None:
    asked = call("p", "x")
    given = {"todos": [{"content": f"item {i} of a very long list", "status": "pending"} for i in range(200)]}
    asked["tool_calls"][0]["function"] = {"name": "TodoWrite", "arguments": json.dumps(given)}
    history = [user("go"), asked, result("p", "noted"), *work(0, 40)]
    assert not is_kept(build([see(each) for each in history], 6_000), 1)


def test_a_call_that_adds_an_item_stays_until_the_item_is_closed() -> None:
    """As Claude Code does it: a call for each item, and its number in the output."""

    def use(id: str, name: str, given: dict[str, Any], output: str) -> list[RawMessage]:
        asked = call(id, "x")
        asked["tool_calls"][0]["function"] = {"name": name, "arguments": json.dumps(given)}
        return [asked, result(id, output)]

    def add(n: int) -> list[RawMessage]:
        given = {"subject": f"Part {n}", "description": f"Write part {n}"}
        return use(f"t{n}", "TaskCreate", given, f"Task #{n} created successfully: Part {n}")

    def change(n: int, status: str) -> list[RawMessage]:
        return use(f"u{n}{status}", "TaskUpdate", {"taskId": str(n), "status": status}, f"Updated task #{n} status")

    history = [user("go"), *add(1), *add(2), *add(3), *change(1, "in_progress"), *work(0, 15), *change(1, "completed")]
    history += [*change(3, "deleted"), *work(20, 25)]
    made = build([see(each) for each in history], 12_000)
    assert [is_kept(made, place) for place in (1, 3, 5, 7)] == [False, True, False, False]


def test_what_adds_or_closes_no_item_is_none() -> None:
    assert find_created_item("The file was created") == find_created_item("Task 1 is created by a person") == ""
    assert find_created_item("Todo item-7 was added") == "item-7"
    closing = {"task_id": 7, "done": True}
    assert find_closed_item(ToolCall("c", "t", json.dumps(closing))) == "7"
    for given in ({"task_id": 7}, {"task_id": 7, "done": False}, {"done": True}, {"task_id": [7], "done": True}):
        assert find_closed_item(ToolCall("c", "t", json.dumps(given))) == ""


ANSWERS = [
    "The second one, please.",
    "yes please",
    "2",
    "option B",
    "do that.",
    "your first idea",
    "das zweite",
    "第二个",
]
OTHERS = [
    "Now look at the parser.",
    "Fix the second test in a.py",
    "use it to parse the file",
    "go on",
    "both files matter",
]


@pytest.mark.parametrize(
    ("answer", "refers"), [*((each, True) for each in ANSWERS), *((each, False) for each in OTHERS)]
)
def test_what_an_answer_refers_to_stays_with_it(answer: str, refers: bool) -> None:
    proposal = said("I see two ways: rewrite the loader in place, or put a cache in front of it. Which one?")
    history = [user("Make it faster."), *work(0, 10), proposal, user(answer), *work(20, 40)]
    made = build([see(each) for each in history], 6_000)
    assert is_kept(made, history.index(proposal)) == refers


def see_item(form: Any, item: object) -> CountedMessage:
    decoded = form.decode_message(json.dumps(item).encode())
    return CountedMessage(decoded.message, decoded.structure, count(decoded.message.text) + 4)


def remind(number: int, tag: str) -> str:
    text = f"Turn {number}: the list has {number % 5} open items. Do not mention this."
    return f"<{tag}>{text} {'x' * (number % 7)}</{tag}>" if tag else text


@pytest.mark.parametrize("tag", ["system-reminder", ""])
@pytest.mark.parametrize("wire", ["anthropic_messages", "responses", "chat_completions"])
def test_old_reminders_of_the_system_give_way_and_the_newest_stays(wire: str, tag: str) -> None:
    seen = [see(user("go"))]
    role = "system" if wire != "responses" else "developer"
    for i in range(40):
        seen += [see(each) for each in act(f"c{i}", f"cat part_{i}.py", f"line {i}\n" * 60)]
        seen.append(see_item(FORMATS[wire], {"type": "message", "role": role, "content": remind(i, tag)}))
    made = build(seen, 6_000)
    reminders = [place for place, each in enumerate(seen) if each.structure.role == "system"]
    kept = [place for place in reminders if is_kept(made, place)]
    assert kept[-1] == reminders[-1] and len(kept) < 12
    assert not any(isinstance(edit, Written) and '"" ' in edit.text for edit in made.edits)
    numbers = [group.start for group in list_groups(seen[:100])]
    assert [group.start for group in list_groups(seen)][: len(numbers) - 1] == numbers[:-1]


def test_a_message_of_the_system_that_stands_once_stays() -> None:
    once = see_item(ANTHROPIC, {"role": "system", "content": "The date is the 3rd."})
    seen = [see(user("go")), *map(see, work(0, 9)), once, *map(see, work(10, 30))]
    assert is_kept(build(seen, 6_000), seen.index(once))


WORDS = [
    "cache",
    "parser",
    "socket",
    "buffer",
    "lexer",
    "handler",
    "config",
    "token",
    "loader",
    "worker",
    "branch",
    "merge",
]


def prose(seed: int, words: int = 900) -> str:
    picked = random.Random(seed)
    return " ".join(picked.choice(WORDS) for _ in range(words))


def attach(kind: str, seed: int) -> dict[str, object]:
    if kind == "search_result":
        content = [{"type": "text", "text": prose(seed)}]
        return {"type": kind, "source": f"https://x/{seed}", "title": f"Page {seed}", "content": content}
    source = {"type": "text", "media_type": "text/plain", "data": prose(seed)}
    return {"type": "document", "title": f"Report {seed}", "source": source}


@pytest.mark.parametrize("kind", ["document", "search_result"])
@pytest.mark.parametrize("ceiling", [6_000, 8_000])
def test_attached_texts_give_way_and_the_words_beside_them_stay(kind: str, ceiling: int) -> None:
    seen = []
    for i in range(8):
        words = {"type": "text", "text": f"What does report {i} say of the lexer? Keep it to a sentence."}
        seen.append(
            see_item(ANTHROPIC, {"role": "user", "content": [attach(kind, 2 * i), attach(kind, 2 * i + 1), words]})
        )
        seen.append(see_item(ANTHROPIC, {"role": "assistant", "content": f"Report {i} praises it."}))
    seen.append(see(user("And in sum?")))
    made = build(seen, ceiling)
    shortened = {edit.place: edit.text for edit in made.edits if isinstance(edit, Replaced)}
    assert made.tokens <= ceiling
    for place in range(0, 14, 2):
        assert is_kept(made, place) or f"What does report {place // 2} say" in shortened.get(place, "") or place < 8
    assert any("left out" in text and "Keep it to a sentence." in text for text in shortened.values())


def test_rules_are_not_taken_from_attached_texts() -> None:
    source = {"type": "text", "data": "You must never open the gate. " + prose(1)}
    content = [{"type": "document", "source": source}, {"type": "text", "text": "You must always lock the gate."}]
    seen = [see_item(ANTHROPIC, {"role": "user", "content": content}), *map(see, work(0, 12))]
    seen += [see(said("Done.")), see(user("Next.")), *map(see, work(20, 12)), see(said("Done.")), see(user("Last."))]
    texts = [edit.text for edit in build(seen, 4_000).edits if isinstance(edit, Written | Replaced)]
    assert not any("m1: You must never" in text for text in texts)


def tell_step(items: Sequence[CountedMessage]) -> str:
    request = view_seen([see(user("go")), *items, see(user("a")), see(user("b"))], 10_000)
    index = index_conversation(request, BuilderPolicy(), extract_features)
    return format_step(index, index.steps[1], FULL)


SEARCHED: list[dict[str, Any]] = [
    {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "vans"}},
    {
        "type": "web_search_tool_result",
        "tool_use_id": "s",
        "content": [{"type": "web_search_result", "url": "https://x"}],
    },
]
SEARCH: dict[str, Any] = {"type": "text", "text": "I will search."}


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ([SEARCH, *SEARCHED, {"type": "text", "text": "Rent "}, {"type": "text", "text": "the van."}], "Rent the van."),
        ([SEARCH, *SEARCHED], "I will search."),
        ([{"type": "text", "text": "Plain."}], "Plain."),
        ([{**SEARCHED[0], "type": "mcp_tool_use"}, {"type": "text", "text": "Done so."}], "Done so."),
    ],
)
def test_what_the_assistant_told_the_user_is_told_not_what_a_search_returned(content: list[Any], told: str) -> None:
    assert tell_step([see_item(ANTHROPIC, {"role": "assistant", "content": content})]) == f'said: "{told}"'


def test_a_step_with_nothing_said_says_nothing() -> None:
    assert tell_step([see_item(ANTHROPIC, {"role": "assistant", "content": SEARCHED})]) == ""


GREP = "grep -n handler_1 a.py | head"


@pytest.mark.parametrize(
    "item",
    [
        {
            "type": "local_shell_call",
            "call_id": "c",
            "action": {"type": "exec", "command": ["bash", "-lc", GREP], "env": {}},
        },
        {"type": "shell_call", "call_id": "c", "action": {"commands": [GREP], "timeout_ms": 1000}},
        {
            "type": "function_call",
            "call_id": "c",
            "name": "shell",
            "arguments": json.dumps({"command": ["sh", "-c", GREP]}),
        },
        {"type": "function_call", "call_id": "c", "name": "shell", "arguments": json.dumps({"command": GREP})},
    ],
)
def test_items_of_shells_are_told_by_their_commands(item: dict[str, object]) -> None:
    name = item.get("name") or str(item["type"]).removesuffix("_call")
    assert tell_step([see_item(RESPONSES, item)]) == f"{name} {GREP}"


def test_a_command_of_words_is_told_as_it_would_be_typed() -> None:
    item = {"type": "local_shell_call", "call_id": "c", "action": {"command": ["grep", "-n", "it's so", "a.py"]}}
    assert tell_step([see_item(RESPONSES, item)]) == "local_shell grep -n 'it'\\''s so' a.py"


def test_an_unknown_item_of_the_provider_is_not_what_the_assistant_said() -> None:
    decoded = RESPONSES.decode_message(b'{"type":"mcp_list_tools","server_label":"x","tools":[]}')
    assert decoded.message.said == "" and "server_label" in decoded.message.text
    assert msgspec.structs.asdict(extract_features(decoded.message))["said"] == ""
