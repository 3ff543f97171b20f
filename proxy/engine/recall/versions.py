"""The versions of a file in a history: which calls read it, which wrote it, which changed it since.

No tool is known by its name: a call is about a file if its arguments name the path, and changes it if such calls do
(`context/message_features`).
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence

import msgspec

from proxy.context.message_features import extract_features_without_identifiers
from proxy.context.references import list_argument_lines
from proxy.engine.recall.history import AnsweredCall, History
from proxy.model.messages import Message, ToolCall
from proxy.wire.json_values import read_object

_LONGEST_PATH = 300
_MOST_ARGUMENTS = 100_000
_WORD = re.compile(r"[^\s'\"`=;|&<>(){}\[\],]+")
_NUMBERED = re.compile(r":\d+(?:[:-]\d+){0,4}:?$")
_SEPARATOR = re.compile(r"\n|;|&&|\|\|?")
_REDIRECTION = re.compile(r"\d?&?>>?\s*[^\s;|&]+")
_IS_PATH = re.compile(r"(?:[~.\w@+-]*/)+[^\s/]*|[\w@+-][\w.@+-]*\.[A-Za-z]\w{0,7}")
_IS_PATH_WITH_SPACES = re.compile(r"(?:~|\.{0,2})/[\w .@+/()-]*[\w)]")
_PATH_MEMBER = re.compile(r"(?i)(?:path|^(?:target_?)?file(?:_?name)?|^uri|^notebook)$")
_PATCHED = re.compile(
    r"(?m)^(?:\*\*\* (?:Update|Add|Delete|Move) (?:File|to): |(?:\+\+\+|---) [ab]/)(\S.{0,299}?)[ \t]*$"
)
# Members of arguments whose value says that a tool which can also change files only reads.
_MODES = ("command", "action", "mode", "operation", "op")
_READING_MODE = re.compile(r"(?i)(?:view|read|open|cat|show|list|get|search|find)(?:_?\w{0,20})")
_CONTENTS = ("content", "contents", "file_text", "text", "new_content", "file_content", "code", "body")
# Commands that show a file: all of it, a part, or some lines.
_START = r"(?m)(?:^[^\S\n]*+|[;&|(]\s*+)(?:sudo\s++)?"
_SHOWS_ALL = re.compile(_START + r"(?:cat|nl|less|more|bat|type|open|view|show|Get-Content)\s")
_SHOWS_PART = re.compile(_START + r"(?:head|tail|sed\s+-\w*n)\s")
_SHOWS_LINES = re.compile(_START + r"(?:grep|egrep|rg|ag|awk|diff|git\s+(?:diff|show|blame))\s")
_PART_MEMBERS = re.compile(r'"(?:offset|limit|view_range|start_?line|end_?line|line_?start|line_?end|lines|pattern)"')
# A text within a command, up to a line with a word that its first line names.
_HEREDOC = re.compile(r"<<-?[ \t]*+['\"]?(\w{1,40}+)['\"]?")
_WRITES_HEREDOC = re.compile(r"(?:^|[;&|])\s*cat\s*>\s*([^\s;|&<>]+)\s*$")
_QUOTED = re.compile(r"['\"]([^'\"\n]{1,300})['\"]")
_OPENED = re.compile(r"open\([^()\n]{0,300}['\"][wax]\+?b?['\"]|\.write_(?:text|bytes)\(")


class _Heredoc(msgspec.Struct, frozen=True, gc=False):
    """A text within a command: its first line without the word that ends it, the number of that and of its last."""

    start: int
    end: int
    before: str
    behind: str
    text: str


class Version(msgspec.Struct, frozen=True, gc=False):
    """What a call shows of a file. `is_part`: perhaps not all of it. `is_written`: it is what the call wrote."""

    act: AnsweredCall
    text: str
    is_part: bool = False
    is_written: bool = False

    @property
    def place(self) -> int:
        """The place of the message that has the text."""
        return self.act.place if self.is_written else self.act.answered


class FileVersions(msgspec.Struct, frozen=True, gc=False):
    """The versions of a file, oldest first, and the calls that changed it.

    What only shows some lines of it, as `grep` does, counts where nothing else shows it; `shown` has that in any case.
    """

    path: str
    versions: Sequence[Version]
    changes: Sequence[AnsweredCall]
    shown: Sequence[Version] = ()


def list_paths(call: ToolCall) -> list[str]:
    """Return the paths that the arguments of a call name, each once, in their order.

    Where a member of them is a path by its name, or a patch says which files it is for, only those count.
    """
    members = read_object(call.arguments[:_MOST_ARGUMENTS]) or {}
    named = [value for name, value in members.items() if isinstance(value, str) and _PATH_MEMBER.search(name)]
    whole = [plain for value in named if (plain := _normalize(value)) and len(plain) <= _LONGEST_PATH]
    if whole:
        return list(dict.fromkeys(whole))
    values = list(_list_commands(call))
    patched = [_normalize(path) for value in values for path in _PATCHED.findall(value)]
    words = (word for value in values for word in _list_path_words(value))
    return list(dict.fromkeys(filter(None, patched or words)))


def _list_commands(call: ToolCall) -> Iterator[str]:
    """Yield the values of the arguments without the texts in commands; of programs that write, their strings stay."""
    for value in _list_values(call):
        yield _shorten(value) if "<<" in value else value


def _shorten(command: str) -> str:
    lines, shorter, at = command.split("\n"), list[str](), 0
    for each in _list_heredocs(lines):
        strings = " ".join(f"'{text}'" for text in _QUOTED.findall(each.text)) if _OPENED.search(each.text) else ""
        shorter += [*lines[at : each.start], f"{each.before}{each.behind} {strings}"]
        at = each.end + 1
    return "\n".join([*shorter, *lines[at:]])


def _list_heredocs(lines: Sequence[str]) -> Iterator[_Heredoc]:
    """Yield the texts within the lines of a command, in order, each from its first line to that with its word."""
    ends: dict[str, list[int]] = {}
    for number, line in enumerate(lines):
        ends.setdefault(line.strip(" \t"), []).append(number)
    last = -1
    for number, line in enumerate(lines):
        for mark in _HEREDOC.finditer(line) if number > last else ():
            places = ends.get(mark[1], [])
            later = bisect_right(places, number)
            if later < len(places):
                last = places[later]
                text = "".join(f"{each}\n" for each in lines[number + 1 : last])
                yield _Heredoc(number, last, line[: mark.start()], line[mark.end() :], text)
                break


def _list_path_words(value: str) -> Iterator[str]:
    whole = value.strip()
    if len(whole) <= _LONGEST_PATH and _IS_PATH_WITH_SPACES.fullmatch(whole):
        yield _normalize(whole)
    for word in _WORD.findall(value):
        plain = _NUMBERED.sub("", word)
        if len(plain) <= _LONGEST_PATH and "://" not in plain and _IS_PATH.fullmatch(plain):
            yield _normalize(plain)


def find_file(history: History, wanted: str) -> list[str]:
    """Return the files of a history that a path may mean: that one, or else all whose paths end with it."""
    name = _normalize(wanted)
    known = {path for act in history.calls if _mentions(act.call, name) for path in _list_paths_of(history, act)}
    if name in known:
        return [name]
    ending = sorted({path for path in known if path.endswith(f"/{name}")}, key=lambda path: (-len(path), path))
    longest = [path for i, path in enumerate(ending) if not any(other.endswith(f"/{path}") for other in ending[:i])]
    return sorted(longest) or [path for path in sorted(known) if name.endswith(f"/{path}")][:1]


def list_known_files(history: History) -> list[str]:
    """Return all paths that the calls of a history name, the newest first."""
    return list(dict.fromkeys(path for act in reversed(history.calls) for path in _list_paths_of(history, act)))


def find_versions(history: History, path: str) -> FileVersions:
    """Return the versions of a file and its changes; `path` is one that `find_file` returned."""
    key = ("versions", path)
    if key not in history.memo:
        history.memo[key] = _find_versions(history, path)
    found: FileVersions = history.memo[key]
    return found


def _list_paths_of(history: History, act: AnsweredCall) -> list[str]:
    key = ("paths", id(act))  # of one of the history, which keeps it
    if key not in history.memo:
        history.memo[key] = list_paths(act.call)
    paths: list[str] = history.memo[key]
    return paths


def _find_versions(history: History, path: str) -> FileVersions:
    versions: list[Version] = []
    lines: list[Version] = []
    changes: list[AnsweredCall] = []
    for act in history.calls:
        if not _mentions(act.call, path) or not any(is_same_file(path, each) for each in _list_paths_of(history, act)):
            continue
        if changes_file(act.call, path):
            if act.answered < 0 or not act.has_failed:
                changes.append(act)
                if (written := _find_written(act.call, path)) is not None:
                    versions.append(Version(act, written, is_written=True))
        elif act.output.strip() and not act.has_failed and (shown := _find_shown(act.call)):
            (lines if shown == "lines" else versions).append(Version(act, act.output, is_part=shown != "all"))
    return FileVersions(path, versions or lines, changes, (*versions, *lines))


def pick_version(found: FileVersions) -> Version | None:
    """Return the newest version, or an older one that has all of the file, if nothing changed it in between."""
    newest = found.versions[-1] if found.versions else None
    whole = next((version for version in reversed(found.versions) if not version.is_part), None)
    if newest is None or whole is None:
        return newest
    changed = [change for change in list_changes_after(found, whole) if change.place < newest.place]
    return newest if changed else whole


def list_changes_after(found: FileVersions, version: Version) -> list[AnsweredCall]:
    """Return the calls that changed a file after this version of it."""
    return [change for change in found.changes if change.place > version.place and change is not version.act]


def is_same_file(one: str, other: str) -> bool:
    """Return whether two normalised paths may mean the same file: one of them ends with the other."""
    return one == other or one.endswith(f"/{other}") or other.endswith(f"/{one}")


def changes_file(call: ToolCall, path: str) -> bool:
    """Return whether a call changes the file at this path, as far as its arguments tell."""
    members = read_object(call.arguments) or {}
    if any(isinstance(mode := members.get(name), str) and _READING_MODE.fullmatch(mode) for name in _MODES):
        return False
    if _has_effects(ToolCall(call.id, call.name, "{}")):
        return True  # a tool that changes things, by its name
    if any(_OPENED.search(value) for value in _list_values(call)):
        return True
    return any(
        _segment_changes(call, segment, path) for text in _list_commands(call) for segment in _SEPARATOR.split(text)
    )


def _segment_changes(call: ToolCall, segment: str, path: str) -> bool:
    """Return whether a part of a command changes the file: it writes into it, or has another effect and names it."""
    if path.rpartition("/")[2] not in segment:
        return False
    features = extract_features_without_identifiers(_make_message(call, segment))
    if any(is_same_file(_normalize(word), path) for word in features.written):
        return True
    bare = _REDIRECTION.sub(" ", segment) if features.written else segment
    named = [_normalize(word) for word in _WORD.findall(bare)]
    return _has_effects(ToolCall(call.id, call.name, bare)) and any(is_same_file(path, each) for each in named)


def _make_message(call: ToolCall, text: str) -> Message:
    return Message("assistant", "", (ToolCall(call.id, call.name, text),))


def _has_effects(call: ToolCall) -> bool:
    return extract_features_without_identifiers(Message("assistant", "", (call,))).writes


def _find_written(call: ToolCall, path: str) -> str | None:
    """Return the whole content that a call writes into a file, if its arguments have that."""
    members = read_object(call.arguments) or {}
    for command in _list_values(call) if "<<" in call.arguments else ():
        for each in _list_heredocs(command.split("\n")):
            target = _WRITES_HEREDOC.search(f"{each.before.rstrip()} {each.behind.strip()}")
            if target and is_same_file(path, _normalize(target[1])):
                return each.text
    if not any(_PATH_MEMBER.search(name) for name in members):
        return None
    if any(name.startswith(("old", "diff", "patch", "insert")) for name in members):
        return None
    return next((value for name in _CONTENTS if isinstance(value := members.get(name), str)), None)


def _find_shown(call: ToolCall) -> str:
    """Return whether the output of a call shows `all` of a file, a `part`, some `lines`, or (empty) something else."""
    if any(_PATH_MEMBER.search(name) for name in read_object(call.arguments) or {}):
        return "part" if _PART_MEMBERS.search(call.arguments) else "all"
    text = "\n".join(_list_commands(call))
    if _SHOWS_PART.search(text):
        return "part"
    if _SHOWS_ALL.search(text):
        return "all" if len(list_paths(call)) == 1 else "part"
    return "lines" if _SHOWS_LINES.search(text) else ""


def _mentions(call: ToolCall, path: str) -> bool:
    """Return False if the arguments of a call surely do not name the path: JSON may escape what is not ASCII."""
    name = path.rpartition("/")[2]
    return not name.isascii() or name in call.arguments


def _list_values(call: ToolCall) -> Iterator[str]:
    """Yield the values of the arguments, without their names."""
    arguments = call.arguments[:_MOST_ARGUMENTS]
    members = read_object(arguments)
    if members is None:
        yield from list_argument_lines(arguments)
        return
    for name, value in members.items():
        if isinstance(value, str):
            yield value
        else:
            yield from list_argument_lines(msgspec.json.encode(value, enc_hook=str).decode()) if name else ()


def _normalize(path: str) -> str:
    return path.strip().strip("'\"`").removeprefix("./").rstrip("/")
