"""Making one report: models are asked in their order, level by level; what none of them gives is put together without.

Rule: never fails. What a model says is believed as far as `context/compaction/acceptance` goes, no further; what came
of lesser ways is provisional.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from proxy.context.compaction.acceptance import Accepted, Rejected, Task, accept
from proxy.context.compaction.digest import digest_reports, digest_span
from proxy.context.compaction.summary_text import Frame
from proxy.engine.boundary import attempt
from proxy.engine.compaction.calling import Answered, Errand, Unanswered
from proxy.engine.compaction.candidates import Candidate, list_candidates
from proxy.engine.compaction.keys import CallCredential
from proxy.engine.compaction.office import Office
from proxy.engine.compaction.policy import CompactionPolicy
from proxy.engine.compaction.questions import Question, Questions
from proxy.engine.compaction.work import Work, tell_date
from proxy.engine.models import Models
from proxy.engine.policy import Provider
from proxy.engine.ports import Clock
from proxy.engine.request_resolver import Route
from proxy.model.summary import Level, Summary
from proxy.wire.asking import enlarge
from proxy.wire.headers import keep_for_log

_MODEL_LEVELS: tuple[Level, ...] = (1, 2)
_DETERMINISTIC = 3
_ANY = Provider()
# What an upstream may say because of what it was asked, and not because of how it is doing.
_FOR_WHAT_IS_ASKED = frozenset({200, 400, 413, 422})
_NO_KEY = "no model was asked: no call of this session was accepted in the last half hour, or since the start"

MayGoOn = Callable[[], Awaitable[bool]]
"""Whether what is being made is still ours to make."""

_log = logging.getLogger("palimpsest.compaction")


@dataclass(frozen=True, slots=True)
class Desk:
    """With what reports are made. `secret` makes their ids unguessable, `providers` are by the upstream's name."""

    policy: CompactionPolicy
    office: Office
    questions: Questions
    models: Models
    routes: Sequence[Route]
    providers: Mapping[str, Provider]
    clock: Clock
    secret: bytes
    count: Callable[[str], int]


class Attempts:
    """What was tried for a report: the calls that were made, and what was wrong with each, or why none was.

    `is_speechless`: a model came to no words twice; a shorter form would not help that (B29). `is_lost`: it is no
    longer ours to make.
    """

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.problems: list[str] = []
        self.is_speechless = False
        self.is_lost = False

    @property
    def reason(self) -> str:
        """All of it, in words; each once."""
        return "; ".join(dict.fromkeys(self.problems))


class _Try(msgspec.Struct, frozen=True, gc=False):
    """A report that is wanted, on one level and from one model; `attempts` is what was tried for it so far.

    `may_go_on` is asked before each question. `is_custom`: the instruction is a person's own.
    """

    work: Work
    key: CallCredential
    candidate: Candidate
    level: Level
    attempts: Attempts
    may_go_on: MayGoOn
    is_custom: bool

    @property
    def names(self) -> tuple[str, str]:
        """The upstream and the model."""
        return self.candidate.upstream.name, self.candidate.model

    @property
    def skill(self) -> tuple[str, str]:
        """What the model is trusted with or not: one that merges badly may report well all the same.

        What comes of a person's own instruction says something of that, and of the session it is used in, at most.
        """
        upstream, model = self.names
        skill = f"{model}, merging" if self.work.parents else model
        return upstream, f"{skill}, as asked in {self.work.latest.session}" if self.is_custom else skill

    def note(self, problem: str) -> None:
        """Something is wrong with what the model gave, or with asking it."""
        self.attempts.problems.append(f"{self.candidate.model}: {problem}")


