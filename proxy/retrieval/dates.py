"""Dates in texts and queries: those that are written out, and those that are relative to the time of the text.

A day is the term `@2023-05-07`, a month `@2023-05`. Times are UTC.
"""

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta

from proxy.retrieval.terms import fold, stem

_MONTHS = {
    name: number
    for number, names in enumerate(
        (
            "january jan januar janvier enero gennaio januari janeiro",
            "february feb februar février fevrier febrero febbraio februari fevereiro",
            "march mar märz maerz mars marzo maart março",
            "april apr avril abril aprile",
            "may mai mayo maggio mei maio",
            "june jun juni juin junio giugno junho",
            "july jul juli juillet julio luglio julho",
            "august aug août aout agosto augustus",
            "september sep sept septembre septiembre settembre setembro",
            "october oct oktober okt octobre octubre ottobre outubro",
            "november nov novembre noviembre novembro",
            "december dec dezember dez décembre decembre diciembre dicembre dezembro",
        ),
        1,
    )
    for name in names.split()
}
_MONTH = "(" + "|".join(sorted(_MONTHS, key=len, reverse=True)) + r")\b\.?"
_DATES = (
    re.compile(r"\b(?P<y>\d{4})[-/.](?P<m>\d{1,2})[-/.](?P<d>\d{1,2})(?!\d)"),
    re.compile(
        rf"(?i)\b(?P<d>\d{{1,2}})(?:st|nd|rd|th|\.|er)? ?(?:of |de )?(?P<m>{_MONTH}),? ?(?:of |de )?(?P<y>\d{{4}})\b"
    ),
    re.compile(rf"(?i)\b(?P<m>{_MONTH}) (?P<d>\d{{1,2}})(?:st|nd|rd|th)?,? (?P<y>\d{{4}})\b"),
    re.compile(rf"(?i)\b(?P<m>{_MONTH}),? (?:of |de )?(?P<y>\d{{4}})\b"),
)
_CLOCK = re.compile(r"(?i)\b(\d{1,2}):(\d\d)(?::\d\d)?\s*(am|pm)?")
# What a text that states its own time begins with: brackets, a label, the time of day.
_HEAD = (
    r"(?i)[\s\[({<*_#=-]*+(?:(?:(?:session|chat|conversation|message)\s*+)?(?:\d{1,4}(?![\d:])\s*+)?"
    r"(?:date|time|timestamp|day|datum|fecha)?(?:\s*+(?:and|&|/)\s*+time)?[\s:=*\[(-]*+)(?:today is |on |at )?"
    r"(?P<before>\d{1,2}:\d\d(?::\d\d)?(?:\s*+(?:am|pm))?[\s,]*+(?:on )?)?"
    r"(?:(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*[,.]? )?"
)
_AFTER = (
    r"(?:[\s,T]*+(?:at )?(?:\((?:mon|tue|wed|thu|fri|sat|sun)[a-z]*\)\s*+)?"
    r"(?P<after>\d{1,2}:\d\d(?::\d\d)?\s*(?:am|pm)?))?"
)
_STATED = tuple(re.compile(_HEAD + each.pattern.removeprefix("(?i)") + _AFTER) for each in _DATES[:3])
_NUMBERS = {
    word: number
    for number, words in enumerate(
        (
            "",
            "a an one ein eine einem einer un une uno una",
            "two couple zwei deux dos due dois",
            "three few drei trois tres tre três",
            "four vier quatre cuatro quattro quatro",
            "five fünf cinq cinco cinque",
            "six sechs seis sei",
            "seven sieben sept siete sette sete",
            "eight acht huit ocho otto oito",
            "nine neun neuf nueve nove",
            "ten zehn dix diez dieci dez",
        )
    )
    for word in words.split()
}
_COUNT = r"(\d{1,3}|" + "|".join(sorted(_NUMBERS, key=len, reverse=True)) + r")(?: of)?"
_UNITS = {"day": 1, "week": 7, "month": 30, "year": 365}
_UNIT_WORDS = (
    ("day", r"days?|tag(?:en?)?|jours?|d[ií]as?|giorni?|dias?"),
    ("week", r"weeks?|wochen?|semaines?|semanas?|settiman[ae]"),
    ("month", r"months?|monat(?:en?)?|mois|mes(?:es)?|mes[ei]|mês"),
    ("year", r"years?|jahr(?:en?)?|ans?|années?|años?|ann[oi]|anos?"),
)
_UNIT = "(?:" + "|".join(f"(?P<{unit}>{words})" for unit, words in _UNIT_WORDS) + r")\b"
_AGO = re.compile(
    rf"(?i)\b(?:about |around )?{_COUNT} {_UNIT} (?:ago|earlier|fa|atrás|atras)\b"
    rf"|\b(?:vor|il y a|hace|há) {_COUNT.replace('(', '(?:', 1)} {_UNIT.replace('(?P<', '(?P<z')}"
)
_LAST = re.compile(
    r"(?i)\b(?P<which>last|past|previous|this|letzte[nrms]?|vorige[nrms]?|diese[nrms]?|cette|ce|est[ae]|quest[ao]) "
    rf"{_UNIT}|\b{_UNIT.replace('(?P<', '(?P<z')} (?:derni[eè]re?|pass[eé]e?|pasad[ao]|scors[ao]|passad[ao])\b"
)
_DAYS = (
    (re.compile(r"(?i)\b(?:day before yesterday|vorgestern|avant-hier|anteayer|l'altro ieri|anteontem)\b"), 2),
    (
        re.compile(
            r"(?i)\b(?:yesterday|last night|gestern|ayer|ieri|ontem|gisteren|вчера|hier(?= soir|,|\?|$))\b"
            r"|昨日|昨天|어제"
        ),
        1,
    ),
    (
        re.compile(
            r"(?i)\b(?:today|tonight|this (?:morning|afternoon|evening)|heute|aujourd'hui|hoy|oggi|hoje|vandaag)\b"
            r"|сегодня|今日|今天|오늘"
        ),
        0,
    ),
)
_WEEKDAYS = {
    name: number
    for number, names in enumerate(
        (
            "monday montag lundi lunes",
            "tuesday dienstag mardi martes",
            "wednesday mittwoch mercredi miércoles",
            "thursday donnerstag jeudi jueves",
            "friday freitag vendredi viernes",
            "saturday samstag samedi sábado",
            "sunday sonntag dimanche domingo",
        )
    )
    for name in names.split()
}
_WEEKDAY = re.compile(rf"(?i)\b(?:last |past |letzte[nr]? |on |am )?({'|'.join(_WEEKDAYS)})\b(?: dernier| pasado)?")
_WEEKEND = re.compile(r"(?i)\b(?:last|past|this past|letztes|le|el) (?:weekend|wochenende|week-end|fin de semana)\b")
_MONTH_ALONE = re.compile(rf"(?i)\b(?:in|last|since|during|im|seit|en|depuis|desde) (?P<m>{_MONTH})(?!,? \d)")
_DAY_WORDS = (
    "yesterday today tonight night morning afternoon evening ago earlier gestern vorgestern heute vor tagen hier hui "
    "aujourd jours ayer anteayer hoy hace ieri oggi fa ontem anteontem hoje há vandaag gisteren вчера сегодня"
)
DAY_TERMS = frozenset(
    {stem(fold(word)) for word in (*_DAY_WORDS.split(), *_MONTHS, *_WEEKDAYS)}
    | {"昨日", "昨天", "今日", "今天", "어제", "오늘"}
)
"""Terms of texts that may name a day. Most have none, and looking for each day is most of the work of indexing."""
_LOOKED_AT = 400
_MOST_DAYS = 62
_MOST_YEARS = 8
"""Years in which a month without a year may be: what is searched may be older than it is recorded."""
_EPOCH = date(1970, 1, 1)
_YEARS = range(1000, 9000)
"""Years in which the days around a date can be computed."""

