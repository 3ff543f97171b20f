import pytest

from proxy.context.message_features import (
    extract_features,
    find_namespace,
    find_outcome,
    is_name,
    is_not_done,
    is_opaque,
    list_identifiers,
    parse_identifier,
)
from proxy.context.references import render_message
from proxy.model.messages import Message, ToolCall


def test_words_stand_once_in_the_order_of_their_first_places() -> None:
    text = "see proxy/engine/relay.py, then read_shape and proxy/engine/relay.py; plain words, 12, camelCase 4096."
    assert list_identifiers(text) == ("proxy/engine/relay.py", "read_shape", "camelCase", "4096")


@pytest.mark.parametrize("found", ["plain", "./ab", "12", "x_" * 100, "Word"])
def test_plain_language_is_no_word(found: str) -> None:
    assert parse_identifier(found) == ""


@pytest.mark.parametrize("found", ["a.b.c", "v1beta", "#1234", "user@host", "isValid", "12345"])
def test_what_must_be_spelt_exactly_is_one(found: str) -> None:
    assert parse_identifier(found) == found


def test_a_word_loses_the_signs_around_it() -> None:
    assert parse_identifier("./src/main.rs.") == "src/main.rs"


def test_of_a_long_text_both_ends_are_read() -> None:
    assert list_identifiers(f"first_word {'x ' * 300_000} last_word") == ("first_word", "last_word")


def test_hashes_times_and_numbers_say_nothing_by_themselves() -> None:
    assert all(map(is_opaque, ["deadbeef01", "2026-11-22T07:00", "12345"]))
    assert not any(map(is_opaque, ["feedback", "read_shape", "a1/b.py"]))
    assert is_name("read_shape") and not is_name("isValid") and not is_name("12.345")


def test_a_family_is_a_folder_or_the_first_part_of_a_dotted_name() -> None:
    assert [find_namespace(word) for word in ("a/b/c.py", "np.nan", "read_shape")] == ["a/b", "np.", ""]


def call(name: str, arguments: str) -> Message:
    return Message("assistant", "", (ToolCall("c", name, arguments),))


def output(text: str) -> Message:
    return Message("tool", text, results=("c",))


def test_words_of_text_and_of_arguments_are_found() -> None:
    told = Message("assistant", "read_shape it is", (ToolCall("c", "shell", '{"command": "cat wire/format.py"}'),))
    assert extract_features(told).words == ("read_shape", "wire/format.py")


@pytest.mark.parametrize(
    ("arguments", "written"),
    [
        ('{"command": "cat <<EOF > new_file.py\\nx\\nEOF"}', ("new_file.py",)),
        ('{"command": "sed -i s/a/b/ src/main.rs"}', ("src/main.rs",)),
        ('{"command": "cat src/main.rs"}', ()),
    ],
)
def test_files_that_a_command_writes_are_known(arguments: str, written: tuple[str, ...]) -> None:
    assert extract_features(call("shell", arguments)).written == written
    found = extract_features(call("shell", arguments))
    assert found.effects == (bool(written),) and found.writes == bool(written)


def test_a_tool_that_is_named_for_it_changes_something() -> None:
    assert extract_features(call("book_reservation", "{}")).effects == (True,)
    assert extract_features(call("get_user", "{}")).effects == (False,)


@pytest.mark.parametrize(
    ("text", "identifiers"),
    [
        ("см. модуль_отчётов_0.txt и КлассОтчёта", ("модуль_отчётов_0.txt", "КлассОтчёта")),
        ("η κλάση ΠίνακαςΤιμών και το größe_3", ("ΠίνακαςΤιμών", "größe_3")),
        ("請修改報告模組.py 然後執行測試 共有3個檔案", ("請修改報告模組.py",)),
        ("변수 보고서_목록 값", ("보고서_목록",)),
        ("ファイル src/レポート_1.csv を開く", ("src/レポート_1.csv",)),
        ("それは3つの文です", ()),
        ("src/module.py and other_name", ("src/module.py", "other_name")),
    ],
)
def test_identifiers_are_seen_in_any_script(text: str, identifiers: tuple[str, ...]) -> None:
    assert list_identifiers(text) == identifiers


def test_a_long_text_without_spaces_is_searched_in_linear_time() -> None:
    text = "漢字仮名" * 50_000
    assert list_identifiers(text) == list_identifiers(f"{text}.") == ()


