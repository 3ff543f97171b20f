"""`palimpsest run` as users run it: a client of the openai SDK, the shared proxy, signals, and what is left."""

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from proxy.cli.run import Notices
from tests.journeys.provider import Provider, run_provider
from tests.journeys.running import run_command, run_proxy

SECONDS = 60.0
NOTICE_SECONDS = 2.5  # an epoch is told within one
ASK = """
import openai
for piece in openai.OpenAI(api_key="sk-run").chat.completions.create(
        model="m", messages=[{"role": "user", "content": "Tell me."}], stream=True,
        stream_options={"include_usage": True}):
    pass
"""
# Sends one long history, so that an epoch opens, and stays until the file is there that its last word names. It takes
# its base URL as codex does, or from its environment.
LONG = """#!{python}
import json, os, sys, time, urllib.request
base = os.environ.get("OPENAI_BASE_URL") if sys.argv[1] != "-c" else sys.argv[2].partition("=")[2].strip('"')
messages = [{"role": "user", "content": "Read all files."}]
for n in range(30):
    call = {"id": f"call_long_{n}", "type": "function", "function": {"name": "read", "arguments": json.dumps({"n": n})}}
    text = "\\n".join(f"{n} line {k} of the file {n * k}" for k in range(200))
    messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
    messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})
asked = {"model": "m", "messages": messages}
head = {"content-type": "application/json", "authorization": "Bearer sk-run"}
request = urllib.request.Request(base + "/chat/completions", json.dumps(asked).encode(), head)
print("epoch", urllib.request.urlopen(request, timeout=60).headers["x-palimpsest-epoch"], flush=True)
until = time.monotonic() + 60
while time.monotonic() < until and not os.path.exists(sys.argv[-1]):
    time.sleep(0.02)
"""
# Writes its process id, then each signal it gets, and ends on request.
LISTEN = """
import os, signal, sys, time
numbers = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
signal.pthread_sigmask(signal.SIG_BLOCK, numbers)  # so that each is taken as it comes
print("pid", os.getpid(), flush=True)
until = time.monotonic() + 60
while time.monotonic() < until and not os.path.exists(sys.argv[1]):
    if got := signal.sigtimedwait(numbers, 0.02):
        print("got", int(got.si_signo), flush=True)
"""


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with run_provider() as running:
        yield running


def start(home: Path, provider: Provider, *words: str, **settings: str) -> "subprocess.Popen[str]":
    """Start a command of ours without a terminal, in an environment of its own."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI", "PALIMPSEST"))}
    environment |= {"HOME": str(home), "OPENAI_BASE_URL": provider.base_url} | settings
    return subprocess.Popen(
        [sys.executable, "-m", "proxy", *words],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def end(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    out, trouble = process.communicate(timeout=SECONDS)
    return process.returncode, out, trouble


def wait_for(what: Callable[[], object]) -> None:
    until = time.monotonic() + SECONDS
    while not what():
        assert time.monotonic() < until, "it did not come to pass"
        time.sleep(0.02)


def list_proxies(home: Path) -> list[int]:
    """The proxies that runs have started here."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes().decode().split("\0")
            if "--until-unused" in words and any(word.startswith(f"--data={home}") for word in words):
                found.append(int(folder.name))
    return found


def name_log(home: Path, provider: Provider) -> Path:
    return home / ".palimpsest" / f"127.0.0.1-{provider.port}"


def test_a_program_with_the_sdk_is_recorded_and_nothing_is_left(provider: Provider, tmp_path: Path) -> None:
    code, out, trouble = end(start(tmp_path, provider, "run", "--", sys.executable, "-c", ASK))
    first, second, last = trouble.splitlines()
    assert (code, out) == (0, "")
    where = re.fullmatch(r"palimpsest: the proxy for \S+ is (http://127\.0\.0\.1:\d+/-/, with its log in \S+)", first)
    assert where
    assert second == f"palimpsest: {sys.executable} runs through {where[1]}"
    assert last == "palimpsest: 1 call; 7 tokens sent, 11 received; 0 epochs"
    log = name_log(tmp_path, provider)
    wait_for(lambda: not list_proxies(tmp_path))
    assert {path.name for path in log.iterdir()} == {
        "admin-token",
        "index.db",
        "index.db.lock",
        "log.db",
        "log.db.lock",
        "settings.json",
    }
    assert run_command("verify", "--data", str(log)).returncode == 0
    assert b'"calls":1' in run_command("sessions", "--json", "--data", str(log)).stdout


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 143)])
def test_the_exit_code_is_the_clients(script: str, code: int, provider: Provider, tmp_path: Path) -> None:
    got, _, trouble = end(start(tmp_path, provider, "run", "sh", "-c", script))
    assert got == code
    assert "no call came through the proxy" in trouble
    assert "runs through" not in trouble


