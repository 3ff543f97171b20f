"""What a record refers to, found. Rule: what is not in the log is Dangling, and says what it is that is missing."""

from proxy.store.sqlite.known import Exchange, Reference, RowIdCache, Session, Tenant
from proxy.store.sqlite.problem import Dangling
from proxy.store.storable import fit_text


def expect_session(known: RowIdCache, name: str) -> tuple[Session, Reference]:
    """The session with this id, and how a row refers to it. Raises Dangling."""
    key = fit_text(name)
    session = known.find_session(key)
    if session is None:
        raise Dangling("its session is not in the log")
    return session, (session.id, key)


def expect_exchange(known: RowIdCache, name: str) -> Exchange:
    """The exchange with this id. Raises Dangling."""
    exchange = known.find_exchange(fit_text(name))
    if exchange is None:
        raise Dangling("its exchange is not in the log")
    return exchange


def expect_message(known: RowIdCache, tenant: Tenant, digest: bytes) -> int:
    """The number of a message's content. Raises Dangling."""
    blob = known.find_blob(tenant, digest)
    if blob is None:
        raise Dangling("a message that it refers to is not in the log")
    return blob
