"""Tokens by splintr's vocabularies, compared with tiktoken's own definitions of the encodings token by token.

tiktoken's rank files come from litellm's wheel, and count only if they have the hashes that tiktoken asks for.
"""

import base64
import random
import unicodedata
from array import array
from collections.abc import Iterator
from functools import cache
from hashlib import sha1, sha256
from pathlib import Path
from unittest.mock import patch

import pytest
import splintr
import tiktoken
import tiktoken_ext.openai_public as definitions
from hypothesis import given
from hypothesis import strategies as st

from proxy.context.budget import LONGEST_RUN, cut_stretches
from proxy.context.model_catalog import Encoding
from proxy.upstream.tokenizer import SplintrEncoder
from scripts.model_map import find_source
from tests.support.examples import examples

ROOT = Path(__file__).parents[2]
RANKS = find_source().parent / "litellm_core_utils" / "tokenizers"
BOTH: list[Encoding] = ["o200k_base", "cl100k_base"]
LONG_S = "\u017f"
# What is cut in some other way: white space of all kinds, contractions, numbers, scripts without spaces, signs.
CUTS = (" def", "self.", "  \n", "\n\n", "'s", "'LL", "12345", "//", "<|endoftext|>", "é", "文")
TEXTS = (
    st.text()
    | st.text(st.sampled_from(" \n\r\t\u3000/'abAB1.{}é中٣😀\u0301"))
    | st.lists(st.sampled_from(CUTS)).map("".join)
)
SEED = 20_261_124


def read_ranks(address: str, expected_hash: str) -> dict[bytes, int]:
    """Take the place of tiktoken's loader, which deletes and downloads what has another hash."""
    content = (RANKS / sha1(address.encode()).hexdigest()).read_bytes()
    assert sha256(content).hexdigest() == expected_hash
    return {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, content.splitlines())}


@cache
def load_definition(name: Encoding) -> dict[str, object]:
    with patch.object(definitions, "load_tiktoken_bpe", read_ranks):
        return definitions.ENCODING_CONSTRUCTORS[name]()  # type: ignore[no-any-return]


@cache
def load_theirs(name: Encoding) -> tiktoken.Encoding:
    return tiktoken.Encoding(**load_definition(name))  # type: ignore[arg-type]


@cache
def load_ours(name: Encoding) -> splintr.AnyTokenizer:
    return splintr.Tokenizer.from_pretrained(name).jit(False)


@cache
def load_encoder(name: Encoding) -> SplintrEncoder:
    return SplintrEncoder(load_ours(name))


def find_different(name: Encoding, texts: list[str]) -> list[str]:
    """Texts whose tokens differ, or whose count is not that of their tokens."""
    ours, encoder, theirs = load_ours(name), load_encoder(name), load_theirs(name)
    pairs = ((text, theirs.encode_ordinary(text)) for text in texts)
    return [text for text, ids in pairs if ours.encode_ordinary(text) != ids or encoder.count(text) != len(ids)]


@pytest.mark.parametrize("name", BOTH)
def test_every_token_of_the_vocabulary_has_its_id(name: Encoding) -> None:
    ranks = load_definition(name)["mergeable_ranks"]
    assert isinstance(ranks, dict)
    ours = load_ours(name)
    assert len(ranks) == {"o200k_base": 199_998, "cl100k_base": 100_256}[name]
    assert [token for token, rank in ranks.items() if ours.decode_bytes([rank]) != token] == []
    assert max(map(len, ranks)) == 128  # as the bound of a run that is cut says


@pytest.mark.parametrize(("name", "ids"), [("o200k_base", [24912, 2375]), ("cl100k_base", [15339, 1917])])
def test_well_known_words_have_their_well_known_ids(name: Encoding, ids: list[int]) -> None:
    assert load_theirs(name).encode_ordinary("hello world") == ids
    assert array("I", load_ours(name).encode_flat("hello world")).tolist() == ids
    assert load_encoder(name).count("hello world") == 2


@pytest.mark.no_cover
@pytest.mark.parametrize("name", BOTH)
@given(TEXTS.filter(lambda text: LONG_S not in text))
@examples(500)
def test_any_text_has_the_same_tokens(name: Encoding, text: str) -> None:
    assert find_different(name, [text]) == []
    assert load_encoder(name).count(text) <= len(text.encode())


def list_characters() -> list[str]:
    """Every character of Unicode that may stand in a text, but the one with which they are known to differ."""
    characters = map(chr, range(0x110000))
    return [each for each in characters if unicodedata.category(each) not in ("Cs", "Co", "Cn") and each != LONG_S]


