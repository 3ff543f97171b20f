"""When the log is asked before a request is put, and what is decided where it cannot be."""

from msgspec.structs import replace

from proxy.engine.lineage.resolver import UnknownHistories
from proxy.model.lineage import NodeRow
from tests.engine.lineage.desk import HI, MORE, ROOT, SO, THEN, THERE, TWO, Desk, bot


def test_the_log_is_asked_about_answers_that_are_from_nowhere(desk: Desk) -> None:
    assert not desk.needs_log(desk.ask(HI, THERE, MORE))  # it has nothing else
    desk.index.is_complete = False
    assert not desk.needs_log(desk.ask(HI))
    asked = desk.ask(HI, THERE, MORE)
    assert desk.needs_log(asked)
    desk.resolver.record_recall(asked)
    assert not desk.needs_log(desk.ask(HI, THERE, THEN))
    assert desk.needs_log(replace(asked, session=replace(asked.session, tenant=b"another's")))
    assert desk.needs_log(desk.ask(HI, THERE, MORE, SO))
    assert desk.needs_log(desk.ask(HI, SO, MORE))


def test_the_log_is_not_asked_about_what_memory_accounts_for(desk: Desk) -> None:
    desk.place(HI, answer=THERE)
    desk.index.is_complete = False
    assert not desk.needs_log(desk.ask(HI, THERE, MORE))
    assert desk.needs_log(desk.ask(HI, THERE, MORE, SO))


def test_the_log_is_asked_again_when_something_was_dropped(desk: Desk) -> None:
    desk.index.clear()
    asked = desk.ask(HI, THERE, MORE)
    desk.resolver.record_recall(asked)
    assert not desk.needs_log(asked)
    desk.index.clear()
    assert desk.needs_log(asked)
    desk.resolver.record_recall(desk.ask(HI, SO))
    assert desk.needs_log(asked)


def test_the_log_is_asked_for_a_named_session_that_is_not_here(desk: Desk) -> None:
    desk.index.clear()
    assert desk.needs_log(desk.ask(HI, name="n"))
    desk.place(HI, name="n")
    assert not desk.needs_log(desk.ask(MORE, name="n"))
    assert not desk.needs_log(desk.ask(HI, SO, MORE, name="n"))  # it is known, whatever its client shows


def test_the_log_is_asked_again_for_a_named_session_of_which_it_did_not_tell(desk: Desk) -> None:
    desk.index.clear()
    asked = desk.ask(HI, name="n")
    desk.resolve(asked, is_certain=False)
    assert desk.needs_log(asked)
    desk.resolver.record_recall(asked)
    assert not desk.needs_log(asked)


def test_a_request_without_a_name_does_not_trust_a_named_namesake_alone(desk: Desk) -> None:
    desk.place(HI, name="n", answer=THERE)
    desk.index.is_complete = False
    assert desk.needs_log(desk.ask(HI, THERE, MORE))
    assert not desk.needs_log(desk.ask(HI, THERE, MORE, name="n"))


def test_where_the_log_cannot_be_asked_a_request_begins_a_session(desk: Desk) -> None:
    first = desk.place(HI, answer=THERE)
    asked = desk.ask(HI, THERE, MORE, SO, THEN)
    assert desk.resolve(asked, is_certain=False).session == asked.session != first.session
    named = desk.place(HI, name="n")
    assert desk.resolve(desk.ask(MORE, name="n"), is_certain=False).session == named.session


def test_whether_a_request_shows_answers_but_proves_nothing(desk: Desk) -> None:
    desk.place(HI, answer=THERE)
    asked = [desk.ask(HI), desk.ask(HI, THERE, MORE), desk.ask(HI, SO), desk.ask(HI, SO, name="n")]
    assert [desk.resolver.is_unproven(each) for each in asked] == [False, False, True, False]


def test_what_comes_before_the_deepest_known_answer_decides_nothing(desk: Desk) -> None:
    desk.place(HI, answer=THERE)
    first, there, more, so, _ = desk.ask(HI, THERE, MORE, SO, THEN).nodes
    desk.place(HI, THERE, MORE, tenant=TWO, answer=SO)
    assert desk.resolver.list_undecided(desk.ask(HI, THERE, MORE, SO, THEN)) == [so, more, there, first]
    desk.place(HI, THERE, MORE, answer=SO)
    assert desk.resolver.list_undecided(desk.ask(HI, THERE, MORE, SO, THEN)) == [so, more]
    assert desk.resolver.list_undecided(desk.ask(HI, THERE, MORE)) == [there, first]


def test_an_answer_of_several_messages_is_known_as_a_whole(desk: Desk) -> None:
    place = desk.place(HI, THERE, MORE)
    node = desk.answer(place, SO)
    desk.answer(place._replace(step=replace(place.step, tip=node)), THERE)
    asked = desk.ask(HI, THERE, MORE, SO, THERE, THEN)
    assert desk.resolver.list_undecided(asked) == list(reversed(asked.nodes[2:5]))


def test_where_nothing_is_known_everything_may_decide(desk: Desk) -> None:
    asked = desk.ask(HI, THERE, MORE)
    assert desk.resolver.list_undecided(asked) == [asked.nodes[1], asked.nodes[0], ROOT]
    assert desk.resolver.list_undecided(desk.ask()) == [ROOT]


def test_of_a_history_that_the_log_does_not_know_it_is_asked_again_once_an_answer_shows_in_it(desk: Desk) -> None:
    desk.index.clear()
    asked, other = desk.ask(HI, THERE, MORE, SO, THEN), desk.ask(HI, SO, MORE)
    for each in (asked, other):
        desk.resolve(each)
        desk.resolver.record_recall(each)
    desk.index.add("nobody", (), ())  # what else was dropped changes nothing
    assert not desk.needs_log(asked)
    assert not desk.needs_log(other)
    desk.resolver.record_answer([NodeRow(asked.nodes[1], asked.nodes[0], True)], [])
    assert desk.needs_log(asked)
    assert not desk.needs_log(other)


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


def test_only_the_newest_of_many_questions_to_the_log_are_kept_in_mind(desk: Desk) -> None:
    desk.index.clear()
    asked = [desk.ask(HI, bot(str(i))) for i in range(4097)]
    for each in asked:
        desk.resolver.record_recall(each)
    assert [desk.needs_log(asked[i]) for i in (0, 1, 4096)] == [True, False, False]
