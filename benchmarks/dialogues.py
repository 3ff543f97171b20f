"""Dialogues made from a seed, with questions whose evidence is known, for `benchmarks.recall_quality`.

Personal dialogues: two people, short turns, some twenty meetings over months, each with its date. Both tell facts of
the same topics, so that the topic alone does not find the evidence. A fact is told at once, or in a reply that repeats
no word of the question before it. Technical chats: a person asks, an assistant answers at length; the answer is one
sentence of it. Questions paraphrase: of each notion a question uses another word than the text in half of the cases.
"""

import random
from collections.abc import Iterator
from datetime import datetime, timedelta

import msgspec


class Turn(msgspec.Struct, frozen=True):
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
    turns: tuple[Turn, ...]
    questions: tuple[Asked, ...]


# A topic: words for it in the text and in questions; what is asked in the dialogue; objects.
_TOPICS = (
    (
        "adopted bought rescued",
        "pet animal",
        "get",
        "anyone furry at home these days",
        "a beagle puppy|a grey parrot|two kittens|a tortoise|a ferret",
    ),
    (
        "signed up for enrolled in joined",
        "class course lessons",
        "start",
        "anything you study on the side",
        "pottery|salsa|Portuguese|calligraphy|fencing|woodcarving",
    ),
    (
        "ran finished completed",
        "race event competition",
        "take part in",
        "how did the big day go",
        "the harbour marathon|a charity ten kilometre|the triathlon in Porto|a mud run",
    ),
    (
        "painted drew sketched",
        "picture artwork canvas",
        "make",
        "have you been creative lately",
        "a lighthouse at dusk|my grandmother's hands|a field of poppies|an old tram",
    ),
    (
        "flew to travelled to visited",
        "trip journey holiday",
        "go to",
        "where did you end up going",
        "Lisbon|Kyoto|the Dolomites|Iceland|Marrakesh|Nova Scotia",
    ),
    (
        "baked cooked made",
        "meal dish recipe",
        "prepare",
        "what was on the table",
        "a rhubarb pie|lentil curry|sourdough bread|mushroom risotto|pierogi",
    ),
    (
        "got hired by started at moved to",
        "job company employer",
        "work for",
        "so who won the interview round",
        "a shelter|the city library|a solar start-up|the botanical garden|a law firm",
    ),
    (
        "read devoured borrowed",
        "book novel",
        "enjoy",
        "what keeps you awake at night",
        "The Left Hand of Darkness|Middlemarch|a biography of Curie|The Leopard|Piranesi",
    ),
    (
        "planted sowed potted",
        "garden plant vegetables",
        "grow",
        "what is coming up outside",
        "tomatoes|a fig tree|lavender|climbing roses|kohlrabi",
    ),
    (
        "bought ordered picked up",
        "instrument music",
        "play",
        "what is that sound on the phone",
        "a cello|a banjo|a used piano|a ukulele|an accordion",
    ),
    (
        "repaired fixed restored",
        "house repair renovation",
        "mend",
        "what is all that dust about",
        "the porch|the leaking roof|an oak dresser|the kitchen floor",
    ),
    (
        "volunteered at helped at supported",
        "volunteering charity community",
        "help",
        "you looked busy on the weekend",
        "the food bank|a beach clean-up|the youth choir|a refugee kitchen",
    ),
    (
        "saw heard watched",
        "concert show performance",
        "attend",
        "were the tickets worth it",
        "a string quartet|Summer Sounds|an opera in the park|the jazz night",
    ),
    (
        "hurt sprained injured",
        "injury health",
        "hurt",
        "why are you limping",
        "an ankle on the stairs|my left wrist|a knee while skiing|my back lifting boxes",
    ),
    (
        "celebrated organised hosted",
        "party celebration",
        "celebrate",
        "what was the noise last night",
        "my sister's wedding|a housewarming|our tenth anniversary|a naming ceremony",
    ),
)
_NAMES = ("Caroline", "Melanie", "Joanna", "Nate", "Tim", "Audrey", "Calvin", "Deborah", "Evan", "Gina")
_CHAT = (
    "Hey {other}! Good to see you, how have you been?",
    "That is wonderful, I am really happy for you!",
    "Thanks {other}, that means a lot.",
    "Wow, sounds like a lot of work.",
    "I know what you mean, life has been hectic.",
    "Take care and talk soon!",
    "Ha, that made my day.",
    "It was tough at first but I am glad I did it.",
    "You always know how to cheer me up.",
    "We should do something together some time.",
    "The weather has been awful here, rain all week.",
    "My kids keep asking about you, by the way.",
    "I have been thinking about that, too.",
    "Anything exciting planned for the next days?",
    "Not much, just work and trying to sleep enough.",
    "Let me know how it goes!",
)
_TELL = (
    "Guess what, I {verb} {thing} {when}! It feels great.",
    "{When} I {verb} {thing}. Still smiling about it.",
    "I finally {verb} {thing} {when}, after talking about it for ages.",
    "Oh, and I {verb} {thing} {when}, can you believe it?",
)
_REPLY = (
    "It was {thing}, {when}.",
    "{When}: {thing}. I had been hoping for it.",
    "Well, {thing}! {When}, to be exact.",
)
_ABOUT = (
    "What is the news about the {noun}?",
    "Did anything come of the {noun}?",
    "Oh, tell me more about the {noun} you mentioned!",
)
_WHEN = (("yesterday", 1), ("last Friday", 0), ("today", 0), ("two days ago", 2), ("this morning", 0))


