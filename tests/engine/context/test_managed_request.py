"""A request as managing sees it: its messages, split into preamble and conversation."""

import json

import msgspec

from tests.support.managing import make_history, make_subject

SYSTEM = [{"role": "system", "content": "You are an agent."}, {"role": "developer", "content": "Be brief."}]
USER = {"role": "user", "content": "Go on."}


def test_leading_instructions_are_the_preamble_and_the_rest_are_messages() -> None:
    subject = make_subject([*SYSTEM, USER, {"role": "assistant", "content": "Yes."}])
    assert list(map(json.loads, subject.list_leading())) == SYSTEM
    assert [json.loads(raw)["role"] for raw in subject.list_raws()] == ["user", "assistant"]
    assert len(subject.nodes) == 2


def test_messages_are_listed_from_a_place_on_as_they_were_spelt() -> None:
    subject = make_subject(make_history(3))
    raws = subject.list_raws()
    assert subject.list_raws(4) == raws[4:]
    assert subject.list_raws(len(raws)) == []
    assert all(raw in subject.split.content for raw in raws)


def test_instructions_further_down_are_messages() -> None:
    subject = make_subject([USER, SYSTEM[0]])
    assert (subject.list_leading(), len(subject.list_raws())) == ([], 2)


def test_the_tip_is_the_last_node_or_the_root() -> None:
    assert (subject := make_subject([USER])).chain.tip == subject.nodes[-1]
    assert (subject := make_subject(SYSTEM)).chain.tip == subject.chain.root


def test_a_side_request_is_one_that_lineage_calls_so() -> None:
    assert make_subject([USER], is_side=True).is_side
    assert not make_subject([USER]).is_side
    assert not msgspec.structs.replace(make_subject([USER], is_side=True), step=None).is_side
