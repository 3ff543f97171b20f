import json
import re

import msgspec

from proxy.context.conversation import (
    BuilderPolicy,
    ConversationIndex,
    CountedMessage,
    PlanRequest,
    PruningPolicy,
    index_conversation,
)
from proxy.context.message_features import extract_features
from proxy.context.references import PAGE, render_message
from proxy.context.tool_outputs import (
    ReplacedMessage,
    count_saved_tokens,
    find_sent_form,
    find_superseded,
    order_outputs,
    outline_output,
    prune_output,
    prune_superseded,
    shorten_message,
    trim_message,
)
from proxy.model.epoch import ContextPlan, Reference, Replaced
from proxy.wire import FORMATS
from tests.support.views import RawMessage, act, call, count, result, said, see, user, view

BIG = "some words that fill an output; " * 40


def look(messages: list[RawMessage]) -> ConversationIndex:
    return index_conversation(view(messages, 10_000), BuilderPolicy(), extract_features)


def test_superseded_goes_before_repeated_before_errors_before_old() -> None:
    messages = [
        user("go"),
        *act("1", "cat old", f"{BIG}old"),
        *act("2", "make", f"<returncode>1</returncode>\nerror: {BIG}"),
        *act("3", "cat a", f"{BIG}same"),
        *act("4", "cat b", f"{BIG}1"),
        *act("5", "cat c", f"{BIG}same"),
        *act("6", "cat b", f"{BIG}2"),
        *act("7", "ls", "small"),
    ]
    assert order_outputs(look(messages), range(len(messages))) == [8, 6, 4, 2, 10, 12]
    assert order_outputs(look(messages), [2, 0, 1]) == [2]


def test_a_tombstone_names_the_call_and_all_parts_of_the_original() -> None:
    messages = [user("go"), *act("1", "cat src/a.py", "read_shape " * 2500), user("b")]
    made = prune_output(view(messages, 10_000), look(messages), 2)
    assert made.edit.text.startswith("[tool: shell — output pruned; completed")
    words = prune_output(view(messages, 10_000), look(messages), 2, ["src/a.py", "src/b.py"]).edit.text
    assert words == made.edit.text.replace("]\n", "] | src/{a,b}.py\n", 1)
    assert [each.offset for each in made.references] == [0, PAGE - 200, 2 * (PAGE - 200)]
    assert set(re.findall(r"ref:(\w{10})", made.edit.text)) == {each.id for each in made.references}


def test_what_had_effects_is_not_to_be_repeated() -> None:
    messages = [user("go"), *act("1", "sed -i s/a/b/ src/a.py", BIG), user("b")]
    text = prune_output(view(messages, 10_000), look(messages), 2).edit.text
    assert "do not repeat" in text and "run it again" not in text


def test_what_was_refused_had_no_effects() -> None:
    messages = [user("go"), *act("1", "sed -i s/a/b/ src/a.py", f"The user rejected this call. {BIG}"), user("b")]
    text = prune_output(view(messages, 10_000), look(messages), 2).edit.text
    assert "do not repeat" not in text and "completed, refused, 1 lines" in text


def test_the_block_of_a_file_begins_with_the_sentence_about_it() -> None:
    messages = [user("go"), *act("1", "cat src/a.py", "import os\n" + "# more\n" * 100), user("b")]
    seen = look(messages)
    request = msgspec.structs.replace(view(messages, 10_000), sentences={seen.found[2].digest.hex(): "It is empty."})
    lines = outline_output(request, seen, 2).edit.text.splitlines()
    assert lines[2:4] == ["  It is empty.", "  imports os"]
    bare = outline_output(request, seen, 2, has_outline=False).edit.text.splitlines()
    assert (bare[2], "  imports os" in bare) == ("  It is empty.", False)


def test_the_block_of_a_file_shows_its_path_and_structure() -> None:
    source = "import os\n\n\ndef read_shape(raw):\n    return raw\n" + "# more\n" * 100
    messages = [user("go"), *act("1", "cat src/a.py", source), user("b")]
    text = outline_output(view(messages, 10_000), look(messages), 2).edit.text
    assert text.startswith("[FILE: src/a.py]") and "def read_shape takes raw" in text
    assert "read_shape" not in outline_output(view(messages, 10_000), look(messages), 2, has_outline=False).edit.text


