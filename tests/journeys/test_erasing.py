"""A session is erased by the command line while the server runs: from its files, its memory, and what can be asked."""

import json
import time
import urllib.parse
from pathlib import Path

from tests.journeys.running import TOKEN, Running, run_command, run_proxy
from tests.journeys.test_compacting import LARGE, Reporter
from tests.journeys.test_managed import Agent, call, grow, load
from tests.support.answers import serve_answers
from tests.support.compacting import is_own
from tests.support.managing import Message, make_history
from tests.support.remembering import FACTS

STEPS = 10
SECRET = "quagmirezebra7781"


class Teller(Reporter):
    """A provider that repeats the secret in its reports and facts."""

    def say(self, body: bytes) -> str:
        return super().say(body) + (f" {SECRET} {FACTS}" if is_own(body) else "")


def make_secret(history: list[Message]) -> list[Message]:
    """The history, with a secret in most messages; short ones stay as they are in the files."""
    told = []
    for n, message in enumerate(history):
        text = message.get("content")
        told.append({**message, "content": f"{SECRET}x{n} {text}"} if isinstance(text, str) and n > 1 else message)
    return told


def erase(proxy: Running, *arguments: str) -> tuple[int, str, str]:
    done = run_command("erase", *arguments, "--data", str(proxy.data), "--admin-token", TOKEN)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def list_files(folder: Path) -> list[str]:
    """The files that have the secret."""
    return [path.name for path in folder.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes().lower()]


def wait_until_gone(folder: Path) -> None:
    """The index follows behind other work."""
    for _ in range(200):
        if not list_files(folder):
            break
        time.sleep(0.1)
    assert list_files(folder) == []


def search(proxy: Running) -> list[object]:
    found: list[object] = load(proxy, f"/search?q={urllib.parse.quote(SECRET)}")["hits"]
    return found


def test_a_session_is_erased(tmp_path: Path) -> None:
    provider, history = Teller(), make_history(STEPS + 4, 2400)
    secret, data, mirror = make_secret(history), tmp_path / "data", tmp_path / "mirror"
    with serve_answers(provider.answer) as url, run_proxy(data, url, MEMORY__MIRROR=str(mirror)) as proxy:
        other = Agent(proxy, provider, {**LARGE, "x-palimpsest-session": "other"})
        grow(other, history, range(1, 4))
        kept = other.labels[0]["x-palimpsest-session"]
        agent = Agent(proxy, provider, LARGE)
        grow(agent, secret, range(1, STEPS + 1))
        session = agent.labels[0]["x-palimpsest-session"]
        load(proxy, f"/sessions/{session}/compact", "POST")
        agent.ask(secret[: 2 + 2 * (STEPS + 1)])
        reference = load(proxy, f"/sessions/{session}/epochs/1")["references"][0]["id"]
        assert call(proxy, f"/refs/{reference}")[0] == 200
        for _ in range(100):
            if search(proxy) and list_files(mirror):
                break
            time.sleep(0.1)
        assert list_files(data) and list_files(mirror)
        before = [call(proxy, f"/sessions/{kept}/exchanges/{n}") for n in (1, 2, 3)]
        code, out, told = erase(proxy, session[:10], "--dry-run")
        assert code == 0 and f"would erase the content of session {session}: " in out, told
        assert erase(proxy, session[:10])[0] == 1  # nobody can be asked
        code, out, told = erase(proxy, session[:10], "--yes", "--json")
        assert code == 0, told
        done = json.loads(out)
        assert (done["is_done"], done["is_overwritten"], done["left_files"]) == (True, True, [])
        wait_until_gone(tmp_path)
        assert search(proxy) == []
        check_erased(proxy, session, reference)
        assert [call(proxy, f"/sessions/{kept}/exchanges/{n}") for n in (1, 2, 3)] == before
        check_goes_on(agent, proxy, secret, session)
        agent.close()
        other.close()
    verified = run_command("verify", "--data", str(data))
    assert verified.returncode == 0, verified.stdout
    code, out, told = erase(proxy, session, "--yes")
    assert code == 0, told
    assert list_files(tmp_path) == []
    code, out, told = erase(proxy, session, "--yes")
    assert code == 1 and f"session {session} was erased on" in told
    assert run_command("verify", "--data", str(data)).returncode == 0
    assert TOKEN not in told


