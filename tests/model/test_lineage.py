"""Chains of nodes, and the names of marks."""

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.model.lineage import LONGEST_MARK, NODE_SIZE, compute_chain_root, extend_chain, name_fingerprint


def test_a_node_names_all_before_it() -> None:
    first, second = extend_chain(compute_chain_root("openai"), [b"a", b"b"])
    assert second == sha256(first + b"b").digest()[:16]
    assert [second] == extend_chain(first, [b"b"]) != extend_chain(compute_chain_root("openai"), [b"b"])
    assert compute_chain_root("openai") != compute_chain_root("anthropic")
    assert {len(first), len(second)} == {NODE_SIZE}


def test_a_message_without_a_form_adds_no_node() -> None:
    root = compute_chain_root("openai")
    assert extend_chain(root, [b"", b"a", b""]) == [root, *extend_chain(root, [b"a", b""])]
    assert extend_chain(root, [b"a", b""]) == 2 * extend_chain(root, [b"a"])


@pytest.mark.parametrize("name", ["call:call_1", "form:00ff", "call:na\u00efve", "call:" + "x" * 195])
def test_a_name_of_reasonable_length_stays_as_it_is(name: str) -> None:
    assert name_fingerprint(name) == name


@given(st.text(st.characters(), max_size=600))
def test_any_other_name_is_kept_by_its_digest_and_found_again(name: str) -> None:
    kept = name_fingerprint("call:" + name)
    assert len(kept) <= LONGEST_MARK
    kept.encode()
    assert name_fingerprint(kept) == kept
    assert kept.startswith("call:")


def test_long_names_and_names_that_are_no_text_differ_as_what_they_stand_for() -> None:
    names = ["call:" + "x" * 300, "call:" + "x" * 301, "item:" + "x" * 300, "call:\ud800", "call:\ud801", "\ud800"]
    assert len({name_fingerprint(name) for name in names}) == len(names)
    assert name_fingerprint("\ud800" * 300 + ":x").startswith("sha256:")
