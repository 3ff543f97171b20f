"""How sessions are managed, from the log in memory."""

from collections import Counter
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from proxy.engine.ports import MOST_EPOCHS, MOST_RECALLED_ANSWERS, MOST_SOURCES, MOST_SUMMARIES, NEWEST_EPOCHS
from proxy.model.epoch import Epoch, EpochUse, Original, Pin, Plan, StoredContext, StoredOriginal, Summary
from proxy.model.errors import NotFound
from proxy.model.memory import MemoryOrder, Remembered, StoredMemory
from tests.support.memory_store.tables import Tables


def load_context(tables: Tables, session: str) -> StoredContext:
    """A session's epochs, pins, accounts and summaries, and those of the sessions that it goes on from."""
    line = _list_line(tables, session)
    pins: dict[tuple[str, bytes], Pin] = {}
    for pin in tables.pins.values():
        if pin.session in line:
            pins.pop((pin.session, pin.node), None)
            pins[pin.session, pin.node] = pin
    owed: dict[str, float] = {}
    for each in reversed(line):  # its own come last, and count
        plans = [plan for plan in tables.plans.values() if tables.find_session(plan.exchange) == each]
        owed.update({plan.view: plan.owed for plan in plans})
    epochs, summaries = tuple(_list_useful(tables, line)), tuple(_list_live(tables, line))
    own = [epoch for epoch in tables.epochs.values() if epoch.session in line]
    given_up = tuple(sorted({epoch.view for epoch in own if epoch.why == "uncompacted"}))
    recalled = [each for each in tables.recalled.values() if each.session in line][-MOST_RECALLED_ANSWERS:]
    return StoredContext(
        epochs,
        tuple(pins.values()),
        tuple(owed.items()),
        summaries,
        tuple(_list_unsent(tables, line)),
        given_up,
        tuple(recalled),
    )


def load_memory(tables: Tables, session: str) -> StoredMemory:
    """The memory records of a session, and of those that it goes on from."""
    line = _list_line(tables, session)
    own = [(n, each) for n, each in tables.memory.items() if each.session in line]
    entries = tuple((n, each) for n, each in own if isinstance(each, Remembered))
    return StoredMemory(entries, tuple((n, each) for n, each in own if isinstance(each, MemoryOrder)))


def list_epochs(tables: Tables, session: str) -> list[Epoch]:
    """All epochs of a session, `rendered` empty."""
    return [replace(epoch, rendered=()) for epoch in tables.epochs.values() if epoch.session == session]


def load_epoch(tables: Tables, session: str, n: int) -> Epoch:
    """The n-th epoch of a session. Raises NotFound."""
    epochs = [epoch for epoch in tables.epochs.values() if epoch.session == session]
    if not 1 <= n <= len(epochs):
        raise NotFound(f"there is no epoch {n} of session {session}")
    return epochs[n - 1]


def load_original(tables: Tables, reference: str) -> StoredOriginal:
    """What a reference stands for. Raises NotFound."""
    if found := tables.originals.get(reference):
        session, original = found
        return StoredOriginal(session, original, tuple(_load_messages(tables, session, original.digests)))
    summary = tables.summaries.get(reference)
    if summary is None:
        raise NotFound(f"there is no reference {reference}")
    leaves = _list_leaves(tables, summary)
    digests = tuple(digest for leaf in leaves for digest in leaf.digests)
    messages = tuple(raw for leaf in leaves for raw in _load_messages(tables, leaf.session, leaf.digests))
    return StoredOriginal(summary.session, Original(reference, digests, summary.wire, summary.start), messages)


def list_summaries(tables: Tables, session: str) -> list[Summary]:
    """All summaries of a session."""
    return [summary for summary in tables.summaries.values() if summary.session == session]


def _list_line(tables: Tables, session: str) -> list[str]:
    """The session and those it goes on from, the nearest first."""
    line = [session] if session in tables.trees else []
    for each in line:  # which grows
        sources = dict.fromkeys(source for source, _ in tables.trees[each].adoptions)
        line += [source for source in sources if source not in line]
    return line[: MOST_SOURCES + 1]


def _list_useful(tables: Tables, line: list[str]) -> list[Epoch]:
    """Of each view the newest epochs and those that no other follows, oldest first."""
    epochs = [epoch for epoch in tables.epochs.values() if epoch.session in line]
    followed = {epoch.parent for epoch in epochs}
    seen: Counter[str] = Counter()
    chosen: dict[str, list[Epoch]] = {}
    for epoch in reversed(epochs):
        seen[epoch.view] += 1
        if seen[epoch.view] <= NEWEST_EPOCHS or epoch.id not in followed:
            chosen.setdefault(epoch.view, []).append(epoch)
    kept = {epoch.id for group in chosen.values() for epoch in group[:MOST_EPOCHS]}
    return [epoch for epoch in epochs if epoch.id in kept]


def _list_unsent(tables: Tables, line: list[str]) -> list[str]:
    """The epochs that a person asked for, and that nothing was sent under or opened behind."""
    epochs = [epoch for epoch in tables.epochs.values() if epoch.session in line]
    followed = {epoch.parent for epoch in epochs}
    used = {plan.epoch for plan in tables.plans.values() if tables.find_session(plan.exchange) in line}
    return [epoch.id for epoch in epochs if epoch.why == "manual" and epoch.id not in followed | used]


def list_uses(tables: Tables, session: str) -> Iterator[EpochUse]:
    """View, last node and epoch of each request whose last round went out under an epoch that replaces messages."""
    line = _list_line(tables, session)
    tips = {step.exchange: step.tip for session in line for step in tables.trees[session].steps.values()}
    last: dict[str, Plan] = {}
    for plan in tables.plans.values():
        last.pop(plan.exchange, None)
        last[plan.exchange] = plan
    for exchange, plan in last.items():
        if exchange in tips and plan.epoch and tables.epochs[plan.epoch].depth:
            yield EpochUse(plan.view, tips[exchange], plan.epoch)


def _list_live(tables: Tables, line: list[str]) -> list[Summary]:
    """Those that nothing stands in place of, and those that some branch may still need, oldest first."""
    own = [summary for summary in tables.summaries.values() if summary.session in line]
    ends: dict[str, set[bytes]] = {}
    for summary in own:
        for name in (*summary.parents, *summary.supersedes):
            ends.setdefault(name, set()).add(summary.last)
    useful = [summary for summary in own if summary.last not in ends.get(summary.id, ())]
    first = sorted(reversed(useful), key=lambda summary: summary.id in ends)[:MOST_SUMMARIES]
    return [summary for summary in useful if summary.text and summary in first]


def _list_leaves(tables: Tables, summary: Summary) -> list[Summary]:
    """The leaves that it was made of, through any number of rounds, in order."""
    leaves: list[Summary] = []
    waiting = [summary]
    while waiting:
        each = waiting.pop()
        waiting += [tables.summaries[name] for name in reversed(each.parents)]
        if each.kind == "leaf":
            leaves.append(each)
    return leaves


def _load_messages(tables: Tables, session: str, digests: Iterable[bytes]) -> Iterator[bytes]:
    tenant = tables.keys[session].tenant
    return (tables.blobs[tenant, digest] for digest in digests)