def make_dialogue(seed: int, meetings: int = 20, turns: int = 30) -> Dialogue:
    """Make a personal dialogue of two people."""
    rng = random.Random(seed)
    people = rng.sample(_NAMES, 2)
    facts = [(p, t, o) for p in people for t in range(len(_TOPICS)) for o in rng.sample(_TOPICS[t][4].split("|"), 2)]
    rng.shuffle(facts)
    made: list[Turn] = []
    known: list[tuple[str, int, str, int, datetime]] = []
    day = datetime(2023, 1, 9, 13, 5) + timedelta(rng.randrange(60))
    for _ in range(meetings):
        stamp = f"[{day:%I:%M %p} on {day.day} {day:%B}, {day.year}]"
        start = len(made)
        told = [facts.pop() for _ in range(3) if facts]
        while len(made) - start < turns:
            first = len(made) == start
            at = (len(made) - start) % 2
            speaker, other = people[at], people[1 - at]
            due = next((f for f in told if f[0] == speaker), None)
            if due is not None and not first and rng.random() < 0.3:
                told.remove(due)
                made += _tell(rng, due, made, other)
                known.append((*due, len(made) - 1, day))
                continue
            text = rng.choice(_CHAT).format(other=other)
            made.append(_speak(people, speaker, f"{stamp} {text}" if first else text))
        day += timedelta(rng.randrange(4, 12), minutes=rng.randrange(300))
    return Dialogue(tuple(made), tuple(_ask(rng, known, people)))


def _speak(people: list[str], speaker: str, text: str) -> Turn:
    return Turn(speaker, "user" if speaker == people[0] else "assistant", text)


def _tell(rng: random.Random, fact: tuple[str, int, str], made: list[Turn], other: str) -> list[Turn]:
    speaker, topic, thing = fact
    verbs, nouns, _, hint, _ = _TOPICS[topic]
    when, _ = rng.choice(_WHEN)
    verb = rng.choice(_split_verbs(verbs))
    own, others = ("user", "assistant") if made[-1].role == "assistant" else ("assistant", "user")
    if rng.random() < 0.35:
        about = rng.choice(_ABOUT).format(noun=rng.choice(nouns.split()))
        question = f"{hint.capitalize()}?" if rng.random() < 0.3 else about
        reply = rng.choice(_REPLY).format(thing=thing, when=when, When=when.capitalize())
        return [
            Turn(speaker, own, f"So much to tell you, {other}."),
            Turn(other, others, question),
            Turn(speaker, own, reply),
        ]
    text = rng.choice(_TELL).format(verb=verb, thing=thing, when=when, When=when.capitalize())
    return [Turn(speaker, own, text)]


def _split_verbs(verbs: str) -> list[str]:
    made: list[str] = []
    for word in verbs.split():
        if word in ("for", "in", "to", "at", "by", "up", "hired") and made:
            made[-1] += f" {word}"
        else:
            made.append(word)
    return made


def _ask(rng: random.Random, known: list[tuple[str, int, str, int, datetime]], people: list[str]) -> Iterator[Asked]:
    by_topic: dict[tuple[str, int], list[tuple[str, int, datetime]]] = {}
    for person, topic, thing, at, day in known:
        by_topic.setdefault((person, topic), []).append((thing, at, day))
    for (person, topic), told in by_topic.items():
        verbs, nouns, plain, _, _ = _TOPICS[topic]
        noun = rng.choice(nouns.split())
        evidence = tuple(at for _, at, _ in told)
        things = tuple(word for thing, _, _ in told for word in thing.split() if len(word) > 3)
        if len(told) > 1:
            yield Asked(f"Which {noun} did {person} {plain}, all in all?", evidence, things, "several")
        thing, at, day = told[0]
        words = tuple(word for word in thing.split() if len(word) > 3)
        verb = rng.choice(_split_verbs(verbs)) if rng.random() < 0.5 else plain
        yield Asked(f"What {noun} did {person} {verb} in {day:%B}?", (at,), words, "single")
        yield Asked(f"When did {person} {plain} {thing}?", (at,), words, "when")


