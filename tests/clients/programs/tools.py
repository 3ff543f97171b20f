"""The tools that the programs beside this one offer the model, and run. Rule: standard library only; each does what it
says in the working folder.
"""

import json
import os
import subprocess
from pathlib import Path

# The prompts, one a line.
TURNS = tuple(os.environ.get("TURNS", "Read the notes.\nRead them again, please. é").split("\n"))
MOST_CALLS = 100  # of a turn, for frameworks that end at fewer


def read_file(path: str) -> str:
    """Read a file."""
    return Path(path).read_text()


def run_shell_command(command: str) -> str:
    """Run a command in the shell."""
    return subprocess.run(command, shell=True, capture_output=True, text=True, timeout=20, check=True).stdout


def write_file(path: str, content: str) -> str:
    """Write a file."""
    Path(path).write_text(content)
    return f"wrote {len(content)} characters"


FUNCTIONS = {function.__name__: function for function in (read_file, run_shell_command, write_file)}
_PARAMETERS = {"read_file": ["path"], "run_shell_command": ["command"], "write_file": ["path", "content"]}
SCHEMAS = [
    {
        "name": name,
        "description": function.__doc__,
        "parameters": {
            "type": "object",
            "properties": {parameter: {"type": "string"} for parameter in _PARAMETERS[name]},
            "required": _PARAMETERS[name],
        },
    }
    for name, function in FUNCTIONS.items()
]
CHAT_TOOLS = [{"type": "function", "function": schema} for schema in SCHEMAS]


def call(name: str, arguments: str) -> str:
    """What a tool gives for arguments as the model wrote them."""
    return FUNCTIONS[name](**json.loads(arguments))
