"""What is sent upstream, kept for the log so that it grows only with what is new (`model/manifest`).

Rule: memory only, as with the bodies of clients (`engine/histories`): forgetting costs bytes in the log, no more.
"""

from proxy.engine.histories import Histories, split_known, take_stock
from proxy.engine.managing.subject import Subject
from proxy.model.manifest import Manifest, keep_whole


class SentBodies:
    """Manifests of rewritten bodies, each leaning on the one before it in its session and view."""

    def __init__(self, cache_bytes: int) -> None:
        self._histories = Histories(cache_bytes)

    def keep(self, subject: Subject, content: bytes) -> Manifest:
        """The manifest of a body."""
        key = (subject.session.tenant, subject.wire, f"{subject.session.id}\0{subject.model}")
        known, shared = self._histories.find(key, content)
        split = split_known(content, subject.items_key, known, shared)
        if split is None:
            return keep_whole(content)
        manifest, history = take_stock(subject.session.tenant, split, subject.chain, known, shared)
        if history is not None:
            self._histories.remember(key, history, known)
        return manifest

    def clear(self) -> None:
        """Forget everything: the log has lost a record that later manifests would lean on."""
        self._histories.clear()
