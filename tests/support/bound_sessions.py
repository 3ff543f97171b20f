"""Sessions of an agent whose model binds its reasoning, with all that a client and a person may do in between.

Rule: the client keeps each answer as it came and sends all of it again; it never mends its history.
"""

import json
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

from proxy.engine.policy import Provider
from proxy.engine.recall.rounds import Run
from proxy.model.card import Card
from proxy.model.errors import Conflict, NotFound
from proxy.model.events import ReasoningRemoved
from proxy.model.exchange import ClientRequest, Headers
from tests.support.engine import RecordingClient, wait_out
from tests.support.managing import Message
from tests.support.strict_upstream import Check, Member, StrictUpstream, list_blocks
from tests.support.talking import NAME, TOOLS, Talk

MODEL, OTHER = "anthropic/claude-fable-5-2", "anthropic/claude-opus-5-5"
_SYSTEM: Message = {"role": "system", "content": "You are an agent."}

# What happens before a call, and how often of a thousand times.
CHANCES = {"retry": 25, "branch": 20, "restart": 15, "revert": 8, "observe": 12, "bypass": 12, "switch": 8, "pin": 8}


class BoundSession:
    """One session; `run` carries it for so many calls, `counts` tells what came of them."""

    target, wire, items_key = b"/v1/chat/completions", "chat_completions", "messages"
    chances = CHANCES

    def __init__(
        self,
        ceiling: int,
        *,
        check: Check = "error",
        member: Member = "reasoning_details",
        seed: int = 0,
        size: int = 900,
        often: int = 1,
        provider: Provider | None = None,
        card: Card | None = None,
        has_reports: bool = False,
        run: Run | None = None,
    ) -> None:
        """Make a session whose outputs have `size` characters, in which things happen so many times as `often`."""
        self.upstream: Any = self.make_upstream(check, member, seed)
        self.talk: Any = self.make_talk(ceiling, provider, card=card, has_reports=has_reports, run=run)
        self.history: list[Message] = [*self.begin(), {"role": "user", "content": "Mend the tests of the parser."}]
        self.model, self.own, self.other = MODEL, MODEL, OTHER
        self.name: Headers = NAME  # what its client sends with each call
        self.sent = b""  # the client's last request
        self.counts: Counter[str] = Counter()
        self.told: Counter[str] = Counter()  # the messages with removed reasoning, as events told, by view
        self.removed: set[str] = set()  # the signatures that the client sent and the upstream never got again
        self._random, self._size, self._often, self._left = Random(seed + 1), size, often, 0
        self._listen()

    def _listen(self) -> None:
        self.talk.engine.bus.subscribe(ReasoningRemoved, self._note)

    def _note(self, event: ReasoningRemoved) -> None:
        self.told[event.view] += event.messages

    def make_upstream(self, check: Check, member: Member, seed: int) -> Any:
        """The upstream."""
        return StrictUpstream(check, member, seed)

    def make_talk(self, ceiling: int, provider: Provider | None, **options: Any) -> Talk:
        """The engine over a log."""
        return Talk(ceiling, self.upstream, provider, **options)

    def begin(self) -> list[Message]:
        """The messages before the user's first."""
        return [_SYSTEM]

    def write(self) -> bytes:
        """The body of a call."""
        return json.dumps({"model": self.model, "messages": self.history, "tools": TOOLS}).encode()

    def read(self, body: bytes) -> dict[str, Any]:
        """The message in a response."""
        message: dict[str, Any] = json.loads(body)["choices"][0]["message"]
        return message

    def list_signatures(self, messages: Sequence[Message]) -> set[str]:
        """What the blocks of signed reasoning are known by."""
        return {block["signature"] for message in messages for block in list_blocks(message)}

    async def run(self, calls: int) -> None:
        """Carry so many calls, with everything that may happen in between."""
        for _ in range(calls):
            await self.act()

    async def act(self) -> None:
        """Do what chance wants, and make a call."""
        self._left -= 1
        if self._left == 0:
            self.model = self.own
        pick = self._random.randrange(1000)
        for what, chance in self.chances.items():
            chance *= self._often
            if pick < chance:
                self.counts[what] += 1
                return await self.do(what)
            pick -= chance
        await self.call()

    async def do(self, what: str) -> None:
        """Do one of the things that may happen before a call, and make it."""
        if what == "retry":
            await self.call(keeps=False)
        elif what == "branch":
            if places := self.list_turns():
                del self.history[self._random.choice(places[-12:]) + 1 :]
                self._ask(f"Rather look at part {len(self.history)}.")
        elif what == "restart":
            await self.restart()
        elif what == "revert":
            await self.revert()
        elif what == "switch":
            self.model, self._left = self.other, self._random.randint(2, 9)
        await self.call(what if what in ("observe", "bypass") else "", is_pinned=what == "pin")

    def list_turns(self) -> list[int]:
        """The places behind which a person may go on in another way."""
        return [i for i, message in enumerate(self.history) if message["role"] in ("user", "tool") and i > 1]

    def count_answers(self, messages: Sequence[Message]) -> int:
        """How many answers of the model are among the messages."""
        return sum(message["role"] == "assistant" for message in messages)

    async def restart(self) -> None:
        """Stop the proxy, and start it again."""
        await self.talk.reopen()
        self._listen()

    async def revert(self) -> None:
        """Take back the newest epoch, if there is one."""
        try:
            epochs = await self.talk.log.list_epochs(self.talk.session) if self.talk.session else ()
            if epochs:
                await self.talk.care.revert(self.talk.session, len(epochs))
        except (Conflict, NotFound):
            self.counts["not reverted"] += 1

    async def call(self, mode: str = "", *, keeps: bool = True, is_pinned: bool = False) -> RecordingClient:
        """Send the history. Unless it is to be sent again, add the answer and what follows it."""
        headers: Headers = ((b"x-palimpsest-mode", mode.encode()),) if mode else ()
        headers += ((b"x-palimpsest-pin", b"true"),) if is_pinned else ()
        client, before, told = RecordingClient(), len(self.upstream.calls), sum(self.told.values())
        self.sent = self.write()
        request = ClientRequest("POST", self.target, (*self.name, *headers), self.sent)
        await wait_out(self.talk.engine.begin(request, self.wire, client))
        labels = dict(client.labels)
        self.talk.session = labels.get(b"x-palimpsest-session", self.talk.session.encode()).decode()
        self._count(client, self.upstream.calls[before:], sum(self.told.values()) - told)
        if client.status == 200 and keeps:
            self.go_on(self.read(client.body))
        return client

    def _count(self, client: RecordingClient, sent: list[Any], told: int) -> None:
        last = json.loads(sent[-1].body)[self.items_key]
        ours, theirs = self.list_signatures(last), self.list_signatures(self.history)
        fresh = theirs - ours - self.removed
        self.removed |= fresh
        is_said = any(name == b"x-palimpsest-notice" and b"signed reasoning" in value for name, value in client.labels)
        self.counts["unsaid"] += bool(fresh) and (told < len(fresh) or not is_said)
        self.counts["dropped"] += b"prefix_binding_mismatch" in client.body
        self.counts["calls"] += 1
        self.counts["refused"] += client.status == 400
        self.counts["failed"] += client.status not in (200, 400)
        self.counts["healed"] += len(sent) > 1
        self.counts["managed"] += last != self.history and len(last) < len(self.history)
        self.counts["blocks"] += len(theirs)
        self.counts["blocks sent"] += len(ours)
        self.counts["messages"] += self.count_answers(last)
        self.counts["put back"] += len(ours - theirs)

    def go_on(self, message: dict[str, Any]) -> None:
        """Add an answer, and what follows it."""
        self.history.append(message)
        for call in message.get("tool_calls") or ():
            self.history.append({"role": "tool", "tool_call_id": call["id"], "content": self.make_output()})
        if not message.get("tool_calls"):
            self._ask(f"Now look at part {len(self.history)}, and say what is wrong there.")

    def make_output(self) -> str:
        """The output of a tool."""
        text = f"def function_{len(self.history)}(value):\n    return other.path\n"
        size = self._random.randint(100, 2 * self._size)
        return (text * (size // len(text) + 1))[:size]

    def _ask(self, words: str) -> None:
        self.history.append({"role": "user", "content": words})