def test_the_block_of_a_file_has_as_much_of_it_as_there_is_room_for() -> None:
    source = "".join(f"def word_{i}():\n\treturn other_{i}\n" for i in range(400)).strip()
    messages = [user("go"), *act("1", "cat src/a.py", source), user("b")]
    made = [
        outline_output(view(messages, 10_000), look(messages), 2, room, count=count) for room in (0, 100, 900, 2000)
    ]
    bare, least, more, most = (each.edit.text for each in made)
    assert [count(text) + 4 <= room for text, room in ((least, 100), (more, 900), (most, 2000))] == [True] * 3
    assert "word_9 takes" in bare and "word_9 takes" not in least and "word_9 takes" in most
    assert "def word_3():\n\treturn other_3\n" in most and most.count("return") > more.count("return") > 3
    assert "\treturn other_399\nThe original is intact" in most and "lines, " in most
    fits = outline_output(view(messages, 10_000), look(messages), 2, count(bare) + 10, count=count)
    assert fits.edit.text == bare
    # What is no text is not shown, and where lines of it are shown a preview is not.
    plain = [user("go"), *act("1", "cat a.log", BIG * 20), user("b")]
    assert outline_output(view(plain, 10_000), look(plain), 2, 900, count=count).edit.text.count("some words") > 30
    odd = [user("go"), *act("1", "cat a.bin", "\0\1\2" * 9000), user("b")]
    assert "its beginning" not in outline_output(view(odd, 10_000), look(odd), 2, 900, count=count).edit.text


def test_a_language_that_is_not_read_here_is_outlined_by_whoever_can() -> None:
    messages = [user("go"), *act("1", "cat src/a.go", "package main\n" * 100), user("b")]
    told = [
        outline_output(view(messages, 10_000), look(messages), 2, has_outline=has, parse=parse).edit.text
        for has in (True, False)
        for parse in (lambda _, kind: [f"func main of {kind}"], None)
    ]
    assert ["func main of go" in text for text in told] == [True, False, False, False]


def test_words_are_cut_with_a_reference() -> None:
    messages = [user("go"), said(f"ref:abcdefghij {BIG}"), user("b")]
    made = shorten_message(view(messages, 10_000), look(messages), 1)
    assert made.edit.text.startswith("ref abcdefghij some words") and f"ref:{made.references[0].id}" in made.edit.text
    assert len(made.edit.text) < 600


def test_an_output_that_nobody_asked_for_is_of_an_unknown_tool() -> None:
    for messages in ([user("go"), result("x", BIG)], [said("hm"), result("x", BIG)]):
        seen = look(messages)
        assert order_outputs(seen, [1]) == [1]
        assert "[tool: unknown" in prune_output(view(messages, 10_000), seen, 1).edit.text


def test_an_output_whose_call_is_nowhere_is_of_an_unknown_tool() -> None:
    for messages in ([user("go"), result("9", BIG), user("b")], [result("9", BIG), user("b")]):
        place = len(messages) - 2
        assert prune_output(view(messages, 10_000), look(messages), place).edit.text.startswith("[tool: unknown")


def trim_call(arguments: str, text: str = "", most: int = 120) -> tuple[ReplacedMessage, str]:
    """A trimmed call with these arguments, and what they are then."""
    messages = [user("go"), {**call("1", ""), "content": text}, result("1", "ok"), user("b")]
    messages[1]["tool_calls"][0]["function"]["arguments"] = arguments
    made = trim_message(view(messages, 10_000), look(messages), 1, most)
    return made, dict(made.edit.arguments).get("1", arguments)


NOTE = "cut by the proxy palimpsest; the original is intact: ref:"


def test_long_values_of_a_call_are_cut_and_it_stays_json() -> None:
    value = {"path": "a.py", "edits": [{"new": BIG, "old": "short", "n": 3}], "text": BIG}
    made, arguments = trim_call(json.dumps(value))
    cut = json.loads(arguments)
    short = cut["text"]
    assert cut == {"path": "a.py", "edits": [{"new": short, "old": "short", "n": 3}], "text": short}
    head, note, tail = short.split("\n")
    assert BIG.startswith(head) and BIG.endswith(tail) and note == f"[… {NOTE}{made.references[0].id} …]"
    assert (len(head), len(tail), made.edit.text, made.edit.kind) == (120, 60, "", "shortened")


