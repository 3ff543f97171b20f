"""Personal dialogues made from a seed, with questions whose evidence is known, for `benchmarks.recall_quality`.

Two people, short turns, some twenty meetings over months, each with its date. Their lives have topics in common, so
that a topic alone does not find the evidence; both come back to what they told, and talk of a topic without telling
anything. What is told is asked for by its content, by a reply to a question of the other side, by its time, by what has
to be concluded, and by all that belongs to a group: mostly in words of which the turn has some, at times in none.
"""

import random
import re
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

import msgspec

from benchmarks.topics import Topic, read_topics


class Turn(msgspec.Struct, frozen=True):
    """What one side said."""

    sender: str
    role: str
    text: str


class Asked(msgspec.Struct, frozen=True):
    """A question, the numbers of the turns that are its evidence, and the words of the answer."""

    text: str
    evidence: tuple[int, ...]
    answer: tuple[str, ...]
    kind: str


class Dialogue(msgspec.Struct, frozen=True):
    """Turns, and questions about them."""

    turns: tuple[Turn, ...]
    questions: tuple[Asked, ...]


class _Told(msgspec.Struct):
    """A thing of a topic that a person told, and the turns that tell it and reply to a question about it."""

    person: str
    topic: Topic
    thing: str = ""
    at: int = -1
    about: str = ""
    replies: list[tuple[int, tuple[str, ...]]] = msgspec.field(default_factory=list)


_TOPICS, _GROUPS = read_topics("dialogue_topics.txt")
_SHARE_OF_TOPICS = 0.75  # of which one person has something to tell
_CLOSELY = 0.65  # of the questions are asked with the turn in mind, and share some words with it
_BESIDE = 0.5  # of the questions about a reply name what the turns around it are about
_PEOPLE = (
    *("Caroline", "Melanie", "Joanna", "Nate", "Tim", "Audrey", "Calvin", "Deborah", "Evan", "Gina", "Jolene", "Maria"),
    *("Andrew", "James", "Sam", "Priya", "Omar", "Ingrid"),
)
_GREETINGS = (
    "Hey {other}! Long time no talk, how have you been?",
    "Hi {other}, good to hear from you! What's new?",
    "Hey {other}, how's it going? So much has happened since we last spoke.",
    "Hello {other}! Hope your week was better than mine.",
)
_ASIDES = (
    "That's wonderful, {other}, I'm so happy for you!",
    "Thanks, {other}! That means a lot to me.",
    "Wow, that must have taken a lot of work.",
    "I know what you mean, life has been hectic.",
    "Ha, that made my day.",
    "It was tough at first but I'm glad I did it.",
    "You always know how to cheer me up.",
    "We should do something together some time soon.",
    "The weather has been awful here, rain all week.",
    "My kids keep asking about you, by the way.",
    "I've been thinking about that, too.",
    "Anything exciting planned for the next days?",
    "Not much here, just work and trying to get enough sleep.",
    "Let me know how it goes!",
    "You're so right, one step at a time.",
    "That sounds like a real adventure!",
    "I'm proud of you for sticking with it.",
    "Tell me everything!",
    "Sending you a big hug.",
    "I can only imagine how that felt.",
    "Good for you! Not everybody would dare to do that.",
    "It's the small moments that count, right?",
    "I wish I had your energy.",
    "Honestly, I needed to hear that today.",
    "Friends like you make everything easier.",
    "Time flies, doesn't it?",
    "What a story, I can't wait to hear the rest.",
    "I never thought of it that way.",
)
_FAREWELLS = (
    "Take care, {other}, and talk soon!",
    "I've got to run, dinner is on the stove. Bye, {other}!",
    "It was great catching up. Let's not wait so long the next time.",
)
_WHEN = (
    *("yesterday", "last Friday", "today", "two days ago", "this morning", "last weekend", "last week", "on Tuesday"),
    *("a few days ago", "last night", "the other day", "last month"),
)
_WORD = re.compile(r"[A-Za-z][\w'-]{3,}")


