"""Tools that are functions of a program: what a model is told of them, and how its calls are executed."""

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from pydantic import PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import ArgsKwargs

from proxy.engine.runtime import attempt
from proxy.model.parts import ToolPart, ToolStatus

_BREAK = "\n"
_NAME = re.compile(r"[\w.:-]{1,128}", re.ASCII)


class ProgramTool(msgspec.Struct, frozen=True):
    """A tool: its name, what it does, the JSON schema of its arguments, and the function that executes its calls.

    `is_read_only` says that it changes nothing, so that it may be offered where nothing must change. One without a
    function is only described: its calls come back to whoever sends the message.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    call: Callable[..., Any] | None = None
    is_read_only: bool = False
    is_async: bool = False

    def describe(self) -> dict[str, Any]:
        """Return the tool as the API of chat completions has it."""
        told = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": told}


def make_tool(
    source: ProgramTool | Callable[..., Any] | Mapping[str, Any],
    *,
    name: str = "",
    description: str = "",
    parameters: Mapping[str, Any] | None = None,
    is_read_only: bool = False,
) -> ProgramTool:
    """Return the tool that a function is, or that a mapping describes as an API of a provider does.

    The schema of a function's arguments is that of its signature and type hints, unless `parameters` are given. Raises
    TypeError for what is none of these, and for a function whose arguments have no schema.
    """
    if isinstance(source, ProgramTool):
        return source
    if isinstance(source, Mapping):
        told = source.get("function", source)
        schema = told.get("parameters") or told.get("input_schema") or {"type": "object", "properties": {}}
        if not isinstance(told.get("name"), str):
            raise TypeError(f"a tool that is described has a name, a description and parameters: {source!r:.200}")
        return ProgramTool(_check_name(told["name"]), told.get("description", ""), schema)
    if not callable(source):
        raise TypeError(f"a tool is a function, or a mapping that describes one, not {source!r:.200}")
    named = _check_name(name or getattr(source, "__name__", "") or type(source).__name__)
    said = description or inspect.getdoc(source) or ""
    call: Any = source
    if parameters is None:
        try:
            adapter: TypeAdapter[Any] = TypeAdapter(call)
            parameters = adapter.json_schema()
        except (PydanticUserError, NameError, TypeError, ValueError) as error:
            what = f"the arguments of the tool {named!r} have no schema; give parameters"
            raise TypeError(f"{what}: {str(error).partition(_BREAK)[0]}") from error
        call = partial(_call_validated, adapter)
    is_async = inspect.iscoroutinefunction(source) or inspect.iscoroutinefunction(type(source).__call__)
    return ProgramTool(named, said, parameters, call, is_read_only, is_async)


def make_tools(sources: Sequence[ProgramTool | Callable[..., Any] | Mapping[str, Any]] | None) -> list[ProgramTool]:
    """Return the tools of a call, each as `make_tool` makes it. Raises TypeError, also for two of one name."""
    if not isinstance(sources, Sequence | None):
        raise TypeError(f"tools are a list of functions or mappings, not {sources!r:.200}")
    tools = [make_tool(each) for each in sources or ()]
    names = [tool.name for tool in tools]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise TypeError(f"two tools have the name {twice[0]!r}; give one of them another: make_tool(..., name=...)")
    return tools


def _check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise TypeError(
            f"a tool has a name of letters, digits and . _ : -, not {name!r:.100}: make_tool(..., name=...)"
        )
    return name


def _call_validated(adapter: TypeAdapter[Any], /, **arguments: Any) -> Any:
    """Call a function with arguments that fit its type hints."""
    return adapter.validate_python(ArgsKwargs((), arguments))


async def run_calls(tools: Mapping[str, ProgramTool], calls: Sequence[ToolPart]) -> list[ToolPart]:
    """Execute calls at the same time. Return them with their outputs; of one that failed, the error is the output."""
    return list(await asyncio.gather(*[_run(tools, call) for call in calls]))


async def _run(tools: Mapping[str, ProgramTool], call: ToolPart) -> ToolPart:
    tool = tools.get(call.tool_name)
    if tool is None or tool.call is None:
        known = ", ".join(name for name, each in tools.items() if each.call is not None) or "none"
        return _end(call, "", f"there is no tool {call.tool_name!r}; there are: {known}")
    if not isinstance(call.input, dict):
        return _end(call, "", f"the arguments of {call.tool_name} are a JSON object, not {call.input!r:.200}")
    faults: list[Exception] = []
    output = await attempt(_execute(tool, call.input), faults.append)
    return _end(call, output or "", _describe(faults[0]) if faults else "")


async def _execute(tool: ProgramTool, arguments: Mapping[str, Any]) -> str:
    """Call a function, in a thread if it may block, and return its result as text: JSON if it is none."""
    assert tool.call is not None, "the caller has checked it"
    output = tool.call(**arguments) if tool.is_async else await asyncio.to_thread(tool.call, **arguments)
    if isinstance(output, Awaitable):
        output = await output
    return output if isinstance(output, str) else msgspec.json.encode(output, enc_hook=str).decode()


def _describe(error: Exception) -> str:
    if isinstance(error, ValidationError):
        told = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors(include_url=False)]
        return f"the arguments are not valid: {'; '.join(told)}"
    return f"{type(error).__name__}: {error}"


def _end(call: ToolPart, output: str, fault: str = "") -> ToolPart:
    status = ToolStatus("error" if fault else "completed", error_message=fault or None)
    return msgspec.structs.replace(call, output=f"Error: {fault}" if fault else output, status=status)
