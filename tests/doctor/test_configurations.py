"""`doctor` over each example of `docs/` and `deploy/` and over sensible settings: no traceback, and nothing false."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.config import make_settings
from proxy.doctor import examination
from proxy.doctor.examination import diagnose
from proxy.model.exchange import Headers
from proxy.upstream.client import Received
from proxy.upstream.policy import UpstreamPolicy

ROOT = Path(__file__).parents[2]
CEILING = 12_000  # a rehearsed session of a few thousand tokens takes a few seconds
TWO = [
    {"name": "openai", "base_url": "https://api.openai.com/v1"},
    {"name": "anthropic", "base_url": "https://api.anthropic.com/v1", "models": ["claude-*"]},
]
ANTHROPIC = {"name": "anthropic", "base_url": "https://api.anthropic.com/v1"}
OPENAI = {"name": "openai", "base_url": "https://api.openai.com/v1"}
LOCAL = {"name": "local", "base_url": "http://127.0.0.1:8080/v1", "window": 16384}


def read_examples() -> dict[str, dict[str, Any]]:
    """Settings as the documents have them, by where they stand."""
    found = {
        f"{path.relative_to(ROOT)} {i}": yaml.safe_load(text)
        for path in sorted((ROOT / "docs").rglob("*.md"))
        for i, text in enumerate(re.findall(r"(?ms)^```yaml\n(.*?)^```", path.read_text()))
    }
    kubernetes, *_ = yaml.safe_load_all((ROOT / "deploy" / "kubernetes.yaml").read_text())
    compose = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["services"]["palimpsest"]["environment"]
    example = yaml.safe_load((ROOT / "config.example.yaml").read_text())
    given: dict[str, Any] = {}
    for name, value in compose.items():
        section, _, key = name.removeprefix("PALIMPSEST_").lower().partition("__")
        given[section] = {**given.get(section, {}), key: value} if key else value
    return {
        **found,
        "deploy/kubernetes.yaml": yaml.safe_load(kubernetes["data"]["config.yaml"]),
        "deploy/compose.yaml": given,
        "config.example.yaml": {key: value for key, value in example.items() if value},
    }


EXAMPLES = read_examples()
SENSIBLE: dict[str, dict[str, Any]] = {
    "default": {},
    "claude beside openai": {"upstreams": TWO},
    "all by pattern": {"upstreams": [{**OPENAI, "models": ["gpt-*", "o?-*"]}, TWO[1]]},
    "a pattern of a name unlike the usual": {"upstreams": [OPENAI, {**LOCAL, "models": ["deepseek-*", "qwen*"]}]},
    "a name that nobody knows": {"upstreams": [OPENAI, {**LOCAL, "models": ["team/*"]}]},
    "a narrow pattern before a wide one": {
        "upstreams": [{**OPENAI, "models": ["gpt-5-mini"]}, {**LOCAL, "models": ["gpt-*"]}]
    },
    "the rest to a server of one's own": {"upstreams": [{**OPENAI, "models": ["gpt-*"]}, LOCAL]},
    "markers": {"upstreams": [{**ANTHROPIC, "cache": "breakpoints"}]},
    "markers at a router": {
        "upstreams": [{"name": "router", "base_url": "https://openrouter.ai/api/v1", "cache": "breakpoints"}]
    },
    "messages elsewhere": {
        "upstreams": [{"name": "z", "base_url": "https://api.z.ai/api/anthropic/v1", "models": ["glm-*"]}]
    },
    "an address without v1": {"upstreams": [{**ANTHROPIC, "base_url": "https://api.anthropic.com"}]},
    "a local engine": {"upstreams": [LOCAL]},
    "strict templates": {"upstreams": [{**LOCAL, "strict_alternation": True}]},
    "roles": {"upstreams": [{**OPENAI, "summary_role": "assistant"}]},
    "editing and compaction": {"upstreams": [{**ANTHROPIC, "context_editing": "proxy", "compaction": True}]},
    "turns": {"strategy": "turns", "turns": {"user_turns": 1}},
    "snapshot": {"strategy": "snapshot", "snapshot": {"tail": "text"}},
    "by model": {"models": {"gpt-*": {"strategy": "turns", "window": 32_000, "max_output": 4_000}}},
    "sessions by name": {"sessions": {"infer": False, "headers": ["x-conversation"]}},
    "protected tools": {"pruning": {"protected_tools": ["read_file", "skill"]}, "files": {"inline_tokens": 500}},
    "tenants": {"tenants": {"team": ["sk-one-two-three"]}, "server": {"require_tenant": True}},
    "own key": {"upstreams": [{**ANTHROPIC, "api_key": "sk-ant-right", "auth": "x-api-key"}]},
    "quiet": {"recall": {"inject": False}, "compaction": {"auto": False}, "pruning": {"enabled": False}},
    "limits": {"store": {"max_bytes": "1GB", "when_full": "erase", "retention_days": 30, "durability": "full"}},
    "annotated": {"doom_loop": {"action": "annotate"}, "nudge": {"enabled": True}},
    "Azure": {
        "upstreams": [
            {"name": "az", "kind": "litellm", "base_url": "https://m.example", "api_key": "k", "models": ["azure/*"]},
            OPENAI,
        ]
    },
}
# What is true of these settings, and no fault.
WARNINGS: dict[str, set[str]] = {
    "sessions by name": {"session"},
    "docs/settings.md 1": {"model other-model"},  # nobody knows its window
}


async def respond(policy: UpstreamPolicy, method: str, target: bytes, headers: Headers, body: bytes = b"") -> Received:
    """A provider that lists its models to those with the right key, at its own path."""
    keys = [value for name, value in headers if name in (b"x-api-key", b"authorization")]
    if target != b"/v1/models":
        return Received(404, (), b"")
    return Received(200, (), b'{"data":[]}') if any(b"right" in key for key in keys) else Received(401, (), b"")


@pytest.mark.no_cover
@pytest.mark.parametrize("name", [*EXAMPLES, *SENSIBLE])
def test_no_settings_break_it_and_nothing_false_is_told(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examination, "fetch", respond)
    text = json.dumps((EXAMPLES | SENSIBLE)[name])
    for place in set(re.findall(r'"(/run/[^"]+)"', text)):
        secret = tmp_path / Path(place).name
        secret.write_text("whsec_" + "a" * 43 + "=" if "webhook" in place else "a-secret-of-ours")
        text = text.replace(place, str(secret))
    given = json.loads(re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text))
    given["budget"] = {"ceiling_tokens": CEILING} | given.get("budget", {})
    found = diagnose(make_settings({**given, "data": str(tmp_path / "data")})).findings
    told = {each.name: each.sentence for each in found if each.state != "ok"}
    assert not [each for each in found if each.state == "fault"], told
    assert told.keys() - {"traffic", "server"} == WARNINGS.get(name, set()), told
    assert not (tmp_path / "data").exists()
    if given.get("mode") != "observe":
        rehearsed = {str(each.facts["upstream"]) for each in found if each.name == "shortening"}
        assert rehearsed == {each["name"] for each in given.get("upstreams", [{"name": "openai"}])}
