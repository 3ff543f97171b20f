"""The sentences that a user wrote, and the rules among them that hold for the whole conversation.

Pasted blocks and text that a client added are left out first. A rule is a verbatim quotation, never a paraphrase.
"""

# ruff: noqa: RUF001 - words of languages in other scripts

import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from math import inf

from proxy.context.budget import take_fitting
from proxy.context.conversation import ConversationIndex, find_spoken, read_words
from proxy.context.references import sanitize_text
from proxy.model import Value
from proxy.model.messages import Message

_OPENING = re.compile(
    r"(?m)^ {0,3}(?P<fence>`{3,8}(?!`)|~{3,8}(?!~))[^`\n]*$"
    r"|^[ \t]*<(?P<tag>files?|documents?|logs?|output|stdout|stderr|code|diff|patch|attachment|file_contents?)"
    r"\b[^>\n]*>"
)
_MACHINE_LINE = re.compile(
    r"\W?\d{2,4}[-:/.]\d\d\b"  # a time or a date
    r"|\W{0,2}(?:TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|FATAL|CRITICAL)\b"
    r"|[\w./-]+:\d+[: ]"  # a place in a file
    r"|\s*(?:at |File \"|Traceback )|(?:\+\+\+|---|@@) "
    r"|(?: {4}|\t)\s*+(?![-*+\d\s])"
)
_SYMBOLS = re.compile(r"[^\w\s.,;]|\d")
_MAX_SYMBOLS_SHARE = 0.25
# Characters of a line that are judged: a program writes lines of megabytes, and they go on as they begin.
_JUDGED = 4_096


def list_pasted(text: str, shortest: int) -> list[tuple[int, int]]:
    """Return start and end of pasted blocks of at least `shortest` characters, in order and without overlaps."""
    found: list[tuple[int, int]] = []
    at = 0
    for start, stop in [*_list_fenced(text), (len(text), len(text))]:
        found += [*_list_machine_runs(text, at, start), (start, stop)]
        at = stop
    return [(start, stop) for start, stop in found if stop - start >= shortest]


def list_given(message: Message, shortest: int) -> list[tuple[int, int]]:
    """Return start and end of what stands beside a user's own words: attached texts, and pasted blocks."""
    found, at = list[tuple[int, int]](), 0
    for attached in (*message.attached, ""):
        start = message.text.index(attached, at) if attached else len(message.text)
        found += [(at + one, at + other) for one, other in list_pasted(message.text[at:start], shortest)]
        found += [(start, start + len(attached))] if len(attached) >= shortest else []
        at = start + len(attached)
    return found


_LONGEST_INTRO = 160
_PATH = r"[\w.@~+-]{0,200}(?:[/\\][\w.@~+ -]{1,200}){0,30}\.\w{1,10}"
_BLOCK_PATH = re.compile(
    rf"(?:(?:`{{3,}}+|~{{3,}}+)(?:[\w+-]{{0,30}}[ \t:{{]{{1,9}})?(?:(?:file|path|title|filename)=)?[\"']?({_PATH})\b"
    rf"|[ \t]*<\w++[^>\n]{{0,200}}?\b(?:path|name|file|src|source|filename)=[\"']?({_PATH})\b)"
)
_PATH_LINE = re.compile(rf"(?:[ \t#*>`-]|\bFile:?[ \t]){{0,9}}({_PATH})[ \t*`:]{{0,9}}")


def find_block_path(text: str, start: int) -> str:
    """Return the path of the file in the block that begins at `start`; empty where none is stated.

    It stands in the line that opens the block, or alone on the line above a fence.
    """
    if (inside := _BLOCK_PATH.match(text, start)) is not None:
        return inside[1] or inside[2]
    above = text[max(0, start - _LONGEST_INTRO) : start].rstrip("\n").rpartition("\n")[2]
    alone = _PATH_LINE.fullmatch(above) if text.startswith(("```", "~~~"), start) else None
    return alone[1] if alone is not None else ""


