import itertools
import re

import msgspec
import pytest

from proxy.context.conversation import BuilderPolicy, index_conversation
from proxy.context.ledger import LEDGER_END, NEXT_HEADER, CarriedLedgers, choose_header, find_unusual
from proxy.context.ledger_builder import Ledger, LedgerScope, build_ledger
from proxy.context.message_features import extract_features
from proxy.context.references import PAGE, render_original, unfold_words
from proxy.model.epoch import Written
from proxy.model.messages import LEDGER_HEAD
from tests.support.views import RawMessage, act, call, count, name_reference, result, said, user, view

LONG = [
    m
    for i in range(40)
    for m in act(
        f"{i}", f"grep word_{i:03} src/file_{i}.py", " ".join(f"def word_{i:03}_{k}(): pass" for k in range(60))
    )
]
FIRST_HEADER = choose_header(has_calls=True, has_tool=True)
MESSAGES = [user("go"), *LONG, user("and now"), *act("z", "ls", "fine")]
FRAME = 4


def archive(
    room: float,
    messages: list[RawMessage] = MESSAGES,
    ledgers: tuple[Written, ...] = (),
    staying: tuple[int, ...] = (0,),
    *,
    has_words: bool = True,
    pruned: tuple[int, ...] = (),
) -> Ledger:
    seen = view(messages, 10_000)
    found = index_conversation(seen, BuilderPolicy(), extract_features)
    told = frozenset(range(1, 10)) if ledgers else frozenset[int]()
    carried = CarriedLedgers(ledgers, 0, (), told, room)
    scope = LedgerScope(len(found.steps) - 2, frozenset(staying), carried, has_words, {}, frozenset(pruned))
    return build_ledger(seen, found, scope, count)


def list_lines(made: Ledger) -> list[str]:
    return [line for section in made.sections for line in section.text.split("\n")]


def list_told(made: Ledger) -> set[str]:
    lines = (unfold_words(line) for line in list_lines(made) if "ref:" in line)
    return {word for line in lines for word in line.partition(" | ")[2].split()}


def find_line(made: Ledger, text: str) -> str:
    return next((line for line in list_lines(made) if text in line or line.startswith(text)), "")


def speak(i: int, text: str, command: str, output: str = "fine") -> list[RawMessage]:
    asked, answer = act(f"s{i}", command, output)
    return [asked | {"content": text}, answer]


@pytest.mark.parametrize("room", [700, 1500, 3000])
def test_it_fills_its_room_and_no_more(room: int) -> None:
    made = archive(room)
    assert 0.7 * room < made.tokens <= room * 1.05
    assert made.tokens == sum(count(each.text) + FRAME for each in made.sections)


def test_where_nothing_goes_there_is_nothing_to_tell() -> None:
    assert archive(1000, [user("go"), user("b"), *act("z", "ls", "x")]) == Ledger()


def test_each_word_stands_on_the_line_of_a_reference_whose_first_page_has_it() -> None:
    messages = [user("go"), *act("1", "cat", "first_word " * 2000 + "last_word"), user("b"), *act("z", "ls", "x")]
    originals = [view(messages, 10_000).messages[place].message for place in range(len(messages))]
    made = archive(1000, messages)
    assert list_told(made) >= {"first_word", "last_word"}
    pages = {
        each.id: render_original(originals[each.start : each.stop])[each.offset :][:PAGE] for each in made.references
    }
    for line in list_lines(made)[2:]:
        shown = "".join(pages[id] for id in re.findall(r"ref:(\w{10})", line))
        assert all(word in shown for word in unfold_words(line).partition(" | ")[2].split())
    assert all(each.id == name_reference(each.start, each.stop, each.offset) for each in made.references)


def test_words_that_stand_elsewhere_are_not_told_again() -> None:
    assert "word_027_0" in list_told(archive(3000))
    assert "word_027_0" not in list_told(archive(3000, [user("see word_027_0"), *MESSAGES[1:]]))
    assert "word_027_0" not in list_told(archive(3000, [*MESSAGES[:-1], {**MESSAGES[-1], "content": "word_027_0"}]))
    old = (Written("src/{file_12,file_13}.py", 0, 1),)
    assert "src/file_13.py" in list_told(archive(3000))
    assert "src/file_13.py" not in list_told(archive(3000, ledgers=old))


