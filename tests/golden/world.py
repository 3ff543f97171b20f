"""The world of one story: an upstream, a proxy on a log of its own, and what was seen of both."""

import contextlib
import hashlib
import http.client
import json
import os
import re
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.golden.provider import STEP, Message, Reply, Upstream, serve_upstream
from tests.journeys.running import TOKEN, Running, start_proxy

CHAT = "/v1/chat/completions"
WIRES = (CHAT, "/v1/responses", "/v1/messages")
KEY = {"authorization": "Bearer sk-golden-0123456789abcdef"}
# Deterministic: no summary is asked for beside the calls, and a plan is waited for however busy the machine is.
_SETTINGS = {"COMPACTION__AUTO": "false", "COMPACTION__HARD_WAIT_SECONDS": "600"}
# Random or of the clock: exchange and epoch ids, session ids, references, summaries' ids; times in milliseconds.
_NAMES = re.compile(rb"(?<![0-9a-f])(?:[0-9a-f]{24}|[0-9a-f]{20})(?![0-9a-f])|(?<=ref:)[a-z0-9]{10}(?![a-z0-9])")
_DATE = re.compile(rb"\d{4}-\d\d-\d\d \d\d:\d\d UTC")
_BARE_REFERENCE = re.compile(r"^[a-z0-9]{10}$")
_TIMES = re.compile(r"_ms$|_at$|^(?:ms|began|ended|opened|time|created|last|first|newest|oldest|started|timings)$")
_RECORDED_SECONDS = 60.0
_BEGAN_NS = 1_767_225_600_000_000_000  # 2026 began
# The second is told where the call had to be counted before it was sent, which is a matter of prices and of time.
_UNSTEADY = ("date", "x-palimpsest-tokens")
# Logs of the version that the corpus was recorded with. The first is empty: its salt makes session ids and references.
LOGS = Path(__file__).with_name("logs")


@dataclass(frozen=True, slots=True)
class Seen:
    """One recorded item: the step's name, what kind of thing it is, its normalised content."""

    step: str
    kind: str
    content: bytes

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.content).hexdigest()[:16]


