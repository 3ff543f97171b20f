"""Shapes of the requests of aider, cline, opencode and qwen-code, with invented content.

Each function returns the messages of a session after so many turns of the user, without the system prompt.
"""

from collections.abc import Sequence

from tests.support.views import RawMessage, act, said, user

TASKS = [f"Change the parser so that it reads the shape number {i}. Never touch the lexer." for i in range(30)]
AIDER_RULES = (
    "# *SEARCH/REPLACE block* Rules:\n\nEvery *SEARCH/REPLACE block* must use this format:\n"
    "1. The *FULL* file path alone on a line.\nAlways put the closing fence on a line of its own.\n"
    "ONLY EVER RETURN CODE IN A *SEARCH/REPLACE BLOCK*!"
)


def source(turn: int) -> str:
    return "\n".join(f"def read_shape_{turn}_{i}(raw):\n    return raw[{i}]" for i in range(60))


def write_aider(turns: int, tasks: Sequence[str] = TASKS) -> list[RawMessage]:
    """Examples, a map of the repository, what was done, the files as they are now, and the task with a template."""
    examples = [
        user("Change get_factorial() to use math.factorial"),
        said("To make this change we need to modify `mathweb/flask/app.py`. Never mind the tests."),
        user("Refactor hello() into its own file."),
        said("To make this change we need a new file `hello.py`."),
        user("I switched to a new code base. Please don't consider the above files or try to edit them any longer."),
        said("Ok."),
    ]
    repo = [
        user("Here are summaries of some files present in my git repository.\nDo not propose changes to these files."),
        said("Ok, I won't try and edit those files without asking first."),
    ]
    done = [m for task in tasks[: turns - 1] for m in (user(task), said(f"I changed it: {'so it is now ' * 60}"))]
    files = [
        user(
            "I have *added these files to the chat* so you can go ahead and edit them.\n\n"
            "*Trust this message as the true contents of these files!*\nAny other messages in the chat may contain "
            f"outdated versions of the files' contents.\n\nsrc/parser.py\n```\n{source(turns)}\n```\n"
        ),
        said("Ok, any changes I propose will be to those files."),
    ]
    return [*examples, *repo, *done, *files, user(f"{tasks[turns - 1]}\n\n{AIDER_RULES}")]


def write_cline(turns: int) -> list[RawMessage]:
    """A task in a tag, results and reminders in the user's role, the state of the editor behind each."""
    state = "<environment_details>\n# VSCode Visible Files\nsrc/parser.py\nAlways look here.\n</environment_details>"
    messages = [user(f"<task>\n{TASKS[0]}\n</task>\n\n# task_progress RECOMMENDED\nYou must keep a list.\n{state}")]
    for turn in range(1, turns):
        messages += [said(f"<read_file>\n<path>src/{turn}.py</path>\n</read_file>")]
        messages += [user(f"[read_file for 'src/{turn}.py'] Result:\n{source(turn)}\n{state}"), said("I see.")]
        messages += [user("[ERROR] You did not use a tool in your previous response! You must use a tool.")]
    return messages


def write_opencode(turns: int) -> list[RawMessage]:
    """Tasks with a file that the client has read, and a reminder in the same message."""
    reminder = "<system-reminder>\nYou must not make any edits. Never commit.\n</system-reminder>"
    messages: list[RawMessage] = []
    for turn in range(turns):
        messages += [
            user(f"{TASKS[turn]}\n{reminder}"),
            user('Called the Read tool with the following input: {"a": 1}'),
        ]
        messages += [*act(f"{turn}", f"cat src/{turn}.py", source(turn)), said(f"Done with {turn}.")]
    return messages


def write_qwen_code(turns: int) -> list[RawMessage]:
    """What the client says of the machine, and its answer; then the tasks."""
    messages = [
        user("This is the Qwen Code. We are setting up the context for our chat.\nAlways mind the directory /src."),
        said("Got it. Thanks for the context!"),
    ]
    for turn in range(turns):
        messages += [user(TASKS[turn]), *act(f"{turn}", f"cat src/{turn}.py", source(turn)), said(f"Done with {turn}.")]
    return messages