def test_lines_are_quoted_as_they_stood_and_their_words_are_not_named_again() -> None:
    line = "from proxy.wire import shaping_of_bytes"
    output = f"12:    {line}\n" + "\n".join(f"something else that is said only once {k}" for k in range(20))
    messages = [user("go"), *act("1", "cat src/one.py", output), *LONG, user("b"), *act("z", "ls", "x")]
    made = archive(2000, messages)
    lines = list_lines(made)
    assert re.match("2[ -]", lines[lines.index(f"    {line}") - 1])
    assert "shaping_of_bytes" not in list_told(made)
    assert archive(2000, messages, has_words=False).sections[0].text.count(line) == 0


def test_what_an_older_ledger_tells_is_left_to_it() -> None:
    made = archive(2000, ledgers=(Written("word_025_1 src/{file_30,file_31}.py", 0, 19),))
    assert min(each.start for each in made.references) == 19
    assert "word_025_1" not in list_told(made) and "word_026_1" in list_told(made)
    assert list_lines(made)[0] == NEXT_HEADER


def test_each_stretch_between_messages_that_stay_has_a_section_in_its_place() -> None:
    messages = [user("go"), *LONG[:8], user("second"), *LONG[8:16], user("b"), *act("z", "ls", "x")]
    first, second = archive(900, messages, staying=(0, 5)).sections
    assert (first.start, first.stop, second.start, second.stop) == (1, 9, 10, 18)
    assert first.text.startswith(FIRST_HEADER) and second.text.startswith(NEXT_HEADER)
    assert first.text.endswith(LEDGER_END) and second.text.endswith(LEDGER_END)
    assert "word_003" in first.text and "word_003" not in second.text


def test_a_turn_of_the_user_that_is_removed_is_quoted_in_its_place() -> None:
    messages = [user("go"), *LONG, user("PLEASE KEEP THE TABS"), *LONG, user("b"), *act("z", "ls", "x")]
    made = archive(1200, messages)
    assert 'the user said: "PLEASE KEEP THE TABS" ref:' in find_line(made, '"PLEASE KEEP')


def test_of_the_running_task_changes_are_told_first_and_then_the_newest_steps() -> None:
    work = [m for i in range(60) for m in speak(i, f"I look at part {i}.", f"cat part_{i}.py")]
    work[10:12] = speak(5, "Part five needs a guard.", "sed -i s/a/b/ part_5.py")
    messages = [user("go"), user("begin"), *work]
    seen = view(messages, 10_000)
    found = index_conversation(seen, BuilderPolicy(), extract_features)
    carried = CarriedLedgers((), 0, (), frozenset(), 900.0)
    made = build_ledger(seen, found, LedgerScope(len(found.steps) - 2, frozenset({0, 1}), carried), count)
    assert find_line(made, "part_5.py").startswith(
        '8 ! "Part five needs a guard." · sed -i s/a/b/ part_5.py → fine ref:'
    )
    assert '"I look at part 57." · cat part_57.py' in find_line(made, "part_57.py")
    assert "I look at part 2." not in "\n".join(list_lines(made))


def test_of_a_finished_task_its_end_and_its_changes_are_told() -> None:
    task = [m for i in range(12) for m in speak(i, f"I look at part {i}.", f"cat part_{i}.py", "long " * 400)]
    task += [*speak(20, "Now the guard.", "sed -i s/a/b/ part_5.py"), *speak(21, "I run it.", "pytest part_5.py")]
    task += [said("The guard stands; I left the flag alone.")]
    messages = [user("go"), *task, user("b"), *act("z", "ls", "x")]
    made = archive(420, messages)
    text = "\n".join(list_lines(made))
    assert '! "Now the guard." · sed' in text
    assert 'said: "The guard stands; I left the flag alone."' in text
    assert "I run it." not in text and "I look at part 3." not in text
    assert find_line(made, "2-").split(" ")[1].startswith("ref:")


def test_equal_steps_in_a_row_have_one_line() -> None:
    polls = [m for i in range(6) for m in act(f"p{i}", "curl status", f"{i} waiting")]
    made = archive(600, [user("go"), *polls, user("b"), *act("z", "ls", "x")])
    assert find_line(made, "curl status").startswith("2-7 curl status → 1 line (6 times) ref:")


def test_names_of_tools_are_told_where_there_are_several() -> None:
    messages = [user("go"), *act("1", "x", "y", "fetch"), *act("2", "z", "y"), user("b"), *act("z", "ls", "x")]
    assert "shell z" in "\n".join(list_lines(archive(600, messages)))
    assert "shell" not in "\n".join(list_lines(archive(900)))


