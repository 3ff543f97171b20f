"""Tools that a model has not called for long are sent with shortened schemas (`context/tool_diet`).

The choice belongs to an epoch. It stands in our tool, whose action `tool_details` returns a whole schema: the names
that it may be asked for are those of the shortened tools. So the log has it before anything is sent by it, and what is
sent is the same until the next epoch, and after a restart. Where a request cannot have our tool, its tools are whole.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from proxy.context.tool_diet import OfferedTool, choose_shortened, read_tools, write_tools
from proxy.engine.context.tool_offers import NO_RECALLED, ToolOffers
from proxy.engine.recall.tool import DESCRIPTION, PARAMETERS, decode_arguments
from proxy.engine.request import ManagedRequest
from proxy.engine.token_counter import Count, Piece
from proxy.model.epoch import Epoch, Recalled
from proxy.model.lru import LruCache
from proxy.model.manifest import compute_digest
from proxy.model.messages import RECALL_TOOL, MessageStructure
from proxy.wire import FORMATS
from proxy.wire.json_values import join_array, load_lenient
from proxy.wire.rounds import OwnTool, spell_tool

ACTION = "tool_details"
_LIST = "tool"
_TOLD = (
    f" Some tools are shown without their optional parameters and descriptions. {ACTION}: the whole of one, named by"
    f" {_LIST}."
)
_MOST_ASKED = 8
_MOST_BYTES, _MOST_MESSAGES = 4 * 1024 * 1024, 4096

CountNow = Callable[[str, Sequence[Piece]], Count]


class ToolDiet(ToolOffers):
    """Decides about our tool, and which tools of the client's are shortened beside it.

    A tool is shortened once it was not called in `after` steps of a conversation; 0: none is. `count` counts the tokens
    of tools for a model.
    """

    def __init__(self, *, after: int, count: CountNow, **offers: Any) -> None:
        super().__init__(**offers)
        self._after = after
        self._count = count
        self._written = LruCache[tuple[bytes, bytes], bytes](_MOST_BYTES, weigh=lambda key, _: 2 * len(key[0]))
        self._read = LruCache[bytes, tuple[OfferedTool, ...]](_MOST_BYTES, weigh=lambda key, _: 2 * len(key))
        self._called = LruCache[bytes, frozenset[str]](_MOST_MESSAGES)

    def choose(
        self,
        request: ManagedRequest,
        epoch: Epoch | None,
        structures: Sequence[MessageStructure] = (),
        recalled: Mapping[int, Recalled] = NO_RECALLED,
        *,
        is_refused: bool = False,
    ) -> bytes:
        """Return our tool, which names the tools that are shortened beside it.

        While a request chooses among its tools, they stay as they are.
        """
        tool = super().choose(request, epoch, is_refused=is_refused)
        before = list_shortened(tool)
        if not tool or not (self._after or before):
            return tool
        is_first = epoch is None or not epoch.tool
        depth = len(structures) if epoch is None or is_first else epoch.depth
        used, is_long = self._list_used(request, structures, recalled, depth)
        tools = self._read_tools(request.split.member("tools")) if self._after else ()
        chosen = choose_shortened(tools, used, before, is_long=is_long, is_first=is_first)
        if chosen == before or self._find_obstacle(request, False):
            return tool
        return self._spell_with(request.wire, chosen)

    def write(self, request: ManagedRequest, tool: bytes) -> bytes:
        """Return the raw tools of a request, those that our tool names shortened, with ours."""
        shortened, tools = list_shortened(tool), request.split.member("tools")
        if not (shortened and self._read_tools(tools)):
            return super().write(request, tool)
        written = self._written.get((tools, tool))
        if written is None:
            written = join_array([*write_tools(self._read_tools(tools), shortened), tool])
            self._written.put((tools, tool), written)
        return written

    def count(self, request: ManagedRequest, tool: bytes) -> int:
        """Return the tokens by which the tools of a request grow, or negative those by which they shrink."""
        if not list_shortened(tool):
            return super().count(request, tool)
        pieces = [
            Piece(compute_digest(each), each, is_tools=True)
            for each in (request.split.member("tools"), self.write(request, tool))
        ]
        whole, written = self._count(request.model, pieces).tokens
        return written - whole

    def find_echo(self, request: ManagedRequest, epoch: Epoch) -> bytes:
        """Return the client's raw tools if some of them are shortened."""
        return request.split.member("tools") if list_shortened(epoch.tool) else b""

    def answer(self, request: ManagedRequest, epoch: Epoch, arguments: str) -> str:
        """Return the whole of the tools that a call asks for; empty if it asks for something else."""
        shortened = list_shortened(epoch.tool)
        asked = _read_asked(arguments) if shortened else None
        if asked is None:
            return ""
        tools = {each.name: each.whole for each in self._read_tools(request.split.member("tools"))}
        found = [tools[name].decode("utf-8", "replace") for name in asked[:_MOST_ASKED] if name in tools]
        return "\n".join(found) or f"{_LIST} is one of these: {', '.join(shortened)}."

    def _spell_with(self, wire: str, shortened: Sequence[str]) -> bytes:
        """Return our tool as it is beside shortened tools."""
        if not shortened:
            return self._spell(wire)
        properties = PARAMETERS["properties"]
        action = {**properties["action"], "enum": [*properties["action"]["enum"], ACTION]}
        names = {"type": "string", "enum": shortened}
        parameters = {**PARAMETERS, "properties": {**properties, "action": action, _LIST: names}}
        return spell_tool(FORMATS[wire], OwnTool(RECALL_TOOL, DESCRIPTION + _TOLD, parameters))

    def _read_tools(self, tools: bytes) -> tuple[OfferedTool, ...]:
        read = self._read.get(tools)
        if read is None:
            read = read_tools(tools)
            self._read.put(tools, read)
        return read

    def _list_used(
        self,
        request: ManagedRequest,
        structures: Sequence[MessageStructure],
        recalled: Mapping[int, Recalled],
        depth: int,
    ) -> tuple[set[str], bool]:
        """Return the tools that were called or asked for in the newest steps, and whether there are so many steps.

        Those behind the first `depth` messages, which the active epoch replaces, count even where they are more.
        """
        used, steps, place = set[str](), 0, len(structures)
        while place and (steps < self._after or place > depth):
            place -= 1
            if structures[place].role != "assistant":
                continue
            used |= self._list_called(request, place) if structures[place].calls else set()
            used |= _list_asked(request.wire, recalled[place]) if place in recalled else set()
            steps += not place or structures[place - 1].role != "assistant"
        return used, steps >= self._after

    def _list_called(self, request: ManagedRequest, place: int) -> frozenset[str]:
        called = self._called.get(request.nodes[place])
        if called is None:
            called = frozenset(_list_names(request.wire, request.load_message(place)[1]))
            self._called.put(request.nodes[place], called)
        return called