def test_what_a_tool_takes_as_it_is_and_what_is_no_json_is_cut_as_a_text() -> None:
    for arguments in (f"*** Begin Patch\n{BIG}", '{"content": "' + BIG):
        assert NOTE in trim_call(arguments)[1]


def test_short_values_and_those_too_deep_to_be_looked_at_stay() -> None:
    many = json.dumps({"rows": ["short"] * 300})
    deep = "[" * 33 + json.dumps(BIG) + "]" * 33
    deeper = json.dumps({"a": "b"} | {"c": json.loads('{"a":' * 33 + json.dumps([BIG]) + "}" * 33)})
    for arguments in ("{}", many, deep, deeper):
        made, after = trim_call(arguments)
        assert (after, made.edit.arguments) == (arguments, ())


def test_long_words_beside_a_call_are_cut_by_themselves() -> None:
    made, arguments = trim_call('{"a": 1}', BIG)
    assert (arguments, NOTE in made.edit.text) == ('{"a": 1}', True)


def test_what_is_trimmed_names_all_parts_of_its_original() -> None:
    made, arguments = trim_call(json.dumps({"content": BIG * 20}))
    assert [each.offset for each in made.references] == [0, PAGE - 200, 2 * (PAGE - 200)]
    assert set(re.findall(r"ref:(\w{10})", arguments)) == {each.id for each in made.references}


LONG = "some words that fill an output; " * 80
TOKENS = count(LONG)
NEWEST = [message for i in range(9) for message in act(f"n{i}", f"cat new_{i}", f"{i} {LONG}")]
OVERTAKEN = [*act("1", "cat a", f"old {LONG}"), *act("2", "cat a", f"new {LONG}")]


def find(
    old: list[RawMessage],
    policy: PruningPolicy | None = None,
    ceiling: int = 10_000,
    pinned: tuple[int, ...] = (),
    spared: int = 3,
) -> list[int]:
    """Places that give way among all steps but so many of the newest."""
    policy = policy or PruningPolicy()
    seen = view([user("go"), *old, *NEWEST], ceiling, 0, pinned)
    surveyed = index_conversation(seen, BuilderPolicy(policy), extract_features)
    return sorted(prune_superseded(seen, surveyed, policy, range(len(surveyed.steps) - spared), count))


def test_what_was_asked_again_or_stands_again_goes_and_the_newest_copy_stays() -> None:
    assert find(OVERTAKEN) == [2]
    assert find([*act("1", "cat a", LONG), *act("2", "cat b", LONG)]) == [2]
    assert find([*act("1", "cat a", LONG), *act("2", "cat b", LONG), *act("3", "cat b", f"new {LONG}")]) == [4]
    assert find(act("1", "cat a", LONG)) == []


def test_an_error_goes_where_the_same_succeeded_later_with_other_options() -> None:
    failed = f"<returncode>1</returncode>\nerror: {LONG}"
    assert find([*act("1", "pytest -x a", failed), *act("2", "pytest a", LONG)]) == [2]
    assert find([*act("1", "pytest -x a", failed), *act("2", "pytest b", LONG)]) == []
    assert find([*act("1", "pytest -x a", failed), *act("2", "pytest a", f"{failed}again")]) == []
    assert find([*act("1", "pytest a", LONG), *act("2", "pytest -x a", failed)]) == []
    assert find([*act("1", "pytest -x a", LONG), *act("2", "pytest a", f"again {LONG}")]) == []


def test_the_newest_outputs_stay_and_the_measure_follows_the_budget() -> None:
    loose = PruningPolicy(minimum_tokens=1)
    assert find(OVERTAKEN, loose) == [2]
    assert find(OVERTAKEN, loose, ceiling=100_000) == []
    assert find(OVERTAKEN, PruningPolicy(minimum_tokens=1, protect_tokens=9 * TOKENS), ceiling=100_000) == [2]
    assert find(OVERTAKEN, PruningPolicy(minimum_tokens=1, protect_tokens=11 * TOKENS), ceiling=100_000) == []


