"""Plans: what stays, what goes, and that it always fits where it can."""

import hashlib
import re
import subprocess
import sys
from itertools import groupby
from typing import TypeGuard

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.context.budget import BudgetPolicy, make_budget
from proxy.context.builder import ContextBuilder
from proxy.context.conversation import BuilderPolicy, PlanRequest, PruningPolicy
from proxy.context.verbatim import split_groups
from proxy.model.epoch import Edit, Kept, Replaced, Written
from proxy.wire.validity import Rules, find_faults, judge_history
from tests.support.examples import examples
from tests.support.views import (
    RawMessage,
    act,
    call,
    count,
    list_texts,
    render,
    result,
    said,
    see,
    splice,
    user,
    view,
)

BUILDER = ContextBuilder(BuilderPolicy(), count)
REFERENCE = re.compile(r"\bref:([a-z0-9]{10})")

_WORDS = st.sampled_from(
    ["proxy/engine/relay.py", "read_shape", "NULL", "and so on", "\n", "ref:abcdefghij", "[tool: x"]
)
_texts = st.builds(
    lambda words, times: "; ".join(words) * times,
    st.lists(_WORDS, min_size=1, max_size=5),
    st.sampled_from([1, 9, 200]),
)
_steps = st.lists(st.tuples(st.sampled_from(["user", "said", "call", "calls", "skill"]), _texts), max_size=25)


def write(steps: list[tuple[str, str]]) -> list[RawMessage]:
    """A history of these steps that ends with what a model has to answer."""
    messages = [user("begin")]
    for i, (kind, text) in enumerate([*steps, ("call", "ls")]):
        if kind == "user":
            messages.append(user(text))
        elif kind == "said":
            messages.append(said(text))
        elif kind == "calls":
            messages.append(call(f"c{i}", text))
            messages[-1]["tool_calls"] += call(f"d{i}", "ls")["tool_calls"]
            messages += [result(f"c{i}", text), result(f"d{i}", f"{i}")]
        else:
            messages += act(f"c{i}", "ls", text, name="skill" if kind == "skill" else "shell")
    return messages


def is_skill(messages: list[RawMessage], i: int) -> bool:
    calls = messages[i - 1].get("tool_calls", []) if messages[i]["role"] == "tool" else []
    return any(each["function"]["name"] == "skill" for each in calls)


def _is_shortened(edit: Edit) -> TypeGuard[Replaced]:
    return isinstance(edit, Replaced) and edit.kind == "shortened"


def list_newest(messages: list[RawMessage]) -> list[list[RawMessage]]:
    """The two newest turns of the user, the newest last."""
    turns = [list(each) for role, each in groupby(messages, lambda message: message["role"]) if role == "user"]
    return turns[-2:]


def lower_to(fraction: float | None, seen: PlanRequest, ceiling: int) -> PlanRequest:
    """The same view of a budget that is cut down to such a share of it."""
    budget = make_budget(1_000_000, None, None, BudgetPolicy(ceiling_tokens=ceiling, low_fraction=fraction))
    return msgspec.structs.replace(seen, budget=budget)


def weigh(messages: list[RawMessage]) -> int:
    return sum(see(message).tokens for message in messages)


_PATH = "proxy/engine/relay.py"


_WITH_LONG_WORDS = [
    ("user", _PATH),
    ("said", f"{_PATH}; " * 200),
    ("skill", _PATH),
    ("user", "; ".join([_PATH] * 3) * 9),
    ("said", _PATH),
    ("user", _PATH),
]


_WITH_LONG_TURN = [
    ("user", _PATH),
    ("said", "; ".join([_PATH] * 200)),
    ("skill", _PATH),
    ("user", "; ".join([*[_PATH] * 4, "NULL"]) * 200),
]


