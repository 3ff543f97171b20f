"""The parts of a prompt beside its messages: each has its digest, and only it changes with that part."""

from typing import Any

import pytest

from proxy.engine.lineage.chain import Preamble, digest_layers
from proxy.model.lineage import LAYER_SIZE, LAYERS
from proxy.wire.body import split_body
from tests.support.managing import spell


def list_layers(system: bytes = b"system", **members: Any) -> dict[str, bytes]:
    """The digest of each layer of a request."""
    split = split_body(spell([{"role": "user", "content": "hi"}], **members), "messages")
    assert split is not None
    layers = digest_layers(split, Preamble(1, b"l", b"", system))
    assert len(layers) == LAYER_SIZE * len(LAYERS)
    return {name: layers[at * LAYER_SIZE : (at + 1) * LAYER_SIZE] for at, name in enumerate(LAYERS)}


@pytest.mark.parametrize(
    ("layer", "members"),
    [
        ("tools", {"tools": [{"type": "function"}]}),
        ("tools", {"functions": [{"name": "f"}]}),
        ("system", {"system": b"another"}),
        ("parameters", {"tool_choice": "none"}),
        ("parameters", {"reasoning_effort": "high"}),
        ("parameters", {"thinking": {"type": "enabled"}}),
        ("parameters", {"response_format": {"type": "json_object"}}),
    ],
)
def test_a_layer_changes_alone(layer: str, members: dict[str, Any]) -> None:
    plain, changed = list_layers(), list_layers(**members)
    assert [name for name in LAYERS if plain[name] != changed[name]] == [layer]


def test_what_no_cache_depends_on_changes_no_layer() -> None:
    assert list_layers(temperature=0.5, stream=True, max_tokens=7) == list_layers()