def test_nothing_goes_unless_enough_goes_together() -> None:
    loose = PruningPolicy(protect_tokens=0)
    thrice = [*OVERTAKEN, *act("3", "cat a", f"newer {LONG}")]
    assert find(OVERTAKEN, loose, ceiling=20_000) == []
    assert find(thrice, loose, ceiling=20_000) == [2, 4]
    assert find(thrice, loose, ceiling=40_000) == []
    assert find(thrice, PruningPolicy(protect_tokens=0, minimum_tokens=1000), ceiling=40_000) == [2, 4]
    assert find(thrice, PruningPolicy(protect_tokens=0, minimum_tokens=1300), ceiling=40_000) == []


def test_pins_protected_tools_and_small_outputs_stay() -> None:
    assert find(OVERTAKEN, pinned=(1,)) == []
    assert find(OVERTAKEN, PruningPolicy(protected_tools=("shell",))) == []
    small = "word; " * 62
    assert find([*act("1", "ls", small), *act("2", "ls", "others"), *OVERTAKEN]) == [6]
    assert find([*act("1", "ls", small * 2), *act("2", "ls", "others"), *OVERTAKEN]) == [2, 6]


def test_it_can_be_turned_off_and_touches_no_other_steps() -> None:
    assert find(OVERTAKEN, PruningPolicy(enabled=False)) == []
    assert find(OVERTAKEN, spared=10) == [2]
    assert find(OVERTAKEN, spared=11) == []


def test_a_gain_is_what_a_marker_saves() -> None:
    seen = view([user("go"), *OVERTAKEN, *NEWEST], 10_000)
    surveyed = index_conversation(seen, BuilderPolicy(), extract_features)
    marked = prune_superseded(seen, surveyed, PruningPolicy(), range(3), count)
    (made,) = marked.values()
    assert count_saved_tokens(surveyed, marked, count) == seen.messages[2].tokens - count(made.edit.text) - 4


def test_a_marker_that_is_longer_than_its_output_is_none() -> None:
    seen = view([user("go"), *OVERTAKEN, *act("3", "cat a", f"newer {LONG}"), *NEWEST], 10_000)
    surveyed = index_conversation(seen, BuilderPolicy(), extract_features)
    dear = msgspec.structs.replace(seen, name=lambda start, _, offset: "x" * 6000 if start == 2 else f"{offset}")
    assert list(prune_superseded(dear, surveyed, PruningPolicy(), range(4), count)) == [4]


def test_what_stays_beside_shortened_words_is_not_saved() -> None:
    """An image is counted with its message, and goes on with what is left of the words."""
    seen = view([user("go"), user(f"look: {LONG}"), user("b")], 10_000)
    pictured = msgspec.structs.replace(seen.messages[1], tokens=seen.messages[1].tokens + 800)
    seen = msgspec.structs.replace(seen, messages=[seen.messages[0], pictured, seen.messages[2]])
    surveyed = index_conversation(seen, BuilderPolicy(), extract_features)
    made = shorten_message(seen, surveyed, 1)
    assert count_saved_tokens(surveyed, {1: made}, count) == count(f"look: {LONG}") - count(made.edit.text)


# --- several results in one message ---------------------------------------------------------------------------------


def see_blocks(*contents: object) -> CountedMessage:
    """An Anthropic message: the assistant's of tool uses, else the user's."""
    role = "assistant" if any(isinstance(each, dict) and each["type"] == "tool_use" for each in contents) else "user"
    decoded = FORMATS["anthropic_messages"].decode_message(json.dumps({"role": role, "content": contents}).encode())
    return CountedMessage(decoded.message, decoded.structure, count(decoded.message.text))


def use(id: str, command: str) -> dict[str, object]:
    return {"type": "tool_use", "id": id, "name": "bash", "input": {"command": command}}


def answer(id: str, output: str) -> dict[str, object]:
    return {"type": "tool_result", "tool_use_id": id, "content": output}


def begin(*messages: CountedMessage) -> tuple[PlanRequest, ConversationIndex]:
    request = msgspec.structs.replace(view([user("go")], 10_000), messages=[see(user("go")), *messages, see(user("b"))])
    return request, index_conversation(request, BuilderPolicy(), extract_features)


PARALLEL = see_blocks(use("1", "cat a.py"), use("2", "sed -i s/a/b/ b.py"), use("3", "ls"))


