import re

import msgspec
import pytest

from proxy.context.conversation import BuilderPolicy, PlanRequest, index_conversation
from proxy.context.message_features import extract_features
from proxy.context.outline import OutlineParser
from proxy.context.references import PAGE, render_original
from proxy.context.user_messages import (
    WHOLE_SHARE,
    MessageForms,
    OlderMessages,
    UserMessageForm,
    choose_older_forms,
    find_bare,
    fit_message,
    list_user_forms,
)
from proxy.context.user_rules import NewerLines
from tests.support.views import RawMessage, act, count, result, said, see, user, view

RULES = "\n".join(f"Rule {i}: some words that are said in every task." for i in range(12))
POLICY = BuilderPolicy()


def spell(seen: PlanRequest) -> MessageForms:
    return list_user_forms(seen, index_conversation(seen, POLICY, extract_features), count).older


def show(messages: list[RawMessage], room: float) -> list[UserMessageForm]:
    return list(settle(messages, room).shown)


def settle(messages: list[RawMessage], room: float, least: int = 10**6) -> OlderMessages:
    """The older turns, of which those that stay whole have so many tokens."""
    seen = view(messages, 10_000)
    share = room / (WHOLE_SHARE * seen.budget.usable)
    index = index_conversation(seen, POLICY, extract_features)
    return choose_older_forms(seen, index, spell(seen), least, share=share, floor=0.0)