def test_what_is_told_of_calls_depends_on_whether_they_came_and_when() -> None:
    late, early = Notices("agent", "here"), Notices("agent", "here")
    assert [list(late.tell(False, (), seconds)) for seconds in (1.0, 14.9)] == [[], []]
    [warning] = late.tell(False, (), 15.0)
    assert warning.startswith("no call of agent has come in 15 s")
    assert [list(late.tell(False, (), 16.0)), list(late.tell(True, (), 90.0))] == [[], ["agent runs through here"]]
    assert [list(early.tell(True, (), 1.0)), list(early.tell(True, (), 20.0))] == [["agent runs through here"], []]


def test_a_login_of_codex_with_a_plan_has_the_plans_backend_as_its_upstream(provider: Provider, tmp_path: Path) -> None:
    """What `run` starts is the server for it; the plan's token is sent nowhere else."""
    login = tmp_path / ".codex" / "auth.json"
    login.parent.mkdir()
    login.write_text(json.dumps({"auth_mode": "chatgpt", "tokens": {"access_token": "plan-token"}}))
    program = tmp_path / "codex"
    program.write_text('#!/bin/sh\ncat "$PALIMPSEST_DATA/upstreams"\n')
    program.chmod(0o700)
    _, out, trouble = end(start(tmp_path, provider, "run", "--", str(program)))
    assert out.split() == ["https://chatgpt.com/backend-api/codex"]
    assert "palimpsest/chatgpt.com-backend-api-codex" in trouble


# As pi does: it takes the address of its first provider, and a file of its own beside `models.json`.
LIKE_PI = """#!{python}
import json, os, pathlib, urllib.request
folder = pathlib.Path(os.environ["PI_CODING_AGENT_DIR"])
print((folder / "settings.json").read_text(), flush=True)
(folder / "auth.json").write_text("made in the run")
[provider] = json.loads((folder / "models.json").read_text())["providers"].values()
asked = {"model": "m", "messages": [{"role": "user", "content": "Tell me."}]}
head = {"content-type": "application/json", "authorization": "Bearer sk-run"}
url = provider["baseUrl"] + "/chat/completions"
urllib.request.urlopen(urllib.request.Request(url, json.dumps(asked).encode(), head), timeout=60).read()
"""


def test_pi_calls_here_by_a_folder_that_has_its_settings_and_keeps_what_it_makes(
    provider: Provider, tmp_path: Path
) -> None:
    own = tmp_path / ".pi" / "agent"
    own.mkdir(parents=True)
    models = json.dumps({"providers": {"mine": {"baseUrl": provider.base_url, "api": "openai-completions"}}})
    (own / "models.json").write_text(models)
    (own / "settings.json").write_text('{"theme": "dark"}')
    program = tmp_path / "pi"
    program.write_text(LIKE_PI.replace("{python}", sys.executable))
    program.chmod(0o700)
    code, out, trouble = end(start(tmp_path, provider, "run", "--", str(program)))
    assert (code, out) == (0, '{"theme": "dark"}\n'), trouble
    assert "1 call" in trouble
    assert (own / "models.json").read_text() == models
    assert (own / "auth.json").read_text() == "made in the run"