class Drafter:
    """Makes reports."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def draft(
        self, work: Work, key: CallCredential | None, may_go_on: MayGoOn, *, is_needed: bool = False
    ) -> Summary | None:
        """The report; None where nobody could be asked, unless it is needed: a ledger says as much meanwhile.

        None also where it was not to go on.
        """
        attempts = Attempts()
        for each in self._list_tries(work, key, attempts, may_go_on):
            made = await attempt(self._ask(each), partial(_note, attempts))
            if made is not None:
                return made
            if attempts.is_lost:
                return None
        if not await may_go_on():
            return None
        if not (attempts.calls or is_needed):
            _log.info("session %s: no summary for now: %s", work.latest.session, attempts.reason or "nobody to ask")
            return None
        return await asyncio.to_thread(self.put_together, work, attempts)

    def _list_tries(
        self, work: Work, key: CallCredential | None, attempts: Attempts, may_go_on: MayGoOn
    ) -> Iterator[_Try]:
        """Whom to ask for what, as long as there is no report; without a key those who are asked with one of ours."""
        policy, levels = self._desk.policy, self._list_levels(work)
        if work.wish is not None and work.wish.model:
            policy = replace(policy, model=work.wish.model)
        asked_with, is_custom = key or _make_keyless(work), _is_custom(policy, work)
        for level in levels:
            if attempts.is_speechless or (level > levels[0] and not attempts.calls):
                return  # a shorter form is for what was no good, not for what was not to be asked
            for candidate in list_candidates(policy, asked_with.upstream, work.latest.case.view, self._desk.routes):
                asking = _Try(work, asked_with, candidate, level, attempts, may_go_on, is_custom)
                if key is None and not self._desk.providers.get(candidate.upstream.name, _ANY).has_own_key:
                    attempts.problems.append(_NO_KEY)
                elif asking.skill == asking.names or self._is_able(asking):
                    yield asking
                else:
                    how = "merged" if work.parents else "answered this instruction"
                    asking.note(f"it {how} badly of late, and is left alone with that for a while")

    def _is_able(self, asking: _Try) -> bool:
        return self._desk.office.breakers.allows(*asking.skill, self._desk.clock.monotonic())

    def _list_levels(self, work: Work) -> Sequence[Level]:
        """The levels at which models are asked, in their order."""
        levels = [level for level in _MODEL_LEVELS if level >= work.level]
        return levels if self._desk.policy.level2 else levels[:1]

    async def _ask(self, asking: _Try) -> Summary | None:
        """What a model gives; None where that is no report of this level."""
        for is_warm in (True, False):
            if is_warm and not self._may_be_warm(asking):
                continue
            question = await asyncio.to_thread(self._write, asking, is_warm=is_warm)
            if question is None:
                continue
            answer = await self._call(asking, question)
            if isinstance(answer, Answered) and not (answer.is_tool_call or answer.wants_more_room):
                return await self._judge(asking, question, answer)
            if answer is None or not (is_warm and _is_worth_another_way(answer)):
                return None
        return None

    def _may_be_warm(self, asking: _Try) -> bool:
        subject = asking.work.latest.case.subject
        is_same = asking.names == (subject.session.upstream, subject.model)
        return is_same and not self._desk.office.warmth.is_cold(*asking.names)

    def _write(self, asking: _Try, *, is_warm: bool) -> Question | None:
        desk, work, level = self._desk, asking.work, asking.level
        upstream, model = asking.names
        if is_warm:
            provider = desk.providers.get(upstream, _ANY)
            return desk.questions.write_warm(work, level, is_alternating=provider.strict_alternation)
        return desk.questions.write_compact(work, level, model, desk.models.card(upstream, model).window)

    async def _call(self, asking: _Try, question: Question) -> Answered | Unanswered | None:
        """Ask, once more with more room where all of it went into thoughts (B29); None where that is not to be."""
        office, session = self._desk.office, asking.work.latest.case.subject.session
        who, is_wished = (session, asking.key, *asking.names), asking.work.wish is not None
        body: bytes | None = question.body
        answer: Answered | Unanswered | None = None
        while body is not None:
            if why := office.permission.find_objection(*who, question.expected, is_wished=is_wished):
                asking.note(why)
                break
            if not await asking.may_go_on():
                asking.attempts.is_lost = True
                break
            office.breakers.begin(*asking.names, self._desk.clock.monotonic())
            is_first, answer = answer is None, await office.caller.ask(_make_errand(asking, question, body))
            if answer.exchange:
                asking.attempts.calls.append(answer.exchange)
            wants_more = isinstance(answer, Answered) and answer.wants_more_room and is_first
            body = enlarge(body) if wants_more else None
        self._note_failure(asking, answer)
        return answer

    def _note_failure(self, asking: _Try, answer: Answered | Unanswered | None) -> None:
        if isinstance(answer, Unanswered):
            self._blame(asking, answer.reason, is_skill=answer.status in _FOR_WHAT_IS_ASKED)
        elif answer is not None and answer.is_tool_call:
            self._blame(asking, "it called a tool", is_skill=True)
        elif answer is not None and answer.wants_more_room:
            asking.attempts.is_speechless = True
            self._blame(asking, "all its tokens went into thoughts", is_skill=True)

    def _blame(self, asking: _Try, problem: str, *, is_skill: bool) -> None:
        """Nothing came of a call. `is_skill`: that may be because of what was asked."""
        asking.note(problem)
        blamed = asking.skill if is_skill and asking.is_custom else asking.names
        self._desk.office.breakers.note_failure(*blamed, self._desk.clock.monotonic())

    async def _judge(self, asking: _Try, question: Question, answer: Answered) -> Summary | None:
        """The report that an answer is; None where it is none."""
        work, level, model = asking.work, asking.level, asking.candidate.model
        now_ms = self._desk.clock.now_ms()
        id = work.name(self._desk.secret, level, now_ms)
        frame = Frame(id, model, tell_date(now_ms))
        parents = tuple(parent.text for parent in work.parents)
        told = (work.survey, work.span, level, question.limit, work.covered, work.references, parents, work.foreign)
        found: Accepted | Rejected = Rejected(answer.refusal)
        if not answer.refusal:
            found = await asyncio.to_thread(accept, answer.text, Task(*told), frame, self._desk.count)
        if isinstance(found, Rejected):
            asking.note(f"level {level}: {found.reason}")
            self._desk.office.breakers.note_failure(*asking.skill, self._desk.clock.monotonic())
            return None
        self._desk.office.breakers.note_success(*asking.names)
        self._desk.office.breakers.note_success(*asking.skill)
        if found.missed:
            asking.note(f"left out {found.missed}")
        is_provisional = level > work.level or bool(found.missed)
        made = _Made(id, level, found.text, found.tokens, found.files, model, is_provisional)
        return _write(work, made, asking.attempts, now_ms)

    def put_together(self, work: Work, attempts: Attempts | None = None) -> Summary:
        """A report without a model. Blocks; never fails."""
        now_ms = self._desk.clock.now_ms()
        id = work.name(self._desk.secret, 3, now_ms)
        frame, count = Frame(id, "", tell_date(now_ms)), self._desk.count
        if work.parents:
            text = digest_reports([parent.text for parent in work.parents], work.span, frame, count)
        else:
            text = digest_span(work.survey, work.span, frame, work.references, count)
        files = tuple(dict.fromkeys((*(id for parent in work.parents for id in parent.files), *work.references)))
        made = _Made(id, 3, text, count(text), files, "", is_provisional=work.level < _DETERMINISTIC)
        return _write(work, made, attempts or Attempts(), now_ms)


class _Made(msgspec.Struct, frozen=True, gc=False):
    """What a report comes to."""

    id: str
    level: Level
    text: str
    tokens: int
    files: tuple[str, ...]
    model: str
    is_provisional: bool


def _is_custom(policy: CompactionPolicy, work: Work) -> bool:
    """Whether a person wrote, or may have changed, the instruction."""
    return bool(policy.prompt or policy.prompt_hook or (work.wish is not None and work.wish.prompt))


def _make_keyless(work: Work) -> CallCredential:
    """A session's key without a credential, for upstreams that are asked with a key of the settings."""
    subject = work.latest.case.subject
    return CallCredential(subject.upstream, subject.target, keep_for_log(subject.headers))


