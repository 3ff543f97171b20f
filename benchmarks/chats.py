"""Technical chats made from a seed: a person who builds something, and an assistant who answers at length.

About 100,000 tokens. The person states facts and rules, of which some change later, between pasted code and logs; one
advice stands in each long answer. Asked are facts, advice, what holds now, rules for a task that has none of their
words, dates that lie in two turns, contradictions, and all that was said of an area, which has many turns.
"""

import random
import re
from collections.abc import Iterator, Sequence
from datetime import date, timedelta

import msgspec

from benchmarks.dialogues import Asked, Dialogue, Turn, list_words
from benchmarks.topics import Topic, read_topics

_AREAS, _ = read_topics("chat_topics.txt")
_CHOICE = re.compile(r"<([^<>]*\|[^<>]*)>")
_WORDS = re.compile(r"[\w.,%-]*\d[\w.,%-]*\w|[A-Z]\w{2,}|\w*[_.]\w+")
_PROJECTS = (
    "a budget tracker",
    "a booking tool for climbing gyms",
    "a recipe planner",
    "a portal for tenants",
    "a ticket shop",
)
_OPENERS = (
    "I've hit a wall with the {a}.",
    "Back to my project, today it's about the {a}.",
    "Thanks, that worked. Next problem:",
    "Can you help me with the {a}?",
    "I'm trying to get the {a} into shape, and here is where I am.",
    "Quick one on the {a}.",
)
_WISHES = (
    "How would you go about it?",
    "What am I missing?",
    "Can you show me how to do it properly, with code?",
    "Is that a sensible approach or should I change it?",
    "Here is what I have so far:",
    "Please review this and tell me what you'd change:",
)
_SENTENCES = (
    "Start by checking that the {a} is set before the {b} is read, otherwise the {c} will be empty on the first call.",
    "It's worth separating the {a} from the {b}, so that each can be changed without touching the other.",
    "A common mistake is to create the {a} for every {b}; make it once and pass it along.",
    "If the {a} fails, log the {b} together with the {c}, but never the secret parts of it.",
    "You can verify this with a small script that sends the {a} a thousand times and prints how the {b} behaves.",
    "Before you go on, write down what the {a} looks like today, and change one thing at a time.",
    "Keep in mind that the {a} may be shared: two users with the same {b} must not see each other's {c}.",
    "In larger projects the {a} is usually moved to its own module, next to the {b}.",
    "The documentation recommends a limit for the {a}, but the default of the {b} is fine for your size.",
    "For robustness, retry the {a} with a short delay, and give up after three times with a clear message.",
    "That also makes it easier to replace the {b} later on, when the {c} grows.",
    "Think about what happens when the {a} arrives twice, or when the {b} never arrives at all.",
)
_STEPS = ("First", "Second", "Then", "After that", "Finally", "As an alternative")


def make_chat(seed: int, exchanges: int = 110) -> Dialogue:
    """Make a technical chat of a person and an assistant who answers at length."""
    return _Chat(random.Random(seed)).make(exchanges)


class _Step(msgspec.Struct):
    """What is said of an area at some place, with an advice of the answer, and what is asked about it.

    The evidence of a question is the turn, by 0, or its answer, by 1; and that of the step that came `first`.
    """

    at: float
    area: Topic
    text: str
    advice: str = ""
    asked: Sequence[Asked] = ()
    first: "_Step | None" = None
    turn: int = -1