def test_a_chat_is_told_by_what_was_said_and_its_header_asks_for_no_command() -> None:
    talk = [
        m for i in range(20) for m in (user(f"Question {i}?"), said(f"My answer to that is number {i}, of course."))
    ]
    messages = [*talk, user("a"), said("b"), user("c")]
    made = archive(800, messages, staying=())
    text = "\n".join(list_lines(made))
    assert text.startswith(choose_header(has_calls=False, has_tool=True))
    assert 'the user said: "Question 18?"' in text and 'answered: "My answer to that is number 18, of course."' in text


def test_a_long_history_has_fewer_and_larger_pages_where_there_is_little_room() -> None:
    long = [m for i in range(80) for m in act(f"{i}", f"cat {i}", f"{i} " * 5000)]
    made = archive(500, [user("go"), *long, user("b"), *act("z", "ls", "x")], has_words=False)
    assert made.tokens <= 650
    covered = {place for each in made.references for place in range(each.start, each.stop)}
    assert covered == set(range(1, 161))


def test_words_of_pruned_outputs_are_for_their_tombstones() -> None:
    made = archive(1500, pruned=(80,), staying=(0, 40))
    assert "word_039_1" in made.words[80] and "word_039_1" not in list_told(made)
    assert archive(1500, pruned=(80,), staying=(0, 40), has_words=False).words == {}


def test_what_fills_its_room_at_once_is_not_written_again() -> None:
    counted: list[str] = []

    def count_full(text: str) -> int:
        counted.append(text)
        return 990 - FRAME

    seen = view(MESSAGES, 10_000)
    found = index_conversation(seen, BuilderPolicy(), extract_features)
    carried = CarriedLedgers((), 0, (), frozenset(), 1000)
    made = build_ledger(seen, found, LedgerScope(len(found.steps) - 2, frozenset({0}), carried), count_full)
    assert (made.tokens, counted) == (990, [made.sections[0].text])


def test_rules_of_removed_turns_stand_in_the_first_section_also_where_no_step_goes() -> None:
    messages = [user("Always run the tests before you answer."), *LONG[:8], user("b"), *act("z", "ls", "x")]
    made = archive(900, messages, staying=())
    assert "Always run the tests before you answer." in made.sections[0].text.split("\n", 4)[3] + made.sections[0].text
    seen = view(messages, 10_000)
    found = index_conversation(seen, BuilderPolicy(), extract_features)
    scope = LedgerScope(0, frozenset(), CarriedLedgers((), 0, (), frozenset(), 900), shortened={0: "Always run…"})
    (only,) = build_ledger(seen, found, scope, count).sections
    assert (only.start, only.stop) == (0, 0)
    assert only.text.startswith(FIRST_HEADER) and "Always run the tests before you answer." in only.text


def wrap(text: str) -> str:
    return f"<returncode>0</returncode>\n<output>\n{text}\n</output>"


REFUSAL = "Please send exactly one command, found {}."


def test_a_call_that_the_harness_refused_is_told_with_its_answer_and_not_as_a_change() -> None:
    work = [m for i in range(20) for m in act(f"w{i}", f"cat part_{i}.py", wrap(f"line {i}"))]
    refused = [m for i in range(3) for m in act(f"r{i}", f"rm lost_{i}.py", REFUSAL.format(i + 2))]
    done = [*act("d", "rm gone.py", wrap("")), *act("e", "git add -A", "diff --git a/one.py b/one.py")]
    made = archive(1500, [user("go"), *work, *refused, *done, *act("y", "ls", wrap("y")), *act("z", "ls", wrap("x"))])
    assert "22 rm lost_0.py → Please send exactly one command, found 2. ref:" in find_line(made, "lost_0.py")
    assert "! rm gone.py → no output" in find_line(made, "gone.py")
    assert "! git add -A → diff --git a/one.py b/one.py" in find_line(made, "git add")