def _make_errand(asking: _Try, question: Question, body: bytes) -> Errand:
    subject = asking.work.latest.case.subject
    return Errand(
        session=subject.session,
        key=asking.key,
        upstream=asking.candidate.upstream,
        model=asking.candidate.model,
        body=body,
        most_characters=question.most_characters,
        expected=question.expected,
        warm_behind=subject if question.is_warm else None,
    )


def _write(work: Work, made: _Made, attempts: Attempts, now_ms: int) -> Summary:
    subject = work.latest.case.subject
    return Summary(
        id=made.id,
        session=subject.session.id,
        wire=subject.wire,
        start=work.span.start,
        stop=work.span.stop,
        last=subject.nodes[work.span.stop - 1],
        kind=work.kind,
        level=made.level,
        is_provisional=made.is_provisional,
        text=made.text,
        tokens=made.tokens,
        covered=work.covered,
        made_ms=now_ms,
        exchange=subject.exchange,
        model=made.model,
        reason=attempts.reason,
        calls=tuple(attempts.calls),
        parents=tuple(parent.id for parent in work.parents),
        supersedes=work.supersedes,
        files=made.files,
        digests=work.list_digests(),
    )


def _is_worth_another_way(answer: Answered | Unanswered) -> bool:
    """Whether a question that was asked warm may be asked in another way: it was too long, or led to a call."""
    return answer.is_too_long if isinstance(answer, Unanswered) else answer.is_tool_call


def _note(attempts: Attempts, error: Exception) -> None:
    _log.error("a report could not be made as it should have been", exc_info=error)
    attempts.problems.append(f"{type(error).__name__}: {error}")
