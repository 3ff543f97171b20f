"""The words of the user: while they take a quarter of the budget, all of them are in every request."""

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.model.epoch import Replaced
from tests.context.test_long_sessions import BUILDER, Session, weigh
from tests.support.examples import examples
from tests.support.views import RawMessage, act, count, render, said, user, view

CEILINGS = (8000, 16_000, 32_000)
SENTENCES = (
    "Please look at the way in which the invoices are rounded.",
    "I would rather have one function than three of them.",
    "The totals of last month were wrong by a few cents.",
    "Forget what I said about the report, we do it after the release.",
    "Our customers in Norway pay in kroner.",
)


class Exchange(msgspec.Struct, frozen=True):
    """What the user says in so many sentences, the outputs that follow, and the answer, in characters."""

    sentences: int
    outputs: tuple[int, ...]
    answer: int


def say(number: int, sentences: int) -> str:
    return " ".join([f"This is request {number}.", *(SENTENCES[(number + i) % 5] for i in range(sentences))])


def play(session: Session, number: int, turn: Exchange) -> None:
    """One turn: every request of it has all words of the user so far, if these fit into a quarter of the budget."""
    session.say(user(say(number, turn.sentences)))
    check(session)
    for step, characters in enumerate(turn.outputs):
        session.say(*act(f"{number}-{step}", f"cat {number}/{step}.py", f"value {step} of it\n" * (characters // 16)))
        check(session)
    session.say(said(f"Done with {number}. {'It is so since the rate is taken twice. ' * (turn.answer // 40)}"))


def check(session: Session) -> None:
    words = [message for message in session.messages if message["role"] == "user"]
    sent = session.send()
    usable = session.see().budget.usable
    assert weigh(sent) <= usable
    if weigh(words) <= usable // 4:
        assert list_missing(words, sent) == []


def list_missing(words: list[RawMessage], sent: list[RawMessage]) -> list[str]:
    return [message["content"][:40] for message in words if message not in sent]


@pytest.mark.parametrize(("ceiling", "sentences"), [(8000, 4), (16_000, 10), (32_000, 21)])
@pytest.mark.parametrize("is_minimal", [False, True])
def test_beside_large_outputs_and_answers_every_word_of_the_user_stays(
    ceiling: int, sentences: int, *, is_minimal: bool
) -> None:
    """24 turns of plain English, one output of 12,000 characters and one answer of 24,000 each."""
    session = Session(int(0.97 * ceiling), is_minimal=is_minimal)
    for number in range(24):
        play(session, number, Exchange(sentences, (12_000,), 24_000))
    session.say(user("What is the plan now?"))
    check(session)
    assert session.opened > 1


_exchanges = st.builds(
    Exchange,
    st.sampled_from([0, 3, 12]),
    st.lists(st.sampled_from([40, 3000, 12_000, 200_000]), max_size=3).map(tuple),
    st.sampled_from([40, 2000, 24_000, 300_000]),
)


@pytest.mark.no_cover
@examples(20)
@given(st.lists(_exchanges, min_size=6, max_size=24), st.sampled_from(CEILINGS), st.booleans())
def test_whatever_the_size_of_answers_and_outputs_every_word_of_the_user_stays(
    turns: list[Exchange], ceiling: int, is_minimal: bool
) -> None:
    session = Session(int(0.97 * ceiling), is_minimal=is_minimal)
    for number, turn in enumerate(turns):
        play(session, number, turn)


class Pasted(msgspec.Struct, frozen=True):
    """What the user pastes between a sentence and a question: its language, lines, and whether it is fenced."""

    language: str
    lines: int
    is_fenced: bool = True


def paste(number: int, pasted: Pasted) -> str:
    line = {
        "python": f"    value_{number} = handler_{number}_{{i}}(other[{{i}}])",
        "log": f"2026-05-01 10:00:{{i:02}} ERROR worker {number} lost job {{i}}",
        "traceback": f'  File "/srv/app_{number}.py", line {{i}}, in handle_{{i}}',
    }[pasted.language]
    head = ["Traceback (most recent call last):"] if pasted.language == "traceback" else []
    block = "\n".join([*head, *(line.format(i=i) for i in range(pasted.lines))])
    name = "python" if pasted.language == "python" else ""
    return f"```{name}\n{block}\n```" if pasted.is_fenced else block


def question(number: int) -> str:
    return f"Why does handler_{number}_7 return None? Do not rename anything."


def check_questions(pastes: list[Pasted], ceiling: int, *, is_minimal: bool = False) -> Session:
    """Ask about each paste: every request has the prose of all turns while it takes no more than its share."""
    session = Session(int(0.97 * ceiling), is_minimal=is_minimal)
    for number, pasted in enumerate(pastes):
        session.say(user(f"Here is module {number}.\n{paste(number, pasted)}\n{question(number)}"))
        words = "\n".join(message["content"] for message in session.send() if message["role"] == "user")
        if 90 * (number + 1) < session.see().budget.usable // 4:  # with the notes that say what is missing
            assert all(f"Here is module {n}.\n" in words and question(n) in words for n in range(number + 1))
        session.say(said(f"Handler {number} returns None since its branch has no return statement."))
    return session


@pytest.mark.parametrize("ceiling", [16_000, 32_000])
def test_a_question_behind_pasted_code_is_in_every_later_request(ceiling: int) -> None:
    session = check_questions([Pasted("python", 55)] * 30, ceiling)
    text = "\n".join(edit.text for edit in session.plan.edits if isinstance(edit, Replaced)) if session.plan else ""
    assert "lines of python that the user pasted, " in text or ceiling == 32_000
    if ceiling == 16_000:
        assert session.opened and weigh(session.send()) > 0.4 * ceiling  # what has room stays whole


_pastes = st.builds(
    Pasted, st.sampled_from(["python", "log", "traceback"]), st.sampled_from([0, 10, 55, 400]), st.booleans()
)


@pytest.mark.no_cover
@example([Pasted("log", 0)] * 5 + [Pasted("log", 400, is_fenced=False), Pasted("log", 400)], 8_000)
@examples(15)
@given(st.lists(_pastes, min_size=6, max_size=30), st.sampled_from(CEILINGS))
def test_prose_at_both_ends_of_any_paste_stays(pastes: list[Pasted], ceiling: int) -> None:
    check_questions(pastes, ceiling)


@pytest.mark.parametrize("is_minimal", [False, True])
@pytest.mark.parametrize("behind", [0, 1, 2])
def test_of_a_giant_answer_only_its_middle_is_lost(behind: int, *, is_minimal: bool) -> None:
    """An answer of 64,000 tokens in a task under a ceiling of 32,000: the words of the user stay, and what was done."""
    output = "\n".join(f"def word_{i}(value): return other_{i}(value)" for i in range(60))
    work = [message for i in range(12) for message in act(f"w{i}", f"cat src/file_{i}.py", f"{i}\n{output}")]
    giant = said(f"I begin. {'It has to be done again, and then once more. ' * 5700} I end.")
    later = [message for i in range(behind) for message in act(f"l{i}", f"sed -n {i}p a.py", f"{i}\n{output}")]
    messages = [
        user(f"Task one. {say(1, 40)}"),
        *work,
        user(f"Task two. {say(2, 40)}"),
        *work[:6],
        giant,
        user("Go on."),
    ]
    seen = view([*messages, *later], 32_000)
    plan = (BUILDER.minimal if is_minimal else BUILDER.build)(seen)
    sent = render([*messages, *later], plan)
    assert all(message in sent for message in messages if message["role"] == "user") and giant not in sent
    assert 0.4 * seen.budget.usable < plan.tokens <= 0.7 * seen.budget.usable
    (cut,) = (message["content"] for message in sent if str(message["content"]).startswith("I begin. It has"))
    assert cut.endswith(" I end.") and "the original is intact: ref:" in cut and count(cut) < 0.2 * seen.budget.usable
    assert sum(message in sent for message in (*work[:6], *later)) >= 6
