"""The encoders that there are, each by its encoding."""

from proxy.context.model_names import Encoding
from proxy.upstream.splintr_encoder import load_encoder as load_by_splintr
from proxy.upstream.tiktoken_encoder import load_encoder as load_by_tiktoken
from proxy.upstream.tokenizer import Encoder

BOTH: list[Encoding] = ["o200k_base", "cl100k_base"]
BY_SPLINTR = {name: load_by_splintr(name) for name in BOTH}
BY_TIKTOKEN = {name: load_by_tiktoken(name) for name in BOTH}


def list_encoders(name: Encoding) -> list[Encoder]:
    """splintr's, and tiktoken's."""
    ours, theirs = BY_SPLINTR[name], BY_TIKTOKEN[name]
    assert ours is not None
    assert theirs is not None
    return [ours, theirs]


def count_by_both(name: Encoding, text: str) -> list[int]:
    """The tokens of a text by splintr, and by tiktoken."""
    return [encoder.count(text) for encoder in list_encoders(name)]
