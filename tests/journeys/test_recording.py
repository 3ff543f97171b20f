"""The examples of docs/recording.md, as they stand there: the providers' own SDKs, and a running proxy."""

import contextlib
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.journeys.provider import WORDS, Provider, run_provider
from tests.journeys.running import TOKEN, run_proxy

PAGE = (Path(__file__).parents[2] / "docs" / "recording.md").read_text()
OPENAI, TOOLS, ANTHROPIC, HTTP = re.findall(r"(?s)```python\n(.*?)```", PAGE)
SAID = "".join(WORDS)


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with run_provider() as running:
        yield running


@pytest.fixture
def environment(provider: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Provider:
    """What a program has in its environment: keys, where the SDKs call, and where the log is."""
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, "sk-journey-0123456789abcdef")
    monkeypatch.setenv("OPENAI_BASE_URL", provider.base_url)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", provider.base_url.removesuffix("/v1"))
    monkeypatch.setenv("PALIMPSEST_DATA", str(tmp_path))
    provider.seen.clear()
    return provider


def run_example(text: str) -> list[str]:
    """The lines that an example prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(text, "docs/recording.md", "exec"), {"__name__": "__main__"})  # an example of ours
    return printed.getvalue().splitlines()


def list_roles(provider: Provider) -> list[list[str]]:
    """The roles of the messages of each call."""
    return [[each["role"] for each in json.loads(seen.body)["messages"]] for seen in provider.seen]


def test_openai_is_sent_the_conversation_so_far(environment: Provider) -> None:
    assert "\n".join(run_example(OPENAI)) == f"{SAID}\n{SAID}"
    assert list_roles(environment) == [["system", "user"], ["system", "user", "assistant", "user"]]


def test_openai_is_sent_the_results_of_its_calls(environment: Provider) -> None:
    assert run_example(TOOLS)[:2] == [
        "user ['TextPart']",
        "assistant ['StepStartPart', 'ToolPart', 'StepFinishPart']",
    ]
    first, second = list_roles(environment)
    assert (first, second) == (["system", "user"], ["system", "user", "assistant", "tool"])


def test_anthropic_is_sent_its_own_format(environment: Provider) -> None:
    assert "\n".join(run_example(ANTHROPIC)) == f"{SAID}\n{SAID}"
    assert list_roles(environment) == [["user"], ["user", "assistant", "user"]]
    assert json.loads(environment.seen[-1].body)["system"] == "You are a helpful assistant."


def test_a_program_tells_a_running_proxy(
    environment: Provider, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run_proxy(tmp_path_factory.mktemp("data"), environment.base_url) as proxy:
        monkeypatch.setenv("PALIMPSEST_URL", proxy.origin)
        monkeypatch.setenv("PALIMPSEST_ADMIN_TOKEN", TOKEN)
        assert run_example(HTTP) == ["201 27", "200 27", "['system', 'user', 'assistant'] True"]
    assert environment.seen == []
