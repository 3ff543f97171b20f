"""Remembered bodies: the log grows with what is new only, and every body can be put together again."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.engine.conversations import bodies
from proxy.engine.conversations.bodies import BodyCache, CachedBody, Key, build_manifest, split_known
from proxy.engine.lineage.chain import Chain, Preamble
from proxy.model.manifest import Manifest, compute_root_link
from proxy.wire.body import SplitBody, count_shared
from tests.support.examples import examples
from tests.support.rebuilding import Log

CHAIN = Chain(b"r" * 16, Preamble(0, b"", b"", b""), (), (), b"r" * 16)
KEY: Key = (b"tenant", "chat_completions", "family")
UNNAMED: Key = (b"tenant", "chat_completions", "")
PLENTY = 10_000_000


def see(histories: BodyCache, content: bytes, key: Key = KEY) -> Manifest:
    """Take stock of a body as the reception does."""
    known, shared = histories.find(key, content)
    split = split_known(content, "messages", known, shared)
    assert split is not None
    manifest, history = build_manifest(key[0], split, CHAIN, known, shared)
    if history is not None:
        histories.remember(key, history, known)
    return manifest


def say(number: int, size: int = 300) -> dict[str, object]:
    return {"role": "user", "content": f"message {number} " + "x" * size}


def chat(*messages: object, system: str = "tools", model: str = "m") -> bytes:
    tools = [{"name": system, "about": "t" * 5000}]
    return json.dumps({"model": model, "messages": list(messages), "tools": tools}).encode()


def contents(manifest: Manifest) -> list[object]:
    return [json.loads(each.content or b"") for each in manifest.slices]


def test_a_first_body_brings_everything() -> None:
    content = chat(say(1), say(2))
    manifest, log = see(BodyCache(PLENTY), content), Log()
    log.take(manifest)
    assert contents(manifest) == [say(1), say(2)]
    assert len(manifest.blobs) == 1
    assert (log.rebuild(manifest.recipe), manifest.size) == (content, len(content))


def test_a_growing_session_brings_only_its_new_messages() -> None:
    histories, log = BodyCache(PLENTY), Log()
    for count in range(1, 12, 2):
        content = chat(*(say(n) for n in range(count)))
        manifest = see(histories, content)
        log.take(manifest)
        assert contents(manifest) == [say(n) for n in range(max(0, count - 2), count)]
        assert len(manifest.blobs) == (1 if count == 1 else 0)
        assert log.rebuild(manifest.recipe) == content


def test_where_markers_move_only_the_newest_body_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    histories, compared = BodyCache(PLENTY), list[int]()

    def compare(content: bytes, known: SplitBody) -> int:
        compared.append(len(known.items))
        return count_shared(content, known)

    monkeypatch.setattr(bodies, "count_shared", compare)
    for count in range(2, 12, 2):
        compared.clear()
        marked = [say(n) | ({"cache_control": {}} if n >= count - 2 else {}) for n in range(count)]
        assert len(see(histories, chat(*marked)).slices) == (2 if count == 2 else 4)
        assert compared == [count - 2] * (count > 2)


def test_the_same_body_again_brings_nothing() -> None:
    histories = BodyCache(PLENTY)
    first = see(histories, chat(say(1), say(2)))
    again = see(histories, chat(say(1), say(2)))
    assert (again.slices, again.blobs, again.recipe) == ((), (), first.recipe)


def test_a_body_edited_in_the_middle_shares_what_comes_before_only() -> None:
    histories, log = BodyCache(PLENTY), Log()
    log.take(see(histories, chat(say(1), say(2), say(3), say(4))))
    edited = chat(say(1), say(2), say(33), say(4))
    manifest = see(histories, edited)
    log.take(manifest)
    assert contents(manifest) == [say(33), say(4)]
    assert log.rebuild(manifest.recipe) == edited


def test_a_changed_large_member_is_brought_and_the_messages_are_not() -> None:
    histories = BodyCache(PLENTY)
    see(histories, chat(say(1)))
    manifest = see(histories, chat(say(1), system="other"))
    assert (len(manifest.slices), len(manifest.blobs)) == (0, 1)


def test_a_small_member_is_no_blob() -> None:
    content = b'{"model": "m", "messages": [1], "user": "%b"}' % (b"u" * 400)
    manifest, log = see(BodyCache(PLENTY), content), Log()
    assert manifest.blobs == ()
    log.take(manifest)
    assert log.rebuild(manifest.recipe) == content


@pytest.mark.parametrize("content", [b'{"a":1}', b'{"messages":[],"a":"%b"}' % (b"x" * 5000), b"{}"])
def test_a_body_without_messages_is_kept_and_not_remembered(content: bytes) -> None:
    histories, log = BodyCache(PLENTY), Log()
    for _ in range(2):
        manifest = see(histories, content)
        log.take(manifest)
        assert log.rebuild(manifest.recipe) == content
        assert histories.find(KEY, content) == (None, 0)


def test_a_number_that_goes_on_is_kept_as_it_came() -> None:
    """`[1` begins `[12` too: the bytes of an element are shared, the element is not."""
    histories, log = BodyCache(PLENTY), Log()
    for content in (chat(1, 2), chat(12), chat(1.5, 2), chat(125)):
        manifest = see(histories, content)
        log.take(manifest)
        assert log.rebuild(manifest.recipe) == content


elements = st.one_of(
    st.integers(0, 130),
    st.fixed_dictionaries({"role": st.sampled_from(["user", "tool"]), "content": st.text(max_size=5)}),
)
steps = st.tuples(
    st.integers(0, 6),  # how much of the conversation so far is kept
    st.lists(elements, max_size=3),
    st.sampled_from(["tools", "other"]),
    st.sampled_from([(", ", ": "), (",", ":"), (" ,\n", ":")]),
    st.sampled_from([KEY, UNNAMED, (b"other", *KEY[1:])]),
)


@examples(150)
@given(st.lists(steps, min_size=1, max_size=6), st.sampled_from([PLENTY, 16_000]))
def test_every_body_of_every_history_can_be_put_together_and_is_named_as_without_memory(
    story: list[tuple[int, list[object], str, tuple[str, str], Key]], cache_bytes: int
) -> None:
    histories, logs = BodyCache(cache_bytes), {b"tenant": Log(), b"other": Log()}
    messages: list[object] = []
    for kept, new, system, separators, key in story:
        messages = messages[:kept] + new
        content = json.dumps(json.loads(chat(*messages, system=system)), separators=separators).encode()
        manifest = see(histories, content, key)
        alone = see(BodyCache(0), content, key)
        assert (manifest.recipe, manifest.size) == (alone.recipe, alone.size)
        assert manifest.slices == alone.slices[len(alone.slices) - len(manifest.slices) :]
        assert set(manifest.blobs) <= set(alone.blobs)
        logs[key[0]].take(manifest)
        assert logs[key[0]].rebuild(manifest.recipe, key[0]) == content


def test_slices_come_parents_first() -> None:
    slices = see(BodyCache(PLENTY), chat(*(say(n) for n in range(5)))).slices
    assert [each.parent for each in slices] == [compute_root_link(KEY[0]), *(each.link for each in slices[:-1])]


def test_tenants_never_share_links_nor_memory() -> None:
    histories = BodyCache(PLENTY)
    mine = see(histories, chat(say(1), say(2)))
    theirs = see(histories, chat(say(1), say(2)), (b"other", *KEY[1:]))
    assert len(theirs.slices) == len(mine.slices)
    assert {each.link for each in mine.slices}.isdisjoint(each.link for each in theirs.slices)


@pytest.mark.parametrize("key", [(b"tenant", "responses", "family"), (b"tenant", "chat_completions", "other")])
def test_another_wire_or_family_is_remembered_apart_under_the_same_names(key: Key) -> None:
    histories = BodyCache(PLENTY)
    mine, theirs = see(histories, chat(say(1))), see(histories, chat(say(1)), key)
    assert mine.slices == theirs.slices


def test_unnamed_sessions_are_recognised_by_what_they_repeat() -> None:
    histories = BodyCache(PLENTY)
    for session in range(20):
        see(histories, chat(say(session), say(100)), UNNAMED)
    for session in range(20):
        manifest = see(histories, chat(say(session), say(100), say(session + 50)), UNNAMED)
        assert contents(manifest) == [say(session + 50)]


def test_the_longest_of_several_matching_histories_counts() -> None:
    histories = BodyCache(PLENTY)
    see(histories, chat(say(1), say(2)), UNNAMED)
    see(histories, chat(say(1), say(2), say(3), say(4)), UNNAMED)
    see(histories, chat(say(1), say(2), say(33)), UNNAMED)
    assert contents(see(histories, chat(say(1), say(2), say(3), say(4), say(5)), UNNAMED)) == [say(5)]


def test_side_calls_of_a_family_do_not_make_it_forget_its_main_history() -> None:
    histories = BodyCache(PLENTY)
    main = [say(n) for n in range(10)]
    see(histories, chat(*main))
    for turn in range(20, 30):
        see(histories, chat(say(turn, 6000)))
        main.append(say(turn))
        assert contents(see(histories, chat(*main))) == [say(turn)]


def test_side_calls_that_begin_like_the_main_history_do_not_make_it_forgotten() -> None:
    """Title and summary calls often share the first (system) message with the session they belong to."""
    histories = BodyCache(PLENTY)
    main = [say(n) for n in range(10)]
    see(histories, chat(*main))
    see(histories, chat(say(0), say(99)))
    assert contents(see(histories, chat(*main, say(10)))) == [say(10)]


def test_a_family_remembers_few_bodies_and_the_unnamed_more() -> None:
    histories = BodyCache(PLENTY)
    for session in range(100):
        see(histories, chat(say(session)))
        see(histories, chat(say(session)), UNNAMED)
    named = sum(histories.find(KEY, chat(say(n)))[1] for n in range(100))
    unnamed = sum(histories.find(UNNAMED, chat(say(n)))[1] for n in range(100))
    assert 1 < named < unnamed < 100


def test_a_small_body_is_not_worth_remembering() -> None:
    histories = BodyCache(PLENTY)
    small = json.dumps({"messages": [say(1, 10)]}).encode()
    see(histories, small)
    assert histories.find(KEY, small) == (None, 0)


@examples(50)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(0, 9000)), max_size=25))
def test_what_is_remembered_never_weighs_more_than_the_bound(calls: list[tuple[int, int, int]]) -> None:
    bound = 20_000
    histories = BodyCache(bound)
    seen: dict[tuple[Key, bytes], None] = {}
    for family, number, size in calls:
        key: Key = (*KEY[:2], f"f{family}")
        content = chat(say(number, size))
        see(histories, content, key)
        seen[key, content] = None
        found: dict[int, CachedBody] = {}
        for each in seen:
            history, _ = histories.find(*each)
            if history is not None:
                found[id(history)] = history
        assert sum(len(history.split.content) for history in found.values()) <= bound
        assert sum(history.weight for history in found.values()) <= bound
        assert histories.find(key, content)[1] == 1


def test_the_least_recently_used_are_forgotten_first() -> None:
    histories = BodyCache(14_000)
    bodies = {name: chat(say(n)) for n, name in enumerate("abc")}
    for name in "abac":
        see(histories, bodies[name], (*KEY[:2], name))
    assert [histories.find((*KEY[:2], name), bodies[name])[1] for name in "abc"] == [1, 0, 1]


def test_a_body_too_large_to_remember_drives_out_nothing() -> None:
    histories = BodyCache(10_000)
    see(histories, chat(say(1)))
    huge = chat(say(2, 20_000))
    see(histories, huge)
    assert histories.find(KEY, huge) == (None, 0)
    assert histories.find(KEY, chat(say(1)))[1] == 1


def test_members_weigh_too() -> None:
    histories = BodyCache(100_000)
    body = json.dumps({"messages": [say(1, 5000)], **{f"k{n}": n for n in range(1000)}}).encode()
    assert len(body) < 20_000
    see(histories, body)
    assert histories.find(KEY, body) == (None, 0)


def test_more_new_messages_than_are_looked_at_are_kept_as_one_piece() -> None:
    histories, log = BodyCache(PLENTY), Log()
    log.take(see(histories, chat(say(1))))
    content = chat(say(1), *[{}] * 20_001)
    manifest = see(histories, content)
    log.take(manifest)
    assert not manifest.slices
    assert log.rebuild(manifest.recipe) == content


def test_after_clearing_a_manifest_is_complete_again() -> None:
    histories, log = BodyCache(PLENTY), Log()
    see(histories, chat(say(1), say(2)))
    histories.clear()
    content = chat(say(1), say(2), say(3))
    manifest = see(histories, content)
    log.take(manifest)
    assert log.rebuild(manifest.recipe) == content
    for session in range(4):  # and its bookkeeping begins anew
        see(histories, chat(say(session)))
    assert histories.find(KEY, chat(say(3)))[1] == 1