def list_levels(messages: list[RawMessage], older: OlderMessages) -> dict[int, int]:
    """How much of each turn is sent as a message, by its number: 0 all prose, 1 and 2 less and less of its ends."""
    forms = spell(view(messages, 10_000))
    return {shown.step // 2: max(0, forms[shown.step].index(shown) - 2) for shown in older.shown}


def write(*texts: str) -> list[RawMessage]:
    return [message for i, text in enumerate(texts) for message in (user(text), *act(f"{i}", "ls", "x"))]


NINE = write(*[f"Turn {i}: {'word ' * 400}" for i in range(9)], "one of the newest", "the other")
WHOLE = spell(view(NINE, 10_000))[0][0].tokens


def test_a_turn_has_forms_of_its_words_and_of_fewer_and_fewer_of_its_first_and_last_ones() -> None:
    *whole, head, short = spell(view(NINE, 10_000))[2]
    assert whole == [UserMessageForm(2, see(NINE[3]).tokens)] * 3
    for shown, most in ((head, 400), (short, 120)):
        (edit,) = shown.edits
        said, note = edit.text.split("\n")
        first, last = said.split("… […] …")
        assert NINE[3]["content"].startswith(f"{first} ") and NINE[3]["content"].rstrip().endswith(f" {last}")
        assert 0.9 * most < len(first) + len(last) <= most and len(last) > most // 3 and shown.is_cut
        assert note.endswith(f"the original is intact: ref:{shown.references[0].id}]")
        assert (edit.place, edit.kind, shown.tokens) == (3, "shortened", count(edit.text) + 4)
        assert (shown.references[0].start, shown.references[0].stop) == (3, 4)


def test_all_stay_while_they_fit_together() -> None:
    older = settle(NINE, 9 * WHOLE)
    assert (list_levels(NINE, older), older.spare) == (dict.fromkeys(range(9), 0), 0.0)
    assert list(spell(view(NINE, 10_000))) == [2 * i for i in range(9)]


@pytest.mark.parametrize(
    ("room", "levels"),
    [
        # The first and the newest stay whole, and the others by their ends: as many as make a quarter of the room.
        (9 * WHOLE - 1, [0, 1, 1, 0, 0, 0, 0, 0, 0]),
        (2000, [0, 1, 1, 1, 1, 1, 1, 0, 0]),
        # Their ends have a room of their own, half of which is for the longer ones, and what is left for lines.
        (1500, [0, 1, 1, 1, 1, 1, 1, 1, 0]),
        (1000, [0, 2, 2, 2, 2, 2, 2, 1, 1]),
        (300, [None, None, None, None, None, None, 2, 2, 2]),
        (50, [None] * 9),
    ],
)
def test_where_they_do_not_fit_each_has_as_much_as_there_is_room_for(room: int, levels: list[int | None]) -> None:
    older = settle(NINE, room)
    assert list_levels(NINE, older) == {i: level for i, level in enumerate(levels) if level is not None}
    left = room * (0.25 + 0.15) / 0.25 - sum(shown.tokens for shown in older.shown)
    assert older.spare == (pytest.approx(left) if None in levels else 0.0)


def test_a_first_turn_that_is_too_long_leaves_its_room_to_the_newest() -> None:
    messages = write("word " * 900, *[f"Turn {i}: {'word ' * 300}" for i in range(4)], "a", "b")
    assert list_levels(messages, settle(messages, 1100)) == {0: 1, 1: 1, 2: 1, 3: 0, 4: 0}


def test_of_prose_that_would_take_more_than_half_of_the_room_as_much_of_both_ends_stays() -> None:
    messages = write(f"First. {'word ' * 3000} Last.", *[f"Turn {i}: {'word ' * 300}" for i in range(4)], "a", "b")
    (first, *others) = settle(messages, 2800).shown
    assert not any(form.edits for form in others) and first.is_cut and 1100 < first.tokens < 1300
    assert first.edits[0].text.startswith("First. word") and "word  Last.\n[shortened" in first.edits[0].text
    assert not settle(messages, 6000).shown[0].is_cut


def test_pasted_blocks_give_way_before_prose_the_large_ones_first_and_come_back_where_there_is_room() -> None:
    logs = [LOG.replace("job", f"job {i} as") for i in range(4)]
    blocks = [log if i in {0, 3} else "\n".join(log.split("\n")[:20]) for i, log in enumerate(logs)]
    texts = [f"It fails so:\n{block}\nNever touch {i}.{' word' * 200}" for i, block in enumerate(blocks)]
    messages = write(*texts, "a", "b")
    forms = spell(view(messages, 10_000))
    sizes = [[forms[2 * i][level].tokens for level in range(3)] for i in range(4)]
    for room, levels in (
        (sum(each[0] for each in sizes), [0, 0, 0, 0]),
        # The first turn comes first, then the newest: what has no room gives way and nothing behind it does.
        (sum(each[1] for each in sizes), [1, 0, 0, 1]),
        (sum(each[2] for each in sizes) + sizes[2][0] - sizes[2][2], [2, 2, 0, 2]),
        (sum(each[2] for each in sizes), [2, 2, 2, 2]),
    ):
        shown = settle(messages, room + 1).shown
        assert [form.tokens for form in shown] == [sizes[i][level] for i, level in enumerate(levels)]
        assert all(
            f"Never touch {i}." in (form.edits[0].text if form.edits else texts[i]) for i, form in enumerate(shown)
        )


def test_only_turns_before_the_tail_need_room() -> None:
    assert list_levels(NINE, settle(NINE, 5 * WHOLE, least=10)) == dict.fromkeys(range(5), 0)


def test_what_a_newer_message_repeats_is_left_out_and_said_so() -> None:
    (shown,) = show(write(f"Task one\n{RULES}\nthe end", f"Task two\n{RULES}", "third"), 1000)
    (edit,) = shown.edits
    assert edit.text.startswith("Task one\n[… 12 lines left out")
    assert "the end" in edit.text and "Rule 3" not in edit.text
    assert f"ref:{shown.references[0].id}" in edit.text
    assert shown.tokens < count(RULES)


LOG = "\n".join(f"2024-05-01 10:00:{i % 60:02} INFO worker took job {i * 7}" for i in range(600))


def test_a_large_block_that_was_pasted_gives_way_and_the_words_around_it_stay() -> None:
    messages = write(f"It fails so:\n{LOG}\nNever touch main.", "second", "third")
    (shown,) = show(messages, 1000)
    (edit,) = shown.edits
    assert show(messages, 10_000)[0].edits == ()
    assert edit.text.startswith("It fails so:\n[… 600 lines that the user pasted, ")
    assert edit.text.endswith(" …]\nNever touch main.") and "worker" not in edit.text
    assert shown.tokens == count(edit.text) + 4
    assert all(f"ref:{each.id}" in edit.text for each in shown.references)
    original = render_original([see(messages[0]).message])
    pages = [original[each.offset : each.offset + PAGE] for each in shown.references if each.offset]
    assert pages[0].startswith(LOG[:99])
    assert len(pages) == 3 and all(any(line in page for page in pages) for line in LOG.split("\n"))


@pytest.mark.parametrize(
    "wrapped", ["```python src/a.py\n{}\n```", '<file path="src/a.py">\n{}\n</file>', "src/a.py\n```\n{}\n```"]
)
def test_a_pasted_file_gives_way_to_a_file_block_with_its_outline(wrapped: str) -> None:
    block = wrapped.format(SOURCE)
    forms = spell(view(write(f"Mend this:\n{block}\nNever touch main.", "second", "third"), 10_000))[0]
    text = forms[1].edits[0].text
    assert not forms[0].edits and forms[2].edits[0].text.split("\n")[-1] == "Never touch main."
    assert re.search(
        r"\[… 60[02] lines of src/a\.py that the user pasted, [\d,]+ tokens, left out by palimpsest, intact: ",
        forms[2].edits[0].text,
    )
    assert "[FILE: src/a.py]\nref:" in text and "  def word_3 takes nothing" in text and "return other" not in text
    assert text.startswith("Mend this:\n") and "Never touch main." in text
    assert all(f"ref:{each.id}" in text for each in forms[1].references) and forms[1].tokens < count(SOURCE) / 3
    head = forms[-1].edits[0].text
    assert "[FILE" not in head and head.startswith("Mend this:")


def test_one_mark_is_enough_for_a_shortened_turn() -> None:
    """The mark of a block where that is all that is missing, else that of the whole turn: both cost tokens each."""
    small, prose = "\n".join(LOG.split("\n")[:80]), "say " * 200
    for block, names in ((small, 0), (LOG, 3)):
        forms = spell(view(write(f"It fails so:\n{block}\n{prose}", "second", "third"), 4000))[0]
        whole, head = (form.edits[0].text for form in forms[2:4])
        assert (whole.count("palimpsest, intact: ref:"), whole.count("[shortened by palimpsest")) == (1, 0)
        assert (head.count("palimpsest, intact: ref:"), head.count("[shortened by palimpsest")) == (0, 1)
        # On its first page the reference of the turn shows a short block, too.
        assert len(forms[3].references) == head.count("ref:") == 1 + names
    short = spell(view(write(f"It fails so:\n{small}", "second", "third"), 4000))[0]
    assert len(set(short[1:])) == 1
    both = spell(view(write(f"It fails so:\n{small}\n{RULES}", RULES, "third"), 4000))[0][1].edits[0].text
    assert (both.count("left out"), both.count("ref:"), both.count("[shortened by palimpsest")) == (2, 1, 1)


def test_a_small_block_and_the_blocks_of_the_newest_turns_stay() -> None:
    small = "\n".join(LOG.split("\n")[:40])
    (shown,) = show(write(f"It fails so:\n{small}", LOG.replace("job", "task"), LOG.lower()), 10_000)
    assert shown.edits == ()


def picture(seen: PlanRequest, place: int, *media: str, tokens: int = 1500) -> PlanRequest:
    messages = list(seen.messages)
    message = msgspec.structs.replace(messages[place].message, media=media)
    messages[place] = msgspec.structs.replace(messages[place], message=message, tokens=messages[place].tokens + tokens)
    return msgspec.structs.replace(seen, messages=messages)


def test_images_of_older_turns_give_way_to_their_description() -> None:
    seen = picture(view(write("What is wrong here?", "second", "third"), 10_000), 0, "image 640x480", "PDF, 3 pages")
    whole, *heads = spell(seen)[0]
    (edit,) = whole.edits
    reference = f"ref:{whole.references[0].id}"
    assert edit.kind == "tombstone" and edit.text == (
        "What is wrong here?\n[shortened by palimpsest, not by the user (without image 640x480, PDF, 3 pages);"
        f" the original is intact: {reference}]"
    )
    assert whole.tokens == count(edit.text) + 4 and heads == [whole] * 4
    mute = picture(view(write("", "second", "third"), 10_000), 0, "image 640x480")
    assert spell(mute)[0][0].edits[0].text.startswith("[shortened by palimpsest, not by the user (without image")
    pasted = picture(view(write(f"It fails so:\n{LOG}", "second", "third"), 10_000), 0, "image 640x480")
    assert "600 lines that the user pasted" in spell(pasted)[0][1].edits[0].text
    assert all("(without image 640x480)" in form.edits[0].text for form in spell(pasted)[0])
    newest = picture(view(write("first", "second", "third"), 10_000), 3, "image 640x480")
    assert all(not form.edits for form in spell(newest)[0])


def test_a_turn_with_a_result_that_nobody_asked_for_has_one_form() -> None:
    messages = [user(f"It fails so:\n{LOG}"), result("x", "none asked"), said("Hm."), *write("second", "third")]
    seen = view(messages, 10_000)
    whole = sum(each.tokens for each in seen.messages[:2])
    assert spell(seen) == {0: (UserMessageForm(0, whole),) * 3}


def test_words_that_would_only_grow_stay() -> None:
    seen = view(write(f"It fails so:\n{LOG}", "second", "third"), 10_000)
    small = msgspec.structs.replace(seen.messages[0], tokens=5)
    changed = msgspec.structs.replace(seen, messages=[small, *seen.messages[1:]])
    assert spell(changed) == {0: (UserMessageForm(0, 5),) * 5}


def know(*texts: str) -> NewerLines:
    known = NewerLines()
    for step, text in enumerate(texts):
        known.add(step, text)
    return known


def cut(text: str, *newer: str) -> str:
    return know(*newer).remove_repeated(text, count)[0]


def test_what_is_short_or_only_alike_stays() -> None:
    assert cut("yes\nplease", "yes\nplease") == "yes\nplease"
    shuffled = "\n".join(reversed(RULES.split("\n")))
    assert cut(RULES, shuffled) == RULES
    (shown,) = show(write("Task one", "Task two", "third"), 1000)
    assert shown.edits == ()


def test_a_block_gives_way_from_a_hundred_tokens_on() -> None:
    block = "\n".join(RULES.split("\n")[:9])
    newer = know(f"now\n{block}")
    assert newer.remove_repeated(block, lambda text: 99) == (block, ())
    assert newer.remove_repeated(block, lambda text: 100)[0].startswith("[… 9 lines left out")


def test_a_block_is_known_wherever_its_first_line_stands_before() -> None:
    newer = "\n".join(["Rule 0: some words that are said in every task."] * 5 + [RULES, "end"])
    assert cut(f"begin\n{RULES}\nend\nmore", newer).split("\n")[1].startswith("[… 13 lines")
    before_many = "\n".join([RULES, *[RULES.split("\n")[0]] * 20])
    assert cut(RULES, before_many).split("\n")[1].startswith("[… 11 lines")


def test_empty_lines_and_white_space_at_the_end_of_lines_do_not_matter() -> None:
    lines = RULES.split("\n")
    spaced = "\n".join(f"{line}  \n" for line in lines)
    assert cut(f"Task\n\n{RULES}\n\nend", spaced) == cut(f"Task\n\n{RULES}\n\nend", RULES)
    text = cut(f"Task\n\n{spaced}\r\nend", RULES).split("\n")
    assert text[:2] == ["Task", ""] and text[2].startswith("[… 23 lines left out") and text[-1] == "end"
    # Two blocks that follow each other have one note.
    other = RULES.replace("Rule", "Hint")
    both = cut(f"{RULES}\n\n{other}\n\nend", RULES, other)
    assert both.split("\n") == [
        "[… 25 lines left out: they stand word for word in a newer message of the user …]", "", "end",
    ]  # fmt: skip


def test_a_block_is_found_in_any_newer_turn_and_its_note_stays_the_same() -> None:
    others = [f"other {i} {'words ' * 40}" for i in range(9)]
    once = spell(view(write(f"Task\n{RULES}\n{'say ' * 50}", *others, RULES, "a"), 10_000))[0][0]
    more = spell(view(write(f"Task\n{RULES}\n{'say ' * 50}", *others, RULES, "a", RULES, "b"), 10_000))[0][0]
    assert "[… 12 lines left out" in once.edits[0].text and once.edits == more.edits


def test_a_block_comes_back_where_no_turn_that_has_it_is_sent_whole() -> None:
    """The first turn stays whole, and the one that repeats its rules is shortened: else they would stand nowhere."""
    messages = write(
        f"Task one\n{RULES}",
        f"Task two\n{RULES}\n{'say ' * 900}",
        *[f"{i} {'word ' * 400}" for i in range(3)],
        "a",
        "b",
    )
    first, second = spell(view(messages, 10_000))[0][0], spell(view(messages, 10_000))[2][0]
    assert first.containers == (frozenset({2}),) and first.with_blocks == UserMessageForm(0, see(messages[0]).tokens)
    assert list_levels(messages, settle(messages, 5000))[1] == 0 and settle(messages, 5000).shown[0] == first
    tight = settle(messages, 1500)
    assert tight.shown[0] == first.with_blocks and tight.shown[1].edits != second.edits
    # Where there is no room for it the note has to do.
    assert settle(messages, first.tokens + 10).shown[0] == first


def test_what_is_left_out_stands_in_one_of_the_newest_or_of_the_next_newer_turns() -> None:
    """What gave way to a turn that is shortened itself stands in the one for whose sake that was."""
    texts = [f"Task {i}\n{RULES}" for i in range(6)]
    forms = spell(view(write(*texts), 10_000))
    assert all("[… 12 lines left out" in forms[2 * i][0].edits[0].text for i in range(4))
    once = spell(view(write(*texts[:2], *[f"other {i} {'words ' * 40}" for i in range(5)], "a", "b"), 10_000))
    assert "left out" in once[0][0].edits[0].text and not once[2][0].edits


def test_the_first_and_last_characters_have_no_part_of_a_note_of_ours() -> None:
    def shorten(text: str, form: int = 3) -> str:
        text = spell(view(write(text, RULES, "third"), 10_000))[0][form].edits[0].text
        return text.split("\n[shortened by")[0]

    first, last = ("say " * 57).strip(), ("end " * 36).strip()
    assert shorten(f"{first} {RULES}\n{RULES}\n{last}").startswith(f"{first} Rule 0")
    assert shorten(f"{first}\n{RULES}\n{'end ' * 90}").startswith(f"{first}… […] …end end")
    assert shorten(f"{'say ' * 90}\n{RULES}\n{last}").endswith(f" say… […] …{last}")
    assert "stand word for word in a newer message of the user …]\nsay" in shorten(f"Task\n{RULES}\n{'say ' * 200}")
    assert shorten("x" * 900) == f"{'x' * 216}… […] …{'x' * 136}"


def test_pins_and_the_newest_are_not_among_them() -> None:
    seen = view(write("one", "two", "three"), 10_000, pinned=[0])
    assert spell(seen) == {}
    assert show(write("two", "three"), 1000) == [] and settle(write(), 1000) == OlderMessages()


def test_what_would_be_no_shorter_stays_as_it_is() -> None:
    seen = view(write(f"Task one\n{RULES}\nthe end", f"Task two\n{RULES}", "third"), 10_000)
    forms = list_user_forms(seen, index_conversation(seen, POLICY, extract_features), lambda text: 10**5).older
    assert {shown.edits for shown in forms[0]} == {()}


def test_of_the_newest_turns_all_but_the_very_newest_can_be_shortened() -> None:
    texts = ("one", f"Task two\n{RULES}\n{LOG}", f"Task three\n{RULES}")
    seen = view(write(*texts), 10_000)
    forms = list_user_forms(seen, index_conversation(seen, POLICY, extract_features), count).second
    assert list(forms) == [2]
    _, whole, bare, head, short = (shown.edits[0].text for shown in forms[2])
    assert whole == bare and find_bare(forms[2]) == forms[2][2]
    assert "[… 12 lines left out" in whole and "600 lines that the user pasted" in whole
    assert whole.startswith("Task two\n") and head.startswith("Task two\n") and len(head) > len(short)
    pinned = msgspec.structs.replace(seen, pinned=frozenset([3]))
    assert list_user_forms(pinned, index_conversation(pinned, POLICY, extract_features), count).second == {}
    silent = view([], 10_000)
    assert list_user_forms(silent, index_conversation(silent, POLICY, extract_features), count).second == {}


def fit(text: str, room: float, parse: OutlineParser | None = None) -> str:
    seen = view([user(text)], 10_000)
    made = fit_message(seen, index_conversation(seen, POLICY, extract_features), 0, room, count=count, parse=parse)
    assert all(f"ref:{each.id}" in made.edit.text for each in made.references)
    assert (made.edit.kind, made.edit.place) == ("shortened", 0)
    return made.edit.text


SOURCE = "\n".join(f"def word_{i}():\n    return other_{i}" for i in range(300))


def test_of_a_turn_that_does_not_fit_the_largest_blocks_give_way_first() -> None:
    small = "\n".join(LOG.split("\n")[:20])
    text = f"It fails so:\n{small}\nand so:\n```python\n{SOURCE}\n```\nWhy?"
    shown = fit(text, 900)
    assert shown.startswith(f"It fails so:\n{small}\nand so:\n```python\ndef word_0():") and count(shown) <= 900
    assert "\n```\nWhy?\n[shortened by palimpsest" in shown
    assert "lines of python that the user pasted" in shown and "is left out …]" in shown


def test_a_block_that_gives_way_has_its_outline_where_that_is_short() -> None:
    def parse(text: str, kind: str) -> list[str]:
        return ["class Of " + kind]

    source = "#!/usr/bin/env python\nclass A:\n" + "\n".join(f"    x_{i} = {i} + y[{i}]" for i in range(900))
    shown = fit(f"See:\n```\n{source}\n```\nWhy?", 900, parse)
    assert "; it contains:\n  class A · lines 2-902\n…]" in shown
    assert "  class Of go\n" in fit(f"See:\n```\n{'x += y[1]' * 900}\n```", 900, lambda text, kind: ["class Of go"])
    assert "it contains" not in fit(f"See:\n```\n{source}\n```\nWhy?", 80, parse)


def test_where_there_is_no_room_for_any_of_a_block_a_note_stands_for_it_and_the_prose_is_cut_last() -> None:
    shown = fit(f"It fails so:\n{LOG}\nWhy?", 70)
    assert "It fails so:\n[… 600 lines that the user pasted, 5,690 tokens, left out …]\nWhy?" in re.sub(
        r"\d,\d{3} tokens", "5,690 tokens", shown
    )
    prose = fit(f"First {'word ' * 900}\n{LOG}\n{'other ' * 900}last.", 300)
    assert prose.startswith("First word") and "last.\n[shortened" in prose and "INFO" not in prose
    assert count(prose) <= 310
