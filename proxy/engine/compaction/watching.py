"""When the worker is called: behind a call that was sent above the soft mark and accepted (BEHAVIOUR B27, B30).

Rule: nothing here waits, and nothing is decided twice; of calls under way no more is kept than one each.
"""

import ipaddress
from collections import OrderedDict
from collections.abc import Mapping

from proxy.context.epoch_decision import Decision
from proxy.engine.compaction.bounded import keep_newest
from proxy.engine.compaction.keys import CallCredential, Keys, Later
from proxy.engine.compaction.policy import CompactionPolicy
from proxy.engine.compaction.spending import Purse
from proxy.engine.compaction.work import Latest
from proxy.engine.compaction.worker import Worker
from proxy.engine.context.accounting import find_matching
from proxy.engine.context.fallback import Footing
from proxy.engine.context.request_state import RequestState
from proxy.engine.models import Models
from proxy.engine.policy import Provider
from proxy.engine.request import ManagedRequest
from proxy.model.events import ExchangeRecorded
from proxy.model.exchange import Usage

_MOST_CALLS = 1024
_IDLE_SECONDS = 5.0
_ACCEPTED = range(200, 300)
_ANY = Provider()
# What machines of one's own network are called, where it is no address: `ollama`, `host.docker.internal`.
_NEAR = (".localhost", ".local", ".internal", ".lan")


class Watch:
    """Watches calls. `later` calls something after so many seconds; `providers` are by the upstream's name.

    `models` knows which of an upstream's have a price: a server of one's own without one does one thing at a time.
    """

    def __init__(
        self,
        policy: CompactionPolicy,
        worker: Worker,
        keys: Keys,
        purse: Purse,
        providers: Mapping[str, Provider],
        *,
        later: Later,
        models: Models,
    ) -> None:
        self._policy = policy
        self._purse = purse
        self._worker = worker
        self._keys = keys
        self._providers = providers
        self._near = {name for name, provider in providers.items() if is_near(provider.host)}
        self._later = later
        self._models = models
        self._asked: OrderedDict[str, tuple[bytes, CallCredential]] = OrderedDict()
        self._sent: OrderedDict[str, Latest] = OrderedDict()
        self._newest: OrderedDict[str, str] = OrderedDict()

    @property
    def worker(self) -> Worker:
        """Who makes the summaries; others that want some ask there."""
        return self._worker

    def note_arrival(self, subject: ManagedRequest) -> None:
        """A call has come, managed or not."""
        upstream = subject.upstream.name
        if self._is_local(upstream, subject.model):
            keep_newest(self._newest, upstream, subject.exchange, _MOST_CALLS)
            self._worker.stop_at(upstream)

    def note_asked(self, subject: ManagedRequest) -> None:
        """A call is managed."""
        key = CallCredential(subject.upstream, subject.target, subject.headers)
        keep_newest(self._asked, subject.exchange, (subject.tip, key), _MOST_CALLS)

    def note_sent(self, case: RequestState, footing: Footing, decision: Decision) -> None:
        """What was sent for a call, and how it stood."""
        read = case.tariff.expect_read(find_matching(case, footing))
        expected = Usage(case.tell(footing.tokens), 0, case.tell(read))
        self._purse.note_estimate(case.subject.exchange, expected)
        may_open = not (case.is_bound or (case.epoch is not None and case.epoch.why == "refused"))
        if self._policy.auto and decision.pressure != "none" and not case.subject.is_side and may_open:
            opened = footing.epoch if footing.epoch is not case.epoch else None
            interval = None if case.kept is not None else case.account.find_idle(case.now)
            latest = Latest(case, footing.body, opened, interval)
            keep_newest(self._sent, case.subject.exchange, latest, _MOST_CALLS)

    async def wait(self, subject: ManagedRequest) -> None:
        """Return when nothing is being made for a call's branch, or when it has waited for long enough."""
        await self._worker.wait(subject)

    def note_exchange(self, event: ExchangeRecorded) -> None:
        """A subscriber of the bus: a call has ended, or a round of it after which another body is sent."""
        if not event.is_final:
            self._sent.pop(event.exchange, None)
            return
        asked, latest = self._asked.pop(event.exchange, None), self._sent.pop(event.exchange, None)
        if asked is None or event.status not in _ACCEPTED:
            return
        self._keys.note(event.session, *asked)
        if latest is None or event.completeness != "complete":
            return
        if not self._is_local(event.upstream, latest.case.subject.model):
            self._worker.start(latest)
        elif self._policy.model:  # a server that does one thing at a time thinks for nobody else of its own accord
            self._later(_IDLE_SECONDS, lambda: self._start_if_idle(event, latest))

    def _start_if_idle(self, event: ExchangeRecorded, latest: Latest) -> None:
        if self._newest.get(event.upstream) == event.exchange:
            self._worker.start(latest)

    def _is_local(self, upstream: str, model: str) -> bool:
        """Whether one engine serves one request at a time there: declared, or to be expected (BEHAVIOUR B30)."""
        provider = self._providers.get(upstream, _ANY)
        if provider.cache is not None or upstream not in self._near:
            return provider.cache == "local"
        return not self._models.card(upstream, model).prices_source


def is_near(host: str) -> bool:
    """Whether a host is this machine, or one of its own network."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return bool(host) and ("." not in host or host.endswith(_NEAR))
    return address.is_private or address.is_loopback or address.is_link_local
