"""Rules that the user stated, which hold for as long as the conversation lasts (BEHAVIOUR B13).

Rule: a rule is the user's own words, never a paraphrase. What was said twice is said once; where there is too little
room the newest stay.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import accumulate

import msgspec

from proxy.context.plain import clean
from proxy.context.sentences import Sentence, find_sentences, list_user_places
from proxy.context.survey import Survey

MOST, SHARE = 2000, 0.06
"""Tokens of the block, and the part of what is usable that it may take."""

_LONGEST = 600
_HEAD = "Rules that the user stated, in the user's own words, each behind the number of its message:"

_LASTING = re.compile(
    r"(?i)\b(?:always|never|must(?:n't)?|shall not"
    r"|(?<!\bI )(?:do not|don['\u2019]t|dont)(?! worry| mind| know| understand| think| see)"
    r"|(?<=\bI )(?:do not|don['\u2019]t|dont) (?:want|wish|like|allow|accept|expect|permit)"  # not: have, remember
    r"|make sure|ensure|be sure to|from now on|at all times|under no circumstances|no matter what|in (?:the )?future"
    r"|only use|use only|only ever|prefer|avoid|please keep|keep in mind|remember (?:to|that)|refrain from|stick to"
    r"|unless I|without (?:asking|my)|(?:is|are) (?:forbidden|not allowed|off[- ]limits)|may not"
    r"|immer|niemals|nie|musst|müsst|müssen|darfst|dürft|dürfen nicht|auf keinen fall|achte darauf|stell(?:e)? sicher"
    r"|ab (?:jetzt|sofort)|von nun an|vermeide|bevorzuge|bitte (?:nicht|nur|kein\w{0,2})|nur \w{1,40} verwenden"
    r"|(?:verwende|benutze|nutze) (?:nur|kein\w{0,2}|ausschließlich)"
    r"|toujours|jamais|ne \w{1,30} pas|n['\u2019]\w{1,30} pas|dois|devez|il (?:ne )?faut|assure-toi|assurez-vous"
    r"|désormais|à partir de maintenant|évite[sz]?|préfère[sz]?|utilise[sz]? (?:uniquement|seulement)"
    r"|siempre|nunca|jamás|debes?|asegúrate|a partir de ahora|evita|prefiere|(?:usa|utiliza) (?:solo|sólo)"
    r"|(?:solo|sólo) (?:usa|utiliza)|no (?:uses|utilices|hagas|toques|modifiques|cambies|borres|elimines|escribas))\b"
)
_LEADING = re.compile(
    r"(?i)\b(?:rules?|constraints?|requirements?|guidelines?|conventions?|regeln|vorgaben|règles|consignes|reglas)\b"
)


class Rule(msgspec.Struct, frozen=True, gc=False):
    """A rule in the user's words, and the place of the message that states it."""

    place: int
    text: str


def name_message(place: int) -> str:
    """What a message is called in words of ours: they are numbered from 1."""
    return f"m{place + 1}"


def find_rules(survey: Survey, places: Collection[int] | None = None) -> tuple[Rule, ...]:
    """The rules in the user's messages, or in those at some places; of equal ones the newest, in their order."""
    found: dict[str, Rule] = {}
    for place in list_user_places(survey):
        if places is None or place in places:
            for sentence in find_sentences(survey.messages[place].told.text):
                if _is_rule(sentence):
                    key = " ".join(sentence.said.casefold().split())
                    found.pop(key, None)
                    found[key] = Rule(place, sentence.said)
    return tuple(found.values())


def _is_rule(sentence: Sentence) -> bool:
    said = sentence.said
    if said.endswith("?") or len(said) > _LONGEST:
        return False
    return bool(_LASTING.search(said) or _LEADING.search(sentence.intro))


def write_rules(rules: Sequence[Rule], room: float, count: Callable[[str], int]) -> str:
    """The block of these rules in so many tokens, the newest where not all fit; empty where none does."""
    lines = [f"{name_message(rule.place)}: {clean(rule.text, _LONGEST)}" for rule in rules]
    room -= count(_HEAD) + 1
    kept: list[str] = []
    for line in reversed(lines):
        room -= count(line) + 1
        if room < 0:
            break
        kept.append(line)
    return "\n".join((_HEAD, *reversed(kept))) if kept else ""


def find_room(usable: float) -> float:
    """The tokens that the block may have of so many that are usable."""
    return min(MOST, SHARE * usable)


def _take_newest(survey: Survey, places: Collection[int], most: int | None) -> Collection[int]:
    """The newest of the places whose messages have so many characters together."""
    if most is None:
        return places
    sizes = accumulate(len(survey.messages[place].told.text) for place in sorted(places, reverse=True))
    return {place for place, size in zip(sorted(places, reverse=True), sizes, strict=True) if size <= most}


def find_unshown(
    survey: Survey,
    steps: Iterable[int],
    shortened: Mapping[int, str],
    known: Sequence[str],
    most: int | None = None,
) -> tuple[Rule, ...]:
    """The rules of these steps, and of messages that are sent in other words, that nothing sent has in its words.

    `shortened` are those other words by their places, `known` are words of ours that are sent. Of the newest messages
    `most` characters are searched, None: all of them.
    """
    gone = {place for i in steps for place in range(survey.steps[i].start, survey.steps[i].stop)}
    newest = {survey.steps[i].start for i in survey.newest} - gone - shortened.keys()
    said = [survey.messages[place].told.text for place in newest]
    return tuple(
        rule
        for rule in find_rules(survey, _take_newest(survey, gone | shortened.keys(), most))
        if not any(rule.text in text for text in (shortened.get(rule.place, ""), *said))
        and not any(clean(rule.text, _LONGEST) in text for text in known)
    )
