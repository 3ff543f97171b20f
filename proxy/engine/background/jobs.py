"""Work behind calls: for which session it is, what ends it, and which process may do it.

Summaries, memory, vectors and sentences are all made in jobs. A job at a server that serves one request at a time ends
when a client's call comes to it. What is left of a job when its session is erased, or the engine closes, is ended here.
"""

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from proxy.engine.models import Models
from proxy.engine.policy import Provider
from proxy.engine.ports import Leases
from proxy.engine.runtime import EngineBus, attempt
from proxy.model.card import Card
from proxy.model.events import ExchangeRecorded
from proxy.model.lru import LruCache

SUMMARY = "summary"
"""The name of jobs that make summaries of a branch, or memory of its turns."""

_MOST_CALLS = 1024
# How long the jobs of a session that is to be erased may go on before they are cancelled.
_END_SECONDS = 0.5
# Suffixes of host names in a local network (`host.docker.internal`). Names without a dot (`ollama`) are local, too.
_NEAR = (".localhost", ".local", ".internal", ".lan")

CallLater = Callable[[float, Callable[[], object]], object]
"""Calls something after so many seconds, as an event loop's `call_later`."""

SpanKey = tuple[int, bytes]
"""The first place of a span of messages, and its last node."""


@dataclass(eq=False)
class Job:
    """Work for a session in a task of its own. Calls of clients to `upstream` cancel it, unless that is empty.

    `nodes` are those of the branch that it works on, and `claims` the spans of it that it has begun to summarise.
    `lease` is the name of the lease that it holds, if any; `is_refused` says that another process has it.
    """

    session: str
    name: str
    upstream: str
    lease: str
    nodes: Sequence[bytes]
    claims: set[SpanKey] = field(default_factory=set)
    is_refused: bool = False
    task: "asyncio.Task[None]" = field(init=False)

    def begin(self, task: "asyncio.Task[None]") -> None:
        """Note the task in which it is done."""
        self.task = task


@dataclass(eq=False)
class BackgroundJobs:
    """The jobs of one engine. `owner` names it among those that share a log, whose leases are held `lease_seconds`.

    A local server without prices is assumed to serve one request at a time.
    """

    bus: EngineBus
    models: Models
    call_later: CallLater
    leases: Leases
    owner: str
    lease_seconds: float

    def __post_init__(self) -> None:
        self._jobs: list[Job] = []
        self._newest: dict[str, str] = {}  # the newest call of each local server
        self._open = LruCache[str, bool](_MOST_CALLS)  # calls of local servers that have not ended
        providers = self.models.providers
        self._local = {name for name, each in providers.items() if is_local_server(each, Card())}  # if it has no price
        self._is_closed = False
        if self._local:
            self.bus.subscribe(ExchangeRecorded, self.note_exchange)

    def __len__(self) -> int:
        return len(self._jobs)

    def start(
        self,
        session: str,
        name: str,
        work: Callable[[], Awaitable[object]],
        *,
        upstream: str = "",
        lease: str = "",
        nodes: Sequence[bytes] = (),
        note: Callable[[Exception], None] | None = None,
    ) -> Job | None:
        """Start work, under a lease if one is named. Return None if this is closed.

        What it raises goes to `note`, else to the log.
        """
        if self._is_closed:
            return None
        job = Job(session, name, upstream, lease, nodes)
        run = self._run(job, work)
        job.begin(self.bus.tasks.spawn(run if note is None else attempt(run, note)))
        self._jobs.append(job)
        job.task.add_done_callback(lambda _: self._jobs.remove(job))
        return job

    def later(self, seconds: float, work: Callable[[], object]) -> None:
        """Call something after so many seconds, unless this is closed by then."""
        self.call_later(seconds, lambda: None if self._is_closed else work())

    def list_jobs(self, session: str, name: str = "") -> list[Job]:
        """Return the jobs of a session, or those of one name."""
        return [job for job in self._jobs if job.session == session and name in ("", job.name)]

    def list_at(self, upstream: str) -> list[Job]:
        """Return the jobs that calls to an upstream end."""
        return [job for job in self._jobs if job.upstream == upstream]

    async def keeps_lease(self, job: Job) -> bool:
        """Renew the lease of a job. Return whether it is still held."""
        return await self.leases.renew(job.lease, self.owner, self.lease_seconds)

    async def end(self, session: str) -> None:
        """End the jobs of a session, whose content is to be erased: what they write would come after that."""
        if tasks := [job.task for job in self.list_jobs(session)]:
            _, left = await asyncio.wait(tasks, timeout=_END_SECONDS)
            for task in left:
                task.cancel()
            if left:
                await asyncio.wait(left)

    def close(self) -> None:
        """Start nothing any more. Jobs that run are tasks of the engine's, which ends them."""
        self._is_closed = True

    def note_arrival(self, upstream: str, exchange: str) -> None:
        """Record that a client's call has come to a server that serves one at a time. It ends the jobs there."""
        self._newest[upstream] = exchange
        self._open.put(exchange, True)
        for job in self.list_at(upstream):
            job.task.cancel()

    def note_exchange(self, event: ExchangeRecorded) -> None:
        """Record that a call has ended. Subscribed to the bus."""
        if event.is_final:
            self._open.pop(event.exchange)

    def is_newest(self, upstream: str, exchange: str) -> bool:
        """Return whether no call has come to a local server since this one."""
        return self._newest.get(upstream) == exchange

    def has_call(self, upstream: str, model: str) -> bool:
        """Return whether an upstream serves one request at a time, and has a client's call now."""
        return self.is_local(upstream, model) and self._newest.get(upstream, "") in self._open

    def is_local(self, upstream: str, model: str) -> bool:
        """Return whether an upstream serves one request at a time, as `is_local_server` says."""
        is_local = upstream in self._local
        return is_local and is_local_server(self.models.providers[upstream], self.models.card(upstream, model))

    async def _run(self, job: Job, work: Callable[[], Awaitable[object]]) -> None:
        if job.lease and not await self.leases.acquire(job.lease, self.owner, self.lease_seconds):
            job.is_refused = True
            return
        try:
            await work()
        finally:
            if job.lease:
                await self.leases.release(job.lease, self.owner)


def is_local_server(provider: Provider, card: Card) -> bool:
    """Return whether an upstream serves one request at a time: as declared, else if it is near and has no price."""
    if provider.cache is not None:
        return provider.cache == "local"
    return is_near(provider.host) and not card.prices_source


def is_near(host: str) -> bool:
    """Return whether a host is this machine, or in its local network."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return bool(host) and ("." not in host or host.endswith(_NEAR))
    return address.is_private or address.is_loopback or address.is_link_local
