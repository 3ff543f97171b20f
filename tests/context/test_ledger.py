import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.context.conversation import AgentStep, BuilderPolicy, ConversationIndex, index_conversation
from proxy.context.ledger import (
    BRIEF,
    FIRST_CHAT_HEADER,
    FIRST_HEADER,
    FULL,
    LEDGER_END,
    NEXT_HEADER,
    NO_LEDGERS,
    CarriedLedgers,
    LedgerLine,
    Page,
    carry_ledgers,
    choose_header,
    cut_at_word,
    cut_pages,
    cut_words,
    format_step,
    format_user_turn,
    render_section,
)
from proxy.context.message_features import extract_features
from proxy.context.references import PAGE, forget_tool
from proxy.model.epoch import ContextPlan, Edit, Kept, Reference, Written
from proxy.model.messages import LEDGER_HEAD, RECALL_TOOL
from tests.support.views import RawMessage, act, call, count, said, user, view


def steps(*sizes: int) -> list[AgentStep]:
    return [AgentStep(2 * i, 2 * i + 2, "step", True, size // 4, size, 1) for i, size in enumerate(sizes)]


def test_steps_share_a_page_while_they_fit() -> None:
    assert cut_pages(steps(5000, 5000, 5000), 0, 2) == [Page(0, 1, 0, 4), Page(2, 2, 4, 6)]
    assert cut_pages(steps(5000, 5000, 5000), 1, 2) == [Page(1, 2, 2, 6)]


def test_a_step_above_a_page_has_several_that_overlap() -> None:
    offsets = [page.offset for page in cut_pages(steps(30_000), 0, 0)]
    assert offsets == [0, PAGE - 200, 2 * (PAGE - 200)]


def test_larger_pages_have_one_reference_each() -> None:
    assert cut_pages(steps(30_000, 5000, 9000), 0, 2, 2 * PAGE) == [Page(0, 0, 0, 2), Page(1, 2, 2, 6)]


@given(st.lists(st.integers(1, 40_000), min_size=1, max_size=20))
def test_every_character_of_removed_steps_is_on_a_first_page(sizes: list[int]) -> None:
    made = steps(*sizes)
    pages = cut_pages(made, 0, len(made) - 1)
    begins = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    spans = [(begins[page.first] + page.offset, begins[page.last + 1]) for page in pages]
    assert all(begin < end for begin, end in spans)
    covered = [(begin, min(end, begin + PAGE)) for begin, end in spans]
    assert all(any(begin <= at < end for begin, end in covered) for at in range(0, sum(sizes), 997))


A, B, C = (Reference(letter * 10, i, i + 1) for i, letter in enumerate("abc"))


def test_it_says_what_it_is_and_how_to_get_an_original_back() -> None:
    for header in (FIRST_HEADER, FIRST_CHAT_HEADER):
        assert "not the words of the user" in header and "stored" in header and "`palimpsest search`" in header
    assert "not to be repeated" in FIRST_HEADER
    assert "command" not in FIRST_CHAT_HEADER


def test_with_the_tool_it_says_how_to_call_it_and_where_it_cannot_be_called_what_else_there_is() -> None:
    for has_calls, plain in ((True, FIRST_HEADER), (False, FIRST_CHAT_HEADER)):
        assert choose_header(has_calls=has_calls, has_tool=False) == plain
        told = choose_header(has_calls=has_calls, has_tool=True)
        assert RECALL_TOOL in told and "palimpsest expand" not in told and "under their references" in told
        assert RECALL_TOOL not in plain and "reference" not in plain
        forgotten = forget_tool(told.encode()).decode()
        assert RECALL_TOOL not in forgotten and "`palimpsest expand ID`" in forgotten


def test_a_single_line_has_no_frame() -> None:
    line = LedgerLine(3, 3, (A,), "ls → 1 lines", range="· 4-9")
    assert render_section([line], NEXT_HEADER) == f"[{LEDGER_HEAD}: 4 ls → 1 lines · 4-9 ref:aaaaaaaaaa]"
    for more in (render_section([line], NEXT_HEADER, "Rules: none"), render_section([line], FIRST_HEADER)):
        assert more.endswith(f"\n{LEDGER_END}")


def test_a_line_has_its_steps_what_is_told_its_references_and_words_and_quotes_below() -> None:
    lines = [
        LedgerLine(0, 1, (A,)),
        LedgerLine(2, 2, (B,)),
        LedgerLine(3, 5, (C, A), "ls → 1 lines", ("read_shape", "np.ones", "np.zeros"), ("import a", "import b")),
        LedgerLine(6, 6, (B,)),
    ]
    assert render_section(lines, NEXT_HEADER, "Rules: none").split("\n") == [
        NEXT_HEADER,
        "Rules: none",
        "1-3 ref:aaaaaaaaaa ref:bbbbbbbbbb",
        "4-6 ls → 1 lines ref:cccccccccc ref:aaaaaaaaaa | read_shape np.{ones,zeros}",
        "    import a",
        "    import b",
        "7 ref:bbbbbbbbbb",
        LEDGER_END,
    ]


def test_foreign_words_cannot_pass_for_markers_of_ours() -> None:
    line = LedgerLine(0, 0, (A,), "", ("ref:bbbbbbbbbb",), ("[tool: x] ref:cccccccccc",))
    text = render_section([line], FIRST_HEADER)
    assert "ref:bbbbbbbbbb" not in text and "ref:cccccccccc" not in text and "[tool:" not in text


def tell(message_list: list[RawMessage], i: int = 0, *, has_names: bool = True) -> str:
    seen = index_conversation(view([*message_list, user("a"), user("b")], 10_000), BuilderPolicy(), extract_features)
    return format_step(seen, seen.steps[i], FULL, has_names=has_names)


def test_a_step_is_told_with_what_was_said_and_asked_and_how_it_ended() -> None:
    assert tell(act("1", "ls -la", "a\nb")) == "shell ls -la → 2 lines"
    assert tell(act("1", "cd /src/x && ls -la", "a\nb"), has_names=False) == "ls -la → 2 lines"
    failed = tell(act("1", "make", "<returncode>2</returncode>\nerror: no rule"))
    assert failed == "! shell make → exit 2 error: no rule"
    spoken, answer = act("1", "make all", "done")
    assert tell([spoken | {"content": "THOUGHT: Now I\nbuild it.\n```sh\nmake\n```"}, answer]) == (
        '! "Now I build it." · shell make all → 1 line'
    )


def test_what_changed_something_is_marked_and_told_at_more_length() -> None:
    assert tell(act("1", "sed -i s/a/b/ src/a.py", "")).startswith("! shell sed")
    assert tell(act("1", f"rm {'x' * 90}", "")) == f"! shell rm {'x' * 90} → no output"
    assert tell(act("1", f"ls {'x' * 90}", "")) == f"shell ls {'x' * 44}… → no output"


def test_what_was_said_without_a_call_is_quoted() -> None:
    assert tell([said("I am done with [tool: this")]) == 'said: "I am done with (tool: this"'
    assert tell([user("go"), call("1", "make all")], 1) == "! shell make all"


def test_only_the_first_words_are_quoted() -> None:
    assert cut_words("one two three", 3) == "one two three"
    assert cut_words("one two three", 2) == "one two…"
    assert BRIEF.said < FULL.said and BRIEF.asked < FULL.asked and BRIEF.effects < FULL.effects


def test_a_turn_of_the_user_is_quoted() -> None:
    seen = index_conversation(view([user("Do\nthat with [tool: this")], 10_000), BuilderPolicy(), extract_features)
    assert format_user_turn(seen, seen.steps[0], 120) == 'the user said: "Do that with (tool: this"'
    assert format_user_turn(seen, seen.steps[0], 6) == 'the user said: "Do th…"'


MESSAGES = [user("go"), *(message for i in range(9) for message in act(f"{i}", "ls", "x" * 4000)), user("b")]
OLD = Reference("aaaaaaaaaa", 1, 5)
OTHER = Reference("bbbbbbbbbb", 5, 7)


def plan(*edits: Edit) -> ContextPlan:
    return ContextPlan(7, edits, (OLD, OTHER), 0)


def look() -> ConversationIndex:
    return index_conversation(view(MESSAGES, 10_000), BuilderPolicy(), extract_features)


def take(frozen: ContextPlan | None, tail: int = 8, room: float = 10_000) -> CarriedLedgers:
    return carry_ledgers(look(), frozen, tail, room, count)


def test_the_ledgers_at_the_head_stay_with_their_references_and_what_they_tell() -> None:
    ledger = Written("1-2 ref:aaaaaaaaaa", 0, 7)
    carried = take(plan(ledger, Kept(0), Kept(3), Kept(4)))
    assert carried.ledgers == (ledger,)
    assert carried.references == (OLD,)
    assert carried.told == {1, 3}
    assert carried.room == pytest.approx(0.143 * sum(step.tokens for step in look().steps[4:8]))
    assert take(plan(ledger, Kept(0)), room=2500).room == pytest.approx(500)
    assert carried.tokens > count(ledger.text)


def test_ledgers_behind_what_is_kept_are_taken_over_too() -> None:
    carried = take(plan(Kept(0), Written("behind something", 0, 7), Kept(7), Written("and another", 7, 9)))
    assert [each.text for each in carried.ledgers] == ["behind something", "and another"]
    assert 0 not in carried.told and 1 in carried.told


@pytest.mark.parametrize(
    "frozen",
    [
        None,
        plan(),
        plan(Written("x" * 39_900, 0, 7)),
        plan(Written("beyond the tail", 0, 19)),
    ],
)
def test_otherwise_one_new_ledger_is_written(frozen: ContextPlan | None) -> None:
    carried = take(frozen)
    assert (carried.ledgers, carried.told) == (NO_LEDGERS.ledgers, NO_LEDGERS.told)
    assert carried.room == pytest.approx(7000)


def test_summaries_that_stand_with_the_ledgers_stay_with_them() -> None:
    report, ledger = Written("a report ref:bbbbbbbbbb", 0, 5, "r"), Written("1-2 ref:aaaaaaaaaa", 0, 7)
    carried = take(plan(report, ledger, Kept(0)))
    assert (carried.written, carried.ledgers) == ((report, ledger), (ledger,))
    assert carried.reported == count(report.text) + 4
    assert carried.tokens == carried.reported + count(ledger.text) + 4
    assert carried.references == (OLD,)
    assert take(plan(*[report] * 5, ledger)).ledgers == (ledger,)
    assert take(plan(report)).written == ()


def test_summaries_take_no_room_of_the_ledgers() -> None:
    report = Written("a report" * 200, 0, 5, "r")
    written = Written("1-2 ref:aaaaaaaaaa " + "x" * 8000, 0, 7)
    assert take(plan(written), room=2600).ledgers == (written,)
    assert take(plan(report, written), room=2600).written == (report, written)
    assert take(plan(report, written), room=2000).written == ()


def test_a_ledger_that_would_be_mostly_headers_is_not_added_to_others() -> None:
    ledger = Written("1-2 ref:aaaaaaaaaa", 0, 7)
    assert take(plan(ledger, Kept(0)), tail=6).written == ()
    assert take(plan(ledger, Kept(0)), tail=8).written == (ledger,)
    assert take(None, room=5000).room == 4000
    assert take(None, room=3000).room == 3000


def test_of_an_output_only_its_content_is_counted() -> None:
    wrapped = "<returncode>0</returncode>\n<output>\n{}\n</output>"
    assert tell(act("1", "ls", wrapped.format("a\n\nb"))) == "shell ls → 3 lines"
    assert tell(act("1", "ls", wrapped.format(""))) == "shell ls → no output"
    assert tell(act("1", "ls", "<b>")) == "shell ls → no output"


def test_a_command_is_cut_between_words() -> None:
    assert tell(act("1", "grep -rn something_long in/this/folder and/in/that_one/too", "")) == (
        "shell grep -rn something_long in/this/folder and/in/that_one/too → no output"
    )
    assert cut_at_word("all of it", 20) == "all of it"


@pytest.mark.parametrize(
    ("text", "most", "cut"),
    [
        ("view /workspace/project/src/expr/match.c", 20, "view …/src/expr/match.c"),
        ("view /workspace/project/src/expr/match.c from 1 to 9", 20, "view …/src/expr/match.c…"),
        ("/workspace/project/src/expr/match.c", 20, "…/project/src/expr/match.c"),
        ("view /workspace/" + "x" * 50, 20, "view /workspace/xxx…"),
        ("view /" + "a/" * 300, 20, "view …/a/a/a/a/a/a/a/a/a/a…"),
        ("view " + "x" * 50, 20, "view xxxxxxxxxxxxxx…"),
    ],
)
def test_a_path_that_does_not_fit_is_cut_to_its_end(text: str, most: int, cut: str) -> None:
    assert cut_at_word(text, most) == cut