class _Chat:
    """A chat as it is said."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._turns: list[Turn] = []
        self._asked: list[Asked] = []
        self._said: dict[str, list[int]] = {}
        self._day = date(2024, 1, 8) + timedelta(rng.randrange(90))

    def make(self, exchanges: int) -> Dialogue:
        areas = self._rng.sample(_AREAS, 6)
        steps = sorted((step for area in areas for step in self._plan(area)), key=lambda step: step.at)
        project = self._rng.choice(_PROJECTS)
        stop = max(exchanges, len(steps))
        for number in range(stop):
            begin = f"I'm building {project}. " if number == 0 else ""
            due = number * len(steps) // stop
            if due < (number + 1) * len(steps) // stop:
                self._note(steps[due], self._exchange(steps[due].area, steps[due].text, steps[due].advice, begin))
            else:
                self._exchange(self._rng.choice(areas), "", "", begin)
        self._ask_for_all(areas)
        return Dialogue(tuple(self._turns), tuple(self._asked))

    def _plan(self, area: Topic) -> Iterator[_Step]:
        """Yield what is said of an area."""
        rng = self._rng
        begin = rng.random() * 0.6
        for said, advice, about, on_advice in area.lines["S"]:
            asked = [Asked(about, (0,), tuple(_WORDS.findall(text := self._settle(said))), "fact")]
            if rng.random() < 0.5:
                asked.append(Asked(on_advice, (1,), list_words(advice), "advice"))
            yield _Step(begin + rng.random() * 0.4, area, text, advice, asked)
        for first, later, about in area.lines["U"]:
            at, new = begin + rng.random() * 0.15, self._settle(later)
            yield _Step(at, area, self._settle(first))
            asked = [Asked(about, (0,), tuple(_WORDS.findall(new)), "update")]
            yield _Step(at + 0.1 + rng.random() * 0.2, area, new, asked=asked)
        for rule, about in area.lines["R"]:
            yield _Step(begin + rng.random() * 0.2, area, rule, asked=[Asked(about, (0,), (), "rule")])
        yield from self._plan_pairs(area, begin)

    def _plan_pairs(self, area: Topic, begin: float) -> Iterator[_Step]:
        """Yield what is said twice: dates that are moved, and what contradicts something said before."""
        rng = self._rng
        for what, about in area.lines["E"]:
            days = [f"{day:%B} {day.day}, {day.year}" for day in self._pick_days()]
            first = _Step(begin + rng.random() * 0.15, area, f"I want to {what} {days[0]}.")
            question = f"How many days are there between the first and the new date by which {about}?"
            asked = [Asked(question, (0,), tuple(_WORDS.findall(" ".join(days))), "dates")]
            moved = f"We've moved the date, I now have to {what} {days[1]}."
            yield from (first, _Step(first.at + 0.2, area, moved, asked=asked, first=first))
        for early, against, about in area.lines["Y"]:
            first = _Step(begin + rng.random() * 0.1, area, early)
            asked = [Asked(about, (0,), (), "contradiction")]
            yield from (first, _Step(first.at + 0.1 + rng.random() * 0.2, area, against, asked=asked, first=first))

    def _pick_days(self) -> list[date]:
        return [self._day + timedelta(self._rng.randrange(20, 160)) for _ in range(2)]

    def _settle(self, text: str) -> str:
        return _CHOICE.sub(lambda found: self._rng.choice(found[1].split("|")), text)

    def _note(self, step: _Step, turn: int) -> None:
        """Keep where something was said, and what is asked about it."""
        step.turn = turn
        self._said.setdefault(step.area.head[0], []).append(turn)
        earlier = (step.first.turn,) if step.first is not None else ()
        self._asked += [
            msgspec.structs.replace(each, evidence=(*earlier, turn + each.evidence[0])) for each in step.asked
        ]

    def _ask_for_all(self, areas: Sequence[Topic]) -> None:
        for area in areas:
            name, said = area.head[0], sorted(self._said[area.head[0]])
            self._asked.append(
                Asked(f"Can you summarise how my work on {name} has gone over time?", tuple(said[:10]), (), "summary")
            )
            order = f"In which order did I bring up the different sides of {name}? List five of them."
            self._asked.append(Asked(order, tuple(said[:5]), (), "order"))

    def _exchange(self, area: Topic, text: str, advice: str, begin: str) -> int:
        """Add what the person says and what the assistant answers; return the number of the first turn."""
        rng = self._rng
        opener = rng.choice(_OPENERS).format(a=area.head[0])
        parts = [begin + opener, text, rng.choice(_WISHES)]
        if rng.random() < 0.6:
            parts.append(f"\n\n{self._write_code(area)}")
        self._turns.append(Turn("", "user", " ".join(filter(None, parts))))
        body = [self._fill(area) for _ in range(rng.randrange(14, 26))]
        if advice:
            body.insert(rng.randrange(1, len(body)), f"{advice}.")
        blocks = [" ".join(body[i : i + 3]) for i in range(0, len(body), 3)]
        marked = [f"{i + 1}. **{rng.choice(_STEPS)}**: {block}" for i, block in enumerate(blocks)]
        marked.insert(rng.randrange(len(marked)), self._write_code(area))
        self._turns.append(Turn("", "assistant", "\n\n".join(marked)))
        return len(self._turns) - 2

    def _fill(self, area: Topic) -> str:
        words = area.head[1].split()
        a, b, c = self._rng.sample(words, 3)
        return self._rng.choice(_SENTENCES).format(a=a, b=b, c=c)

    def _write_code(self, area: Topic) -> str:
        words = area.head[1].split()
        lines = ["```python"]
        for _ in range(self._rng.randrange(3, 8)):
            a, b, c = self._rng.sample(words, 3)
            verb, limit = self._rng.choice(("get", "check", "make", "load")), self._rng.randrange(9)
            lines += [
                f"def {verb}_{a}_{b}({c}, limit={limit}):",
                f"    {a} = {c}.find('{b}')",
                f"    return {a} or {b}_default",
            ]
        return "\n".join([*lines, "```"])
