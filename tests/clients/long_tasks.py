"""The long task of each client: how it is started for it, what the log has to make of it, and the ceiling.

Rule: values only. A ceiling is the smallest of 16K, 24K, 32K and 48K that leaves room beside the client's own system
prompt and tools. Where a client compacts by itself, it is told a window that the task fills without us.
"""

from collections.abc import Mapping
from dataclasses import replace

from tests.clients.agents import AIDER, CLAUDE, CODEX, CODEX_EXEC, COPILOT, OPENCODE, PI, PI_PRINT, QWEN
from tests.clients.client import Expected, Long, Tree
from tests.clients.script import Script
from tests.clients.sdks import FUNCTIONS, run_program
from tests.clients.task import PARTS, LongTask, prompt_for, write_part

_HALF = PARTS // 2
_FIRST, _SECOND = prompt_for(1), prompt_for(_HALF + 1)
# A call for each part, and one that ends each turn.
_CALLS = PARTS + 2
_TALK = Tree((f"root append*{_CALLS - 1}",))
# What an agent that can be resumed is put to: the model recalls before a step, and beside one.
_RECALLING = LongTask(recalls=(27, 52), beside=(40,))
_GO_ON = "Go on, please."
# It is killed in its 14th step, and takes up to so many again.
_KILLED = Expected(_CALLS + 2, (_TALK,), spare=16)
_TURNS = {"TURNS": f"{_FIRST}\n{_SECOND}"}


def _make_long(commands: tuple[tuple[str, ...], ...], variants: int) -> Long:
    """The task of one of our programs, which makes it once for each way to use its SDK."""
    return Long(commands, Expected(variants * _CALLS, variants * (_TALK,)), 16_000, settings=_TURNS)


