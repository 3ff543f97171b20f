"""Erasing one session: all or nothing, whatever happens, and what comes afterwards."""

import asyncio
import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from proxy.engine.erasing.retention import Retention
from proxy.engine.erasing.service import SessionErasing
from proxy.engine.policy import StoreSettings
from proxy.engine.runtime import SystemClock
from proxy.model.erasing import SessionErasure
from proxy.model.errors import Conflict, Erased, NotFound, StoreUnavailable
from proxy.model.lineage import Adoption
from proxy.store.erasing.eraser import SqliteEraser
from proxy.store.erasing.gaps import PageGaps
from proxy.store.memory_files import write_memory
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.archive import SqliteArchive, open_sqlite
from tests.store.samples import (
    OTHER_TENANT,
    chain_body,
    join_body,
    make_chain,
    make_epoch,
    make_key,
    make_opening,
    make_original,
    make_outcome,
    make_pin,
    make_reading,
    make_round,
    make_step,
    make_turns,
)
from tests.store.sqlite.disk import FULL, Disk

SECRET = b"the-secret-of-a-session"
TURNS = [*make_turns(3), (b",", b'{"role":"user","content":"%b"}' % SECRET)]
OWN, OTHER = make_key("own"), make_key("other")


class Copies(Disk):
    """A disk that copies the files of a log before each statement of the writer, while that is wanted.

    It calls `before` as well.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.copies = 0
        self.is_on = False
        self.before: Callable[[], object] = int

    def _visit(self, sql: str) -> None:
        super()._visit(sql)
        self.before()
        if self.is_on:
            into = self.folder.with_name(f"copy{self.copies}")
            into.mkdir()
            for path in self.folder.glob("log.db*"):
                if not path.name.endswith(("-shm", ".lock")):
                    shutil.copy(path, into)
            self.copies += 1


@dataclass
class World:
    """A log with two sessions: `e1` and `e2` of one, and `e3` of another that has their first messages, too."""

    archive: SqliteArchive
    eraser: SqliteEraser
    disk: Copies
    path: Path

    async def erase(self) -> object:
        return await self.eraser.erase(OWN.id)


def add_call(archive: SqliteArchive, name: str, key: object, turns: list[tuple[bytes, bytes]]) -> None:
    nodes = make_chain(*[content.decode() for _, content in turns])
    archive.append(
        make_opening(name, chain_body(turns), key=key),  # type: ignore[arg-type]
        make_round(name),
        make_step(name, nodes),
        make_outcome(name, received=b"answer to " + name.encode()),
        make_reading(name, answer=b"answer to " + name.encode()),
    )


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    folder = tmp_path / "data"
    disk = Copies(folder)
    policy = StorePolicy(folder / "log.db", close_ms=2000)
    archive = open_sqlite(policy, asyncio.get_running_loop(), disk.connect)
    eraser = SqliteEraser(archive, SystemClock())
    add_call(archive, "e1", OWN, TURNS[:3])
    add_call(archive, "e2", OWN, TURNS)
    add_call(archive, "e3", OTHER, TURNS[:3])
    await archive.list_exchanges(OWN.id)
    yield World(archive, eraser, disk, policy.path)
    await archive.close()
    eraser.close()


async def read_state(archive: SqliteArchive) -> str:
    """Whether all of the session is there, or nothing; the other one always is."""
    assert (await archive.verify()).faults == ()
    assert await archive.load_request("e3") == join_body(TURNS[:3])
    found = []
    for loading in (archive.load_request("e1"), archive.load_request("e2"), archive.load_received("e2", 0)):
        try:
            found.append(await loading)
        except Erased:
            found.append(b"")
    assert found in ([join_body(TURNS[:3]), join_body(TURNS), b"answer to e2"], [b"", b"", b""])
    return "erased" if found == [b"", b"", b""] else "whole"


async def test_a_kill_at_any_point_leaves_all_or_nothing(world: World, tmp_path: Path) -> None:
    world.disk.is_on = True
    await world.erase()
    world.disk.is_on = False
    states = []
    for n in range(world.disk.copies):
        copy = StorePolicy(tmp_path / f"copy{n}" / "log.db")
        archive = open_sqlite(copy, asyncio.get_running_loop())
        eraser = SqliteEraser(archive, SystemClock())
        states.append(await read_state(archive))
        assert await eraser.overwrite()
        if states[-1] == "erased":
            assert not any(SECRET in path.read_bytes() for path in copy.path.parent.iterdir())
        await archive.close()
        eraser.close()
    assert states == sorted(states, reverse=True) and set(states) == {"whole", "erased"}
    assert len(states) > 20


@pytest.fixture
async def steps(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Erase the session to the end. Return how many copies were made of all files: before each change to one of them.

    Each is what a kill -9 would leave then.
    """
    mirror = world.path.parent / "mirror"
    write_memory(mirror, OWN.id, {"a.jsonl": SECRET, "b.jsonl": b"more of " + SECRET})
    write_memory(mirror, OTHER.id, {"a.jsonl": b"another's"})
    count = 0

    def copy() -> None:
        nonlocal count
        shutil.copytree(world.path.parent, tmp_path / f"step{count}", ignore=shutil.ignore_patterns("*-shm", "*.lock"))
        count += 1

    def copy_before(change: Any) -> Any:
        def changing(*arguments: Any, **named: Any) -> Any:
            copy()
            return change(*arguments, **named)

        return changing

    for name in ("unlink", "rmdir"):
        monkeypatch.setattr(Path, name, copy_before(getattr(Path, name)))
    monkeypatch.setattr(PageGaps, "overwrite", copy_before(PageGaps.overwrite))
    world.disk.before = copy
    eraser = SqliteEraser(world.archive, SystemClock(), mirror=str(mirror))
    assert (await SessionErasing(log=world.archive, eraser=eraser).erase(OWN.id)).is_done
    copy()
    monkeypatch.undo()
    world.disk.before = int
    await world.archive.close()
    eraser.close()
    return count


