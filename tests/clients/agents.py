"""The agent clients: whole programs, started headless.

Rule: what is masked of their requests is named with its reason.
"""

import re

from tests.clients.client import Client, Expected, Tree
from tests.clients.masking import blank, number_ids, sort_member
from tests.clients.script import CONTENT, COPY, NOTE, Script

_FIRST, _SECOND = "Read the notes.", "Read them again, please. é"
_LITELLM = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_TELEMETRY": "False"}
_GIT = {
    f"GIT_{role}_{part}": value
    for role in ("AUTHOR", "COMMITTER")
    # With the same date a commit has the same name.
    for part, value in (("NAME", "journey"), ("EMAIL", "journey@localhost"), ("DATE", "2026-01-01T00:00:00Z"))
}

CODEX = """\
model = "scripted"
model_provider = "journeys"
check_for_update_on_startup = false

[model_providers.journeys]
name = "journeys"
base_url = "http://127.0.0.1:9/v1"
env_key = "OPENAI_API_KEY"
wire_api = "responses"

[analytics]
enabled = false
"""
OPENCODE = """\
{
  "autoupdate": false,
  "share": "disabled",
  "provider": {
    "journeys": {
      "npm": "@ai-sdk/openai-compatible",
      "options": {"baseURL": "http://127.0.0.1:9/v1", "apiKey": "sk-dummy"},
      "models": {"scripted": {"name": "scripted"}}
    }
  }
}
"""

QWEN = """\
{
  "privacy": {"usageStatisticsEnabled": false},
  "telemetry": {"enabled": false},
  "general": {"enableAutoUpdate": false}
}
"""

GEMINI = """\
{
  "privacy": {"usageStatisticsEnabled": false},
  "telemetry": {"enabled": false},
  "general": {"disableAutoUpdate": true, "disableUpdateNag": true},
  "security": {"auth": {"selectedType": "gemini-api-key"}}
}
"""

PI = """\
{
  "providers": {
    "journeys": {
      "baseUrl": "$origin/v1",
      "api": "openai-completions",
      "apiKey": "sk-dummy",
      "models": [{"id": "scripted"}]
    }
  }
}
"""

AIDER = (
    "aider", "--model", "openai/scripted", "--edit-format", "whole", "--yes-always", "--no-check-update",
    "--analytics-disable", "--no-show-model-warnings", "--no-show-release-notes", "--no-pretty", "--no-gitignore",
    "--no-suggest-shell-commands", "--map-tokens", "0",
)  # fmt: skip
CLAUDE = ("claude", "--model", "scripted", "--allowedTools", "Bash,Read,Write", "-p")
PI_PRINT = ("pi", "--provider", "journeys", "--model", "scripted", "-p")
COPILOT = ("copilot", "--allow-all-tools", "--no-color", "-p")
CODEX_EXEC = ("codex", "exec", "--skip-git-repo-check", "--sandbox", "danger-full-access")


def _mask_codex(body: bytes) -> bytes:
    """Its metadata have their keys in random order; items, turns and threads have random ids; commands get a random
    name and are timed.
    """
    body = number_ids(sort_member(body, "client_metadata"))
    return blank(body, r"Chunk ID: (\w+)", r"Wall time: ([\d.]+)", r"_at_unix_ms\W+(\d+)")


def _mask_opencode(body: bytes) -> bytes:
    """What a subagent did comes back with its session's random id."""
    return number_ids(body, re.compile(rb"ses_\w{26}"))


def _mask_claude(body: bytes) -> bytes:
    """An installation has a random id of 64 digits, a session a UUID; a subagent's id and time come with its report."""
    body = number_ids(number_ids(body), re.compile(rb'(?<=device_id\\":\\")[0-9a-f]{64}'))
    body = number_ids(body, re.compile(rb"(?<=agentId: )\w{17}|(?<=with to: ')\w{17}"))
    return blank(body, r"duration_ms: (\d+)")


def _mask_gemini(body: bytes) -> bytes:
    """A call without an id gets one of the time at which it was made; a command tells its process."""
    return blank(number_ids(body, re.compile(rb'(?<="id":")\w+_\d{13}_\d+')), r"Process Group PGID: (\d+)")


def _mask_copilot(body: bytes) -> bytes:
    """Its prompt names the folder of its session, and each message the time at which it was sent."""
    return blank(number_ids(body), r"<current_datetime>([^<]+)<")


