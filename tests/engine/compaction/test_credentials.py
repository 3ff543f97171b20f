"""CredentialCache of sessions: the newest, not for long, and never told."""

import sys
from collections.abc import Callable

from proxy.engine.compaction.credentials import CallCredential, CredentialCache
from proxy.model.exchange import SessionKey
from tests.support.engine import FixedClock, ScriptedUpstream

TIP = b"t" * 16


def make_credential(secret: bytes) -> CallCredential:
    return CallCredential(ScriptedUpstream(), b"/v1/x", ((b"authorization", secret),))


class World:
    """CredentialCache, a clock, and what is to be done later."""

    def __init__(self) -> None:
        self.clock = FixedClock()
        self.timers: list[tuple[float, Callable[[], object]]] = []
        self.credentials = CredentialCache(self.clock, lambda seconds, work: self.timers.append((seconds, work)))

    def note(self, session: str, secret: bytes = b"sk-1") -> CallCredential:
        key = make_credential(secret)
        self.credentials.store(session, TIP, key)
        return key


def test_the_newest_is_used() -> None:
    world = World()
    world.note("s")
    newest = world.note("s", b"sk-2")
    assert world.credentials.find("s", TIP) == newest
    assert world.credentials.find("other", TIP) is None


def test_a_branch_is_not_asked_with_the_key_of_another() -> None:
    world = World()
    first = world.note("s")
    world.credentials.store("s", b"u" * 16, make_credential(b"sk-2"))
    assert world.credentials.find("s", TIP) == first
    assert world.credentials.find("s", b"v" * 16) is None


def test_the_newest_of_a_session_is_found_by_the_session() -> None:
    world = World()
    first, second = (SessionKey(name, b"t" * 16, "main", name) for name in ("s", "r"))
    assert world.credentials.find_newest("s") is None
    world.credentials.store("s", TIP, make_credential(b"sk-1"), first)
    world.credentials.store("r", TIP, make_credential(b"sk-2"), second)
    newest = make_credential(b"sk-3")
    world.credentials.store("s", b"u" * 16, newest, first)
    assert world.credentials.find_newest("s") == (first, newest)
    assert world.credentials.list_sessions() == [first, second]
    world.clock.advance(1800)
    assert world.credentials.find_newest("s") is None


def test_after_half_an_hour_there_is_none() -> None:
    world = World()
    key = world.note("s")
    world.clock.advance(1799)
    assert world.credentials.find("s", TIP) == key
    world.clock.advance(1)
    assert world.credentials.find("s", TIP) is None


def test_it_is_not_even_in_memory_then() -> None:
    world = World()
    world.note("old")
    world.clock.advance(600)
    world.note("new")
    [(seconds, sweep)] = world.timers
    assert seconds == 1800
    world.clock.advance(1200)
    sweep()
    assert len(world.credentials) == 1
    [_, (seconds, sweep)] = world.timers
    assert seconds == 600
    world.clock.advance(600)
    sweep()
    assert len(world.credentials) == 0
    assert len(world.timers) == 2
    world.note("again")
    assert len(world.timers) == 3


def test_a_session_that_goes_on_keeps_its_key() -> None:
    world = World()
    world.note("s")
    world.clock.advance(1799)
    key = world.note("s")
    world.clock.advance(1)
    world.timers[0][1]()
    assert world.credentials.find("s", TIP) == key


def test_it_says_nothing_of_itself() -> None:
    assert "sk-1" not in repr(World().note("s"))


def test_what_is_kept_has_no_object_of_the_request() -> None:
    """Some of a request in every session would keep the memory of all that was made for these requests."""
    world, name, value = World(), bytes(bytearray(b"authorization")), bytes(bytearray(b"sk-1"))
    before = sys.getrefcount(name), sys.getrefcount(value)
    world.credentials.store("s", TIP, CallCredential(ScriptedUpstream(), b"/v1/x", ((name, value),)))
    assert (sys.getrefcount(name), sys.getrefcount(value)) == before
    assert "sk-1" not in repr(vars(world.credentials))


def test_only_so_many_are_kept() -> None:
    world = World()
    for number in range(4097):
        world.note(f"s{number}")
    assert world.credentials.find("s0", TIP) is None
    assert world.credentials.find("s1", TIP) is not None
