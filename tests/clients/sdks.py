"""The SDK clients: programs of ours on top of them, and the command `llm`.

Rule: an SDK sends the same bytes for the same history, so nothing is masked.
"""

from tests.clients.client import Client, Expected, Tree

# Two turns, each of four answers: a pair of calls, one, one, and the last.
_CALLS = 8
_TALK = Tree(("root append*7",))
_TRACING_OFF = {"OPENAI_AGENTS_DISABLE_TRACING": "1", "LANGSMITH_TRACING": "false", "LANGCHAIN_TRACING_V2": "false"}
_LITELLM = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_TELEMETRY": "False"}

FUNCTIONS = "from tools import read_file, run_shell_command, write_file"
_MODEL_OF_LLM = """\
- model_id: scripted
  model_name: scripted
  can_stream: true
  supports_tools: true
"""


def run_program(name: str) -> tuple[tuple[str, ...], ...]:
    """The command of one of our programs."""
    return (("python", f"$programs/{name}.py"),)


SDKS = (
    Client("openai-python", "pip", run_program("openai_python"), Expected(4 * _CALLS, 4 * (_TALK,))),
    Client("openai-agents", "pip", run_program("openai_agents"), Expected(4 * _CALLS, 4 * (_TALK,)), _TRACING_OFF),
    Client(
        "langchain-openai", "pip", run_program("langchain_client"), Expected(4 * _CALLS, 4 * (_TALK,)), _TRACING_OFF
    ),
    Client("pydantic-ai", "pip", run_program("pydantic_agent"), Expected(4 * _CALLS, 4 * (_TALK,))),
    Client("litellm", "pip", run_program("litellm_sdk"), Expected(2 * _CALLS, 2 * (_TALK,)), _LITELLM),
    Client(
        "llm",
        "pip",
        (
            ("llm", "-m", "scripted", "--functions", FUNCTIONS, "Read the notes."),
            ("llm", "-c", "--functions", FUNCTIONS, "Read them again, please. é"),
            ("llm", "-c", "--no-stream", "And without tools?"),
        ),
        # The last turn has no tools, hence one call. It is a turn of the conversation all the same.
        Expected(_CALLS + 1, (Tree(("root append*8",)),)),
        {"LLM_USER_PATH": "$home/llm", "PYTHONPATH": "$programs"},
        {"$home/llm/extra-openai-models.yaml": _MODEL_OF_LLM},
    ),
    Client(
        "openai-node",
        "npm",
        (("node", "$programs/openai_node.mjs"),),
        Expected(4 * _CALLS, 4 * (_TALK,)),
        {"NODE_PATH": "$packages"},
    ),
    Client(
        "ai-sdk",
        "npm",
        (("node", "$programs/ai_sdk.mjs"),),
        Expected(4 * _CALLS, 4 * (_TALK,)),
        {"NODE_PATH": "$packages"},
    ),
)