AGENTS: tuple[Client, ...] = (
    Client(
        "aider",
        "pip",
        (
            (*AIDER, "--message", _FIRST, "notes.txt"),
            (*AIDER, "--restore-chat-history", "--message", _SECOND, "notes.txt"),
        ),
        # It restores its history from Markdown, and not as it was: the second process has a conversation of its own, as
        # has the commit message, which shows nothing that was answered. In the second one its tail has changed.
        Expected(4, (Tree(("root",)), Tree(("root",)), Tree(("root", "branch")))),
        _LITELLM | _GIT,
        needs=("git",),
        newest_python=(3, 12),
        script=Script(prose=f"I will write a copy.\n\n{COPY}\n```\n{CONTENT}```\n"),
    ),
    Client(
        "mini-swe-agent",
        "pip",
        (("mini", "-y", "--exit-immediately", "-m", "openai/scripted", "-t", _FIRST, "-o", "$home/trajectory.json"),),
        Expected(3, (Tree(("root append*2",)),)),
        _LITELLM
        | {"MSWEA_CONFIGURED": "true", "MSWEA_COST_TRACKING": "ignore_errors", "MSWEA_GLOBAL_CONFIG_DIR": "$home"},
        script=Script(ending="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"),
    ),
    Client(
        "codex",
        "npm",
        ((*CODEX_EXEC, _FIRST), (*CODEX_EXEC, "resume", "--last", _SECOND)),
        Expected(6, (Tree(("root append*5",)),), names="codex:"),
        files={"$home/.codex/config.toml": CODEX},
        normal=_mask_codex,
    ),
    Client(
        "opencode",
        "npm",
        (
            ("opencode", "run", "--model", "journeys/scripted", "--auto", _FIRST),
            ("opencode", "run", "--model", "journeys/scripted", "--auto", "--continue", _SECOND),
        ),
        # The title is asked for on the side; a subagent has a session of its own.
        Expected(14, (Tree(("root append*8", "(root)?")), Tree(("root append*3",), parent=0)), names="x-session-id:"),
        {
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
            "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
        },
        {"$home/.config/opencode/opencode.json": OPENCODE},
        # It asks for a title and for the first answer at the same time.
        is_ordered=False,
        script=Script(helper="general"),
        normal=_mask_opencode,
    ),
    Client(
        "claude-code",
        "npm",
        ((*CLAUDE, _FIRST), (*CLAUDE, _SECOND, "--continue")),
        Expected(13, (Tree(("root append*8",)), Tree(("root append*3",), parent=0)), names="claude-code:"),
        {
            "ANTHROPIC_API_KEY": "sk-ant-dummy",
            "DISABLE_TELEMETRY": "1",
            "DISABLE_ERROR_REPORTING": "1",
            "DISABLE_AUTOUPDATER": "1",
            # A subagent in the background would run beside the conversation, in an order of chance.
            "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
        },
        {"$home/.claude.json": '{"hasCompletedOnboarding": true}'},
        normal=_mask_claude,
        script=Script(helper="general-purpose"),
    ),
    Client(
        "qwen-code",
        "npm",
        (
            ("qwen", "--auth-type", "openai", "-m", "scripted", "--yolo", "-p", _FIRST),
            ("qwen", "--auth-type", "openai", "-m", "scripted", "--yolo", "--continue", "-p", _SECOND),
        ),
        # Its first message lists the folder, which has changed when it goes on: known by its calls, from a new root.
        Expected(8, (Tree(("root append*3", "root append*3")),)),
        files={"$home/.qwen/settings.json": QWEN},
        # It may miss what a command wrote that ends at once.
        script=Script(command=f"cat {NOTE}; sleep 1"),
    ),
    Client(
        "cline",
        "npm",
        (
            (
                "cline",
                "auth",
                "-p",
                "openai-compatible",
                "-k",
                "sk-dummy",
                "-m",
                "scripted",
                "-b",
                "http://127.0.0.1:9/v1",
            ),
            ("cline", "--auto-approve", "true", _FIRST),
        ),
        # One turn: it goes on with a conversation in a terminal only. The subagent's conversation is the second;
        # nothing on the wire says who started it.
        Expected(9, (Tree(("root append*4",)), Tree(("root append*3",)))),
        {"CLINE_TELEMETRY_DISABLED": "1", "CLINE_NO_AUTO_UPDATE": "1"},
        script=Script(helper="any"),
    ),
    Client(
        "gemini-cli",
        "npm",
        (
            ("gemini", "-m", "scripted", "--yolo", "--skip-trust", "-p", _FIRST),
            ("gemini", "-m", "scripted", "--yolo", "--skip-trust", "--resume", "latest", "-p", _SECOND),
        ),
        # Its wire is not read: calls pass, and are kept.
        Expected(0, ()),
        {"GEMINI_API_KEY": "dummy", "GOOGLE_GEMINI_BASE_URL": "$origin", "GEMINI_CLI_TRUST_WORKSPACE": "true"},
        {"$home/.gemini/settings.json": GEMINI},
        normal=_mask_gemini,
    ),
    Client(
        "pi",
        "npm",
        ((*PI_PRINT, _FIRST), (*PI_PRINT, _SECOND, "--continue")),
        Expected(8, (Tree(("root append*7",)),)),
        {"PI_CODING_AGENT_DIR": "$home/pi", "PI_OFFLINE": "1"},
        {"$home/pi/models.json": PI},
    ),
    Client(
        "copilot-cli",
        "npm",
        ((*COPILOT, _FIRST), (*COPILOT, _SECOND, "--continue")),
        Expected(8, (Tree(("root append*7",)),)),
        {
            "COPILOT_PROVIDER_BASE_URL": "$origin",
            "COPILOT_PROVIDER_TYPE": "anthropic",
            "COPILOT_PROVIDER_API_KEY": "sk-ant-dummy",
            "COPILOT_MODEL": "scripted",
            "COPILOT_OFFLINE": "true",
            "COPILOT_AUTO_UPDATE": "false",
        },
        normal=_mask_copilot,
    ),
)
