"""Reader of Claude Code's transcripts: `projects/DIRECTORY/SESSION.jsonl`, and `SESSION/subagents/agent-ID.jsonl`.

A line is one event. An answer has a line for each of its blocks. Since 2.1.3 `api-request` lines say what each request
held: how many messages of the one before, and digests of the new ones. Those that the other lines do not have stand in
`api-request-blob` lines; system prompt and tools are in `api-request-shape`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from proxy.model.exchange import Usage
from proxy.transcripts.transcript import (
    CallHistory,
    Transcript,
    TranscriptFile,
    Value,
    encode,
    read_lines,
    read_list,
    read_map,
    read_number,
    read_parts,
    read_time,
)
from proxy.wire.json_values import read_text

_EVENTS = frozenset({"user", "assistant", "system", "api-request", "api-request-blob", "api-request-shape"})
# Lines that say nothing of requests.
_OTHER = frozenset(
    {
        "summary",
        "attachment",
        "file-history-snapshot",
        "queue-operation",
        "last-prompt",
        "tools-used",
        "mode",
        "progress",
    }
    | {"custom-title", "ai-title", "agent-name", "tag", "pr-link", "cost-state", "atis-latch", "permission-mode"}
)
_NO_MODEL = "<synthetic>"  # what the client says itself, for example of an error
_MISSING = ("its system prompt", "its tools", "what the client adds to messages")
_USUAL = "5m"
_OF_USER = b'{"role":"user"'


@dataclass(slots=True)
class _Answer:
    """An answer: its blocks, of which each line has one, and what is said of it."""

    id: str
    model: str
    at_ms: int
    blocks: list[Value] = field(default_factory=list)
    usage: Usage | None = None


@dataclass(slots=True)
class _Message:
    """A line of the user: a prompt, or results of tools."""

    line: Value
    blocks: list[Value]

    @property
    def is_prompt(self) -> bool:
        """Whether it has no result of a tool, so that its parent says where the conversation goes on."""
        return not any(block.get("type") == "tool_result" for block in self.blocks)


@dataclass(slots=True)
class _Requests:
    """What a transcript has of requests: messages by their digest, and the other members by that of the shape."""

    blobs: dict[str, bytes] = field(default_factory=dict)
    shapes: dict[str, Value] = field(default_factory=dict)


def is_claude_code(lines: Iterable[Value]) -> bool:
    """Return whether these are lines of such a transcript."""
    return any("sessionId" in line and ("uuid" in line or line.get("type") in _EVENTS) for line in lines)


def read_claude_code(file: TranscriptFile) -> Iterator[Transcript]:
    """Yield the sessions of a file: the conversation, and those of subagents that older versions kept in it."""
    lines = read_lines(file.text)
    unknown = sum(line.get("type") not in _EVENTS | _OTHER for line in lines.values)
    chains: dict[str, list[Value]] = {}
    roots: dict[str, str] = {}
    for line in lines.values:
        chains.setdefault(_name_chain(line, roots), []).append(line)
    for n, (agent, own) in enumerate(chains.items()):
        found = _read_chain(own, agent, file.path, broken=0 if n else lines.broken, unknown=0 if n else unknown)
        if found is not None:
            yield found


def _name_chain(line: Value, roots: dict[str, str]) -> str:
    """Return the subagent that a line belongs to, or an empty string for the conversation itself."""
    if not line.get("isSidechain") and not line.get("agentId"):
        return ""
    if agent := read_text(line.get("agentId")):
        return agent
    own = read_text(line.get("uuid"))
    roots[own] = root = roots.get(read_text(line.get("parentUuid")), own)
    return root


def _read_chain(lines: list[Value], agent: str, path: str, *, broken: int, unknown: int) -> Transcript | None:
    builder = _ClaudeCodeBuilder(_read_requests(lines))
    for event in _merge_answers(lines):
        builder.add(event)
    conversation = builder.conversation
    if not conversation.calls:
        return None
    first = next(line for line in lines if line.get("sessionId"))
    session, version = (
        read_text(first.get("sessionId")),
        next((read_text(x["version"]) for x in lines if "version" in x), ""),
    )
    return Transcript(
        f"{session}/{agent}" if agent else session,
        "claude-code",
        "anthropic_messages",
        conversation.freeze(),
        tuple(conversation.calls),
        version=version,
        provider="anthropic",
        head=builder.head,
        missing=() if builder.is_whole else _MISSING,
        lifetime=builder.lifetime,
        parent=session if agent else "",
        source=path,
        broken=broken,
        unknown=unknown,
    )


def _read_requests(lines: Iterable[Value]) -> _Requests:
    found = _Requests()
    for line in lines:
        if line.get("type") == "api-request-blob":
            found.blobs[read_text(line.get("hash"))] = encode(read_map(line.get("message")))
        elif line.get("type") == "api-request-shape":
            found.shapes[read_text(line.get("shapeHash"))] = read_map(line.get("shape"))
    return found


def _merge_answers(lines: Iterable[Value]) -> Iterator["_Answer | _Message | Value"]:
    """Yield the events of a chain in order, each answer once with all of its blocks, other lines as they are."""
    events: list[_Answer | _Message | Value] = []
    newest: _Answer | None = None
    for line in lines:
        message = read_map(line.get("message"))
        if line.get("type") == "assistant" and not line.get("isApiErrorMessage"):
            id, model = read_text(message.get("id")), read_text(message.get("model"))
            if model == _NO_MODEL:
                continue
            if newest is None or newest.id != id:
                newest = _Answer(id, model, read_time(line.get("timestamp")))
                events.append(newest)
            newest.blocks += read_parts(message.get("content"))
            newest.usage = _read_usage(read_map(message.get("usage"))) or newest.usage
        elif line.get("type") == "user" and not line.get("isVisibleInTranscriptOnly"):
            events.append(_Message(line, read_parts(message.get("content"))))
        events.append(line)
    return iter(events)


def _read_usage(usage: Value) -> Usage | None:
    """Return a usage, with what was read of the cache and written to it as parts of the input."""
    fresh, output = read_number(usage.get("input_tokens")), read_number(usage.get("output_tokens"))
    if fresh is None:
        return None
    read = read_number(usage.get("cache_read_input_tokens")) or 0
    written = read_number(usage.get("cache_creation_input_tokens")) or 0
    whole = fresh + read + written
    return Usage(whole, output, read, written) if whole else None


class _ClaudeCodeBuilder:
    """Makes a conversation of the events of a chain."""

    def __init__(self, requests: _Requests) -> None:
        self._requests = requests
        self._pending: list[Value] = []  # blocks of the user since the last answer
        self._request: Value | None = None
        self._depths: dict[str, int] = {}  # of the conversation, by the id of a line
        self._unstated = 0  # answers whose request no line states
        self._stated = 0  # messages of the conversation that the last request had
        self._known: dict[str, bytes] = {}  # the messages of requests by their digests
        self.conversation = CallHistory()
        self.head: Mapping[str, object] = {}
        self.lifetime = ""

    @property
    def is_whole(self) -> bool:
        """Whether all requests are stated in the transcript."""
        return bool(self.head) and not self._unstated

    def add(self, event: "_Answer | _Message | Value") -> None:
        """Add what follows."""
        if isinstance(event, _Answer):
            self._add_answer(event)
        elif isinstance(event, _Message):
            self._add_message(event)
        else:
            if event.get("type") == "api-request":
                self._request = event
            if id := read_text(event.get("uuid")):
                self._depths[id] = len(self.conversation.trail)

    def _add_message(self, message: _Message) -> None:
        if message.line.get("isCompactSummary"):
            self.conversation.restart()
            self._pending = []
        parent = self._depths.get(read_text(message.line.get("parentUuid")))
        if message.is_prompt and parent is not None and not self._pending:
            self.conversation.truncate(parent)  # the user went back, and goes on from there
        self._pending += message.blocks

    def _add_answer(self, answer: _Answer) -> None:
        request, self._request = self._request, None
        if request is None or not self._add_stated(request):
            self._unstated += 1
            if self._pending:
                self.conversation.add(encode({"role": "user", "content": self._pending}))
        self._pending = []
        self.lifetime = self.lifetime or _USUAL
        raw = encode({"role": "assistant", "content": answer.blocks})
        self.conversation.call([raw], answer.model, answer.usage, answer.at_ms)

    def _add_stated(self, request: Value) -> bool:
        """Add the messages that a request states as new. Return whether all of them are known."""
        keep, tail = read_number(request.get("keep")), [read_text(each) for each in read_list(request.get("tail"))]
        shape = self._requests.shapes.get(read_text(request.get("shapeHash")))
        if keep is None or shape is None:
            return False
        own = list(self.conversation.trail[self._stated :])  # what no request has stated yet
        if self._pending:
            own.append(encode({"role": "user", "content": self._pending}))
        found: list[bytes] = []
        for digest in tail:
            raw = self._known.get(digest)
            if raw is None:
                raw = self._requests.blobs.get(digest)
                if raw is None and not own:
                    return False
                if raw is None or (own and own[0].startswith(_OF_USER) and raw.startswith(_OF_USER)):
                    spoken = own.pop(0)
                    raw = spoken if raw is None else raw
                self._known[digest] = raw
            found.append(raw)
        self.conversation.continue_from(keep, found)
        self._stated = len(self.conversation.trail)
        self._note_head(request, shape)
        return True

    def _note_head(self, request: Value, shape: Value) -> None:
        markers = [read_map(each) for each in read_list(request.get("cacheControl"))]
        params = {name: value for name, value in read_map(request.get("params")).items() if name != "betas"}
        system = [dict(read_map(block)) for block in read_list(shape.get("system"))]
        for marker in markers:
            path, value = read_list(marker.get("path")), read_map(marker.get("value"))
            self.lifetime = read_text(value.get("ttl")) or self.lifetime
            if len(path) == 2 and path[0] == "system" and isinstance(path[1], int) and path[1] < len(system):
                system[path[1]]["cache_control"] = value
        if not self.head:
            members = {"system": system, "tools": read_list(shape.get("tools"))}
            self.head = {name: value for name, value in (params | members).items() if value}