def list_scripts() -> Iterator[str]:
    """Every stretch of 64 characters of Unicode: as it is, in words, doubled, between ASCII, with marks and numbers."""
    characters = list_characters()
    for start in range(0, len(characters), 64):
        block = characters[start : start + 64]
        yield "".join(block)
        yield " ".join("".join(block[at : at + 5]) for at in range(0, len(block), 5))
        yield "".join(each * 2 for each in block)
        yield "".join(f"a{each}B{each}'s{each}1\n{each}  " for each in block)
        yield "".join(f"{each}\u0301{each}\u200d{each}\ufe0f" for each in block)


def list_odd_texts() -> Iterator[str]:
    """White space, special tokens, emoji, random characters and random bytes."""
    chance = random.Random(SEED)
    spaces = [each for each in list_characters() if each.isspace()]
    special = (*load_theirs("o200k_base").special_tokens_set, *load_ours("o200k_base").special_tokens(), "<|", "|>")
    emoji = [chr(code) for code in (*range(0x1F300, 0x1FAFF), *range(0x2600, 0x27BF), 0x200D, 0xFE0F, 0x20E3)]
    characters = list_characters()
    for _ in range(300):
        yield "".join(chance.choices([*spaces, "a", "1", "."], k=40))
        yield "".join(chance.choices([*special, " ", "x", "\n"], k=10))
        yield "".join(chance.choices([*emoji, " ", "a"], k=30))
        yield "".join(chance.choices(characters, k=60))
        yield chance.randbytes(200).decode("utf-8", "replace")
        yield chance.randbytes(200).decode("latin-1")
        yield base64.b64encode(chance.randbytes(200)).decode()
        yield chance.randbytes(100).hex()


@pytest.mark.no_cover
@pytest.mark.parametrize("name", BOTH)
def test_all_scripts_have_the_same_tokens(name: Encoding) -> None:
    texts = list(list_scripts())
    assert len(texts) > 10_000
    assert find_different(name, texts) == []


@pytest.mark.parametrize("name", BOTH)
def test_odd_texts_have_the_same_tokens(name: Encoding) -> None:
    assert find_different(name, list(list_odd_texts())) == []


@pytest.mark.parametrize("name", BOTH)
def test_our_sources_have_the_same_tokens_whole_and_in_pieces(name: Encoding) -> None:
    paths = sorted((*ROOT.glob("proxy/**/*.py"), *ROOT.glob("tests/**/*.py"), *ROOT.glob("*.md")))
    texts = [path.read_text() for path in paths]
    pieces = [text[at : at + 997] for text in texts[::7] for at in range(0, len(text), 997)]
    assert len(pieces) > 300
    assert find_different(name, [*texts[::5], *pieces]) == []


def test_behind_a_contraction_with_a_long_s_they_may_differ() -> None:
    """Both take U+017F for an S there; a million texts of all kinds differed in nothing else."""
    text = f"k'{LONG_S}'SBa"
    assert load_encoder("o200k_base").count(text) == 5
    assert len(load_theirs("o200k_base").encode_ordinary(text)) == 6


@pytest.mark.parametrize("name", BOTH)
def test_a_lone_surrogate_counts_as_a_character_that_cannot_be_shown(name: Encoding) -> None:
    count, theirs = load_encoder(name).count, load_theirs(name)
    assert count("a \ud800 b") == count("a \ufffd b") == len(theirs.encode_ordinary("a \ud800 b")) > 2


@pytest.mark.parametrize("name", BOTH)
def test_what_looks_like_a_special_token_is_text_in_long_texts_too(name: Encoding) -> None:
    text = "<|endoftext|> and <|im_start|> " * 3000
    assert find_different(name, [text]) == []
    assert load_encoder(name).count(text) > 3000 * 5


@pytest.mark.parametrize("name", BOTH)
def test_every_special_token_begins_as_we_look_for_it(name: Encoding) -> None:
    special = load_ours(name).special_tokens()
    assert len(special) > 3
    assert [each for each in special if not each.startswith("<|")] == []


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("kind", ["a", "ab", "=", " ", "\n", "é", "中", "aé", "word", "-=", " \n"])
def test_cuts_are_off_by_two_tokens_each_or_two_percent(name: Encoding, kind: str) -> None:
    text = f"before {kind * (4 * LONGEST_RUN // len(kind) + 7)} after"
    stretches = list(cut_stretches(text))
    assert len(stretches) > 1
    whole = len(load_theirs(name).encode_ordinary(text))
    ours = sum(load_encoder(name).count(stretch) for stretch in stretches)
    assert abs(ours - whole) <= max(2 * (len(stretches) - 1), 0.02 * whole)
