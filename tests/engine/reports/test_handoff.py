"""A conversation for another client."""

from collections.abc import AsyncIterator

import pytest

from proxy.engine.reports.export import load_handoff, write_handoff
from proxy.model.errors import NotFound
from proxy.model.marker import LEDGER_HEAD
from tests.support.fake_log import tree_log
from tests.support.scripted import LIMIT
from tests.support.talking import Talk


@pytest.fixture
async def talk() -> AsyncIterator[Talk]:
    talk = Talk()
    yield talk
    assert await talk.engine.tasks.finish(LIMIT)
    await talk.close()


async def test_what_was_archived_is_told_in_short_and_the_rest_word_for_word(talk: Talk) -> None:
    history = await talk.grow_to(1)
    assert await talk.engine.tasks.finish(LIMIT)
    handoff = await load_handoff(talk.log, talk.session)
    text = write_handoff(handoff)
    (epoch,) = (await talk.log.load_context(talk.session)).epochs
    assert handoff.epoch == epoch
    assert text.count(LEDGER_HEAD) == 1
    assert f"## The first {epoch.depth} messages, in short" in text
    archived = [message["content"] for message in history[2:] if message["content"] not in text]
    assert archived
    for message in history[1 + epoch.depth :]:
        assert message["content"] in text
    for each in epoch.originals:
        assert f"- `palimpsest expand {each.id}`: messages {each.place} to " in text
    assert f"word {talk.step}" in text
    assert "You are an agent." not in text
    assert write_handoff(await load_handoff(talk.log, talk.session[:5])) == text


async def test_without_an_epoch_all_is_word_for_word(talk: Talk) -> None:
    history = await talk.grow(2)
    assert await talk.engine.tasks.finish(LIMIT)
    text = write_handoff(await load_handoff(talk.log, talk.session))
    for message in history[1:]:
        assert message["content"] in text
    assert "in short" not in text
    assert "## References" not in text
    assert "command: sed -n 0p src/module_0.py" in text


async def test_a_branch_is_handed_on_by_its_tip(talk: Talk) -> None:
    history = await talk.grow(2)
    await talk.ask([*history[:3], {"role": "user", "content": "otherwise"}])
    first, second = await talk.log.list_branches(talk.session)
    assert "otherwise" not in write_handoff(await load_handoff(talk.log, talk.session, first.tip.hex()))
    assert "otherwise" in write_handoff(await load_handoff(talk.log, talk.session, second.tip.hex()[:9]))
    with pytest.raises(NotFound, match="no branch begins with"):
        await load_handoff(talk.log, talk.session, "zz")


async def test_fences_hold_what_has_fences(talk: Talk) -> None:
    history = await talk.grow(1)
    history[-1] = {**history[-1], "content": "a\n````\nb"}
    await talk.ask(history)
    text = write_handoff(await load_handoff(talk.log, talk.session))
    assert "`````\na\n````\nb\n`````" in text


async def test_it_is_short_after_a_revert_too(talk: Talk) -> None:
    await talk.grow_to(1)
    before = write_handoff(await load_handoff(talk.log, talk.session))
    await talk.care.revert(talk.session, 1)
    assert write_handoff(await load_handoff(talk.log, talk.session)) == before


async def test_an_unknown_session_is_told() -> None:
    with pytest.raises(NotFound):
        await load_handoff(tree_log(), "zzz")
