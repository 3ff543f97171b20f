"""Outlines from a process of its own: whatever a text does to it, the proxy goes on."""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from proxy.worker.outlines import GRAMMARS, PROGRAM, TIME_LIMIT, Outliner, has_grammars

LIMIT = 300.0
JAVA = "class A {\n  void m() {\n  }\n}\n"
FOUND = ["class A · lines 1-4", "  method m · lines 2-3"]
# A program that counts its starts in a file, dies of "die", keeps silent at "hang", answers nonsense to "babble".
PLAYED = """
import json, os, sys
path = sys.argv[1]
with open(path, "a") as file:
    file.write("+")
for line in sys.stdin:
    grammar, text = json.loads(line)
    if text == "die":
        os._exit(1)
    if text == "hang":
        sys.stdin.read()
    print("nonsense" if text == "babble" else json.dumps([grammar, text, *os.environ.get("SECRET", "")]), flush=True)
"""


@pytest.fixture
def outliner() -> Iterator[Outliner]:
    """The real one."""
    made = Outliner(time_limit=LIMIT)
    yield made
    made.close()


@pytest.fixture
def starts(tmp_path: Path) -> Path:
    """The file in which starts are counted."""
    return tmp_path / "starts"


@pytest.fixture
def played(starts: Path) -> Iterator[Outliner]:
    """One over the program above. Its time has to do for the program's start on a busy machine, too."""
    made = Outliner((sys.executable, "-I", "-c", PLAYED, str(starts)), time_limit=10.0)
    yield made
    made.close()


def test_a_text_is_given_a_second() -> None:
    assert TIME_LIMIT == 1.0


def test_one_process_outlines_text_after_text(outliner: Outliner) -> None:
    assert [outliner.outline(JAVA, "java") for _ in range(3)] == [FOUND] * 3


def test_text_that_kills_a_parser_does_no_harm(outliner: Outliner) -> None:
    assert outliner.outline("%w(" * 3000, "rs") == []
    assert outliner.outline(JAVA, "java") == FOUND


def test_every_kind_has_its_grammar(outliner: Outliner) -> None:
    text = {"php": "<?php\nclass A {}", "go": "package a\ntype A struct{}", "sh": "A() {\n:\n}", "bash": "A() {\n:\n}"}
    text |= dict.fromkeys(["c", "h", "rs"], "struct A {};") | {"rb": "class A\nend"}
    found = {kind: outliner.outline(text.get(kind, "class A {};\n"), kind) for kind in GRAMMARS}
    assert {kind: lines for kind, lines in found.items() if len(lines) != 1 or " A · lines" not in lines[0]} == {}


@pytest.mark.parametrize(("text", "kind"), [("x", "txt"), ("x", ""), ("x" * 200_001, "js")])
def test_what_cannot_be_outlined_starts_no_process(played: Outliner, starts: Path, text: str, kind: str) -> None:
    assert played.outline(text, kind) == []
    assert not starts.exists()


@pytest.mark.parametrize("text", ["die", "hang", "babble"])
def test_a_process_that_fails_is_done_with(played: Outliner, starts: Path, text: str) -> None:
    assert played.outline("one", "js") == ["javascript", "one"]
    assert played.outline(text, "js") == []
    assert played.outline("two", "js") == ["javascript", "two"]
    assert starts.read_text() == "++"


def test_a_program_that_is_not_there_outlines_nothing(tmp_path: Path) -> None:
    assert Outliner((str(tmp_path / "none"),)).outline(JAVA, "java") == []


def test_without_the_extra_every_outline_is_empty_and_no_process_starts(
    starts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert has_grammars()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "tree_sitter_language_pack" else name)
    assert not has_grammars()
    without = Outliner((sys.executable, "-I", "-c", PLAYED, str(starts)))
    assert [without.outline(JAVA, kind) for kind in GRAMMARS] == [[]] * len(GRAMMARS)
    without.close()
    assert not starts.exists()


def test_the_process_is_not_told_the_environment(played: Outliner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "hush")
    assert played.outline("one", "js") == ["javascript", "one"]


def test_threads_take_turns(played: Outliner, starts: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda text: played.outline(text, "js"), map(str, range(20))))
    assert found == [["javascript", str(number)] for number in range(20)]
    assert starts.read_text() == "+"


def test_text_of_any_kind_gets_there(played: Outliner) -> None:
    text = "é 😀 \ud800 \0 \n"
    assert played.outline(text, "js") == ["javascript", text]


def test_one_that_was_closed_can_be_asked_again(played: Outliner, starts: Path) -> None:
    played.close()
    played.outline("one", "js")
    played.close()
    played.outline("two", "js")
    assert starts.read_text() == "++"


def test_the_program_is_the_file_beside_it() -> None:
    assert Path(PROGRAM[-1]).name == "outline_program.py"
    assert Path(PROGRAM[-1]).exists()


def test_an_outline_is_kept_by_the_hash_of_its_text(
    played: Outliner, starts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = played.outline(JAVA, "java")
    played.close()
    assert played.outline(JAVA, "java") == first and starts.read_text() == "+"
    assert played.outline(JAVA, "kt") != first and starts.read_text() == "++"
    monkeypatch.setattr("proxy.worker.outlines.MOST_KNOWN", 1)
    played.outline("class B {}", "java")
    played.close()
    played.outline(JAVA, "kt")
    assert starts.read_text() == "+++"
