"""Random logs of several sessions and tenants that share beginnings: one is erased, and all others are as they were."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.engine.runtime import SystemClock
from proxy.model.errors import Erased
from proxy.model.lineage import NodeRow
from proxy.model.log import Record
from proxy.model.manifest import (
    Blob,
    BlobPiece,
    ChainPiece,
    Manifest,
    chain_slices,
    compute_digest,
    compute_root_link,
    encode_recipe,
)
from proxy.store.erasing.eraser import SqliteEraser
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.archive import SqliteArchive, open_sqlite
from tests.store.samples import (
    OTHER_TENANT,
    TENANT,
    make_chain,
    make_condensed,
    make_epoch,
    make_held,
    make_key,
    make_leaf,
    make_opening,
    make_original,
    make_outcome,
    make_reading,
    make_recalled,
    make_remembered,
    make_round,
    make_step,
    make_trailer,
)

TENANTS = (TENANT, OTHER_TENANT)


@dataclass
class Tokens:
    """Texts that occur nowhere else, with the sessions that use each."""

    random: random.Random
    users: dict[bytes, set[str]] = field(default_factory=dict)

    def make(self, session: str, *, most: int = 90) -> bytes:
        token = b"secret-%016x" % self.random.getrandbits(64)
        self.users[token] = {session}
        filling = b"%x" % self.random.getrandbits(4 * self.random.choice((8, most, 40 * most, 200 * most)))
        return b'{"role":"user","content":"%b %b"}' % (token, filling)

    def share(self, session: str, contents: Sequence[bytes]) -> None:
        for content in contents:
            for token, users in self.users.items():
                if token in content:
                    users.add(session)


@dataclass
class Written:
    """A session as it was written."""

    key: object
    messages: list[list[bytes]] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)


class LogMaker:
    """Writes sessions that begin like others, branch, and have every kind of record."""

    def __init__(self, archive: SqliteArchive, seed: int) -> None:
        self.archive = archive
        self.random = random.Random(seed)
        self.tokens = Tokens(self.random)
        self.sessions: dict[str, Written] = {}
        self._histories: dict[bytes, list[list[bytes]]] = {tenant: [] for tenant in TENANTS}
        self._system: dict[bytes, list[bytes]] = {tenant: [] for tenant in TENANTS}
        self._count = 0

    def add_session(self, name: str, calls: int) -> None:
        draw, tenant = self.random, self.random.choice(TENANTS)
        key = make_key(name, tenant)
        written = self.sessions[key.id] = Written(key)
        begun = draw.choice(self._histories[tenant]) if self._histories[tenant] and draw.random() < 0.7 else []
        history = list(begun[: draw.randrange(len(begun) + 1)])
        for _ in range(calls):
            if history and draw.random() < 0.2:
                del history[draw.randrange(len(history)) :]  # a branch
            history += [self.tokens.make(key.id) for _ in range(draw.randrange(1, 4))]
            if len(history) > 3 and draw.random() < 0.2:
                history.append(history[1])  # the same content at another place
            self.tokens.share(key.id, history)
            self._add_call(key, written, list(history))
        self._histories[tenant].append(history)

    def _add_call(self, key, written: Written, history: list[bytes]) -> None:  # type: ignore[no-untyped-def]
        draw, tokens, name = self.random, self.tokens, f"e{self._count:04}"
        self._count += 1
        written.calls.append(name)
        written.messages.append(history)
        body = self._make_body(key, history)
        nodes: tuple[NodeRow, ...] = make_chain(*[each.decode() for each in history])
        mine = [tokens.make(key.id, most=20) for _ in range(8)]
        agent = tokens.make(key.id, most=20).replace(b"\n", b"")[26:48] if draw.random() < 0.5 else b"client"
        if b"secret-" not in agent:
            agent = b"client"
        headers = ((b"content-type", b"application/json"), (b"user-agent", agent))
        sent = self._make_body(key, [mine[0], *history[-2:]]) if draw.random() < 0.5 else None
        records: list[Record] = [
            make_opening(name, body, key=key, headers=headers),
            make_round(name, body=sent),
            make_step(name, nodes),
            make_outcome(name, received=mine[1]),
            make_reading(
                name, answer=mine[2] if draw.random() < 0.5 else mine[1], error=draw.choice(("", mine[3].decode()))
            ),
        ]
        if draw.random() < 0.3:
            records.append(make_trailer(0, mine[4], name))
        if draw.random() < 0.3:
            records.append(make_held(name, self._make_body(key, [mine[5]])))
        if draw.random() < 0.4:
            original = make_original(f"r{name}", history[0], history[-1])
            epoch = make_epoch(f"p{name}", [mine[6], history[-1]], [original], session=key.id, edits=mine[7])
            records.append(epoch)
            records.append(make_recalled(name, f"p{name}", session=key.id))
        if draw.random() < 0.4:
            leaves = [
                make_leaf(f"l{name}{i}", [history[i]], i, session=key.id, text=tokens.make(key.id, most=20).decode())
                for i in range(min(2, len(history)))
            ]
            records += [*leaves, make_condensed(f"c{name}", leaves)]
        if draw.random() < 0.4:
            records.append(make_remembered(session=key.id, summary=tokens.make(key.id, most=20).decode()))
        self.archive.append(*records)

    def _make_body(self, key, history: list[bytes]) -> Manifest:  # type: ignore[no-untyped-def]
        """A body with a chain and a member of its own, or one that others of the tenant have, too."""
        known = self._system[key.tenant]
        system = self.random.choice(known) if known and self.random.random() < 0.5 else self.tokens.make(key.id)
        known.append(system)
        self.tokens.share(key.id, [system])
        slices = tuple(chain_slices(compute_root_link(key.tenant), [(b",", each) for each in history]))
        recipe = encode_recipe((b"{", BlobPiece(compute_digest(system)), ChainPiece(slices[-1].link), b"}"))
        size = 2 + len(system) + sum(1 + len(each) for each in history)
        return Manifest(recipe, slices, (Blob(compute_digest(system), system),), size)


async def read_all(archive: SqliteArchive, calls: Sequence[str], session: str) -> list[object]:
    """Everything that can be read of a session."""
    found: list[object] = []
    for name in calls:
        found += [
            await archive.load_request(name),
            await archive.load_sent(name, 0),
            await archive.load_received(name, 0),
        ]
    found += await archive.list_exchanges(session)
    found += [await archive.load_context(session), await archive.load_memory(session)]
    found += await archive.list_epochs(session)
    found += await archive.list_summaries(session)
    for epoch in await archive.list_epochs(session):
        found += [await archive.load_original(original.id) for original in epoch.originals]
    return found


def find_secrets(folder: Path, secrets: Sequence[bytes]) -> list[bytes]:
    """The secrets that a file in a directory has."""
    content = b"".join(path.read_bytes() for path in folder.iterdir() if path.is_file())
    return [secret for secret in secrets if secret in content]


async def erase_one(folder: Path, seed: int, sessions: int, calls: int, *, is_slow: bool) -> None:
    archive = open_sqlite(StorePolicy(folder / "log.db"), asyncio.get_running_loop())
    eraser = SqliteEraser(archive, SystemClock())
    try:
        maker = LogMaker(archive, seed)
        for i in range(sessions):
            maker.add_session(f"n{i}", 1 + maker.random.randrange(calls))
        gone = maker.random.choice(list(maker.sessions))
        others = {key: written for key, written in maker.sessions.items() if key != gone}
        before = {key: await read_all(archive, written.calls, key) for key, written in others.items()}
        own = [token for token, users in maker.tokens.users.items() if users == {gone}]
        assert (await archive.verify()).faults == ()
        told = await eraser.measure(gone)
        if is_slow:
            assert await eraser.erase_slowly([gone], "age") == told.bytes
            assert await eraser.overwrite()
        else:
            done = await eraser.erase(gone)
            assert (done.bytes, done.contents, done.is_overwritten) == (told.bytes, told.contents, True)
        assert find_secrets(folder, own) == []
        assert {key: await read_all(archive, written.calls, key) for key, written in others.items()} == before
        assert (await archive.verify()).faults == ()
        for name in maker.sessions[gone].calls:
            for loading in (archive.load_request(name), archive.load_received(name, 0), archive.load_sent(name, 0)):
                try:
                    await loading
                except Erased as error:
                    assert error.session == gone
                else:
                    raise AssertionError(f"{name} can be read")
        assert find_secrets(folder, own) == []
    finally:
        await archive.close()
        eraser.close()
    assert find_secrets(folder, own) == []


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(1, 8), st.booleans())
def test_what_is_erased_is_nowhere_and_all_else_is_as_it_was(
    seed: int, sessions: int, calls: int, is_slow: bool
) -> None:
    with TemporaryDirectory() as folder:
        asyncio.run(erase_one(Path(folder), seed, sessions, calls, is_slow=is_slow))
