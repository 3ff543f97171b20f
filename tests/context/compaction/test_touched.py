"""Files of a stretch of work."""

import pytest

from proxy.context.compaction.spans import MessageRange
from proxy.context.compaction.touched import Touched, find_touched
from tests.support.reports import look
from tests.support.views import Message, act, user


def find(*messages: Message) -> tuple[Touched, ...]:
    return find_touched(look(messages), MessageRange(0, len(messages), 0))


def test_the_newest_comes_first_and_an_edited_one_is_known_as_such() -> None:
    messages = [
        *act("a", "cat src/parse.py", "import src/never.py"),
        *act("b", "sed -i s/x/y/ src/parse.py", ""),
        *act("c", "cat README.md src/parse.py && ls", ""),
        *act("d", "src/new.py", "", name="write_file"),
    ]
    assert find(user("see src/said.py"), *messages) == (
        Touched("src/new.py", True),
        Touched("README.md", False),
        Touched("src/parse.py", True),
    )


def test_only_those_of_the_span() -> None:
    messages = [*act("a", "cat a.py", ""), *act("b", "cat b.py", ""), *act("c", "cat c.py", "")]
    assert find_touched(look(messages), MessageRange(2, 4, 0)) == (Touched("b.py", False),)


@pytest.mark.parametrize("command", ["ls -la", "python -m proxy.cli", "date 2024/05/01", "git log v1.2.3", ""])
def test_other_words_are_no_files(command: str) -> None:
    assert find(*act("a", command, "")) == ()