def test_an_erasure_that_was_not_finished_is_finished_by_the_next_start_and_by_another(tmp_path: Path) -> None:
    provider, history = Teller(), make_secret(make_history(STEPS + 4, 2400))
    data, mirror = tmp_path / "data", tmp_path / "mirror"
    with serve_answers(provider.answer) as url:
        with run_proxy(data, url, MEMORY__MIRROR=str(mirror)) as proxy:
            sessions = [remember(proxy, provider, history, mirror, name) for name in ("first", "second")]
            for session in sessions:
                (mirror / "agents" / session / "stuck").mkdir()  # what keeps files from being removed
                code, out, told = erase(proxy, session, "--yes", "--json")
                assert (code, json.loads(out)["left_memory"]) == (0, str(mirror)), told
            first, second = (mirror / "agents" / session for session in sessions)
            (first / "stuck").rmdir()
            code, out, told = erase(proxy, sessions[0], "--yes", "--json")
            done = json.loads(out)
            assert (code, done["is_done"], done["left_memory"]) == (0, True, None), told
            assert not first.exists() and second.exists()
            status, content = call(proxy, f"/sessions/{sessions[0]}", "DELETE")
            assert (status, b"was erased on" in content) == (410, True)
            proxy.kill()
        (second / "stuck").rmdir()
        with run_proxy(data, url) as proxy:  # memory is not mirrored any more
            wait_until_gone(tmp_path)
            for _ in range(600):
                if call(proxy, f"/sessions/{sessions[1]}", "DELETE")[0] == 410:
                    break
                time.sleep(0.1)
            assert call(proxy, f"/sessions/{sessions[1]}", "DELETE")[0] == 410
            assert not second.exists()
    assert run_command("verify", "--data", str(data)).returncode == 0


def remember(proxy: Running, provider: Teller, history: list[Message], mirror: Path, name: str) -> str:
    """Have a session with files of its memory. Return its id."""
    agent = Agent(proxy, provider, {**LARGE, "x-palimpsest-session": name})
    grow(agent, history, range(1, STEPS + 1))
    session = agent.labels[0]["x-palimpsest-session"]
    load(proxy, f"/sessions/{session}/compact", "POST")
    agent.ask(history[: 2 + 2 * (STEPS + 1)])
    agent.close()
    for _ in range(600):
        if list_files(mirror / "agents" / session):
            return session
        time.sleep(0.1)
    raise AssertionError("no memory was written")


def check_erased(proxy: Running, session: str, reference: str) -> None:
    status, content = call(proxy, f"/refs/{reference}")
    assert status == 410 and b"was erased on" in content, content
    assert call(proxy, f"/sessions/{session}/exchanges/1/sent")[0] == 410
    assert call(proxy, f"/sessions/{session}/exchanges/1/received")[0] == 410
    assert call(proxy, f"/sessions/{session}", "DELETE")[0] == 410
    for path in ("", "/exchanges", "/exchanges/1", "/epochs", "/summaries", "/pins", "/memory", "/cache", "/export"):
        status, content = call(proxy, f"/sessions/{session}{path}")
        assert status in (200, 404, 410), (path, content)
        assert SECRET.encode() not in content


def check_goes_on(agent: Agent, proxy: Running, history: list[Message], session: str) -> None:
    """The next call goes on under the id of the session, as the client sends it."""
    sent = agent.ask(history[: 2 + 2 * (STEPS + 2)])
    assert agent.labels[-1]["x-palimpsest-session"] == session
    assert json.loads(sent)["messages"] == history[: 2 + 2 * (STEPS + 2)]
    n = max(each["n"] for each in load(proxy, f"/sessions/{session}/exchanges?limit=1000"))
    assert call(proxy, f"/sessions/{session}/exchanges/{n}/sent") == (200, sent)
    assert call(proxy, f"/sessions/{session}/exchanges/1/sent")[0] == 410
