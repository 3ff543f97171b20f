"""Conversations through the real reception, and what lineage must make of them, worked out from all that was said.

Rule: the oracle reads whole histories anew and looks at the log; it knows no cache. Where two conversations have said
the same so far, and were answered the same, each is a candidate: no proxy can tell them apart.
"""

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, TypeVar, cast

from msgspec.structs import replace

from proxy.engine.call.response_reader import UnreadAnswer as Answered
from proxy.engine.lineage.identity import ClientId, make_session
from proxy.engine.lineage.resolver import is_under_way, list_shown_fingerprints
from proxy.engine.policy import EnginePolicy
from proxy.engine.runtime import TaskRunner
from proxy.model.events import ExchangeRecorded
from proxy.model.exchange import ClientRequest, Completeness, Headers, Outcome, RequestOptions, Round, Timings
from proxy.model.lineage import Adoption, Lineage, compute_chain_root, extend_chain
from proxy.wire.identity import Item, count_preamble
from tests.support.ancestry import Tree
from tests.support.clients import Message, Said
from tests.support.echoes import read, spell
from tests.support.engine import JSON, Engine, FakeArchive
from tests.support.kept_archive import KeptArchive
from tests.support.tongues import Tongue

T = TypeVar("T")
ADOPTABLE = 3


class StillLoop(asyncio.SelectorEventLoop):
    """Time stands still: on a busy machine, too, nothing comes too late."""

    def time(self) -> float:
        return 0.0


