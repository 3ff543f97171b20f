"""A tenant that a request only claims: nothing comes of it before the upstream has accepted that credential (B2)."""

import base64
import json

from proxy.model.exchange import Reading
from proxy.model.lineage import Lineage, Reply
from tests.engine.lineage.talk import CHAIN, SHORT, Setup, bot, user


def forge(signature: str, subject: str = "victim") -> str:
    """A JWT, whose signature nobody checks here."""
    parts = [{"alg": "HS256"}, {"iss": "i", "sub": subject}]
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
    return ".".join([*encoded, signature])


async def test_a_refused_token_leaves_nothing_in_the_conversation_whose_subject_it_claims() -> None:
    setup = Setup()
    await setup.send(user("a"), key=forge("true"), name="n")
    await setup.send(*CHAIN, key=forge("false"), status=401, choices=[], name="n")
    assert len(setup.engine.archive.of(Lineage)) == 1
    step = await setup.send(*CHAIN, key=forge("true"), name="n")
    assert (step.relation, step.base) == ("append", 2)
    await setup.settle()
    setup.assert_nothing_in_mind()


async def test_a_renewed_token_goes_on_as_soon_as_it_is_accepted() -> None:
    setup = Setup()
    await setup.send(user("a"), key=forge("old"))
    session = setup.session
    step = await setup.send(*CHAIN, key=forge("new"))
    assert (setup.session, step.relation, step.base, step.exchange) == (session, "append", 2, "x2")
    step = await setup.send(*CHAIN, bot(SHORT), user("c"), key=forge("new"))
    assert (setup.session, step.relation, step.base) == (session, "append", 4)
    await setup.settle()
    assert len(setup.engine.archive.of(Reply)) == 3


async def test_a_token_that_was_accepted_has_its_place_whatever_comes_of_the_call() -> None:
    setup = Setup()
    await setup.send(user("a"), key=forge("true"))
    step = await setup.send(*CHAIN, key=forge("true"), status=500, choices=[])
    assert (step.relation, step.depth) == ("append", 3)


async def test_an_answer_to_a_refused_token_is_read_but_is_no_part_of_the_conversation() -> None:
    setup = Setup()
    await setup.send(user("a"), key=forge("true"), name="n")
    await setup.settle()
    await setup.send(*CHAIN, key=forge("false"), status=500, name="n")
    await setup.settle()
    assert (len(setup.engine.archive.of(Reading)), len(setup.engine.archive.of(Reply))) == (2, 1)
    setup.assert_nothing_in_mind()


async def test_another_subject_is_another_tenant_accepted_or_not() -> None:
    setup = Setup()
    await setup.send(user("a"), key=forge("s"), name="n")
    session = setup.session
    await setup.send(*CHAIN, key=forge("s", "somebody"), name="n")
    assert setup.session != session