@pytest.mark.no_cover
@example(_WITH_LONG_WORDS, 1500, 0, False, None)
@example(_WITH_LONG_TURN, 6000, 280, False, None)
@examples(150)
@given(
    _steps,
    st.sampled_from([1500, 3000, 6000, 20_000]),
    st.integers(0, 500),
    st.booleans(),
    st.sampled_from([None, 0.8]),
)
def test_a_plan_is_valid_fits_and_keeps_what_must_stay(
    steps: list[tuple[str, str]], ceiling: int, head: int, is_minimal: bool, low: float | None
) -> None:
    messages = write(steps)
    seen = lower_to(low, view(messages, ceiling, head), ceiling)
    plan = BUILDER.minimal(seen) if is_minimal else BUILDER.build(seen)
    sent = render(messages, plan)
    structures = [each.structure for each in seen.messages]
    groups = split_groups(structures)
    kept = {edit.place for edit in plan.edits if not isinstance(edit, Written)}
    assert plan.through in {0, *(group.stop for group in groups)}
    assert all(
        len(kept & set(range(g.start, g.stop))) in (0, g.stop - g.start) for g in groups if g.stop <= plan.through
    )
    assert find_faults(judge_history(structures), splice(plan, seen), Rules()) == ()
    arguments = [text for edit in plan.edits if isinstance(edit, Replaced) for _, text in edit.arguments]
    named = {id for text in (*list_texts(plan), *arguments) for id in REFERENCE.findall(text)}
    # Of what is only shortened the first words are as they were, and so may look like a reference.
    first = named & {"abcdefghij"} if any(map(_is_shortened, plan.edits)) else set[str]()
    assert named - first == {each.id for each in plan.references}
    assert all(0 <= each.start < each.stop <= len(messages) for each in plan.references)
    newest = list_newest(messages)
    # What is said before a call goes with it: a protected output holds its whole group.
    whole = {i for g in groups if any(is_skill(messages, i) for i in g.places) for i in g.places}
    last = head + weigh([*newest[-1], *(messages[i] for i in sorted(whole | set(groups[-1].places)))])
    assert all(message in sent for message in newest[-1]) or last > 0.9 * seen.budget.usable
    whole |= {i for g in (*groups[-1:], *[g for g in groups if g.has_calls][-1:]) for i in g.places}
    must = [message for turn in newest for message in turn] + [messages[i] for i in sorted(whole)]
    # Protection gives way above 0.7 (B12), of which older words of the user may have 0.25 + 0.15 (B13).
    least = (0.7 - 0.25 - 0.15) * seen.budget.usable
    assert all(message in sent for turn in newest for message in turn) or head + weigh(must) > least
    assert weigh(sent) <= plan.tokens + len(plan.edits)  # trimmed arguments are counted one by one
    # Of each message of the second newest turn its first 400 characters and a reference stay.
    second = sum(min(see(message).tokens, 130) for message in newest[0]) if len(newest) > 1 else 0
    assert head + plan.tokens <= seen.budget.usable or last + second > 0.7 * seen.budget.usable


OUTPUT = "\n".join(f"def word_{i}(): return other_{i}" for i in range(60))
LONG = [message for i in range(30) for message in act(f"{i}", f"sed -n {i}p src/file_{i}.py", f"{i}\n{OUTPUT}")]
DAY = [user("begin"), *LONG, user("go on"), *act("x", "ls", "a"), user("and on"), *act("y", "ls", "b")]


def digest_day() -> str:
    return hashlib.sha256(msgspec.json.encode(BUILDER.build(view(DAY, 6000)))).hexdigest()


def test_the_ledger_stands_behind_the_words_whose_work_it_tells_and_then_pruned_and_whole_steps_follow() -> None:
    plan = BUILDER.build(view(DAY, 6000))
    words, ledger, *others = plan.edits
    assert words == Kept(0)
    assert isinstance(ledger, Written) and ledger.start == 1
    calls, stones = others[::2], others[1::2]
    assert [edit.place for edit in calls if isinstance(edit, Kept)] == list(range(ledger.stop, plan.through, 2))
    assert all(isinstance(edit, Replaced) and edit.kind == "tombstone" for edit in stones)
    assert render(DAY, plan)[-6:] == DAY[-6:]
    assert plan.tokens < 0.75 * 6000 and plan.protected < plan.tokens and plan.rung == "plan"


