"""Sessions of many epochs: no turn of the user is ever lost, and no state is one in which a request stays too long."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import groupby, takewhile

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.context.builder import ContextBuilder
from proxy.context.conversation import BuilderPolicy, CountedMessage, PlanRequest
from proxy.context.ledger_builder import MAX_RULES_SEARCHED
from proxy.context.message_features import MessageFeatures, extract_features_without_identifiers
from proxy.context.user_rules import Sentence, list_sentences
from proxy.engine.context.rewriter import list_splices
from proxy.model.epoch import ContextPlan, Kept, Replaced, Written
from proxy.model.messages import Message
from proxy.wire import FORMATS, rendering
from proxy.wire.validity import Rules, find_faults, judge_history
from tests.support import views
from tests.support.examples import examples
from tests.support.views import RawMessage, act, call, count, render, result, said, see, tell, user, view, view_seen

BUILDER = ContextBuilder(BuilderPolicy(), count)
INSTRUCTIONS = "\n".join(f"Instruction {i}: do the thing with the number {i} as it was always done." for i in range(14))
MARGIN = 0.97
LEAST_LEDGER, LEAST_CALL, LEAST_BLOCK, LEAST_TURN, LEAST_NEWEST = 200, 140, 600, 140, 400
"""Tokens of a ledger that says the least; of a call that no model has answered, with trimmed arguments; of the block of
an output; of the first 400 characters of the second newest turn and a reference; of a message of the newest turn."""


def paste(tokens: int, number: int) -> str:
    """A fenced block of so many tokens, near enough."""
    line = f"value_{number} = compute(other_{number}, third)"
    return "```\n" + "\n".join([line] * max(1, 4 * tokens // len(line))) + "\n```"


def ask(number: int, beginning: str, prose: int, block: int, *, is_repeated: bool) -> str:
    """A prompt of a person: words of their own, what they always say, what they pasted."""
    words = f"the part {number} has to be mended. {'It fails when I run it again. ' * prose}"
    parts = [f"Look at number {number}, {words}", *([INSTRUCTIONS] if is_repeated else ())]
    parts += [paste(block, number), f"That was all of {number}."] if block else []
    text = "\n".join(parts)
    return {"ticket": f"Ticket {number}: {text}", "task": f"<task>\n{text}\n</task>", "bare": text}[beginning]


class Session:
    """A conversation that is sent whenever it is the assistant's turn, under an epoch where it would be too long."""

    def __init__(self, usable: int, *, is_minimal: bool = False) -> None:
        self.ceiling = int(usable / MARGIN) + 1
        self.messages: list[RawMessage] = []
        self._seen: list[CountedMessage] = []
        self.plan: ContextPlan | None = None
        self.sent: int | None = None
        self.opened = 0
        self._plan = BUILDER.minimal if is_minimal else BUILDER.build

    def say(self, *messages: RawMessage) -> None:
        self.messages += messages

    def see(self) -> PlanRequest:
        self._seen += map(see, self.messages[len(self._seen) :])
        return msgspec.structs.replace(view_seen(self._seen, self.ceiling), frozen=self.plan, sent=self.sent)

    def send(self) -> list[RawMessage]:
        """What is sent now."""
        seen, sent = self.see(), self._render()
        if weigh(sent) >= seen.budget.usable:
            plan = self._plan(seen)
            if plan.through:
                self.plan = plan
                self.opened += 1
                check_turns(self.messages, plan, room=0.9 * seen.budget.usable)
                sent = self._render()
        self.sent = len(self.messages)
        return sent

    def _render(self) -> list[RawMessage]:
        return render(self.messages, self.plan) if self.plan is not None else self.messages


def weigh(messages: list[RawMessage]) -> int:
    return sum(views.weigh(tell(message)) for message in messages)


def list_turns(messages: list[RawMessage]) -> list[list[int]]:
    """The places of the user's messages, turn by turn."""
    turns = groupby(range(len(messages)), lambda place: messages[place]["role"])
    return [list(places) for role, places in turns if role == "user"]