class StillTasks(TaskRunner):
    """Starts nothing: answers are read when the test says so."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        work.close()
        return cast("asyncio.Task[None]", asyncio.get_running_loop().create_future())


@dataclass
class Asking:
    """What a client sends."""

    tenant: str
    name: str
    system: str
    messages: list[Message]


@dataclass
class Call:
    """A call that was sent. `state`: in flight, unread (recorded), read, or none (nothing will come of it)."""

    asking: Asking
    exchange: str
    session: str
    tenant: bytes
    nodes: list[bytes]
    items: list[Item]
    state: str = "flight"
    saids: tuple[Said, ...] = ()
    is_failed: bool = False
    is_accepted: bool = False
    is_usable: bool = False
    tip: bytes = b""
    likeness: tuple[bytes, bytes, str] = (b"", b"", "")
    adopts: bool | None = None
    adopted: list[Adoption] = field(default_factory=list)


class World:
    """An engine, its log, and all calls. `note` is told which rules were met; `log` is where the log is kept, if so."""

    def __init__(
        self,
        tongue: Tongue,
        cache_bytes: int,
        note: Callable[[str], None] = lambda text: None,
        log: Path | None = None,
    ) -> None:
        self.tongue = tongue
        self._note = note
        self.calls: list[Call] = []
        self.root = compute_chain_root("main")
        self.is_whole = True
        self.is_broken = False
        self._policy = EnginePolicy(cache_bytes=cache_bytes)
        self._most_bytes = cache_bytes // 4
        self._loop = StillLoop()
        self._failed: dict[tuple[bytes, bytes, str], str] = {}
        self._begun: dict[tuple[bytes, bytes, str], str] = {}  # by histories that were under way
        self._shaky: set[str] = set()
        self.engine = self.run(self._begin(log))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)

    def close(self) -> None:
        """All comes to an end, and nothing is left in mind."""
        for call in self.calls:
            if call.state == "flight":
                self.finish(call, (Said("Ok."),), "complete", 200)
            if call.state == "unread":
                self.read(call)
        lineage = self.engine.lineage
        try:
            assert self.is_broken or (lineage.open_exchanges, lineage.unread) == ({}, {})
            self.run(self.engine.archive.close())
        finally:
            self.run(self._loop.shutdown_default_executor())
            self._loop.close()

    @property
    def trees(self) -> dict[str, Tree]:
        return self.engine.archive.trees.by_id

    def restart(self) -> None:
        """Another process over the same log: what was not read waits to be read there."""
        self.engine = self.run(self._go_on(self.engine))
        self.is_whole = False
        self._failed.clear()
        self._begun.clear()
        for call in self.calls:
            if call.state == "flight":
                call.state = "none"
        unread = {call.exchange for call in self.calls if call.state == "unread"}
        assert set(self.engine.lineage.open_exchanges) == unread

    def lose(self) -> None:
        """The log says that it has lost something."""
        health = self.engine.archive.health
        self.engine.archive.health = replace(health, generation=health.generation + 1)
        self.is_whole = False

    async def _begin(self, log: Path | None) -> Engine:
        archive = KeptArchive(log) if log else FakeArchive(is_instant=True)
        return Engine(policy=self._policy, archive=archive, tasks=StillTasks())

    async def _go_on(self, after: Engine) -> Engine:
        await after.archive.reopen()
        engine = Engine(policy=self._policy, after=after, tasks=StillTasks())
        await engine.readings.take_up_left()
        return engine

    def send(self, asking: Asking, seed: int, *, refuses: bool = False) -> Call:
        """A request, spelled in one of many ways, and all that must hold of where it is put."""
        random = Random(seed)
        body = self.tongue.body(asking.system, asking.messages)
        content = (spell(body, random) if seed else json.dumps(body, sort_keys=True)).encode()
        headers: Headers = ((b"authorization", f"Bearer {asking.tenant}".encode()),)
        if asking.name:
            headers += ((b"x-session-id", asking.name.encode()),)
        items = read(self.tongue.form, [json.dumps(m) for m in body[self.tongue.form.items_key]])
        items = items[count_preamble(items) :]
        nodes = extend_chain(self.root, [item.form for item in items])
        tenant = self.engine.lineage.tenants.identify(headers).tenant
        self.engine.archive.refuses_recall = refuses
        request = ClientRequest("POST", b"/v1", headers, content)
        self.is_broken = True
        received, build = self.run(self.engine.reception.resolve(request, self.tongue.form, RequestOptions("observe")))
        self.engine.archive.refuses_recall = False
        assert received.lineage is not None
        self.is_whole &= self.engine.lineage.index.is_complete  # receiving may have dropped a session
        opening, step = self.engine.reception.make_opening(received, build), received.lineage
        call = Call(asking, opening.exchange, opening.session.id, tenant, nodes, items)
        call.tip = nodes[-1] if nodes else self.root
        call.likeness = (tenant, call.tip, asking.system if self.tongue.system("x") else "")
        assert (opening.session.tenant, opening.session.upstream) == (tenant, "main")
        self._check_session(call, refuses=refuses)
        self._check_step(call, step)
        self.run(self._append(opening, Round(call.exchange, 0, "main", None), step))
        self._check_path(call)
        self.check_memory()
        self.calls.append(call)
        self.is_broken = False
        return call

    async def _append(self, *records: Any) -> None:
        self.engine.archive.append(*records)

    def finish(self, call: Call, saids: tuple[Said, ...], completeness: Completeness, status: int) -> None:
        """An answer is recorded, or none came."""
        self.run(self._finish(call, saids, completeness, status))
        self._check_adoptions(call)

    async def _finish(self, call: Call, saids: tuple[Said, ...], completeness: Completeness, status: int) -> None:
        value = self.tongue.answer(saids) if status == 200 else {"error": {"message": "slow down"}}
        content = json.dumps(value).encode() if status else b""
        call.saids = saids if status == 200 else ()
        call.is_failed = completeness != "complete" or status != 200
        call.is_accepted = status == 200
        call.is_usable = not call.is_failed
        call.state = "unread" if content else "none"
        recorded = ExchangeRecorded(
            *(call.exchange, call.session, "managed", self.tongue.form.name, "main", status, completeness),
            *(1, len(content), 0.0, 0.0),
            is_readable=bool(content),
        )
        size, times = len(content), Timings(0.0, 0.0, 0.0)
        self.engine.archive.append(
            Outcome(call.exchange, 0, status, JSON, completeness, content, size, b"", times), is_urgent=False
        )
        self.engine.bus.publish(recorded)
        if content:
            self.engine.readings.submit(Answered(call.exchange, 0, self.tongue.form, JSON, content))
        if call.is_failed and not call.asking.name and set(self.trees[call.session].tips) == {call.tip}:
            self._failed[call.likeness] = call.session

    def read(self, call: Call) -> None:
        """Its answer is read."""
        self.run(self._read(call))
        self.check_memory()

    async def _read(self, call: Call) -> None:
        await self.engine.readings.read_now(call.exchange)
        call.state = "read"
        tree = self.trees[call.session]
        for said in call.saids:
            chain = self._extend(call, said)
            assert all(tree.has_answer(node) for node in chain if node != call.tip)
            assert tree.list_path(chain[-1]) == list(dict.fromkeys([*call.nodes, *chain]))[self._skip(call, chain) :]

    def _skip(self, call: Call, chain: Sequence[bytes]) -> int:
        """A first message without a form has the root as its node, which is in no session."""
        return 1 if [*call.nodes, *chain][0] == self.root else 0

    def _extend(self, call: Call, said: Said) -> list[bytes]:
        items = read(self.tongue.form, [json.dumps(message) for message in self.tongue.echo(said, 1)])
        return extend_chain(call.tip, [item.form for item in items])

    def _check_session(self, call: Call, *, refuses: bool) -> None:
        settled = self._list_settled(call)
        for other in self.calls:
            if other.state == "unread":
                other.state = "unread" if other.exchange in self.engine.lineage.open_exchanges else "read"
                shown = {node for said in other.saids for node in self._extend(other, said)}.intersection(call.nodes)
                is_in_time = other.state == "read" or not shown - {other.tip} or other.tip in settled
                assert is_in_time, "not read in time"
        asking, new = call.asking, make_session(call.tenant, "main", ClientId(), call.exchange).id
        if asking.name:
            named = make_session(call.tenant, "main", ClientId(f"x-session-id:{asking.name}"), "").id
            assert call.session == named
            self._note("named")
            if refuses:
                self._shaky.add(named)
            candidates: set[str] = set()
        else:
            candidates = self._list_candidates(call)
            is_lost = call.session == new and refuses
            is_right = call.session in (candidates or {new}) or is_lost
            assert is_right, f"{call.session} is another's: {call.exchange} is new ({new}) or one of {candidates}"
        is_joined = not asking.name and call.session in {
            self._failed.pop(call.likeness, None),
            self._begun.get(call.likeness),
        }
        if call.session == new and not asking.name and is_under_way(call.items):
            self._begun[call.likeness] = new
        call.adopts = (asking.name != "" or call.session == new or is_joined) and self._is_adopting(call)

    def _list_settled(self, call: Call) -> set[bytes]:
        """The nodes before the one that was answered by the deepest recorded answer: what is answered there is less."""
        own = [tree for tree in self.trees.values() if tree.key.tenant == call.tenant]
        answers = [any(tree.has_answer(node) for tree in own) for node in call.nodes[:-1]]
        while answers and not answers[-1]:
            answers.pop()
        while answers and answers[-1]:
            answers.pop()
        before = call.nodes[: len(answers) - 1] if answers else []
        return {self.root, *before} - set(call.nodes[len(before) :]) if answers else set()

    def _list_candidates(self, call: Call) -> set[str]:
        """The sessions this may be: proven by the deepest recorded answer, else a retry, else shown answers."""
        own = {key: tree for key, tree in self.trees.items() if tree.key.tenant == call.tenant}
        for depth in range(len(call.nodes), 0, -1):
            node = call.nodes[depth - 1]
            if proven := {key for key, tree in own.items() if tree.has_answer(node)}:
                self._note("proven" if len(proven) == 1 else "proven, several candidates")
                return self._narrow(proven, call.nodes[depth:])
        failed = self._failed.get(call.likeness)
        equal = {failed} if failed is not None and set(own[failed].tips) == {call.tip} else set()
        if begun := self._begun.get(call.likeness):
            equal = {begun}
        if equal:
            if self.is_whole:
                self._note("the same history again" if begun else "retry of a first request")
                return equal
            new = make_session(call.tenant, "main", ClientId(), call.exchange).id
            return {*equal, new, *self._list_witnesses(call, own)}
        return self._list_witnesses(call, own)

    def _narrow(self, sessions: set[str], behind: Sequence[bytes]) -> set[str]:
        """Those without a name; of these, the ones that have come further along this chain."""
        sessions = {s for s in sessions if not self.trees[s].key.family} or sessions
        for node in behind if self.is_whole else ():  # one that has come further may have been dropped
            sessions = {s for s in sessions if any(r.node == node for r in self.trees[s].nodes.values())} or sessions
        return sessions

    def _list_witnesses(self, call: Call, own: dict[str, Tree]) -> set[str]:
        found = set()
        for item in call.items:
            for name in list_shown_fingerprints(cast(Any, _Shown([item]))):
                alike = [t for t in own.values() if name in t.fingerprints and t.fingerprints[name].form == item.form]
                if len(alike) == 1 and alike[0].has_answer(alike[0].fingerprints[name].node):
                    found.add(alike[0].key.id)
        self._note(f"shown answers of {min(len(found), 2)} sessions")
        return found if len(found) == 1 else set()

    def _is_adopting(self, call: Call) -> bool:
        """Whether the chain holds another tenant's recorded answer, and none of its own; that one knows 3 nodes."""
        depth = 0
        for tree in self.trees.values():
            answers = [node for node in call.nodes if tree.has_answer(node)]
            if answers and tree.key.tenant == call.tenant:
                return False
            if answers:
                known = {row.node for row in tree.nodes.values()}
                path = [node for node in dict.fromkeys(call.nodes) if node != self.root]
                depth = max(depth, *(i + 1 for i, node in enumerate(path) if node in known))
        return depth >= ADOPTABLE

    def _check_step(self, call: Call, step: Lineage) -> None:
        tree = self.trees.get(call.session)
        had = {row.node for row in tree.nodes.values()} if tree else set()
        base = next((depth for depth in range(len(call.nodes), 0, -1) if call.nodes[depth - 1] in had), 0)
        assert (step.tip, step.depth) == (call.tip, len(call.nodes))
        assert step.base == base or call.session in self._shaky
        if call.session not in self._shaky:
            new = [node for node in dict.fromkeys(call.nodes[base:]) if node != self.root]
            assert [row.node for row in step.nodes] == [node for node in new if node not in had]
            if tree and call.tip in tree.tips and call.nodes:
                assert step.relation == "retry" or base == 0
        assert not any(row.is_answer for row in step.nodes)
        self._note(f"relation {step.relation}")
        if step.is_side:
            self._note("side")

    def _check_path(self, call: Call) -> None:
        path = [node for node in dict.fromkeys(call.nodes) if node != self.root]
        assert self.trees[call.session].list_path(call.tip) == path

    def _check_adoptions(self, call: Call) -> None:
        adoptions = self.engine.archive.trees.adoptions
        seen = sum(len(other.adopted) for other in self.calls)
        call.adopted = adoptions[seen:]
        for adoption in call.adopted:
            self._note("adoption")
            source = self.trees[adoption.origin]
            assert call.is_accepted and len(call.nodes) >= ADOPTABLE
            assert adoption.session == call.session and adoption.node in call.nodes
            assert source.key.tenant != call.tenant
            assert any(source.has_answer(node) for node in call.nodes[: call.nodes.index(adoption.node) + 1])
        if self.is_whole:  # else memory may have what another tenant has, and not yet what is its own
            assert call.adopts or call.adopted == []
            assert any(each.session == call.session for each in adoptions) or not (call.is_accepted and call.adopts)

    def check_memory(self) -> None:
        """What is kept is bounded and counted right, and nothing leads to a session that was dropped."""
        index = self.engine.lineage.index
        sessions = list(index.sessions.values())
        assert index.weight == sum(known.weight for known in sessions)
        assert index.weight <= self._most_bytes or len(index) == 1
        if len(index) < len(self.trees):
            self.is_whole = False
        tenants = index.by_tenant.values()
        assert all(own.by_node or own.by_fingerprint for own in tenants)
        for leading in (index.by_node, *[each for own in tenants for each in (own.by_node, own.by_fingerprint)]):
            for found in leading.values():
                assert not isinstance(found, list) or len(found) > 1
                assert all(known in sessions for known in (found if isinstance(found, list) else [found]))


@dataclass
class _Shown:
    """One message, to ask for its names."""

    items: list[Item]