def test_the_same_view_has_the_same_plan_in_every_process() -> None:
    code = "from tests.context.test_builder import digest_day; print(digest_day())"
    runs = [
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}
        )
        for seed in ("1", "2")
    ]
    assert {run.stdout.strip() for run in runs} == {digest_day()}


def test_a_short_conversation_is_left_alone() -> None:
    assert BUILDER.build(view(DAY[-6:], 6000)).edits == ()


def test_with_a_goal_of_its_own_less_is_told_of_a_short_conversation_and_what_stays_is_as_it_was() -> None:
    whole = view(DAY, 100_000)
    tokens = sum(seen.tokens for seen in whole.messages)
    plan = BUILDER.build(msgspec.structs.replace(whole, goal=whole.budget.limit(tokens)))
    assert plan.tokens < 0.75 * BUILDER.build(whole).tokens
    assert render(DAY, plan)[-6:] == DAY[-6:]
    large = [*DAY[:-2], DAY[-2], DAY[-1] | {"content": "a line of output\n" * 1000}, said("Done."), user("Go on.")]
    tight = msgspec.structs.replace(view(large, 100_000), goal=whole.budget.limit(6000))
    assert render(large, BUILDER.build(tight))[-3:] == large[-3:]


def test_pins_and_outputs_of_protected_tools_stay_as_they_are() -> None:
    messages = [*DAY[:9], *act("s", "x", "what the skill says", name="skill"), *DAY[9:]]
    plan = BUILDER.build(view(messages, 6000, pinned=[4]))
    assert {3, 4, 9, 10} <= {edit.place for edit in plan.edits if isinstance(edit, Kept)}
    large = act("s", "x", "what the skill says " * 1400, name="skill")
    plan = BUILDER.build(view([*DAY, *large, *DAY[-6:]], 6000))
    assert large[1] in render([*DAY, *large, *DAY[-6:]], plan)


def test_what_a_message_leads_to_stays_behind_it_with_tombstones_for_its_outputs() -> None:
    first = [
        user("go"),
        {"role": "system", "content": "The date is new."},
        *act("a", "cat a.py", "a line of a\n" * 300),
    ]
    rest = [message for i in range(40) for message in act(f"c{i}", f"cat {i}.py", f"a line of {i}\n" * 60)]
    seen = view([*first, *rest], 6000)
    leading = msgspec.structs.replace(seen.messages[1].structure, is_leading=True)
    messages = [*seen.messages]
    messages[1] = msgspec.structs.replace(messages[1], structure=leading)
    plan = BUILDER.build(msgspec.structs.replace(seen, messages=messages))
    kept = [edit.place for edit in plan.edits if not isinstance(edit, Written)]
    assert kept[:4] == [0, 1, 2, 3] and plan.edits[kept.index(1) :][:2] == (Kept(1), Kept(2))
    assert [edit.place for edit in plan.edits if isinstance(edit, Replaced) and edit.kind == "tombstone"][:1] == [3]
    # Elsewhere the answer goes as any other does.
    assert Kept(2) not in BUILDER.build(seen).edits


def test_the_next_epoch_takes_the_ledger_over_as_it_is() -> None:
    before = BUILDER.build(view(DAY, 9000))
    messages = [*DAY, *(message for i in range(30, 36) for message in act(f"{i}", f"cat {i}.py", OUTPUT))]
    after = BUILDER.build(msgspec.structs.replace(view(messages, 9000), frozen=before))
    first, *others = (edit for edit in after.edits if isinstance(edit, Written))
    assert first == before.edits[1] and first in after.edits
    assert next((each.start, each.stop) for each in others) == (first.stop, len(DAY) - 6)
    kept = [edit.place for edit in after.edits if not isinstance(edit, Written)]
    assert kept == sorted(kept)
    assert {each for each in before.references if each.id in first.text} < set(after.references)


