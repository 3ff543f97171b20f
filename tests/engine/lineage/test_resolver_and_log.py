"""When the log is asked before a request is put, and what is decided where it cannot be."""

from msgspec.structs import replace

from proxy.engine.lineage.resolver import UnknownHistories
from proxy.model.lineage import NodeRow
from tests.engine.lineage.resolver_setup import HI, MORE, ROOT, SO, THEN, THERE, TWO, Setup, bot


def test_the_log_is_asked_about_answers_that_are_from_nowhere(setup: Setup) -> None:
    assert not setup.needs_log(setup.ask(HI, THERE, MORE))  # it has nothing else
    setup.index.is_complete = False
    assert not setup.needs_log(setup.ask(HI))
    asked = setup.ask(HI, THERE, MORE)
    assert setup.needs_log(asked)
    setup.resolver.record_recall(asked)
    assert not setup.needs_log(setup.ask(HI, THERE, THEN))
    assert setup.needs_log(replace(asked, session=replace(asked.session, tenant=b"another's")))
    assert setup.needs_log(setup.ask(HI, THERE, MORE, SO))
    assert setup.needs_log(setup.ask(HI, SO, MORE))


def test_the_log_is_not_asked_about_what_memory_accounts_for(setup: Setup) -> None:
    setup.place(HI, answer=THERE)
    setup.index.is_complete = False
    assert not setup.needs_log(setup.ask(HI, THERE, MORE))
    assert setup.needs_log(setup.ask(HI, THERE, MORE, SO))


def test_the_log_is_asked_again_when_something_was_dropped(setup: Setup) -> None:
    setup.index.clear()
    asked = setup.ask(HI, THERE, MORE)
    setup.resolver.record_recall(asked)
    assert not setup.needs_log(asked)
    setup.index.clear()
    assert setup.needs_log(asked)
    setup.resolver.record_recall(setup.ask(HI, SO))
    assert setup.needs_log(asked)


def test_the_log_is_asked_for_a_named_session_that_is_not_here(setup: Setup) -> None:
    setup.index.clear()
    assert setup.needs_log(setup.ask(HI, name="n"))
    setup.place(HI, name="n")
    assert not setup.needs_log(setup.ask(MORE, name="n"))
    assert not setup.needs_log(setup.ask(HI, SO, MORE, name="n"))  # it is known, whatever its client shows


def test_the_log_is_asked_again_for_a_named_session_of_which_it_did_not_tell(setup: Setup) -> None:
    setup.index.clear()
    asked = setup.ask(HI, name="n")
    setup.resolve(asked, is_certain=False)
    assert setup.needs_log(asked)
    setup.resolver.record_recall(asked)
    assert not setup.needs_log(asked)


def test_a_request_without_a_name_does_not_trust_a_named_namesake_alone(setup: Setup) -> None:
    setup.place(HI, name="n", answer=THERE)
    setup.index.is_complete = False
    assert setup.needs_log(setup.ask(HI, THERE, MORE))
    assert not setup.needs_log(setup.ask(HI, THERE, MORE, name="n"))


def test_where_the_log_cannot_be_asked_a_request_begins_a_session(setup: Setup) -> None:
    first = setup.place(HI, answer=THERE)
    asked = setup.ask(HI, THERE, MORE, SO, THEN)
    assert setup.resolve(asked, is_certain=False).session == asked.session != first.session
    named = setup.place(HI, name="n")
    assert setup.resolve(setup.ask(MORE, name="n"), is_certain=False).session == named.session


def test_whether_a_request_shows_answers_but_proves_nothing(setup: Setup) -> None:
    setup.place(HI, answer=THERE)
    asked = [setup.ask(HI), setup.ask(HI, THERE, MORE), setup.ask(HI, SO), setup.ask(HI, SO, name="n")]
    assert [setup.resolver.is_unproven(each) for each in asked] == [False, False, True, False]


def test_what_comes_before_the_deepest_known_answer_decides_nothing(setup: Setup) -> None:
    setup.place(HI, answer=THERE)
    first, there, more, so, _ = setup.ask(HI, THERE, MORE, SO, THEN).nodes
    setup.place(HI, THERE, MORE, tenant=TWO, answer=SO)
    assert setup.resolver.list_undecided(setup.ask(HI, THERE, MORE, SO, THEN)) == [so, more, there, first]
    setup.place(HI, THERE, MORE, answer=SO)
    assert setup.resolver.list_undecided(setup.ask(HI, THERE, MORE, SO, THEN)) == [so, more]
    assert setup.resolver.list_undecided(setup.ask(HI, THERE, MORE)) == [there, first]


def test_an_answer_of_several_messages_is_known_as_a_whole(setup: Setup) -> None:
    place = setup.place(HI, THERE, MORE)
    node = setup.answer(place, SO)
    setup.answer(place._replace(lineage=replace(place.lineage, tip=node)), THERE)
    asked = setup.ask(HI, THERE, MORE, SO, THERE, THEN)
    assert setup.resolver.list_undecided(asked) == list(reversed(asked.nodes[2:5]))


def test_where_nothing_is_known_everything_may_decide(setup: Setup) -> None:
    asked = setup.ask(HI, THERE, MORE)
    assert setup.resolver.list_undecided(asked) == [asked.nodes[1], asked.nodes[0], ROOT]
    assert setup.resolver.list_undecided(setup.ask()) == [ROOT]


def test_of_a_history_that_the_log_does_not_know_it_is_asked_again_once_an_answer_shows_in_it(setup: Setup) -> None:
    setup.index.clear()
    asked, other = setup.ask(HI, THERE, MORE, SO, THEN), setup.ask(HI, SO, MORE)
    for each in (asked, other):
        setup.resolve(each)
        setup.resolver.record_recall(each)
    setup.index.add("nobody", (), ())  # what else was dropped changes nothing
    assert not setup.needs_log(asked)
    assert not setup.needs_log(other)
    setup.resolver.record_answer([NodeRow(asked.nodes[1], asked.nodes[0], True)], [])
    assert setup.needs_log(asked)
    assert not setup.needs_log(other)


def test_what_the_log_does_not_know_is_kept_in_mind_within_bounds() -> None:
    unknown = UnknownHistories()
    for number in range(20):
        unknown.add(b"%d" % number, tuple(b"%d %d" % (number, i) for i in range(1024)))
    assert [b"%d" % number in unknown for number in (0, 3, 4, 19)] == [False, False, True, True]
    unknown.record_answer([NodeRow(b"4 7", b"", True)], [])
    unknown.record_answer([NodeRow(b"4 7", b"", True)], [])
    assert b"4" not in unknown
    unknown.clear()
    assert b"19" not in unknown


def test_only_the_newest_of_many_questions_to_the_log_are_kept_in_mind(setup: Setup) -> None:
    setup.index.clear()
    asked = [setup.ask(HI, bot(str(i))) for i in range(4097)]
    for each in asked:
        setup.resolver.record_recall(each)
    assert [setup.needs_log(asked[i]) for i in (0, 1, 4096)] == [True, False, False]
