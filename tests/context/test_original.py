"""The text of references."""

from proxy.context.original import read_arguments, write_message, write_original
from proxy.model.told import Told, ToolCall

CALL = Told("assistant", "I look.", (ToolCall("c1", "shell", '{"command": "cat a\\nb.py", "deep": {"n": [1, "x"]}}'),))
RESULT = Told("tool", "line 1\nline 2", answers=("c1",), media=("an image",))


def test_everything_said_is_in_it_without_escapes() -> None:
    text = write_original([CALL, RESULT])
    for said in ("I look.", "shell", "command: cat a\nb.py", "deep.n: 1", "deep.n: x", "line 1\nline 2", "(an image)"):
        assert said in text


def test_messages_stand_one_after_the_other() -> None:
    assert write_original([CALL, RESULT]) == write_message(CALL) + write_message(RESULT)
    assert write_original([]) == ""


def test_arguments_that_are_no_json_stay_as_they_are() -> None:
    assert read_arguments("{broken") == ["{broken"]
    assert read_arguments("[" * 5000) == ["[" * 5000]
    assert read_arguments("") == []


def test_deep_arguments_are_written_as_json_from_a_depth_on() -> None:
    (line,) = read_arguments('{"k":' * 40 + '"a"' + "}" * 40)
    assert line.startswith("k.k.k.") and line.endswith('{"k":"a"}' + "}" * 23)