STALE = [message for i in range(4) for message in act(f"s{i}", "make", f"{i} {OUTPUT}")]


def test_words_between_ledgers_keep_their_place_so_that_the_next_epoch_changes_nothing_before_its_own() -> None:
    messages = [*DAY, user("a third"), *LONG[:40]]
    before = BUILDER.build(view(messages, 10_000))
    messages += [user("a fourth"), *LONG[40:54]]
    after = BUILDER.build(msgspec.structs.replace(view(messages, 10_000), frozen=before))
    ledgers = [edit for edit in before.edits if isinstance(edit, Written)]
    until = before.edits.index(ledgers[-1]) + 1
    assert after.edits[:until] == before.edits[:until]
    own = [message["content"] for message in render(messages, after) if message["role"] == "user"]
    assert own[0::2][:4] == ["begin", "go on", "and on", "a third"]
    again = BUILDER.build(msgspec.structs.replace(view([*messages, *LONG[:14]], 10_000), frozen=after))
    *taken_over, newest = (edit for edit in again.edits if isinstance(edit, Written))
    assert taken_over == [edit for edit in after.edits if isinstance(edit, Written)]
    assert newest.start > taken_over[-1].stop and again.edits.index(newest) > again.edits.index(taken_over[-1])


def test_outputs_that_were_overtaken_give_way_inside_the_tail_which_becomes_longer() -> None:
    messages = [*DAY, *STALE, *LONG[:10], *act("z", "ls", "c")]
    seen = lower_to(0.8, view(messages, 10_000), 10_000)
    plan = BUILDER.build(seen)
    off = ContextBuilder(BuilderPolicy(PruningPolicy(enabled=False)), count).build(seen)
    stones = {edit.place: edit for edit in plan.edits if isinstance(edit, Replaced)}
    assert [place for place in stones if place >= len(DAY)] == [len(DAY) + 1, len(DAY) + 3, len(DAY) + 5]
    assert all("output pruned" in edit.text for edit in stones.values())
    assert all(Kept(place) in plan.edits for place in range(max(place for place in stones if place < 60) + 1, len(DAY)))
    assert plan.through == len(DAY) + 6
    behind = [edit.place for edit in plan.edits if not isinstance(edit, Written)]
    assert behind == sorted(behind)
    assert render(messages, plan)[-13:] == messages[-13:] and messages[len(DAY) + 2] in render(messages, plan)
    assert not any(edit.place >= len(DAY) for edit in off.edits if isinstance(edit, Replaced))


def test_a_large_block_in_older_words_gives_way_wherever_it_stands() -> None:
    log = "\n".join(f"2024-05-01 10:00:00 INFO worker took job {i}" for i in range(300))
    messages = [user(f"Look:\n{log}\nplease"), *LONG, user(f"And:\n{log}"), *LONG[:8], *DAY[-6:]]
    seen = lower_to(0.8, view(messages, 10_000), 10_000)
    plan = BUILDER.build(seen)
    short = [edit for edit in plan.edits if _is_shortened(edit)]
    assert [(edit.place, edit.kind) for edit in short] == [(0, "shortened"), (len(LONG) + 1, "shortened")]
    assert short[0].text.startswith("Look:\n[…") and "please" in short[0].text
    assert plan.through >= len(LONG) + 2
    assert {id for edit in short for id in REFERENCE.findall(edit.text)} <= {each.id for each in plan.references}


