"""Which tool calls are known to only read. Whatever is not counts as an act, which must not be repeated unasked.

A call only reads if each command that it runs is known to, or else if its tool is named for that. Nothing is known of a
tool by the harness that it belongs to. What checks a project (tests, linters, type checkers) counts as reading.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache

import msgspec

from proxy.model.messages import ToolCall

_decode = msgspec.json.Decoder().decode


def _list(words: str) -> frozenset[str]:
    return frozenset(words.split())


# Verbs of tools that read, at the beginning of a name; those of the second line at its end, too (`web_search`).
_READING_LAST = _list("read search find fetch lookup query grep glob diff screenshot tree")
_READING = _READING_LAST | _list(
    "get list ls view show describe display inspect check count browse explore retrieve recall look think reason "
    "calculate compute analyze analyse explain compare validate verify lint wait sleep ping peek preview poll rg cat "
    "head tail stat outline scan monitor summarize status info help history log logs version usage pwd whoami"
)
# Verbs that change something, which a name has beside a verb that reads: `get_or_create`, `mark_as_read`.
_CHANGING_AFTER = _list(
    "and or replace create update delete write edit insert remove set apply send upsert put patch modify"
)
_CHANGING = _CHANGING_AFTER | _list(
    "add mark move rename copy save upload download publish deploy post push merge run execute start stop restart kill "
    "close submit approve reject assign transfer pay charge refund buy order book cancel schedule invite share grant "
    "revoke enable disable install reset restore clear purge drop sync import commit type click press drag fill "
    "register sign trigger dispatch notify reply comment react archive subscribe store remember change make build "
    "append toggle open new"
)
_READER_NAMES = frozenset({"bashoutput", "taskoutput", "browser_snapshot", "toolsearch"})
_CHECK_IN = frozenset({("check", "in"), ("check", "out"), ("log", "in"), ("log", "out"), ("log", "message")})
# Tools that keep the agent's own list of what is to do (`TodoWrite`, `update_plan`): nothing outside it is changed.
_LISTS = _list("todo todos plan tasks checklist")
_SHELLS = _list("bash sh zsh shell terminal powershell exec execute run command cmd console")
_COMMANDS = ("command", "cmd", "commands", "script")
_OPERATIONS = ("action", "operation", "method")
_QUERIES = ("sql", "query", "statement")

_NAME_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_SQL_WRITES = re.compile(
    r"(?i)\b(?:insert\s+(?:or\s+\w+\s+)?into|update\s+\S+\s+set|delete\s+from|replace\s+into|merge\s+into|truncate"
    r"|(?:drop|alter|create)\s+(?:or\s+replace\s+)?(?:temp\w*\s+|unique\s+)?(?:table|index|view|database|schema|user"
    r"|role|function|trigger|extension|type|sequence)|grant|revoke|vacuum|call|copy|into\s+outfile|select\s+\S+\s+into)\b"
)
_SQL_READS = re.compile(r"(?i)\s*(?:select|show|explain|describe|desc|pragma|with|\\\w|\.(?:schema|tables|indexes))\b")


@lru_cache(maxsize=4096)
def only_reads(call: ToolCall) -> bool:
    """Return whether a call is known to only read."""
    own = re.split(r"__|[.:/]", call.name)[-1]
    words = tuple([part.lower() for part in _NAME_PART.findall(own)])
    given = read_arguments(call.arguments)
    if any(_SQL_WRITES.search(text) for name in _QUERIES for text in _list_texts(given.get(name))):
        return False
    if not _LISTS.isdisjoint(words) and any(isinstance(value, list) for value in given.values()):
        return True
    commands = _list_commands(given, call.arguments if not _SHELLS.isdisjoint(words) else "")
    if commands:
        program = own if own in _SUBCOMMANDS else ""
        is_shell = not _SHELLS.isdisjoint(words)
        return all(
            _runs_readers(f"{program} {text}" if program else text) or (not is_shell and text in _READING)
            for text in commands
        )
    operations = [text.lower() for name in _OPERATIONS for text in _list_texts(given.get(name))]
    if any(not _CHANGING.isdisjoint(_NAME_PART.findall(text)) for text in operations):
        return False
    if any(text == "options" or text.partition("_")[0] in _READING for text in operations):
        return _CHANGING.isdisjoint(words[:1])
    queried = [text for name in ("sql", "statement") for text in _list_texts(given.get(name))]
    return is_named_for_reading(own, words) or (bool(queried) and all(map(_SQL_READS.match, queried)))


def is_named_for_reading(name: str, words: Sequence[str]) -> bool:
    """Return whether a tool with this name, of these words, is named for what it reads."""
    if name.lower() in _READER_NAMES:
        return True
    if not words or tuple(words[:2]) in _CHECK_IN:
        return False
    if words[0] in _READING:
        return _CHANGING_AFTER.isdisjoint(words[1:])
    if words[0] in _SUBCOMMANDS and len(words) > 1:
        return _uses_reading_subcommand(words[0], words[1:])
    return words[-1] in _READING_LAST and _CHANGING.isdisjoint(words)


def read_arguments(arguments: str) -> Mapping[str, object]:
    """Return the named arguments of a call; empty where they are no object of JSON."""
    try:
        value = _decode(arguments)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _list_texts(value: object) -> list[str]:
    values = value if isinstance(value, list) else [value]
    return [each for each in values if isinstance(each, str)]


def _list_commands(given: Mapping[str, object], whole: str) -> list[str]:
    """Return the commands in a call's arguments; of a shell whose arguments name none, `whole` is one.

    A list is the words of one command, but that under `commands`.
    """
    found: list[str] = []
    for name in _COMMANDS:
        texts = _list_texts(given.get(name))
        if not isinstance(given.get(name), list) or name == "commands":
            found += texts
        elif texts:
            found.append(_join_words(texts))
    inner = given.get("action")
    if not found and isinstance(inner, dict):
        return _list_commands(inner, "")
    return found or ([whole] if whole and not given else [])


def list_listed_commands(call: ToolCall) -> list[str]:
    """Return the commands of a call that lists words, or commands, in its arguments; else none.

    Of a shell that is given a text (`bash -lc …`) it is that text.
    """
    given = read_arguments(call.arguments)
    listed = next((value for name in _COMMANDS if isinstance(value := given.get(name), list)), [])
    if len(listed) == 3 and _SHELL.fullmatch(str(listed[0])) and str(listed[1]).startswith("-"):
        return [str(listed[2])]
    return _list_commands(given, "") if listed else []


_SHELL = re.compile(r"(?:.*/)?(?:bash|sh|zsh|dash)")


def _join_words(words: Sequence[str]) -> str:
    """Return the words of a command as a shell reads them."""
    return " ".join(
        word if re.fullmatch(r"[\w./=:@%+,-]+", word) else f"'{word.replace(chr(39), _QUOTE)}'" for word in words
    )


_QUOTE = "'\\''"

# Programs that only read, whatever their arguments are, but for the options in `_WRITING_OPTIONS`.
_READERS = _list(
    "ls cat head tail less more grep egrep fgrep zgrep rg ag ack wc file stat du df pwd cd pushd popd echo printf true "
    "false test [ [[ which whereis type whoami id groups hostname uname uptime date printenv ps top free lsof ss "
    "netstat ping dig nslookup host nproc lscpu lsblk lspci lsusb jq yq cut tr uniq sort comm diff cmp paste join "
    "column nl tac rev fold fmt expand od xxd hexdump strings md5sum sha1sum sha256sum cksum base64 basename dirname "
    "realpath readlink seq sleep wait tree fd locate tokei cloc man help history exit return export set unset alias "
    "read shift local break continue zcat bzcat xzcat bat delta apt-cache journalctl nvidia-smi awk gawk sed "
    "ulimit env command pytest py.test tox nox ctest jest mocha vitest rspec phpunit mypy pyright flake8 pylint ruff "
    "black isort eslint prettier tsc shellcheck hadolint yamllint actionlint golangci-lint rubocop bandit"
)
# Options by which programs of these change something, and those without which some of them do.
_WRITING_OPTIONS = {
    name: re.compile(options, re.DOTALL)
    for name, options in {
        "sort": r"-o|--output",
        "yq": r"-i|--inplace",
        "sed": r"-[a-zA-Z]*i|--in-place|(?:.*[;\d$/}!]|)\s*w\s",
        "awk": r"-i|.*(?:system\s*\(|>|\|)",
        "gawk": r"-i|.*(?:system\s*\(|>|\|)",
        "fd": r"-x|-X|--exec",
        "date": r"-s|--set",
        "tree": r"-o",
        "journalctl": r"--vacuum|--rotate|--flush",
        "ruff": r"--fix|--unsafe-fixes|format",
        "eslint": r"--fix",
        "rubocop": r"-a|-A|--autocorrect|--auto-correct",
        "golangci-lint": r"--fix|fmt",
        "yarn": r"--fix",
        "npm": r"--fix|fix",
        "pip": r"-r$",
        "gh": r"-X|--method|-f|-F|--field|--raw-field|--input",
        "cargo": r"--fix",
        "psql": r"-f|--file|-o",
    }.items()
}
_NEEDED_OPTIONS = {
    name: re.compile(options)
    for name, options in {
        "black": r"--check|--diff",
        "isort": r"-c|--check|--diff",
        "prettier": r"--check|-c|-l|--list",
        "tsc": r"--noEmit",
        "ruff": r"check|--check|--diff",
    }.items()
}
# Programs with subcommands, and the subcommands that only read.
_SUBCOMMANDS: Mapping[str, frozenset[str]] = {
    name: frozenset(each.strip() for each in listed.split(","))
    for name, listed in {
        "git": "status, log, diff, show, blame, ls-files, ls-tree, ls-remote, rev-parse, rev-list, grep, describe,"
        "shortlog, cat-file, reflog, merge-base, show-ref, for-each-ref, count-objects, fsck, check-ignore, diff-tree,"
        "name-rev, whatchanged, stash list, stash show, remote show, remote get-url, remote -v, config --get,"
        "config --list, config -l, worktree list, submodule status, branch --list, branch -a, branch -v, branch -vv,"
        "branch -r, branch --show-current, tag -l, tag --list",
        "docker": "ps, images, inspect, logs, top, stats, port, version, info, history, diff, search, events,"
        "container ls, container inspect, container logs, image ls, image inspect, network ls, network inspect,"
        "volume ls, volume inspect, context ls, system df, compose ps, compose logs, compose config, compose images",
        "kubectl": "get, describe, logs, top, explain, version, api-resources, api-versions, cluster-info, diff,"
        "config view, config get-contexts, config current-context, rollout status, rollout history, auth can-i",
        "helm": "list, ls, status, get, history, show, search, template, lint, version, env, repo list",
        "terraform": "plan, show, output, validate, version, providers, graph, state list, state show, workspace list",
        "gh": "pr view, pr list, pr diff, pr checks, pr status, issue view, issue list, issue status, run view,"
        "run list, run watch, repo view, repo list, release view, release list, workflow view, workflow list, search, "
        "auth status, api, label list, gist view, gist list",
        "npm": "test, t, ls, list, view, info, show, outdated, audit, why, search, ping, run test, run lint,"
        "run typecheck, run type-check, run check",
        "pip": "list, show, freeze, check, index, config list, config get",
        "uv": "tree, pip list, pip show, pip freeze, pip check, pip tree, version, python list",
        "poetry": "show, check, env info, version",
        "conda": "list, info, env list, search, activate",
        "cargo": "test, check, clippy, build, bench, tree, metadata, search, nextest, version",
        "go": "test, vet, build, list, version, env, doc",
        "make": "test, tests, check, lint, help",
        "mvn": "test, dependency:tree, validate",
        "gradle": "test, check, tasks, dependencies",
        "alembic": "current, history, heads, show, branches, check",
        "manage.py": "check, test, showmigrations, sqlmigrate, diffsettings, inspectdb, help",
        "systemctl": "status, is-active, is-enabled, is-failed, list-units, list-unit-files, show, cat, list-timers",
        "pm2": "list, ls, logs, status, show, describe",
        "supervisorctl": "status, avail",
        "brew": "list, info, search, outdated, config, doctor, deps",
        "apt": "list, show, search, policy",
        "redis-cli": "get, keys, ping, info, ttl, type, llen, hgetall, scan, exists, mget, smembers, lrange, zrange",
        "nginx": "-t, -T, -v, -V",
        "crontab": "-l",
        "dpkg": "-l, -L, -s, -S",
        "rpm": "-q, -qa, -qi, -ql",
        "tar": "t, tf, tvf, tzf, -t, -tf, -tvf, -tzf, -ztf, -tzvf, --list",
        "unzip": "-l, -v, -t",
        "coverage": "report, html, xml",
        "mount": "",
        "ollama": "list, show, ps",
    }.items()
}
_ALIASES = {
    **dict.fromkeys(("podman", "docker-compose"), "docker"),
    **{
        "oc": "kubectl",
        "tofu": "terraform",
        "glab": "gh",
        "pip3": "pip",
        "gradlew": "gradle",
        "mvnw": "mvn",
        "apt-get": "apt",
    },
    **dict.fromkeys(("pnpm", "yarn", "bun"), "npm"),
    **dict.fromkeys(("mamba", "micromamba"), "conda"),
}
# Clouds name what a command does in one of its first words: `aws ec2 describe-instances`, `gcloud run services list`.
_CLOUDS = frozenset({"aws", "gcloud", "az", "doctl", "flyctl", "fly", "heroku", "vercel", "netlify", "wrangler"})
_CLOUD_WORDS, _CHANGING_CLOUD = 4, _CHANGING - {"run", "store"}
_SQL_CLIENTS = frozenset({"psql", "mysql", "mariadb", "sqlite3", "duckdb", "clickhouse-client"})
# Programs that run the command behind them.
_WRAPPERS = _list("sudo time timeout nice nohup env stdbuf xargs command builtin exec npx bunx uvx")
_RUNNERS = frozenset(
    {("uv", "run"), ("poetry", "run"), ("pipenv", "run"), ("pnpm", "exec"), ("bundle", "exec"), ("rye", "run")}
)
_KEYWORDS = _list("if then elif else fi while until do done ! { } in esac")
_VALUED = _list("-C -c -n --namespace --context --kubeconfig --profile --region -R --repo -p --project --prefix")
_LOOPS = frozenset({"for", "case", "select"})
_PYTHON = re.compile(r"py(?:thon)?[\d.]*")
_CHECK = re.compile(
    r"(?:[\w.@+-]+/|/)*(?:(?:run[_-]?)?tests?|check|verify|validate|lint|repro(?:duce|duction)?|show|inspect|compare)"
    r"(?:[_-][\w-]*)?\.(?:py|sh|js|mjs|ts|rb|php|pl)"
)
_SETUPS = re.compile(r"(?:.*/)?(?:activate|conda\.sh|nvm\.sh|\.?(?:bashrc|bash_profile|profile|zshrc|env))")
_ABOUT = frozenset({"--version", "-V", "-v", "--help", "-h", "version", "help"})
_ASSIGNED = re.compile(r"[A-Za-z_]\w*\+?=")
_SENDING = re.compile(r"-[a-zA-Z]*[dFTO]|--(?:data|form|upload|json|remote-name|output)|-[a-zA-Z]*o(?!.*/dev/null)")
_METHOD = re.compile(r"(?:-[a-zA-Z]*X|--request[= ]?)(.*)")
_READING_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_NOWHERE = re.compile(r"/dev/(?:null|stderr|stdout)|[12-]")
_SHELL_TOKEN = re.compile(
    r"'(?P<single>[^']*+)'|\"(?P<double>(?:[^\"\\]|\\.)*+)\"|\\(?P<escaped>.)|(?P<comment>(?<![^\s;])#[^\n]*)"
    r"|(?P<input><<<?)|(?P<output>(?:\d|&)?>>?[|&]?)|(?P<operator>&&|\|\|?&?|[;&\n()`]|\$\()|(?P<space>[ \t\r]+|<)"
    r"|(?P<word>[^\s'\"\\;&|()<>`$#]+|.)",
    re.DOTALL,
)
_SUBSTITUTED = re.compile(r"\$\(([^()]*+)\)|`([^`]*+)`")
_MOST_DEPTH, _MOST_COMMAND = 4, 20_000


def _runs_readers(text: str, depth: int = 0) -> bool:
    """Return whether a shell's text consists of commands that are known to only read."""
    if depth > _MOST_DEPTH or len(text) > _MOST_COMMAND:
        return False
    commands = _split_commands(text, depth)
    return commands is not None and any(commands) and all(_reads(words, depth) for words in commands if words)


