"""The function that may change the prompts of summaries, named by a setting."""

import importlib

from proxy.config.errors import ConfigError, Problem
from proxy.engine.compaction.policy import PromptHook


def find_prompt_hook(path: str) -> PromptHook | None:
    """Return the function that may change the prompts of summaries, or None if no path is set. Raises ConfigError."""
    if not path:
        return None
    module, _, name = path.rpartition(".")
    try:
        hook: PromptHook = getattr(importlib.import_module(module), name)
    except ImportError as error:
        what = f"names a module that cannot be imported: {error}; check the path, or set PYTHONPATH"
        raise ConfigError([Problem("compaction.prompt_hook", what)]) from error
    except AttributeError:
        what = f"names nothing in the module {module}; check its last part"
        raise ConfigError([Problem("compaction.prompt_hook", what)]) from None
    if not callable(hook):
        what = "names something that is no function; it is called with an instruction and its level"
        raise ConfigError([Problem("compaction.prompt_hook", what)])
    return hook
