"""What goes upstream for a request, and what the record and the client are told of it. Rule: values only."""

from collections.abc import Callable

import msgspec

from proxy.model.epoch import Epoch, Pin
from proxy.model.exchange import Headers
from proxy.model.manifest import Manifest
from proxy.model.plan import Plan


class Sending(msgspec.Struct, frozen=True, gc=False):
    """The body of a round. `manifest` is None where it is the client's own, `plan` where nothing was to be decided.

    `labels` are response headers, `ceiling` is what the request asked for. `is_managed`: where it is refused as too
    long, something shorter may be sent in its place; `is_guarded`: that may well be, so that the head of the answer
    waits for what comes (BEHAVIOUR B20a). `pin` is of a message that is pinned with this call. Where the body depends
    on neither, `keep` gives the manifest, and `complete` a plan and labels with tokens. Each is called once and does
    not fail: `keep` when the body is on its way, `complete` when nobody waits, behind the answer at the latest.
    """

    body: bytes
    manifest: Manifest | None = None
    plan: Plan | None = None
    labels: Headers = ()
    is_managed: bool = False
    is_guarded: bool = False
    ceiling: int | None = None
    pin: Pin | None = None
    keep: Callable[[], Manifest | None] | None = None
    complete: "Callable[[], Sending] | None" = None

    def add(self, labels: Headers, pin: Pin | None = None) -> "Sending":
        """The same with more to be told, and with a pin."""
        return msgspec.structs.replace(self, labels=(*self.labels, *labels), pin=pin) if labels or pin else self


def list_labels(plan: Plan, epoch: Epoch | None, *, is_opened: bool) -> Headers:
    """What the client is told: the epoch that was applied, tokens where they were counted, and what was compacted."""
    labels: list[tuple[bytes, bytes]] = []
    if epoch is not None:
        labels.append((b"x-palimpsest-epoch", epoch.id.encode()))
    if plan.tokens_client is not None and plan.tokens_upstream is not None:
        told = f"client={plan.tokens_client}, upstream={plan.tokens_upstream}"
        labels.append((b"x-palimpsest-tokens", told.encode()))
    if epoch is not None and is_opened:
        told = f"compacted {epoch.tokens_before}->{epoch.tokens_after}"
        labels.append((b"x-palimpsest-notice", told.encode()))
    return tuple(labels)
