"""Recall: the actions of the tool, for models and for programs, within what the requester may read."""

import asyncio
import difflib
import logging
import re
from collections.abc import Sequence
from typing import Any, get_args

import msgspec

from proxy.context.message_features import count_lines
from proxy.context.outline import outline
from proxy.context.references import render_original, sanitize_original, sanitize_text
from proxy.engine.ports import Clock, Index
from proxy.engine.recall.answers import (
    format_age,
    list_span,
    list_steps,
    name_entry,
    tell_changes,
    tell_file_changes,
    tell_version,
    write_hits,
    write_page,
)
from proxy.engine.recall.entries import EntryFinder, FoundEntry
from proxy.engine.recall.history import History
from proxy.engine.recall.policy import RecallPolicy
from proxy.engine.recall.scope import RecallLog, Relatives, Scope, find_relatives
from proxy.engine.recall.tool import Misused, RecallCall, parse_call
from proxy.engine.recall.versions import Version, find_file, find_versions, list_known_files, pick_version
from proxy.model.errors import NotFound, ProxyError
from proxy.model.lru import LruCache
from proxy.model.search import EntryKind, Hit, SearchAnswer, SearchQuery

_log = logging.getLogger("palimpsest.recall")

_TIME_LIMIT = 10.0
# Of the messages of histories that are kept; what is computed of them takes about as much again.
_MOST_HISTORY_BYTES = 8 * 1024 * 1024
_CHARACTERS_OF_A_TOKEN = 4
_HITS_OF_A_PAGE = 20
_LEAST_PAGE = 1_000  # characters of a search's result, however little room there is
_MOST_HITS = 200
_MOST_NAMED = 5
_STEPS = re.compile(r"(?:as of )?(?:@\s*|steps?\s*)#?(\d{1,6})(?:\s*(?:-|to)\s*(\d{1,6}))?", re.IGNORECASE)
_AS_OF = re.compile(
    r"(.*\S)\s*(?:@|\bas of\b|\bat step\b)\s*+(?:(?:step|call)\s*+)?#?(\d{1,6})", re.IGNORECASE | re.DOTALL
)
_ANY = SearchQuery(text="")
# What a model may find, since it sees the ledgers, unless it asks for them.
_BESIDE_LEDGERS = tuple(kind for kind in get_args(EntryKind) if kind != "ledger")