def test_a_large_output_that_was_seen_becomes_a_block_and_a_fresh_one_stays() -> None:
    large = act("l", "cat large.py", OUTPUT * 4)
    seen = BUILDER.build(view([*DAY, *large, *act("z", "ls", "c")], 6000))
    (block,) = (edit for edit in seen.edits if isinstance(edit, Replaced) and edit.kind == "file")
    assert block.place == len(DAY) + 1
    assert "[FILE: large.py]" in block.text
    assert seen.through == len(DAY) + 2
    fresh = BUILDER.build(view([*DAY, *large], 6000))
    assert render([*DAY, *large], fresh)[-2:] == large


def test_where_blocks_alone_make_it_fit_there_is_no_ledger() -> None:
    messages = [user("begin"), *act("l", "cat large.py", OUTPUT * 4), *act("z", "ls", "c")]
    assert [type(edit) for edit in BUILDER.build(view(messages, 6000)).edits] == [Kept, Kept, Replaced]


def test_a_fresh_output_is_cut_only_where_it_does_not_fit_below_the_ceiling() -> None:
    messages = [*DAY, *act("l", "cat large.py", OUTPUT * 40)]
    seen = view(messages, 6000)
    plan = BUILDER.build(seen)
    assert plan.tokens <= seen.budget.usable
    block = render(messages, plan)[-1]["content"]
    assert block.startswith("[FILE: large.py]") and "def word_3(): return other_3" in block
    assert OUTPUT.split("\n")[-1] in block.split("\n")[-4:]
    assert BUILDER.build(msgspec.structs.replace(seen, must_fit=True)) == plan
    pinned = BUILDER.build(msgspec.structs.replace(seen, pinned=frozenset([len(messages) - 1])))
    assert render(messages, pinned)[-1] == messages[-1] and pinned.tokens > seen.budget.usable
    smaller = [*DAY, *act("l", "cat large.py", OUTPUT * 9)]
    assert render(smaller, BUILDER.build(view(smaller, 6000)))[-1] == smaller[-1]


def test_older_words_that_fit_nowhere_are_cut_before_the_user_s_newest() -> None:
    messages = [*DAY, user("y " * 12_000), said("hm"), user("x " * 3000)]
    plan = BUILDER.build(view(messages, 6000))
    assert render(messages, plan)[-1] == messages[-1]
    assert [edit.place for edit in plan.edits if _is_shortened(edit)] == [len(DAY)]
    assert plan.tokens <= view(messages, 6000).budget.usable


def source(name: str, lines: int) -> str:
    return "\n".join(f"def {name}_{i}(value): return other_{i}(value)" for i in range(lines))


def log(lines: int) -> str:
    return "\n".join(f"2024-05-01 10:{i // 60 % 60:02}:{i % 60:02} INFO worker took job {i * 7}" for i in range(lines))


FOUR = [message for n in range(4) for message in act(f"f{n}", f"cat src/file_{n}.py", source(f"word_{n}", 130))]
GIANT = act("d", "cat run.log", log(2850))


@pytest.mark.parametrize("behind", [[], [*act("e", "ls", "a"), *act("g", "ls", "b")], [said("Done."), user("Go on.")]])
def test_a_giant_gives_way_by_itself_and_what_fits_beside_it_stays(behind: list[RawMessage]) -> None:
    """Four files of 1,500 tokens and a log of 31,800 under a ceiling of 32,000: the log alone is too much."""
    messages = [user("Mend it."), *FOUR, *GIANT, *behind]
    seen = view(messages, 32_000)
    for plan in (BUILDER.build(seen), BUILDER.minimal(seen)):
        sent = render(messages, plan)
        assert all(message in sent for message in (*FOUR, *behind)) and GIANT[1] not in sent
        (block,) = (message["content"] for message in sent if (message["content"] or "").startswith("[FILE: run.log]"))
        lines = GIANT[1]["content"].split("\n")
        assert lines[5] in block and lines[-5] in block and lines[1500] not in block
        low = seen.budget.compute_low_mark(plan.protected)
        assert 0.85 * low <= plan.tokens <= max(low, 0.7 * seen.budget.usable)