def _list_fenced(text: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of fenced and of tagged blocks, in order."""
    # A fence without an end has none for later openings either, so it is not searched again: else time is quadratic.
    open_for_ever: set[str] = set()
    at = 0
    while opening := _OPENING.search(text, at):
        at = opening.end()
        fence = opening["fence"] or opening["tag"]
        if fence in open_for_ever:
            continue
        end = rf"^ {{0,3}}{fence}{fence[0]}*[ \t]*$" if opening["fence"] else rf"</{fence}>[ \t]*$"
        if closing := re.compile(end, re.MULTILINE).search(text, at):
            yield opening.start(), closing.end()
            at = closing.end()
        else:
            open_for_ever.add(fence)


def _list_machine_runs(text: str, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of runs of lines that a program wrote; empty lines may stand between them."""
    first = last = at = start
    for line in text[start:stop].splitlines(keepends=True):
        if _is_machine_line(line):
            last = at + len(line.rstrip("\n"))
        elif line.strip():
            yield first, last
            first = last = at + len(line)
        at += len(line)
    yield first, last


def _is_machine_line(line: str) -> bool:
    bare = line.strip()[:_JUDGED]
    if not bare:
        return False
    return bool(_MACHINE_LINE.match(line[:_JUDGED])) or len(_SYMBOLS.findall(bare)) > _MAX_SYMBOLS_SHARE * len(bare)


_LEAST_PASTED = 400
_LOOKED_AT = 200_000

_FENCES = ("`", "~", "<")
_CLIENT = re.compile(
    r"<(system-reminder|environment_details|environment_context|ide_\w{1,40}|local-command-\w{1,20}"
    r"|command-(?:name|message|args|output)|bash-(?:input|stdout|stderr)|task-notification)\b[^>\n]{0,200}>"
)
# Instructions for the model that clients put behind the user's words, up to the end: aider, cline.
_TEMPLATE = re.compile(
    r"(?m)^# (?:\*SEARCH/REPLACE block\* Rules:|task_progress (?:RECOMMENDED|LIST)|TODO LIST (?:UPDATE|RECOMMENDED))"
)
# A comment of HTML or Markdown: a person who fills in a template leaves it there, unseen where the text is shown.
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_ITEM = re.compile(r"[ \t]*(?:[-*+\u2022\u2013]|\(?\d{1,3}[.)]|[a-z][.)])[ \t]+")
_END = re.compile(
    r"(?<=[.!?])[\"'\u201d\u2019)*_`]{0,3}[ \t]+(?=[\"'\u201c\u2018(\[*_`¿¡]{0,3}(?:[A-ZÀ-ÖØ-Þ]|"
    r"[^\x00-\u024f\u0430-\u045f\W]))|(?<=[\u3002\uff01\uff1f\u0964])[ \t]*"
)


class Sentence(Value):
    """A verbatim sentence of the user, and the line that introduces it where it is an item of a list."""

    text: str
    intro: str = ""

    @property
    def said(self) -> str:
        """The introduction and the sentence in one line."""
        return f"{self.intro} {self.text}" if self.intro else self.text


def list_user_places(index: ConversationIndex) -> list[int]:
    """Return the places of messages that the user wrote; tool outputs in the user's role are not among them."""
    return [
        place for i in index.users for place in index.steps[i].places if index.messages[place].structure.role == "user"
    ]


def list_sentences(text: str) -> Iterator[Sentence]:
    """Yield the sentences of a user's message in order, without fenced or pasted blocks and a client's reminders."""
    intro = ""
    is_in_list = False
    for line in _remove_foreign(text[:_LOOKED_AT]).split("\n"):
        item = _ITEM.match(line)
        bare = (line[item.end() :] if item else line).strip()
        if not bare:
            continue
        if not item:
            intro = bare if bare.endswith((":", "\uff1a")) and len(bare) <= _LONGEST_INTRO else ""
        is_in_list = bool(item)
        if is_in_list or not intro:
            yield from (Sentence(part, intro) for part in _split_sentences(bare))


def _split_sentences(line: str) -> Iterator[str]:
    at = 0
    for end in _END.finditer(line):
        yield line[at : end.start()] + end[0].rstrip()
        at = end.end()
    if at < len(line):
        yield line[at:]


def _remove_foreign(text: str) -> str:
    """Replace what the user did not write by line ends, so that no sentence reaches over it."""
    own = "\n".join(_list_outside_tags(_TEMPLATE.split(_COMMENT.sub("\n", text), maxsplit=1)[0]))
    kept: list[str] = []
    at = 0
    for start, stop in list_pasted(own, 1):
        block = own[start:stop]
        if stop - start >= _LEAST_PASTED or block.lstrip().startswith(_FENCES):
            kept.append(own[at:start])
            at = stop
    return "\n".join((*kept, own[at:]))


def _list_outside_tags(text: str) -> Iterator[str]:
    """Yield the text outside a client's tags; one that is not closed reaches to the end."""
    at = 0
    while opening := _CLIENT.search(text, at):
        yield text[at : opening.start()]
        end = f"</{opening[1]}>"
        found = text.find(end, opening.end())
        at = found + len(end) if found >= 0 else len(text)
    yield text[at:]


MAX_RULES_TOKENS, RULES_SHARE = 2000, 0.06
"""The most tokens of the block of rules, and its largest share of the usable tokens."""

_LONGEST = 600
# Rules that begin with the same characters are one. No rule has more than this share of the block.
_BEGINNING, _RULE_SHARE = 60, 0.25
# Rules come first by their length, in steps of so many characters, then the newest.
_SHORT = 160
_HEAD = (
    "Rules and changes of plan that the user stated, in the user's own words, each behind the number of its message:"
)

# What makes a sentence an instruction that lasts is an imperative or a modal that is said to somebody; "always" or
# "never" alone makes none. Of each language the first counts at the beginning of a clause only. `benchmarks.user_rules`
# counts what each finds, and how often it is wrong: what finds nothing is not here.
_CLAUSE = (
    r"(?:^|[,;:.!?\u2013\u2014(-]\s++|\b(?:and|but|so|then|also|please|und|aber|et|mais|y|pero|и|но)\s++)"
    r"[\s\"'*_`\u201c\u2018\u00ab\u00bf\u00a1>]{0,6}+"
)
RULE_WORDS: Mapping[str, tuple[str, str]] = {
    "English": (
        r"(?:always|never)\b(?! mind\b| had\b)"
        r"|(?:do not|don['\u2019]?t)\b(?! worry| know| think)"
        r"|(?:make sure|ensure|be sure to|avoid|refrain from|stick to|prefer|remember (?:to|that)|keep in mind)\b"
        r"|(?:only (?:use|ever)|use only|at all times|under no circumstances|no matter what|in (?:the )?future,)"
        r"|please,? (?:use(?! the\b| my\b| this\b| that\b)|keep|only|answer|respond|reply|speak|follow|leave|ask|format"
        r"|indent|stick|avoid|prefer)\b"
        r"|use [^.!?]{1,60}(?:, not\b|\beverywhere\b|\binstead of\b|\bfor (?:all|any|every|new)\b)"
        r"|(?:answer|respond|reply|speak|write)\b[^.!?]{0,40}\bin (?-i:[A-Z])\w+",
        r"(?<!\bthere )\bmust(?:n['\u2019]t| not| never| always)?\b(?! have\b| be (?:an?|the|some|because|due|wrong"
        r"|that|in (?:an?|the|some|one|your|my|our))\b)"
        r"|\byou (?:should(?:n['\u2019]t| not| never| always)|may not|are not (?:allowed|permitted))\b"
        r"|\b(?:is|are) (?:never|not) (?:allowed|permitted)\b|\b(?:is|are) (?:forbidden|prohibited|off[- ]limits)\b"
        r"|\bI(?:['\u2019]d)? (?:do not|don['\u2019]?t|never|always|only) (?:want|wish|like|allow|accept|expect"
        r"|permit)\b"
        r"|\bI (?:want|expect|need) you to (?:always|never|only)\b|\bfrom now on\b|\bwithout asking\b",
    ),
    "German": (
        r"(?:bitte )?(?:immer|niemals|nie)\b(?! wieder)"
        r"|(?:bitte )?\w{2,20} (?:(?:sie|mir|uns|dabei) )?(?:immer|nie|niemals|nur|nicht(?!\W*$)|kein\w{0,2}"
        r"|ausschließlich)\b"
        r"|(?:achte darauf|stell(?:e|en sie)? sicher|vermeide|bevorzuge|auf keinen fall)\b",
        r"\bdu (?:darfst|musst|sollst)\b|\b(?:darf|dürfen)\b(?: \w+){0,6} (?:nicht|nie|niemals|kein\w{0,2})\b"
        r"|\b(?:ab (?:jetzt|sofort)|von nun an)\b",
    ),
    "French": (
        r"(?:ne \w{1,30}|n['\u2019]\w{1,30}) (?:pas|jamais|rien)\b(?!\W*$)"
        r"|\w{2,20}(?:e|es|ez|s) (?:toujours|uniquement|seulement)\b"
        r"|(?:assure-toi|assurez-vous|évite[sz]?|préfère[sz]?)\b",
        r"\bne (?:jamais|pas) \w+(?:er|ir|re)\b|\b(?:tu|vous) (?:ne )?(?:dois|devez)\b|\bil (?:ne )?faut\b"
        r"|\b(?:désormais|à partir de maintenant)\b",
    ),
    "Spanish": (
        r"(?:nunca|jamás) \w{2,20}(?:es|as)\b"
        r"|siempre (?:usa|utiliza|responde|contesta|escribe|ejecuta|haz|pon|deja|pregunta)\b"
        r"|(?:asegúrate|evita|prefiere|(?:usa|utiliza|responde) (?:siempre|solo|sólo)|(?:solo|sólo) (?:usa|utiliza))\b"
        r"|no (?:uses|utilices|hagas|toques|modifiques|cambies|borres|elimines|escribas)\b",
        r"\b(?:debes|deberás|tienes que|a partir de ahora)\b",
    ),
    "Russian": (
        r"(?:всегда|никогда не|обязательно)\s+(?:\w+\s+){0,2}\w+(?:[^л\W]и|[аяуюе]й|йте|ите|ьте)\b"
        r"|не \w+(?:[аяую]й|йте|ите|ьте)\b",
        r"\bнельзя\b|\bзапрещ\w+|\b(?:ты|вы) долж\w+|\bне долж(?:ен|на|но|ны)\b|\b(?:впредь|отныне)\b",
    ),
    "Chinese": (
        "",
        "必须|务必|不要(?!紧)|不得|切勿|请勿|严禁|一律|千万别|请(?:使用|用)|始终(?:用|使用|保持)",
    ),
}


PREFERRING = re.compile(
    r"(?i)\b(?:I|we)(?:['\u2019]d| would)?(?: (?:really|much|strongly|generally|usually|always))?"
    r" (?:prefer|favou?r|rather)\b|\bmy (?:personal )?preference\b|^\W*(?:please,? )?prefer\b"
    r"|\b(?:ich|wir) bevorzuge\w*|\b(?:je préfère|prefiero)\b"
)
"""What a user prefers; that is a rule, too."""


CHANGE_WORDS: Mapping[str, tuple[str, str]] = {
    "English": (
        r"(?:forget|disregard|ignore|scrap|scratch|strike|never ?mind) (?:about|what|everything|all|that|this|the|my)\b"
        r"|(?:nvm|undo|revert)\b"
        r"|(?:cancel|postpone|shelve|abandon|park|skip|drop|withdraw|leave out|hold (?:off|on)) "
        r"(?:the|that|this|my|it|on|step)\b"
        r"|(?:put|push|move|bring) [^.!?]{1,60}\b(?:on (?:ice|hold)|back (?:by|to)|forward|off)\b"
        r"|(?:keep|put|take|turn|leave|bring|add|switch|go|make that) [^.!?]{1,60}"
        r"\b(?:back|out of|alone|after all|, ?not)\b"
        r"|(?:actually|on second thought|nah|wait|hold on|scratch that|change of plans?)[,:]"
        r"|(?:instead of|rather than) [^.!?,]{1,80},"
        r"|(?:let['\u2019]?s|we(?:['\u2019]ll| will)) (?:not|rather|skip|drop|postpone|park|shelve|leave|keep|stay"
        r"|stick|go|revert|return|switch|use)\b"
        r"|(?:don['\u2019]?t bother|no need (?:to|for))\b",
        r"\b(?:we|I|you|they|it)(?:['\u2019]\w+)? (?:\w+ )?no longer\b|n(?:['\u2019]?t|ot|o) [^.!?]{1,60}\bany ?more\b"
        r"|\b(?:chang\w+ (?:my|our|your|of) (?:minds?|plans?)|second thoughts?|reconsidered|take back|took back)\b"
        r"|\b(?:what|as|earlier|before|yesterday|originally) (?:I|we)(?:['\u2019]?d|['\u2019]ve| had| have)? "
        r"(?:said|asked|told|wrote|wanted|agreed|discussed|planned)\b"
        r"|\b(?:contrary to|after all|turns? out|pull\w* the plug|overkill|no more)\b"
        r"|\b(?:off the (?:list|table|hook)|until further notice|for the time being)\b"
        r"|\bI (?:know I )?(?:said|asked (?:for|you)|told you|was wrong|got \w+ wrong)\b"
        r"|\b(?:decided|voted) (?:against|to|not)\b"
        r"|\bmy (?:previous|earlier|last|original) (?:message|instruction|request|note|mail|email)\b"
        r"|\b(?:we|I['\u2019](?:ll|d))(?:['\u2019]ll| will| can| could| should)? (?:do|have|build|add|need|handle"
        r"|finish|ship|make|fix)\b[^.!?]{0,60}"
        r"\b(?:later|after(?:wards)?|instead|first|next (?:week|month|year|sprint|release|quarter))\b"
        r"|\b(?:can|could|will|has to|have to|should|may) (?:still )?(?:wait|go into the next)\b"
        r"|\b(?:go|back|return|revert|stay|stick) (?:to|with|on|at) the (?:old|original|first|previous|initial)\b"
        r"|\b(?:been|got|was|is|gets) (?:dropped|postponed|called off|cut|bumped|lifted|pushed back|put off)\b"
        r"|\b(?:moved|bumped|deferred|brought forward) to\b|\bfor now\b|\binstead[.!]?$|\bnot \d+[.!]?$"
        r"|\bso [^.!?]{1,40} it is\b",
    ),
    "German": (
        r"(?:vergiss|vergesst|vergessen sie|kommando zurück|stopp|doch (?:lieber|nicht)|ach nee|nee)\b",
        r"\b(?:mir anders überlegt|(?:brauch\w+|müssen|ihr|du|wir) [^.!?]{0,40}nicht mehr|erst mal|vorerst|vom tisch"
        r"|hat sich erledigt|rückgängig|verschieb\w*|entgegen|doch (?:lieber|nur)|lassen wir|können wir uns sparen"
        r"|stattdessen|kannst du streichen)\b|\b(?:ich|wir) (?:hatten?|habe?n?) [^.!?]{1,40}\bgesagt\b",
    ),
    "French": (
        r"(?:oublie[sz]?|laisse[sz]? tomber|finalement|tout compte fait|stop|ah non|pas la peine)\b",
        r"\b(?:j['\u2019]ai changé d['\u2019]avis|plus besoin|on verra plus tard|on décale|on (?:la|le|les) fera"
        r"|ne tenez pas compte|en fin de compte|peuvent? attendre|j[e'\u2019] ?(?:vous |t['\u2019])?avais dit)\b",
    ),
    "Spanish": (
        r"(?:olvida|olvíd\w+|mejor|pensándolo bien|al final|espera)\b",
        r"\b(?:ya no (?:hace|necesit\w+|quer\w+)|he cambiado de (?:idea|opinión)|caso omiso|de momento|aplaza\w*"
        r"|pueden? esperar|te (?:pedí|dije))\b",
    ),
    "Russian": (
        r"(?:забудь\w*|давай(?:те)? (?:всё-таки|лучше|не)|стоп|ой нет|вместо)\b",
        r"\b(?:я передумал\w*|больше не нуж\w+|отлож\w+|перенос(?:им|ится)|пока (?:не|пропусти\w*)|подожд\w+"
        r"|не учитывать|если подумать|всё-таки)\b",
    ),
    "Chinese": (
        "",
        "我改主意|想了想|算了|先别|别管|不用(?:写|做|管)了|不需要了|不做了|暂时(?:跳过|不)|改回|换回|还是用|缓一缓|往后推|之前(?:跟你)?说|忽略|等等，",
    ),
}
"""What a user revokes, replaces, or puts off, in the form of `RULE_WORDS`."""


def compile_rule_words(words: Iterable[tuple[str, str]]) -> re.Pattern[str]:
    """Return the pattern of sentences with one of these words: the first of each pair at the beginning of a clause."""
    first, anywhere = ("|".join(filter(None, each)) for each in zip(*words, strict=True))
    return re.compile(rf"(?i){_CLAUSE}(?:{first})|{anywhere}")


_RULE_WORDS = compile_rule_words(RULE_WORDS.values())
_CHANGE_WORDS = compile_rule_words(CHANGE_WORDS.values())
_RULE_LABEL = re.compile(
    r"(?i)\W{0,6}(?:\w{1,20} ){0,2}(?:rule|constraint|requirement|guideline|convention|regel|vorgabe)s?:[^\w\n]{0,6}\w"
)
_RULE_INTRO = re.compile(
    r"(?i)\b(?:rules?|constraints?|requirements?|guidelines?|conventions?|regeln|vorgaben|règles|consignes|reglas)\b"
)


class Rule(Value):
    """A rule in the user's words, the place of the message that states it, and the introduction that it begins with."""

    place: int
    text: str
    intro: str = ""

    @property
    def beginning(self) -> str:
        """Return the words by which it is known: what begins alike states one rule, for another task."""
        return self.text[: len(self.intro) + 1 + _BEGINNING]


def format_message_number(place: int) -> str:
    """Return the number of a message as the proxy's own texts name it, counted from 1."""
    return f"m{place + 1}"


def list_rules(index: ConversationIndex, places: Collection[int] | None = None) -> tuple[Rule, ...]:
    """Return the rules in the user's messages (None: all) in order; of rules that begin alike the newest."""
    return _list_stated(index, places, is_stated=_is_rule)


def _list_stated(
    index: ConversationIndex,
    places: Collection[int] | None,
    most: float = inf,
    *,
    is_stated: Callable[[Sentence], bool],
) -> tuple[Rule, ...]:
    """Return sentences for which `is_stated` is true, as rules. At most `most` characters are searched, the newest."""
    found: dict[str, Rule] = {}
    for place in sorted({*list_user_places(index), *index.spoken}, reverse=True):
        if places is None or place in places:
            words = _read_own_words(index, place)
            most -= len(words)
            for sentence in reversed([*list_sentences(words)]) if most >= 0 else ():
                if is_stated(sentence):
                    rule = Rule(place, sentence.said, sentence.intro)
                    found.setdefault(" ".join(rule.beginning.casefold().split()), rule)
    return tuple(reversed(found.values()))


def _read_own_words(index: ConversationIndex, place: int) -> str:
    """Return what a user says in a message, without attached texts."""
    words = read_words(index, place)
    for attached in index.messages[place].message.attached:
        words = words.replace(attached, "\n", 1)
    return words


def find_rules(text: str) -> tuple[str, ...]:
    """Return the rules in what a user says, in order, each as it stands in the text."""
    return tuple(sentence.said for sentence in list_sentences(text) if _is_rule(sentence))


def find_changes(text: str) -> tuple[str, ...]:
    """Return the sentences of a user that change what was planned or asked for before, as they stand in the text."""
    return tuple(sentence.said for sentence in list_sentences(text) if _is_change(sentence))


def _is_change(sentence: Sentence) -> bool:
    return _is_statement(sentence.said) and bool(_CHANGE_WORDS.search(sentence.said))


def _is_statement(said: str) -> bool:
    return not said.endswith("?") and len(said) <= _LONGEST


def _is_rule(sentence: Sentence) -> bool:
    said = sentence.said
    if not _is_statement(said):
        return False
    found = _RULE_WORDS.search(said) or _RULE_LABEL.match(said) or _RULE_INTRO.search(sentence.intro)
    return bool(found or PREFERRING.search(said))


def format_rules(rules: Sequence[Rule], usable: float, count: Callable[[str], int]) -> str:
    """Format the block of these rules in its share of the usable tokens; empty if none fits.

    If not all fit, short ones come before long ones and then the newest first. A very long one is cut.
    """
    if not rules:
        return ""
    room = min(MAX_RULES_TOKENS, RULES_SHARE * usable)
    lines = [f"{format_message_number(rule.place)}: {_cut_rule(rule, _RULE_SHARE * room, count)}" for rule in rules]
    ordered = sorted(reversed(range(len(rules))), key=lambda n: len(lines[n]) // _SHORT)
    kept = take_fitting(ordered, room - (count(_HEAD) + 1), lambda n: count(lines[n]) + 1)
    return "\n".join((_HEAD, *(lines[n] for n in sorted(kept)))) if kept else ""


def _cut_rule(rule: Rule, room: float, count: Callable[[str], int]) -> str:
    text = sanitize_text(rule.text, _LONGEST)
    tokens = count(text)
    return text if tokens <= room else sanitize_text(text, max(len(rule.beginning), int(len(text) * room / tokens)))


def list_unsent_rules(
    index: ConversationIndex,
    steps: Iterable[int],
    shortened: Mapping[int, str],
    known: Sequence[str],
    most: float = inf,
) -> tuple[Rule, ...]:
    """Return the rules and changes of plan of these steps, and of messages sent shortened, that no text sent contains.

    `shortened` are the texts of the shortened messages by place, `known` are texts of the proxy that are sent. Of these
    and of what the user said last the beginning of a rule is enough. At most `most` characters are searched.
    """
    gone = {place for i in steps for place in index.steps[i].places}
    newest = {place for i in index.newest for place in (index.steps[i].start, *find_spoken(index, i))}
    said = [read_words(index, place) for place in newest - gone - shortened.keys()]
    return tuple(
        rule
        for rule in _list_stated(
            index, gone | shortened.keys(), most, is_stated=lambda each: _is_rule(each) or _is_change(each)
        )
        if rule.text not in shortened.get(rule.place, "")
        and not any(rule.beginning in text for text in said)
        and not any(sanitize_text(rule.beginning, _LONGEST) in text for text in known)
    )


_LEAST_REPEATED = 100
"""Fewest tokens of a block that is left out because a newer turn repeats it."""
_MOST_PLACES = 8
"""The most places of one line among newer turns that are compared, the nearest ones: time stays linear."""


# Where a line begins that is not empty; empty lines belong to the one before them.
_LINE_START = re.compile(r"(?m)^(?=[^\S\n]*+\S)")


class NewerLines:
    """An index of the lines of user turns, to which turns are added from the newest to the oldest.

    Lines are compared without white space at their end, and empty ones not at all.
    """

    def __init__(self) -> None:
        self._lines: list[tuple[str, int]] = []  # with their steps; an empty one behind each text
        self._places: dict[str, deque[int]] = {}

    def add(self, step: int, text: str) -> None:
        """Add a text of the turn at a step."""
        for line in filter(None, map(str.rstrip, text.split("\n"))):
            self._places.setdefault(line, deque(maxlen=_MOST_PLACES)).append(len(self._lines))
            self._lines.append((line, step))
        self._lines.append(("", step))

    def remove_repeated(self, text: str, count: Callable[[str], int]) -> tuple[str, tuple[frozenset[int], ...]]:
        """Return a text without long passages, of whole lines, that a turn contains, and the steps of those that do."""
        kept, containers, left_out = list[str](), list[frozenset[int]](), ""
        for run, places in self._list_runs(text):
            if places and len(block := run.rstrip()) >= _LEAST_REPEATED and count(block) >= _LEAST_REPEATED:
                left_out += run
                containers.append(frozenset(self._lines[place][1] for place in places))
            else:
                kept += [_note_left_out(left_out), run]
                left_out = ""
        return "".join((*kept, _note_left_out(left_out))), tuple(containers)

    def _list_runs(self, text: str) -> Iterator[tuple[str, list[int]]]:
        """Yield runs of lines, and the places of their last lines where the run stands in a turn; else none."""
        run, at = "", list[int]()
        for line in _LINE_START.split(text):
            bare = line.rstrip()
            going_on = [place + 1 for place in at if self._lines[place + 1][0] == bare]
            if not going_on:
                yield run, at
                run = ""
            run += line
            at = going_on or [*self._places.get(bare, ())]
        yield run, at


def _note_left_out(text: str) -> str:
    """Return the note in the place of a text, with the empty lines behind it; empty for none."""
    if not text:
        return ""
    bare = text.rstrip()
    lines = bare.count("\n") + 1
    note = f"[… {lines} lines left out: they stand word for word in a newer message of the user …]"
    return f"{note}{text[len(bare) :]}"