def test_a_refusal_is_known_from_the_first_and_equal_calls_share_a_line_only_where_they_ended_alike() -> None:
    """The first was refused and did nothing; the harness's words are its own, and it wraps what it runs."""
    work = [m for i in range(20) for m in act(f"w{i}", f"cat part_{i}.py", wrap(f"line {i}"))]
    tried = [*act("r1", "sed -i 225d a.py", "One at a time, if you would."), *act("r2", "sed -i 225d a.py", wrap(""))]
    again = [*act("r3", "sed -i 225d a.py", wrap("")), *act("r4", "rm b.py", REFUSAL.format(2))]
    rest = [*act("y", "ls", wrap("y")), *act("z", "ls", wrap("x"))]
    made = archive(1500, [user("go"), *work, *tried, *again, *rest])
    assert "22 sed -i 225d a.py → One at a time, if you would. ref:" in find_line(made, "22 ")
    assert "23-24 ! sed -i 225d a.py → no output (2 times) ref:" in find_line(made, "23-24")
    assert "25 rm b.py → Please send exactly one command, found 2. ref:" in find_line(made, "25 ")


def test_of_calls_at_once_each_has_its_own_outcome() -> None:
    both = [call("a", "rm one.py"), result("a", "The user rejected this."), result("b", "removed")]
    both[0]["tool_calls"] += call("b", "cat two.py", "read")["tool_calls"]
    alone = [call("c", "cat three.py", "read"), result("c", "x"), result("d", "The user rejected this.")]
    alone[0]["tool_calls"] += call("d", "rm four.py", "shell")["tool_calls"]
    found = index_conversation(view([user("go"), *both, *alone], 10_000), BuilderPolicy(), extract_features)
    assert find_unusual(found).refused == {(1, "a"), (4, "d")}
    polls = [m for i in range(4) for m in act(f"p{i}", "git pull", "ready" if i == 2 else f"{i}\na\nbit")]
    made = archive(900, [user("go"), *polls, user("b"), *act("z", "ls", "x")])
    assert [line.partition(" ref:")[0] for line in list_lines(made) if "pull" in line] == [
        "2-3 ! git pull → 3 lines (2 times)",
        "4 ! git pull → 1 line",
        "5 ! git pull → 3 lines",
    ]


def test_an_output_that_others_repeat_is_shown_and_stays_a_change() -> None:
    made = archive(900, [user("go"), *(m for i in range(3) for m in act(f"{i}", f"rm part_{i}.py", "removed")),
                         user("b"), *act("z", "ls", "x")])  # fmt: skip
    assert "! rm part_1.py → removed" in find_line(made, "part_1.py")


def test_changes_of_older_tasks_are_told_before_the_ends_of_newer_ones() -> None:
    chat = [m for i in range(30) for m in (user(f"Question {i}?"), said(f"The answer to {i} is long. " * 9))]
    booked = [user("Book it."), *speak(1, "I book it.", "rm booking_77.py"), said("It is booked.")]
    made = archive(1400, [user("go"), *booked, *chat, user("b"), *act("z", "ls", "x")], staying=tuple(range(70))[0:1])
    assert "! " in find_line(made, "booking_77.py")


def test_each_finished_task_has_a_line_where_the_running_one_would_take_all() -> None:
    old = [*speak(1, "I write it.", "touch made_here.py"), said("The first task is finished.")]
    new = [m for i in range(90) for m in speak(i + 2, f"I look at part {i}, which is another one.", f"cat part_{i}.py")]
    messages = [user("go"), *old, user("next"), *new]
    seen = view(messages, 10_000)
    found = index_conversation(seen, BuilderPolicy(), extract_features)
    carried = CarriedLedgers((), 0, (), frozenset(), 1500.0)
    kept = frozenset({0, *found.users})
    text = "\n".join(list_lines(build_ledger(seen, found, LedgerScope(len(found.steps) - 2, kept, carried), count)))
    assert "! " in text and "made_here.py" in text and "The first task is finished." in text


def test_where_stretches_share_a_section_it_stands_behind_the_turns_whose_work_it_tells() -> None:
    chat = [m for i in range(40) for m in (user(f"Question {i}?"), *act(f"c{i}", f"cat part_{i}.py", "fine " * 40))]
    messages = [*chat, user("b"), *act("z", "ls", "x")]
    found = index_conversation(view(messages, 10_000), BuilderPolicy(), extract_features)
    sections = archive(900, messages, staying=found.users).sections
    assert 1 < len(sections) < 40
    starts = [found.steps[i].start for i in found.users]
    for section in sections:
        text = section.text.replace(f"[{LEDGER_HEAD}: ", "")
        told = [int(line.split("-")[0].split()[0]) for line in text.split("\n") if line[:1].isdigit()]
        assert section.start >= found.steps[max(told) - 1].start and section.start - 1 in starts


