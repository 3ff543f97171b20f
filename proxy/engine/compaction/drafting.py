"""Making one report: models are asked in their order, level by level; what none of them gives is put together without.

Rule: never fails. What a model says is believed as far as `context/compaction/acceptance` goes, no further; what came
of lesser ways is provisional.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from proxy.context.compaction.acceptance import Accepted, Rejected, Task, accept
from proxy.context.compaction.digest import digest_reports, digest_span
from proxy.context.compaction.framing import Frame
from proxy.engine.boundary import attempt
from proxy.engine.compaction.calling import Answered, Errand, Unanswered
from proxy.engine.compaction.candidates import Candidate, list_candidates
from proxy.engine.compaction.keys import Key
from proxy.engine.compaction.office import Office
from proxy.engine.compaction.policy import CompactionPolicy
from proxy.engine.compaction.questions import Question, Questions
from proxy.engine.compaction.work import Work, tell_date
from proxy.engine.models import Models
from proxy.engine.policy import Provider
from proxy.engine.ports import Clock
from proxy.engine.reception import Route
from proxy.model.summary import Level, Summary
from proxy.wire.asking import enlarge

_MODEL_LEVELS: tuple[Level, ...] = (1, 2)
_DETERMINISTIC = 3
_ANY = Provider()
_NO_KEY = "no model was asked: no call of this session was accepted in the last half hour, or since the start"

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

    `is_speechless`: a model came to no words twice; a shorter form would not help that (B29).
    """

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.problems: list[str] = []
        self.is_speechless = False

    @property
    def reason(self) -> str:
        """All of it, in words; each once."""
        return "; ".join(dict.fromkeys(self.problems))


