"""A conversation of the openai SDK with turns, a regenerate, an edit and a side call: its tree, by every way in."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import openai
import pytest

from tests.journeys.provider import WORDS, run_provider
from tests.journeys.running import TOKEN, Running, run_command, run_proxy
from tests.journeys.talk import Talk, user

SYSTEM = {"role": "system", "content": "Be brief."}
ANSWER = "".join(WORDS)


class Told:
    """What the proxy's data directory and API say."""

    def __init__(self, proxy: Running, session: str) -> None:
        self.proxy = proxy
        self.session = session

    def run(self, *arguments: str) -> str:
        """A command's output."""
        done = run_command(*arguments, "--data", str(self.proxy.data))
        assert done.returncode == 0, done.stderr
        return done.stdout.decode()

    def load(self, path: str, *fields: tuple[str, str]) -> bytes:
        """An answer of the API."""
        headers = dict([("Authorization", f"Bearer {TOKEN}"), *fields])
        with urlopen(Request(f"{self.proxy.origin}/-/api/sessions{path}", headers=headers), timeout=60) as answer:
            return answer.read()  # type: ignore[no-any-return]

    def wait_for_readings(self) -> None:
        """Ask until the last answer has been read; whoever asks the server has it write first, for others to see."""
        until = time.monotonic() + 60
        while not json.loads(self.load(f"/{self.session}/exchanges"))["items"][-1]["rounds"][0]["usage"]:
            assert time.monotonic() < until, "the last answer has not been read"


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Told, Talk]]:
    data: Path = tmp_path_factory.mktemp("data")
    with (
        run_provider() as provider,
        run_proxy(data, provider.base_url) as proxy,
        openai.OpenAI(
            base_url=proxy.base_url,
            api_key="sk-journey-0123456789",
            max_retries=0,
            timeout=60,
            default_headers={"x-palimpsest-session": "talk"},
        ) as client,
    ):
        talk = Talk(client)
        first = talk.ask(SYSTEM, user("one"), stop=["x"])
        second = (SYSTEM, user("one"), first, user("two"))
        talk.ask(*second)
        talk.ask(*second)  # 3: regenerated
        answer = talk.ask(SYSTEM, user("one"), first, user("two, edited"))
        talk.ask(SYSTEM, user("one"), first, user("two, edited"), answer, user("three"))
        talk.ask({"role": "system", "content": "Give this talk a title."}, user("one two three"), max_tokens=16)
        log = Told(proxy, talk.labels[0][0])
        log.wait_for_readings()
        yield log, talk


def test_the_tree_is_the_same_by_command_and_by_api(told: tuple[Told, Talk]) -> None:
    log, talk = told
    assert {session for session, _ in talk.labels} == {log.session}
    rows = json.loads(log.load(f"/{log.session}/exchanges"))["items"]
    assert [(row["session"], row["id"]) for row in rows] == talk.labels
    relations = [(row["n"], row["relation"], row["is_side"]) for row in rows]
    assert relations == [
        (1, "root", False),
        (2, "append", False),
        (3, "retry", False),
        (4, "branch", False),
        (5, "append", False),
        (6, "root", True),
    ]
    shown = json.loads(log.load(f"/{log.session}"))
    assert [(b["after"], b["exchanges"], b["is_side"]) for b in shown["branches"]] == [
        *((0, [1, 2, 3], False), (1, [1, 4, 5], False), (0, [6], True)),
    ]
    assert json.loads(log.run("show", log.session, "--json")) == {**shown, "exchanges": rows}
    assert json.loads(log.run("sessions", "--json")) == json.loads(log.load(""))["items"]
    assert json.loads(log.run("sessions", "--json")) == [shown["session"]]
    one = json.loads(log.load(f"/{log.session[:6]}/exchanges/5"))
    assert json.loads(log.run("show", log.session, "5", "--json")) == one
    assert one["request"]["messages"][-1] == user("three")


def test_a_person_sees_the_tree(told: tuple[Told, Talk]) -> None:
    log, _ = told
    sentence, heading, row = (line for line in log.run("sessions").splitlines() if line)
    assert sentence.startswith("1 session")
    assert row.split()[:2] == [log.session[:8], "one"]
    for name in (log.session[:8], "talk"):
        parts = log.run("show", name).split("\n\n")
        assert "calls     6, 3 branches, 1 side call" in parts[1]
        lines = parts[2].splitlines()
        assert [line.split("  ")[0] for line in lines if "└ end " not in line] == [
            *("CALL", "● 1", "├─● 4", "│ ● 5", "● 2", "● 3", "○ 6"),
        ]
        assert max(map(len, [sentence, heading, *parts[1].splitlines(), *lines])) <= 80


@pytest.mark.parametrize(("branch", "texts"), [(0, ["two"]), (1, ["two, edited", "three"])])
def test_a_branch_is_exported_as_the_client_writes_it(told: tuple[Told, Talk], branch: int, texts: list[str]) -> None:
    log, _ = told
    tip = json.loads(log.load(f"/{log.session}"))["branches"][branch]["tip"]
    exported = log.run("export", log.session, "--openai", "--branch", tip[:10])
    assert exported.encode() == log.load(f"/{log.session}/export?form=openai&branch={tip[:10]}")
    messages = json.loads(exported)
    assert messages[:2] == [SYSTEM, user("one")]
    assert [m["content"] for m in messages[1:] if m["role"] == "user"] == ["one", *texts]
    assert {m["content"] for m in messages[2:] if m["role"] == "assistant"} == {ANSWER}
    assert messages[-1]["role"] == "assistant"


def test_the_newest_conversation_is_not_the_side_call(told: tuple[Told, Talk]) -> None:
    log, _ = told
    assert json.loads(log.run("export", log.session, "--openai"))[-2] == user("three")


def test_raw_bodies_are_those_that_were_sent(told: tuple[Told, Talk]) -> None:
    log, _ = told
    sent = log.load(f"/{log.session}/exchanges/2/sent")
    assert sent == run_command("show", log.session, "2", "--raw", "sent", "--data", str(log.proxy.data)).stdout
    assert json.loads(sent)["messages"][0] == SYSTEM
    assert json.loads(log.load(f"/{log.session}/exchanges/2/received"))["choices"][0]["message"]["content"] == ANSWER


@pytest.mark.parametrize(
    "field", [("Authorization", "Bearer wrong"), ("Host", "evil.example"), ("Origin", "http://evil.example")]
)
@pytest.mark.parametrize("path", ["", "/{}", "/{}/exchanges", "/{}/exchanges/1", "/{}/exchanges/1/sent", "/{}/export"])
def test_nobody_else_reads(told: tuple[Told, Talk], field: tuple[str, str], path: str) -> None:
    log, _ = told
    with pytest.raises(HTTPError) as refused:
        log.load(path.format(log.session), field)
    assert refused.value.code in (401, 403)
    refused.value.close()
