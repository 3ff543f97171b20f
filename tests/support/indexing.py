"""A log of conversations for the index: calls of any wire, written as the engine records them."""

import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from proxy.engine.conversations.bodies import build_manifest
from proxy.engine.lineage.chain import make_chain, read_messages
from proxy.model.epoch import Epoch, Summary
from proxy.model.exchange import Opening, Outcome, Reading, Round, SessionKey, Timings
from proxy.model.lineage import Lineage, NodeRow, Reply, compute_chain_root, extend_chain
from proxy.model.log import Record
from proxy.model.manifest import compute_digest
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.connection import connect_writer
from proxy.store.sqlite.transaction import TransactionWriter
from proxy.wire import FORMATS
from proxy.wire.body import split_body

TENANT, OTHER_TENANT = b"\x01" * 16, b"\x02" * 16
OPENED_MS = 1_760_000_000_000
UPSTREAM = "openai"


class LogBuilder:
    """Writes a log at a path. Each call is committed at once; their ids count from `count` on."""

    def __init__(self, path: Path, count: int = 0) -> None:
        self.path = path
        self.connection = connect_writer(StorePolicy(path))
        self._writer = TransactionWriter(self.connection)
        self._known: dict[str, dict[bytes, bool]] = {}
        self._count = count
        self.last = b""  # the last node of the last call

    def call(
        self,
        messages: Sequence[Any],
        answer: dict[str, Any] | None = None,
        *,
        session: str = "s1",
        tenant: bytes = TENANT,
        wire: str = "chat_completions",
        at_ms: int = 0,
    ) -> str:
        """Record a call with these messages, or a single text, and its response; its id."""
        self._count += 1
        name, form = f"e{self._count:06}", FORMATS[wire]
        items = messages if isinstance(messages, str) else list(messages)
        body = json.dumps({"model": "m", form.items_key: items}).encode()
        split = split_body(body, form.items_key)
        assert split is not None
        root = compute_chain_root(UPSTREAM)
        chain = make_chain(read_messages(form, split, None, 0, root), None, root)
        manifest, _ = build_manifest(tenant, split, chain, None, 0)
        known = self._known.setdefault(session, {})
        base = 0
        while base < len(chain.nodes) and chain.nodes[base] in known:
            base += 1
        rows = _link(chain.nodes[base:], chain.nodes[base - 1] if base else root, is_answer=False)
        known.update((row.node, False) for row in rows)
        key = SessionKey(session, tenant, UPSTREAM, session)
        opening = Opening(
            name,
            key,
            "managed",
            wire,
            "manage",
            "m",
            "POST",
            "/v1",
            (),
            manifest,
            at_ms or OPENED_MS + self._count * 1000,
        )
        step = Lineage(name, "append", False, chain.tip, len(chain.nodes), base, rows, ())
        records: list[Record] = [opening, step, Round(name, 0, UPSTREAM, None)]
        self.last = chain.tip
        if answer is not None:
            records += self._answer(name, form.name, answer, chain.tip, known)
        self._writer.commit([records])
        return name

    def add(self, *records: Record) -> None:
        """Write records of managed context."""
        self._writer.commit([records])

    def add_epoch(self, edits: bytes, *, session: str = "s1", depth: int, through: bytes) -> None:
        """Write an epoch whose plan has these edits."""
        name = f"x{self._count}-{depth}-{len(edits)}"
        self.add(Epoch(name, session, "m", "", through, depth, "hard", "", OPENED_MS, 9, 3, edits, (), ()))

    def add_summary(self, name: str, text: str, raws: Sequence[bytes], *, session: str = "s1", last: bytes) -> None:
        """Write a summary of the first messages, given with their digests."""
        self.add(
            Summary(
                id=name,
                session=session,
                wire="chat_completions",
                start=0,
                stop=len(raws),
                last=last,
                kind="leaf",
                level=1,
                is_provisional=False,
                text=text,
                tokens=3,
                covered=9,
                made_ms=OPENED_MS,
                digests=tuple(map(compute_digest, raws)),
            )
        )

    def erase(self, pattern: str) -> None:
        """Erase the contents in which a text stands, as the log permits it."""
        self.connection.execute("BEGIN IMMEDIATE")
        self.connection.execute("INSERT INTO permit(token) VALUES ('test')")
        (seq,) = self.connection.execute("SELECT ifnull(max(seq), 0) FROM erasure").fetchone()
        for id, content in self.connection.execute("SELECT id, bytes FROM payload").fetchall():
            if pattern.encode() in content:
                seq += 1
                row = (seq, OPENED_MS, "session", id, b"")
                self.connection.execute(
                    "INSERT INTO erasure(seq, at_ms, scope, payload, digest) VALUES (?,?,?,?,?)", row
                )
                self.connection.execute("DELETE FROM payload WHERE id = ?", (id,))
        self.connection.execute("DELETE FROM permit")
        self.connection.execute("COMMIT")

    def close(self) -> None:
        self.connection.close()

    def _answer(
        self, name: str, wire: str, answer: dict[str, Any], tip: bytes, known: dict[bytes, bool]
    ) -> list[Record]:
        raw = json.dumps(answer).encode()
        form = FORMATS[wire]
        rows: list[NodeRow] = []
        for items in form.read_reply(answer):
            rows += _link(extend_chain(tip, [item.form for item in items]), tip, is_answer=True)
        known.update((row.node, True) for row in rows)
        self.last = rows[-1].node if rows else tip
        outcome = Outcome(name, 0, 200, (), "complete", raw, len(raw), b"", Timings(1.0, 1.0, 1.0))
        return [outcome, Reading(name, 0, raw, None, "stop", ""), Reply(name, 0, tuple(dict.fromkeys(rows)), ())]


def _link(nodes: Sequence[bytes], parent: bytes, *, is_answer: bool) -> tuple[NodeRow, ...]:
    rows = []
    for node in nodes:
        if node != parent:
            rows.append(NodeRow(node, parent, is_answer))
            parent = node
    return tuple(rows)


def say(text: str, **more: Any) -> dict[str, Any]:
    """A message of the user."""
    return {"role": "user", "content": text, **more}


def reply(text: str, **more: Any) -> dict[str, Any]:
    """A response on chat completions."""
    return {"id": "c", "choices": [{"index": 0, "message": {"role": "assistant", "content": text, **more}}]}


def ask_tool(name: str, arguments: dict[str, Any], call: str = "call_1", text: str = "") -> dict[str, Any]:
    """A response on chat completions that calls a tool."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    return reply(text, tool_calls=[{"id": call, "type": "function", "function": function}])


def read_message(answer: dict[str, Any]) -> dict[str, Any]:
    """The message that a client adds to its history for a response on chat completions."""
    message: dict[str, Any] = answer["choices"][0]["message"]
    return message


def return_output(text: str, call: str = "call_1") -> dict[str, Any]:
    """What a tool returned."""
    return {"role": "tool", "tool_call_id": call, "content": text}


def list_entries(path: Path) -> list[tuple[int, ...]]:
    """All entries of an index."""
    connection = sqlite3.connect(path)
    try:
        return connection.execute("SELECT id, address, holder, exchange, tool, name FROM entry ORDER BY id").fetchall()
    finally:
        connection.close()