LONG_TASKS: Mapping[str, Long] = {
    "openai-python": _make_long(run_program("openai_python"), 4),
    "openai-agents": _make_long(run_program("openai_agents"), 4),
    "langchain-openai": _make_long(run_program("langchain_client"), 4),
    "pydantic-ai": _make_long(run_program("pydantic_agent"), 4),
    "litellm": _make_long(run_program("litellm_sdk"), 2),
    "openai-node": _make_long((("node", "$programs/openai_node.mjs"),), 4),
    "ai-sdk": _make_long((("node", "$programs/ai_sdk.mjs"),), 4),
    "llm": Long(
        (
            ("llm", "-m", "scripted", "--chain-limit", "0", "--functions", FUNCTIONS, _FIRST),
            ("llm", "-c", "--chain-limit", "0", "--functions", FUNCTIONS, _SECOND),
        ),
        Expected(_CALLS, (_TALK,)),
        16_000,
    ),
    "mini-swe-agent": Long(
        (("mini", "-y", "--exit-immediately", "-m", "openai/scripted", "-t", _FIRST, "-o", "$home/trajectory.json"),),
        # It has no second turn.
        Expected(PARTS + 1, (Tree((f"root append*{PARTS}",)),)),
        16_000,
        task=LongTask(PARTS, Script(ending="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")),
    ),
    "codex": Long(
        ((*CODEX_EXEC, _FIRST), (*CODEX_EXEC, "resume", "--last", _SECOND)),
        Expected(_CALLS, (_TALK,), names="codex:"),
        32_000,
        files={"$home/.codex/config.toml": f"model_context_window = 100000\n{CODEX}"},
        alone=True,
        task=_RECALLING,
        resume=(*CODEX_EXEC, "resume", "--last", _GO_ON),
        killed=replace(_KILLED, names="codex:"),
        tells_window=False,
    ),
    "opencode": Long(
        (
            ("opencode", "run", "--model", "journeys/scripted", "--auto", _FIRST),
            ("opencode", "run", "--model", "journeys/scripted", "--auto", "--continue", _SECOND),
        ),
        Expected(_CALLS + 1, (Tree((f"root append*{_CALLS - 1}", "(root)?")),), names="x-session-id:"),
        32_000,
        files={
            "$home/.config/opencode/opencode.json": OPENCODE.replace(
                '{"name": "scripted"}', '{"name": "scripted", "limit": {"context": 100000, "output": 8000}}'
            )
        },
        alone=True,
        task=_RECALLING,
        resume=("opencode", "run", "--model", "journeys/scripted", "--auto", "--continue", _GO_ON),
        killed=replace(_KILLED, names="x-session-id:"),
    ),
    "claude-code": Long(
        ((*CLAUDE, _FIRST), (*CLAUDE, _SECOND, "--continue")),
        Expected(_CALLS, (_TALK,), names="claude-code:"),
        48_000,
        settings={"CLAUDE_CODE_AUTO_COMPACT_WINDOW": "100000", "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "8000"},
        alone=True,
        task=_RECALLING,
        resume=(*CLAUDE, _GO_ON, "--continue"),
        killed=replace(_KILLED, names="claude-code:"),
    ),
    "qwen-code": Long(
        (
            ("qwen", "--auth-type", "openai", "-m", "scripted", "--yolo", "-p", _FIRST),
            ("qwen", "--auth-type", "openai", "-m", "scripted", "--yolo", "--continue", "-p", _SECOND),
        ),
        # Its first message lists the folder: it goes on from a new root, as in its short journey.
        Expected(_CALLS, (Tree((f"root append*{_HALF}", f"root append*{_HALF}")),)),
        32_000,
        files={
            "$home/.qwen/settings.json": QWEN.replace(
                '"privacy"', '"model": {"generationConfig": {"contextWindowSize": 100000}},\n  "privacy"'
            )
        },
        task=LongTask(pause="; sleep 0.3"),
        alone=True,
    ),
    "cline": Long(
        (
            (
                *("cline", "auth", "-p", "openai-compatible", "-k", "sk-dummy", "-m", "scripted"),
                *("-b", "http://127.0.0.1:9/v1"),
            ),
            # Its own compaction goes by what it counts itself, and not by what is reported.
            ("cline", "--auto-approve", "true", "--compaction", "off", _FIRST),
        ),
        # One turn, as in its short journey.
        Expected(PARTS + 1, (Tree((f"root append*{PARTS}",)),)),
        32_000,
        task=LongTask(PARTS),
    ),
    "aider": Long(
        (
            (*AIDER, "--no-git", "--max-chat-history-tokens", "1000000"),
            (*AIDER, "--no-git", "--max-chat-history-tokens", "1000000", "--restore-chat-history"),
        ),
        # It has no tools: each step is a prompt that holds its part. It restores its history from Markdown, and not as
        # it was, so that the second process has a conversation of its own. The end of each request is written anew.
        Expected(PARTS, 2 * (Tree(("root", "branch", f"branch volatile*{_HALF - 3}")),)),
        16_000,
        task=LongTask(is_prose=True),
        inputs=tuple(
            "".join(f"Begin with part-{n:02}: {' | '.join(write_part(n).split(chr(10)))}\n" for n in range(start, end))
            for start, end in ((1, _HALF + 1), (_HALF + 1, PARTS + 1))
        ),
    ),
    "pi": Long(
        ((*PI_PRINT, _FIRST), (*PI_PRINT, _SECOND, "--continue")),
        Expected(_CALLS, (_TALK,)),
        16_000,
        files={
            "$home/pi/models.json": PI.replace('"scripted"}', '"scripted", "contextWindow": 100000, "maxTokens": 4000}')
        },
        alone=True,
        task=_RECALLING,
        resume=(*PI_PRINT, _GO_ON, "--continue"),
        killed=_KILLED,
    ),
    "copilot-cli": Long(
        ((*COPILOT, _FIRST), (*COPILOT, _SECOND, "--continue")),
        Expected(_CALLS, (_TALK,)),
        32_000,
        # Its own compaction goes by what it counts itself: the window is one that the task does not fill.
        settings={"COPILOT_PROVIDER_MAX_PROMPT_TOKENS": "400000", "COPILOT_PROVIDER_MAX_OUTPUT_TOKENS": "8000"},
        # It joins the texts of an answer: one of two rounds with texts comes back otherwise, and is not known again.
        task=replace(_RECALLING, thought=""),
        resume=(*COPILOT, _GO_ON, "--continue"),
        # It keeps its conversation behind its calls: what it knows of the newest ones after a kill, chance decides.
        killed=_KILLED,
    ),
}