def test_a_single_value_is_asked_without_its_name() -> None:
    assert extract_features(call("shell", '{"command": "ls -la\\n  src"}')).asked == ("ls -la src",)
    assert extract_features(call("find", '{"path": "src", "name": "x"}')).asked == ("path: src name: x",)


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        # exit codes
        ("<returncode>0</returncode>\nerror: handled", ""),
        ("<returncode>1</returncode>\n<output>\n</output>", "exit 1"),
        (
            "<returncode>2</returncode>\nls: x: No such file or directory\n",
            "exit 2 ls: x: No such file or directory",
        ),
        ('{"exit_code": 3, "output": "x"}', "exit 3"),
        # test runners
        ("F\n=== FAILURES ===\nassert 1 == 2\n==== 2 failed, 13 passed in 1.2s ====", "2 failed, 13 passed"),
        ("\x1b[31m== \x1b[1m4 errors\x1b[0m\x1b[31m in 6.52s\x1b[0m ==", "4 errors"),
        ("Ran 5 tests in 0.1s\n\nFAILED (failures=1, errors=2)", "FAILED (failures=1, errors=2)"),
        ("Tests:       1 failed, 4 passed, 5 total\nTime:        2 s", "1 failed, 4 passed, 5 total"),
        ("--- FAIL: TestParse (0.00s)\nFAIL\tgithub.com/x/y\t0.2s", "FAIL\tgithub.com/x/y\t0.2s"),
        ("test result: FAILED. 3 passed; 1 failed; 0 ignored", "FAILED. 3 passed; 1 failed; 0 ignored"),
        ("  12 passing (40ms)\n  2 failing", "2 failing"),
        ("===== 15 passed in 1.2s =====", ""),
        ("0 errors were found in errors.py\n" + "fine\n" * 9, ""),
        # exceptions
        ("begin\nTraceback (most recent call last):\n  File 'a.py'\nValueError: bad", "ValueError: bad"),
        ("Traceback (most recent call last):\n  File 'a.py'\nx.OwnError\nhint", "x.OwnError"),
        ("Traceback (most recent call last):\n  File 'a.py'\nValueError: bad\n" + "went on\n" * 9, ""),
        # error objects and statuses
        ('{"error": {"message": "no seat", "code": 7}}', '"error": {"message": "no seat", "code": 7}}'),
        ('{"data": 1, "isError": true}', '"isError": true'),
        ('{"success": false}', '"success": false'),
        ('{"error": null, "errors": [], "ok": true, "status": 200}', ""),
        ('{"status": 503, "detail": "later"}', '"status": 503'),
        ("HTTP/1.1 404 Not Found\ncontent-length: 0", "404 Not Found"),
        ("HTTP/1.1 200 OK\ncontent-length: 0", ""),
        # messages
        ("Error: not enough seats", "Error: not enough seats"),
        ("ERROR:\nNo replacement was performed.", "ERROR: No replacement was performed."),
        ("cc -c x.c\nmake: *** [Makefile:192: build] Error 2", "make: *** [Makefile:192: build] Error 2"),
        ("bash: ponyc: command not found", "bash: ponyc: command not found"),
        # no failures
        ("", ""),
        ("all is well", ""),
        ("error once\n" + "fine\n" * 50, ""),
        ("12:    try:\n13:        read()\n14:    except OSError as error:\n15:        raise Failed() from error", ""),
        ("src/errors.py\nsrc/not found.txt\nsrc/failed.log", ""),
        ("errors.py:3: class ParseError(Exception):\nerrors.py:9: def fail():", ""),
    ],
)
def test_how_an_output_ended(text: str, outcome: str) -> None:
    assert find_outcome(text) == outcome


def test_sizes_are_those_of_the_text_and_of_its_original() -> None:
    told = output("a\nb")
    assert extract_features(told).lines == 2
    assert extract_features(told).characters == len(render_message(told))
    assert extract_features(told).digest == extract_features(Message("user", "a\nb")).digest


@pytest.mark.parametrize(
    ("tool", "output"),
    [
        ("bash", "Please always provide EXACTLY ONE action in triple backticks, found 2 actions."),
        ("Bash", "The user doesn't want to proceed with this tool use. The tool use was rejected."),
        ("Bash", "Permission to use Bash with command rm -rf build has been denied."),
        ("Bash", "This command requires approval"),
        ("shell", "exec command rejected by user"),
        ("bash", "The user rejected permission to use this specific tool call."),
        ("run_shell_command", "[Operation Cancelled] Reason: User did not allow tool call"),
        ("execute_command", "The user denied this operation."),
        ("Edit", "<tool_use_error>String to replace not found in file.\nString: x</tool_use_error>"),
        ("Edit", "File has not been read yet. Read it first before writing to it."),
        ("edit", "Found 3 matches of the string to replace, but replace_all is false."),
        ("str_replace_editor", "ERROR:\nNo replacement was performed, old_str `x` did not appear verbatim in /a."),
        ("edit_file", "Your proposed edit has introduced new syntax errors. Your changes have NOT been applied."),
        ("write_file", "Unknown tool: write_file"),
        ("book_flight", "Error: payment amount does not add up, total price is 10, but paid 0"),
        ("cancel_order", '{"error": "no such order"}'),
        ("deploy", "2 validation errors for DeployArguments"),
    ],
)  # fmt: skip
def test_an_output_says_that_its_call_was_not_carried_out(tool: str, output: str) -> None:
    assert is_not_done(tool, output)


@pytest.mark.parametrize(
    ("tool", "output"),
    [
        ("bash", "<returncode>0</returncode>\n<output>\nError: the check was not executed\n</output>"),
        ("bash", "error: could not compile `a`"),
        ("bash", "make: foo: command not found\nbash: x: Permission denied"),
        ("bash", "warning: this flag is not supported and was not applied"),
        ("bash", "built\n" * 200 + "Process exited with code 0"),
        ("Edit", "The file src/a.py has been updated. Please review the changes."),
        ("cancel_order", '{"status": "cancelled", "by": "user"}'),
        ("cancel_order", "The order was cancelled, as the user wished."),
        ("Write", "x" * 400 + " was rejected by the user"),
        ("update", ""),
    ],
)  # fmt: skip
def test_other_outputs_do_not(tool: str, output: str) -> None:
    assert not is_not_done(tool, output)