def list_shortened(tool: bytes) -> tuple[str, ...]:
    """Return the names of the tools that are shortened beside our raw tool, in the order in which it has them."""
    if ACTION.encode() not in tool:
        return ()
    decoded = load_lenient(tool)
    function: Any = decoded.get("function", decoded) if isinstance(decoded, dict) else {}
    parameters = function.get("parameters") or function.get("input_schema")
    return tuple(parameters["properties"][_LIST]["enum"])


def _list_names(wire: str, raw: bytes) -> list[str]:
    return [call.name for call in FORMATS[wire].decode_message(raw).message.calls]


def _list_asked(wire: str, recalled: Recalled) -> set[str]:
    """Return the tools whose details were asked for within an answer."""
    decode = FORMATS[wire].decode_message
    calls = [call for each in recalled.rounds for raw in each.answer for call in decode(raw).message.calls]
    return {name for call in calls for name in _read_asked(call.arguments) or ()}


def _read_asked(arguments: str) -> list[str] | None:
    """Return the tools that a call of ours asks for; None if it asks for something else."""
    value = decode_arguments(arguments) or {}
    if value.get("action") != ACTION and _LIST not in value:
        return None
    named = value.get(_LIST) or value.get("query") or ()
    return [each for each in ([named] if isinstance(named, str) else named) if isinstance(each, str)]