def has_too_much_new(messages: list[RawMessage], room: float) -> bool:
    """Whether the newest turn and what no model has answered do not fit, beside the beginning of what was said before.

    A message of the assistant right before one with calls belongs to the same step.
    """
    answered = max((place for place, each in enumerate(messages) if each["role"] == "assistant"), default=-1)
    is_open = messages[answered + 1 :] and messages[answered + 1]["role"] == "tool"
    first = answered if is_open else answered + 1
    new = {*list_turns(messages)[-1], *range(max(first, 0), len(messages))}
    run = takewhile(lambda each: each["role"] == "assistant", reversed(messages[: max(first, 0)])) if is_open else ()
    return weigh([messages[place] for place in new]) + sum(min(LEAST_CALL, see(each).tokens) for each in run) > room


def check_turns(messages: list[RawMessage], plan: ContextPlan, depth: int = 0, *, room: float) -> None:
    """Each of the user's turns is sent in a form of BEHAVIOUR B13; deeper plans may shorten the second newest."""
    kept = {edit.place: edit for edit in plan.edits if not isinstance(edit, Written)}
    turns = list_turns(messages)
    for places in turns:
        for place in places:
            edit = kept.get(place)
            is_whole = place >= plan.through or isinstance(edit, Kept)
            if not is_whole and places is turns[-1]:
                assert has_too_much_new(messages, room), "the newest turn stays"
                assert isinstance(edit, Replaced), "of the newest turn something stays"
                check_cut(messages[place]["content"], edit, plan)
                continue
            assert is_whole or places is not turns[-2] or plan.beyond or depth, (
                "the second newest stays where there is room"
            )
            if isinstance(edit, Replaced):
                check_shortened(messages[place]["content"], edit, plan)
            elif not is_whole:
                assert any(is_told(line, place, plan) for line in list_ledger_lines(plan)), messages[place]


def list_ledger_lines(plan: ContextPlan) -> Iterator[str]:
    return (line for edit in plan.edits if isinstance(edit, Written) for line in edit.text.split("\n"))


def names(text: str, place: int, plan: ContextPlan) -> bool:
    """Whether a text names a reference that has a message."""
    return any(f"ref:{each.id}" in text for each in plan.references if each.start <= place < each.stop)


def is_told(line: str, place: int, plan: ContextPlan) -> bool:
    return names(line, place, plan) and (
        "the user said" in line or re.search("messages? of the user", line) is not None
    )


def check_cut(original: str, edit: Replaced, plan: ContextPlan) -> None:
    """Parts of it in their order, its beginning among them, and what names the rest."""
    assert names(edit.text, edit.place, plan) and edit.kind == "shortened"
    body, _, _ = edit.text.partition("\n[shortened by palimpsest, not by the user")
    at = 0
    for line in body.split("\n"):
        if not line.startswith("[… ") and line != "  " and not line.endswith("left out …]"):
            assert (at := original.find(line, at)) >= 0, line
    assert "That was all of" in body or "That was all of" not in original


def check_shortened(original: str, edit: Replaced, plan: ContextPlan) -> None:
    """Both of its ends, or all of the prose; in the user's words but for what says what is missing."""
    assert names(edit.text, edit.place, plan)
    body, mark, _ = edit.text.partition("\n[shortened by palimpsest, not by the user")
    assert edit.kind == "shortened"
    # One mark is enough: that of the turn, or those in place of pasted blocks where nothing else is missing.
    assert bool(mark) != ("left out by palimpsest, intact: ref:" in body)
    lines = [line for line in re.split(r"\n|… \[…\] …", body) if not re.fullmatch(r"\[… .* …\]…?", line)]
    at = 0
    for line in lines:
        assert (at := original.find(line.removesuffix("…"), at)) >= 0, line
    if not mark:
        rest, missing = iter(original.split("\n")), sum(int(n.replace(",", "")) for n in _MISSING.findall(body))
        assert all(line in rest for line in lines) and len(lines) + missing == original.count("\n") + 1
    assert original.startswith(lines[0]) or body.startswith("[… "), body
    assert (original.rstrip().endswith(lines[-1].rstrip()) and lines[-1]) or body.endswith((" …]", "… […] …")), (
        body
    )  # a note stood there


_MISSING = re.compile(r"\[… ([\d,]+) lines?")