@dataclass(slots=True)
class Answer:
    """What the client got."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def get(self, name: str) -> str:
        return next((value for each, value in self.headers if each == name), "")


@dataclass(slots=True)
class World:
    """Runs the calls of one story, and keeps what was seen of them in order."""

    story: str
    data: Path
    upstream: Upstream
    base_url: str
    settings: Mapping[str, str] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)
    _proxy: Running | None = None
    _connection: http.client.HTTPConnection | None = None
    _names: dict[bytes, bytes] = field(default_factory=dict)
    _steps: int = 0

    def start(self) -> None:
        """Start the proxy on the story's log."""
        self._set_clock()
        settings = {**_SETTINGS, **self.settings, "GOLDEN_CLOCK": str(self._clock)}
        self._proxy = start_proxy(self.data, self.base_url, module="tests.golden.clocked", **settings)
        self._connection = http.client.HTTPConnection("127.0.0.1", self._proxy.port, timeout=600)

    def stop(self) -> None:
        """End it as an operator would."""
        assert self._proxy is not None and self._connection is not None
        self._connection.close()
        assert self._proxy.stop() == 0, "".join(self._proxy.output[-20:])

    def kill(self) -> None:
        """End it as a crash would."""
        assert self._proxy is not None and self._connection is not None
        self._connection.close()
        self._proxy.kill()

    def send(
        self,
        body: bytes,
        fields: Mapping[str, str] | None = None,
        *,
        path: str = CHAT,
        method: str = "POST",
        reply: Reply | None = None,
    ) -> Answer:
        """Make one call and record what the upstream and the client got of it."""
        assert self._connection is not None
        self._steps += 1
        self._set_clock()
        step = f"{self.story}/{self._steps:04}"
        self.upstream.replies[step] = reply or Reply()
        headers = {**KEY, "content-type": "application/json", STEP: step, **(fields or {})}
        self._connection.request(method, path, body or None, headers)
        got = self._connection.getresponse()
        answer = Answer(got.status, [(name.lower(), value) for name, value in got.getheaders()], got.read())
        for sent in self.upstream.sent.get(step, ()):
            self.record(step, "sent", sent)
        told = "\n".join(f"{name}: {value}" for name, value in answer.headers if name not in _UNSTEADY)
        self.record(step, "got", b"%d\n%b\n\n%b" % (answer.status, told.encode("latin-1"), answer.body))
        if answer.get("x-palimpsest-exchange"):
            is_read = answer.status == 200 and not (reply and reply.body) and path.partition("?")[0] in WIRES
            self._wait_until_recorded(answer, is_read=is_read)
        return answer

    def ask(
        self,
        messages: Sequence[Message],
        fields: Mapping[str, str] | None = None,
        *,
        reply: Reply | None = None,
        **members: Any,
    ) -> Answer:
        """Make a call of Chat Completions with such messages."""
        body = {"model": "gpt-4o", "messages": list(messages), **members}
        return self.send(json.dumps(body).encode(), fields, reply=reply)

    def look(self, path: str, method: str = "GET") -> Any:
        """Record a document of the API; what it says, the items of a listing, None where it is no JSON."""
        status, content = self._load(path, method)
        name = self._normalise(path.encode()).decode()
        try:
            documents = [json.loads(line) for line in (content.splitlines() if "jsonl" in path else [content])]
        except ValueError:
            self.record(f"{self.story}{name}", "text", b"%d\n%b" % (status, content))
            return None
        text = "\n".join(json.dumps(self._settle(each), indent=1, sort_keys=True) for each in documents)
        self.record(f"{self.story}{name}", "document", b"%d\n%b" % (status, text.encode()))
        found = documents[0] if documents else None
        return found["items"] if isinstance(found, dict) and "next" in found else found

    def look_at_session(self, session: str) -> None:
        """Record everything that the API says of a session."""
        at = f"/sessions/{session}"
        self.look(at)
        for page in range(0, len(self._list_exchanges(session)), 200):
            self.look(f"{at}/exchanges?limit=200&after={page}")
        epochs = self.look(f"{at}/epochs")
        for number in range(1, len(epochs) + 1):
            epoch = self.look(f"{at}/epochs/{number}")
            for reference in epoch["references"] if number == len(epochs) else ():
                self.look(f"/refs/{reference['id']}?page=all")
        for summary in self.look(f"{at}/summaries"):
            self.look(f"{at}/summaries/{summary['id']}")
        self.look(f"{at}/handoff")
        self.look(f"{at}/pins")
        for form in ("openai", "jsonl"):
            self.look(f"{at}/export?form={form}")

    @property
    def _clock(self) -> Path:
        return self.data / "clock"

    def _set_clock(self) -> None:
        """Let a second pass for each step."""
        self._clock.touch()
        os.utime(self._clock, ns=(_BEGAN_NS, _BEGAN_NS + self._steps * 1_000_000_000))

    def _load(self, path: str, method: str) -> tuple[int, bytes]:
        assert self._connection is not None
        self._connection.request(method, f"/-/api{path}", None, {"authorization": f"Bearer {TOKEN}"})
        got = self._connection.getresponse()
        return got.status, got.read()

    def _list_exchanges(self, session: str) -> list[Any]:
        rows: list[Any] = []
        while True:
            status, content = self._load(f"/sessions/{session}/exchanges?limit=200&after={len(rows)}", "GET")
            assert status == 200, content
            page = json.loads(content)["items"]
            rows += page
            if len(page) < 200:
                return rows

    def _wait_until_recorded(self, answer: Answer, *, is_read: bool) -> None:
        """What an answer says of usage is read behind it, and counts for the next call."""
        session, until = answer.get("x-palimpsest-session"), time.monotonic() + _RECORDED_SECONDS
        after = max(0, self._steps - 60)
        while time.monotonic() < until:
            status, content = self._load(f"/sessions/{session}/exchanges?limit=200&after={after}", "GET")
            rows = json.loads(content)["items"] if status == 200 else []
            row = next((each for each in rows if each["id"] == answer.get("x-palimpsest-exchange")), None)
            newest = row["rounds"][-1] if row is not None and row["rounds"] else {}
            if newest.get("status") and (newest["usage"] or not is_read):
                return
            after = 0
            time.sleep(0.002)
        raise AssertionError(f"{self.story}: a call was not recorded")

    def wait_for_usage(self, session: str, number: int) -> None:
        """Wait until the usage of a call of a session was read: what is bypassed does not say which call it is."""
        until = time.monotonic() + _RECORDED_SECONDS
        while time.monotonic() < until:
            status, content = self._load(f"/sessions/{session}/exchanges?limit=200&after={number - 1}", "GET")
            rows = json.loads(content)["items"] if status == 200 else []
            if rows and rows[0]["rounds"] and (rows[0]["rounds"][-1]["usage"] or {}).get("input") is not None:
                return
            time.sleep(0.002)
        raise AssertionError(f"{self.story}: the usage of call {number} was not read")

    def record(self, step: str, kind: str, content: bytes) -> None:
        """Keep an item, with its random names replaced."""
        self.seen.append(Seen(step, kind, self._normalise(content)))

    def _normalise(self, content: bytes) -> bytes:
        """With each random name replaced by the number of its first appearance, at the same length."""
        content = content.replace(self.base_url.encode(), b"http://upstream/v1")
        return _NAMES.sub(self._name, _DATE.sub(b"2026-01-01 00:00 UTC", content))

    def _name(self, found: re.Match[bytes]) -> bytes:
        kind = {24: b"exchange", 20: b"session", 10: b"ref"}[len(found[0])]
        return self._names.setdefault(found[0], b"%b-%d" % (kind, len(self._names))).ljust(len(found[0]), b"_")

    def _settle(self, said: Any) -> Any:
        """A document without times."""
        if isinstance(said, list):
            return [self._settle(each) for each in said]
        if isinstance(said, dict):
            return {name: 0 if _TIMES.search(name) else self._settle(value) for name, value in said.items()}
        if isinstance(said, str) and _BARE_REFERENCE.match(said):
            return f"ref:{said}"
        return said


@contextlib.contextmanager
def make_world(story: str, *, log: str = "empty", keep: bool = False, **settings: str) -> Iterator[World]:
    """A world with its proxy running, for the length of a `with` block; it begins with a kept log.

    `keep`: its own log is kept at the end, under the name of the story.
    """
    with tempfile.TemporaryDirectory(prefix="golden-") as folder, serve_upstream() as (upstream, base_url):
        with tarfile.open(LOGS / f"{log}.tar.gz") as kept:
            kept.extractall(folder, filter="data")
        world = World(story, Path(folder), upstream, base_url, settings)
        world.start()
        try:
            yield world
        except BaseException:
            world.kill()
            raise
        world.stop()
        if keep:
            with tarfile.open(LOGS / f"{story}.tar.gz", "w:gz") as archive:
                archive.add(world.data / "log.db", "log.db")
