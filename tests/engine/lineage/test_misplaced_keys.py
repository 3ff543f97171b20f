"""Credentials that go to the wrong provider: told once, and nothing else."""

from collections.abc import Mapping

import pytest

from proxy.config import make_settings
from proxy.engine.lineage.misplaced_keys import MisplacedKey, MisplacedKeys
from proxy.read.findings import judge_misplaced

OPENAI = {"name": "openai", "base_url": "https://api.openai.com/v1"}
CLAUDE = {"name": "claude", "base_url": "https://api.anthropic.com/v1", "models": ["claude-*"]}


def watch(*upstreams: Mapping[str, object]) -> MisplacedKeys:
    return MisplacedKeys(make_settings({"upstreams": upstreams}).engine_policy().places)


def test_a_pair_is_told_once_and_without_the_credential(caplog: pytest.LogCaptureFixture) -> None:
    keys = watch(OPENAI, CLAUDE)
    for credential in (b"sk-ant-one", b"sk-ant-two", b"gsk_three"):
        keys.note("openai", (credential,))
    keys.note("claude", (b"sk-ant-one",))
    keys.note("unknown", (b"sk-ant-one",))
    watch({"name": "openai", "base_url": "http://127.0.0.1:9/v1"}).note("openai", (b"sk-ant-one",))
    assert keys.found == {MisplacedKey("openai", "OpenAI", "Anthropic"), MisplacedKey("openai", "OpenAI", "Groq")}
    assert [record.args for record in caplog.records] == [
        ("Anthropic", "openai", "OpenAI"),
        ("Groq", "openai", "OpenAI"),
    ]
    assert "sk-ant" not in caplog.text
    finding = judge_misplaced(MisplacedKey("openai", "OpenAI", "Anthropic"))
    assert (finding.name, finding.state) == ("credential openai", "warning") and finding.advice


def test_of_an_upstream_with_a_key_of_ours_that_key_counts() -> None:
    keys = watch({**OPENAI, "api_key": "sk-ant-configured"}, {**CLAUDE, "api_key": "sk-ant-right"})
    assert keys.found == {MisplacedKey("openai", "OpenAI", "Anthropic")}
    keys.note("claude", (b"sk-proj-replaced",))
    assert len(keys.found) == 1
