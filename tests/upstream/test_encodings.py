"""The encodings against tiktoken's own definitions, without its loader."""

import base64

import pytest
import tiktoken.load
import tiktoken_ext.openai_public as definitions

from proxy.context.estimate import LONGEST_RUN, cut_stretches
from proxy.context.model_names import Encoding
from proxy.upstream.encodings import PATTERNS, load_ranks
from tests.support.encoders import BOTH, list_encoders


@pytest.mark.parametrize("name", BOTH)
def test_text_is_cut_as_tiktoken_itself_defines_it(name: Encoding, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(definitions, "load_tiktoken_bpe", lambda *args, **kwargs: {})
    assert definitions.ENCODING_CONSTRUCTORS[name]()["pat_str"] == PATTERNS[name]


@pytest.mark.parametrize("name", BOTH)
def test_ranks_are_what_tiktoken_itself_reads(name: Encoding, monkeypatch: pytest.MonkeyPatch) -> None:
    content = load_ranks(name)
    assert content is not None
    monkeypatch.setattr(tiktoken.load, "read_file_cached", lambda *args: content)
    ranks = tiktoken.load.load_tiktoken_bpe("a file")
    assert ranks == {base64.b64decode(line.split()[0]): int(line.split()[1]) for line in content.splitlines()}
    assert max(map(len, ranks)) == 128  # as the bound of a run that is cut says


def test_without_a_rank_file_there_are_no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.upstream.encodings.find_litellm", lambda: None)
    assert load_ranks("o200k_base") is None


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("kind", ["a", "ab", "=", " ", "\n", "é", "中", "aé", "word", "-=", " \n"])
def test_cuts_are_off_by_two_tokens_each_or_two_percent(name: Encoding, kind: str) -> None:
    text = f"before {kind * (4 * LONGEST_RUN // len(kind) + 7)} after"
    stretches = list(cut_stretches(text))
    assert len(stretches) > 1
    for encoder in list_encoders(name):
        whole = encoder.count(text)
        ours = sum(encoder.count(stretch) for stretch in stretches)
        assert abs(ours - whole) <= max(2 * (len(stretches) - 1), 0.02 * whole)