def make_dialogue(seed: int, meetings: int = 20, turns: int = 30) -> Dialogue:
    """Make a personal dialogue of two people."""
    rng = random.Random(seed)
    people = rng.sample(_PEOPLE, 2)
    speech = _Speech(rng, people)
    told = [_Told(person, topic) for person in people for topic in _choose(rng)]
    rng.shuffle(told)
    day = datetime(2023, 1, 9, 13, 5) + timedelta(rng.randrange(60))
    known: list[_Told] = []
    days: dict[int, datetime] = {}
    for meeting in range(meetings):
        start = len(speech.turns)
        speech.stamp = f"[{day:%I:%M %p} on {day.day} {day:%B}, {day.year}] "
        speech.say(rng.randrange(2), rng.choice(_GREETINGS))
        for _ in range(-(-len(told) // (meetings - meeting))):
            fact = told.pop()
            speech.tell(fact)
            days[fact.at] = day
            known.append(fact)
            if known and rng.random() < 0.4:
                speech.come_back(rng.choice(known))
        while len(speech.turns) - start < turns - 1:
            speech.chat(rng.choice(_TOPICS))
        speech.say(None, rng.choice(_FAREWELLS))
        day += timedelta(rng.randrange(4, 16), minutes=rng.randrange(300))
    return Dialogue(tuple(speech.turns), tuple(_list_questions(rng, known, people, days)))


def _choose(rng: random.Random) -> Iterator[Topic]:
    for topic in _TOPICS:
        if rng.random() < _SHARE_OF_TOPICS:
            yield topic
            if rng.random() < 0.2:
                yield topic


class _Speech:
    """The turns of a dialogue, as they are said."""

    def __init__(self, rng: random.Random, people: Sequence[str]) -> None:
        self._rng, self._people = rng, people
        self._used: set[tuple[str, str]] = set()
        self.turns: list[Turn] = []
        self.stamp = ""
        self._last = 0

    def say(self, who: int | None, text: str, *others: str) -> int:
        """Add a turn of a person, or of the one who did not speak last; return its number."""
        who = 1 - self._last if who is None else who
        self._last = who
        said = " ".join((text, *others)).replace("{other}", self._people[1 - who])
        self.turns.append(Turn(self._people[who], ("user", "assistant")[who], self.stamp + said))
        self.stamp = ""
        return len(self.turns) - 1

    def tell(self, fact: _Told) -> None:
        """Have a person tell something new, and the other one ask about it."""
        rng, who, lines = self._rng, self._people.index(fact.person), fact.topic.lines
        things = lines["X"][0][0].split("|")
        fact.thing = rng.choice([each for each in things if (fact.person, each) not in self._used] or things)
        self._used.add((fact.person, fact.thing))
        if self._last == who:
            self.say(None, rng.choice(_ASIDES), rng.choice(("What have you been up to?", "How about you?")))
        when = rng.choice(_WHEN)
        text, fact.about = rng.choice(lines["T"])
        text = text.replace("{x}", fact.thing).replace("{w}", when).replace("{W}", when.capitalize())
        fact.at = self.say(who, text, *rng.sample(_ASIDES, rng.randrange(2)))
        asked = rng.sample(lines["D"], rng.randrange(len(lines["D"]) + 1))
        if not asked:
            self.say(None, *self._remark(fact.topic))
        for question, reply, about in asked:
            self.say(None, rng.choice(_ASIDES), question)
            at = self.say(None, *rng.sample(_ASIDES, rng.randrange(2)), reply)
            closely, _, freely = about.partition(" | ")
            fact.replies.append((at, (closely if rng.random() < _CLOSELY else freely or closely, reply)))
        for _ in range(rng.randrange(1, 4)):
            self.say(None, *self._remark(fact.topic))

    def come_back(self, fact: _Told) -> None:
        """Have a person speak of what was told before, which says nothing of when or how it was."""
        self.say(self._people.index(fact.person), self._rng.choice(fact.topic.lines["F"])[0].replace("{x}", fact.thing))
        self.say(None, *self._remark(fact.topic))

    def chat(self, topic: Topic) -> None:
        """Have both speak of a topic without telling anything."""
        for _ in range(2):
            self.say(None, *self._remark(topic))

    def _remark(self, topic: Topic) -> list[str]:
        said = [self._rng.choice(topic.lines["C"])[0], self._rng.choice(_ASIDES)]
        self._rng.shuffle(said)
        return said[: self._rng.choice((1, 2, 2))]


def list_words(text: str) -> tuple[str, ...]:
    """Return the words of a text that are long enough to be looked for in an answer."""
    return tuple(_WORD.findall(text))


def _list_questions(
    rng: random.Random, known: Sequence[_Told], people: Sequence[str], days: dict[int, datetime]
) -> Iterator[Asked]:
    groups: dict[tuple[str, str], list[_Told]] = {}
    for fact in known:
        groups.setdefault((fact.person, fact.topic.head[0]), []).append(fact)
        words, lines = list_words(fact.thing), fact.topic.lines
        same = tuple(each.at for each in known if each.person == fact.person and each.topic is fact.topic)
        about = fact.about if rng.random() < _CLOSELY else rng.choice(lines["Q"])[0]
        asked = about.replace("{p}", fact.person)
        if len(same) > 1:
            asked = f"{asked[:-1]} in {days[fact.at]:%B %Y}?"
        yield Asked(asked, (fact.at,), words, "content")
        for at, (about, reply) in fact.replies:
            beside = f", speaking of {fact.thing}?" if fact.thing not in about and rng.random() < _BESIDE else "?"
            yield Asked(_name(about[:-1] + beside, fact), (at,), list_words(reply), "reply")
        if rng.random() < 0.7:
            yield Asked(_name(rng.choice(lines["W"])[0], fact), (fact.at,), words, "when")
        if rng.random() < 0.2:
            yield Asked(_name(rng.choice(lines["O"])[0], fact), same, words, "concluded")
    for (person, group), facts in groups.items():
        if len(facts) > 1:
            asked = rng.choice([text for name, text in _GROUPS if name == group]).replace("{p}", person)
            yield Asked(
                asked, tuple(each.at for each in facts), list_words(" ".join(f.thing for f in facts)), "several"
            )


def _name(question: str, fact: _Told) -> str:
    """Write a question of somebody else: what is the person's own is the person's."""
    named = question.replace("{p}", fact.person).replace("{x}", fact.thing)
    return re.sub(r"\bmy\b", "the", named)