PASTE = f"Here is the log of tonight.\n{log(4500)}\nWhy does the worker stop?"


def test_a_paste_above_the_ceiling_is_cut_and_neither_the_question_nor_a_small_result_is() -> None:
    """A paste of 51,000 tokens, and a result of 853, under a ceiling of 32,000."""
    small = act("1", "grep -n stop worker.py", "y" * 4 * 849)
    messages = [user(PASTE), *small]
    seen = view(messages, 32_000)
    for must_fit in (False, True):
        for build in (BUILDER.build, BUILDER.minimal):
            plan = build(msgspec.structs.replace(seen, must_fit=must_fit))
            first, *others = render(messages, plan)
            assert others == small
            lines = first["content"].split("\n")
            assert lines[0] == "Here is the log of tonight." and lines[-2] == "Why does the worker stop?"
            assert lines[-1].startswith("[shortened by palimpsest, not by the user; the original is intact: ref:")
            assert lines[9] in PASTE and lines[-9] in PASTE and any("lines that the user pasted" in x for x in lines)
            low = seen.budget.compute_low_mark(plan.protected)
            assert 0.85 * low <= plan.tokens <= seen.budget.usable


def test_what_was_cut_when_it_came_stays_as_it_was_sent() -> None:
    messages = [user(PASTE), *act("1", "ls", "a")]
    before = BUILDER.build(view(messages, 32_000))
    messages += [message for i in range(5) for message in act(f"k{i}", f"cat {i}.py", source("word", 40))]
    after = BUILDER.build(msgspec.structs.replace(view(messages, 32_000), frozen=before, sent=3))
    assert [edit for edit in after.edits if isinstance(edit, Replaced)] == [before.edits[0]]
    # Where it has become too much beside what is new, it is cut again.
    messages += act("m", "cat m.py", source("word", 2000))
    again = BUILDER.build(msgspec.structs.replace(view(messages, 32_000), frozen=after))
    (cut,) = (edit for edit in again.edits if isinstance(edit, Replaced) and edit.place == 0)
    assert len(cut.text) < len(list_texts(before)[0])


def test_beside_a_pin_that_is_too_much_the_largest_give_way_and_only_where_it_would_be_refused() -> None:
    """A pinned turn of 5,500 tokens under a ceiling of 6,000, and results that no model has seen."""
    calls = call("a", "cat a.py")
    calls["tool_calls"] += call("b", "ls")["tool_calls"]
    messages = [
        user("x " * 11_000),
        {**calls, "content": "I look."},
        result("a", log(80)),
        result("b", "c d"),
    ]
    seen = view(messages, 6000, pinned=[0])
    unknown = msgspec.structs.replace(seen.budget, window=None)
    whole = BUILDER.build(msgspec.structs.replace(seen, budget=unknown))
    assert render(messages, whole)[-1] == messages[-1] and whole.tokens > seen.budget.usable
    cut = BUILDER.build(msgspec.structs.replace(seen, must_fit=True))
    assert render(messages, cut)[0] == messages[0] and render(messages, cut)[-1] == messages[-1]
    assert cut.tokens < whole.tokens
    # What gives nothing back stays, even where there is no end.
    more = [user("x " * 11_700), *messages[1:]]
    least = BUILDER.build(msgspec.structs.replace(view(more, 6000, pinned=[0]), must_fit=True))
    assert render(more, least)[-1] == messages[-1] and least.tokens > seen.budget.usable


def test_of_words_that_are_too_long_by_themselves_beginning_and_end_stay() -> None:
    for messages in (
        [*DAY, said("hm"), user(f"First. {'word ' * 20_000} Last.")],
        [user(f"First. {'word ' * 9000} Last.")],
    ):
        seen = view(messages, 6000)
        for plan in (BUILDER.build(seen), BUILDER.minimal(seen)):
            words = render(messages, plan)[-1]["content"]
            assert words.startswith("First. word") and "Last.\n[shortened by palimpsest" in words
            assert plan.tokens <= seen.budget.usable