Span = tuple[date, date]
"""The first and the last day of a time."""


def find_stated_time(text: str) -> int | None:
    """Return the time in ms that a text states as its own, at its beginning: `[1:56 pm on 8 May, 2023] Ann: …`."""
    for pattern in _STATED:
        found = pattern.match(text[:_LOOKED_AT])
        if found and (day := _make_day(found)):
            clock = _CLOCK.search(found["before"] or found["after"] or "")
            return ((day - _EPOCH).days * 1440 + (_read_clock(clock) if clock else 0)) * 60_000
    return None


def _read_clock(clock: re.Match[str]) -> int:
    hour = int(clock[1]) % 24
    if clock[3]:
        hour = hour % 12 + (12 if clock[3].lower() == "pm" else 0)
    return hour * 60 + min(int(clock[2]), 59)


def _make_day(found: re.Match[str]) -> date | None:
    month = found["m"].lower().rstrip(".")
    number = int(month) if month.isdigit() else _MONTHS[month]
    try:
        return date(int(found["y"]), number, int(found["d"])) if int(found["y"]) in _YEARS else None
    except ValueError:
        return None


def list_date_terms(at_ms: int) -> tuple[str, ...]:
    """Return the terms by which a passage of this time is found: its day, its month, and both in words."""
    day = convert_to_day(at_ms)
    return (f"@{day.isoformat()}", f"@{day:%Y-%m}")