def test_a_wrapper_is_not_quoted() -> None:
    work = [m for i in range(20) for m in act(f"w{i}", f"cat part_{i}.py", wrap(f"line {i}"))]
    made = archive(1500, [user("go"), *work, user("b"), *act("z", "ls", wrap("x"))])
    assert "returncode" not in "\n".join(list_lines(made))


def chat(turns: int, answer: str = "The value of {0} is word_{0:03}, as I said.") -> list[RawMessage]:
    return [m for i in range(turns) for m in (user(f"What is the value of {i}?"), said(answer.format(i)))]


def test_a_turn_and_its_answer_have_one_line_and_a_range_of_turns_one_reference() -> None:
    messages = [*chat(40), user("a"), said("b"), user("c")]
    made = archive(1600, messages, staying=())
    lines = list_lines(made)
    told = [line for line in lines if "answered:" in line]
    assert len(told) >= 20 and told[-1].startswith(
        '79-80 the user said: "What is the value of 39?", answered: "The value'
    )
    assert [line for line in lines if "ref:" in line] == [lines[2]]
    assert "· 1-81 with 4" in lines[2] and "messages of the user ref:" in lines[2]
    (only,) = made.references
    assert (only.start, only.stop) == (0, 81)


def test_turns_and_calls_that_are_not_told_share_one_line() -> None:
    """A desk that serves many customers: a lookup stands between any two turns of the user."""
    customers = [
        message
        for i in range(60)
        for message in (user(f"I am customer {i}."), *act(f"c{i}", f"lookup {i}", f"row {i}"), said(f"Found row {i}."))
    ]
    made = archive(400, [*customers, user("b"), *act("z", "ls", "x")], staying=(), has_words=False)
    lines = [line for line in list_lines(made) if "ref:" in line]
    bare = [
        bool(re.fullmatch(r"[\d-]+(?: a message of the user| \d+ messages of the user)?(?: ref:\w+)+", line))
        for line in lines
    ]
    assert any(bare) and not any(one and other for one, other in itertools.pairwise(bare))
    assert any("messages of the user" in line for line in lines)
    covered = {place for each in made.references for place in range(each.start, each.stop)}
    assert covered >= set(range(240))


def test_without_a_way_to_read_them_no_references_are_named() -> None:
    for messages in ([*chat(40), user("a"), said("b"), user("c")], MESSAGES):
        seen = msgspec.structs.replace(view(messages, 10_000), has_tool=False)
        found = index_conversation(seen, BuilderPolicy(), extract_features)
        carried = CarriedLedgers((), 0, (), frozenset(), 900.0)
        made = build_ledger(seen, found, LedgerScope(len(found.steps) - 2, frozenset(), carried), count)
        assert made.sections and "ref:" not in made.sections[0].text and not made.references
        tiny = msgspec.structs.replace(carried, room=10.0)
        made = build_ledger(
            seen, found, LedgerScope(len(found.steps) - 2, frozenset({0}), tiny, has_words=False), count
        )
        assert len(list_lines(made)) == 4 or "messages of the user" in list_lines(made)[2]


def test_between_turns_that_stay_an_answer_has_a_line_without_a_frame_and_what_says_nothing_has_no_section() -> None:
    messages = [*chat(60, "The value of {0} is word_{0:03}, " + "as I have said before. " * 40), user("b"), said("x")]
    found = index_conversation(view(messages, 10_000), BuilderPolicy(), extract_features)
    made = archive(1500, messages, staying=found.users)
    first, *others = [section.text for section in made.sections]
    assert len(others) >= 15 and all('said: "The value of' in text for text in (first, *others))
    assert sum("\n" in text for text in others) <= 1
    assert sum(text.count("ref:") for text in (first, *others)) == len(made.references) < 8
    covered = {place for each in made.references for place in range(each.start, each.stop)}
    assert covered >= set(range(1, 119, 2))


def test_what_the_assistant_answered_is_told_before_bare_names() -> None:
    """Thirty finished tasks, each with an output full of names that nobody used, and an answer that holds a value."""
    words = " ".join(f"seen_once_{k}" for k in range(80))
    tasks = [
        m
        for i in range(30)
        for m in (
            user(f"Task {i}"),
            *act(f"t{i}", f"cat part_{i}.py", f"{i} {words}"),
            said(f"I have looked at all of it, from its beginning to its end, and the value is V-{i}."),
        )
    ]
    made = archive(3000, [*tasks, user("b"), *act("z", "ls", "x")], staying=())
    text = "\n".join(list_lines(made))
    assert [i for i in range(30) if f"V-{i}." in text] == list(range(30))