def test_the_minimal_plan_is_the_same_without_words_of_outputs() -> None:
    plan, minimal = BUILDER.build(view(DAY, 6000)), BUILDER.minimal(view(DAY, 6000))
    assert (plan.rung, minimal.rung) == ("plan", "minimal")
    assert minimal.through == plan.through
    (words,), (bare,) = ([edit.text for edit in each.edits if isinstance(edit, Written)] for each in (plan, minimal))
    assert "word_3" in words and "word_3" not in bare
    assert "src/file_2" in bare and "→ 61 lines" in bare


def test_where_even_the_last_turn_is_too_much_and_may_not_be_cut_the_least_of_all_is_sent() -> None:
    seen = view([*DAY, user("word " * 20_000)], 6000, pinned=[len(DAY)])
    for plan in (BUILDER.build(seen), BUILDER.minimal(seen)):
        ledger, *others = plan.edits
        assert isinstance(ledger, Written) and others == [Kept(len(DAY) - 3)]
        assert (ledger.start, ledger.stop, plan.through) == (0, len(DAY) - 3, len(DAY) - 2)
        assert plan.beyond > seen.budget.usable


def test_a_question_beside_pictures_is_not_cut_for_what_stays() -> None:
    """Its picture counts for the message, but stays; what is cut instead is what brings it below."""
    messages = [
        user("go"),
        *act("1", "ls", "a"),
        user("What is wrong with this button?"),
        said(f"It looks so: {'a long word, ' * 480}"),
        user("Answer soon."),
    ]
    seen = view(messages, 4_000)
    pictured = msgspec.structs.replace(seen.messages[3], tokens=2_600)
    plan = BUILDER.build(msgspec.structs.replace(seen, messages=[*seen.messages[:3], pictured, *seen.messages[4:]]))
    assert [edit.place for edit in plan.edits if isinstance(edit, Replaced)] == [4]
    assert Kept(3) in plan.edits


def bring(steps: int, output: str, sent: int | None) -> list[int]:
    """The places of outputs that stay word for word, of as many steps; so many messages were sent before."""
    messages = [user("go"), *[each for i in range(steps) for each in act(f"{i}", f"cat {i}", f"{i}: {output}")]]
    plan = BUILDER.build(msgspec.structs.replace(view(messages, 8_000), sent=sent))
    kept = {edit.place for edit in plan.edits if isinstance(edit, Kept)}
    places = range(2, len(messages), 2)
    return [place for place in places if place >= plan.through or place in kept]


def test_steps_that_come_at_once_are_all_shown_as_far_as_there_is_room() -> None:
    """A model has to see each of them once (B9)."""
    small, large = "line " * 400, "line " * 900
    assert len(bring(20, small, None)) < len(bring(20, small, 25))
    assert bring(20, small, 25)[0] <= 26
    assert bring(20, small, 41) == bring(20, small, None)
    assert bring(20, large, 25) == bring(20, large, None)  # more than can stay


def test_steps_that_have_fewer_tokens_than_a_ledger_of_them_stay() -> None:
    words = [user("begin"), user(f"{_PATH}; " * 200), user(f"{_PATH}; " * 18), user(f"{_PATH}; " * 400)]
    messages = [*words, said("Yes."), user("and so on; [tool: x" * 200), *act("z", "ls", "x")]
    plan = BUILDER.build(view(messages, 1500))
    assert not any(isinstance(edit, Written) for edit in plan.edits)
    assert messages[4] in render(messages, plan) and plan.edits
    long = [*words, said("Yes, and more. " * 100), *messages[5:]]
    assert any(isinstance(edit, Written) for edit in BUILDER.build(view(long, 1500)).edits)