def test_of_several_outputs_each_large_one_has_a_tombstone_of_its_own() -> None:
    texts = [f"alpha_word {BIG}", f"beta_word\nfatal: no such thing {BIG}", "a.py"]
    results = see_blocks(*(answer(str(i), text) for i, text in enumerate(texts, 1)))
    request, seen = begin(PARALLEL, results)
    made = prune_output(request, seen, 2, ["alpha_word", "beta_word"])
    (first, one), (second, two) = made.edit.arguments
    assert (first, second, made.edit.text, made.edit.kind) == ("1", "2", f"{one}\n{two}\na.py", "tombstone")
    assert one.endswith("| alpha_word") and two.endswith("| beta_word") and "1 lines" in one and "2 lines" in two
    assert "do not repeat" not in one and "do not repeat" in two
    original = render_message(results.message)
    starts = [each.offset for each in made.references]
    assert [original[at:].startswith(text) for at, text in zip(starts, texts, strict=False)] == [True, True]
    assert count_saved_tokens(seen, {2: made}, count) == results.tokens - count(made.edit.text) - 4


def test_where_none_of_several_outputs_is_large_all_are_replaced() -> None:
    request, seen = begin(PARALLEL, see_blocks(*(answer(str(i), "some words") for i in (1, 2, 3))))
    assert [id for id, _ in prune_output(request, seen, 2).edit.arguments] == ["1", "2", "3"]


def test_of_several_outputs_the_large_ones_have_blocks_in_the_room_that_there_is() -> None:
    request, seen = begin(PARALLEL, see_blocks(answer("1", BIG * 9), answer("2", BIG), answer("3", "a.py")))
    made = outline_output(request, seen, 2, 1500, count=count)
    ((id, block),) = made.edit.arguments
    assert (id, made.edit.kind) == ("1", "file") and block.startswith("[FILE: a.py]")
    assert made.edit.text == f"{block}\n{BIG}\na.py" and 900 < count(block) < 1500
    assert [id for id, _ in outline_output(request, seen, 2, count=count).edit.arguments] == ["1", "2"]


def test_several_outputs_are_superseded_only_together() -> None:
    both = see_blocks(use("4", "cat a"), use("5", "cat b")), see_blocks(answer("4", BIG), answer("5", BIG))
    one = see_blocks(use("6", "cat a")), see_blocks(answer("6", BIG))
    again = see_blocks(use("7", "cat a"), use("8", "cat b")), see_blocks(answer("7", BIG), answer("8", f"{BIG}new"))
    _, seen = begin(*both, *one)
    assert find_superseded(seen) == {}
    _, seen = begin(*both, *one, *again)
    assert find_superseded(seen) == {2: 0}


def test_trimmed_arguments_save_what_they_no_longer_say() -> None:
    long, short = "word " * 100, json.dumps({"command": "word …"})
    messages = [user("go"), {**call("1", long), "content": BIG}, result("1", "done")]
    index = look(messages)
    cut = count(json.dumps({"command": long})) - count(short)
    bare = ReplacedMessage(Replaced(1, "", "shortened", (("1", short),)), ())
    assert count_saved_tokens(index, {1: bare}, count) == cut > 0
    both = ReplacedMessage(Replaced(1, "some words", "shortened", (("1", short),)), ())
    assert count_saved_tokens(index, {1: both}, count) == cut + count(BIG) - count("some words")


def test_what_the_active_plan_sends_of_a_message_is_found_by_its_kind_with_the_references_that_it_names() -> None:
    tombstone, block = (
        Replaced(2, "[pruned; ref:aaaaaaaaaa]", "tombstone"),
        Replaced(4, "[a file; ref:bbbbbbbbbb]", "file"),
    )
    references = (Reference("aaaaaaaaaa", 2, 3), Reference("bbbbbbbbbb", 4, 5))
    messages = [user("go"), *act("1", "cat a", BIG), *act("2", "cat b", BIG), *act("3", "cat c", BIG)]
    seen = view(messages, 10_000)
    assert find_sent_form(seen, 2, is_tombstone=True) is None
    seen = msgspec.structs.replace(seen, frozen=ContextPlan(6, (tombstone, block), references, 100))
    assert find_sent_form(seen, 2, is_tombstone=True) == ReplacedMessage(tombstone, references[:1])
    assert find_sent_form(seen, 4) == ReplacedMessage(block, references[1:])
    others = [find_sent_form(seen, 2), find_sent_form(seen, 4, is_tombstone=True)]
    assert [*others, find_sent_form(seen, 3), find_sent_form(seen, 6)] == [None] * 4