def _split_commands(text: str, depth: int) -> list[list[str]] | None:
    """Return the words of each command in a shell's text; None if it writes a file, or has what is not understood."""
    commands: list[list[str]] = [[]]
    word: str | None = None
    is_target = False
    for token in _SHELL_TOKEN.finditer(f"{text}\n"):
        kind = token.lastgroup or ""
        if kind in ("single", "double", "escaped", "word"):
            if kind == "double" and not _substitutes_readers(token[kind], depth):
                return None
            word = (word or "") + token[kind]
            continue
        if token[0] == "<<":
            return None
        if is_target and (word is not None or kind != "space"):
            if not _NOWHERE.fullmatch(word or ""):
                return None
            is_target = False
        elif word is not None:
            commands[-1].append(word)
        is_target, word = is_target or kind == "output", None
        if kind == "operator":
            commands.append([])
    return commands


def _substitutes_readers(text: str, depth: int) -> bool:
    """Return whether the commands in a text in double quotes are known to only read."""
    inner = [one or other for one, other in _SUBSTITUTED.findall(text)]
    rest = _SUBSTITUTED.sub("", text) if inner else text
    return "$(" not in rest and "`" not in rest and all(_runs_readers(each, depth + 1) for each in inner)


def _reads(words: Sequence[str], depth: int) -> bool:
    """Return whether one command is known to only read."""
    words = list(_skip_wrappers(words))
    if not words or words[0] in _LOOPS:
        return True
    program, rest = _name_program(words[0]), words[1:]
    if (rest and _ABOUT.issuperset(rest)) or _is_check(words[0]):
        return True
    if program in _INTERPRETERS:
        return _INTERPRETERS[program](rest, depth)
    options, needed = _WRITING_OPTIONS.get(program), _NEEDED_OPTIONS.get(program)
    if options and any(map(options.match, rest)):
        return False
    if needed and not any(map(needed.match, rest)):
        return False
    if program in _RULES:
        return _RULES[program](rest)
    if program in _SUBCOMMANDS:
        return _uses_reading_subcommand(program, rest)
    parts = tuple([part.lower() for part in _NAME_PART.findall(program)])
    return program in _READERS or ("_" in program and "." not in program and is_named_for_reading(program, parts))


