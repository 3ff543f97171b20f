"""A strict Responses API that stores its answers, and sessions of clients that refer to them by ids.

Rule: as in `strict_responses`. What a request refers to is put in before the rules are applied; without `store` nothing
is kept of an answer.
"""

import json
from itertools import count
from typing import Any

from proxy.engine.ports import RequestBody
from proxy.model.exchange import Headers
from tests.support.engine import JSON, ScriptedResponse, Sent
from tests.support.managing import Message
from tests.support.response_sessions import ResponseSession
from tests.support.strict_responses import Item, StrictResponses, read_answer
from tests.support.strict_upstream import Check, Member


class StoringResponses(StrictResponses):
    """It keeps `raws`, the bodies as they came, beside `calls`, in which all that they refer to was put in."""

    def __init__(self, seed: int = 0, *, hides_reasoning: bool = False) -> None:
        super().__init__(seed)
        self.raws: list[bytes] = []
        self.hides_reasoning = hides_reasoning  # what is encrypted is not told, so that only the provider has it
        self._chains: dict[str, list[Item]] = {}
        self._items: dict[str, Item] = {}

    def number_anew(self) -> None:
        """Give the next responses the ids of the first ones."""
        self._numbers = count(1)
        self._made.clear()
        self._needed.clear()

    async def send(self, method: str, target: bytes, headers: Headers, body: bytes | RequestBody) -> ScriptedResponse:
        assert isinstance(body, bytes)
        if method == "GET":
            return await super().send(method, target, headers, body)
        self.raws.append(body)
        request: Item = json.loads(body)
        previous, given = request.pop("previous_response_id", None), request["input"]
        given = [{"type": "message", "role": "user", "content": given}] if isinstance(given, str) else given
        if previous is not None and previous not in self._chains:
            self.calls.append(Sent(method, target, headers, body))
            told = f"Previous response with id '{previous}' not found."
            return _refuse(400, told, "previous_response_not_found")
        items = [*self._chains.get(previous or "", ()), *given]
        missing = [each["id"] for each in items if _is_bare(each) and each["id"] not in self._items]
        if missing:
            self.calls.append(Sent(method, target, headers, body))
            return _refuse(404, f"Item with id '{missing[0]}' not found.", None)
        request["input"] = [self._items[each["id"]] if _is_bare(each) else each for each in items]
        said = await super().send(method, target, headers, json.dumps(request).encode())
        if said.status != 200 or target.endswith(b"input_tokens"):
            return said
        response = read_answer(b"".join(said.pieces))
        if request.get("store") is not False:
            self._chains[response["id"]] = [*request["input"], *response["output"]]
            self._items |= {item["id"]: item for item in response["output"]}
        return _hide(said, response) if self.hides_reasoning else said


def _is_bare(item: Item) -> bool:
    is_reasoning = item.get("type") == "reasoning" and not item.get("encrypted_content")
    return item.get("type") == "item_reference" or is_reasoning


def _refuse(status: int, message: str, code: str | None) -> ScriptedResponse:
    error = {"type": "invalid_request_error", "message": message, "param": "input", "code": code}
    return ScriptedResponse(json.dumps({"error": error}).encode(), status=status, headers=JSON, ending="whole")


def _hide(said: ScriptedResponse, response: Item) -> ScriptedResponse:
    """The response as providers send it that do not tell what is encrypted."""
    content = b"".join(said.pieces)
    for item in response["output"]:
        if sealed := item.get("encrypted_content"):
            content = content.replace(json.dumps(sealed).encode(), b"null")
    return ScriptedResponse(content, headers=said.headers, ending="whole")


class ReferringSession(ResponseSession):
    """A session that refers `by` the id of the last response, or of each item of earlier answers, to what is stored."""

    upstream: StoringResponses

    def __init__(self, ceiling: int, by: str, *, hides_reasoning: bool = False, **options: Any) -> None:
        self.by, self.last, self.since, self.hides = by, "", 0, hides_reasoning
        super().__init__(ceiling, **options)

    def make_upstream(self, check: Check, member: Member, seed: int) -> StoringResponses:
        """The upstream."""
        return StoringResponses(seed, hides_reasoning=self.hides)

    def write(self) -> bytes:
        """The body of a call."""
        body: Item = json.loads(super().write()) | {"store": True, **self.more}
        if self.by == "items":
            body["input"] = [self._refer(item) for item in self.history]
        elif self.last:
            body |= {"input": self.history[self.since :], "previous_response_id": self.last}
        return json.dumps(body).encode()

    def go_on(self, message: dict[str, Any]) -> None:
        """Add an answer, and what follows it."""
        at = len(self.history) + len(message["output"])
        super().go_on(message)
        self.last, self.since = message["id"], at

    def begin_anew(self) -> None:
        """Begin another conversation, at a provider that numbers its responses from one on again."""
        self.upstream.number_anew()
        self.history = [*self.begin(), {"role": "user", "content": "Now look at the printer instead."}]
        self.last, self.since = "", 0

    def _refer(self, item: Message) -> Message:
        is_answered = bool(item.get("id"))
        return {"type": "item_reference", "id": item["id"]} if is_answered else item