def put_back(world: World, copy: Path) -> None:
    """Have the files be as they were in a copy: they know where they are."""
    shutil.rmtree(world.path.parent)
    shutil.copytree(copy, world.path.parent)


def find_rest(folder: Path) -> Iterator[str]:
    """The files that have content of the session, or are of its memory."""
    for path in folder.rglob("*"):
        if OWN.id in path.name or (path.is_file() and SECRET in path.read_bytes()):
            yield path.relative_to(folder).as_posix()


@pytest.mark.parametrize("is_second", [False, True], ids=["the next start", "a second erasure"])
async def test_a_kill_at_any_step_leaves_nothing_that_is_not_removed_afterwards(
    world: World, tmp_path: Path, steps: int, is_second: bool
) -> None:
    seen = []
    for n in range(steps):
        put_back(world, tmp_path / f"step{n}")
        archive = open_sqlite(StorePolicy(world.path), asyncio.get_running_loop())
        mirror = str(world.path.parent / "mirror") if is_second else ""  # it may not be mirrored any more
        eraser = SqliteEraser(archive, SystemClock(), mirror=mirror)
        erasing = SessionErasing(log=archive, eraser=eraser)
        state = await read_state(archive)
        left = list(find_rest(world.path.parent))
        if is_second:
            try:
                erased: SessionErasure | None = await erasing.erase(OWN.id)
            except Erased:
                erased = None
            assert (erased is not None and erased.is_done) or not left
        else:
            await Retention(policy=StoreSettings(), erasing=erasing, clock=SystemClock(), sleep=not_at_all).run()
        await archive.close()
        eraser.close()
        seen.append((state, bool(left)))
        rest = list(find_rest(world.path.parent))
        assert rest == [] if state == "erased" or is_second else len(rest) == 4
        assert (world.path.parent / "mirror" / "agents" / OTHER.id / "a.jsonl").exists()
    assert {("whole", True), ("erased", True), ("erased", False)} <= set(seen)
    assert seen.count(("erased", True)) > 5


async def not_at_all(seconds: float) -> None:
    """Do not sleep."""


