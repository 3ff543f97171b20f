"""Rules that a user states, in any form and anywhere, are facts with their source: with a model, and without one."""

import pytest

from proxy.engine.compaction.job import ManualOptions
from proxy.engine.memory.path import load_path
from tests.support.compacting import Workshop, fail
from tests.support.remembering import make_memory, report_with_facts, talk

RULES = (
    "Always run the linter before you commit.",
    "Never push to main.",
    "Do not touch the vendored code.",
    "I prefer tabs over spaces in Makefiles.",
    "Make sure that every function has a docstring.",
    "Please use only British spelling in the docs.",
    "You must not delete migrations.",
    "From now on write commit messages in the imperative.",
    "Don't add new dependencies without asking.",
    "Keep in mind that Python 3.11 is the oldest version we support.",
    "Prefer composition over inheritance.",
    "Avoid global state.",
    "Only use the staging database for tests.",
    "Under no circumstances log a token.",
    "I want you to always show the diff first.",
    "Bitte antworte immer auf Deutsch, wenn ich Deutsch schreibe.",
    "Ensure that the public API stays backwards compatible.",
    "I'd prefer short pull requests.",
    "Stick to the names that are in the glossary.",
    "The folder generated is off limits.",
)
FILLER = (
    "Here is what I saw today. The build was slow, and the second run was quicker. I looked at the dashboard for a"
    " while and found nothing. "
)


def spell_prompt(n: int, rule: str) -> str:
    """A prompt with a rule in it: alone, in the middle of a long text, behind a paste, or in a list."""
    pasted = "```\n" + "2026-11-20 10:00:00 INFO all is well\n" * 30 + "```\n"
    forms = (
        f"{rule} Now fix item {n} of the list.",
        f"{FILLER * 6}{rule} {FILLER * 6}What do you make of it?",
        f"Look at this log:\n{pasted}{rule}\nThen go on with item {n}.",
        f"Next is item {n}.\n- It is small.\n- {rule}\n- It has a test.",
    )
    return forms[n % len(forms)]


@pytest.mark.parametrize("has_model", [True, False], ids=["model", "none"])
async def test_twenty_rules_over_a_long_session_are_facts_with_their_source(has_model: bool) -> None:
    shop = Workshop(report_with_facts if has_model else fail, ceiling=200_000)
    prompts = [spell_prompt(n, rule) for n, rule in enumerate(RULES)]
    memory = make_memory(shop)
    for stop in (7, 14, 20):
        await talk(shop, prompts[:stop])
        await memory.compact(shop.session, (), ManualOptions(level=1 if has_model else 3))
    await talk(shop, [*prompts, "And now the last one."])
    await memory.compact(shop.session, (), ManualOptions(level=1 if has_model else 3))
    path = await load_path(shop.log, shop.session)
    items = await memory.memory.list_items(shop.session, path.nodes)
    for rule in RULES:
        (found,) = [item for item in items.semantic if rule in item.fact]
        (node,) = found.nodes
        cited = path.messages[path.nodes.index(bytes.fromhex(node))].message
        assert (cited.role, rule in cited.text) == ("user", True), rule
        assert found.kind == ("preference" if "prefer" in rule.lower() else "constraint")
        assert (found.confidence, found.tags) == (1.0, ())
    shown = await memory.memory.retrieve(shop.session, path.nodes, max_episodic=3, max_semantic=20)
    assert {rule for rule in RULES for item in shown.semantic if rule in item.fact} == set(RULES)
    assert len(shown.episodic) == 3
