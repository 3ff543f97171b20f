"""The versions of a file: who read it, who wrote it, and what changed it since."""

from typing import Any

import pytest

from proxy.engine.recall.history import AnsweredCall
from proxy.engine.recall.versions import (
    FileVersions,
    changes_file,
    find_file,
    find_versions,
    list_changes_after,
    list_known_files,
    list_paths,
    pick_version,
)
from proxy.model.messages import ToolCall
from tests.support.recalling import answer, ask, make_history


def call_of(name: str, **arguments: Any) -> ToolCall:
    return make_history(ask("c", name, **arguments)).calls[0].call


def bash(command: str) -> ToolCall:
    return call_of("bash", command=command)


@pytest.mark.parametrize(
    ("call", "paths"),
    [
        (bash("cat src/app.py"), ["src/app.py"]),
        (bash("cd /repo && sed -n '1,9p' ./src/app.py | head"), ["/repo", "src/app.py"]),
        (bash("grep -n x src/app.py:12"), ["src/app.py"]),
        (bash("curl https://example.com/a.py"), []),
        (bash("cat '/data/My files/notes.txt'"), ["/data/My", "files/notes.txt"]),
        (call_of("read_file", file_path="/data/My files/notes.txt"), ["/data/My files/notes.txt"]),
        (call_of("view", path="./src/app.py", view_range=[1, 9]), ["src/app.py"]),
        (call_of("Write", filePath="src/app.py", content="open('other.py')"), ["src/app.py"]),
        (bash("cat <<'EOF' > new.py\nimport os.path\nEOF"), ["new.py"]),
        (bash("python - <<E\nopen('made.py', 'w').write('x')\nE"), ["made.py"]),
        (bash("python - <<E\nprint('src/app.py')\nE"), []),
        (call_of("apply_patch", patch="*** Update File: src/app.py\n@@\n-import os.path\n"), ["src/app.py"]),
        (call_of("odd", names=["a/b.txt", 3]), ["a/b.txt"]),
        (ToolCall("c", "bash", "cat src/app.py"), ["src/app.py"]),
        (bash(""), []),
    ],
)
def test_paths_of_a_call(call: ToolCall, paths: list[str]) -> None:
    assert list_paths(call) == paths


@pytest.mark.parametrize(
    ("call", "is_change"),
    [
        (bash("cat src/app.py"), False),
        (bash("cat src/app.py 2>/dev/null"), False),
        (bash("cat src/app.py > copy.py"), False),
        (bash("echo x > src/app.py"), True),
        (bash("cd src && echo x >> app.py"), True),
        (bash("sed -i s/a/b/ src/app.py"), True),
        (bash("sed -i s/a/b/ other.py && cat src/app.py"), False),
        (bash("git checkout src/app.py"), True),
        (bash("python -m pytest src/app.py"), False),
        (bash("cat <<'EOF' > src/app.py\nx = 1\nEOF"), True),
        (bash("python - <<E\nfrom pathlib import Path\nPath('src/app.py').write_text('x')\nE"), True),
        (call_of("str_replace_editor", command="view", path="src/app.py"), False),
        (call_of("str_replace_editor", command="str_replace", path="src/app.py", old_str="a", new_str="b"), True),
        (call_of("Read", file_path="src/app.py"), False),
        (call_of("Edit", file_path="src/app.py"), True),
    ],
)
def test_which_calls_change_a_file(call: ToolCall, is_change: bool) -> None:
    assert changes_file(call, "src/app.py") is is_change


def make(*acts: tuple[str, dict[str, Any], str], path: str = "src/app.py") -> FileVersions:
    raws = [raw for n, (name, arguments, output) in enumerate(acts) for raw in _make_act(n, name, arguments, output)]
    return find_versions(make_history(*raws), path)


def _make_act(n: int, name: str, arguments: dict[str, Any], output: str) -> list[bytes]:
    return [ask(f"c{n}", name, **arguments), answer(f"c{n}", output)]


def run(command: str, output: str = "shown") -> tuple[str, dict[str, Any], str]:
    return "bash", {"command": command}, output


def summarize(found: FileVersions) -> tuple[str, list[int]]:
    version = pick_version(found)
    assert version is not None
    return version.text, [_get_place(change) for change in list_changes_after(found, version)]


def _get_place(act: AnsweredCall) -> int:
    return act.place


def test_the_newest_reading_counts_and_what_changed_since() -> None:
    found = make(run("cat src/app.py", "one"), run("cat src/app.py", "two"), run("sed -i s/a/b/ src/app.py", ""))
    assert summarize(found) == ("two", [4])


def test_a_whole_reading_counts_more_than_a_newer_part_of_the_same() -> None:
    found = make(run("cat src/app.py", "all"), run("head -3 src/app.py", "part"))
    assert summarize(found) == ("all", [])


def test_a_newer_part_counts_more_than_what_is_outdated() -> None:
    found = make(run("cat src/app.py", "all"), run("echo >> src/app.py", ""), run("head -3 src/app.py", "part"))
    assert summarize(found) == ("part", [])
    assert summarize(make(run("head -3 src/app.py", "part"))) == ("part", [])


def test_what_was_written_is_a_version() -> None:
    text = {"path": "src/app.py", "content": "x = 1\n"}
    assert summarize(make(run("cat src/app.py", "old"), ("write_file", text, "ok"))) == ("x = 1\n", [])
    heredoc = "cat > src/app.py <<'EOF'\nx = 2\nEOF\npython src/app.py"
    assert summarize(make(run("cat src/app.py", "old"), run(heredoc, "ran"))) == ("x = 2\n", [])


def test_an_edit_is_no_version() -> None:
    edit = {"path": "src/app.py", "old_str": "a", "new_str": "b", "content": "b"}
    assert summarize(make(run("cat src/app.py", "old"), ("str_replace", edit, "ok"))) == ("old", [2])


def test_what_failed_neither_shows_nor_changes_anything() -> None:
    failed = "bash: src/app.py: No such file or directory"
    found = make(run("cat src/app.py", failed), run("sed -i s/a/b/ src/app.py", failed))
    assert (pick_version(found), found.changes) == (None, [])


def test_what_only_mentions_a_file_does_not_show_it() -> None:
    assert pick_version(make(run("python src/app.py", "3"), run("cat src/app.pyc src/other.py", "x"))) is None


def test_a_file_is_found_by_the_end_of_its_path() -> None:
    raws = [ask("c1", "bash", command="cat /repo/src/app.py"), ask("c2", "bash", command="cat tests/app.py lib.py")]
    history = make_history(*raws)
    assert find_file(history, "src/app.py") == ["/repo/src/app.py"]
    assert find_file(history, "app.py") == ["/repo/src/app.py", "tests/app.py"]
    assert find_file(history, "/repo/deep/lib.py") == ["lib.py"]
    assert find_file(history, "nothing.py") == []
    assert list_known_files(history) == ["tests/app.py", "lib.py", "/repo/src/app.py"]


def test_a_path_that_json_escapes_is_found() -> None:
    history = make_history(ask("c1", "bash", command="cat src/größe.py"), answer("c1", "x"))
    assert "\\u00f6" in history.calls[0].call.arguments
    assert find_file(history, "src/größe.py") == ["src/größe.py"]


def test_one_file_under_two_paths_has_all_versions_of_both() -> None:
    found = make(run("cat /repo/src/app.py", "one"), run("sed -i s/a/b/ src/app.py", ""), path="/repo/src/app.py")
    assert summarize(found) == ("one", [2])
