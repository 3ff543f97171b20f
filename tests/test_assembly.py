"""The wiring: everything is built from settings, and taken down again without a trace."""

import subprocess
import sys
from pathlib import Path

import pytest

from proxy.assembly import (
    build_engine,
    build_models,
    measure,
)
from proxy.config import ConfigError, Settings, load_settings
from proxy.config.functions import find_estimator, find_prompt_hook
from proxy.context.epoch_decision import Holdout
from proxy.engine.compaction.policy import PromptHook
from proxy.engine.runtime import SystemClock, TaskRunner
from proxy.engine.token_counter import Piece
from proxy.model.card import LimitKey
from proxy.reading import build_tally
from proxy.upstream.tokenizer import CountingTokenizer

ROOT = Path(__file__).parents[1]


class Noted:
    """An encoder that keeps what it is asked for."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def warm(self) -> None:
        pass

    def count(self, text: str) -> int:
        self.texts.append(text)
        return 1


def settings_in(data: Path, **flags: object) -> Settings:
    """Settings with their data in a directory."""
    upstreams = [
        {"name": "first", "base_url": "http://127.0.0.1:9/v1", "api_key": "own-key"},
        {"name": "second", "base_url": "http://127.0.0.1:9/v1", "models": ["m-*"]},
    ]
    return load_settings(None, {"data": str(data), "upstreams": upstreams, **flags})


@pytest.mark.parametrize(("kept", "counted"), [(2, ["a", "b", "c", "a"]), (3, ["a", "b", "c"])])
async def test_messages_are_weighed_once_as_far_as_the_cache_goes(
    tmp_path: Path, kept: int, counted: list[str]
) -> None:
    noted, settings = Noted(), settings_in(tmp_path, **{"sessions.cache_bytes": kept * 1024})
    models = build_models(settings, CountingTokenizer(lambda encoding: noted), TaskRunner(), None, SystemClock())
    for name in "abca":
        await models.counter.count_messages("gpt-4o", [b'{"content":"%s"}' % name.encode()])
    assert noted.texts == counted


LIMIT = 300.0


def adapt(prompt: str, level: int) -> str:
    """A hook as a person may write one."""
    return f"{prompt} At level {level}."


def adapt_none(*, style: str) -> str:
    """A hook that nobody can call."""
    return style


def count_letters(text: str, model: str | None = None) -> int:
    """An estimator as a person may write one."""
    return len(text)


def count_without_model(text: str) -> int:
    """One that cannot be asked for a model."""
    return len(text)


def count_roughly(text: str, model: str | None = None) -> float:
    """One that returns no whole number."""
    return len(text) / 4


def adapt_by_name(messages: list[dict[str, str]], config: Settings, level: int) -> str:
    """A hook that takes what it needs by name, and something else first."""
    return f"{messages[0]['content']} {config.compaction.model} {level}"


def adapt_all(*given: object, **beside: object) -> str:
    """A hook that takes whatever comes."""
    return f"{given} {sorted(beside)}"


def adapt_backwards(level: int, prompt: str) -> str:
    """A hook that has its parameters in another order."""
    return f"{level} {prompt}"


def find_hook(path: str) -> PromptHook | None:
    return find_prompt_hook(load_settings(None, {"compaction.prompt_hook": path}))


def test_a_hook_is_found_by_its_path() -> None:
    assert find_hook("") is None
    hook = find_hook(f"{__name__}.adapt")
    assert hook is not None
    assert hook("Write.", 2, [b"{}"]) == "Write. At level 2."


@pytest.mark.parametrize(
    ("name", "said"),
    [("adapt_by_name", "Hello. small 1"), ("adapt_all", "('Write.', 1) []"), ("adapt_backwards", "1 Write.")],
)
def test_a_hook_may_take_messages_and_settings_by_name(name: str, said: str) -> None:
    hook = find_prompt_hook(
        load_settings(None, {"compaction.prompt_hook": f"{__name__}.{name}", "compaction.model": "small"})
    )
    assert hook is not None
    assert hook("Write.", 1, [b'{"role":"user","content":"Hello."}']) == said


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("no_such_package.prompts.adapt", "set PYTHONPATH"),
        (f"{__name__}.nothing", "names nothing in the module"),
        (f"{__name__}.LIMIT", "is no function"),
        (f"{__name__}.adapt_none", "nor with messages and config by name: .*style"),
    ],
)
def test_a_hook_that_is_none_is_an_error_that_says_why(path: str, what: str) -> None:
    with pytest.raises(ConfigError, match=rf"compaction.prompt_hook: .*{what}"):
        find_hook(path)


async def test_tokens_are_counted_by_the_estimator_of_the_settings(tmp_path: Path) -> None:
    assert find_estimator(settings_in(tmp_path)) is None
    settings = settings_in(tmp_path, **{"budget.estimator": f"{__name__}.count_letters"})
    assert await build_tally(settings)("gpt-4o", [b'{"content":"Hello, you there."}']) == (17 + 3,)
    engine = await build_engine(settings)
    assert await engine.models.counter.count_messages("gpt-4o", [b'{"content":"Hello, you there."}']) == (17 + 3,)
    await engine.warm()
    await engine.close()


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("no_such_package.tokens.count", "set PYTHONPATH"),
        ("__main__.count", "a module of its own"),
        (f"{__name__}.LIMIT", "is no function"),
        (f"{__name__}.count_without_model", "returns no number of tokens, .*unexpected keyword"),
        (f"{__name__}.count_roughly", "returns no number of tokens, .*float"),
    ],
)
async def test_an_estimator_that_is_none_is_an_error_that_says_why(tmp_path: Path, path: str, what: str) -> None:
    with pytest.raises(ConfigError, match=rf"budget.estimator: .*{what}"):
        await build_engine(settings_in(tmp_path, **{"budget.estimator": path}))


async def test_an_engine_has_an_upstream_for_each_in_the_settings(tmp_path: Path) -> None:
    engine = await build_engine(settings_in(tmp_path))
    assert [upstream.name for upstream in engine.network.upstreams] == ["first", "second"]
    assert engine.relay.problem == ""
    assert len(engine.tasks) == 0
    await engine.close()


async def test_who_is_only_observed_is_decided_with_the_logs_own_secret(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, **{"compaction.holdout_fraction": 0.25})
    engine = await build_engine(settings)
    holdout = engine.context.admin._states.holdout
    await engine.close()
    again = await build_engine(settings)
    assert again.context.admin._states.holdout == holdout == Holdout(0.25, holdout.secret)
    assert len(holdout.secret) == 32
    await again.close()


async def test_what_is_known_of_models_comes_from_the_settings_first(tmp_path: Path) -> None:
    prices = {"gpt-*": {"input": 3}}
    engine = await build_engine(settings_in(tmp_path, pricing=prices, **{"budget.ceiling_tokens": 50_000}))
    card = engine.models.card("first", "gpt-4o")
    assert (card.window, card.prices.rates.input) == (None, 3e-6)
    await engine.models.open()
    assert engine.models.card("first", "gpt-4o").window == 128_000
    assert engine.models.budget(LimitKey("first", "gpt-4o")).usable == 48_500
    await engine.close()


async def test_sessions_are_measured_by_what_is_known_where_nothing_is_served(tmp_path: Path) -> None:
    prices = {"gpt-*": {"input": 3}}
    yardstick = await measure(settings_in(tmp_path, pricing=prices, **{"budget.soft_fraction": 0.5}))
    assert yardstick.prices.find_card("first", "gpt-4o").prices.rates.input == 3e-6
    assert yardstick.prices.find_card("first", "gpt-4o").window == 128_000
    assert yardstick.policy.soft_fraction == 0.5


async def test_an_engine_that_is_warm_has_its_map_of_models_and_its_usual_encoder(tmp_path: Path) -> None:
    engine = await build_engine(settings_in(tmp_path))
    engine.prepare()
    assert (engine.tokenizer.is_ready("o200k_base"), engine.models.card("first", "gpt-4o").window) == (False, None)
    await engine.warm()
    assert (engine.tokenizer.is_ready("o200k_base"), engine.models.card("first", "gpt-4o").window) == (True, 128_000)
    await engine.close()


async def test_tokens_are_counted_by_encoders_that_are_loaded_at_the_first_count(tmp_path: Path) -> None:
    engine = await build_engine(settings_in(tmp_path))
    piece = Piece(b"digest", b'{"role":"user","content":"tic tac toe"}')
    counted = await engine.models.counter.count("gpt-4o", [piece])
    assert counted.tokens > (3,)
    assert not counted.is_estimate
    await engine.close()


def test_neither_encoders_nor_grammars_are_there_before_they_are_needed() -> None:
    heavy = ("splintr", "tiktoken", "tree_sitter", "tree_sitter_language_pack", "litellm", "httpx", "mcp")
    assert list_imported("proxy.app", *heavy) == []


def test_a_command_that_needs_no_server_does_not_import_one() -> None:
    assert list_imported("proxy.__main__", "proxy.app", "uvicorn", "starlette", "prometheus_client") == []


def list_imported(module: str, *names: str) -> list[str]:
    """Which of the modules are imported with another one."""
    program = f"import sys, {module}; print(*(name for name in {names} if name in sys.modules))"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    return told.stdout.split()


def test_litellm_is_imported_for_an_upstream_of_its_kind_alone(tmp_path: Path) -> None:
    program = """
import asyncio, sys
from proxy.assembly import build_engine
from proxy.config import Settings
async def build(*kinds):
    upstreams = [{"name": f"u{i}", "kind": kind} for i, kind in enumerate(kinds)]
    await (await build_engine(Settings(upstreams=upstreams, data=sys.argv[1]))).close()
    print("litellm" in sys.modules)
asyncio.run(build("openai"))
asyncio.run(build("openai", "litellm"))
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    told = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert told.stdout.split() == ["False", "True"]
    assert told.stderr == ""


async def test_an_engine_that_is_closed_ends_its_worker_process(tmp_path: Path) -> None:
    engine = await build_engine(settings_in(tmp_path))
    assert engine.worker.pid is None
    await engine.warm()
    assert [child for child in list_children() if "proxy.worker.program" in child]
    await engine.close()
    assert not [child for child in list_children() if "proxy.worker.program" in child]


def list_children() -> list[str]:
    """Command lines of this process's children."""
    names = [path.read_text() for path in Path("/proc/self/task").glob("*/children")]
    processes = [Path("/proc") / number / "cmdline" for name in names for number in name.split()]
    return [process.read_text() for process in processes if process.exists()]