def _name_program(word: str) -> str:
    """Return the name of a program; empty for a file whose folder holds no programs."""
    folder, _, program = word.rpartition("/")
    if folder and not folder.endswith("bin") and program not in ("gradlew", "mvnw"):
        return ""
    program = "python" if _PYTHON.fullmatch(program) else program
    return _ALIASES.get(program, program)


def _skip_wrappers(words: Sequence[str]) -> Iterator[str]:
    """Yield the words of a command from its program on: without keywords, assignments, and programs that run it."""
    at, is_wrapped = 0, False
    while at < len(words):
        word = words[at]
        if tuple(words[at : at + 2]) in _RUNNERS:
            at, is_wrapped = at + 2, True
        elif word in _WRAPPERS and not (word in ("env", "command") and words[at + 1 : at + 2] in ([], ["-v"], ["-V"])):
            at, is_wrapped = at + 1, True
        elif word in _KEYWORDS or _ASSIGNED.match(word) or (is_wrapped and re.match(r"-|[\d.]+[smhd]?$|\{\}", word)):
            at += 1
        else:
            break
    yield from words[at:]


def _uses_reading_subcommand(program: str, rest: Sequence[str]) -> bool:
    """Return whether the subcommand of a program only reads; without one, whether nothing is asked of it."""
    known = _SUBCOMMANDS[program]
    plain: list[str] = []
    is_value = False
    for word in rest:
        if not is_value and not (word.startswith("-") and not plain and f"{word}" not in known):
            plain.append(word)
        is_value = not plain and word in _VALUED
    if not plain:
        return "" in known or (program == "git" and not rest)
    if plain[0] in known or " ".join(plain[:2]) in known:
        return True
    return program == "git" and len(plain) == 1 and plain[0] in ("branch", "tag", "remote")