class Recall:
    """Answers calls of the tool, each within `time_limit` seconds. The texts are for models; programs get the same."""

    def __init__(
        self, log: RecallLog, index: Index, clock: Clock, policy: RecallPolicy, time_limit: float = _TIME_LIMIT
    ) -> None:
        self._log = log
        self._index = index
        self._clock = clock
        self._policy = policy
        self._time_limit = time_limit
        self._histories = LruCache[tuple[str, bytes, int], History](_MOST_HISTORY_BYTES, weigh=_weigh_history)
        self._entries = EntryFinder(log, index)

    async def run(self, scope: Scope, arguments: str) -> str:
        """Return the result of a call, given its arguments as the model wrote them. Never raises.

        Whatever is wrong with a call, its result says what to do instead.
        """
        call = parse_call(arguments)
        if isinstance(call, Misused):
            return _clean(call.answer)
        try:
            async with asyncio.timeout(self._time_limit):
                return _clean(await self._answer(self._share_history(scope), call))
        except TimeoutError:
            return "Recalling took too long and was given up. Ask for less, or go on with what you have."
        except NotFound as error:
            return _clean(str(error))
        except ProxyError as error:
            return _clean(f"The log cannot be read now: {error}. Go on with what you have.")
        except Exception:  # noqa: BLE001 - the model has to get a result for its call, whatever is wrong here
            _log.exception("a recall failed inside the proxy; the model was told so. Please report this line")
            return "Recalling failed inside the proxy. Go on with what you have, or run what you need again."

    def prepare(self, scope: Scope) -> None:
        """Compute in a thread what most calls need of the history of a scope, because one is about to come."""
        history = self._share_history(scope).history
        if history is not None:
            asyncio.get_running_loop().run_in_executor(None, history.prepare)

    def _share_history(self, scope: Scope) -> Scope:
        """Return a scope with what was computed of the same history for another call, of the same answer mostly."""
        history = scope.history
        if history is None or not history.nodes:
            return scope
        key = (history.wire, history.nodes[-1], len(history))
        known = self._histories.get(key)
        if known is not None:
            return msgspec.structs.replace(scope, history=known)
        self._histories.put(key, history)
        return scope

    async def _answer(self, scope: Scope, call: RecallCall) -> str:
        if call.action == "search":
            return await self.search(scope, call.query, call.page)
        if call.action == "describe":
            return await self.describe(scope, call.reference)
        if call.action == "read" and not call.reference:
            return await self.read(scope, call.query, call.page)
        return await self.expand(scope, call.reference, call.page)

    async def search(self, scope: Scope, text: str, page: int = 1, narrowed: SearchQuery = _ANY) -> str:
        """Return a page of what matches best. `narrowed` has the filters by role, tool, kind and time."""
        relatives = await find_relatives(self._log, scope)
        page_characters = self._policy.page_characters
        characters = page_characters if scope.room is None else max(_LEAST_PAGE, min(page_characters, scope.room))
        tokens = characters // _CHARACTERS_OF_A_TOKEN
        wanted = msgspec.structs.replace(
            narrowed,
            text=text,
            visible=scope.visible,
            **await asyncio.to_thread(_describe_visible, scope, narrowed),
            limit=min(_MOST_HITS, _HITS_OF_A_PAGE * page),
            tokens=tokens * page,
        )
        queries = _divide(scope, relatives, wanted)
        answer = _merge(await asyncio.gather(*map(self._index.search, queries)), wanted.limit)
        stands = await asyncio.to_thread(self._tell_places, scope, relatives, answer.hits)
        return write_hits(answer, stands, text, RecallCall("search", text, page=page), characters)

    async def describe(self, scope: Scope, reference: str) -> str:
        """Return what a reference is. Raises NotFound, which says what to do."""
        entry = await self._find(scope, reference)
        when = await self._entries.find_time(entry)
        return await asyncio.to_thread(self._describe, entry, when)

    async def expand(self, scope: Scope, reference: str, page: int = 1) -> str:
        """Return a page of the original that a reference names, and how old it is. Raises NotFound."""
        entry = await self._find(scope, reference)
        as_of = await self._tell_age(scope, entry)
        head = f"ref:{entry.reference} · {name_entry(entry.kind, entry.role, entry.tool)} · {as_of}"
        call = RecallCall("expand", reference=entry.reference, page=page)
        return write_page(head, entry.text, call, self._policy.page_characters)

    async def read(self, scope: Scope, query: str, page: int = 1) -> str:
        """Return a page of a file as it was last seen (`PATH`), as of a step (`PATH @ N`), or of a `step N`.

        Raises NotFound, which says what to do.
        """
        relatives = await find_relatives(self._log, scope)
        histories = [each for each in (scope.history, relatives.parent) if each is not None]
        if not histories:
            raise NotFound("There is no conversation to read from; search finds content by its words.")
        if (asked := _STEPS.fullmatch(query.strip())) is not None:
            return await asyncio.to_thread(
                self._read_steps, histories[0], int(asked[1]), int(asked[2] or asked[1]), page
            )
        as_of = _AS_OF.fullmatch(query.strip())
        path, step = (as_of[1], int(as_of[2])) if as_of else (query.strip(), None)
        for history in histories:
            text = await asyncio.to_thread(self._read_file, scope, history, path, step, page)
            if text:
                return text if history is scope.history else f"(from the agent that delegated this)\n{text}"
        raise NotFound(await asyncio.to_thread(_tell_unknown_path, histories[0], path, step))

    async def _find(self, scope: Scope, reference: str) -> FoundEntry:
        return await self._entries.find(scope, await find_relatives(self._log, scope), reference)

    def _tell_places(self, scope: Scope, relatives: Relatives, hits: Sequence[Hit]) -> list[str]:
        return [self._tell_place(scope, relatives, hit) for hit in hits]

    def _tell_place(self, scope: Scope, relatives: Relatives, hit: Hit) -> str:
        """Tell where a hit stands, and how long ago it was recorded."""
        age = format_age(self._clock.now_ms() - hit.at_ms)
        for history, of in ((scope.history, ""), (relatives.parent, " of the agent that delegated this")):
            if history is not None and (place := history.places.get(hit.node)) is not None and place < len(history):
                changed = tell_file_changes(history, place)
                return f"step {history.find_step(place)}{of} · {age}{f' · {changed}' if changed else ''}"
        return f"call {hit.n} of session {hit.session[:12]} · {age}"

    async def _tell_age(self, scope: Scope, entry: FoundEntry) -> str:
        """Tell as of when a content is, whether it is outdated, and what is newer."""
        history = entry.standing.history
        if history is None:
            when = await self._entries.find_time(entry)
            age = f", {format_age(self._clock.now_ms() - when)}" if when else ""
            return f"of session {entry.session[:12]}{age}"
        told = await asyncio.to_thread(tell_version, history, entry.standing.places)
        if scope.history is None:
            told = msgspec.structs.replace(told, text=f"session {entry.session[:12]}, {told.text}")
        if told.newer is not None:
            return f"{told.text}; {await self._tell_newer(scope, entry, told.newer, told.path)}"
        return told.text

    async def _tell_newer(self, scope: Scope, entry: FoundEntry, place: int, path: str) -> str:
        history = entry.standing.history
        assert history is not None
        step = history.find_step(place)
        if history.nodes[place] in scope.visible and history is scope.history:
            return f"newer: the output of step {step}, which is still in this conversation"
        if name := await self._entries.find_reference(entry.session, history, place):
            return f"newer: ref:{name} (step {step})"
        asked = f"{sanitize_text(path, 200)} @ {step}" if path else f"step {step}"
        return f"newer: step {step} (read {asked})"

    def _describe(self, entry: FoundEntry, when: int) -> str:
        history, places = entry.standing.history, entry.standing.places
        parts = [name_entry(entry.kind, entry.role, entry.tool)]
        parts.append(f"of session {entry.session[:12]}" if history is None else tell_version(history, places).text)
        if when:
            parts.append(f"recorded {format_age(self._clock.now_ms() - when)}")
        pages = max(1, -(-len(entry.text) // self._policy.page_characters))
        size = f"{len(entry.text):,} characters, {count_lines(entry.text):,} lines, {pages} page{'s' * (pages > 1)}"
        lines = [f"ref:{entry.reference} · {' · '.join((*parts, size))}"]
        if history is not None and len(places) > 1:
            lines += list_span(history, places)
        else:
            act = history.find_call(places.start) if history is not None else None
            shown = outline(act.output if act is not None else entry.text, entry.path)
            lines += [f"  {sanitize_text(line, 200)}" for line in shown.structure]
        return "\n".join((*lines, f"To read it: expand, ref {entry.reference}."))

    def _read_steps(self, history: History, first: int, last: int, page: int) -> str:
        places = [place for step in range(first, min(last, history.steps) + 1) for place in history.list_places(step)]
        if not places:
            raise NotFound(f"There is no step {first}: this conversation has {history.steps}, counted from 1.")
        text = render_original([history.messages[place] for place in places])
        query = f"step {first}" if last <= first else f"steps {first}-{last}"
        head = f"{query} of {history.steps}"
        return write_page(head, text, RecallCall("read", query, page=page), self._policy.page_characters)

    def _read_file(self, scope: Scope, history: History, path: str, step: int | None, page: int) -> str:
        """Return a page of a file; empty if no call of the history names it. Blocks. Raises NotFound."""
        seen = history
        if step is not None and step < history.steps:
            places = history.list_places(step)
            seen = history.cut(places.stop if places else 0)
        files = find_file(seen, path)
        if len(files) > 1:
            raise NotFound(f"Several files end with this path: {_list(files)}. Name one of them.")
        if not files:
            return ""
        version = pick_version(find_versions(seen, files[0]))
        found = find_versions(history, files[0])
        name = sanitize_text(files[0], 200)
        if version is None:
            if not found.changes:
                return ""
            steps = list_steps(history.find_step(change.place) for change in found.changes)
            raise NotFound(f"{name} was modified at {steps}, but no call showed its content. Read these: step N.")
        at = history.find_step(version.place)
        how = "written by" if version.is_written else "shown by"
        call = sanitize_text(f"{version.act.call.name} {_summarize(version)}", 160)
        part = ", perhaps only a part of it" if version.is_part else ""
        changed = tell_changes(history, found, version)
        head = f"{name} as of step {at} of {history.steps}, {how} {call}{part}{f'; {changed}' if changed else ''}"
        asked = RecallCall("read", f"{files[0]} @ {at}", page=page)
        return write_page(head, version.text, asked, self._policy.page_characters)


def _describe_visible(scope: Scope, narrowed: SearchQuery) -> dict[str, Any]:
    """Return what of a query depends on what the requester sees: its last steps, lines, and its ledgers."""
    history = scope.history
    if history is None:
        return {}
    seen = [
        message.text for node, message in zip(history.nodes, history.messages, strict=False) if node in scope.visible
    ]
    kinds = narrowed.kinds or (_BESIDE_LEDGERS if scope.visible else ())
    return {"context": history.recent_words, "seen": tuple(seen), "kinds": kinds}


def _divide(scope: Scope, relatives: Relatives, wanted: SearchQuery) -> list[SearchQuery]:
    """Return the queries that together search what the requester may read: one, or a second one for its parent's part.

    Sessions that it continues may be those of another credential. They are named, and only nodes of its own history are
    found in them, so that the tenant need not be.
    """
    tenant = scope.tenant.hex() if scope.tenant is not None else None
    if not scope.session or scope.tenant is None or scope.reach == "tenant":
        return [msgspec.structs.replace(wanted, tenant=tenant)]
    own = frozenset(scope.history.nodes) if scope.history is not None else frozenset[bytes]()
    parents = frozenset(relatives.parent.nodes) if relatives.parent is not None else frozenset[bytes]()
    others = (*relatives.line[1:], *filter(None, (relatives.parent_session,)))
    if scope.reach == "branch":
        of = None if relatives.is_mixed else tenant
        return [msgspec.structs.replace(wanted, tenant=of, sessions=(scope.session, *others), within=own | parents)]
    queries = [msgspec.structs.replace(wanted, tenant=tenant, sessions=(scope.session,))]
    if others:
        queries.append(msgspec.structs.replace(wanted, tenant=None, sessions=others, within=own | parents))
    return queries


def _weigh_history(_: object, history: History) -> int:
    return history.size


def _merge(answers: Sequence[SearchAnswer], limit: int) -> SearchAnswer:
    """Return the best hits of all answers."""
    hits = sorted((hit for answer in answers for hit in answer.hits), key=_get_score, reverse=True)
    is_complete = all(answer.is_complete for answer in answers)
    return SearchAnswer(hits=tuple(hits[:limit]), is_complete=is_complete, behind=max(each.behind for each in answers))


def _get_score(hit: Hit) -> float:
    return hit.score


def _tell_unknown_path(history: History, path: str, step: int | None) -> str:
    """Say that no call names a path, with the paths that a model may have meant. Blocks."""
    known = list_known_files(history)
    name = path.rpartition("/")[2].lower()
    near = [each for each in known if name and name in each.rpartition("/")[2].lower()]
    near = near or difflib.get_close_matches(path, known, _MOST_NAMED, 0.6)
    meant = f" Files that were: {_list(near)}." if near else ""
    until = f" up to step {step}" if step is not None else ""
    shown = sanitize_text(path, 200)
    return f"No call{until} has read or written {shown}.{meant} search finds content by its words."


def _summarize(version: Version) -> str:
    return " ".join(version.act.call.arguments.split())


def _list(names: Sequence[str]) -> str:
    shown = ", ".join(sanitize_text(name, 200) for name in names[:_MOST_NAMED])
    return f"{shown}{', …' if len(names) > _MOST_NAMED else ''}"


def _clean(text: str) -> str:
    """Return a text without what UTF-8 cannot hold."""
    return sanitize_original(text)
