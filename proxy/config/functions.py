"""The functions that settings name by their dotted paths: the hook for prompts of summaries, and the token estimator.

They are found when an engine is built, so that a path that names none is an error of the settings.
"""

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from proxy.config.errors import ConfigError, Problem
from proxy.config.settings import Settings
from proxy.engine.compaction.policy import PromptHook
from proxy.upstream.tokenizer import Estimate, EstimatingTokenizer, import_function
from proxy.wire.json_values import load_lenient

_HOOK, _ESTIMATOR = "compaction.prompt_hook", "budget.estimator"
_NAMED = ("messages", "config")


def find_prompt_hook(settings: Settings) -> PromptHook | None:
    """Return the function that may change the prompts of summaries, or None if no path is set.

    It is called with the instruction and its level, and, where it has parameters of these names, with the `messages`
    that are summarised, as the client's API has them, and with the settings as `config`. One that takes less gets less.
    Raises ConfigError.
    """
    if not settings.compaction.prompt_hook:
        return None
    hook = _find(_HOOK, settings.compaction.prompt_hook, "it is called with an instruction and its level")
    parameters = inspect.signature(hook).parameters
    names, count = _name_arguments(parameters.values())
    wanted = [name for name in _NAMED if name in parameters]
    try:
        inspect.signature(hook).bind(*("", 1)[:count], **dict.fromkeys((*names, *wanted)))
    except TypeError as error:
        what = f"cannot be called with an instruction and its level, nor with messages and config by name: {error}"
        raise ConfigError([Problem(_HOOK, what)]) from None

    def change(instruction: str, level: int, raws: Sequence[bytes]) -> str:
        given: dict[str, Any] = {name: level if is_level else instruction for name, is_level in names.items()}
        if "messages" in wanted:
            given["messages"] = [load_lenient(raw) for raw in raws]
        if "config" in wanted:
            given["config"] = settings
        changed: str = hook(*(instruction, level)[:count], **given)
        return changed

    return change


def _name_arguments(parameters: Iterable[inspect.Parameter]) -> tuple[dict[str, bool], int]:
    """Return which parameters get the instruction (False) or its level (True) by name, and how many do by place.

    Without a name of its own, each parameter gets the next of the two; one called `level` gets the level.
    """
    names: dict[str, bool] = {}
    count = 0
    for each in parameters:
        if each.kind is inspect.Parameter.VAR_POSITIONAL:
            count = 2 - len(names)
        elif each.kind is inspect.Parameter.POSITIONAL_ONLY:
            count += 1
        elif each.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD or each.name in _NAMED:
            continue
        elif (before := count + len(names)) < 2:
            names[each.name] = each.name == "level" or (before == 1 and True not in names.values())
    return names, min(count, 2)


def find_estimator(settings: Settings) -> Estimate | None:
    """Return the function that counts tokens, or None if no path is set. Raises ConfigError."""
    path = settings.budget.estimator
    if not path:
        return None
    if path.startswith("__main__."):
        what = "names the program that runs, which the worker process cannot import; put it into a module of its own"
        raise ConfigError([Problem(_ESTIMATOR, what)])
    estimate = _find(_ESTIMATOR, path, "it is called with a text, and by name with a model")
    if not isinstance(found := EstimatingTokenizer(estimate).try_estimate(""), int):
        what = f"returns no number of tokens, called as estimate('', model=None): {type(found).__name__}: {found}"
        raise ConfigError([Problem(_ESTIMATOR, what)])
    return estimate


def _find(setting: str, path: str, use: str) -> Callable[..., Any]:
    """Return the function of a path. Raises ConfigError, which says what is wrong with it; `use` is what it is for."""
    try:
        return import_function(path)
    except ImportError as error:
        what = f"names a module that cannot be imported: {error}; check the path, or set PYTHONPATH"
        raise ConfigError([Problem(setting, what)]) from error
    except AttributeError:
        what = f"names nothing in the module {path.rpartition('.')[0]}; check its last part"
        raise ConfigError([Problem(setting, what)]) from None
    except TypeError:
        raise ConfigError([Problem(setting, f"names something that is no function; {use}")]) from None
