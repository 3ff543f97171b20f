"""Titles are the user's own first words, whatever clients put around them."""

import pytest

from proxy.read.session_summary import MOST_CHARACTERS, make_title, name_client, shorten_title

REMINDER = "<system-reminder>\nAs you answer, you can use the following context.\n</system-reminder>"


@pytest.mark.parametrize(
    ("texts", "title"),
    [
        (["Fix the flaky retry"], "Fix the flaky retry"),
        ([f"{REMINDER}\nFix the flaky retry"], "Fix the flaky retry"),
        ([REMINDER, "Fix it"], "Fix it"),
        (["# AGENTS.md instructions for /src\n\nBe brief.", "<environment_context>\n<cwd>/</cwd>", "Go"], "Go"),
        (["<task>\nPort it to Rust\n</task>\n<environment_details>\nnow\n</environment_details>"], "Port it to Rust"),
        (["<user_query>Why?</user_query>"], "Why?"),
        (['<user_input mode="act">Why?</user_input>'], "Why?"),
        (["hé <script>alert(1)</script>"], "hé <script>alert(1)</script>"),
        (["I have *added these files to the chat*", "Rename it"], "Rename it"),
        (["one.\n\ntwo."], "one. two."),
        (["```\nx = 1\n```"], "``` x = 1 ```"),
        ([], ""),
        ([" \n"], ""),
    ],
)
def test_a_title_is_what_the_user_said_first(texts: list[str], title: str) -> None:
    assert make_title(texts) == title


def test_a_title_is_one_line_of_signs_that_can_be_seen() -> None:
    assert shorten_title("a\x1b[2Jb\u202ec\r\nd\x00\ud800 👩\u200d💻") == "a [2Jbc d �\u0020👩\u200d💻"
    long = shorten_title("word " * 40)
    assert len(long) <= MOST_CHARACTERS
    assert long.endswith("word…")
    assert shorten_title("x" * 200) == "x" * (MOST_CHARACTERS - 1) + "…"


@pytest.mark.parametrize(
    ("agent", "name"),
    [
        (b"claude-cli/2.1.34 (external, cli)", "claude-code 2.1"),
        (b"codex_cli_rs/0.40.0 (Debian 12)", "codex 0.40"),
        (b"opencode/1.0.3", "opencode 1.0"),
        (b"OpenAI/Python 1.51.0", "openai-python 1.51"),
        (b"AsyncOpenAI/Python 1.51.0", "openai-python 1.51"),
        (b"QwenCode/0.0.14 (linux; x64)", "qwen-code 0.0"),
        (b"curl", "curl"),
        (b"\xff", ""),
        (b"", ""),
    ],
)
def test_a_client_is_named_by_its_user_agent(agent: bytes, name: str) -> None:
    assert name_client(((b"user-agent", agent),)) == name