def convert_to_day(at_ms: int) -> date:
    """Return the day of a time; that of the beginning where it is beyond the calendar."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).date()
    except (OverflowError, ValueError, OSError):
        return _EPOCH


def list_spans(text: str, now: date) -> Iterator[Span]:
    """Yield the times that a text names, as first and last day; relative ones as of `now`."""
    yield from _list_written(text)
    if now.year in _YEARS:
        yield from _list_relative(text, now)


def cut_dates(text: str) -> str:
    """Return the parts of a text that write out a date or a month."""
    return " ".join(found[0] for pattern in (*_DATES, _MONTH_ALONE) for found in pattern.finditer(text))


def _list_relative(text: str, now: date) -> Iterator[Span]:
    for pattern, days in _DAYS:
        if pattern.search(text):
            yield now - timedelta(days), now - timedelta(days)
            break
    if found := _AGO.search(text):
        yield from _read_ago(found, now)
    if found := _LAST.search(text):
        yield _read_last(found, now)
    if _WEEKEND.search(text):
        saturday = now - timedelta((now.weekday() - 5) % 7 or 7)
        yield saturday, saturday + timedelta(1)
    for found in _WEEKDAY.finditer(text):
        day = now - timedelta((now.weekday() - _WEEKDAYS[found[1].lower()]) % 7 or 7)
        yield day, day
    if found := _MONTH_ALONE.search(text):
        number = _MONTHS[found["m"].lower().rstrip(".")]
        last = now.year - (number > now.month)
        yield from (_make_month(year, number) for year in range(last, last - _MOST_YEARS, -1) if year in _YEARS)


def _list_written(text: str) -> Iterator[Span]:
    days = [_make_day(found) for pattern in _DATES[:3] for found in pattern.finditer(text)]
    yield from ((day, day) for day in days if day)
    for found in () if days else _DATES[3].finditer(text):
        if int(found["y"]) in _YEARS:
            yield _make_month(int(found["y"]), _MONTHS[found["m"].lower().rstrip(".")])


def _make_month(year: int, month: int) -> Span:
    first = date(year, month, 1)
    return first, (first + timedelta(31)).replace(day=1) - timedelta(1)


def _get_unit(found: re.Match[str]) -> str:
    return next(unit for unit in _UNITS if found[unit] or found[f"z{unit}"])


def _read_ago(found: re.Match[str], now: date) -> Iterator[Span]:
    words = found[0].lower().split()
    count = next((int(w) if w.isdigit() else _NUMBERS[w] for w in reversed(words) if w.isdigit() or w in _NUMBERS), 1)
    size = _UNITS[_get_unit(found)]
    # The longer ago, the less exactly it is meant.
    slack = 0 if size == 1 and count < 5 else max(1, size // 2)
    if count * size // 365 < now.year - _YEARS.start:
        day = now - timedelta(count * size)
        yield day - timedelta(slack), day + timedelta(slack)


def _read_last(found: re.Match[str], now: date) -> Span:
    unit, which = _get_unit(found), (found["which"] or "last").lower()
    is_now = which in ("this", "ce", "cette") or which.startswith(("diese", "est", "quest"))
    if unit == "week":
        monday = now - timedelta(now.weekday() + (0 if is_now else 7))
        return monday, monday + timedelta(6)
    if unit == "month":
        last = now if is_now else now.replace(day=1) - timedelta(1)
        return _make_month(last.year, last.month)
    if unit == "year":
        year = now.year - (not is_now)
        return date(year, 1, 1), date(year, 12, 31)
    return now - timedelta(1), now


def list_span_terms(span: Span) -> tuple[str, ...]:
    """Return the terms of which a passage in this time has one: days, or months where there are too many days."""
    first, last = span
    if span == _make_month(first.year, first.month):
        return (f"@{first:%Y-%m}",)
    days = (last - first).days
    if days < _MOST_DAYS:
        return tuple(f"@{(first + timedelta(i)).isoformat()}" for i in range(days + 1))
    months = {f"@{first + timedelta(i):%Y-%m}": None for i in range(0, min(days, 3660) + 1, 28)}
    return (*months, *({f"@{last:%Y-%m}"} - set(months)))
