"""A person compacts an agent's session by the command line while the server runs, and goes back."""

import json
from pathlib import Path

from proxy.model.messages import LEDGER_HEAD
from tests.journeys.running import TOKEN, Running, run_command, run_proxy
from tests.journeys.test_managed import Agent, Dummy, grow, load
from tests.support.answers import serve_answers
from tests.support.compacting import REPORT, is_own
from tests.support.managing import Message, make_history

STEPS = 12
LARGE = {"x-palimpsest-ceiling": "100000"}


class Reporter(Dummy):
    """A provider that gives a report when it is asked for one."""

    def say(self, body: bytes) -> str:
        return REPORT if is_own(body) else super().say(body)


def compact(proxy: Running, session: str, *options: str) -> tuple[int, str, str]:
    """The command, as a person runs it; its exit code, and what it wrote."""
    where = ("--port", str(proxy.port), "--admin-token", TOKEN, "--data", str(proxy.data))
    done = run_command("compact", session, *options, *where)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def test_a_session_is_compacted_by_hand(tmp_path: Path) -> None:
    provider, history = Reporter(), make_history(STEPS + 4, 2400)
    with serve_answers(provider.answer) as url:
        with run_proxy(tmp_path, url) as proxy:
            agent = Agent(proxy, provider, LARGE)
            whole = grow(agent, history, range(1, STEPS + 1))
            session = agent.labels[0]["x-palimpsest-session"]
            assert json.loads(whole[-1])["messages"] == history[: 2 + 2 * STEPS]
            found = check_command(proxy, session)
            sent = check_next_call(agent, history, found)
            check_what_is_left(proxy, session, found)
            load(proxy, f"/sessions/{session}/epochs/1/revert", "POST")
            back = agent.ask(history[: 2 + 2 * (STEPS + 2)])
            assert json.loads(back)["messages"] == history[: 2 + 2 * (STEPS + 2)]
            assert len(back) > len(sent)
            agent.close()
        with run_proxy(tmp_path, url) as proxy:
            check_after_a_restart(proxy, provider, session, history)
    verified = run_command("verify", "--data", str(tmp_path))
    assert verified.returncode == 0, verified.stdout
    code, _, told = compact(proxy, session)
    assert (code, "no server answers at" in told) == (1, True)


def check_command(proxy: Running, session: str) -> dict[str, str | int]:
    code, out, told = compact(proxy, session[:8], "--json")
    assert code == 0, told
    found: dict[str, str | int] = json.loads(out)
    assert (found["reason"], found["session"], found["level"], found["kind"]) == ("", session, 1, "leaf")
    assert int(found["tokens_after"]) < int(found["tokens_before"]) / 2
    assert found["messages_covered"] == 1 + 2 * (STEPS - 3)
    code, _, told = compact(proxy, session)
    assert (code, told.startswith("palimpsest: there is nothing to compact")) == (1, True)
    code, _, told = compact(proxy, "nobody")
    assert (code, "no session begins with 'nobody'" in told) == (1, True)
    return found


def check_next_call(agent: Agent, history: list[Message], found: dict[str, str | int]) -> bytes:
    """The next request is sent under the epoch, valid and whole but for what is told in short."""
    sent = agent.ask(history[: 2 + 2 * (STEPS + 1)])
    labels, messages = agent.labels[-1], json.loads(sent)["messages"]
    assert labels["x-palimpsest-epoch"] == found["epoch"]
    assert labels["x-palimpsest-notice"] == f"compacted {found['tokens_before']}->{found['tokens_after']}"
    assert "The parts up to here were looked at." in messages[2]["content"]
    assert LEDGER_HEAD in messages[3]["content"]
    assert messages[-8:] == history[2 + 2 * (STEPS - 3) : 2 + 2 * (STEPS + 1)]
    return sent


def check_what_is_left(proxy: Running, session: str, found: dict[str, str | int]) -> None:
    (summary,) = load(proxy, f"/sessions/{session}/summaries")
    assert (summary["id"], summary["is_live"]) == (found["summary"], True)
    (epoch,) = load(proxy, f"/sessions/{session}/epochs")
    assert (epoch["id"], epoch["why"]) == (found["epoch"], "manual")
    status = run_command("expand", str(found["summary"]), "--all", "--data", str(proxy.data))
    assert b"sed -n 3p src/module_3.py" in status.stdout


def check_after_a_restart(proxy: Running, provider: Reporter, session: str, history: list[Message]) -> None:
    """No credential is at hand then: no model is asked, and what is there is sent in short all the same."""
    asked = len(provider.asked)
    code, out, told = compact(proxy, session)
    assert code == 0, told
    assert out.startswith("compacted ")
    assert len(provider.asked) == asked
    agent = Agent(proxy, provider, LARGE)
    agent.ask(history[: 2 + 2 * (STEPS + 3)])
    assert agent.labels[-1]["x-palimpsest-notice"].startswith("compacted ")
    agent.close()