class Drafter:
    """Makes reports."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def draft(self, work: Work, key: Key | None, *, is_needed: bool = False) -> Summary | None:
        """The report; None where nobody could be asked, unless it is needed: a ledger says as much meanwhile."""
        attempts = Attempts()
        levels = self._list_levels(work)
        if levels and key is None:
            attempts.problems.append(_NO_KEY)
        for level in levels:
            if attempts.is_speechless or (level > levels[0] and not attempts.calls):
                break  # a shorter form is for what was no good, not for what was not to be asked
            for candidate in self._list_candidates(work, key):
                assert key is not None, "without a key there are no candidates"
                made = await attempt(self._ask(work, key, candidate, level, attempts), partial(_note, attempts))
                if made is not None:
                    return made
        if not (attempts.calls or is_needed):
            _log.info("session %s: no summary for now: %s", work.latest.session, attempts.reason or "nobody to ask")
            return None
        return await asyncio.to_thread(self.put_together, work, attempts)

    def _list_levels(self, work: Work) -> Sequence[Level]:
        """The levels at which models are asked, in their order."""
        levels = [level for level in _MODEL_LEVELS if level >= work.level]
        return levels if self._desk.policy.level2 else levels[:1]

    def _list_candidates(self, work: Work, key: Key | None) -> Sequence[Candidate]:
        if key is None:
            return ()
        policy, wished = self._desk.policy, work.wish.model if work.wish is not None else ""
        policy = replace(policy, model=wished) if wished else policy
        return tuple(list_candidates(policy, key.upstream, work.latest.case.view, self._desk.routes))

    async def _ask(
        self, work: Work, key: Key, candidate: Candidate, level: Level, attempts: Attempts
    ) -> Summary | None:
        """What a model gives; None where that is no report of this level."""
        for is_warm in (True, False):
            if is_warm and not self._may_be_warm(work, candidate):
                continue
            question = await asyncio.to_thread(self._write, work, candidate, level, is_warm=is_warm)
            if question is None:
                continue
            answer = await self._call(work, key, candidate, question, attempts)
            if isinstance(answer, Answered) and not (answer.is_tool_call or answer.wants_more_room):
                return await self._judge(work, candidate, level, answer, question, attempts)
            if answer is None or not (is_warm and _is_worth_another_way(answer)):
                return None
        return None

    def _may_be_warm(self, work: Work, candidate: Candidate) -> bool:
        subject, upstream = work.latest.case.subject, candidate.upstream.name
        is_same = (upstream, candidate.model) == (subject.session.upstream, subject.model)
        return is_same and not self._desk.office.warmth.is_cold(upstream, candidate.model)

    def _write(self, work: Work, candidate: Candidate, level: Level, *, is_warm: bool) -> Question | None:
        desk, upstream = self._desk, candidate.upstream.name
        if is_warm:
            provider = desk.providers.get(upstream, _ANY)
            return desk.questions.write_warm(work, level, is_alternating=provider.strict_alternation)
        window = desk.models.card(upstream, candidate.model).window
        return desk.questions.write_compact(work, level, candidate.model, window)

    async def _call(
        self, work: Work, key: Key, candidate: Candidate, question: Question, attempts: Attempts
    ) -> Answered | Unanswered | None:
        """Ask, once more with more room where all of it went into thoughts (B29); None where that is not to be."""
        office, subject = self._desk.office, work.latest.case.subject
        upstream, model = candidate.upstream.name, candidate.model
        body: bytes | None = question.body
        answer: Answered | Unanswered | None = None
        while body is not None:
            who = (subject.session, key, upstream, model)
            if why := office.permission.find_objection(*who, question.expected, is_wished=work.wish is not None):
                attempts.problems.append(f"{model}: {why}")
                return answer
            errand = Errand(
                session=subject.session,
                key=key,
                upstream=candidate.upstream,
                model=model,
                body=body,
                most_characters=question.most_characters,
                expected=question.expected,
                warm_behind=subject if question.is_warm else None,
            )
            office.breakers.begin(upstream, model, self._desk.clock.monotonic())
            is_first, answer = answer is None, await office.caller.ask(errand)
            if answer.exchange:
                attempts.calls.append(answer.exchange)
            wants_more = isinstance(answer, Answered) and answer.wants_more_room and is_first
            body = enlarge(body) if wants_more else None
        self._note_failure(candidate, answer, attempts)
        return answer

    def _note_failure(self, candidate: Candidate, answer: Answered | Unanswered | None, attempts: Attempts) -> None:
        problem = ""
        if isinstance(answer, Unanswered):
            problem = answer.reason
        elif isinstance(answer, Answered) and answer.is_tool_call:
            problem = "it called a tool"
        elif isinstance(answer, Answered) and answer.wants_more_room:
            problem, attempts.is_speechless = "all its tokens went into thoughts", True
        if problem:
            self._blame(candidate, problem, attempts)

    def _blame(self, candidate: Candidate, problem: str, attempts: Attempts) -> None:
        attempts.problems.append(f"{candidate.model}: {problem}")
        now = self._desk.clock.monotonic()
        self._desk.office.breakers.note_failure(candidate.upstream.name, candidate.model, now)

    async def _judge(
        self,
        work: Work,
        candidate: Candidate,
        level: Level,
        answer: Answered,
        question: Question,
        attempts: Attempts,
    ) -> Summary | None:
        """The report that an answer is; None where it is none."""
        now_ms = self._desk.clock.now_ms()
        id = work.name(self._desk.secret, level, now_ms)
        frame = Frame(id, candidate.model, tell_date(now_ms))
        parents = tuple(parent.text for parent in work.parents)
        told = (work.survey, work.span, level, question.limit, work.covered, work.references, parents, work.foreign)
        task = Task(*told)
        found: Accepted | Rejected = Rejected(answer.refusal)
        if not answer.refusal:
            found = await asyncio.to_thread(accept, answer.text, task, frame, self._desk.count)
        if isinstance(found, Rejected):
            self._blame(candidate, f"level {level}: {found.reason}", attempts)
            return None
        self._desk.office.breakers.note_success(candidate.upstream.name, candidate.model)
        if found.missed:
            attempts.problems.append(f"{candidate.model}: left out {found.missed}")
        made = _Made(
            id, level, found.text, found.tokens, found.files, candidate.model, level > work.level or bool(found.missed)
        )
        return _write(work, made, attempts, now_ms)

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
