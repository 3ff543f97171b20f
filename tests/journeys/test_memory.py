"""Memory of an agent's session, as people and programs have it from a running proxy, and after a restart."""

import json
import time
from pathlib import Path
from typing import Any

from proxy.engine.memory.files import FILES
from tests.journeys.running import TOKEN, Running, run_command, run_proxy
from tests.journeys.test_compacting import LARGE, Reporter
from tests.journeys.test_managed import Agent, load
from tests.support.answers import serve_answers
from tests.support.compacting import is_own
from tests.support.managing import Message
from tests.support.pages import list_blocks
from tests.support.remembering import FACTS, make_turn

TEXTS = ("Never push to main. Fix the parser.", "I prefer short names. Now the lexer.", "And the docs.")


class Remembering(Reporter):
    """A provider that states facts beside its report."""

    def say(self, body: bytes) -> str:
        return super().say(body) + (FACTS if is_own(body) else "")


def run_memory(proxy: Running, session: str, *options: str) -> str:
    where = ("--port", str(proxy.port), "--admin-token", TOKEN, "--data", str(proxy.data))
    done = run_command("memory", session[:8], *options, *where)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def read_mirror(folder: Path, session: str) -> dict[str, list[Any]]:
    own = folder / "agents" / session
    return {name: [json.loads(line) for line in (own / name).read_text().splitlines()] for name in FILES}


def wait_for(folder: Path, session: str, name: str) -> dict[str, list[Any]]:
    """What is mirrored, once this file has a line."""
    for _ in range(100):
        if (folder / "agents" / session / name).exists() and read_mirror(folder, session)[name]:
            break
        time.sleep(0.1)
    return read_mirror(folder, session)


def talk(agent: Agent) -> str:
    """Three turns of an agent. Return the id of its session."""
    history: list[Message] = [{"role": "system", "content": "You are an agent."}]
    for n, text in enumerate(TEXTS, 1):
        turn = make_turn(n, text, steps=3, size=2400)
        agent.ask([*history, *turn[:-1]])
        history += turn
    return agent.labels[0]["x-palimpsest-session"]


def test_a_session_is_remembered(tmp_path: Path) -> None:
    provider, mirror = Remembering(), tmp_path / "mirror"
    with serve_answers(provider.answer) as url:
        with run_proxy(tmp_path / "data", url, MEMORY__MIRROR=str(mirror)) as proxy:
            agent = Agent(proxy, provider, LARGE)
            session = talk(agent)
            assert run_memory(proxy, session, "--compact") == "1 report and 4 facts were made of 2 turns\n"
            before = load(proxy, f"/sessions/{session}/memory")
            check_items(before, wait_for(mirror, session, "episodic.jsonl"))
            assert run_memory(proxy, session, "--retract", "sem_0004") == "retract: sem_0004\n"
            assert load(proxy, f"/sessions/{session}/context?wire=anthropic_messages")["system"] == "You are an agent."
            agent.close()
        with run_proxy(tmp_path / "data", url) as proxy:
            again = load(proxy, f"/sessions/{session}/memory")
            assert again["semantic"] == before["semantic"][:3] and again["raw"] == before["raw"]
            assert again["episodic"] == before["episodic"]
    verified = run_command("verify", "--data", str(tmp_path / "data"))
    assert verified.returncode == 0, verified.stdout


def test_the_documented_commands_work(tmp_path: Path) -> None:
    """They need a session with facts, which the one of the other pages has not."""
    (block,) = [block for block in list_blocks("docs/memory.md") if block.language == "sh"]
    provider, files = Remembering(), tmp_path / "files"
    with (
        serve_answers(provider.answer) as url,
        run_proxy(tmp_path / "data", url) as proxy,
    ):
        agent = Agent(proxy, provider, LARGE)
        session = talk(agent)
        agent.close()
        for line in block.text.splitlines():
            command = line.partition("  #")[0].replace("SESSION", session).replace("DIR", str(files)).split()
            where = ("--port", str(proxy.port), "--admin-token", TOKEN) if command[1] == "memory" else ()
            done = run_command(*command[1:], *where, "--data", str(proxy.data))
            assert done.returncode == 0, (line, done.stderr)
    assert {path.name for path in (files / "agents" / session).iterdir()} == set(FILES)


def check_items(found: Any, mirrored: dict[str, list[Any]]) -> None:
    assert [(each["id"], each["kind"], each["fact"]) for each in found["semantic"][:2]] == [
        ("sem_0001", "constraint", "Never push to main."),
        ("sem_0002", "preference", "I prefer short names."),
    ]
    assert found["turns"] == 3
    (episode,) = found["episodic"]
    assert episode["turn_ids"] == ["turn_0001", "turn_0002"]
    assert [*mirrored["raw_traces_archive.jsonl"], *mirrored["raw_traces.jsonl"]] == found["raw"]
    assert mirrored["semantic.jsonl"] == found["semantic"]