_AREAS = (
    (
        "postgres database",
        "connection pool",
        "pgbouncer transaction mode|a pool of 40 connections|statement_timeout of 30 s",
    ),
    ("kubernetes cluster", "rollout restart", "maxSurge of 25%|a preStop hook of 15 s|readinessGate checks"),
    (
        "react frontend",
        "rendering slow list",
        "react-window with overscan 6|useDeferredValue|a memo comparator on rowKey",
    ),
    ("rust parser", "memory growth", "a bumpalo arena|shrink_to_fit after each batch|interning with lasso"),
    ("python worker", "queue backlog", "prefetch_multiplier 1|acks_late with visibility 900|autoscale 4,16"),
    ("nginx proxy", "upstream timeouts", "proxy_read_timeout 75s|keepalive 32|proxy_buffering off"),
    (
        "terraform state",
        "lock conflict",
        "a DynamoDB lock table|force-unlock with the id|separate workspaces per stage",
    ),
    (
        "android app",
        "battery drain",
        "WorkManager with 30 minute windows|setExact replaced by setWindow|a foreground service",
    ),
    (
        "kafka stream",
        "duplicate messages",
        "enable.idempotence|a dedup store of 24 hours|transactional.id per partition",
    ),
    (
        "css layout",
        "overflow on mobile",
        "min-width: 0 on the flex child|overscroll-behavior contain|clamp(1rem, 4vw, 2rem)",
    ),
    ("ml training", "loss spikes", "gradient clipping at 0.5|warmup of 2,000 steps|bf16 in place of fp16"),
    ("git history", "huge repository", "filter-repo on *.psd|partial clone with blob:none|a sparse checkout"),
)
_PARAPHRASE = {
    "connection": "session",
    "pool": "limit",
    "rollout": "deployment",
    "restart": "redeploy",
    "rendering": "drawing",
    "slow": "sluggish",
    "memory": "RAM",
    "growth": "leak",
    "queue": "jobs",
    "backlog": "pile up",
    "timeouts": "hanging",
    "lock": "blocked",
    "battery": "power",
    "drain": "consumption",
    "duplicate": "twice",
    "messages": "events",
    "overflow": "scrollbar",
    "mobile": "phone",
    "loss": "divergence",
    "spikes": "jumps",
    "huge": "big",
    "repository": "checkout",
}
_FILLER = (
    "There are several ways to look at this, and which one fits depends on how the rest of the system behaves.",
    "Before changing anything, measure the current behaviour, write down the numbers, and change one thing at a time.",
    "A common mistake is to raise every limit at once; that hides the symptom and makes the next incident harder.",
    "Check the logs around the first failure, not the last one, because later errors are often only consequences.",
    "If you have a staging environment, reproduce it there with the same data volume, else the result says little.",
    "Keep the change small, document why it was made, and add an alert that fires before users notice.",
    "Also consider what happens during a deploy, when old and new versions run side by side for some minutes.",
    "The documentation describes the default values, but many distributions ship with their own configuration.",
    "You can verify it with a short script that runs the same request a thousand times and prints the percentiles.",
    "In my experience the second most frequent cause is a retry without backoff somewhere in the call chain.",
)
_SERVICES = (
    "billing",
    "search",
    "checkout",
    "catalogue",
    "mailing",
    "reporting",
    "login",
    "export",
    "inventory",
    "invoice",
)


def make_chat(seed: int, exchanges: int = 160) -> Dialogue:
    """Make a technical chat of a person and an assistant who answers at length."""
    rng = random.Random(seed)
    combos = [(area, service) for area in range(len(_AREAS)) for service in _SERVICES]
    rng.shuffle(combos)
    made: list[Turn] = []
    asked: list[Asked] = []
    for number in range(exchanges):
        area, service = combos[number % len(combos)]
        name, problem, answers = _AREAS[area]
        answer = rng.choice(answers.split("|"))
        follow = number >= len(combos)
        again = " again" if follow else ""
        question = f"In our {service} service we see {problem} with the {name}{again}. What would you do about it?"
        made.append(Turn("", "user", f"{question} {' '.join(rng.sample(_FILLER, rng.randrange(3)))}".strip()))
        body = [
            rng.choice(_FILLER).replace("system", f"{rng.choice(_SERVICES)} system")
            for _ in range(rng.randrange(14, 30))
        ]
        body.insert(
            rng.randrange(2, len(body)),
            f"What I would try first is {answer}, since it addresses the cause rather than the effect.",
        )
        made.append(Turn("", "assistant", "\n\n".join(" ".join(body[i : i + 4]) for i in range(0, len(body), 4))))
        if rng.random() < 0.4 and not follow:
            words = [_PARAPHRASE.get(w, w) if rng.random() < 0.5 else w for w in problem.split()]
            text = f"What was the advice for {service} about {' '.join(words)} ({name.split()[0]})?"
            asked.append(Asked(text, (len(made) - 1,), tuple(w for w in answer.split() if len(w) > 3), "advice"))
    return Dialogue(tuple(made), tuple(asked))