def test_a_client_that_is_not_there_is_named(provider: Provider, tmp_path: Path) -> None:
    code, _, trouble = end(start(tmp_path, provider, "run", "--", "no-such-client"))
    assert (code, trouble) == (127, "palimpsest: no-such-client is not installed, or not on your PATH\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("form", ["text", "json"])
def test_where_no_proxy_can_start_the_client_runs_as_it_is(provider: Provider, tmp_path: Path, form: str) -> None:
    script = 'echo "$OPENAI_BASE_URL $PALIMPSEST_DATA"; exit 5'
    code, out, trouble = end(
        start(tmp_path, provider, "run", "--host", "192.0.2.1", "--", "sh", "-c", script, PALIMPSEST_LOG__FORMAT=form)
    )
    assert (code, out) == (5, f"{provider.base_url} \n")
    [line] = trouble.splitlines()
    assert line.startswith("palimpsest: sh runs without the proxy, directly: cannot listen on 192.0.2.1:0")
    assert not list_proxies(tmp_path)


def test_a_wrong_option_is_an_error_and_nothing_is_started(provider: Provider, tmp_path: Path) -> None:
    code, out, trouble = end(start(tmp_path, provider, "run", "--ceiling", "lots", "--", "echo", "started"))
    assert (code, out) == (2, "")
    assert "budget.ceiling_tokens: must be" in trouble


def test_runs_share_a_proxy_which_ends_with_the_last_of_them(provider: Provider, tmp_path: Path) -> None:
    gates = [tmp_path / name for name in ("first", "second")]
    runs = [start(tmp_path, provider, "run", "--", sys.executable, "-c", LISTEN, str(gate)) for gate in gates]
    for run in runs:
        assert run.stdout is not None
        assert run.stdout.readline().startswith("pid")
    wait_for(lambda: len(list_proxies(tmp_path)) == 1)  # the other one finds that the log is taken
    gates[0].touch()
    assert end(runs[0])[0] == 0
    time.sleep(0.5)
    assert len(list_proxies(tmp_path)) == 1
    gates[1].touch()
    assert end(runs[1])[0] == 0
    wait_for(lambda: not list_proxies(tmp_path))
    third = start(tmp_path, provider, "run", "--", sys.executable, "-c", ASK)
    assert end(third)[2].endswith("palimpsest: 1 call; 7 tokens sent, 11 received; 0 epochs\n")


@pytest.mark.parametrize("whom", ["client", "run"])
def test_a_kill_leaves_no_proxy(whom: str, provider: Provider, tmp_path: Path) -> None:
    run = start(tmp_path, provider, "run", "--", sys.executable, "-c", LISTEN, str(tmp_path / "gate"))
    assert run.stdout is not None
    client = int(run.stdout.readline().split()[1])
    os.kill(client if whom == "client" else run.pid, signal.SIGKILL)
    if whom == "run":
        os.kill(client, signal.SIGKILL)
    assert end(run)[0] == (137 if whom == "client" else -signal.SIGKILL)
    wait_for(lambda: not list_proxies(tmp_path))
    assert not (name_log(tmp_path, provider) / "address").exists()


@pytest.mark.parametrize(
    ("number", "is_group"),
    [(signal.SIGINT, False), (signal.SIGINT, True), (signal.SIGTERM, False), (signal.SIGHUP, True)],
)
def test_a_signal_reaches_the_client_once(
    number: signal.Signals, is_group: bool, provider: Provider, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    run = start(tmp_path, provider, "run", "--", sys.executable, "-c", LISTEN, str(gate))
    assert run.stdout is not None
    run.stdout.readline()
    (os.killpg if is_group else os.kill)(run.pid, number)
    assert run.stdout.readline() == f"got {int(number)}\n"
    time.sleep(0.5)
    gate.touch()
    assert run.stdout.read() == ""
    assert end(run)[0] == 0


def test_ctrl_c_in_a_terminal_reaches_the_client_once_and_nothing_is_written_over_it(
    provider: Provider, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    child, terminal = pty.fork()
    if child == 0:
        words = [sys.executable, "-m", "proxy", "run", "--", sys.executable, "-c", LISTEN, str(gate)]
        os.execve(words[0], words, {**os.environ, "HOME": str(tmp_path), "OPENAI_BASE_URL": provider.base_url})
    shown = read_until(terminal, "pid")
    for _ in range(8):  # two that come at once count as one
        os.write(terminal, b"\x03")
        shown += read_until(terminal, "got 2")
        time.sleep(0.1)
    gate.touch()
    shown += read_until(terminal, "no call came")
    assert shown.count("got 2") == 8
    assert re.search(r"/-/\?token=\S+, with its log", shown)
    assert os.waitpid(child, 0)[1] == 0
    os.close(terminal)


@pytest.mark.parametrize(("name", "is_told"), [("codex", False), ("agent", True)])
def test_an_epoch_is_told_at_once_but_not_over_a_screen_that_a_client_fills(
    name: str, is_told: bool, provider: Provider, tmp_path: Path
) -> None:
    program, gate = tmp_path / name, tmp_path / "gate"
    program.write_text(LONG.replace("{python}", sys.executable))
    program.chmod(0o700)
    child, terminal = pty.fork()
    if child == 0:
        words = [sys.executable, "-m", "proxy", "run", "--upstream", provider.base_url, "--ceiling", "16000", "--"]
        words += [str(program), str(gate)]
        os.execve(words[0], words, {**os.environ, "HOME": str(tmp_path)})
    shown = read_until(terminal, "epoch 0")
    if is_told:
        shown += read_until(terminal, "compacted")
    else:
        time.sleep(NOTICE_SECONDS)
    gate.touch()
    shown += read_until(terminal, "1 epoch")
    assert os.waitpid(child, 0)[1] == 0
    os.close(terminal)
    assert ("compacted" in shown) == is_told


def read_until(terminal: int, word: str) -> str:
    shown, until = "", time.monotonic() + SECONDS
    while word not in shown:
        assert time.monotonic() < until, shown
        shown += os.read(terminal, 4096).decode()
    return shown


def test_a_running_server_is_used_and_stays(provider: Provider, tmp_path: Path) -> None:
    data = tmp_path / ".palimpsest"
    with run_proxy(data, provider.base_url) as proxy:
        code, _, trouble = end(start(tmp_path, provider, "run", "--mode", "observe", sys.executable, "-c", ASK))
        assert code == 0
        assert f"runs through {proxy.origin}/-/" in trouble
        assert "keeps the options with which it was started" in trouble
        assert proxy.process.poll() is None
        named = start(tmp_path, provider, "run", sys.executable, "-c", ASK, OPENAI_BASE_URL=proxy.base_url)
        assert f"runs through {proxy.origin}/-/" in end(named)[2]


def test_a_run_within_a_run_shares_its_proxy_or_has_a_directory_beside_its_own(
    provider: Provider, tmp_path: Path
) -> None:
    """What an agent starts may be started by `run` again: on the same upstream, or on another one."""
    ask = [sys.executable, "-c", ASK]
    inner = [sys.executable, "-m", "proxy", "run", "--"]
    code, _, trouble = end(start(tmp_path, provider, "run", "--", *inner, *ask))
    places = re.findall(r"the proxy for \S+ is (\S+), with its log in (\S+)", trouble)
    assert (code, len(places), len(set(places))) == (0, 2, 1)
    with run_provider() as other:
        # Another client, with another upstream than that of the one that started it.
        setting = f"OPENAI_BASE_URL={other.base_url}"
        code, _, trouble = end(start(tmp_path, provider, "run", "--", "env", setting, *inner, *inner, *ask))
        outer, middle, innermost = re.findall(r"the proxy for \S+ is (\S+), with its log in (\S+)", trouble)
        assert (code, len(other.seen), middle) == (0, 1, innermost)
        assert [outer[1], middle[1]] == [str(name_log(tmp_path, each)) for each in (provider, other)]


def test_a_server_with_another_upstream_is_not_used(provider: Provider, tmp_path: Path) -> None:
    with run_proxy(tmp_path / "data", "http://127.0.0.1:9/v1"):
        words = ("--data", str(tmp_path / "data"), "--", "sh", "-c", 'echo "$OPENAI_BASE_URL"')
        _, out, trouble = end(start(tmp_path, provider, "run", *words))
    assert out == f"{provider.base_url}\n"
    assert "has another upstream: http://127.0.0.1:9/v1; choose another directory by --data" in trouble


def test_an_address_that_a_killed_server_left_does_not_matter(provider: Provider, tmp_path: Path) -> None:
    log = name_log(tmp_path, provider)
    log.mkdir(parents=True)
    (log / "address").write_text("http://127.0.0.1:9\n")
    (log / "upstreams").write_text(f"{provider.base_url}\n")
    code, _, trouble = end(start(tmp_path, provider, "run", "--", sys.executable, "-c", ASK))
    assert code == 0
    assert "1 call;" in trouble


def test_the_settings_of_a_client_are_read_and_its_copy_is_gone(provider: Provider, tmp_path: Path) -> None:
    """A program with the name of cline: it gets a copy of its settings with our address, and its own stay."""
    file = tmp_path / ".cline" / "data" / "settings" / "providers.json"
    file.parent.mkdir(parents=True)
    own = json.dumps({"providers": {"openai-compatible": {"settings": {"baseUrl": provider.base_url}}}})
    file.write_text(own)
    program = tmp_path / "cline"
    program.write_text('#!/bin/sh\necho "$CLINE_PROVIDER_SETTINGS_PATH"\ncat "$CLINE_PROVIDER_SETTINGS_PATH"\n')
    program.chmod(0o700)
    code, out, trouble = end(start(tmp_path, provider, "run", "--", str(program)))
    copy, text = out.split("\n", 1)
    address = re.findall(r"is (http://127\.0\.0\.1:\d+)/-/", trouble)[0]
    assert code == 0
    assert f'"baseUrl": "{address}/v1"' in text
    assert not Path(copy).parent.exists()
    assert file.read_text() == own
