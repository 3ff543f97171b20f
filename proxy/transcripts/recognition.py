"""Which client's transcript a file is, by its content, and where clients keep theirs."""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice

from proxy.transcripts.aider import is_aider, read_aider
from proxy.transcripts.call_records import is_call_record, read_call_records
from proxy.transcripts.claude_code import is_claude_code, read_claude_code
from proxy.transcripts.cline import is_cline, read_cline
from proxy.transcripts.codex import is_codex, read_codex
from proxy.transcripts.opencode import is_opencode, read_opencode
from proxy.transcripts.qwen_code import is_qwen_code, read_qwen_code
from proxy.transcripts.transcript import Client, Transcript, TranscriptFile, read_json, read_lines

Reader = Callable[[TranscriptFile], Iterator[Transcript]]

USUAL_PLACES: Mapping[str, tuple[str, ...]] = {
    "claude-code": (".claude/projects/**/*.jsonl", ".config/claude/projects/**/*.jsonl"),
    "codex": (".codex/sessions/**/rollout-*.jsonl", ".codex/archived_sessions/**/rollout-*.jsonl"),
    "opencode": (".local/share/opencode/opencode*.db", ".local/share/opencode/storage"),
    "qwen-code": (".qwen/projects/*/chats/*.jsonl",),
    "cline": (
        ".cline/data/sessions/*/*.messages.json",
        ".cline/data/tasks/*/api_conversation_history.json",
        ".config/Code/User/globalStorage/saoudrizwan.claude-dev/tasks/*/api_conversation_history.json",
    ),
    "aider": (".aider.llm.history", ".aider.chat.history.md"),
}
"""Patterns of the files that clients keep, below the home directory; aider keeps its own in the working directory."""

SUFFIXES = (".jsonl", ".json", ".db", ".history", ".md")
"""How the names of transcripts end."""

_LOOKED_AT = 40  # lines from which the kind of a file is seen
_READERS: Mapping[Client, Reader] = {
    "claude-code": read_claude_code,
    "codex": read_codex,
    "opencode": read_opencode,
    "qwen-code": read_qwen_code,
    "cline": read_cline,
    "aider": read_aider,
    "calls": read_call_records,
}


def recognise(file: TranscriptFile) -> Client | None:
    """Return whose transcript this is, None if it is none."""
    if file.tables:
        return "opencode" if is_opencode(file.tables) else None
    if file.path.endswith((".md", ".history")) or not file.text.lstrip().startswith(("{", "[")):
        return "aider" if is_aider(file.text) else None
    lines = read_lines("\n".join(islice(iter(file.text.split("\n", _LOOKED_AT)), _LOOKED_AT))).values
    if is_codex(lines):
        return "codex"
    if is_qwen_code(lines):
        return "qwen-code"
    if is_claude_code(lines):
        return "claude-code"
    if is_call_record(lines):
        return "calls"
    return "cline" if not file.path.endswith(".jsonl") and is_cline(read_json(file.text)) else None


def read_transcripts(file: TranscriptFile) -> list[Transcript]:
    """Return the sessions of a file; none if it is no transcript."""
    client = recognise(file)
    return [*_READERS[client](file)] if client is not None else []