def _runs_text(rest: Sequence[str], depth: int) -> bool:
    """Return whether a shell is given commands that are known to only read."""
    if len(rest) > 1 and re.fullmatch(r"-[a-z]*c", rest[0]):
        return _runs_readers(rest[1], depth + 1)
    return bool(rest) and _is_check(rest[0])


def _finds(rest: Sequence[str], depth: int) -> bool:
    """Return whether `find` deletes nothing, and what it runs is known to only read."""
    start = next((at + 1 for at, word in enumerate(rest) if word in ("-exec", "-execdir")), 0)
    if any(word.startswith(("-delete", "-ok", "-fprint", "-fls")) for word in rest):
        return False
    return not start or _reads([word for word in rest[start:] if word not in ("{}", ";", "+")], depth)


def _sets_up(rest: Sequence[str]) -> bool:
    """Return whether a sourced file only sets up the shell, such as a virtual environment."""
    return len(rest) == 1 and _SETUPS.fullmatch(rest[0]) is not None


def _reads_in_python(rest: Sequence[str], depth: int) -> bool:
    """Return whether an interpreter of Python is asked for a module, or a command of Django, that only reads."""
    if len(rest) > 1 and rest[0] == "-m":
        module = {"unittest": "pytest", "json.tool": "jq"}.get(rest[1], rest[1])
        return _reads([module, *rest[2:]], depth)
    if rest and rest[0].rpartition("/")[2] == "manage.py":
        return _uses_reading_subcommand("manage.py", rest[1:])
    return bool(rest) and _is_check(rest[0])