@pytest.mark.parametrize("word", ["DELETE FROM payload", "INSERT INTO erasure", "\n    INSERT INTO erased", "COMMIT"])
async def test_a_failing_disk_leaves_the_session_whole(world: World, word: str) -> None:
    world.disk.fail(word, FULL)
    with pytest.raises(StoreUnavailable, match="full"):
        await world.erase()
    assert await read_state(world.archive) == "whole"
    assert sqlite3.connect(world.path).execute("SELECT count(*) FROM permit").fetchone() == (0,)
    add_call(world.archive, "e4", OTHER, TURNS[:2])
    assert await world.archive.load_request("e4") == join_body(TURNS[:2])
    await world.erase()
    assert await read_state(world.archive) == "erased"


async def test_a_call_that_comes_meanwhile_keeps_the_session(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    run_task, calls = world.archive.run_task, list[object]()

    async def come_first(task: object) -> object:
        calls.append(task)
        if len(calls) == 1:  # only waits for what was recorded before
            return await run_task(task)  # type: ignore[arg-type]
        add_call(world.archive, "e5", OWN, TURNS)
        monkeypatch.setattr(world.archive, "run_task", run_task)
        return await run_task(task)  # type: ignore[arg-type]

    monkeypatch.setattr(world.archive, "run_task", come_first)
    with pytest.raises(Conflict, match="nothing of it was erased"):
        await world.erase()
    assert await read_state(world.archive) == "whole"


async def test_what_another_session_begins_to_share_meanwhile_stays(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_task, calls = world.archive.run_task, list[object]()

    async def come_first(task: object) -> object:
        calls.append(task)
        if len(calls) == 1:  # only waits for what was recorded before
            return await run_task(task)  # type: ignore[arg-type]
        add_call(world.archive, "e5", OTHER, TURNS)
        monkeypatch.setattr(world.archive, "run_task", run_task)
        return await run_task(task)  # type: ignore[arg-type]

    monkeypatch.setattr(world.archive, "run_task", come_first)
    done = await world.eraser.erase(OWN.id)
    assert await world.archive.load_request("e5") == join_body(TURNS)
    assert await read_state(world.archive) == "erased"
    assert done.kept_bytes > (await world.eraser.measure(OTHER.id)).kept_bytes


async def test_what_comes_again_is_stored_again(world: World) -> None:
    links = [piece.link for piece in chain_body(TURNS).slices]
    before = world.archive.health.generation
    await world.erase()
    assert world.archive.health.generation > before
    assert await world.archive.count_links(links) == 3  # a body that is sent now has the rest
    add_call(world.archive, "e6", OWN, TURNS)
    assert await world.archive.load_request("e6") == join_body(TURNS)
    assert await world.archive.count_links(links) == 4
    assert await read_state(world.archive) == "erased"
    assert [row.n for row in await world.archive.list_exchanges(OWN.id)] == [1, 2, 3]
    again = await world.eraser.erase(OWN.id)
    assert (again.calls, again.contents > 0) == (3, True)
    assert SECRET not in b"".join(path.read_bytes() for path in world.path.parent.iterdir())
    with pytest.raises(Erased, match=r"was erased on \d{4}-\d\d-\d\d"):
        await world.erase()


async def test_pins_from_before_do_not_count(world: World) -> None:
    node = make_chain(TURNS[0][1].decode())[0].node
    world.archive.append(make_pin(node, session=OWN.id))
    assert (await world.archive.load_context(OWN.id)).pins
    await world.erase()
    assert not (await world.archive.load_context(OWN.id)).pins
    world.archive.append(make_pin(node, session=OWN.id, at_ms=SystemClock().now_ms() + 1000))
    assert (await world.archive.load_context(OWN.id)).pins


async def test_references_are_erased_but_for_those_of_a_session_that_continues(world: World) -> None:
    later, node = make_key("later", OTHER_TENANT), make_chain(TURNS[0][1].decode())[0].node
    kept, gone = make_original("aaaaakeptt", TURNS[0][1]), make_original("aaaaagonee", TURNS[3][1])
    own = make_epoch("p1", originals=[kept, gone], session=OWN.id)
    continued = make_epoch("p2", originals=[kept], session=later.id)
    turns = [(gap, content) for gap, content in TURNS[:1]]
    world.archive.append(own)
    body = chain_body(turns, tenant=OTHER_TENANT)
    world.archive.append(make_opening("l1", body, key=later), Adoption(later.id, OWN.id, node, 5), continued)
    told = await world.eraser.measure(OWN.id)
    assert (told.continued_by, told.shared_with) == ((later.id,), (OTHER.id,))
    await world.erase()
    assert (await world.archive.load_original("aaaaakeptt")).messages == (TURNS[0][1],)
    with pytest.raises(Erased, match=r"aaaaagonee names was erased on \d{4}") as erased:
        await world.archive.load_original("aaaaagonee")
    assert (erased.value.session, erased.value.status) == (OWN.id, 410)
    with pytest.raises(Erased, match="epoch 1 of session"):
        await world.archive.load_epoch(OWN.id, 1)
    assert (await world.archive.verify()).faults == ()


async def test_an_altered_erasure_is_found(world: World) -> None:
    await world.erase()
    log = sqlite3.connect(world.path)
    log.execute("DROP TRIGGER erasure_hold")
    log.execute("DELETE FROM erasure WHERE seq = 1")
    log.commit()
    log.close()
    faults = {fault.where: fault.what for fault in (await world.archive.verify()).faults}
    assert "no erasure names it" in " ".join(faults.values())
    assert faults["erased 1"] == "what it erased is not what the erasures of its session name"


async def test_a_reader_delays_overwriting_and_it_is_made_up_for(world: World) -> None:
    reader = sqlite3.connect(world.path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM exchange").fetchone()
    slept: list[float] = []

    async def rest(seconds: float) -> None:
        slept.append(seconds)

    impatient = SqliteEraser(world.archive, SystemClock(), rest)
    assert not (await impatient.erase(OWN.id)).is_overwritten
    reader.close()
    assert SECRET in b"".join(path.read_bytes() for path in world.path.parent.iterdir())
    assert await impatient.overwrite()
    assert SECRET not in b"".join(path.read_bytes() for path in world.path.parent.iterdir())
    await world.archive.close()
    impatient.close()


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), sqlite3.DatabaseError("a page is damaged")])
async def test_a_session_is_erased_though_overwriting_fails_and_that_is_made_up_for(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def fail(*_: object) -> int | None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(PageGaps, "overwrite", fail)
        assert not (await world.eraser.erase(OWN.id)).is_overwritten
        assert "bytes of it may be left" in caplog.text and str(error) in caplog.text
        with pytest.raises(StoreUnavailable):
            await world.eraser.overwrite()
    assert await read_state(world.archive) == "erased"
    assert await world.eraser.overwrite()
    add_call(world.archive, "e4", OTHER, TURNS[:2])
    assert await world.archive.load_request("e4") == join_body(TURNS[:2])


async def test_a_file_that_was_put_in_the_place_of_the_log_is_left_alone(world: World, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    await world.archive.run_task(lambda log: log.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall())
    shutil.copy(world.path, other)
    before = other.read_bytes()
    other.replace(world.path)
    assert not (await world.eraser.erase(OWN.id)).is_overwritten
    assert world.path.read_bytes() == before


async def test_no_session(world: World) -> None:
    with pytest.raises(NotFound, match="there is no session"):
        await world.eraser.measure("nobody")


async def test_idle_sessions_are_listed_until_they_are_erased(world: World) -> None:
    now = SystemClock().now_ms()
    assert {each.session for each in await world.eraser.list_idle(now, 10)} == {OWN.id, OTHER.id}
    assert len(await world.eraser.list_idle(now, 1)) == 1
    assert await world.eraser.list_idle(5, 10) == []
    await world.eraser.erase_slowly([OWN.id], "age")
    assert [each.session for each in await world.eraser.list_idle(now, 10)] == [OTHER.id]
    assert await read_state(world.archive) == "erased"
    assert await world.eraser.overwrite()
    assert 0 < await world.eraser.measure_used() <= world.path.stat().st_size
