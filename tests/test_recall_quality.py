"""The benchmark of recall: its dialogues, its cases, and that the ranking does better than plain BM25 on them."""

from benchmarks.chats import make_chat
from benchmarks.dialogues import make_dialogue
from benchmarks.memory_index import MemoryIndex
from benchmarks.recall_quality import Tally, measure_dialogues, measure_speed, pick_keywords
from proxy.retrieval.postings import IndexedText


def test_a_seed_makes_the_same_dialogue() -> None:
    assert make_dialogue(3) == make_dialogue(3)
    assert make_chat(3, exchanges=5) != make_chat(4, exchanges=5)


def test_evidence_is_a_turn_with_the_answer() -> None:
    for dialogue in (make_dialogue(5), make_chat(5, exchanges=40)):
        assert dialogue.questions
        for asked in dialogue.questions:
            told = " ".join(dialogue.turns[at].text for at in asked.evidence).lower()
            assert all(word.lower() in told for word in asked.answer)


def test_the_ranking_finds_more_than_plain_bm25() -> None:
    full, plain = measure_dialogues([make_chat(1, exchanges=60)], 2000)
    assert full.share("evidence") > 0.5 > plain.share("evidence")
    full, plain = measure_dialogues([make_dialogue(1, meetings=8)], 1500)
    assert full.share("evidence") > plain.share("evidence")


def test_keywords_are_the_rarest_words_that_occur() -> None:
    index = MemoryIndex()
    for turn, text in enumerate(("common words", "common thing", "common special")):
        index.add(1, turn, [IndexedText(text=text, role="user", kind="message")])
    assert pick_keywords("a common special word that is absent: words foo_bar", index) == "special word words"


def test_speed_is_told() -> None:
    assert "ranking p50" in measure_speed(700)


def test_a_tally_without_cases_says_nothing() -> None:
    tally = Tally()
    tally.add("found", 1, 2)
    tally.add("none", 0, 0)
    assert str(tally) == "found 50.0"