def _is_check(path: str) -> bool:
    """Return whether a script is named for what it checks or shows: `tests/runtests.py`, `verify_fix.py`."""
    return _CHECK.fullmatch(path) is not None


def _only_gets(rest: Sequence[str]) -> bool:
    """Return whether curl is asked for a resource, and for no more than to print it."""
    for word, following in zip(rest, (*rest[1:], ""), strict=True):
        if method := _METHOD.match(word):
            if (method[1] or following).strip("'\"").upper() not in _READING_METHODS:
                return False
        elif _SENDING.match(word if following != "/dev/null" else word.replace("o", "")):
            return False
    return True


def _asks_cloud(rest: Sequence[str]) -> bool:
    for word in [word for word in rest if not word.startswith("-")][:_CLOUD_WORDS]:
        first = word.partition("-")[0]
        if first in ("list", "ls", "describe", "get", "show", "head", "info", "logs", "status", "whoami"):
            return True
        if first in _CHANGING_CLOUD:
            return False
    return False


def _queries(rest: Sequence[str]) -> bool:
    """Return whether a client of a database is asked for what it has, and for nothing else."""
    return any(map(_SQL_READS.match, rest)) and not any(map(_SQL_WRITES.search, rest))


_INTERPRETERS: Mapping[str, Callable[[Sequence[str], int], bool]] = {
    **dict.fromkeys(("bash", "sh", "zsh"), _runs_text),
    "python": _reads_in_python,
    "find": _finds,
}
_RULES: Mapping[str, Callable[[Sequence[str]], bool]] = {
    **dict.fromkeys(("source", "."), _sets_up),
    "curl": _only_gets,
    **dict.fromkeys(_CLOUDS, _asks_cloud),
    **dict.fromkeys(_SQL_CLIENTS, _queries),
}