_prompts = st.tuples(
    st.sampled_from(["ticket", "task", "bare"]),
    st.sampled_from([0, 0, 3, 30]),
    st.sampled_from([0, 0, 200, 700, 3000]),
    st.booleans(),
)
_turns = st.lists(
    st.tuples(_prompts, st.lists(st.sampled_from([60, 300, 900]), max_size=4), st.sampled_from([5, 120, 700])),
    min_size=3,
    max_size=24,
)


@pytest.mark.no_cover
@examples(6)
@example(
    [(("bare", 0, 0, False), [], 120), (("task", 0, 0, False), [], 700), (("bare", 0, 700, True), [900], 700)],
    2000,
    True,
    1,
)
@example(
    [(("ticket", 0, 0, False), [], 5)] * 7 + [(("ticket", 0, 0, False), [], 120), (("ticket", 0, 700, True), [900], 5)],
    2000,
    False,
    3,
)
@given(_turns, st.sampled_from([2000, 3000, 5000, 9000, 30_000]), st.booleans(), st.integers(1, 4))
def test_every_turn_of_the_user_is_in_every_request_in_one_of_its_forms(
    turns: list[tuple[tuple[str, int, int, bool], list[int], int]], usable: int, is_minimal: bool, times: int
) -> None:
    session = Session(usable, is_minimal=is_minimal)
    for number, ((beginning, prose, block, is_repeated), outputs, words) in enumerate(turns * times):
        session.say(user(ask(number, beginning, prose, block, is_repeated=is_repeated)))
        session.send()
        for step, tokens in enumerate(outputs):
            session.say(*act(f"{number}-{step}", f"cat {number}/{step}.py", f"line {step} of it\n" * (tokens // 4)))
            session.send()
        session.say(said(f"Done with {number}. ```\nok\n``` {'So it is. ' * (words // 3)}"))


@pytest.mark.no_cover
@pytest.mark.parametrize("usable", [2000, 4000])
@pytest.mark.parametrize("is_minimal", [False, True])
def test_no_short_turn_of_very_many_is_lost(usable: int, *, is_minimal: bool) -> None:
    session = Session(usable, is_minimal=is_minimal)
    for number in range(300):
        session.say(user(f"Ticket {number}: {'please, ' * (number % 9)}do the part {number}."))
        assert weigh(session.send()) < session.see().budget.usable
        session.say(said(f"I did the part {number}. ```\nok\n```"))
    assert session.opened > 1


def test_a_sentence_among_what_was_pasted_is_in_every_later_request() -> None:
    """Twelve turns of a sentence and a pasted block each, under a ceiling of 9,000 tokens."""
    session = Session(int(9000 * MARGIN))
    said_in = 2
    for number in range(12):
        own = "The ticket is PAL-7731." if number == said_in else f"Here is the log of run {number}."
        session.say(user(f"{own}\n{paste(1500, number)}"))
        sent = session.send()
        assert weigh(sent) < session.see().budget.usable
        assert number < said_in or any("The ticket is PAL-7731." in message["content"] for message in sent)
        session.say(said("I have read it."))
    assert session.opened > 1


# What no plan can do anything about, and so must be able to do with: huge words and values, several results, no JSON.
VALUES = {
    "lines": "x = y\n" * 3000,
    "words": "word " * 9000,
    "short": "short",
    "braces": "{" * 4000,
    "escapes": '\\"\n' * 2500,
}
SHAPES: dict[str, Callable[[str], str]] = {
    "file": lambda text: json.dumps({"path": "a.py", "content": text}),
    "edits": lambda text: json.dumps({"edits": [{"old": text, "new": [text]}], "n": 3}),
    "list": lambda text: json.dumps([text]),
    "bare": lambda text: text,
}
_arguments = st.tuples(st.sampled_from(sorted(SHAPES)), st.sampled_from(sorted(VALUES)))
_hard = st.one_of(
    st.tuples(st.just("said"), st.sampled_from([5, 700, 60_000])),
    st.tuples(st.just("user"), st.sampled_from([5, 0.05, 0.4, 0.4])),
    st.tuples(st.just("calls"), st.lists(st.tuples(_arguments, st.sampled_from([5, 900, 20_000])), max_size=3)),
)


def write_hard(number: int, kind: str, what: object, usable: int) -> list[RawMessage]:
    if kind == "said":
        assert isinstance(what, int)
        return [said(f"I think {number}. {'so it is ' * (what * 4 // 9)}")]
    if kind == "user":
        assert isinstance(what, int | float)
        tokens = int(what if what > 1 else what * usable)
        return [user(f"Do {number}. {'and so on ' * (tokens * 4 // 10)}")]
    assert isinstance(what, list)
    made = [
        (f"c{number}-{i}", SHAPES[structure](VALUES[value]), tokens)
        for i, ((structure, value), tokens) in enumerate(what)
    ]
    calls = call("", "")
    calls["tool_calls"] = [
        {"id": id, "type": "function", "function": {"name": "write", "arguments": arguments}}
        for id, arguments, _ in made
    ]
    outputs = [result(id, id + "output line\n" * (tokens * 4 // 12)) for id, _, tokens in made]
    return [calls, *outputs] if made else []


def is_ceiling_unreachable(messages: list[RawMessage], head: int, usable: int) -> bool:
    """Whether the least of what has to be sent is more than there is room for beside a ledger that says the least."""
    *_, second, last = [[], *list_turns(messages)]
    newest = [see(messages[place]).tokens for place in last]
    if head + sum(newest) > 0.9 * usable:
        newest = [min(LEAST_NEWEST, tokens) for tokens in newest]
    newest += [min(LEAST_TURN, see(messages[place]).tokens) for place in second]
    answered = max((place for place, each in enumerate(messages) if each["role"] == "assistant"), default=-1)
    outputs = [see(each).tokens for each in messages[answered + 1 :] if each["role"] == "tool"]
    fresh = sum(min(LEAST_BLOCK, tokens) for tokens in outputs)
    calls = len(messages[answered].get("tool_calls", ())) if outputs else 0
    return head + sum(newest) + fresh + LEAST_LEDGER + LEAST_CALL * calls > usable


def check_rendered(messages: list[RawMessage], plan: ContextPlan) -> None:
    """What goes out is as valid as what came, and has the tokens that the plan says."""
    raws = [json.dumps(message).encode() for message in messages]
    rendered = rendering.render(FORMATS["chat_completions"], plan.edits, raws)
    structures = [see(message).structure for message in messages]
    splices = list_splices("chat_completions", plan.edits, rendered, structures, plan.through)
    assert find_faults(judge_history(structures), splices, Rules()) == ()
    sent = [json.loads(raw) for raw in rendered]
    assert sent == render(messages, plan)[: len(sent)]
    assert weigh([*sent, *messages[plan.through :]]) <= plan.tokens + len(plan.edits)  # parts are counted one by one
    asked = {
        each["id"]: each["function"]["arguments"] for message in messages for each in message.get("tool_calls", ())
    }
    for each in (each for message in sent for each in message.get("tool_calls", ())):
        arguments = each["function"]["arguments"]
        assert arguments == asked[each["id"]] or type(read(arguments)) is type(read(asked[each["id"]]))


def read(arguments: str) -> object:
    """What a call's arguments say; none where they are no JSON."""
    try:
        return json.loads(arguments)
    except ValueError:
        return None


_flags = (st.booleans(), st.booleans())


@pytest.mark.no_cover
@examples(40)
@given(st.lists(_hard, max_size=14), st.integers(4000, 8000), st.integers(0, 1500), *_flags, st.integers(0, 2))
@example(
    [
        ("said", 60_000),
        ("user", 0.4),
        ("calls", [(("edits", "words"), 900), (("bare", "lines"), 20_000)]),
        ("user", 0.4),
        ("said", 700),
        ("calls", [(("file", "escapes"), 5), (("list", "braces"), 900)]),
    ],
    5000,
    900,
    False,
    True,
    0,
)
@example(
    [("calls", [(("list", "lines"), 20_000)]), ("user", 0.4), ("user", 0.4), ("user", 0.4)], 5632, 880, True, True, 1
)
@example(
    [
        ("said", 5),
        ("user", 5),
        ("calls", [(("edits", "braces"), 5), (("edits", "lines"), 900), (("edits", "lines"), 900)]),
        ("user", 0.4),
    ],
    4000,
    0,
    False,
    False,
    0,
)
@example(
    [
        ("user", 0.05),
        ("user", 0.05),
        ("said", 700),
        ("user", 0.4),
        ("calls", [(("bare", "braces"), 5), (("bare", "braces"), 900), (("edits", "escapes"), 900)]),
    ],
    4000,
    0,
    False,
    False,
    0,
)
def test_no_state_is_a_dead_end(
    steps: list[tuple[str, object]], usable: int, head: int, is_minimal: bool, must_fit: bool, depth: int
) -> None:
    messages: list[RawMessage] = [user("begin")]
    plan: ContextPlan | None = None
    for number, (kind, what) in enumerate(steps):
        messages += write_hard(number, kind, what, usable)
        if messages[-1]["role"] == "assistant":
            continue
        seen = view(messages, int(usable / MARGIN) + 1, head)
        seen = msgspec.structs.replace(seen, frozen=plan, depth=depth, must_fit=must_fit)
        if head + weigh(render(messages, plan) if plan is not None else messages) < seen.budget.usable:
            continue
        made = BUILDER.minimal(seen) if is_minimal else BUILDER.build(seen)
        check_rendered(messages, made)
        check_turns(messages, made, depth, room=0.9 * seen.budget.usable - head)
        is_short = head + weigh(render(messages, made)) <= seen.budget.usable
        assert is_short or is_ceiling_unreachable(messages, head, seen.budget.usable)
        plan = made if made.through else plan


def weigh_work(turns: int, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int, int]:
    """The characters that a minimal plan of so many turns reads: counted, studied, and searched for rules."""
    read: Counter[str] = Counter()

    def count_noted(text: str) -> int:
        read["counted"] += len(text)
        return count(text)

    def glance_noted(told: Message) -> MessageFeatures:
        read["studied"] += len(told.text)
        return extract_features_without_identifiers(told)

    def list_sentences_noted(text: str) -> Iterator[Sentence]:
        read["searched"] += len(text)
        return list_sentences(text)

    monkeypatch.setattr("proxy.context.builder.extract_features_without_identifiers", glance_noted)
    monkeypatch.setattr("proxy.context.user_rules.list_sentences", list_sentences_noted)
    messages = [user("begin")]
    for number in range(turns):
        messages.append(user(ask(number, "ticket", 3, 300, is_repeated=True)))
        messages += act(f"{number}", f"cat {number}", f"line {number} of the output\n" * 30)
        messages.append(said(f"Done with {number}."))
    plan = ContextBuilder(BuilderPolicy(), count_noted).minimal(view([*messages, user("And now?")], 6000))
    assert plan.through
    return read["counted"], read["studied"], read["searched"]


def test_the_work_of_a_minimal_plan_grows_with_the_text_and_no_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    fewest, few, many = (weigh_work(turns, monkeypatch) for turns in (40, 80, 160))
    assert all(0 < c - b <= 2.2 * (b - a) for a, b, c in zip(fewest[:2], few[:2], many[:2], strict=True))
    assert 0 < many[2] <= 2 * MAX_RULES_SEARCHED  # of many turns the newest are searched for rules, and at most twice


@pytest.mark.no_cover
def test_short_turns_leave_together_with_their_answers_and_a_range_of_them_has_one_reference() -> None:
    """700 questions and answers: no row of the user's messages alone, and answers to as many of them as are shown."""
    session = Session(int(16_000 * MARGIN))
    for number in range(700):
        session.say(user(f"What is the capital of country number {number}, please?"))
        sent = session.send()
        session.say(said(f"It is the town of Place{number}, as far as I know now."))
    texts = "\n".join(message["content"] for message in sent)
    alone = [n for n in range(1, len(sent)) if {sent[n - 1]["role"], sent[n]["role"]} == {"user"}]
    assert session.opened > 1 and len(alone) <= 4, "ledgers are messages of the user's role, too"
    assert sum(f"Place{number}," in texts for number in range(700)) >= 350
    assert texts.count("ref:") <= 8
