"""What there is to know of one message."""

import pytest

from proxy.context.findings import find_outcome, study
from proxy.context.original import write_message
from proxy.model.told import Told, ToolCall


def call(name: str, arguments: str) -> Told:
    return Told("assistant", "", (ToolCall("c", name, arguments),))


def output(text: str) -> Told:
    return Told("tool", text, answers=("c",))


def test_words_of_text_and_of_arguments_are_found() -> None:
    told = Told("assistant", "read_shape it is", (ToolCall("c", "shell", '{"command": "cat wire/shaping.py"}'),))
    assert study(told).words == ("read_shape", "wire/shaping.py")


def test_what_an_output_imports_is_known_as_such() -> None:
    found = study(output("12: from proxy.wire import shaping\nread_shape(1)"))
    assert found.imported == ("proxy.wire",)
    assert found.words == ("proxy.wire", "read_shape")


@pytest.mark.parametrize(
    ("arguments", "written"),
    [
        ('{"command": "cat <<EOF > new_file.py\\nx\\nEOF"}', ("new_file.py",)),
        ('{"command": "sed -i s/a/b/ src/main.rs"}', ("src/main.rs",)),
        ('{"command": "cat src/main.rs"}', ()),
    ],
)
def test_files_that_a_command_writes_are_known(arguments: str, written: tuple[str, ...]) -> None:
    assert study(call("shell", arguments)).written == written
    assert study(call("shell", arguments)).effects == bool(written)


def test_a_tool_that_is_named_for_it_changes_something() -> None:
    assert study(call("book_reservation", "{}")).effects
    assert not study(call("get_user", "{}")).effects


def test_a_single_value_is_asked_without_its_name() -> None:
    assert study(call("shell", '{"command": "ls -la\\n  src"}')).asked == ("ls -la src",)
    assert study(call("find", '{"path": "src", "name": "x"}')).asked == ("path: src name: x",)


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("<returncode>0</returncode>\nerror: handled", ""),
        ("<returncode>2</returncode>\nls: no such file", "exit 2 ls: no such file"),
        ("Traceback\nValueError: bad", "ValueError: bad"),
        ("all is well", ""),
        ("error once\n" + "fine\n" * 50, ""),
    ],
)
def test_how_an_output_ended(text: str, outcome: str) -> None:
    assert find_outcome(text) == outcome


def test_sizes_are_those_of_the_text_and_of_its_original() -> None:
    told = output("a\nb")
    assert study(told).lines == 2
    assert study(told).characters == len(write_message(told))
    assert study(told).digest == study(Told("user", "a\nb")).digest
